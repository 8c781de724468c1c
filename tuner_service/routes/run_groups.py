"""/v1/tuning-runs:batch and /v1/run-groups: many workloads queued, watched and ended together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Response

from db.records import RunRecord
from db.store import SqlStore
from tilecore.errors import TileError
from tuner_service.errors import FaultyParts, is_of_request
from tuner_service.jobs import Effort, check_offered, submit_group
from tuner_service.questions import Question
from tuner_service.routes.context import AppAnswers, AppSettings, IdempotencyKey, Sender, Store
from tuner_service.routes.tuning_runs import all_to_wire, understood
from tuner_service.run_changes import change_group, extend_group
from tuner_service.schemas import Amendment, Extension, RunGroupOut, TuningRunBatch
from tuner_service.sent_programs import LIMIT_S
from tuner_service.settings import Settings
from tuner_service.web.problems import documented
from workers.errors import ProgramTooCostly

router = APIRouter(tags=["run groups"])
GroupId = Annotated[str, Path(max_length=64)]


@router.post(
    "/tuning-runs:batch",
    status_code=202,
    responses={
        200: {"model": RunGroupOut, "description": "The key came before"},
        **documented(404, 413, 422),
    },
)
async def create_run_group(
    batch: TuningRunBatch,
    response: Response,
    store: Store,
    settings: AppSettings,
    answers: AppAnswers,
    sender: Sender,
    idempotency_key: IdempotencyKey = None,
) -> RunGroupOut:
    """Queue several tuning runs as one group, all or none."""

    def queue() -> tuple[RunGroupOut, bool]:
        asked = _understood(store, settings, batch)
        runs, is_new = submit_group(
            store, asked, idempotency_key=idempotency_key, created_by=sender.key_name
        )
        return _to_wire(store, runs), is_new

    has_program = any(run.program is not None for run in batch.runs)
    group, is_new = await answers.looked_at(queue, program=has_program)
    response.headers["Location"] = f"/v1/run-groups/{group.id}"
    if not is_new:
        response.status_code = 200
    return group


@router.get("/run-groups/{group_id:name}", responses=documented(404))
def get_run_group(group_id: GroupId, store: Store) -> RunGroupOut:
    """Return the progress and the results of a group."""
    return _to_wire(store, store.runs.of_group(group_id))


@router.post("/run-groups/{group_id:name}:pause", status_code=202, responses=documented(404))
def pause_run_group(group_id: GroupId, store: Store) -> RunGroupOut:
    """Pause the open runs of a group."""
    return _each(store, group_id, store.runs.pause)


@router.post("/run-groups/{group_id:name}:resume", status_code=202, responses=documented(404))
def resume_run_group(group_id: GroupId, store: Store) -> RunGroupOut:
    """Let the paused runs of a group go on."""
    return _each(store, group_id, store.runs.resume)


@router.post("/run-groups/{group_id:name}:cancel", status_code=202, responses=documented(404))
def cancel_run_group(group_id: GroupId, store: Store) -> RunGroupOut:
    """Cancel the open runs of a group; what was measured stays."""
    return _each(store, group_id, store.runs.cancel)


@router.post(
    "/run-groups/{group_id:name}:extend",
    status_code=202,
    responses={
        200: {"model": RunGroupOut, "description": "The key came before"},
        **documented(404, 409, 413),
    },
)
def extend_run_group(
    group_id: GroupId,
    extension: Extension,
    response: Response,
    store: Store,
    idempotency_key: IdempotencyKey = None,
) -> RunGroupOut:
    """Give each run of a group that is not cancelled more trials and seconds, all or none."""
    runs, is_new = extend_group(
        store,
        group_id,
        trials=extension.trials,
        seconds=extension.seconds,
        idempotency_key=idempotency_key,
    )
    if not is_new:
        response.status_code = 200
    return _to_wire(store, runs)


@router.patch("/run-groups/{group_id:name}", responses=documented(404, 413))
def amend_run_group(group_id: GroupId, amendment: Amendment, store: Store) -> RunGroupOut:
    """Change the priority or the ceiling of the open runs of a group."""
    return _each(store, group_id, partial(store.runs.amend, **amendment.model_dump()))


def _understood(
    store: SqlStore, settings: Settings, batch: TuningRunBatch
) -> list[tuple[Question, Effort]]:
    """Return what each run is to do; all that cannot be queued are told at once.

    Raises:
        FaultyParts: some cannot be.
        ProgramTooCostly: looking at all programs takes too long (WK710).
    """
    found, faults, until = [], [], time.monotonic() + LIMIT_S
    for number, request in enumerate(batch.runs):
        if request.program is not None and time.monotonic() > until:
            raise ProgramTooCostly(
                limit_s=LIMIT_S, limit="with all others", found="found that they take longer"
            )
        try:
            question, effort = understood(store, settings, request)
            check_offered(store, question, effort)
        except TileError as error:
            if not is_of_request(error):
                raise
            faults.append((f"/body/runs/{number}", error))
        else:
            found.append((question, effort))
    if faults:
        raise FaultyParts(faults)
    return found


def _each(store: SqlStore, group_id: str, change: Callable[[str], RunRecord]) -> RunGroupOut:
    return _to_wire(store, change_group(store, group_id, change))


def _to_wire(store: SqlStore, runs: Sequence[RunRecord]) -> RunGroupOut:
    shown = all_to_wire(store, runs)
    trials: Counter[str] = Counter()
    for run in shown:
        trials.update(run.trials)
    return RunGroupOut(
        id=str(runs[0].group),
        is_finished=all(run.is_finished for run in runs),
        runs_by_state=dict(Counter(run.state for run in runs)),
        trials=dict(trials),
        planned_trials=sum(run.planned_trials for run in runs),
        runs=shown,
    )
