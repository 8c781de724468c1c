"""Barriers of threads and in shared memory, by what they order."""

from __future__ import annotations

import numpy as np

from tilecore.ordering.clocks import Clocks, Knowledge
from tilecore.ordering.faults import Faults
from tilecore.ordering.program import Array, Wait


class Meeting:
    """A barrier at which ``count`` threads meet again and again (bar.sync, barrier.cluster)."""

    def __init__(self, clocks: Clocks, faults: Faults) -> None:
        self.clocks, self.faults = clocks, faults
        self.generation = 0
        self.came: list[Array] = []
        self.waiting: list[Array] = []
        self.told: list[Knowledge] = []
        self.arrived = 0
        self.complete: Knowledge | None = None  # what those knew who met last

    def arrive(self, ids: Array, count: int, site: int, *, waits: bool) -> Wait:
        """Let threads arrive; return whether all have come."""
        self.told.append(self.clocks.published(ids))
        self.arrived += len(ids)
        if waits:
            self.waiting.append(ids)
        generation = self.generation
        if self.arrived > count:
            self.faults.add(
                "arrivals", f"expected {count} threads at a barrier, found {self.arrived}", site
            )
        self.settle(count)
        return lambda: self.generation != generation

    def settle(self, count: int) -> None:
        """Let those who wait go on where all have come."""
        if self.arrived < count or not self.arrived:
            return
        told = self.told[0]
        for other in self.told[1:]:
            told = told.join(other)
        if self.waiting:
            self.clocks.adopt(np.concatenate(self.waiting), told)
        self.complete = told
        self.generation += 1
        self.arrived, self.waiting, self.told = 0, [], []


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
