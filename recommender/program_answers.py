"""Recommendations and tuning sessions for programs that came as data, by their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from recommender.analytic import ANALYTIC_SPREAD
from recommender.freshness import OTHER_CODE, OTHER_DRIVER, differences
from recommender.growing_table import GrowingTable, Look
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, Protocol
from recommender.nearest import best_nearby, fastest
from recommender.ports import MeasurementStore
from recommender.program_table import ProgramTable
from recommender.recommend import CLOSE, MAX_NEIGHBOURS
from recommender.recommendation import Recommendation, interval_of
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
        found[exact.config] = _measured(exact, table, hardware, workload.threads)
    near_ones = store.nearest(workload, hardware=hardware)
    others = [m for m in near_ones if use_exact or m.workload != workload]
    nearby = []
    for near in best_nearby(others, workload, hardware, program_digest=program_digest,
                            toolchain_key=toolchain_key):  # fmt: skip
        row = table.row(near.measurement.config)
        if row is not None and near.measurement.config not in found:
            doubts = differences(
                near.measurement, program_digest=near.measurement.program_digest,
                toolchain_key=toolchain_key, driver="",
            )  # fmt: skip
            nearby.append(_nearest(near.measurement, near.distance, doubts, table, row))
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
    incumbents: Sequence[TileConfig], clock: Callable[[], float], look: Look | None = None,
) -> TuningSession:  # fmt: skip
    """Return a session that tunes a program at one problem.

    ``look`` returns what the table leaves out around some configs (``look_around``); None: nothing.
    """
    ranked = recommend_program(
        workload, table, hardware, store, top_k=max(1, budget.warm_start),
        program_digest=program_digest, toolchain_key=toolchain_key, use_exact=False,
    )  # fmt: skip
    return TuningSession(
        table.default, [r.config for r in ranked],
        Screening(GrowingTable(table, look), STRATEGIES["model"], seed),
        budget=budget, incumbents=incumbents, clock=clock,
    )  # fmt: skip


def _exact(
    workload: Workload, hardware: HardwareProfile, store: MeasurementStore, program_digest: str,
    toolchain_key: str, fixed: Mapping[str, KnobValue],
) -> Measurement | None:  # fmt: skip
    best = store.best(workload, hardware.key, program_digest, toolchain_key, hardware.driver)
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


def _measured(
    m: Measurement, table: ProgramTable, hardware: HardwareProfile, threads: int
) -> Recommendation:
    assert m.time_s is not None
    wanted = threads or hardware.cores
    scale = 1.0 if m.threads == wanted else table.scale(m.config)
    how = f"median of {len(m.times_s)} repeats on {m.measured_at:%Y-%m-%d}"
    if scale != 1.0:
        how += f", one thread, scaled to {wanted}"
    row = table.row(m.config)
    doubts = differences(
        m, program_digest=m.program_digest, toolchain_key=m.toolchain.key, driver=hardware.driver
    )
    certain = 0.98 if m.protocol is Protocol.CONFIRM else 0.85
    return Recommendation(
        config=m.config, source="measured", time_s=m.time_s * scale,
        interval_s=interval_of(m.times_s, scale), distance=0.0,
        confidence=certain * (OTHER_DRIVER if doubts else 1.0),
        bound_by="" if row is None else table.bound_by[row], doubts=doubts,
        rationale="best measured for exactly this program and problem: "
        + "; ".join((how, *doubts)),
    )  # fmt: skip


def _nearest(
    m: Measurement, distance: float, doubts: tuple[str, ...], table: ProgramTable, row: int
) -> Recommendation:
    age = f"; older toolchain: {', '.join(doubts)}" if doubts else ""
    return Recommendation(
        config=m.config, source="nearest", time_s=float(table.time_s[row]),
        interval_s=_interval(float(table.time_s[row])), distance=distance,
        confidence=0.9 / (1.0 + distance) * (OTHER_CODE if doubts else 1.0),
        bound_by=table.bound_by[row], doubts=doubts,
        rationale=f"best measured for {m.workload} (distance {distance:.2f}{age}); "
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
