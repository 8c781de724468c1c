"""How far one workload or device is from another, and what was best nearby."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
