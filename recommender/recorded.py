"""RecordedSpace: a measured space that stands in for a device, read from the files people have."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recommender.errors import InvalidRecording
from recommender.external import ExternalSpace, Value
from recommender.knob_shapes import places, shapes
from recommender.measurement import Protocol
from recommender.search import Landscape
from tilecore.lazy import cached_property

MAX_BYTES = 1 << 30  # of a recording, unpacked
# Columns of measured spaces in CSV that are results, beside the repeats t1, t2, ...
RESULTS = frozenset(
    {
        "status", "time_ms", "GFLOP/s", "GB/s", "benchmark_time", "compile_time",
        "verification_time",
    }
)  # fmt: skip
WORKED = ("ok", "correct")  # what CSV says in `status`, in any case; without it, who has a time did
CONFIRMED = Protocol.CONFIRM.value  # wins where as many configurations were screened
Config = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class RecordedSpace:
    """Every configuration that was measured, with its time.

    Attributes:
        name: of the file it came from.
        knobs: names, in the order of ``configs``.
        configs: values as text.
        time_s: mean of the repeats; NaN where the configuration failed.
    """

    name: str
    knobs: tuple[str, ...]
    configs: tuple[Config, ...]
    time_s: NDArray[np.float64]

    @classmethod
    def load(cls, path: Path) -> RecordedSpace:
        """Return the space in a file, plain or .gz.

        CSV: columns of knobs, ``time_ms``, and ``status`` (OK, or why not). JSON: T4 results, or
        the cache file of Kernel Tuner.

        Raises:
            InvalidRecording: it cannot be read, is none of these, or no configuration worked
                (RC607).
        """
        text = _text(path)
        name = re.sub(r"(\.csv|\.json)?(\.gz)?$", "", path.name)
        try:
            rows = _json_rows(text) if text.lstrip()[:1] == "{" else _csv_rows(text)
        except (KeyError, TypeError, ValueError, AttributeError, csv.Error) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise InvalidRecording(path=path, reason=what) from error
        return cls._of(str(path), name, rows)

    @classmethod
    def _of(
        cls, file: str, name: str, rows: Sequence[tuple[Mapping[str, str], float]]
    ) -> RecordedSpace:
        if not rows:
            raise InvalidRecording(path=file, reason="it holds no configuration")
        knobs = tuple(rows[0][0])
        for number, (config, _) in enumerate(rows, 1):
            if tuple(config) != knobs:
                raise InvalidRecording(
                    path=file, reason=f"configuration {number} has other knobs than the first"
                )
        time_s = np.array([time for _, time in rows])
        if not np.isfinite(time_s).any():
            raise InvalidRecording(path=file, reason="every configuration in it failed")
        return cls(name, knobs, tuple(tuple(c.values()) for c, _ in rows), time_s)

    def __len__(self) -> int:
        return len(self.configs)

    @property
    def device(self) -> str:
        """Where it was measured, as files called KERNEL__DEVICE say; the whole name of others."""
        return self.name.rpartition("__")[2]

    @property
    def best_s(self) -> float:
        """The smallest time of all."""
        return float(np.nanmin(self.time_s))

    @property
    def speed(self) -> NDArray[np.float64]:
        """Each configuration's speed, of the best one's; 0 where it failed."""
        return np.nan_to_num(self.best_s / self.time_s)

    @cached_property
    def features(self) -> NDArray[np.float64]:
        """Knob values as numbers, a row per configuration (texts by their rank)."""
        return numbers_of(self.configs)

    def configs_of(self, space: ExternalSpace, file: Path) -> list[tuple[dict[str, Value], float]]:
        """Return the configurations that a space has, too, with their times in s (NaN: failed).

        Of one that comes twice the last counts; knobs that are no parameters may have one value.

        Raises:
            InvalidRecording: a parameter is no knob, or a knob with several values no parameter
                (RC607).
        """
        columns = dict(zip(self.knobs, zip(*self.configs, strict=True), strict=True))
        more = [k for k, c in columns.items() if k not in space.parameters and len(set(c)) > 1]
        if more or not space.parameters.keys() <= columns.keys():
            reason = f"expected columns {', '.join(space.parameters)}, found {', '.join(columns)}"
            raise InvalidRecording(path=file, reason=reason)
        known = {name: _by_text(values) for name, values in space.parameters.items()}
        found: dict[int, tuple[dict[str, Value], float]] = {}
        for at, time_s in enumerate(self.time_s.tolist()):
            texts = {name: columns[name][at] for name in space.parameters}
            config = {n: v for n, t in texts.items() if (v := _value(known[n], t)) is not None}
            row = space.find(config)
            if row is not None:
                found[row] = config, time_s
        return list(found.values())

    def landscape(self, prior_s: NDArray[Any] | None = None) -> Landscape:
        """Return what a search may see: knob values and neighbours, no times."""
        prior = np.ones(len(self)) if prior_s is None else prior_s
        columns = self.features.T
        ranks = np.stack([np.unique(c, return_inverse=True)[1] for c in columns], axis=1)

        def neighbours(row: int) -> list[int]:
            distance = np.abs(ranks - ranks[row])
            near = (np.count_nonzero(distance, axis=1) == 1) & (distance.sum(axis=1) == 1)
            return [int(r) for r in np.flatnonzero(near)]

        where = places(self.features) if prior_s is None else None
        return Landscape(prior, shapes(self.features), neighbours, places=where)


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            with gzip.open(io.BytesIO(raw)) as file:
                raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise InvalidRecording(path=path, reason=f"more than {MAX_BYTES >> 20} MiB")
        return raw.decode("utf-8-sig")  # spreadsheets begin CSV with a byte order mark
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRecording(path=path, reason=reason) from error


def _csv_rows(text: str) -> list[tuple[Mapping[str, str], float]]:
    reader = csv.DictReader(io.StringIO(text), strict=True)
    names = reader.fieldnames or []
    knobs = [n for n in names if n not in RESULTS and not re.fullmatch(r"t\d+", n)]
    if "time_ms" not in names or not knobs:
        raise ValueError("expected columns of knobs, `time_ms` and `status`")
    found: list[tuple[Mapping[str, str], float]] = []
    for row in reader:
        if None in row or any(row[k] is None for k in knobs):
            raise ValueError(f"line {reader.line_num}: expected {len(names)} values")
        worked = (row.get("status") or WORKED[0]).strip().lower() in WORKED
        found.append(({k: row[k] for k in knobs}, _seconds(row["time_ms"], worked)))
    return found


def _json_rows(text: str) -> list[tuple[Mapping[str, str], float]]:
    """Return the rows of T4 results, or of a cache of Kernel Tuner (whose last brackets may lack).

    Sources: the T4 schema 1.0.0 of AutoTuningAssociation, Kernel Tuner 1.4.0's cache files.
    """
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = json.loads(text.rstrip().rstrip(",") + "}}")
    if "cache" in found:
        keys = [str(k) for k in found["tune_params_keys"]]
        return [
            ({k: str(row[k]) for k in keys}, _seconds(row["time"], True))
            for row in found["cache"].values()
        ]
    rows: list[tuple[Mapping[str, str], float]] = []
    for result in _of_one_protocol(found["results"]):
        config = {str(k): str(v) for k, v in result["configuration"].items()}
        repeats = result["times"].get("runtimes") or []
        is_right = result.get("invalidity", "correct") == "correct"
        mean = sum(map(float, repeats)) / len(repeats) if repeats else math.nan
        rows.append((config, _seconds(mean, is_right)))
    return rows


def _of_one_protocol(results: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the results of the protocol that measured the most configurations, the newest of each.

    Our own log as T4 says which: times on one thread and on all of them are not compared. Results
    that say nothing of one are all kept.
    """
    newest: dict[str, dict[str, Mapping[str, Any]]] = {}
    for result in sorted(results, key=lambda r: str(r.get("timestamp", ""))):
        if "protocol" not in result:
            return results
        key = json.dumps(result["configuration"], sort_keys=True)
        newest.setdefault(str(result["protocol"]), {})[key] = result
    found = max(newest.items(), key=lambda p: (len(p[1]), p[0] == CONFIRMED), default=("", {}))[1]
    return list(found.values())


def _seconds(time_ms: Any, worked: bool) -> float:
    """Return a time in s; NaN for a failure, which Kernel Tuner writes as the name of its class."""
    if not worked:
        return math.nan
    try:
        found = float(time_ms) / 1e3
    except (TypeError, ValueError):
        return math.nan
    return found if 0 < found < math.inf else math.nan


def _by_text(values: Iterable[Value]) -> dict[str | float, Value]:
    """Return values by how files may spell them: 1, 1.0 and True are one number."""
    return {v if isinstance(v, str) else float(v): v for v in values}


def _value(known: Mapping[str | float, Value], text: str) -> Value | None:
    if text in known:
        return known[text]
    try:
        return known.get(float({"true": "1", "false": "0"}.get(text.lower(), text)))
    except ValueError:
        return None


def numbers_of(configs: Iterable[Config]) -> NDArray[np.float64]:
    """Return values of knobs as numbers, a row per configuration.

    Texts are numbered by their rank among those of all ``configs``: rows of two calls may not be
    compared.
    """
    return np.stack([_numbers(column) for column in zip(*configs, strict=True)], axis=1)


def _numbers(texts: Iterable[str]) -> NDArray[np.float64]:
    values = list(texts)
    try:
        return np.array([float(t) for t in values])
    except ValueError:
        return np.unique(values, return_inverse=True)[1].astype(np.float64)
