"""Timing on a device: samples of as many calls as last long enough, caches flushed before each.

A sample is one replay of a CUDA graph of ``calls`` calls between two events, so that neither the
host nor gaps between launches are in it. How many calls a graph holds follows from the workload and
the device alone: all candidates of a workload are timed alike. Before each sample a buffer of twice
L2 is written; of several calls in a graph only the first one finds the caches cold.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from recommender.hardware import HardwareProfile
from workers.statistics import StoppingRule

Call = Callable[[], object]
SAMPLE_S = 50e-6  # events resolve 0.5 us; graphs start some us after their event
MAX_CALLS = 256
FLUSH_L2 = 2  # times L2 that are written before a sample
WARM_S = 0.05  # of work before the first sample after a rest: clocks rise
REST_S = 1.0
WARM_CALLS = 3
FEW_SAMPLES = 3
SCREEN_BUDGET_S, CONFIRM_BUDGET_S = 2.0, 20.0

DEVICE_SCREENING = StoppingRule(min_samples=5, max_samples=15, target=0.02, unstable=0.5)
DEVICE_CONFIRMING = StoppingRule(min_samples=10, max_samples=30, target=0.01, unstable=0.5)
EMULATED_SAMPLING = StoppingRule(min_samples=1, max_samples=1, target=1.0, unstable=math.inf)


class Sampler(Protocol):
    """One call, ready to be timed."""

    def sample(self) -> float:
        """Return the seconds of one call, over one sample."""
        ...


class DeviceTimer(Protocol):
    """Makes samplers of calls."""

    screening: StoppingRule
    confirming: StoppingRule

    def sampler(self, call: Call) -> Sampler:
        """Return the call, warm and ready; raises what the device raises."""
        ...

    def synchronize(self) -> None:
        """Wait until the device is through; raises what went wrong on it."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Return how samples are taken, and the state of the device."""
        ...


def calls_per_sample(hardware: HardwareProfile, work_flop: float, traffic_bytes: float) -> int:
    """Return how many calls a sample takes, from the least time that the device could need."""
    rate = max(hardware.peak_flop_per_s.values(), default=math.inf)
    least_s = max(
        work_flop / rate, traffic_bytes / hardware.bandwidth_bytes_per_s, hardware.launch_s
    )
    return max(1, min(MAX_CALLS, math.ceil(SAMPLE_S / least_s)))


def screen(
    sampler: Sampler, rule: StoppingRule, clock: Callable[[], float] = time.monotonic
) -> tuple[float, ...]:
    """Return samples until the rule has enough, or the budget is used up and there are a few."""
    return interleave({"": sampler}, rule, clock, SCREEN_BUDGET_S)[""]


def interleave(
    samplers: Mapping[str, Sampler],
    rule: StoppingRule,
    clock: Callable[[], float] = time.monotonic,
    budget_s: float = CONFIRM_BUDGET_S,
    begin: Callable[[str], None] = lambda _: None,
) -> dict[str, tuple[float, ...]]:
    """Return samples of each participant, taken in turn: A B C A B C ...

    ``begin`` is told whose turn begins.
    """
    start = clock()
    times: dict[str, list[float]] = {name: [] for name in samplers}
    while not all(rule.is_enough(samples) for samples in times.values()):
        taken = min(len(samples) for samples in times.values())
        if taken >= FEW_SAMPLES and clock() - start > budget_s:
            break
        for name, sampler in samplers.items():
            begin(name)
            times[name].append(sampler.sample())
    return {name: tuple(samples) for name, samples in times.items()}


# --- a CUDA device -------------------------------------------------------------------------------


class CudaTimer:
    """Times calls on this process's first CUDA device by events around CUDA graphs."""

    screening, confirming = DEVICE_SCREENING, DEVICE_CONFIRMING

    def __init__(self, calls: int, l2_bytes: int, readings: Callable[[], Mapping[str, float]]):
        self._torch: Any = importlib.import_module("torch")
        self._calls, self._readings = calls, readings
        size = FLUSH_L2 * l2_bytes
        self._flush = self._torch.empty(size, dtype=self._torch.uint8, device="cuda")
        self._worked_at = -math.inf

    def sampler(self, call: Call) -> Sampler:
        """Return the call as a graph, warm."""
        torch = self._torch
        stream = torch.cuda.Stream()  # graphs are captured, hence warmed up, off the default one
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_CALLS):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):  # torch.cuda.graph would collect garbage, for 0.1 s
            graph.capture_begin()
            for _ in range(self._calls):
                call()
            graph.capture_end()
        self._warm_up(graph)
        return _GraphSampler(self, graph, self._calls)

    def synchronize(self) -> None:
        """Wait for the device."""
        self._torch.cuda.synchronize()

    def metrics(self) -> Mapping[str, float]:
        """Return calls per sample, bytes flushed, and what the device says of itself."""
        taken = {"calls_per_sample": float(self._calls), "flushed_bytes": float(len(self._flush))}
        return {**taken, **self._readings()}

    def time(self, graph: Any) -> float:
        """Return the seconds of one replay after a flush."""
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        self._worked_at = time.monotonic()
        return 1e-3 * float(begin.elapsed_time(end))

    def _warm_up(self, graph: Any) -> None:
        """Replay once; after a rest, until the clocks have had the time to rise."""
        start = time.monotonic()
        rested = start - self._worked_at > REST_S
        while True:
            graph.replay()
            self._torch.cuda.synchronize()
            if not rested or time.monotonic() - start > WARM_S:
                return


@dataclass(frozen=True, slots=True)
class _GraphSampler:
    timer: CudaTimer
    graph: Any
    calls: int

    def sample(self) -> float:
        """Return the seconds of one call."""
        return self.timer.time(self.graph) / self.calls


# --- the emulator --------------------------------------------------------------------------------


class EmulatorTimer:
    """Times calls of the emulator on this CPU: how long it took to check them, and nothing else."""

    screening = confirming = EMULATED_SAMPLING

    def sampler(self, call: Call) -> Sampler:
        """Return the call as it is."""
        return _WallClock(call)

    def synchronize(self) -> None:
        """Nothing runs behind our back."""

    def metrics(self) -> Mapping[str, float]:
        """Return that times are the emulator's."""
        return {"is_emulated": 1.0}


@dataclass(frozen=True, slots=True)
class _WallClock:
    call: Call

    def sample(self) -> float:
        """Return the seconds of one call."""
        start = time.perf_counter()
        self.call()
        return time.perf_counter() - start
