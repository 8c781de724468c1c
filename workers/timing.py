"""Timing: the two protocols, over any clock.

SCREEN: one thread, its own CPU time, so that neighbours on the machine do not disturb the rank.
CONFIRM: wall clock with all threads, all candidates and the rival in turn, with a pause before each
sample so that the thread pools of the others (OpenMP spins after a call) are asleep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from workers.statistics import CONFIRMING, SCREENING, StoppingRule

Call = Callable[[], object]
Clock = Callable[[], float]

MIN_SAMPLE_S = 3e-3  # shorter samples measure the clock and the first-touch of caches
PAUSE_S = 15e-3  # OpenMP's default spin is a few ms; 10-30 ms measured to be enough
MAX_CALLS = 1 << 20
LONG_CALL_S = 20e-3  # one warm call is enough for these
SLOW_CALL_S = 0.5  # no warm call: a call's own first milliseconds are lost in it
FEW_SAMPLES = 3  # enough once the time is used up: long calls vary little
SCREEN_BUDGET_S = 4.0
CONFIRM_BUDGET_S = 30.0


def calibrate(call: Call, clock: Clock, min_sample_s: float = MIN_SAMPLE_S) -> tuple[int, float]:
    """Return (calls per sample, seconds per call) such that a sample lasts ``min_sample_s``.

    The calls made here warm caches, pages and the branch predictor up.
    """
    calls = 1
    first_s = sample(call, calls, clock)
    if first_s >= LONG_CALL_S:
        return calls, first_s
    while True:
        elapsed = sample(call, calls, clock) * calls
        if elapsed >= min_sample_s or calls >= MAX_CALLS:
            return calls, max(elapsed, 1e-9) / calls
        growth = min(8.0, 1.2 * min_sample_s / max(elapsed, 1e-7))
        calls = max(calls + 1, int(calls * growth))


def sample(call: Call, calls: int, clock: Clock) -> float:
    """Return the mean time of ``calls`` calls in a row, in seconds."""
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls


def screen(
    call: Call,
    rule: StoppingRule = SCREENING,
    clock: Clock = time.thread_time,
    budget_s: float = SCREEN_BUDGET_S,
) -> tuple[float, ...]:
    """Return samples of one call's time on the calling thread, in seconds.

    Samples end when the rule has enough, or when ``budget_s`` is used up and FEW_SAMPLES are taken.
    """
    start = clock()
    calls, _ = calibrate(call, clock)
    times: list[float] = []
    while not rule.is_enough(times):
        if len(times) >= FEW_SAMPLES and clock() - start > budget_s:
            break
        times.append(sample(call, calls, clock))
    return tuple(times)


def interleave(
    participants: Mapping[str, Call],
    rule: StoppingRule = CONFIRMING,
    clock: Clock = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
    budget_s: float = CONFIRM_BUDGET_S,
    begin: Callable[[str], None] = lambda _: None,
) -> dict[str, tuple[float, ...]]:
    """Return the samples of each participant, taken in turn: A B C A B C …, in seconds per call.

    Rounds end when the rule has enough of every participant, or when ``budget_s`` is used up and
    FEW_SAMPLES are taken. ``begin`` is told whose turn begins, before the pause.
    """
    start = clock()
    calls = {}
    for name, call in participants.items():
        begin(name)
        calls[name] = calibrate(call, clock)
    times: dict[str, list[float]] = {name: [] for name in participants}
    while not all(rule.is_enough(samples) for samples in times.values()):
        taken = min(len(samples) for samples in times.values())
        if taken >= FEW_SAMPLES and clock() - start > budget_s:
            break
        for name, call in participants.items():
            begin(name)
            sleep(PAUSE_S)
            count, call_s = calls[name]
            for _ in range((call_s <= SLOW_CALL_S) + (call_s <= LONG_CALL_S)):
                call()
            times[name].append(sample(call, count, clock))
    return {name: tuple(samples) for name, samples in times.items()}


def processor_times() -> tuple[float, float]:
    """Return (busy, total) processor time of the machine since boot, in clock ticks."""
    with Path("/proc/stat").open() as file:
        return busy_and_all(file.readline())


def busy_and_all(line: str) -> tuple[float, float]:
    """Return (busy, total) clock ticks of a line of ``/proc/stat``.

    By hand: psutil would be a need of packs, which are measured where hardly anything is installed.
    """
    ticks = [float(x) for x in line.split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def load_metrics(
    before: Sequence[float], after: Sequence[float], used_s: float, cores: int, wall_s: float
) -> dict[str, float]:
    """Return how busy the machine was while timing.

    Args:
        before: ``processor_times()`` before.
        after: ``processor_times()`` after.
        used_s: CPU time of this process in between, in seconds.
        cores: cores of the machine.
        wall_s: time in between, in seconds.
    """
    busy = (after[0] - before[0]) / max(after[1] - before[1], 1.0)
    own = used_s / max(wall_s * cores, 1e-9)
    return {"machine_busy": round(busy, 4), "neighbour_busy": round(max(0.0, busy - own), 4)}
