"""Training: a cost model from measurements, and whether it may replace the incumbent."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recommender.analytic import ANALYTIC_SPREAD, estimate
from recommender.cost_model import MIN_ROWS, CostModel
from recommender.errors import NotEnoughMeasurements
from recommender.families import CPU, schema_of
from recommender.features import features
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus
from recommender.nearest import device_distance, workload_distance
from recommender.space import SearchSpace
from recommender.workload import Workload
from tilecore.kernels.definition import KernelDefinition
from tilecore.tile_config import TileConfig

MIN_GROUP = 4  # measurements of a workload below which choosing among them says nothing
FOLDS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """All OK measurements of one workload, device, thread count and protocol."""

    workload: Workload
    hardware: HardwareProfile
    configs: tuple[TileConfig, ...]
    time_s: np.ndarray
    analytic_s: np.ndarray
    features: np.ndarray

    @property
    def log_ratio(self) -> np.ndarray:
        """Logarithm of measured over analytic time."""
        ratio: np.ndarray = np.log(self.time_s / self.analytic_s)
        return ratio


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """A model trained on everything, and how its like did on workloads it had not seen.

    ``metrics``: per contender (model, analytic, nearest, incumbent) the mean over held-out
    workloads of best measured time / time of the contender's choice, and ``groups``, ``rows``.
    """

    model: CostModel
    metrics: dict[str, float]
    is_promoted: bool
    reason: str


def train(
    measurements: Sequence[Measurement],
    definition: KernelDefinition,
    *,
    family: str = CPU,
    incumbent: CostModel | None = None,
    seed: int = 0,
    folds: int = FOLDS,
) -> TrainingOutcome:
    """Return a model for ``definition`` trained on those of ``measurements`` that are of a family.

    It is promoted only if, on workloads held out of training, its first choice is better than that
    of the analytic model, of the nearest measured workload, and of the incumbent (which may have
    seen them). Workloads are held out in ``folds`` parts: the more there are, the nearer the models
    that are judged come to the one that is returned, and the longer it takes.

    Raises:
        NotEnoughMeasurements: fewer than MIN_ROWS successful measurements (RC606).
    """
    groups = list(make_groups(measurements, definition, family))
    rows = sum(len(g.configs) for g in groups)
    if rows < MIN_ROWS:
        raise NotEnoughMeasurements(
            expected=f"{MIN_ROWS} OK measurements of {definition.name}", found=str(rows)
        )
    model = fit_groups(groups, seed, with_interval=True)
    metrics = _validate(groups, incumbent, seed, folds)
    metrics |= {"rows": float(rows), "groups": float(len(groups))}
    is_promoted, reason = _verdict(metrics)
    return TrainingOutcome(model, metrics, is_promoted, reason)


def judge(
    model: CostModel,
    measurements: Sequence[Measurement],
    definition: KernelDefinition,
    *,
    family: str = CPU,
    incumbent: CostModel | None = None,
) -> TrainingOutcome:
    """Return how a model that was trained elsewhere does on ``measurements``, and its interval.

    It is promoted only if its first choice is better than that of the analytic model, of the
    nearest other measured workload, and of the incumbent. Any of the models may have seen the
    measurements.
    """
    groups = list(make_groups(measurements, definition, family))
    names = {_name(g) for g in groups}
    ratios: dict[str, list[float]] = {}
    for group in groups:
        known = [g for g in groups if _name(g) != _name(group)]
        if known and len(group.configs) >= MIN_GROUP:
            for name, row in _choices(group, known, model, incumbent).items():
                ratios.setdefault(name, []).append(float(group.time_s.min() / group.time_s[row]))
    metrics = {name: float(np.mean(values)) for name, values in ratios.items()}
    is_promoted, reason = _verdict(metrics)
    errors = [g.log_ratio - np.log(model.predict(g.features).factor) for g in groups]
    rows = sum(len(e) for e in errors)
    low, high = np.log(ANALYTIC_SPREAD)
    if rows >= MIN_ROWS:
        low, high = np.quantile(np.concatenate(errors), [0.1, 0.9])
    judged = replace(model, spread=(float(min(low, 0.0)), float(max(high, 0.0))), rows=rows)
    metrics |= {"rows": float(rows), "groups": float(len(names))}
    return TrainingOutcome(judged, metrics, is_promoted, reason)


def make_groups(
    measurements: Sequence[Measurement], definition: KernelDefinition, family: str = CPU
) -> Iterator[Group]:
    """Yield the OK measurements of ``definition`` by workload, device, threads and protocol.

    Those of devices of other families are left out: they have other features.
    """
    found: dict[tuple[str, str, int, str], list[Measurement]] = {}
    for m in measurements:
        is_known = m.workload.kernel == definition.name and m.hardware.family == family
        if m.status is MeasureStatus.OK and is_known:
            key = (m.workload.key, m.hardware.key, m.threads, m.protocol)
            found.setdefault(key, []).append(m)
    for members in found.values():
        first = members[0]
        space = SearchSpace.build(definition, dict(first.workload.problem), first.hardware)
        by_config = _median_by_config(members)
        columns = space.table(list(by_config))
        estimates = estimate(space, columns, threads=first.threads)
        yield Group(
            first.workload,
            first.hardware,
            tuple(by_config),
            np.array(list(by_config.values())),
            estimates.time_s,
            features(space, columns, estimates),
        )


def _median_by_config(members: Sequence[Measurement]) -> Mapping[TileConfig, float]:
    times: dict[TileConfig, list[float]] = {}
    for m in members:
        if m.time_s is not None:
            times.setdefault(m.config, []).append(m.time_s)
    return {config: float(np.median(values)) for config, values in times.items()}


def fit_groups(groups: Sequence[Group], seed: int, *, with_interval: bool) -> CostModel:
    """Return a model of all the groups; without interval it trains in a quarter of the time."""
    names = np.concatenate([np.full(len(g.configs), _name(g)) for g in groups])
    return CostModel.fit(
        np.concatenate([g.features for g in groups]),
        np.concatenate([g.log_ratio for g in groups]),
        names,
        feature_schema=schema_of(groups[0].hardware.family),
        seed=seed,
        with_interval=with_interval,
        dtypes=sorted({str(dict(g.workload.problem)["dtype"]) for g in groups}),
    )


def _name(group: Group) -> str:
    return f"{group.workload.key}/{group.hardware.key}"


def _validate(
    groups: Sequence[Group], incumbent: CostModel | None, seed: int, folds: int
) -> dict[str, float]:
    """Return each contender's mean ratio on held-out workloads; empty if none can be held out."""
    names = sorted({_name(g) for g in groups})
    if len(names) < 2:
        return {}
    order = np.random.default_rng(seed).permutation(len(names))
    fold_of = {names[j]: i % folds for i, j in enumerate(order)}
    ratios: dict[str, list[float]] = {}
    for fold in sorted(set(fold_of.values())):
        train_groups = [g for g in groups if fold_of[_name(g)] != fold]
        held_out = [g for g in groups if fold_of[_name(g)] == fold and len(g.configs) >= MIN_GROUP]
        if not held_out or sum(len(g.configs) for g in train_groups) < MIN_ROWS:
            continue
        model = fit_groups(train_groups, seed, with_interval=False)
        for group in held_out:
            for name, row in _choices(group, train_groups, model, incumbent).items():
                ratios.setdefault(name, []).append(float(group.time_s.min() / group.time_s[row]))
    # An exact sum: the order of measurements decides nothing.
    return {name: statistics.fmean(values) for name, values in ratios.items()}


def _choices(
    group: Group, known: Sequence[Group], model: CostModel, incumbent: CostModel | None
) -> dict[str, int]:
    """Return the row of ``group`` that each contender would use without measuring it."""
    analytic = group.analytic_s
    chosen = {
        "model": int(np.argmin(analytic * model.predict(group.features).factor)),
        "analytic": int(np.argmin(analytic)),
        "nearest": nearest_choice(group, known),
    }
    if incumbent is not None:
        chosen["incumbent"] = int(np.argmin(analytic * incumbent.predict(group.features).factor))
    return chosen


def nearest_choice(group: Group, known: Sequence[Group]) -> int:
    """Return the row most like the winner of the nearest other workload: what a lookup gives."""

    def distance(other: Group) -> tuple[float, str, int]:
        apart = workload_distance(group.workload, other.workload) + device_distance(
            group.hardware, other.hardware
        )
        return apart, _name(other), len(other.configs)  # the order of measurements decides nothing

    nearest = min(known, key=distance)
    winner = nearest.configs[int(np.argmin(nearest.time_s))]
    likeness = [sum(config.get(k) == v for k, v in winner.items()) for config in group.configs]
    return max(range(len(likeness)), key=lambda row: (likeness[row], group.configs[row].key))


def _verdict(metrics: Mapping[str, float]) -> tuple[bool, str]:
    if "model" not in metrics:
        return False, "not promoted: too few workloads to hold any out"
    own = metrics["model"]
    rivals = ("analytic", "nearest", "incumbent")
    better = [name for name in rivals if metrics.get(name, 0.0) >= own]
    if better:
        lost = ", ".join(f"{name} {metrics[name]:.3f}" for name in better)
        return False, f"not promoted: model {own:.3f}, not better than {lost}"
    return True, f"promoted: {own:.3f} of the best on held-out workloads"
