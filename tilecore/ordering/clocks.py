"""Vector clocks: what each thread knows of what has happened.

Agents are threads, the cp.async of each thread, and asynchronous units that come up (the loads of
an mbarrier, the products of a warpgroup, ...). A time is the number of an event of the whole run.
Threads that met know the same: they share one ``Knowledge``, beside what each knows of itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilecore.ordering.program import Array

WARP = 32
UNITS = 512  # asynchronous units beside cp.async
NEVER = np.iinfo(np.int64).max  # a time that is not reached


class Knowledge:
    """The last event of each agent that threads know of.

    Attributes:
        seen: what has happened.
        fenced: writes that asynchronous units see, too.
        tensor: what happened to tensor memory, as told behind tcgen05.fence::before_thread_sync.
        after: what a tcgen05.fence::after_thread_sync has taken up of that, and of ``seen``.
    """

    __slots__ = ("after", "fenced", "seen", "tensor")

    def __init__(self, seen: Array, fenced: Array, tensor: Array, after: Array) -> None:
        self.seen, self.fenced, self.tensor, self.after = seen, fenced, tensor, after

    def join(self, other: Knowledge) -> Knowledge:
        """Return what either knows; what was taken up is the own."""
        return Knowledge(
            _most(self.seen, other.seen), _most(self.fenced, other.fenced),
            _most(self.tensor, other.tensor), self.after,
        )  # fmt: skip


def _most(a: Array, b: Array) -> Array:
    return a if a is b else np.maximum(a, b)


def different(numbers: Array) -> Array:
    """Return the different ones of some small numbers, the least first."""
    first = numbers[:1]
    if np.count_nonzero(numbers == first) == len(numbers):
        return first
    return np.bincount(numbers).nonzero()[0]


class Clocks:
    """The clocks of all threads.

    Args:
        threads: how many numbers of threads there are.
        missing: those of them that no thread has.
    """

    def __init__(self, threads: int, missing: Sequence[int] | Array = ()) -> None:
        self.threads = threads
        self.now = 1
        size = 2 * threads + UNITS
        self.of_tensor = np.zeros(size, bool)
        self.nothing: Array = np.zeros(size, np.int64)
        self.nothing[np.asarray(missing, int)] = NEVER  # what these do is known to all
        self.bases = [Knowledge(self.nothing, self.nothing, self.nothing, self.nothing)]
        self.base = np.zeros(threads, np.int64)  # of each thread, by number
        # Of each thread: the least that it knows of a lane of its warp, and of any thread.
        self.of_warp, self.of_all = np.zeros(threads, np.int64), np.zeros(threads, np.int64)
        self.fenced = np.zeros(threads, np.int64)  # own writes until then are seen by async units
        self.copied = np.zeros(threads, np.int64)  # own cp.async until then have arrived ...
        self.copies_fenced = np.zeros(threads, np.int64)  # ... and are seen by async units
        self.units: list[str] = []  # names
        self._of: dict[object, int] = {}

    def tick(self) -> int:
        """Return the time of a new event."""
        self.now += 1
        return self.now

    def unit(self, key: object, name: str, *, of_tensor: bool = False) -> int:
        """Return the agent of an asynchronous unit; ``of_tensor``: it uses tensor memory."""
        if key not in self._of:
            self.of_tensor[2 * self.threads + len(self.units)] = of_tensor
            self._of[key] = 2 * self.threads + len(self.units)
            self.units.append(name)
            if len(self.units) > UNITS:
                raise OverflowError(f"expected at most {UNITS} asynchronous units")
        return self._of[key]

    def name(self, agent: int) -> str:
        """Return what an agent is called."""
        if agent < self.threads:
            return f"thread {agent}"
        if agent < 2 * self.threads:
            return f"cp.async of thread {agent - self.threads}"
        return self.units[agent - 2 * self.threads]

    def groups(self, ids: Array) -> Iterator[tuple[Knowledge, Array]]:
        """Yield (what they share, threads) of some threads."""
        of = self.base[ids]
        numbers = different(of)
        if len(numbers) == 1:
            yield self.bases[numbers[0]], ids
            return
        for number in numbers:
            yield self.bases[number], ids[of == number]

    def adopt(self, ids: Array, told: Knowledge) -> None:
        """Let threads know what they are told."""
        for mine, some in list(self.groups(ids)):
            if mine is not told:
                self.set(some, mine.join(told))

    def set(self, ids: Array, knowledge: Knowledge) -> None:
        """Let threads know no more and no less than something."""
        self.bases.append(knowledge)
        self.base[ids] = len(self.bases) - 1
        least = self.by_warp(knowledge)
        self.of_warp[ids], self.of_all[ids] = least[ids // WARP], least.min()
        if len(self.bases) > 4096:
            kept, numbers = np.unique(self.base, return_inverse=True)
            self.bases = [self.bases[k] for k in kept]
            self.base = numbers.reshape(self.base.shape)

    def published(self, ids: Array) -> Knowledge:
        """Return what threads know together, themselves included; later events are new."""
        total: Knowledge | None = None
        for mine, _ in self.groups(ids):
            total = mine if total is None else total.join(mine)
        assert total is not None
        made = Knowledge(total.seen.copy(), total.fenced.copy(), total.tensor, self.nothing)
        copies = ids + self.threads
        made.seen[ids] = self.now
        made.fenced[ids] = np.maximum(made.fenced[ids], self.fenced[ids])
        made.seen[copies] = np.maximum(made.seen[copies], self.copied[ids])
        made.fenced[copies] = np.maximum(made.fenced[copies], self.copies_fenced[ids])
        self.tick()
        return made

    def meet(self, ids: Array) -> None:
        """Let threads know of each other all that they know; each keeps what it took up."""
        told = self.published(ids)
        for mine, some in list(self.groups(ids)):
            self.set(some, Knowledge(told.seen, told.fenced, told.tensor, mine.after))

    def tell(self, ids: Array, agent: int, time: int) -> None:
        """Let threads know that an agent is done until ``time``."""
        for mine, some in list(self.groups(ids)):
            if mine.seen[agent] < time:
                seen = mine.seen.copy()
                seen[agent] = time
                self.set(some, Knowledge(seen, mine.fenced, mine.tensor, mine.after))

    def tell_own(self, ids: Array, agent: int, time: int) -> None:
        """Let threads know that a unit they started is done with tensor memory until ``time``."""
        self.tell(ids, agent, time)
        for mine, some in list(self.groups(ids)):
            if mine.after[agent] < time:
                after = mine.after.copy()
                after[agent] = time
                self.set(some, Knowledge(mine.seen, mine.fenced, mine.tensor, after))

    def fence_tensor(self, ids: Array, *, before: bool) -> None:
        """Order accesses of tensor memory with a barrier that follows, or came before."""
        for mine, some in list(self.groups(ids)):
            tensor = _most(mine.tensor, mine.seen) if before else mine.tensor
            after = mine.after if before else np.where(self.of_tensor, mine.tensor, mine.seen)
            after = _most(mine.after, after)
            self.set(some, Knowledge(mine.seen, mine.fenced, tensor, after))

    def fence(self, ids: Array) -> None:
        """Make all that threads know of visible to asynchronous units."""
        for mine, some in list(self.groups(ids)):
            fenced = np.maximum(mine.fenced, mine.seen)
            self.set(some, Knowledge(mine.seen, fenced, mine.tensor, mine.after))
        self.fenced[ids] = self.now
        self.copies_fenced[ids] = self.copied[ids]
        self.tick()

    def known(self, ids: Array, agents: Array, times: Array, *, in_tensor: bool = False) -> Array:
        """Return for each thread whether it knows of an event of an agent."""
        of = self.base[ids]
        numbers = different(of)
        if len(numbers) == 1:
            mine = self.bases[numbers[0]]
            made: Array = (mine.after if in_tensor else mine.seen)[agents] >= times
        elif not in_tensor and self._know_all(ids, agents, times):
            return np.ones(len(ids), bool)
        else:
            some = [self.bases[n] for n in numbers]
            told = np.concatenate([k.after if in_tensor else k.seen for k in some])
            row = np.zeros(int(numbers[-1]) + 1, np.int64)
            row[numbers] = np.arange(len(some)) * len(self.nothing)
            made = told[row[of] + agents] >= times
        if np.count_nonzero(made) < len(made):
            made |= agents == ids
            made |= (agents == ids + self.threads) & (self.copied[ids] >= times)
        return made

    def visible(self, ids: Array, agents: Array, times: Array) -> Array:
        """Return for each thread whether async units it starts see a write of an agent."""
        made = np.empty(len(ids), bool)
        of = self.base[ids]
        for number in different(of):
            at = of == number
            made[at] = self.bases[number].fenced[agents[at]] >= times[at]
        if np.count_nonzero(made) < len(made):
            made |= (agents == ids) & (self.fenced[ids] >= times)
            made |= (agents == ids + self.threads) & (self.copies_fenced[ids] >= times)
        return made

    def _know_all(self, ids: Array, agents: Array, times: Array) -> bool:
        """Return whether events are of threads, and none is later than what all know of all."""
        of_threads = int(agents.max()) < self.threads
        return of_threads and int(times.max()) <= int(self.of_all[ids].min())

    def by_warp(self, mine: Knowledge) -> Array:
        """Return the least known time of the lanes of each warp."""
        known = mine.seen[: self.threads]
        if self.threads % WARP:
            known = np.append(known, np.full(-self.threads % WARP, NEVER))
        least: Array = known.reshape(-1, WARP).min(1)
        return least
