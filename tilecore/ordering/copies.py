"""Asynchronous copies that threads have under way: cp.async, and stores of the bulk unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tilecore.ordering.program import Array


@dataclass(slots=True)
class StoreGroups:
    """The bulk stores of one thread: (time, site) of those under way."""

    open: list[tuple[int, int]] = field(default_factory=list)
    groups: list[list[tuple[int, int]]] = field(default_factory=list)

    def left(self) -> Sequence[int]:
        """Return the sites of those that may still be read."""
        return [s for group in (*self.groups, self.open) for _, s in group]


class CopyGroups:
    """The cp.async of all threads: per thread the time of those not committed, and of groups."""

    def __init__(self, threads: int) -> None:
        self.open = np.zeros(threads, np.int64)
        self.done = np.zeros(threads, np.int64)  # groups that arrived
        self.count = np.zeros(threads, np.int64)  # groups
        self.times = np.zeros((8, threads), np.int64)
        self.last = np.zeros(threads, np.int64)
        self.arrived = np.zeros(threads, np.int64)
        self.sites: dict[int, int] = {}

    def copy(self, ids: Array, now: int, site: int) -> None:
        """Note copies."""
        self.open[ids] = self.last[ids] = now
        self.sites[now] = site

    def commit(self, ids: Array) -> None:
        """Make a group of what is open."""
        if int(self.count[ids].max()) >= len(self.times):
            self.times = np.concatenate([self.times, np.zeros_like(self.times)])
        before = np.where(self.count[ids] > 0, self.times[self.count[ids] - 1, ids], 0)
        self.times[self.count[ids], ids] = np.maximum(before, self.open[ids])
        self.count[ids] += 1
        self.open[ids] = 0

    def wait(self, ids: Array, pending: int) -> Array:
        """Return until when the copies of threads have arrived."""
        number = self.count[ids] - pending
        times = np.where(number > 0, self.times[np.maximum(number, 1) - 1, ids], 0)
        self.arrived[ids] = np.maximum(self.arrived[ids], times)
        result: Array = self.arrived[ids]
        return result

    def left(self) -> Sequence[int]:
        """Return the sites of copies that nobody has waited for."""
        late = np.unique(self.last[self.last > self.arrived])
        return sorted({self.sites[int(t)] for t in late})
