"""Record the same configs at many shapes of one GEMM: full matrices to judge dispatch tables by.

    python -m benchmarks.record_dispatch ARTIFACTS FOLDER [--match REGEX] [--configs 64]

Two families of float32 products: ``m`` (20 sizes of M, N = K = 1024) and ``mn`` (M x N, K = 1024).
Every shape gets the same configs: what the model that ships likes best at each of the family's
shapes, the default, and the rest at random from these shapes' best quarters. They are compiled for
the shape, checked against float64 and timed as ``record_cpu_spaces.py`` does: one thread, thread
CPU time, all configs of a shape interleaved in rounds. One T4 file per shape; shapes that FOLDER
has are not measured again. Wants the machine for itself.
"""

from __future__ import annotations

import argparse
import gzip
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.cpu import Row, profile
from benchmarks.record_cpu_spaces import Recording
from db.exchange.t4 import t4_chunks
from db.records import MeasurementRecord
from recommender.analytic import estimate
from recommender.hardware import HardwareProfile
from recommender.predict import forecast, shipped
from recommender.space import SearchSpace
from tilecore import kernels
from tilecore.artifact import ArtifactStore
from tilecore.tile_config import TileConfig
from workers.host import detect

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 48, 64, 96, 128, 129, 192, 256, 384, 512)
GRID = [(m, n) for m in (1, 16, 64, 256) for n in (512, 2048, 4096)]
FAMILIES = {"m": [(m, 1024) for m in ROWS], "mn": GRID}


@dataclass(frozen=True)
class OneOfMany(Recording):
    """A shape of a family, with the configs of the whole family."""

    family: tuple[tuple[int, int], ...] = ()

    @cached_property
    def chosen(self) -> list[TileConfig]:
        """The configs: chosen without this run's rates, so always the same."""
        host = detect()
        learned = shipped("gemm", host, "float32")
        spaces = [SearchSpace.build(self.definition, problem(*s), host) for s in self.family]
        found = dict.fromkeys([self.definition.default_config()])
        for space in spaces:
            rows = forecast(space, 1, learned).rows[:2]
            found |= dict.fromkeys(space.config(int(r)) for r in rows)
        rng = np.random.default_rng(0)
        turn = 0
        while len(found) < self.configs_wanted:
            space = spaces[turn % len(spaces)]
            quarter = np.argsort(estimate(space, threads=1).time_s)[: max(8, len(space) // 4)]
            found[space.config(int(rng.choice(quarter)))] = None
            turn += 1
        return list(found)[: self.configs_wanted]

    def configs(self) -> list[TileConfig]:
        """Return those of the family that run here."""
        space = SearchSpace.build(self.definition, self.problem, detect())
        legal = space.can_run(self.chosen)
        return [config for config, ok in zip(self.chosen, legal, strict=True) if ok]


def problem(m: int, n: int) -> dict[str, int | str | bool]:
    """Return the canonical problem of a shape."""
    return kernels.get("gemm").parse_problem({"m": m, "n": n, "k": 1024})


def recordings(host: HardwareProfile, configs: int) -> Sequence[OneOfMany]:
    """Return all shapes of all families."""
    return [
        OneOfMany(
            Row(f"{family} {m}x{n}x1024", "gemm", problem(m, n)), host, configs, tuple(shapes)
        )
        for family, shapes in FAMILIES.items()
        for m, n in shapes
    ]


def main() -> None:
    """Measure the shapes that the folder lacks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("artifacts", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--match", default="")
    parser.add_argument("--configs", type=int, default=64)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    store = ArtifactStore(args.artifacts)
    for recording in recordings(profile("llvm"), args.configs):
        path = args.folder / f"{recording.row.label.replace(' ', '_')}.json.gz"
        if path.exists() or not re.search(args.match, recording.row.label):
            continue
        begin = time.perf_counter()
        found = list(recording.measure(store))
        records = (MeasurementRecord(id=i, run=None, measurement=m) for i, m in enumerate(found))
        path.write_bytes(gzip.compress("".join(t4_chunks(records)).encode(), mtime=0))
        good = [m.time_s for m in found if m.time_s is not None]
        spent = time.perf_counter() - begin
        best = f"{len(good)} of {len(found)} good, best {min(good) * 1e6:.1f} us"
        print(f"{recording.row.label}: {best}, {spent:.1f} s", flush=True)


if __name__ == "__main__":
    main()
