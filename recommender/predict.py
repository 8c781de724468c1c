"""Expected time of every candidate: the analytic model times what the cost model learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from recommender.analytic import ANALYTIC_SPREAD, PREFILTER, Estimates, estimate
from recommender.cost_model import CostModel
from recommender.errors import InvalidModel
from recommender.features import SCHEMA, features
from recommender.ports import MeasurementStore
from recommender.space import SearchSpace
from tilecore.tile_config import KnobValue, TileConfig


@dataclass(frozen=True, slots=True)
class Forecast:
    """Expected times of some candidates of a space.

    Attributes:
        rows: candidates, fastest first.
        time_s, low_s, high_s: per entry of ``rows``.
        source: "predicted" with a cost model, else "analytic".
    """

    space: SearchSpace
    rows: np.ndarray
    time_s: np.ndarray
    low_s: np.ndarray
    high_s: np.ndarray
    source: str


def active_model(store: MeasurementStore, kernel: str) -> CostModel | None:
    """Return the promoted model of a kernel, or None if this version can read none."""
    stored = store.active_model(kernel)
    if stored is None or stored.feature_schema != SCHEMA:
        return None
    try:
        return _load(stored.blob)
    except InvalidModel:
        return None


@lru_cache(maxsize=8)
def _load(blob: bytes) -> CostModel:
    return CostModel.from_bytes(blob, feature_schema=SCHEMA)


def forecast(space: SearchSpace, threads: int, model: CostModel | None) -> Forecast:
    """Return the expected times of the PREFILTER most promising candidates, fastest first."""
    everything = estimate(space, threads=threads)
    order = np.argsort(everything.time_s, kind="stable")[:PREFILTER]
    analytic = everything.time_s[order]
    if model is None:
        low, high = (analytic * factor for factor in ANALYTIC_SPREAD)
        return Forecast(space, order, analytic, low, high, "analytic")
    time_s, low, high = _predict(space, space.rows(order), threads, model)
    ranked = np.argsort(time_s, kind="stable")
    return Forecast(space, order[ranked], time_s[ranked], low[ranked], high[ranked], "predicted")


def forecast_config(
    space: SearchSpace, config: Mapping[str, KnobValue], threads: int, model: CostModel | None
) -> tuple[float, float, float]:
    """Return expected time and interval of one config, be it in the space or not."""
    columns = space.table([TileConfig.of(config)])
    if model is not None:
        time_s, low, high = _predict(space, columns, threads, model)
        return float(time_s[0]), float(low[0]), float(high[0])
    time = float(estimate(space, columns, threads=threads).time_s[0])
    return time, time * ANALYTIC_SPREAD[0], time * ANALYTIC_SPREAD[1]


def _predict(
    space: SearchSpace, columns: Mapping[str, np.ndarray], threads: int, model: CostModel
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    estimates: Estimates = estimate(space, columns, threads=threads)
    learned = model.predict(features(space, columns, estimates))
    base = estimates.time_s
    return base * learned.factor, base * learned.low, base * learned.high
