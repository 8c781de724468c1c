"""Expected time of every candidate: the analytic model times what the cost model learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from recommender.analytic import ANALYTIC_SPREAD, PREFILTER, Estimate, Estimates, estimate
from recommender.cost_model import CostModel, Prediction
from recommender.cpu_choices import Columns
from recommender.errors import InvalidModel
from recommender.features import SCHEMA, features
from recommender.hardware import HardwareProfile
from recommender.ports import MeasurementStore
from recommender.prior import PRIOR_THREADS, prior
from recommender.space import SearchSpace


@dataclass(frozen=True, slots=True)
class Forecast:
    """Expected times of some candidates of a space.

    Attributes:
        rows: candidates, fastest first.
        time_s, low_s, high_s: per entry of ``rows``.
        source: that of the cost model, "analytic" without one.
        explain: returns the analytic estimates of entries of ``rows``, by their positions.
    """

    space: SearchSpace
    rows: np.ndarray
    time_s: np.ndarray
    low_s: np.ndarray
    high_s: np.ndarray
    source: str
    explain: Callable[[Sequence[int]], list[Estimate]]


@dataclass(frozen=True, slots=True)
class Learned:
    """A cost model and what it rests on.

    Attributes:
        model: of the kernel.
        source: "predicted" (trained here) or "prior" (shipped).
        threads: the only number of threads that it has seen; 0: those that are used here.
    """

    model: CostModel
    source: str
    threads: int = 0

    def factors(self, space: SearchSpace, columns: Columns, estimates: Estimates) -> Prediction:
        """Return the factors on ``estimates``, which are of ``columns``.

        What a config is worth to a core is taken to be the same on any number of them.
        """
        if self.threads:
            estimates = estimates.on(self.threads)
        return self.model.predict(features(space, columns, estimates))


def shipped(kernel: str, hardware: HardwareProfile) -> Learned | None:
    """Return the model that ships for a kernel on such devices, None without one."""
    model = prior(kernel, hardware)
    return None if model is None else Learned(model, "prior", threads=PRIOR_THREADS)


def active_model(store: MeasurementStore, kernel: str, hardware: HardwareProfile) -> Learned | None:
    """Return the promoted model of a kernel, else the one that ships for such devices.

    None where this version can read neither.
    """
    if hardware.kind != "cpu":  # features are the CPU's
        return None
    stored = store.active_model(kernel)
    if stored is not None and stored.feature_schema == SCHEMA:
        with suppress(InvalidModel):
            return Learned(_load(stored.blob), "predicted")
    return shipped(kernel, hardware)


@lru_cache(maxsize=8)
def _load(blob: bytes) -> CostModel:
    return CostModel.from_bytes(blob, feature_schema=SCHEMA)


def forecast(space: SearchSpace, threads: int, learned: Learned | None) -> Forecast:
    """Return the expected times of the PREFILTER most promising candidates, fastest first."""
    everything = estimate(space, threads=threads)
    order = _fastest(everything.time_s, PREFILTER)
    if learned is None:

        def explain(positions: Sequence[int]) -> list[Estimate]:
            few = estimate(space, space.rows(order[list(positions)]), threads=threads)
            return [few.at(i) for i in range(len(positions))]

        analytic = everything.time_s[order]
        low, high = (analytic * factor for factor in ANALYTIC_SPREAD)
        return Forecast(space, order, analytic, low, high, "analytic", explain)
    columns = space.rows(order)
    picked = estimate(space, columns, threads=threads)
    time_s, low, high = forecast_columns(space, columns, picked, learned)
    ranked = np.argsort(time_s, kind="stable")
    return Forecast(
        space, order[ranked], time_s[ranked], low[ranked], high[ranked], learned.source,
        lambda positions: [picked.at(int(ranked[p])) for p in positions],
    )  # fmt: skip


def _fastest(time_s: np.ndarray, count: int) -> np.ndarray:
    """Return the first ``count`` of a stable sort, sorting few."""
    if len(time_s) > count:
        limit = np.partition(time_s, count - 1)[count - 1]
        near = np.flatnonzero(time_s <= limit)
    else:
        near = np.arange(len(time_s))
    return near[np.argsort(time_s[near], kind="stable")][:count]


def forecast_columns(
    space: SearchSpace, columns: Columns, estimates: Estimates, learned: Learned | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return expected times of configs, be they in the space or not, and ends of their intervals.

    Args:
        space: program, problem and device.
        columns: knob values per config.
        estimates: of exactly these configs.
        learned: the cost model; None: the analytic model answers alone.
    """
    base = estimates.time_s
    if learned is None:
        return base, base * ANALYTIC_SPREAD[0], base * ANALYTIC_SPREAD[1]
    found = learned.factors(space, columns, estimates)
    return base * found.factor, base * found.low, base * found.high
