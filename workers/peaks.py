"""Measure what this machine can do: FMA rate per core, memory bandwidth, cost of a parallel call.

Runs in a sandbox child; takes a few seconds. Times of one core are thread CPU time, so that
neighbours on the machine do not lower the peak; medians throughout.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from recommender.hardware import HardwareProfile
from tilecore import amx
from tilecore.inference.cpu.dots import DOTS
from tilecore.target import Target, cpu_target
from workers.correctness import aligned_copy
from workers.device_lock import WAIT_S, device_lock, lock_path
from workers.errors import ProbeFailed
from workers.outcome import describe
from workers.pinning import set_threads
from workers.sandbox import Returned, Sandbox, Zygote
from workers.statistics import median
from workers.timing import Call, calibrate, sample

MODULES = ("numpy", "tilecore.codegen.llvm", "tilecore.lowering.cpu.peaks")
PROBE_TIMEOUT_S = 120.0
MEMORY_BYTES = 8 << 30
DTYPES = ("float32", "float64")
SAMPLES = 9
STREAM_BYTES = 64 << 20  # per array, two arrays: far beyond a core's own caches, cheap to page in
ROWS, PIECE = 4, 64  # read in turn, and how many elements of each
FMA_STEPS = 200_000  # a few ms
TILE_STEPS = 20_000
# Outside of this a probe measured something else: 1 FLOP per cycle of a slow core, 4 AVX-512 FMA
# ports at 8 GHz; 16 times that on tiles.
PLAUSIBLE_FLOP_PER_S = (1e9, 16e12)


class PeakProbe:
    """Lives in the child process: compiles the probes and times them."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._home = tempfile.TemporaryDirectory(prefix="tilecore-probes-")
        self._folder, self._probes = Path(self._home.name), 0
        self._modules: list[Any] = []  # of the probes: they must outlive their functions

    def fma_flop_per_s(self, dtype: str) -> float:
        """Return the FLOP per second of one core."""
        from tilecore.lowering.cpu.peaks import fma_chains, fma_probe

        func, flop = fma_probe(dtype, self._target)
        lanes = self._target.lanes(dtype)
        values = aligned_copy(np.zeros(fma_chains(self._target) * lanes, dtype))
        # r = r * 0.999 + 0.001 tends to 1: no overflow, no denormals
        operands = aligned_copy(np.repeat(np.array([0.999, 0.001], dtype), lanes))
        steps = np.array([FMA_STEPS], np.int32)
        run = self._compiled(func)
        times_s = _samples(lambda: run(values, operands, steps), time.thread_time, SAMPLES)
        if not np.allclose(values, 1.0, rtol=1e-3):
            raise ProbeFailed(what=f"{dtype} FMA rate", reason=f"the sums are {values[:4]}, not 1")
        return flop * FMA_STEPS / median(times_s)

    def tile_flop_per_s(self, dtype: str) -> float:
        """Return the FLOP per second of one core on tiles, of arbitrary numbers in its L1 cache."""
        from tilecore.lowering.cpu.peaks import DOT_WORDS, TILE_WORDS, dot_probe

        func, flop = dot_probe(next(d for d in DOTS if d.is_tiled and dtype in d.operands))
        rng = np.random.default_rng(0)  # the clock depends on the bits that change
        values = rng.standard_normal(2 * DOT_WORDS, dtype=np.float32).view(np.uint32) >> 16
        operands = aligned_copy(values.astype(np.uint16).view(np.int32))
        out = aligned_copy(np.zeros(4 * TILE_WORDS, np.int32))
        steps = np.array([TILE_STEPS], np.int32)
        run = self._compiled(func)
        if not amx.request():
            raise ProbeFailed(what=f"{dtype} rate on tiles", reason="Linux does not allow tiles")
        times_s = _samples(lambda: run(operands, out, steps), time.thread_time, SAMPLES)
        if not out.any():
            raise ProbeFailed(what=f"{dtype} rate on tiles", reason="the sums are 0")
        return flop * TILE_STEPS / median(times_s)

    def bandwidth_bytes_per_s(self, threads: int) -> float:
        """Return bytes read plus written per second by ``threads`` cores."""
        from tilecore.lowering.cpu.peaks import stream_probe

        elements = STREAM_BYTES // 4 // (threads * 1024) * (threads * 1024)
        source, target = np.ones(elements, np.float32), np.zeros(elements, np.float32)
        factor = np.array([2.0], np.float32)
        run = self._compiled(stream_probe(elements, threads, self._target))
        set_threads(threads)
        clock = time.thread_time if threads == 1 else time.perf_counter
        times_s = _samples(lambda: run(source, target, factor), clock, SAMPLES)
        return 2 * source.nbytes / median(times_s)

    def reading_s(self, *ways: tuple[int, int]) -> list[float]:
        """Return the seconds in which one core reads STREAM_BYTES, for each way.

        Args:
            ways: how many parts it reads in turn, and how many elements of each. Their samples
                are taken by turns, too: what slows the machine down slows down all of them.
        """
        from tilecore.lowering.cpu.peaks import STREAM_UNROLL, reading_probe

        elements = STREAM_BYTES // 4
        source = np.ones(elements, np.float32)
        out = aligned_copy(np.zeros(STREAM_UNROLL * self._target.lanes("float32"), np.float32))
        runs = [self._compiled(reading_probe(elements, *way, self._target)) for way in ways]
        times_s: list[list[float]] = [[] for _ in ways]
        for _ in range(SAMPLES):
            for run, own in zip(runs, times_s, strict=True):
                out[:] = 0
                begin = time.thread_time()
                run(source, out)
                own.append(time.thread_time() - begin)
                if out.sum() != elements:
                    reason = f"the sum is {out.sum()}, not {elements}"
                    raise ProbeFailed(what="reading", reason=reason)
        return [median(own) for own in times_s]

    def launch_s(self, threads: int) -> float:
        """Return the wall time of a parallel call that does nothing."""
        from tilecore.lowering.cpu.peaks import launch_probe

        out = np.zeros(16 * threads, np.int32)
        run = self._compiled(launch_probe(threads))
        set_threads(threads)
        return median(_samples(lambda: run(out), time.perf_counter, SAMPLES))

    def _compiled(self, func: Any) -> Callable[..., object]:
        """Return a probe as kernels are: linked with what runs their parallel loops."""
        from tilecore.codegen.launch import launcher
        from tilecore.codegen.llvm import ENTRY, generate, link
        from tilecore.runtime.library import join_threads, load_library

        self._probes += 1
        path = self._folder / f"probe{self._probes}.so"
        link(generate(func, self._target), path, [launcher(self._folder)])
        module, found = load_library(path, ENTRY)
        join_threads(path)
        self._modules.append(module)
        function: Callable[..., object] = found
        return function


def measure(
    hardware: HardwareProfile,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    *,
    lock: Path | None = None,
    wait_s: float = WAIT_S,
) -> HardwareProfile:
    """Return the profile with measured rates in place of defaults.

    Args:
        hardware: this machine's processor.
        now: the date of the rates.
        lock: of the processor, held while it is probed; None: that which all on the machine take.
        wait_s: how long to wait for the lock.

    Raises:
        DeviceBusy: somebody else measures for longer than ``wait_s`` (WK703).
        LockRefused: this user may not open the lock (WK712).
        ProbeFailed: a probe crashed, hung or gave an implausible rate (WK706).
        UnknownTarget: no code can be generated for this processor (TC304).
    """
    zygote = Zygote(
        "peak probe",
        MODULES,
        absent=("torch",),
        environment={"TVM_THREAD_POOL_SPIN_COUNT": "0", "TVM_NUM_THREADS": str(hardware.cores)},
        memory_bytes=MEMORY_BYTES,
    )
    sandbox = Sandbox(zygote, PeakProbe, cpu_target(hardware.features or None))
    try:
        sandbox.start()  # its imports need no lock
        with device_lock(lock or lock_path(hardware.kind), wait_s):
            return _probed(hardware, sandbox, now)
    finally:
        sandbox.close()
        zygote.close()


def _probed(
    hardware: HardwareProfile, sandbox: Sandbox, now: Callable[[], datetime]
) -> HardwareProfile:
    cores = hardware.cores
    peaks = {dtype: _ask(sandbox, "fma_flop_per_s", dtype) for dtype in DTYPES}
    tiled = [d for d in DOTS if d.is_tiled and d.features <= set(hardware.features)]
    for dtype in sorted({t for d in tiled for t in d.operands}):
        peaks[dtype] = _ask(sandbox, "tile_flop_per_s", dtype)
    _check_plausible(peaks)
    one_core = _ask(sandbox, "bandwidth_bytes_per_s", 1)
    all_cores = _ask(sandbox, "bandwidth_bytes_per_s", cores)
    launch_s = _ask(sandbox, "launch_s", cores)
    whole_s, turns_s = _ask(sandbox, "reading_s", (1, PIECE), (ROWS, PIECE))
    return dataclasses.replace(
        hardware,
        peak_flop_per_s=peaks,
        core_bandwidth_bytes_per_s=one_core,
        bandwidth_bytes_per_s=max(one_core, all_cores),
        launch_s=launch_s,
        turns_gain=whole_s / turns_s,
        source=f"measured {now():%Y-%m-%d}",
    )


def _ask(sandbox: Sandbox, method: str, *args: object) -> Any:
    outcome = sandbox.call(method, *args, timeout_s=PROBE_TIMEOUT_S)
    if not isinstance(outcome, Returned):
        raise ProbeFailed(what=method, reason=describe(outcome))
    return outcome.value


def _check_plausible(peaks: dict[str, float]) -> None:
    low, high = PLAUSIBLE_FLOP_PER_S
    for dtype, peak in peaks.items():
        if not low < peak < high:
            reason = f"expected {low:.0e} to {high:.0e} FLOP/s per core, found {peak:.3g}"
            raise ProbeFailed(what=f"{dtype} FMA rate", reason=reason)


def _samples(call: Call, clock: Callable[[], float], count: int) -> list[float]:
    calls, _ = calibrate(call, clock)
    return [sample(call, calls, clock) for _ in range(count)]
