"""Expected time of every candidate: the analytic model times what the cost model learned."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from recommender.analytic import ANALYTIC_SPREAD, PREFILTER, Estimates, estimate
from recommender.cost_model import CostModel, Prediction
from recommender.cpu_choices import Columns
from recommender.errors import InvalidModel
from recommender.features import SCHEMA, features
from recommender.hardware import HardwareProfile
from recommender.ports import MeasurementStore
from recommender.prior import PRIOR_THREADS, prior
from recommender.space import SearchSpace
from tilecore.tile_config import KnobValue, TileConfig


@dataclass(frozen=True, slots=True)
class Forecast:
    """Expected times of some candidates of a space.

    Attributes:
        rows: candidates, fastest first.
        time_s, low_s, high_s: per entry of ``rows``.
        source: that of the cost model, "analytic" without one.
    """

    space: SearchSpace
    rows: np.ndarray
    time_s: np.ndarray
    low_s: np.ndarray
    high_s: np.ndarray
    source: str


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
        if self.threads and self.threads != estimates.threads:
            estimates = estimate(space, columns, threads=self.threads)
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
    analytic = everything.time_s[order]
    if learned is None:
        low, high = (analytic * factor for factor in ANALYTIC_SPREAD)
        return Forecast(space, order, analytic, low, high, "analytic")
    time_s, low, high = _predict(space, space.rows(order), threads, learned)
    ranked = np.argsort(time_s, kind="stable")
    return Forecast(space, order[ranked], time_s[ranked], low[ranked], high[ranked], learned.source)


def _fastest(time_s: np.ndarray, count: int) -> np.ndarray:
    """Return the first ``count`` of a stable sort, sorting few."""
    if len(time_s) > count:
        limit = np.partition(time_s, count - 1)[count - 1]
        near = np.flatnonzero(time_s <= limit)
    else:
        near = np.arange(len(time_s))
    return near[np.argsort(time_s[near], kind="stable")][:count]


def forecast_config(
    space: SearchSpace, config: Mapping[str, KnobValue], threads: int, learned: Learned | None
) -> tuple[float, float, float]:
    """Return expected time and interval of one config, be it in the space or not."""
    columns = space.table([TileConfig.of(config)])
    if learned is not None:
        time_s, low, high = _predict(space, columns, threads, learned)
        return float(time_s[0]), float(low[0]), float(high[0])
    time = float(estimate(space, columns, threads=threads).time_s[0])
    return time, time * ANALYTIC_SPREAD[0], time * ANALYTIC_SPREAD[1]


def _predict(
    space: SearchSpace, columns: Mapping[str, np.ndarray], threads: int, learned: Learned
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    estimates = estimate(space, columns, threads=threads)
    found, base = learned.factors(space, columns, estimates), estimates.time_s
    return base * found.factor, base * found.low, base * found.high
