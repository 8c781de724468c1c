"""Measurement: the record that workers make, the database keeps and the cost model learns from."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from itertools import repeat
from operator import gt

from recommender.hardware import HardwareProfile
from recommender.workload import Workload
from tilecore.tile_config import TileConfig, digest


class MeasureStatus(StrEnum):
    """What became of a candidate; the set is closed (the database checks it)."""

    OK = "OK"
    INVALID_CONFIG = "INVALID_CONFIG"
    COMPILE_ERROR = "COMPILE_ERROR"
    COMPILE_TIMEOUT = "COMPILE_TIMEOUT"
    TOOLCHAIN_MISSING = "TOOLCHAIN_MISSING"
    LAUNCH_ERROR = "LAUNCH_ERROR"
    RUN_TIMEOUT = "RUN_TIMEOUT"
    WRONG_RESULT = "WRONG_RESULT"
    UNSTABLE = "UNSTABLE"
    WORKER_LOST = "WORKER_LOST"


class Protocol(StrEnum):
    """How the time was taken.

    On a GPU both are of the whole device, a CUDA graph of calls between two events; SCREEN takes
    few samples, CONFIRM more, interleaved with the incumbent and torch (workers.device_timing).
    """

    SCREEN = "screen"  # one thread, thread CPU time, median of few: ranks candidates
    CONFIRM = (
        "confirm"  # all threads asked for, wall clock, interleaved with the incumbent and torch
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """Everything besides the program and the config that can change the generated code."""

    tilecore: str  # digest of tilecore's own source
    tvm: str
    llvm: str
    linker: str = ""
    nvrtc: str = ""  # of code for NVIDIA's GPUs alone

    def on(self, kind: str) -> Toolchain:
        """Return what makes code for a kind of device: "cpu", "cuda" or "rocm"."""
        return self if kind == "cuda" or not self.nvrtc else replace(self, nvrtc="")

    @property
    def key(self) -> str:
        """A stable digest (32 hex digits)."""
        return _key(self.tilecore, self.tvm, self.llvm, self.nvrtc)


@lru_cache(maxsize=256)  # it is asked of every measurement
def _key(tilecore: str, tvm: str, llvm: str, nvrtc: str) -> str:
    named = {"tilecore": tilecore, "tvm": tvm, "llvm": llvm}
    return digest({**named, "nvrtc": nvrtc} if nvrtc else named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The outcome of one trial: times or a failure, never both.

    ``times_s`` holds every repeat in the order taken (seconds per call),
    ``reference_times_s`` those of the rival (torch) timed interleaved in the same run, where the
    protocol asks for it.
    """

    workload: Workload
    config: TileConfig
    hardware: HardwareProfile
    toolchain: Toolchain
    program_digest: str  # of the tile IR traced for this config's kernel (kernel version)
    protocol: Protocol
    threads: int  # threads actually used
    status: MeasureStatus
    times_s: tuple[float, ...] = ()
    reference_times_s: tuple[float, ...] = ()
    detail: str = ""  # why it failed: one line to a few kB
    compile_s: float | None = None
    max_error: float | None = None  # largest error relative to the tolerance (<= 1 passes)
    worker: str = ""
    driver: str = ""  # of the device (``HardwareProfile.driver``) when it measured; "": unknown
    measured_at: datetime
    metrics: Mapping[str, float] = field(default_factory=dict)  # resources, clocks, load

    def __post_init__(self) -> None:
        if (self.status is MeasureStatus.OK) != bool(self.times_s):
            raise ValueError(f"status {self.status} with {len(self.times_s)} times")
        if not all(map(gt, self.times_s, repeat(0.0))):
            raise ValueError(f"times must be positive seconds, found {self.times_s}")

    @property
    def time_s(self) -> float | None:
        """The median of the repeats."""
        return statistics.median(self.times_s) if self.times_s else None

    @property
    def is_apart(self) -> bool:
        """Whether it was timed at another moment than the others of its confirmation."""
        return bool(self.metrics.get("is_apart"))

    @property
    def reference_time_s(self) -> float | None:
        """The median of the rival's repeats."""
        return statistics.median(self.reference_times_s) if self.reference_times_s else None
