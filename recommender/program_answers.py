"""Recommendations and tuning sessions for programs that came as data, by their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from recommender.analytic import ANALYTIC_SPREAD
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, Protocol
from recommender.nearest import best_nearby, fastest
from recommender.ports import MeasurementStore
from recommender.program_table import ProgramTable
from recommender.recommend import CLOSE, MAX_NEIGHBOURS, Recommendation
from recommender.screening import Screening
from recommender.search import STRATEGIES
from recommender.tuning import Budget, TuningSession
from recommender.workload import Workload
from tilecore.tile_config import KnobValue, TileConfig

ANALYTIC_CONFIDENCE = 0.9 * ANALYTIC_SPREAD[0] / ANALYTIC_SPREAD[1]


def recommend_program(
    workload: Workload, table: ProgramTable, hardware: HardwareProfile, store: MeasurementStore,
    *, top_k: int, program_digest: str, toolchain_key: str, use_exact: bool = True,
    fixed: Mapping[str, KnobValue] | None = None,
) -> list[Recommendation]:  # fmt: skip
    """Return up to ``top_k`` different configs, the one to use first.

    What was measured for exactly this program, problem, device and toolchain answers first; then
    winners of near sizes of the same program that are legal here, then the analytic model's.
    """
    found: dict[TileConfig, Recommendation] = {}
    exact = _exact(workload, hardware, store, program_digest, toolchain_key, fixed or {})
    if use_exact and exact is not None:
        found[exact.config] = _measured(exact, table, workload.threads or hardware.cores)
    others = [m for m in store.nearest(workload) if use_exact or m.workload.key != workload.key]
    nearby = []
    for near in best_nearby(others, workload, hardware, program_digest=program_digest,
                            toolchain_key=toolchain_key):  # fmt: skip
        row = table.row(near.measurement.config)
        if row is not None and near.measurement.config not in found:
            nearby.append(_nearest(near.measurement, near.distance, near.is_stale, table, row))
    nearby = nearby[:MAX_NEIGHBOURS]
    close = [r for r in nearby if not r.is_stale and r.distance <= CLOSE]
    far = [r for r in nearby if r not in close]
    favourites = [_analytic(table, row) for row in table.accepted]
    for r in [*close, *favourites[:2], *far, *favourites[2:]]:
        found.setdefault(r.config, r)
    return list(found.values())[:top_k]


def program_session(
    workload: Workload, table: ProgramTable, hardware: HardwareProfile, *, store: MeasurementStore,
    budget: Budget, seed: int, program_digest: str, toolchain_key: str,
    incumbents: Sequence[TileConfig], clock: Callable[[], float],
) -> TuningSession:  # fmt: skip
    """Return a session that tunes a program at one problem."""
    ranked = recommend_program(
        workload, table, hardware, store, top_k=max(1, budget.warm_start),
        program_digest=program_digest, toolchain_key=toolchain_key, use_exact=False,
    )  # fmt: skip
    return TuningSession(
        table.default, [r.config for r in ranked], Screening(table, STRATEGIES["model"], seed),
        budget=budget, incumbents=incumbents, clock=clock,
    )  # fmt: skip


def _exact(
    workload: Workload, hardware: HardwareProfile, store: MeasurementStore, program_digest: str,
    toolchain_key: str, fixed: Mapping[str, KnobValue],
) -> Measurement | None:  # fmt: skip
    best = store.best(workload, hardware.key, program_digest, toolchain_key)
    if best is None or _keeps(best.config, fixed):
        return best
    known = store.measurements(
        workload_key=workload.key, hardware_key=hardware.key, only_ok=True
    )  # fmt: skip
    return fastest(
        [m for m in known if m.toolchain.key == toolchain_key and _keeps(m.config, fixed)]
    )


def _keeps(config: TileConfig, fixed: Mapping[str, KnobValue]) -> bool:
    return all(config.get(knob) == value for knob, value in fixed.items())


def _measured(m: Measurement, table: ProgramTable, threads: int) -> Recommendation:
    assert m.time_s is not None
    scale = 1.0 if m.threads == threads else table.scale(m.config)
    times = sorted(t * scale for t in m.times_s)
    how = f"median of {len(times)} repeats on {m.measured_at:%Y-%m-%d}"
    if scale != 1.0:
        how += f", one thread, scaled to {threads}"
    row = table.row(m.config)
    return Recommendation(
        config=m.config, source="measured", time_s=m.time_s * scale,
        interval_s=(times[0], times[-1]), distance=0.0,
        confidence=0.98 if m.protocol is Protocol.CONFIRM else 0.85,
        bound_by="" if row is None else table.bound_by[row],
        rationale=f"best measured for exactly this program and problem: {how}",
    )  # fmt: skip


def _nearest(
    m: Measurement, distance: float, is_stale: bool, table: ProgramTable, row: int
) -> Recommendation:
    where = f"{m.workload}"
    age = "; older toolchain" if is_stale else ""
    return Recommendation(
        config=m.config, source="nearest", time_s=float(table.time_s[row]),
        interval_s=_interval(float(table.time_s[row])), distance=distance,
        confidence=0.9 / (1.0 + distance) * (0.5 if is_stale else 1.0),
        bound_by=table.bound_by[row], is_stale=is_stale,
        rationale=f"best measured for {where} (distance {distance:.2f}{age}); "
        f"{table.rationale[row]}",
    )  # fmt: skip


def _analytic(table: ProgramTable, row: int) -> Recommendation:
    time_s = float(table.time_s[row])
    return Recommendation(
        config=table.configs[row], source="analytic", time_s=time_s, interval_s=_interval(time_s),
        distance=0.0, confidence=ANALYTIC_CONFIDENCE, bound_by=table.bound_by[row],
        rationale=table.rationale[row],
    )  # fmt: skip


def _interval(time_s: float) -> tuple[float, float]:
    return time_s * ANALYTIC_SPREAD[0], time_s * ANALYTIC_SPREAD[1]
