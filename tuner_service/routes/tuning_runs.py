"""/v1/tuning-runs: queue, watch, pause, resume, extend, cancel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Annotated, Literal

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Header, Path, Query, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from db.errors import DatabaseLocked, DatabaseUnreachable
from db.records import RunRecord, TrialRecord
from db.store import SqlStore
from tuner_service.answers.answering import asked
from tuner_service.jobs import Effort, submit
from tuner_service.log_names import logged_kernel
from tuner_service.questions import Question
from tuner_service.report import partial_result
from tuner_service.routes.context import (
    BIGINT,
    AppAnswers,
    AppSettings,
    CreatedBy,
    Cursor,
    IdempotencyKey,
    Limit,
    Sender,
    Stay,
    Store,
    Streams,
    page_of,
)
from tuner_service.run_changes import extend
from tuner_service.schemas import (
    Amendment,
    Extension,
    ResultOut,
    RunState,
    TrialOut,
    TrialPage,
    TuningRunOut,
    TuningRunPage,
    TuningRunRequest,
)
from tuner_service.settings import Settings
from tuner_service.web.problems import documented
from tuner_service.web.streams import NothingFollows

router = APIRouter(prefix="/tuning-runs", tags=["tuning runs"])
RunId = Annotated[str, Path(max_length=64)]
EVENT_POLL_S = 0.3
AWAY_S = 1.0  # between two questions to a database that is away
MAX_EVENT_ID = 2**62


@router.post(
    "",
    status_code=202,
    responses={
        200: {"model": TuningRunOut, "description": "The key came before"},
        **documented(404, 413, 422),
    },
)
async def create_tuning_run(
    request: TuningRunRequest,
    response: Response,
    store: Store,
    settings: AppSettings,
    answers: AppAnswers,
    sender: Sender,
    idempotency_key: IdempotencyKey = None,
) -> TuningRunOut:
    """Queue a tuning run; the coordinator works on it."""

    def queue() -> tuple[TuningRunOut, bool]:
        question, effort = understood(store, settings, request)
        run, is_new = submit(
            store, question, effort, idempotency_key=idempotency_key, created_by=sender.key_name
        )
        return to_wire(store, run), is_new

    run, is_new = await answers.looked_at(queue, program=request.program is not None)
    response.headers["Location"] = f"/v1/tuning-runs/{run.id}"
    if not is_new:
        response.status_code = 200
    return run


@router.get("", responses=documented(404, 422))
def list_tuning_runs(
    store: Store,
    state: RunState | None = None,
    kernel: Annotated[str | None, Query(max_length=64)] = None,
    group: Annotated[str | None, Query(max_length=36)] = None,
    created_by: CreatedBy = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> TuningRunPage:
    """Return runs, newest first."""
    kernel = None if kernel is None else logged_kernel(kernel)
    runs, more = page_of(
        f"runs:{state}:{kernel}:{group}:{created_by!r}", limit, cursor,
        lambda count, last: store.runs.list(
            state=state, kernel=kernel, group=group, created_by=created_by, limit=count, before=last
        ),
        most=BIGINT,
    )  # fmt: skip
    return TuningRunPage(items=all_to_wire(store, runs), next_cursor=more)


@router.get("/{run_id:name}", responses=documented(404))
def get_tuning_run(run_id: RunId, store: Store) -> TuningRunOut:
    """Return a run: state, trials by status, result."""
    return to_wire(store, store.runs.get(run_id))


@router.get("/{run_id:name}/trials", responses=documented(404))
def list_trials(
    run_id: RunId,
    store: Store,
    state: Literal["pending", "leased", "done", "failed", "cancelled"] | None = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="how many items at most")] = 200,
    cursor: Cursor = None,
) -> TrialPage:
    """Return the trials of a run in the order in which they were proposed."""
    run = store.runs.get(run_id)
    found, more = page_of(
        f"trials:{run_id}:{state}", limit, cursor,
        lambda count, last: store.trials.page(run.id, state=state, limit=count, after=last),
        most=BIGINT,
    )  # fmt: skip
    return TrialPage(items=[trial_to_wire(t) for t in found], next_cursor=more)


@router.get("/{run_id:name}/result", responses=documented(404))
def get_result(run_id: RunId, store: Store) -> ResultOut:
    """Return what a run has found so far: default, recommended and best, trials by status."""
    run = store.runs.get(run_id)
    found = dict(partial_result(store, run))
    return ResultOut(state=run.state, is_final=run.is_finished, result=found)  # type: ignore[arg-type]  # the database closes the set


@router.patch("/{run_id:name}", responses=documented(404, 409, 413, 422))
def amend_tuning_run(run_id: RunId, amendment: Amendment, store: Store) -> TuningRunOut:
    """Change the priority or the ceiling of an open run."""
    return to_wire(store, store.runs.amend(run_id, **amendment.model_dump()))


@router.post("/{run_id:name}:pause", status_code=202, responses=documented(404, 409))
def pause_tuning_run(run_id: RunId, store: Store) -> TuningRunOut:
    """Pause a run: what is under way ends and counts, then its state is PAUSED."""
    return to_wire(store, store.runs.pause(run_id))


@router.post("/{run_id:name}:resume", status_code=202, responses=documented(404, 409))
def resume_tuning_run(run_id: RunId, store: Store) -> TuningRunOut:
    """Let a paused run go on."""
    return to_wire(store, store.runs.resume(run_id))


@router.post(
    "/{run_id:name}:extend",
    status_code=202,
    responses={
        200: {"model": TuningRunOut, "description": "The key came before"},
        **documented(404, 409, 413, 422),
    },
)
def extend_tuning_run(
    run_id: RunId,
    extension: Extension,
    response: Response,
    store: Store,
    idempotency_key: IdempotencyKey = None,
) -> TuningRunOut:
    """Give a run more trials and seconds; a finished one is queued again with all it knows."""
    extended, is_new = extend(
        store, run_id,
        trials=extension.trials, seconds=extension.seconds, idempotency_key=idempotency_key,
    )  # fmt: skip
    if not is_new:
        response.status_code = 200
    return to_wire(store, extended)


@router.post("/{run_id:name}:cancel", status_code=202, responses=documented(404, 409))
def cancel_tuning_run(run_id: RunId, store: Store) -> TuningRunOut:
    """Cancel an open run; what was measured stays."""
    return to_wire(store, store.runs.cancel(run_id))


LastEventId = Annotated[int, Header(ge=0, le=MAX_EVENT_ID)]


def _run(
    run_id: RunId, store: Store, streams: Streams, last_event_id: LastEventId = 0
) -> RunRecord:
    """Look the run up before the stream begins: after that no status can be sent.

    Raises:
        NothingFollows: who resumes has all of a run that has ended.
    """
    streams.check()
    run = store.runs.get(run_id)
    if last_event_id and run.is_finished and not store.runs.events(run.id, after=last_event_id):
        raise NothingFollows
    return run


@router.get(
    "/{run_id:name}/events",
    response_class=EventSourceResponse,
    responses={
        204: {"description": "The run has ended, and nothing follows"},
        **documented(404, 422),
    },
)
async def stream_events(
    run: Annotated[RunRecord, Depends(_run)],
    store: Store,
    streams: Streams,
    may_stay: Stay,
    last_event_id: LastEventId = 0,
) -> AsyncIterator[ServerSentEvent]:
    """Stream what happens in a run until it is finished; resume with Last-Event-ID.

    While the database is away the stream waits for it. It ends early where the service stops, and
    where the key of who follows is revoked or expires.
    """
    last = last_event_id
    with streams.place():
        while not streams.is_ending and await may_stay():
            try:
                events = await run_sync(partial(store.runs.events, run.id, after=last))
                now = await run_sync(partial(store.runs.get, run.public_id))
            except (DatabaseLocked, DatabaseUnreachable):
                await anyio.sleep(AWAY_S)
                continue
            for event in events:
                last = event.id
                data = {"at": event.at.isoformat(), **event.payload}
                yield ServerSentEvent(id=str(event.id), event=event.kind, data=data)
            if run.is_finished and not events:
                return
            if not events:
                await anyio.sleep(EVENT_POLL_S)
            run = now


def understood(
    store: SqlStore, settings: Settings, request: TuningRunRequest
) -> tuple[Question, Effort]:
    """Return what a request asks for, the settings' limits where it names none."""
    question = asked(store, request)
    effort = Effort(
        max_trials=request.max_trials or settings.max_trials,
        time_limit_s=request.time_limit_s or settings.time_limit_s,
        ceiling_s=request.ceiling_s,
        priority=request.priority,
        seed=request.seed,
        waits=request.wait_for_hardware,
        on_this_host=settings.measures_here,
    )
    return question, effort


def to_wire(store: SqlStore, run: RunRecord) -> TuningRunOut:
    """Return a run as it goes over the wire."""
    return all_to_wire(store, [run])[0]


def all_to_wire(store: SqlStore, runs: Sequence[RunRecord]) -> list[TuningRunOut]:
    """Return runs as they go over the wire; their trials are counted together."""
    counts = store.trials.counts_by_status([run.id for run in runs])
    return [_run_out(run, counts[run.id]) for run in runs]


def _run_out(run: RunRecord, trials: dict[str, int]) -> TuningRunOut:
    return TuningRunOut(
        id=run.public_id,
        group=run.group,
        created_by=run.created_by,
        cause=run.cause,  # type: ignore[arg-type]  # one of db.records.CAUSES
        state=run.state,  # type: ignore[arg-type]  # the database closes the set
        workload=run.workload.as_dict(),
        workload_key=run.workload.key,
        hardware=run.hardware.name,
        hardware_key=run.hardware.key,
        program_digest=run.program_digest,
        toolchain_key=run.toolchain.key,
        spec=dict(run.spec),
        trials=trials,
        planned_trials=run.planned_trials,
        priority=run.priority,
        ceiling_s=run.ceiling_s,
        active_s=run.active_s,
        device_s=run.device_s,
        round=run.round,
        pause_requested=run.pause_requested,
        cancel_requested=run.cancel_requested,
        result=None if run.result is None else dict(run.result),
        error=run.error,
        created_at=run.created_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
    )


def trial_to_wire(trial: TrialRecord) -> TrialOut:
    """Return a trial as it goes over the wire."""
    measured = trial.measurement
    return TrialOut(
        sequence=trial.sequence,
        config=dict(trial.config.items_),
        protocol=trial.protocol.value,
        purpose=trial.purpose,
        state=trial.state,
        attempt=trial.attempt,
        predicted_us=_us(trial.predicted_s),
        status=measured.status.value if measured else None,
        latency_us=_us(measured.time_s) if measured else None,
        reference_latency_us=_us(measured.reference_time_s) if measured else None,
        detail=(measured.detail if measured else trial.last_error) or None,
        measurement_id=trial.measurement_id,
    )


def _us(time_s: float | None) -> float | None:
    return None if time_s is None else time_s * 1e6
