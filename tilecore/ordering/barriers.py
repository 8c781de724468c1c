"""Barriers of threads and in shared memory, by what they order."""

from __future__ import annotations

import numpy as np

from tilecore.ordering.clocks import Clocks, Knowledge
from tilecore.ordering.faults import Faults
from tilecore.ordering.program import Array, Wait


class Meeting:
    """A barrier at which ``count`` threads meet again and again (bar.sync, barrier.cluster).

    Warps come one by one, whatever they run together, and the barrier is empty again as soon as it
    is full. Where more come than fill it, or some come who do not know that it was full before, who
    meets whom is for the hardware to choose: all go on, and learn nothing of each other.
    """

    def __init__(self, clocks: Clocks, faults: Faults) -> None:
        self.clocks, self.faults = clocks, faults
        self.generation = 0
        self.came: list[tuple[Array, int]] = []  # threads, time of their arrival
        self.waiting: list[Array] = []
        self.told: list[Knowledge] = []
        self.arrived = 0
        self.is_mixed = False  # whether who meets is not certain
        self.before: list[tuple[Array, int]] = []  # who filled it last
        self.was_mixed = False
        self.complete: Knowledge | None = None  # what those knew who met last

    def arrive(self, ids: Array, count: int, site: int, *, waits: bool) -> Wait:
        """Let threads arrive; return whether all have come."""
        if not self._is_empty_to(ids):
            self.is_mixed = True
            if not self.was_mixed:
                self.faults.add(
                    "arrivals", f"expected threads that know that a barrier of {count} was full "
                    "before, found some that may have filled it", site,
                )  # fmt: skip
        self.came.append((ids, self.clocks.now))
        self.told.append(self.clocks.published(ids))
        self.arrived += len(ids)
        if waits:
            self.waiting.append(ids)
        generation = self.generation
        self.is_mixed |= self.arrived > count
        self.settle(count)
        return lambda: self.generation != generation

    def settle(self, count: int) -> None:
        """Let those who wait go on where all have come."""
        if not self.arrived or count > self.arrived or self.arrived % max(1, count):
            return
        if not self.is_mixed:
            told = self.told[0]
            for other in self.told[1:]:
                told = told.join(other)
            if self.waiting:
                self.clocks.adopt(np.concatenate(self.waiting), told)
            self.complete = told
        self.generation += 1
        self.before, self.was_mixed = self.came, self.is_mixed
        self.arrived, self.is_mixed = 0, False
        self.came, self.waiting, self.told = [], [], []

    def _is_empty_to(self, ids: Array) -> bool:
        """Return whether threads know that all who filled the barrier last had come."""
        for mine, some in self.clocks.groups(ids):
            for came, time in self.before:
                unknown = came[mine.seen[came] < time]
                if len(unknown) > 1 or (len(unknown) and (some != unknown[0]).any()):
                    return False
        return True


class MemoryBarrier:
    """An mbarrier: a phase ends when ``count`` arrivals and the bytes it expects have come."""

    def __init__(
        self, clocks: Clocks, faults: Faults, at: int, count: int, maker: int, site: int
    ) -> None:
        self.clocks, self.faults = clocks, faults
        self.at, self.count, self.maker, self.site = at, count, maker, site
        self.made = clocks.now
        self.is_fenced = False
        self.pending, self.bytes, self.phase = count, 0, 0
        self.unit = -1
        self.told: Knowledge | None = None
        self.complete: Knowledge | None = None

    def agent(self) -> int:
        """Return the unit whose copies tell this barrier of their bytes."""
        if self.unit < 0:
            self.unit = self.clocks.unit(
                ("loads", id(self)), f"a load on the mbarrier at {self.at}"
            )
        return self.unit

    def learn(self, told: Knowledge) -> None:
        """Note what whoever waits for this phase will know."""
        self.told = told if self.told is None else self.told.join(told)

    def arrive(self, told: Knowledge, count: int, site: int) -> None:
        """Take arrivals."""
        self.learn(told)
        while count:
            taken = min(count, self.pending)
            if not taken:
                self.faults.add(
                    "arrivals",
                    f"expected {self.count} arrivals in a phase of the mbarrier at {self.at}, "
                    "found more", self.site, site, "the count of mbarrier.init",
                )  # fmt: skip
                return
            self.pending -= taken
            count -= taken
            self.advance()

    def expect(self, size: int) -> None:
        """Let the phase wait for bytes."""
        self.bytes += size
        self.advance()

    def deliver(self, size: int) -> None:
        """Take bytes that an asynchronous copy has written."""
        self.bytes -= size
        seen = np.zeros_like(self.clocks.bases[0].seen)
        seen[self.agent()] = self.clocks.now
        nothing = self.clocks.nothing
        self.learn(Knowledge(seen, nothing, nothing, nothing))
        self.advance()

    def advance(self) -> None:
        """End the phase if all has come."""
        if self.pending or self.bytes:
            return
        self.phase += 1
        self.pending = self.count
        self.complete = self.told

    def is_over(self, parity: int) -> bool:
        """Return whether the last phase of a parity is complete."""
        return self.phase & 1 != parity & 1
