"""recommend(): ranked configs for a workload on a device, at once and with reasons."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from recommender.analytic import estimate
from recommender.diversity import different
from recommender.freshness import OTHER_CODE, OTHER_DRIVER, differences
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, Protocol
from recommender.nearest import Neighbour, best_nearby
from recommender.ports import MeasurementStore
from recommender.predict import Forecast, Learned, active_model, forecast, forecast_config
from recommender.space import SearchSpace
from recommender.workload import Workload
from tilecore.errors import InvalidConfig
from tilecore.kernels.definition import KernelDefinition
from tilecore.tile_config import TileConfig

SOURCES = ("measured", "nearest", "predicted", "prior", "analytic")
CLOSE = 1.5  # distance up to which a neighbour's winner goes before the analytic model's choice
MAX_NEIGHBOURS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A config and what is known about it.

    Attributes:
        source: one of SOURCES.
        time_s: measured or expected time per call with the workload's threads.
        interval_s: ends of the interval that holds 80 % of outcomes.
        distance: 0 for the workload itself, else how far the evidence comes from
            (``recommender.nearest``).
        confidence: 0 to 1; falls with distance, width of the interval and staleness.
        doubts: in words, which other program version, toolchain or driver the evidence is of.
    """

    config: TileConfig
    source: str
    time_s: float
    interval_s: tuple[float, float]
    distance: float
    confidence: float
    bound_by: str
    rationale: str
    doubts: tuple[str, ...] = ()

    @property
    def is_stale(self) -> bool:
        """Whether the evidence is of another program version, toolchain or driver."""
        return bool(self.doubts)


def recommend(
    workload: Workload,
    definition: KernelDefinition,
    hardware: HardwareProfile,
    store: MeasurementStore,
    *,
    top_k: int = 5,
    spare: int = 0,
    program_digest: str = "",
    toolchain_key: str = "",
    use_exact: bool = True,
) -> list[Recommendation]:
    """Return up to ``top_k`` different configs, the one to use first.

    A measurement of exactly this workload, device, program and toolchain answers first, with less
    confidence if the device had another driver. Winners of related workloads and the models'
    favourites follow; evidence of another program version or toolchain comes after them and is
    marked.

    Args:
        workload: what is to be computed.
        definition: of the workload's kernel.
        hardware: the device.
        store: what was measured.
        top_k: length of the list.
        spare: how many more of what was measured may follow, stale or far as it is.
        program_digest: of the current program (``definition.program_digest``).
        toolchain_key: of the current toolchain.
        use_exact: False leaves out what was measured for this workload: the zero-measurement
            recommendation.

    Raises:
        EmptySpace: no config of the kernel can run on the device (RC602).
    """
    space = SearchSpace.build(definition, dict(workload.problem), hardware)
    threads = workload.threads or hardware.cores
    model = active_model(store, definition.name, hardware)
    expected = forecast(space, threads, model)
    found: list[Recommendation] = []
    if use_exact:
        exact = store.best(workload, hardware.key, program_digest, toolchain_key, hardware.driver)
        if exact is not None:
            found.append(_measured(exact, space, threads))
    history = store.nearest(workload)
    others = [m for m in history if use_exact or m.workload.key != workload.key]
    nearby = [
        _nearest(
            neighbour, space, threads, model,
            _differences(neighbour, workload, program_digest, toolchain_key),
        )
        for neighbour in best_nearby(
            others, workload, hardware,
            program_digest=program_digest, toolchain_key=toolchain_key,
        )
        if not _is_answered(neighbour, found) and _is_legal(neighbour, space)
    ][:MAX_NEIGHBOURS]  # fmt: skip
    favourites = list(_favourites(expected, space, threads, top_k))
    return _rank(found, nearby, favourites, expected.source)[: top_k + spare]


def _rank(
    measured: Sequence[Recommendation],
    nearby: Sequence[Recommendation],
    favourites: Sequence[Recommendation],
    source: str,
) -> list[Recommendation]:
    """Return measured, then the better founded of model and neighbours, then the rest; no twins.

    A promoted cost model has beaten the nearest lookup on held-out workloads of this store, so it
    goes first; the analytic model and the model that ships have not, so close neighbours go before
    them.
    """
    fresh = [r for r in nearby if not r.is_stale]
    close = [r for r in fresh if r.distance <= CLOSE]
    far = [r for r in fresh if r.distance > CLOSE]
    stale = [r for r in nearby if r.is_stale]
    if source == "predicted":
        ordered = [*measured, *favourites[:1], *close, *favourites[1:2], *far, *stale]
    else:
        ordered = [*measured, *close, *favourites[:2], *far, *stale]
    unique: dict[TileConfig, Recommendation] = {}
    for r in [*ordered, *favourites[1:]]:
        unique.setdefault(r.config, r)
    return list(unique.values())


def _favourites(
    expected: Forecast, space: SearchSpace, threads: int, count: int
) -> Iterator[Recommendation]:
    """Yield the fastest expected configs that differ from each other in two knobs, if there are."""
    configs = (space.config(row) for row in expected.rows.tolist())
    chosen = list(itertools.islice(different(configs, min(2, len(space.values))), count + 1))
    found = estimate(space, space.table([config for _, config in chosen]), threads=threads)
    for number, (position, config) in enumerate(chosen):
        low, high = float(expected.low_s[position]), float(expected.high_s[position])
        time_s = float(expected.time_s[position])
        explained = found.at(number)
        yield Recommendation(
            config=config,
            source=expected.source,
            time_s=time_s,
            interval_s=(low, high),
            distance=0.0,
            confidence=_width_confidence(low, high),
            bound_by=explained.bound_by,
            rationale=f"fastest of {len(space)} legal configs by the {_MODEL[expected.source]}"
            f"{'' if position == 0 else f' (rank {position + 1}, different tiling)'}; "
            f"{explained.explain()}",
        )


_MODEL = {
    "predicted": "cost model",
    "prior": "cost model that ships with tilecore",
    "analytic": "analytic model",
}


def _measured(m: Measurement, space: SearchSpace, threads: int) -> Recommendation:
    assert m.time_s is not None
    doubts = differences(
        m, program_digest=m.program_digest, toolchain_key=m.toolchain.key,
        driver=space.hardware.driver,
    )  # fmt: skip
    scale = _thread_scale(space, m, threads)
    times = sorted(t * scale for t in m.times_s)
    reason, bound_by = _explain(space, m.config, threads)
    how = f"median of {len(times)} repeats on {m.measured_at:%Y-%m-%d}"
    if m.protocol is Protocol.SCREEN:
        how += f", one thread, scaled to {threads}"
    return Recommendation(
        config=m.config,
        source="measured",
        time_s=m.time_s * scale,
        interval_s=(times[0], times[-1]),
        distance=0.0,
        confidence=(0.98 if m.protocol is Protocol.CONFIRM else 0.85)
        * (OTHER_DRIVER if doubts else 1.0),
        bound_by=bound_by,
        rationale=f"best measured for exactly this workload: {'; '.join((how, *doubts, reason))}",
        doubts=doubts,
    )


def _nearest(
    neighbour: Neighbour, space: SearchSpace, threads: int, model: Learned | None,
    doubts: tuple[str, ...],
) -> Recommendation:  # fmt: skip
    m = neighbour.measurement
    time_s, low, high = forecast_config(space, m.config, threads, model)
    reason, bound_by = _explain(space, m.config, threads)
    confidence = 0.9 / (1.0 + neighbour.distance)
    where = f"{m.workload}" + (
        "" if m.hardware.key == space.hardware.key else f" on {m.hardware.name}"
    )
    age = f"; older program or toolchain: {', '.join(doubts)}" if doubts else ""
    return Recommendation(
        config=m.config,
        source="nearest",
        time_s=time_s,
        interval_s=(low, high),
        distance=neighbour.distance,
        confidence=confidence * (OTHER_CODE if doubts else 1.0),
        bound_by=bound_by,
        rationale=f"best measured for {where} (distance {neighbour.distance:.2f}{age}); {reason}",
        doubts=doubts,
    )


def _differences(
    neighbour: Neighbour, workload: Workload, program_digest: str, toolchain_key: str
) -> tuple[str, ...]:
    """Return what makes a neighbour stale: another driver does not, its times are not shown."""
    m = neighbour.measurement
    is_same = m.workload.key == workload.key  # a digest covers the shapes of its workload
    digest = program_digest if is_same else m.program_digest
    return differences(m, program_digest=digest, toolchain_key=toolchain_key, driver="")


def _thread_scale(space: SearchSpace, m: Measurement, threads: int) -> float:
    """Return the predicted ratio of the time with ``threads`` to that of the measured run."""
    if m.threads == threads:
        return 1.0
    columns = space.table([m.config])
    wanted = estimate(space, columns, threads=threads).time_s[0]
    return float(wanted / estimate(space, columns, threads=m.threads).time_s[0])


def _explain(space: SearchSpace, config: TileConfig, threads: int) -> tuple[str, str]:
    e = estimate(space, space.table([config]), threads=threads).at(0)
    return e.explain(), e.bound_by


def _is_answered(neighbour: Neighbour, found: Sequence[Recommendation]) -> bool:
    return any(r.config == neighbour.measurement.config for r in found)


def _is_legal(neighbour: Neighbour, space: SearchSpace) -> bool:
    try:
        space.check(neighbour.measurement.config)
    except InvalidConfig:
        return False
    return True


def _width_confidence(low_s: float, high_s: float) -> float:
    """Return 0.9 for an interval of no width, 0.45 for a factor of 2."""
    return 0.9 * low_s / high_s
