"""Statistics of repeated times: robust, and never the minimum."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

NORMAL_MAD = 1.4826  # MAD -> standard deviation, for a normal distribution
NORMAL_MEDIAN = 1.2533  # standard error of the median relative to that of the mean
TWO_SIDED_95 = 1.96


def median(times_s: Sequence[float]) -> float:
    """Return the median (seconds in, seconds out)."""
    return statistics.median(times_s)


def median_absolute_deviation(times_s: Sequence[float]) -> float:
    """Return the median distance from the median, in seconds."""
    center = median(times_s)
    return statistics.median(abs(t - center) for t in times_s)


def relative_interval(times_s: Sequence[float]) -> float:
    """Return half the 95 % confidence interval of the median, relative to the median.

    One sample says nothing about its spread: infinite.
    """
    if len(times_s) < 2:
        return math.inf
    spread = NORMAL_MAD * median_absolute_deviation(times_s)
    return TWO_SIDED_95 * NORMAL_MEDIAN * spread / math.sqrt(len(times_s)) / median(times_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingRule:
    """When enough samples were taken, and when their spread makes them useless.

    Attributes:
        min_samples: taken in any case.
        max_samples: never exceeded.
        target: relative interval at which to stop early.
        unstable: relative interval beyond which the result does not count.
    """

    min_samples: int
    max_samples: int
    target: float
    unstable: float

    def __post_init__(self) -> None:
        if not 1 <= self.min_samples <= self.max_samples:
            raise ValueError(f"expected 1 <= min <= max samples, found {self}")

    def is_enough(self, times_s: Sequence[float]) -> bool:
        """Return whether no further sample is needed."""
        count = len(times_s)
        if count < self.min_samples:
            return False
        return count >= self.max_samples or relative_interval(times_s) <= self.target

    def is_unstable(self, times_s: Sequence[float]) -> bool:
        """Return whether the samples disagree so much that their median means nothing."""
        return len(times_s) > 1 and relative_interval(times_s) > self.unstable


SCREENING = StoppingRule(min_samples=7, max_samples=31, target=0.03, unstable=0.5)
CONFIRMING = StoppingRule(min_samples=7, max_samples=25, target=0.02, unstable=0.5)
