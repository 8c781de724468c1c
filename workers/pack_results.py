"""Results of a pack: JSON lines, one per candidate, written as they come and read back anywhere.

A line with ``header`` says what the lines behind it were measured on; a file grows over several
runs. A last line that was not completed is nobody's result.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol, Toolchain
from tilecore.errors import TileError
from tilecore.tile_config import TileConfig
from workers.errors import InvalidPack
from workers.packs import known_device, workload_of

SCHEMA = 1
HEADER = "header"
HINT = "a file that `run.py` of a pack has written, as it is or by gzip"
Key = tuple[str, str, str]  # workload, config, protocol


def key_of(measurement: Measurement) -> Key:
    """Return what a pack's result is for."""
    m = measurement
    return m.workload.key, m.config.key, m.protocol.value


@dataclass(frozen=True, slots=True)
class Header:
    """What the results behind it were measured on."""

    hardware: HardwareProfile
    toolchain: Toolchain
    worker: str

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema": SCHEMA,
            "hardware": {"name": self.hardware.name, "key": self.hardware.key},
            "toolchain": asdict(self.toolchain),
            "worker": self.worker,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Header:
        """Return the header of a JSON form; raises ValueError, KeyError, TypeError, TileError."""
        if values["schema"] != SCHEMA:
            raise ValueError(f"expected schema {SCHEMA}, found {values['schema']}")
        toolchain = Toolchain(**{str(k): str(v) for k, v in values["toolchain"].items()})
        return cls(known_device(values["hardware"]), toolchain, str(values["worker"]))


class ResultLog:
    """A file that results are appended to; each is on disk when ``add`` returns."""

    def __init__(self, path: Path, header: Header, extra: Mapping[str, Any]) -> None:
        """Go on with a file, or begin one.

        Raises:
            InvalidPack: it holds something else, or cannot be written (WK709).
        """
        self.known = {key_of(m): m for m in read_results(path)} if path.exists() else {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _drop_torn_line(path)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise InvalidPack(path=path, reason=error.strerror or str(error), hint="") from error
        self._write({HEADER: {**header.as_dict(), **extra}})

    def learn(self, paths: Sequence[Path]) -> None:
        """Take results of other files for known; raises InvalidPack (WK709)."""
        self.known |= {key_of(m): m for path in paths for m in read_results(path)}

    def add(self, measurement: Measurement) -> None:
        """Append a result."""
        self.known[key_of(measurement)] = measurement
        self._write(_to_dict(measurement))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, values: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(values, separators=(",", ":")) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read_results(path: Path) -> Iterator[Measurement]:
    """Yield the results of a file.

    Raises:
        InvalidPack: it cannot be read, or a line is none of ours: the line is named (WK709).
    """
    header: Header | None = None
    for number, line in _lines(path):
        try:
            values = json.loads(line)
            if not isinstance(values, dict):
                raise ValueError(f"expected an object, found {type(values).__name__}")
            if HEADER in values:
                header = Header.from_dict(values[HEADER])
                continue
            if header is None:
                raise ValueError("expected a header first")
            found = _from_dict(header, values)
        except (ValueError, KeyError, TypeError, AttributeError, TileError) as error:
            words = f"{error.code} {error.message}" if isinstance(error, TileError) else str(error)
            what = f"no {words}" if isinstance(error, KeyError) else words
            raise InvalidPack(path=path, reason=f"line {number}: {what}", hint=HINT) from error
        yield found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.endswith("\n"):  # else: the process ended while it wrote
                    yield number, line
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidPack(path=path, reason=reason, hint=HINT) from error


def _drop_torn_line(path: Path) -> None:
    if path.exists():
        content = path.read_bytes()
        if not content.endswith(b"\n"):
            path.write_bytes(content[: content.rfind(b"\n") + 1])


def _to_dict(m: Measurement) -> dict[str, Any]:
    return {
        "workload": m.workload.as_dict(),
        "program_digest": m.program_digest,
        "config": dict(m.config.items_),
        "protocol": m.protocol.value,
        "threads": m.threads,
        "status": m.status.value,
        "times_s": list(m.times_s),
        "reference_times_s": list(m.reference_times_s),
        "detail": m.detail,
        "compile_s": m.compile_s,
        "max_error": m.max_error,
        "driver": m.driver,
        "measured_at": m.measured_at.isoformat(),
        "metrics": dict(m.metrics),
    }


def _from_dict(header: Header, values: Mapping[str, Any]) -> Measurement:
    config = {str(k): _knob(k, v) for k, v in values["config"].items()}
    return Measurement(
        workload=workload_of(values["workload"]),
        config=TileConfig.of(config),
        hardware=header.hardware,
        toolchain=header.toolchain,
        program_digest=str(values["program_digest"]),
        protocol=Protocol(values["protocol"]),
        threads=int(values["threads"]),
        status=MeasureStatus(values["status"]),
        times_s=tuple(float(t) for t in values["times_s"]),
        reference_times_s=tuple(float(t) for t in values["reference_times_s"]),
        detail=str(values["detail"]),
        compile_s=_number(values["compile_s"]),
        max_error=_number(values["max_error"]),
        worker=header.worker,
        driver=str(values.get("driver", "")),  # files of older versions do not tell
        measured_at=_moment(values["measured_at"]),
        metrics={str(k): float(v) for k, v in values["metrics"].items()},
    )


def _knob(name: object, value: Any) -> int | str | bool:
    if not isinstance(value, int | str | bool):
        raise ValueError(f"config: {name}: expected an integer, text or flag, found {value!r}")
    return value


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _moment(text: Any) -> datetime:
    found = datetime.fromisoformat(str(text))
    if found.tzinfo is None:
        raise ValueError(f"measured_at: expected a time with its zone, found {text!r}")
    return found
