"""What was done last to each piece of a memory, and by whom: every access is held against it."""

from __future__ import annotations

import numpy as np

from tilecore.ordering.clocks import WARP, Clocks
from tilecore.ordering.faults import Faults
from tilecore.ordering.program import Array

NOBODY = -1
TENSOR = "tensor memory"
READERS = 96  # asynchronous units that read


class Reads:
    """Who has read what since it was written: by warp (with lanes) and asynchronous unit."""

    def __init__(self, clocks: Clocks, size: int, *, in_tensor: bool = False) -> None:
        self.clocks, self.size, self.in_tensor = clocks, size, in_tensor
        self.warps = -(-clocks.threads // WARP)
        columns = self.warps + READERS
        self.time = np.zeros((size, columns), np.int32)
        self.lanes = np.zeros((size, self.warps), np.uint32)
        self.site = np.zeros((size, columns), np.int32)
        self.last = np.zeros(size, np.int32)
        self.readers: list[int] = []

    def note(self, ids: Array, at: Array, site: int) -> None:
        """Note what threads read."""
        now, warp = self.clocks.now, ids // WARP
        self.time[at, warp] = now
        self.site[at, warp] = site
        np.bitwise_or.at(self.lanes, (at, warp), np.left_shift(1, ids % WARP).astype(np.uint32))
        self.last[at] = now

    def note_unit(self, agent: int, at: Array, site: int) -> None:
        """Note what an asynchronous unit reads."""
        if agent not in self.readers:
            self.readers.append(agent)
        column = self.warps + self.readers.index(agent)
        self.time[at, column] = self.clocks.now
        self.site[at, column] = site
        self.last[at] = self.clocks.now

    def forget(self, at: Array) -> None:
        """Note that what was read is no more there."""
        self.time[at] = 0
        self.lanes[at] = 0
        self.last[at] = 0

    def unordered(self, ids: Array, at: Array) -> tuple[int, int, int] | None:
        """Return (element, agent, site) of a read that a thread does not know of."""
        of = self.clocks.base[ids]
        for number in np.unique(of):
            here = of == number
            mine = self.clocks.bases[number]
            best, floor = self.clocks.best(mine, self.readers)
            if self.in_tensor:
                best, floor = np.append(np.zeros(self.warps), mine.after[self.readers]), -1
            places = at[here]
            late = self.last[places] > floor
            if not late.any():
                continue
            places, threads = places[late], ids[here][late]
            rows, columns = np.nonzero(self.time[places][:, : len(best)] > best)
            for row, column in zip(rows[:], columns, strict=True):
                found = self._reader(mine.seen, int(places[row]), int(column), int(threads[row]))
                if found is not None:
                    return int(places[row]), found, int(self.site[places[row], column])
        return None

    def _reader(self, seen: Array, place: int, column: int, thread: int) -> int | None:
        if column >= self.warps:
            return self.readers[column - self.warps]
        mask, time = int(self.lanes[place, column]), self.time[place, column]
        for lane in range(WARP):
            agent = column * WARP + lane
            if mask >> lane & 1 and agent != thread and seen[agent] < time:
                return agent
        return None


class Shadow:
    """The shadow of one memory, by granules."""

    def __init__(self, clocks: Clocks, faults: Faults, size: int, granule: int, name: str) -> None:
        self.clocks, self.faults, self.name, self.granule = clocks, faults, name, granule
        self.in_tensor = name == TENSOR
        self.writer = np.full(size, NOBODY, np.int32)
        self.time = np.zeros(size, np.int32)
        self.site = np.zeros(size, np.int32)
        self.generic = np.zeros(size, bool)
        self.reads = Reads(clocks, size, in_tensor=self.in_tensor)
        self.atomics: Reads | None = None

    def spread(self, ids: Array, start: Array, width: int, site: int) -> tuple[Array, Array]:
        """Return (thread, granule) of accesses of ``width`` bytes."""
        count = max(1, width // self.granule)
        at = start // self.granule
        if count > 1:
            at = (at[:, None] + np.arange(count)).ravel()
            ids = np.repeat(ids, count)
        return ids, self._inside(at, site)

    def _inside(self, at: Array, site: int) -> Array:
        """Return granules, of which those outside of the memory become the last one."""
        end = len(self.writer)
        if int(at.max()) < end and int(at.min()) >= 0:
            return at
        outside = int(at[(at >= end) | (at < 0)][0])
        self.faults.add(
            "bounds", f"expected less than {end * self.granule}, found {self.place(outside)}", site
        )
        return np.where(at < 0, 0, np.minimum(at, end - 1))

    def _written(
        self, ids: Array, at: Array, site: int, what: str, *, is_async: bool, behind: bool = False
    ) -> None:
        """Hold an access against the writes before it.

        ``is_async``: a unit reads; ``behind``: one that begins what follows its thread's last
        tcgen05.fence::after_thread_sync.
        """
        writer = self.writer[at]
        old = writer >= 0
        if not old.any():
            return
        if not old.all():
            ids, at, writer = ids[old], at[old], writer[old]
        time = self.time[at]
        bad = ~self.clocks.known(ids, writer, time, in_tensor=self.in_tensor or behind)
        if bad.any():
            n = int(np.argmax(bad))
            self._race(int(at[n]), int(writer[n]), int(self.site[at[n]]), "writes", site, what)
            return
        if is_async:
            hidden = self.generic[at] & ~self.clocks.visible(ids, writer, time)
            if hidden.any():
                n = int(np.argmax(hidden))
                self.faults.add(
                    "proxy",
                    f"{self.clocks.name(int(writer[n]))} writes {self.place(int(at[n]))}, which "
                    f"{what}, and no fence.proxy.async is between",
                    int(self.site[at[n]]), site, "fence.proxy.async behind the write",
                )  # fmt: skip

    def _race(self, at: int, agent: int, other: int, did: str, site: int, what: str) -> None:
        self.faults.add(
            "race",
            f"{self.clocks.name(agent)} {did} {self.place(at)}, which {what}, and nothing orders "
            "them",
            other, site, self._remedy(agent),
        )  # fmt: skip

    def _remedy(self, agent: int) -> str:
        threads = self.clocks.threads
        if self.in_tensor:
            return "a barrier or a wait between tcgen05.fence::before_ and ::after_thread_sync"
        if agent < threads:
            return "a barrier between them"
        if agent < 2 * threads:
            return "cp.async.wait_group, then a barrier"
        return f"a wait for {self.clocks.name(agent)}"

    def place(self, at: int) -> str:
        """Return where a granule is."""
        return f"{self.name} at {at * self.granule}"

    def read(self, ids: Array, start: Array, width: int, site: int) -> None:
        """Let threads read."""
        ids, at = self.spread(ids, start, width, site)
        what = f"thread {int(ids[0])} reads"
        self._written(ids, at, site, what, is_async=False)
        self._after(self.atomics, ids, at, site, what)
        self.reads.note(ids, at, site)

    def _after(self, reads: Reads | None, ids: Array, at: Array, site: int, what: str) -> None:
        found = reads.unordered(ids, at) if reads is not None else None
        if found is not None:
            did = "reads" if reads is self.reads else "updates"
            self._race(found[0], found[1], found[2], did, site, what)

    def write(self, ids: Array, start: Array, width: int, site: int, agents: Array) -> None:
        """Let threads, or the cp.async of threads, write."""
        count = max(1, width // self.granule)
        ids, at = self.spread(ids, start, width, site)
        what = f"{self.clocks.name(int(agents[0]))} writes"
        self._written(ids, at, site, what, is_async=False)
        self._after(self.reads, ids, at, site, what)
        self._after(self.atomics, ids, at, site, what)
        agents = np.repeat(agents, count) if count > 1 else agents
        self._set(at, agents, site, generic=True)
        if int(agents[0]) >= self.clocks.threads:  # copies of different bytes
            late = self.writer[at] != agents
            if late.any():
                n = int(np.argmax(late))
                self._race(int(at[n]), int(agents[n]), site, "writes", site, what)

    def update(self, ids: Array, start: Array, width: int, site: int) -> None:
        """Let threads update atomically."""
        if self.atomics is None:
            self.atomics = Reads(self.clocks, len(self.writer))
        ids, at = self.spread(ids, start, width, site)
        what = f"thread {int(ids[0])} updates"
        self._written(ids, at, site, what, is_async=False)
        self._after(self.reads, ids, at, site, what)
        self.atomics.note(ids, at, site)

    def read_by(
        self, agent: int, thread: int, at: Array, site: int, *, behind: bool = False
    ) -> None:
        """Let an asynchronous unit read granules, for a thread that starts it."""
        ids, at = np.full(len(at), thread), self._inside(at, site)
        what = f"{self.clocks.name(agent)} reads"
        self._written(ids, at, site, what, is_async=True, behind=behind)
        self._after(self.atomics, ids, at, site, what)
        self.reads.note_unit(agent, at, site)

    def write_by(self, agent: int, thread: int, at: Array, site: int) -> None:
        """Let an asynchronous unit write granules, for a thread that starts it."""
        ids, at = np.full(len(at), thread), self._inside(at, site)
        what = f"{self.clocks.name(agent)} writes"
        self._written(ids, at, site, what, is_async=False)
        self._after(self.reads, ids, at, site, what)
        self._after(self.atomics, ids, at, site, what)
        self._set(at, np.full(len(at), agent), site, generic=False)

    def _set(self, at: Array, agents: Array, site: int, *, generic: bool) -> None:
        self.writer[at], self.time[at] = agents, self.clocks.now
        self.site[at], self.generic[at] = site, generic
        self.reads.forget(at)
        if self.atomics is not None:
            self.atomics.forget(at)
