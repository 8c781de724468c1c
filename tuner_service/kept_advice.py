"""KeptAdvice: what was recommended for a program that is text, on disk as long as it holds.

A computation asks for every kernel anew in each process, and an answer takes tens of milliseconds.
It rests on the program, the device, what the database holds and the code that answers: all of them
are in the name of its file, so that an answer that holds no longer is just not found.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import recommender
import tilecore
import tuner_service
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from tilecore.recommending import OpenProgram, ProgramAdvice, RecommendedConfig
from tilecore.tile_config import TileConfig, digest
from tuner_service.wiring import host_toolchain

MOST = 4096  # files, of a kilobyte or two
LOOKED_AT = "0"  # files whose names begin so look at how many there are: one in sixteen
PACKAGES = (tilecore, recommender, tuner_service)


class KeptAdvice:
    """The answer to one question."""

    def __init__(
        self, folder: Path, question: OpenProgram, hardware: HardwareProfile, store: SqlStore
    ) -> None:
        """Name it; ``question.text`` says all of the program.

        Raises:
            DatabaseError: the database cannot be asked how it is.
        """
        asked = {f.name: getattr(question, f.name) for f in fields(question) if f.name != "trace"}
        rests_on = (
            asked, asdict(hardware), host_toolchain().on(hardware.kind).key,
            store.database.shown_url, store.state(), _code(),
        )  # fmt: skip
        self.path = folder / f"{digest(_plain(rests_on))}.json"

    def read(self) -> ProgramAdvice | None:
        """Return the answer that was kept, None where there is none that can be read."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            configs = tuple(
                RecommendedConfig(
                    **c | {name: TileConfig.of(c[name]) for name in ("config", "lowering")}
                    | {"interval_s": tuple(c["interval_s"])}
                )
                for c in found.pop("configs")
            )  # fmt: skip
            return ProgramAdvice(**found | {"configs": configs, "notes": tuple(found["notes"])})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def keep(self, advice: ProgramAdvice) -> None:
        """Write an answer; a folder that cannot be written to keeps none."""
        told = {f.name: getattr(advice, f.name) for f in fields(advice)}
        configs = [
            {f.name: getattr(c, f.name) for f in fields(c)}
            | {"config": dict(c.config), "lowering": dict(c.lowering)}
            for c in advice.configs
        ]
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.name.startswith(LOOKED_AT):
                _trim(self.path.parent)
            handle, partial = tempfile.mkstemp(prefix=".", dir=self.path.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(told | {"configs": configs}, file)
            os.replace(partial, self.path)


def _plain(value: Any) -> Any:
    """Return what JSON tells apart as the values differ."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, bool | int | float | str | None) else repr(value)


@functools.cache
def _code() -> str:
    """Return a digest of which files answer: their names, sizes and dates."""
    found = (
        (path.relative_to(root).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
        for root in (Path(str(package.__file__)).parent for package in PACKAGES)
        for path in _files(root)
    )
    return digest(sorted(found))


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (Path(folder) / name for name in names)


def _trim(folder: Path) -> None:
    """Remove the oldest files beyond ``MOST``."""
    found = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in found[: max(0, len(found) - MOST)]:
        path.unlink(missing_ok=True)
