"""WorkloadIndex: which of many workloads are the nearest to one, found in columns of NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from recommender.nearest import OTHER_FIELD
from recommender.workload import Workload


class WorkloadIndex:
    """Many workloads of one kernel, to find the nearest of at once."""

    def __init__(self, workloads: Sequence[Workload]) -> None:
        self.workloads = workloads
        names = sorted({name for w in workloads for name, _ in w.problem})
        problems = [dict(w.problem) for w in workloads]
        self._threads = np.array([w.threads for w in workloads])
        columns = {name: [p.get(name) for p in problems] for name in names}
        self._logs = {
            name: np.array([math.log2(v) if _is_size(v) else math.nan for v in column])
            for name, column in columns.items()
        }
        self._sizes = {name: ~np.isnan(logs) for name, logs in self._logs.items()}
        self._values = {name: _Coded.of(column) for name, column in columns.items()}

    def with_more(self, workloads: Sequence[Workload]) -> WorkloadIndex:
        """Return the index of these workloads and more behind them; this one stays as it is."""
        more = WorkloadIndex(workloads)
        counts = len(self.workloads), len(workloads)
        found = WorkloadIndex([])
        found.workloads = [*self.workloads, *workloads]
        found._threads = np.concatenate([self._threads, more._threads])
        for name in sorted(self._values.keys() | more._values.keys()):
            parts = [
                index._logs.get(name, np.full(count, math.nan))
                for index, count in zip((self, more), counts, strict=True)
            ]
            found._logs[name] = np.concatenate(parts)
            found._sizes[name] = ~np.isnan(found._logs[name])
            values = [
                index._values.get(name) or _Coded.of([None] * count)
                for index, count in zip((self, more), counts, strict=True)
            ]
            found._values[name] = values[0].then(values[1])
        return found

    def nearest(self, workload: Workload, count: int) -> list[tuple[int, float]]:
        """Return the positions of the nearest workloads and how far they are, nearest first.

        The distance is that of ``workload_distance``; of those as near as each other the workload
        itself (its number of threads) comes first, the rest by position.
        """
        wanted = dict(workload.problem)
        square = np.zeros(len(self.workloads))
        other = np.zeros(len(self.workloads))
        for name in sorted(self._values.keys() | wanted.keys()):
            value, known = wanted.get(name), self._values.get(name)
            if known is None:
                other += 0.0 if value is None else OTHER_FIELD
                continue
            if _is_size(value):
                both = self._sizes[name]
                apart = self._logs[name] - math.log2(value)
                if both.all():
                    square += apart * apart
                    continue
                square += np.where(both, apart * apart, 0.0)
                other += OTHER_FIELD * (known.differs(value) & ~both)
            elif known.may_differ(value):
                other += OTHER_FIELD * known.differs(value)
        distance = np.sqrt(square) + other
        order = self._first(distance, workload.threads, count)
        return [(int(i), float(distance[i])) for i in order]

    def _first(self, distance: np.ndarray, threads: int, count: int) -> np.ndarray:
        """Return the first ``count`` in order of distance, of threads, of position."""
        near = np.arange(len(distance))
        if len(distance) > count:
            near = np.flatnonzero(distance <= np.partition(distance, count - 1)[count - 1])
        return near[np.lexsort((self._threads[near] != threads, distance[near]))][:count]


@dataclass(frozen=True, slots=True)
class _Coded:
    """A column of any values as numbers: ``codes`` of its values' texts."""

    numbers: dict[str, int]
    codes: np.ndarray

    @classmethod
    def of(cls, column: Sequence[object]) -> _Coded:
        texts = [repr(value) for value in column]
        numbers = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        return cls(numbers, np.array([numbers[text] for text in texts], dtype=np.int32))

    def then(self, other: _Coded) -> _Coded:
        """Return this column with another one behind it."""
        numbers = dict(self.numbers)
        renumbered = [numbers.setdefault(text, len(numbers)) for text in other.numbers]
        codes = np.array(renumbered, dtype=np.int32)[other.codes]
        return _Coded(numbers, np.concatenate([self.codes, codes]))

    def may_differ(self, value: object) -> bool:
        """Return False where every workload has this value."""
        return len(self.numbers) != 1 or repr(value) not in self.numbers

    def differs(self, value: object) -> np.ndarray:
        """Return of every workload whether its value is another one."""
        found: np.ndarray = self.codes != self.numbers.get(repr(value), -1)
        return found


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
