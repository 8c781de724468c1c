"""Measurements as years of tuning leave them, made from recorded spaces (for database.py)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol, Toolchain
from recommender.recorded import RecordedSpace
from recommender.workload import Workload
from tilecore.tile_config import TileConfig, digest

START, DAYS, TOOLCHAINS = datetime(2024, 11, 1, tzinfo=UTC), 730, 24
WORKLOADS, CAMPAIGN, CONFIRMED = 300, 240, 10  # per kernel; configurations; of these confirmed
AUTHORS = ("nightly", *(f"user {n}" for n in range(40)))
FAILURES = (
    MeasureStatus.COMPILE_ERROR,
    MeasureStatus.LAUNCH_ERROR,
    MeasureStatus.RUN_TIMEOUT,
    MeasureStatus.WRONG_RESULT,
    MeasureStatus.UNSTABLE,
    MeasureStatus.WORKER_LOST,
)
FAILURE_SHARES = (0.70, 0.12, 0.08, 0.05, 0.04, 0.01)


@dataclass(frozen=True)
class Recording:
    """A recorded space as measurements want it."""

    kernel: str
    hardware: HardwareProfile
    configs: tuple[TileConfig, ...]
    time_s: Any


def read(folder: Path) -> list[Recording]:
    """Return the recorded spaces of a folder."""
    found = []
    for path in sorted(folder.glob("*.csv.gz")):
        space = RecordedSpace.load(path)
        kernel, device = space.name.split("__")
        kernel = kernel.removeprefix("old_").removesuffix("_milo")
        hardware = HardwareProfile(
            name=device.replace("_", " "), kind="rocm" if device == "W6600" else "cuda",
            arch=device, cores=64,
        )  # fmt: skip
        configs = tuple(
            TileConfig.of(dict(zip(space.knobs, c, strict=True))) for c in space.configs
        )
        found.append(Recording(kernel, hardware, configs, space.time_s))
    if not found:
        sys.exit(f"{folder}: expected recorded spaces KERNEL__DEVICE.csv.gz, found none")
    return found


def workloads_of(kernel: str, rng: np.random.Generator) -> list[Workload]:
    """Return the problems that people have: powers of two, their neighbours, odd batches."""
    found: dict[str, Workload] = {}
    while len(found) < WORKLOADS:
        m, n, k = (
            int(2 ** rng.integers(5, 14)) + int(rng.choice([0, 0, 0, -24, 8])) for _ in "mnk"
        )
        dtype = str(rng.choice(["float16", "bfloat16", "float32"]))
        made = Workload.of(kernel, {"m": m, "n": n, "k": k, "dtype": dtype})
        found[made.key] = made
    return list(found.values())


def campaigns(spaces: Sequence[Recording], rows: int, seed: int) -> Iterator[list[Measurement]]:
    """Yield what tunings would have stored, oldest first, until there are ``rows``."""
    rng = np.random.default_rng(seed)
    problems = {kernel: workloads_of(kernel, rng) for kernel in sorted({s.kernel for s in spaces})}
    toolchains = [Toolchain(tilecore=f"t{i}", tvm="0.27", llvm="22") for i in range(TOOLCHAINS)]
    made, expected = 0, rows // (CAMPAIGN + CONFIRMED) + 1
    number = 0
    while made < rows:
        space = spaces[rng.integers(len(spaces))]
        share = min(number / expected, 0.999)
        popular = int(WORKLOADS * rng.power(0.5)) % WORKLOADS
        campaign = Campaign(
            space, problems[space.kernel][popular], toolchains[int(share * TOOLCHAINS)],
            START + timedelta(days=DAYS * share), worker=f"worker-{rng.integers(12)}",
        )  # fmt: skip
        found = campaign.measurements(rng)[: rows - made]
        made, number = made + len(found), number + 1
        yield found


def author(campaign: Sequence[Measurement]) -> str:
    """Return who asked for a campaign: for nine of ten the first of the authors."""
    number = int(campaign[0].config.key, 16)
    return AUTHORS[0] if number % 10 else AUTHORS[1 + number // 10 % (len(AUTHORS) - 1)]


@dataclass(frozen=True)
class Campaign:
    """One workload tuned on one device."""

    space: Recording
    workload: Workload
    toolchain: Toolchain
    at: datetime
    worker: str

    def measurements(self, rng: np.random.Generator) -> list[Measurement]:
        """Return all screened, the fastest confirmed."""
        size = np.prod([float(v) for k, v in self.workload.problem if k in "mnk"]) / 2.0**30
        rows = rng.choice(len(self.space.configs), min(CAMPAIGN, len(self.space.configs)), False)
        found = [self._one(int(row), size, n, rng) for n, row in enumerate(rows)]
        good = sorted((m for m in found if m.time_s is not None), key=lambda m: m.time_s or 0.0)
        for n, m in enumerate(good[:CONFIRMED]):
            times = tuple(float(t) for t in m.times_s[0] * rng.normal(1.0, 0.01, 10))
            at = self.at + timedelta(seconds=len(found) + n)
            found.append(replace(m, protocol=Protocol.CONFIRM, times_s=times, measured_at=at))
        return found

    def _one(self, row: int, size: float, n: int, rng: np.random.Generator) -> Measurement:
        time_s = float(self.space.time_s[row])
        failed = bool(np.isnan(time_s)) or rng.random() < 0.03
        status = (
            MeasureStatus(rng.choice(FAILURES, p=FAILURE_SHARES)) if failed else MeasureStatus.OK
        )
        times = () if failed else tuple(float(t) for t in time_s * size * rng.normal(1, 0.02, 3))
        return Measurement(
            workload=self.workload, config=self.space.configs[row], hardware=self.space.hardware,
            toolchain=self.toolchain, program_digest=self.digest, protocol=Protocol.SCREEN,
            threads=1, status=status, times_s=times, detail="no such register" if failed else "",
            compile_s=0.2, worker=self.worker, measured_at=self.at + timedelta(seconds=n),
            metrics={"registers": 64.0},
        )  # fmt: skip

    @property
    def digest(self) -> str:
        """The program's version: it changes with every second toolchain."""
        return digest([self.workload.key, int(self.toolchain.tilecore[1:]) // 2])
