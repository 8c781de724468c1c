"""Expected time of every candidate: the analytic model times what the cost model learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from recommender.analytic import (
    ANALYTIC_SPREAD,
    PREFILTER,
    Estimate,
    Estimates,
    estimate,
    estimate_each,
)
from recommender.around import around
from recommender.cost_model import CostModel, Prediction
from recommender.cpu.choices import Columns
from recommender.errors import InvalidModel
from recommender.families import schema_of
from recommender.features import features
from recommender.hardware import HardwareProfile
from recommender.ports import MeasurementStore
from recommender.prior import PRIOR_THREADS, prior
from recommender.recommendation import Source
from recommender.space import SearchSpace
from tilecore.tile_config import KnobValue, TileConfig

SAMPLE = 192  # places of a space that are looked at beside those around what was measured
EXPLAINED = 64  # candidates of the analytic model that are looked at together with given configs
SAMPLED = 16  # every so many-th time tells about where the first ones end
Explain = Callable[[Sequence[int]], list[Estimate]]


@dataclass(frozen=True, slots=True)
class Given:
    """Expected times of given configs, which need not be in the space.

    Attributes:
        estimates: of the analytic model; the configs are its first rows.
        time_s, low_s, high_s: per config.
    """

    estimates: Estimates
    time_s: np.ndarray
    low_s: np.ndarray
    high_s: np.ndarray

    def expected_s(self, row: int) -> tuple[float, float, float]:
        """Return the time of a config and its interval."""
        return float(self.time_s[row]), float(self.low_s[row]), float(self.high_s[row])


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Expected times of some candidates of a space.

    Attributes:
        codes: numbers of the candidates in the space (``SearchSpace.codes``), fastest first.
        among: of what they are the fastest.
        time_s, low_s, high_s: per entry of ``codes``.
        source: that of the cost model, "analytic" without one.
        given: of the configs that were asked for besides; None: there were none.
        explain: returns the analytic estimates of entries of ``codes``, by their positions.
    """

    space: SearchSpace
    codes: np.ndarray
    among: str
    time_s: np.ndarray
    low_s: np.ndarray
    high_s: np.ndarray
    source: Source
    given: Given | None
    explain: Explain

    @property
    def rows(self) -> np.ndarray:
        """The same as rows of the space."""
        return np.searchsorted(self.space.codes, self.codes)

    def config(self, position: int) -> TileConfig:
        """Return the config of an entry of ``codes``."""
        return self.space.config_of(int(self.codes[position]))


@dataclass(frozen=True, slots=True)
class Learned:
    """A cost model and what it rests on.

    Attributes:
        model: of the kernel.
        source: "predicted" (trained here) or "prior" (shipped).
        threads: the only number of threads that it has seen; 0: those that are used here.
    """

    model: CostModel
    source: Source
    threads: int = 0

    def factors(self, space: SearchSpace, columns: Columns, estimates: Estimates) -> Prediction:
        """Return the factors on ``estimates``, which are of ``columns``.

        What a config is worth to a core is taken to be the same on any number of them.
        """
        if self.threads:
            estimates = estimates.on(self.threads)
        return self.model.predict(features(space, columns, estimates))


def shipped(kernel: str, hardware: HardwareProfile, dtype: str) -> Learned | None:
    """Return the model that ships for a kernel on such devices.

    None without one, or where it was trained on other element types than ``dtype``.
    """
    model = prior(kernel, hardware)
    if model is None or not model.knows(dtype):
        return None
    return Learned(model, "prior", threads=PRIOR_THREADS)


def active_model(
    store: MeasurementStore, kernel: str, hardware: HardwareProfile, dtype: str
) -> Learned | None:
    """Return the promoted model of a kernel for a device, else the one that ships for such devices.

    None where this version can read neither, or neither was trained on the element type.
    """
    family = hardware.family
    stored, schema = store.active_model(kernel, family), schema_of(family)
    if stored is not None and stored.feature_schema == schema:
        with suppress(InvalidModel):
            model = _load(stored.blob, schema)
            if model.knows(dtype):
                return Learned(model, "predicted")
    return shipped(kernel, hardware, dtype)


@lru_cache(maxsize=8)
def _load(blob: bytes, schema: str) -> CostModel:
    return CostModel.from_bytes(blob, feature_schema=schema)


def forecast(
    space: SearchSpace,
    threads: int,
    learned: Learned | None,
    given: Sequence[Mapping[str, KnobValue]] = (),
) -> Forecast:
    """Return the expected times of the PREFILTER most promising candidates, fastest first.

    ``given``: configs whose expected times are wanted as well; they cost little beside the others.
    """
    everything = estimate(space, threads=threads)
    order = first_of_sort(everything.time_s, PREFILTER)
    among = f"{len(space)} legal configs"
    if learned is None:
        return _by_formula(space, everything, threads, order, given, among)
    return _ranked(space, threads, learned, space.codes[order], space.rows(order), given, among)


def forecast_around(
    space: SearchSpace,
    threads: int,
    learned: Learned | None,
    given: Sequence[TileConfig],
    places: Sequence[TileConfig],
) -> Forecast:
    """Return the expected times of candidates around some ``places``, and of ``given`` configs.

    Some others all over the space are among them, but it is not enumerated.
    """
    found = around(space, places, SAMPLE)
    among = f"{len(found)} legal configs, most of them around what was measured,"
    return _ranked(space, threads, learned, found.codes, found.columns, given, among)


def _ranked(
    space: SearchSpace, threads: int, learned: Learned | None, codes: np.ndarray,
    columns: Columns, given: Sequence[Mapping[str, KnobValue]], among: str,
) -> Forecast:  # fmt: skip
    """Return the forecast of the candidates ``codes``, whose knob values are ``columns``."""
    count = len(given)
    if given:
        columns = {k: np.concatenate([v, columns[k]]) for k, v in space.table(given).items()}
    picked = estimate(space, columns, threads=threads)
    time_s, low, high = forecast_columns(space, columns, picked, learned)
    known = Given(picked, time_s[:count], low[:count], high[:count]) if given else None
    ranked = np.argsort(time_s[count:], kind="stable")
    rows = count + ranked
    return Forecast(
        space=space, codes=codes[ranked], among=among, given=known,
        source="analytic" if learned is None else learned.source,
        time_s=time_s[rows], low_s=low[rows], high_s=high[rows],
        explain=lambda positions: [picked.at(int(rows[p])) for p in positions],
    )  # fmt: skip


def _by_formula(
    space: SearchSpace, everything: Estimates, threads: int, order: np.ndarray,
    given: Sequence[Mapping[str, KnobValue]], among: str,
) -> Forecast:  # fmt: skip
    """Return the forecast of the analytic model alone, of the candidates ``order``.

    Of a matrix product on a CPU, whose space is large, what adds up to ``everything`` is looked at
    again for a few; of others it is there.
    """
    time_s = everything.time_s[order]
    low, high = (time_s * factor for factor in ANALYTIC_SPREAD)

    def told(explain: Explain, known: Given | None = None) -> Forecast:
        return Forecast(
            space=space, codes=space.codes[order], among=among, given=known, source="analytic",
            time_s=time_s, low_s=low, high_s=high, explain=explain,
        )  # fmt: skip

    if not given and everything.tiling is None:
        return told(lambda positions: [everything.at(int(order[p])) for p in positions])
    count, explained = len(given), order[:EXPLAINED]
    columns = space.rows(explained)
    if given:
        columns = {k: np.concatenate([v, columns[k]]) for k, v in space.table(given).items()}
    picked = estimate(space, columns, threads=threads)
    times = forecast_columns(space, columns, picked, None)
    known = Given(picked, *(t[:count] for t in times)) if given else None

    def explain(positions: Sequence[int]) -> list[Estimate]:
        if all(p < len(explained) for p in positions):
            return [picked.at(count + p) for p in positions]
        configs = [space.config(row) for row in order[list(positions)].tolist()]
        return estimate_each(space, configs, threads=threads)

    return told(explain, known)


def first_of_sort(time_s: np.ndarray, count: int) -> np.ndarray:
    """Return the first ``count`` of a stable sort, sorting few."""
    near = np.arange(len(time_s))
    # Among some of very many, twice the share that is wanted: hardly ever too few.
    place = 2 * count // SAMPLED
    if len(time_s) > 2 * SAMPLED * place > 0:
        some = time_s[::SAMPLED]
        found = np.flatnonzero(time_s <= np.partition(some, place)[place])
        near = found if len(found) >= count else near
    if len(near) > count:
        times = time_s[near]
        near = near[times <= np.partition(times, count - 1)[count - 1]]
    return near[np.argsort(time_s[near], kind="stable")][:count]


def forecast_configs(
    space: SearchSpace, configs: Sequence[TileConfig], threads: int, learned: Learned | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return expected times of configs and the ends of their intervals, in the order given."""
    columns = space.table(configs)
    return forecast_columns(space, columns, estimate(space, columns, threads=threads), learned)


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
