"""A quiet place to time in: one core for a call of one thread, and nobody else's work beside many.

The threads by which candidates run on several cores have cores of their own
(``workers.pinning``); a call of one thread would wander, and start with cold caches wherever it
comes. What neighbours do while all cores are timed is in the times: it is waited for a moment that
they do nothing, and told where they did not stop.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from workers.timing import busy_and_all

QUIET = 0.15  # of the cores' time that neighbours may take
LOOK_S = 0.1  # the kernel counts hundredths of a second
PATIENCE_S = 0.6
Ticks = Mapping[int, tuple[float, float]]  # busy, all; by core


def ticks_of(text: str) -> Ticks:
    """Return (busy, total) clock ticks of every core since boot, from ``/proc/stat``."""
    lines = (line for line in text.splitlines() if re.match("cpu[0-9]", line))
    return {int(line.split()[0][3:]): busy_and_all(line) for line in lines}


def core_ticks() -> Ticks:
    """Return the same of this machine."""
    return ticks_of(Path("/proc/stat").read_text())


def busy_share(before: Ticks, after: Ticks, cores: set[int]) -> float:
    """Return which share of the time of some cores was spent on something."""
    shared = [core for core in cores if core in before and core in after]
    busy = sum(after[core][0] - before[core][0] for core in shared)
    return busy / max(sum(after[core][1] - before[core][1] for core in shared), 1.0)


class QuietCores:
    """The cores that a measuring process may use."""

    def __init__(
        self, ticks: Callable[[], Ticks] = core_ticks,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._ticks, self._clock, self._sleep = ticks, clock, sleep
        self._last = ticks()

    @contextmanager
    def one(self) -> Iterator[int]:
        """Keep this thread on one core: that which was idle most since somebody asked."""
        allowed = os.sched_getaffinity(0)
        core = self._idlest(allowed)
        os.sched_setaffinity(0, {core})
        try:
            yield core
        finally:
            os.sched_setaffinity(0, allowed)

    def wait(self) -> dict[str, float]:
        """Wait until neighbours do hardly anything, for ``PATIENCE_S`` at most.

        Returns:
            ``waited_s``, and as ``is_quiet`` whether (1) or not (0) they stopped.
        """
        began, cores = self._clock(), set(os.sched_getaffinity(0))
        while True:
            before = self._ticks()
            self._sleep(LOOK_S)
            is_quiet = busy_share(before, self._ticks(), cores) <= QUIET
            waited_s = self._clock() - began
            if is_quiet or waited_s >= PATIENCE_S:
                return {"waited_s": round(waited_s, 3), "is_quiet": float(is_quiet)}

    def _idlest(self, allowed: set[int]) -> int:
        """Return a core; of equals the last: interrupts come to the first."""
        before, self._last = self._last, self._ticks()
        return min(allowed, key=lambda core: (busy_share(before, self._last, {core}), -core))
