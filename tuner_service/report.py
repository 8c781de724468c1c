"""The result of a tuning run as a document: stored with the run, sent by REST, shown as a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from db.records import RunRecord, TrialOutline, TrialRecord
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.nearest import fastest
from recommender.workload import digest_of
from tilecore.tile_config import TileConfig

if TYPE_CHECKING:
    from recommender.tuning import TuningResult

ROLES = ("default", "recommended", "best")
QUIET = 0.15  # of the cores that others may take while finalists are timed


def result_document(result: TuningResult, run: RunRecord, active_s: float) -> dict[str, Any]:
    """Return what a run found: three candidates, their ratios, trials by status."""
    found = (result.default, result.recommended, result.best)
    return {
        **{
            role: candidate(m, run.hardware, work_flop_of(run))
            for role, m in zip(ROLES, found, strict=True)
        },
        "gain_over_default": result.gain_over_default,
        "recommendation_ratio": result.recommendation_ratio,
        "trials": result.trials,
        "by_status": dict(result.by_status),
        "space_size": result.space_size,
        "active_s": active_s,
    }


def result_of(trials: Sequence[TrialRecord], default: TileConfig, space_size: int) -> TuningResult:
    """Return what measured trials say, as the session of a run under way would."""
    from recommender.tuning import TuningResult

    told = {(t.config, t.protocol): t.measurement for t in trials if t.measurement is not None}
    recommended = next((t.config for t in trials if t.purpose == "recommended"), None)

    def of(config: TileConfig | None) -> Measurement | None:
        if config is None:
            return None
        return told.get((config, Protocol.CONFIRM)) or told.get((config, Protocol.SCREEN))

    return TuningResult(
        default=of(default),
        recommended=of(recommended or default),
        best=fastest(list(told.values())),
        trials=len(told),
        by_status=dict(Counter(m.status.value for m in told.values())),
        space_size=space_size,
    )


def partial_result(store: SqlStore, run: RunRecord) -> Mapping[str, Any]:
    """Return what a run has found so far, in the form of its result."""
    if run.is_finished and run.result is not None:
        return run.result
    if digest_of(run.workload.kernel) is not None:
        default, size = TileConfig.of(run.spec["default"]), int(run.spec["space_size"])
    else:
        from recommender.space import SearchSpace
        from tilecore import kernels  # what has ended needs none

        definition = kernels.get(run.workload.kernel).on(run.hardware.kind)
        space = SearchSpace.build(definition, dict(run.workload.problem), run.hardware)
        default, size = definition.default_config(run.hardware.kind), len(space)
    told = {(t.config_key, t.protocol): t for t in store.trials.outlines(run.id) if t.status}
    shown = store.trials.some([t.id for t in _notable(list(told.values()), default)])
    found = replace(
        result_of(shown, default, size), trials=len(told),
        by_status=dict(Counter(str(t.status) for t in told.values())),
    )  # fmt: skip
    return result_document(found, run, run.active_s)


def _notable(told: Sequence[TrialOutline], default: TileConfig) -> Iterator[TrialOutline]:
    """Yield the trials that a result shows: of the default, of the recommended, the fastest."""
    named = {t.config_key for t in told if t.purpose == "recommended"}
    author = dict(default.items_)
    yield from (t for t in told if t.config_key in named or t.config == author)
    good = [t for t in told if t.status == MeasureStatus.OK.value and t.time_s is not None]
    confirmed = [t for t in good if t.protocol == Protocol.CONFIRM.value]
    if good:
        yield min(confirmed or good, key=lambda t: t.time_s or math.inf)


def work_flop_of(run: RunRecord) -> float:
    """Return the operations of what a run tunes."""
    if digest_of(run.workload.kernel) is not None:
        return float(run.spec["work_flop"])
    from tilecore import kernels  # a table of runs needs none

    return kernels.get(run.workload.kernel).work_flop(dict(run.workload.problem))


def candidate(
    m: Measurement | None, hardware: HardwareProfile, work_flop: float
) -> dict[str, Any] | None:
    """Return one candidate with its rates, None where it was not measured."""
    if m is None:
        return None
    problem = dict(m.workload.problem)
    shown: dict[str, Any] = {
        "config": dict(m.config.items_),
        "status": m.status.value,
        "protocol": m.protocol.value,
        "threads": m.threads,
        "repeats": len(m.times_s),
        "detail": m.detail,
        "doubts": list(doubts_of(m)),
    }
    if m.time_s is None:
        return shown
    rate = work_flop / m.time_s
    peak = peak_flop_per_s(hardware, problem, m.threads)
    reference_s = m.reference_time_s
    return shown | {
        "latency_us": m.time_s * 1e6,
        "gflops": rate / 1e9,
        "fraction_of_peak": None if peak is None else rate / peak,
        "reference_latency_us": None if reference_s is None else reference_s * 1e6,
        "ratio_to_reference": None if reference_s is None else reference_s / m.time_s,
    }


def doubts_of(m: Measurement) -> Iterator[str]:
    """Yield, in words, what makes a time say less than it seems to."""
    if m.protocol is not Protocol.CONFIRM:
        return
    busy = m.metrics.get("neighbour_busy", 0.0)
    if m.hardware.kind == "cpu" and busy > QUIET:
        yield f"others took {busy:.0%} of the cores while it was timed"
    if m.is_apart:
        yield "it was timed at another moment than the others"


def doubts_in(result: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what a result has against its times, with the roles that it holds of."""
    found: dict[str, list[str]] = {}
    for role in ROLES:
        for doubt in (result.get(role) or {}).get("doubts", ()):
            found.setdefault(doubt, []).append(role)
    return found


def peak_flop_per_s(
    hardware: HardwareProfile, problem: Mapping[str, Any], threads: int
) -> float | None:
    """Return the peak of the cores used in the dtype that sums are kept in, if it is known.

    Of a GPU that of the whole device in the dtype of the inputs; an emulator has none.
    """
    if hardware.is_emulated:
        return None
    if hardware.kind != "cpu":
        return hardware.peak_flop_per_s.get(str(problem.get("dtype")))
    dtype = str(problem.get("accum_dtype") or problem.get("dtype"))
    per_core = hardware.peak_flop_per_s.get(dtype)
    if not per_core:
        return None
    return per_core * min(max(1, threads), hardware.cores)
