"""How far one workload or device is from another, and what was best nearby."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.workload import Workload

OTHER_FIELD = 2.0  # distance for a dtype or flag that differs: as far as a factor of 4 in one dim
OTHER_DEVICE = 1.0
UNUSABLE = 8.0  # beyond a factor of 256 in one dimension nothing carries over


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The fastest measured config of a related workload; distance 0 is the workload itself."""

    measurement: Measurement
    distance: float
    is_stale: bool  # of another program version or toolchain


def workload_distance(a: Workload, b: Workload) -> float:
    """Return the Euclidean distance in log2 of the dimensions plus OTHER_FIELD per other field.

    Infinite for different kernels.
    """
    if a.kernel != b.kernel:
        return math.inf
    first, second = dict(a.problem), dict(b.problem)
    square, other = 0.0, 0.0
    for name in sorted(first.keys() | second.keys()):  # sums in one order, whatever hashes are
        x, y = first.get(name), second.get(name)
        numbers = isinstance(x, int) and isinstance(y, int) and not isinstance(x, bool)
        if numbers and x and y:
            square += math.log2(int(x) / int(y)) ** 2
        elif x != y:
            other += OTHER_FIELD
    return math.sqrt(square) + other


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


def device_distance(a: HardwareProfile, b: HardwareProfile) -> float:
    """Return 0 for the same device, infinite across kinds, else log2 ratios of its capacities."""
    if a.kind != b.kind:
        return math.inf
    if a.key == b.key:
        return 0.0
    pairs = ((a.vector_bytes, b.vector_bytes), (a.l2_bytes, b.l2_bytes), (a.l1d_bytes, b.l1d_bytes))
    return OTHER_DEVICE + sum(abs(math.log2(x / y)) for x, y in pairs if x and y)


def best_nearby(
    measurements: Sequence[Measurement],
    workload: Workload,
    hardware: HardwareProfile,
    *,
    program_digest: str,
    toolchain_key: str,
) -> list[Neighbour]:
    """Return the winner of every measured workload and device, nearest first.

    Emulated devices and real ones know nothing of each other.

    Within one group CONFIRM results decide over SCREEN results. A program's digest covers its
    shapes, so it is compared for the workload asked for; for others the toolchain decides.
    """
    winners: dict[tuple[Workload, str, bool], Measurement] = {}
    for m in measurements:
        if m.status is not MeasureStatus.OK or m.hardware.is_emulated != hardware.is_emulated:
            continue
        is_other_program = m.workload == workload and m.program_digest != program_digest
        is_stale = is_other_program or m.toolchain.key != toolchain_key
        key = (m.workload, m.hardware.key, is_stale)
        if key not in winners or _is_before(m, winners[key]):
            winners[key] = m
    found = [
        Neighbour(
            m,
            workload_distance(m.workload, workload) + device_distance(m.hardware, hardware),
            key[2],
        )
        for key, m in winners.items()
    ]
    usable = [n for n in found if n.distance <= UNUSABLE]
    return sorted(usable, key=lambda n: (n.distance, n.is_stale, n.measurement.config.key))


def fastest(measurements: Sequence[Measurement]) -> Measurement | None:
    """Return the fastest OK measurement, CONFIRM before SCREEN."""
    good = [m for m in measurements if m.status is MeasureStatus.OK]
    return min(good, key=_order, default=None)


def _is_before(a: Measurement, b: Measurement) -> bool:
    """Return whether ``_order`` puts a before b."""
    first, second = ((m.protocol is not Protocol.CONFIRM, m.time_s or math.inf) for m in (a, b))
    return _order(a) < _order(b) if first == second else first < second


def _order(m: Measurement) -> tuple[bool, float, str]:
    return (m.protocol is not Protocol.CONFIRM, m.time_s or math.inf, m.config.key)
