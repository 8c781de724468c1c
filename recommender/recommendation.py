"""Recommendation: a config and what is known about it, and how evidence becomes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from recommender.analytic import Estimate
from recommender.freshness import OTHER_CODE, OTHER_DRIVER, driver_differences
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, Protocol
from recommender.nearest import Neighbour
from tilecore.tile_config import TileConfig

Source = Literal["measured", "nearest", "predicted", "prior", "shipped", "analytic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A config and what is known about it.

    Attributes:
        source: where the evidence is.
        time_s: measured or expected time per call with the workload's threads.
        interval_s: ends of the interval that holds 80 % of outcomes.
        distance: 0 for the workload itself, else how far the evidence comes from
            (``recommender.nearest``).
        confidence: 0 to 1; falls with distance, width of the interval and staleness.
        doubts: in words, which other program version, toolchain or driver the evidence is of.
        terms_s: what the analytic estimate of its time is made of; empty: not known.
    """

    config: TileConfig
    source: Source
    time_s: float
    interval_s: tuple[float, float]
    distance: float
    confidence: float
    bound_by: str
    rationale: str
    doubts: tuple[str, ...] = ()
    terms_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_stale(self) -> bool:
        """Whether the evidence is of another program version, toolchain or driver."""
        return bool(self.doubts)


def of_measurement(
    m: Measurement, rank: int, hardware: HardwareProfile, explained: Estimate,
    expected_s: Callable[[int], float],
) -> Recommendation:  # fmt: skip
    """Return what was measured for exactly a workload.

    What another driver measured has less confidence, what one thread did is scaled to all.

    Args:
        m: the measurement.
        rank: 0: the best.
        hardware: the device.
        explained: the analytic estimate, with the workload's threads.
        expected_s: returns the same time with another number of threads.
    """
    time_s = m.time_s
    assert time_s is not None
    doubts = driver_differences(m, hardware.driver)
    scale = 1.0
    if m.threads != explained.threads:  # by the predicted ratio
        scale = explained.time_s / expected_s(m.threads)
    how = f"median of {len(m.times_s)} repeats on {m.measured_at.date()}"
    if m.protocol is Protocol.SCREEN:
        how += f", one thread, scaled to {explained.threads}"
    what = "best measured" if rank == 0 else "another one measured"
    return Recommendation(
        config=m.config,
        source="measured",
        time_s=time_s * scale,
        interval_s=interval_of(m.times_s, scale),
        distance=0.0,
        confidence=(0.98 if m.protocol is Protocol.CONFIRM else 0.85)
        * (OTHER_DRIVER if doubts else 1.0),
        bound_by=explained.bound_by,
        rationale=f"{what} for exactly this workload: "
        f"{'; '.join((how, *doubts, explained.explain()))}",
        doubts=doubts,
        terms_s=explained.terms_s,
    )


def interval_of(times_s: Sequence[float], scale: float) -> tuple[float, float]:
    """Return the ends of what holds 80 % of some repeats, times a factor."""
    low_s, high_s = np.quantile(times_s, (0.1, 0.9))
    return float(low_s) * scale, float(high_s) * scale


def of_neighbour(
    neighbour: Neighbour, doubts: tuple[str, ...], hardware: HardwareProfile,
    expected_s: tuple[float, float, float], explained: Estimate,
) -> Recommendation:  # fmt: skip
    """Return what a near workload's winner is worth on a device.

    Args:
        neighbour: the winner.
        doubts: which other versions it is of.
        hardware: the device.
        expected_s: time here and the ends of its interval.
        explained: the analytic estimate here.
    """
    m, (time_s, low_s, high_s) = neighbour.measurement, expected_s
    where = f"{m.workload}" + ("" if m.hardware.key == hardware.key else f" on {m.hardware.name}")
    age = f"; older program or toolchain: {', '.join(doubts)}" if doubts else ""
    return Recommendation(
        config=m.config,
        source="nearest",
        time_s=time_s,
        interval_s=(low_s, high_s),
        distance=neighbour.distance,
        confidence=0.9 / (1.0 + neighbour.distance) * (OTHER_CODE if doubts else 1.0),
        bound_by=explained.bound_by,
        rationale=f"best measured for {where} (distance {neighbour.distance:.2f}{age}); "
        f"{explained.explain()}",
        doubts=doubts,
        terms_s=explained.terms_s,
    )
