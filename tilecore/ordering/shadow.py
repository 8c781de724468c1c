"""What was done last to each piece of a memory, and by whom: every access is held against it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilecore.ordering.clocks import WARP, Clocks, different
from tilecore.ordering.faults import Faults
from tilecore.ordering.program import Array

NOBODY = -1
TENSOR = "tensor memory"
READERS = 96  # asynchronous units that read


def _longer(old: Array, size: int, value: int = 0) -> Array:
    """Return an array with ``value`` behind its rows, ``size`` rows in all."""
    made = np.full((size, *old.shape[1:]), value, old.dtype)
    made[: len(old)] = old
    return made


class Reads:
    """Who has read what since it was written: by warp (with lanes) and asynchronous unit."""

    def __init__(self, clocks: Clocks, size: int, *, in_tensor: bool = False) -> None:
        self.clocks, self.size, self.in_tensor = clocks, size, in_tensor
        self.warps = -(-clocks.threads // WARP)
        # By place and warp, in one row: indices of one dimension are what NumPy is fast at.
        self.time, self.site = np.zeros((2, size * self.warps), np.int32)
        self.lanes = np.zeros(size * self.warps, np.uint32)
        self.bits = np.left_shift(1, np.arange(clocks.threads) % WARP).astype(np.uint32)
        self.unit_time, self.unit_site = np.zeros((2, size, READERS), np.int32)
        self.last = np.zeros(size, np.int32)
        self.readers: list[int] = []

    def grow(self, size: int) -> None:
        """Make room for more places."""
        self.time, self.site = (_longer(a, size * self.warps) for a in (self.time, self.site))
        self.lanes = _longer(self.lanes, size * self.warps)
        self.unit_time, self.unit_site = (
            _longer(a, size) for a in (self.unit_time, self.unit_site)
        )
        self.last, self.size = _longer(self.last, size), size

    def note(self, ids: Array, at: Array, site: int) -> None:
        """Note what threads read; reads of their warp that they know of are forgotten."""
        now, place = self.clocks.now, at * self.warps + ids // WARP
        self.lanes[place[self.time[place] <= self.clocks.of_warp[ids]]] = 0
        self.time[place] = now
        # Of lanes that read the same, one is noted by an index, which is fast; then the others.
        bits, order = self.bits[ids], np.arange(len(place), dtype=np.int32)
        self.site[place] = order
        others = (self.site[place] != order).nonzero()[0]
        self.lanes[place] |= bits
        np.bitwise_or.at(self.lanes, place[others], bits[others])
        self.site[place] = site
        self.last[at] = now

    def note_unit(self, agent: int, at: Array, site: int) -> None:
        """Note what an asynchronous unit reads."""
        if agent not in self.readers:
            self.readers.append(agent)
        column = self.readers.index(agent)
        self.unit_time[at, column] = self.clocks.now
        self.unit_site[at, column] = site
        self.last[at] = self.clocks.now

    def forget(self, at: Array) -> None:
        """Note that what was read is no more there."""
        self.time.reshape(-1, self.warps)[at] = 0
        self.lanes.reshape(-1, self.warps)[at] = 0
        if self.readers:
            self.unit_time[:, : len(self.readers)][at] = 0
        self.last[at] = 0

    def unordered(self, ids: Array, at: Array) -> tuple[int, int, int] | None:
        """Return (position in ``at``, agent, site) of a read that a thread does not know of."""
        last = self.last[at]
        latest = int(last.max())
        if not latest or (
            not self.in_tensor and not self.readers and latest <= int(self.clocks.of_all[ids].min())
        ):
            return None
        of = self.clocks.base[ids]
        for number in different(of):
            mine = self.clocks.bases[number]
            if self.in_tensor:
                best, floor = np.append(np.zeros(self.warps), mine.after[self.readers]), -1
            else:
                best = np.append(self.clocks.by_warp(mine), mine.seen[self.readers])
                floor = int(best.min())
            late = np.flatnonzero((of == number) & (last > floor))
            if not len(late):
                continue
            rows, columns = np.nonzero(self._times(at[late]) > best)
            for row, column in zip(late[rows].tolist(), columns.tolist(), strict=True):
                found = self._reader(mine.seen, int(at[row]), column, int(ids[row]))
                if found is not None:
                    return row, found, self._site(int(at[row]), column)
        return None

    def unfenced(self, thread: int, at: Array) -> tuple[int, int, int] | None:
        """Return (position in ``at``, agent, site) of a read that a unit may overtake.

        A thread starts the unit; who has read tells units by a fence.proxy.async.
        """
        if not self.last[at].any():
            return None
        fenced = self.clocks.bases[int(self.clocks.base[thread])].fenced[: self.clocks.threads]
        fenced = fenced.copy()
        fenced[thread] = max(int(fenced[thread]), int(self.clocks.fenced[thread]))
        lanes = np.full(self.warps * WARP, np.iinfo(np.int64).max)
        lanes[: len(fenced)] = fenced
        least = lanes.reshape(self.warps, WARP).min(1)
        rows, columns = np.nonzero(self.time.reshape(-1, self.warps)[at] > least)
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            found = self._reader(fenced, int(at[row]), column, NOBODY)
            if found is not None:
                return row, found, self._site(int(at[row]), column)
        return None

    def _times(self, at: Array) -> Array:
        """Return when granules were read, by warp, then by unit that reads."""
        times: Array = self.time.reshape(-1, self.warps)[at]
        if not self.readers:
            return times
        return np.concatenate((times, self.unit_time[:, : len(self.readers)][at]), axis=1)

    def _site(self, place: int, column: int) -> int:
        if column < self.warps:
            return int(self.site[place * self.warps + column])
        return int(self.unit_site[place, column - self.warps])

    def _reader(self, seen: Array, place: int, column: int, thread: int) -> int | None:
        if column >= self.warps:
            return self.readers[column - self.warps]
        cell = place * self.warps + column
        mask, time = int(self.lanes[cell]), self.time[cell]
        for lane in range(WARP):
            agent = column * WARP + lane
            if mask >> lane & 1 and agent != thread and seen[agent] < time:
                return agent
        return None


@dataclass(frozen=True, slots=True)
class Accesses:
    """Accesses of one instruction, element by element.

    Attributes:
        ids: threads whose knowledge counts.
        at: granules.
        agents: who accesses them: the threads, or units that they start.
        site: of the instruction.
        did: "reads", "writes" or "updates".
    """

    ids: Array
    at: Array
    agents: Array
    site: int
    did: str

    def what(self, clocks: Clocks, n: int) -> str:
        """Return who does what, of one element."""
        return f"{clocks.name(int(self.agents[n]))} {self.did}"


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

    def grow(self, size: int) -> None:
        """Make room for more granules."""
        self.writer = _longer(self.writer, size, NOBODY)
        self.time, self.site = _longer(self.time, size), _longer(self.site, size)
        self.generic = _longer(self.generic, size)
        for reads in (self.reads, self.atomics):
            if reads is not None:
                reads.grow(size)

    def has(self, start: Array, width: int) -> bool:
        """Return whether all accesses of ``width`` bytes lie inside of the memory."""
        end = len(self.writer) * self.granule
        return not len(start) or (int(start.min()) >= 0 and int(start.max()) + width <= end)

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

    def _written(self, by: Accesses, *, is_async: bool = False, behind: bool = False) -> None:
        """Hold accesses against the writes before them.

        ``is_async``: a unit reads; ``behind``: one that begins what follows its thread's last
        tcgen05.fence::after_thread_sync.
        """
        ids, at = by.ids, by.at
        writer = self.writer[at]
        old = (writer >= 0).nonzero()[0]
        if not len(old):
            return
        if len(old) < len(at):
            ids, at, writer = ids[old], at[old], writer[old]
        time = self.time[at]
        in_tensor = self.in_tensor or behind
        known = self.clocks.known(ids, writer, time, in_tensor=in_tensor)
        if np.count_nonzero(known) < len(known):
            n = int(np.argmin(known))
            self._race(by, int(old[n]), int(writer[n]), int(self.site[at[n]]), "writes")
            return
        if is_async:
            hidden = self.generic[at] & ~self.clocks.visible(ids, writer, time)
            if hidden.any():
                n = int(np.argmax(hidden))
                self.faults.add(
                    "proxy",
                    f"{self.clocks.name(int(writer[n]))} writes {self.place(int(at[n]))}, which "
                    f"{by.what(self.clocks, int(old[n]))}, and no fence.proxy.async is between",
                    int(self.site[at[n]]), by.site, "fence.proxy.async behind the write",
                )  # fmt: skip

    def _race(self, by: Accesses, n: int, agent: int, other: int, did: str) -> None:
        self.faults.add(
            "race",
            f"{self.clocks.name(agent)} {did} {self.place(int(by.at[n]))}, which "
            f"{by.what(self.clocks, n)}, and nothing orders them",
            other, by.site, self._remedy(agent),
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

    def _after(self, reads: Reads | None, by: Accesses) -> None:
        found = reads.unordered(by.ids, by.at) if reads is not None else None
        if found is not None:
            did = "reads" if reads is self.reads else "updates"
            self._race(by, *found, did)

    def read(self, ids: Array, start: Array, width: int, site: int) -> None:
        """Let threads read."""
        ids, at = self.spread(ids, start, width, site)
        by = Accesses(ids, at, ids, site, "reads")
        self._written(by)
        self._after(self.atomics, by)
        self.reads.note(ids, at, site)

    def write(self, ids: Array, start: Array, width: int, site: int, agents: Array) -> None:
        """Let threads, or the cp.async of threads, write."""
        ids, at = self.spread(ids, start, width, site)
        agents = np.repeat(agents, len(ids) // len(agents))
        by = Accesses(ids, at, agents, site, "writes")
        self._written(by)
        self._after(self.reads, by)
        self._after(self.atomics, by)
        self._set(at, agents, site, generic=True)
        if int(agents[0]) >= self.clocks.threads:  # copies of different bytes
            late = self.writer[at] != agents
            if late.any():
                n = int(np.argmax(late))
                self._race(by, n, int(self.writer[at[n]]), site, "writes")

    def update(self, ids: Array, start: Array, width: int, site: int) -> None:
        """Let threads update atomically."""
        if self.atomics is None:
            self.atomics = Reads(self.clocks, len(self.writer))
        ids, at = self.spread(ids, start, width, site)
        by = Accesses(ids, at, ids, site, "updates")
        self._written(by)
        self._after(self.reads, by)
        self.atomics.note(ids, at, site)

    def read_by(
        self, agent: int, thread: int, at: Array, site: int, *, behind: bool = False
    ) -> None:
        """Let an asynchronous unit read granules, for a thread that starts it."""
        by = self._of_unit(agent, thread, at, site, "reads")
        self._written(by, is_async=True, behind=behind)
        self._after(self.atomics, by)
        self.reads.note_unit(agent, by.at, site)

    def write_by(self, agent: int, thread: int, at: Array, site: int) -> None:
        """Let an asynchronous unit write granules, for a thread that starts it."""
        by = self._of_unit(agent, thread, at, site, "writes")
        self._written(by)
        self._after(self.reads, by)
        self._after(self.atomics, by)
        hidden = None if self.in_tensor else self.reads.unfenced(thread, by.at)
        if hidden is not None:
            n, reader, other = hidden
            self.faults.add(
                "proxy",
                f"{self.clocks.name(reader)} reads {self.place(int(by.at[n]))}, which "
                f"{by.what(self.clocks, n)}, and no fence.proxy.async is between",
                other, site, "fence.proxy.async behind the read",
            )  # fmt: skip
        self._set(by.at, by.agents, site, generic=False)

    def _of_unit(self, agent: int, thread: int, at: Array, site: int, did: str) -> Accesses:
        count = len(at)
        at = self._inside(at, site)
        return Accesses(np.full(count, thread), at, np.full(count, agent), site, did)

    def _set(self, at: Array, agents: Array, site: int, *, generic: bool) -> None:
        self.writer[at], self.time[at] = agents, self.clocks.now
        self.site[at], self.generic[at] = site, generic
        self.reads.forget(at)
        if self.atomics is not None:
            self.atomics.forget(at)
