"""Where the time of one core goes, and rates that every model of a CPU starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from recommender.hardware import HardwareProfile
from tilecore.graph import Contraction


@dataclass(frozen=True, slots=True)
class CoreTerms:
    """Seconds of one thread that runs the whole problem alone, by cause (arrays).

    Attributes:
        resources: returns what the micro-kernel would take on each of its resources alone (fma,
            loads, latency, l2, l3); asked only of configs that are looked at closely.
        kernel: these joined.
    """

    resources: Callable[[], dict[str, np.ndarray]]
    kernel: np.ndarray
    calls: np.ndarray
    update_c: np.ndarray
    pack_a: np.ndarray
    pack_b: np.ndarray
    pack_b_once: np.ndarray

    def times(self, count: float) -> CoreTerms:
        """Return the same of so many problems, one after the other."""
        if count == 1:
            return self
        one = self.resources
        return CoreTerms(
            resources=lambda: {name: seconds * count for name, seconds in one().items()},
            kernel=self.kernel * count,
            calls=self.calls * count,
            update_c=self.update_c * count,
            pack_a=self.pack_a * count,
            pack_b=self.pack_b * count,
            pack_b_once=self.pack_b_once * count,
        )


def fma_slot_s(site: Contraction, hardware: HardwareProfile) -> float:
    """Return the seconds one core needs for one vector FMA of the accumulator's type at peak."""
    name = str(site.accum_dtype)
    lanes = hardware.vector_bytes // site.accum_dtype.itemsize
    peaks = hardware.peak_flop_per_s
    peak = peaks.get(name) or next(iter(peaks.values()), 32e9)
    return 2.0 * lanes / peak
