"""recommend(): ranked configs for a workload on a device, at once and with reasons."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from recommender.analytic import estimate, estimate_each
from recommender.diversity import different
from recommender.freshness import differences, driver_differences
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, Protocol
from recommender.nearest import OTHER_DEVICE, Neighbour, best_nearby
from recommender.ports import MeasurementStore
from recommender.predict import (
    Forecast,
    Given,
    active_model,
    forecast,
    forecast_around,
    forecast_columns,
)
from recommender.recommendation import Recommendation, Source, of_measurement, of_neighbour
from recommender.shipped import LEADS_WITHIN, RecordedShape, candidates, order, winners
from recommender.space import SearchSpace
from recommender.workload import Workload
from tilecore.kernels.definition import KernelDefinition
from tilecore.tile_config import TileConfig

CLOSE = 1.5  # distance up to which a neighbour's winner goes before the analytic model's choice
MAX_NEIGHBOURS, LOOKED_AT = 3, 8  # that are shown, and workloads that are looked at for them
# Beside a confirmed config: so many of what was measured are looked around, and how many times
# slower than the best of those candidates it may be expected to be; and the best of the others than
# it; and how many candidates there are at least. A space of no more configs than ``SMALL``, legal
# or not, is ranked in the time that looking around takes.
AROUND, FAR, LIKE, LEAST = 2, 1.3, 1.15, 64
SMALL = 1024
SHIPPED_CONFIDENCE = 0.8  # of what the same evidence would be worth from this database
# Winners that ship were recorded with one thread: they are left out where they would keep the
# cores much less busy than the model's favourite does.
RECORDED_THREADS, MIN_SPREAD = 1, 0.8


def recommend(
    workload: Workload,
    definition: KernelDefinition,
    hardware: HardwareProfile,
    store: MeasurementStore,
    *,
    top_k: int = 5,
    spare: int = 0,
    program_digest: str | Callable[[], str] = "",
    toolchain_key: str = "",
    use_exact: bool = True,
) -> list[Recommendation]:
    """Return up to ``top_k`` different configs, the one to use first.

    A measurement of exactly this workload, device, program and toolchain answers first, with less
    confidence if the device had another driver; where ``top_k`` different configs were confirmed,
    they are the answer. Winners of related workloads and the models' favourites follow; evidence
    of another program version or toolchain comes after them and is marked.

    Args:
        workload: what is to be computed.
        definition: of the workload's kernel.
        hardware: the device.
        store: what was measured.
        top_k: length of the list.
        spare: how many more of what was measured may follow, stale or far as it is.
        program_digest: of the current program (``definition.program_digest``); a function is
            called only if something was measured for the workload.
        toolchain_key: of the current toolchain.
        use_exact: False leaves out what was measured for this workload: the zero-measurement
            recommendation.

    Raises:
        EmptySpace: no config of the kernel can run on the device (RC602).
    """
    threads = workload.threads or hardware.cores
    space = SearchSpace.outline(definition, dict(workload.problem), hardware)
    digest, measured = "", []
    if use_exact and store.is_known(workload):
        digest = program_digest if isinstance(program_digest, str) else program_digest()
        key = (workload, hardware.key, digest, toolchain_key, hardware.driver)
        measured = _different(store.fastest(*key, count=8 * top_k), space, top_k)
    if len(measured) >= top_k:
        return _all_measured(measured, space, threads)
    asked = _Asked(workload, space, threads, store, (digest, toolchain_key), use_exact)
    return _estimated(asked, measured[:1], top_k)[: top_k + spare]


def _all_measured(
    found: Sequence[Measurement], space: SearchSpace, threads: int
) -> list[Recommendation]:
    """Return an answer of what was measured alone."""
    explained = estimate_each(space, [m.config for m in found], threads=threads)

    def times_with(config: TileConfig) -> Callable[[int], float]:
        return lambda cores: estimate_each(space, [config], threads=cores)[0].time_s

    return [
        of_measurement(m, rank, space.hardware, explained[rank], times_with(m.config))
        for rank, m in enumerate(found)
    ]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question whose answer is not in the database alone; ``versions``: program, toolchain."""

    workload: Workload
    space: SearchSpace
    threads: int
    store: MeasurementStore
    versions: tuple[str, str]
    use_exact: bool


def _estimated(asked: _Asked, best: Sequence[Measurement], count: int) -> list[Recommendation]:
    """Return what was best (if anything was measured) with all that may be good beside it."""
    space, is_sure = asked.space, bool(best) and _is_sure(best[0], asked.space)
    neighbours = [
        n
        for n in _neighbours(asked, is_sure)
        if all(n.measurement.config != m.config for m in best)
    ][:MAX_NEIGHBOURS]
    given = [m.config for m in (*best, *(n.measurement for n in neighbours))]
    expected, favourites = _expected(asked, is_sure, given, count)
    told: list[Recommendation] = []
    if expected.given is not None:
        known = expected.given
        told = [
            of_measurement(
                m, i, space.hardware, known.estimates.at(i), known.estimates.times_with(i)
            )
            for i, m in enumerate(best)
        ]
        told_of = [(n, _differences(n, asked)) for n in neighbours]
        told += [
            of_neighbour(n, doubts, space.hardware, known.expected_s(i), known.estimates.at(i))
            for i, (n, doubts) in enumerate(told_of, len(best))
        ]
    nearby = told[len(best) :]
    shipped: list[Recommendation] = []
    if expected.source != "predicted" and not best and not any(map(_is_close, nearby)):
        shipped = _shipped(asked.workload, space, asked.threads, expected)
    return _rank(told[: len(best)], nearby, favourites, shipped, expected.source)


def _expected(
    asked: _Asked, is_sure: bool, given: Sequence[TileConfig], count: int
) -> tuple[Forecast, list[Recommendation]]:
    """Return what is expected of ``given`` configs and of others, and the favourites among these.

    Beside a config that was confirmed here the others are those around it, around the first
    neighbour's winner and around the kernel's default: the measurement tells where to look. The
    whole space is ranked where it is small or there are too few of them, where the model expects so
    much more of them than of what was measured that this is hardly near the best, or so much less.
    """
    space, threads = asked.space, asked.threads
    dtype = str(space.problem["dtype"])
    model = active_model(asked.store, space.definition.name, space.hardware, dtype)
    if is_sure and space.enumerated > SMALL:
        default = space.definition.default_config()
        expected = forecast_around(space, threads, model, given, (*given[:AROUND], default))
        assert expected.given is not None
        measured_s = expected.given.time_s[0]
        if len(expected.codes) >= LEAST and measured_s <= FAR * expected.time_s[0]:
            favourites = list(_favourites(expected, space, count))
            others = [r.time_s for r in favourites if r.config != given[0]]
            if len(favourites) >= count and min(others) <= LIKE * measured_s:
                return expected, favourites
    expected = forecast(space, threads, model, given)
    return expected, list(_favourites(expected, space, count))


def _is_sure(m: Measurement, space: SearchSpace) -> bool:
    """Return whether a measurement was confirmed on the device as it is now."""
    return m.protocol is Protocol.CONFIRM and not driver_differences(m, space.hardware.driver)


def _rank(
    measured: Sequence[Recommendation],
    nearby: Sequence[Recommendation],
    favourites: Sequence[Recommendation],
    shipped: Sequence[Recommendation],
    source: Source,
) -> list[Recommendation]:
    """Return measured, then the better founded of model and neighbours, then the rest; no twins.

    A promoted cost model has beaten the nearest lookup on held-out workloads of this store, so it
    goes first; the analytic model and the model that ships have not, so close neighbours go before
    them. Winners that ship do so for kernels of which they beat the analytic model, near by.
    """
    close = [r for r in nearby if _is_close(r)]
    far = [r for r in nearby if not r.is_stale and r.distance > CLOSE]
    leads = bool(shipped) and shipped[0].distance <= LEADS_WITHIN + OTHER_DEVICE
    first, rest = (shipped[:1], shipped[1:]) if leads else ([], shipped)
    stale = [r for r in nearby if r.is_stale]
    if source == "predicted":
        ordered = [*measured, *favourites[:1], *close, *favourites[1:2], *far, *stale]
    else:
        old = stale[:1] if rest else []  # of an earlier version, but measured here
        ordered = [*measured, *close, *first, *favourites[:2], *old, *rest, *far, *stale]
    unique: dict[TileConfig, Recommendation] = {}
    for r in [*ordered, *favourites[1:]]:
        unique.setdefault(r.config, r)
    return list(unique.values())


def _favourites(expected: Forecast, space: SearchSpace, count: int) -> Iterator[Recommendation]:
    """Yield the fastest expected configs that differ from each other in two knobs, if there are."""
    configs = map(expected.config, range(len(expected.codes)))
    chosen = list(itertools.islice(different(configs, _apart(space)), count + 1))
    explained = expected.explain([position for position, _ in chosen])
    for (position, config), why in zip(chosen, explained, strict=True):
        low, high = float(expected.low_s[position]), float(expected.high_s[position])
        yield Recommendation(
            config=config,
            source=expected.source,
            time_s=float(expected.time_s[position]),
            interval_s=(low, high),
            distance=0.0,
            confidence=_width_confidence(low, high),
            bound_by=why.bound_by,
            rationale=f"fastest of {expected.among} by the {_MODEL[expected.source]}"
            f"{'' if position == 0 else f' (rank {position + 1}, different tiling)'}; "
            f"{why.explain()}",
            terms_s=why.terms_s,
        )


def _apart(space: SearchSpace) -> int:
    """Return in how many knobs the configs of a list differ at least."""
    return min(2, len(space.values))


_MODEL = {
    "predicted": "cost model",
    "prior": "cost model that ships with tilecore",
    "analytic": "analytic model",
}


def _different(found: Sequence[Measurement], space: SearchSpace, count: int) -> list[Measurement]:
    """Return up to ``count`` measurements of configs that differ from each other."""
    apart = different((m.config for m in found), _apart(space))
    return [found[position] for position, _ in itertools.islice(apart, count)]


def _is_close(r: Recommendation) -> bool:
    return r.distance <= CLOSE and not r.is_stale


def _neighbours(asked: _Asked, few: bool) -> list[Neighbour]:
    """Return winners of near workloads and devices that can run here, nearest first.

    ``few``: of as many workloads as may be shown beside the one that is asked for.
    """
    digest, toolchain_key = asked.versions
    own, space = asked.workload, asked.space
    count = 1 + (MAX_NEIGHBOURS if few else LOOKED_AT)
    near = asked.store.nearest(own, count=count, hardware=space.hardware)
    others = [m for m in near if asked.use_exact or m.workload != own]
    found = best_nearby(
        others, own, space.hardware, program_digest=digest, toolchain_key=toolchain_key
    )
    legal = space.can_run([n.measurement.config for n in found])
    return list(itertools.compress(found, legal))


def _shipped(
    workload: Workload, space: SearchSpace, threads: int, expected: Forecast
) -> list[Recommendation]:
    """Return winners that ship for near shapes and can run here, the one to use first."""
    known = winners(workload.kernel, space.hardware)
    if known is None:
        return []
    near = known.near(workload, space.hardware)
    legal = iter(space.can_run([config for shape in near for config in shape.configs]))
    runs = [shape.only(list(itertools.islice(legal, len(shape.configs)))) for shape in near]
    found = candidates(runs, known.rule)
    if not found:
        return []
    favourite = expected.config(0)
    columns = space.table([*(config for config, _ in found), favourite])
    estimates = estimate(space, columns, threads=threads)
    spread = estimates.on(RECORDED_THREADS).time_s / (threads * estimates.time_s)
    fitting = np.flatnonzero(spread[:-1] >= MIN_SPREAD * spread[-1])
    in_turn = fitting[order(known.rule, estimates.time_s[fitting])]
    known_s = Given(estimates, *forecast_columns(space, columns, estimates, None))
    return [
        _of_winner(found[row], known.device, row, known_s)
        for row in in_turn.tolist()[:MAX_NEIGHBOURS]
    ]


def _of_winner(
    found: tuple[TileConfig, RecordedShape], device: str, row: int, known: Given
) -> Recommendation:
    (config, shape), explained = found, known.estimates.at(row)
    time_s, low_s, high_s = known.expected_s(row)
    distance = shape.distance + OTHER_DEVICE
    return Recommendation(
        config=config,
        source="shipped",
        time_s=time_s,
        interval_s=(low_s, high_s),
        distance=distance,
        confidence=SHIPPED_CONFIDENCE * 0.9 / (1.0 + distance),
        bound_by=explained.bound_by,
        rationale=f"ships with tilecore: {shape.time_s(config) * 1e6:.1f} us for {shape.workload} "
        f"on {device}, one thread (distance {distance:.2f}); {explained.explain()}",
        terms_s=explained.terms_s,
    )


def _differences(neighbour: Neighbour, asked: _Asked) -> tuple[str, ...]:
    """Return what makes a neighbour stale: another driver does not, its times are not shown."""
    m, (now, toolchain_key) = neighbour.measurement, asked.versions
    is_same = m.workload.key == asked.workload.key  # a digest covers the shapes of its workload
    digest = now if is_same else m.program_digest
    return differences(m, program_digest=digest, toolchain_key=toolchain_key, driver="")


def _width_confidence(low_s: float, high_s: float) -> float:
    """Return 0.9 for an interval of no width, 0.45 for a factor of 2."""
    return 0.9 * low_s / high_s
