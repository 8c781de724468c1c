"""Runs: the list, and one run with its trials, its chart and what it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from markupsafe import Markup

from db.records import TrialOutline
from tilecore import kernels
from tilecore.errors import TileError
from tuner_service.dashboard.charts import Bar, Point, bars, best_over_trials
from tuner_service.dashboard.rendering import HOME, address, page
from tuner_service.dashboard.texts import first_line, micro, times, workload_text
from tuner_service.dashboard.trials import Start, trial_table
from tuner_service.errors import http_status
from tuner_service.report import doubts_in
from tuner_service.routes.context import CreatedBy, Cursor, Store
from tuner_service.routes.tuning_runs import (
    get_result,
    list_tuning_runs,
    to_wire,
    trial_to_wire,
)
from tuner_service.schemas import RunState, TuningRunOut

router = APIRouter(prefix=f"{HOME}/runs")
ON_A_PAGE = 50
OPEN = ("pending", "leased")
EVENTS = (
    "queued renewed started resumed trial retry pause_requested paused unpaused extended amended "
    "waits hardware_joined cancel_requested succeeded failed cancelled"
)
Order = Literal["measured", "time"]


@router.get("")
def runs(
    request: Request,
    store: Store,
    state: RunState | None = None,
    kernel: Annotated[str | None, Query(max_length=64)] = None,
    group: Annotated[str | None, Query(max_length=36)] = None,
    created_by: CreatedBy = None,
    cursor: Cursor = None,
) -> Response:
    """Return a page of runs, newest first."""
    found = list_tuning_runs(store, state, kernel, group, created_by, ON_A_PAGE, cursor)
    given = dict(request.query_params)
    first = address(request.url.path, given, cursor=None)
    more = found.next_cursor
    return page(
        request, "runs.html",
        runs=[(run, progress(run)) for run in found.items],
        given=given,
        states=get_args(RunState),
        kernels=_known_kernels(kernel),
        first=first if cursor else None,
        more=address(request.url.path, given, cursor=more) if more else None,
    )  # fmt: skip


@router.get("/{run_id}")
def run(
    request: Request,
    run_id: str,
    store: Store,
    order: Order = "measured",
    start: Start = 0,
) -> Response:
    """Return a run."""
    record = store.runs.get(run_id)
    found = to_wire(store, record)
    result = _result(run_id, store)
    trials = sorted(store.trials.outlines(record.id), key=lambda trial: trial.sequence)
    table = trial_table(request, trials, _by_time, order, start)
    table["trials"] = [trial_to_wire(t) for t in store.trials.some([t.id for t in table["trials"]])]
    return page(
        request, "run.html",
        run=found, result=result, progress=progress(found), causes=_causes(trials),
        title=workload_text(found.workload),
        followed=f"/v1/tuning-runs/{found.id}/events" if found.finished_at is None else None,
        events=EVENTS,
        beside_torch=_beside_torch(result), doubts=doubts_in(result), chart=_chart(found, trials),
        best_us=_best_us(trials), is_measured=any(t.status for t in trials), **table,
    )  # fmt: skip


def progress(run: TuningRunOut) -> dict[str, int]:
    """Return how many trials of a run are through, of how many that were planned, at most these.

    Confirmations come on top of what was planned.
    """
    through = sum(count for status, count in run.trials.items() if status not in OPEN)
    planned = max(run.planned_trials, 1)
    return {"planned": planned, "shown": min(through, planned)}


def _known_kernels(given: str | None) -> list[str]:
    known = list(kernels.KERNELS)
    return known if given is None or given in known else [given, *known]


def _result(run_id: str, store: Store) -> Mapping[str, Any]:
    """Return what a run found; nothing where its program cannot be looked at any more."""
    try:
        return get_result(run_id, store).result
    except TileError as error:
        if http_status(error) >= 500:
            raise
        return {}


def _by_time(trial: TrialOutline) -> tuple[bool, bool, float]:
    return trial.time_s is None, trial.protocol != "confirm", trial.time_s or 0.0


def _best_us(trials: Sequence[TrialOutline]) -> Mapping[str, float]:
    """Return the best time of each protocol: the two are not compared."""
    found: dict[str, float] = {}
    for t in trials:
        if t.status == "OK" and t.time_s is not None:
            found[t.protocol] = min(t.time_s * 1e6, found.get(t.protocol, t.time_s * 1e6))
    return found


def _causes(trials: Sequence[TrialOutline]) -> list[tuple[str, str, int]]:
    """Return status, cause and count of trials, the most frequent first."""
    counted = Counter(
        (t.status or t.state, "" if t.status == "OK" else first_line(t.detail)) for t in trials
    )
    return [(status, cause, count) for (status, cause), count in counted.most_common(40)]


def _beside_torch(result: Mapping[str, Any]) -> Markup | None:
    """Return the bars of default, recommendation, best and torch; None: nothing to compare."""
    found = {name: result.get(name) for name in ("default", "recommended", "best")}
    known = {n: c for n, c in found.items() if c is not None and c.get("latency_us")}
    protocols = {c.get("protocol") for c in known.values()}
    if not known or len(protocols) > 1:  # one thread and all threads are not compared
        return None
    rows = [Bar(n, c["latency_us"], _bar_text(c), f"bar {n}") for n, c in known.items()]
    torch_us = known["best"].get("reference_latency_us") if "best" in known else None
    if torch_us:
        rows.insert(0, Bar("torch", torch_us, f"{micro(torch_us)} µs", "bar torch"))
    return bars("Time per call: torch, default, recommended and best config", rows)


def _bar_text(candidate: Mapping[str, Any]) -> str:
    ratio = candidate.get("ratio_to_reference")
    against = "" if ratio is None else f" ({times(ratio)} torch)"
    return f"{micro(candidate['latency_us'])} µs{against}"


def _chart(run: TuningRunOut, trials: Sequence[TrialOutline]) -> Markup | None:
    """Return the best time over the trials of one protocol, None where nothing was measured."""
    good = [t for t in trials if t.status == "OK" and t.time_s]
    protocol = "screen" if any(t.protocol == "screen" for t in good) else "confirm"
    points, across = [], dict[str, float | None]()
    own = [t for t in trials if t.protocol == protocol and t.status is not None]
    for turn, t in enumerate(own, 1):
        if t.status == "OK" and t.time_s:
            points.append(Point(turn, t.time_s * 1e6, t.config))
            if t.purpose in ("default", "recommended"):
                across[t.purpose] = t.time_s * 1e6
    if not points:
        return None
    planned = run.planned_trials if run.finished_at is None and protocol == "screen" else 0
    across = {name: across.get(name) for name in ("default", "recommended")}
    return best_over_trials(f"Best time over trials ({protocol})", points, across, planned)
