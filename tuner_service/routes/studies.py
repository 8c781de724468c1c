"""/v1/studies: tune a kernel of your own. You measure; the service says what to try next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Response

from db.records import StudyRecord, StudyTrial, ToldConfig
from db.store import SqlStore
from recommender.external import ExternalSpace
from tuner_service.errors import InvalidRequest
from tuner_service.hardware import find_hardware
from tuner_service.questions import understand
from tuner_service.routes.context import (
    BIGINT,
    CreatedBy,
    Cursor,
    Engine,
    IdempotencyKey,
    Limit,
    Sender,
    Store,
    page_of,
)
from tuner_service.studies.schemas import (
    AddRequest,
    Outcome,
    StudyOut,
    StudyPage,
    StudyRequest,
    StudyTrialOut,
    StudyTrialPage,
    SuggestRequest,
    TellRequest,
)
from tuner_service.studies.spaces import KernelSpace, written_down
from tuner_service.web.problems import documented

router = APIRouter(prefix="/studies", tags=["studies"])
StudyId = Annotated[str, Path(max_length=64)]
TrialId = Annotated[int, Path(ge=1, le=2**62)]


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": StudyOut, "description": "The key came before"},
        **documented(404, 413),
    },
)
def create_study(
    request: StudyRequest,
    response: Response,
    store: Store,
    engine: Engine,
    sender: Sender,
    idempotency_key: IdempotencyKey = None,
) -> StudyOut:
    """Describe parameters, conditions and budget of a search."""
    space = _space(store, request)
    hardware = space.space.hardware.name if isinstance(space, KernelSpace) else request.hardware
    study, is_new = engine.create(
        space,
        name=request.name,
        hardware=hardware,
        strategy=request.strategy,
        max_trials=request.max_trials,
        seed=request.seed,
        created_by=sender.author,
        idempotency_key=idempotency_key,
        warm_start=request.warm_start,
        problem=None if request.kernel else request.problem,
    )
    response.headers["Location"] = f"/v1/studies/{study.public_id}"
    if not is_new:
        response.status_code = 200
    return _to_wire(store, study)


@router.get("")
def list_studies(
    store: Store, created_by: CreatedBy = None, limit: Limit = 50, cursor: Cursor = None
) -> StudyPage:
    """Return studies, newest first."""
    found, more = page_of(
        f"studies:{created_by!r}", limit, cursor,
        lambda count, last: store.studies.list(created_by=created_by, limit=count, before=last),
        most=BIGINT,
    )  # fmt: skip
    return StudyPage(items=_all_to_wire(store, found), next_cursor=more)


@router.get("/{study_id:name}", responses=documented(404))
def get_study(study_id: StudyId, store: Store) -> StudyOut:
    """Return a study: trials by state, and the fastest configuration so far."""
    return _to_wire(store, store.studies.get(study_id))


@router.get("/{study_id:name}/trials", responses=documented(404))
def list_study_trials(
    study_id: StudyId, store: Store, limit: Limit = 50, cursor: Cursor = None
) -> StudyTrialPage:
    """Return the trials of a study in the order in which they were given out."""
    study = store.studies.get(study_id)
    found, more = page_of(
        f"study:{study_id}", limit, cursor,
        lambda count, last: store.studies.trials(study, limit=count, after=last or 0),
        most=BIGINT,
    )  # fmt: skip
    return StudyTrialPage(items=[_trial(t) for t in found], next_cursor=more)


@router.post("/{study_id:name}/trials:suggest", responses=documented(404, 409, 413))
def suggest_trials(
    study_id: StudyId, request: SuggestRequest, store: Store, engine: Engine
) -> StudyTrialPage:
    """Lease configurations to a worker; an empty list: everything is told or with other workers.

    The same worker gets what it holds already again. While the study counts leased trials, ask
    again: those that others lose come back.
    """
    study = store.studies.get(study_id)
    given = engine.suggest(study, request.worker, request.count, request.lease_s)
    return StudyTrialPage(items=[_trial(t) for t in given], next_cursor=None)


@router.post(
    "/{study_id:name}/trials/{trial_id:name}:complete", responses=documented(404, 409, 413)
)
def complete_trial(
    study_id: StudyId, trial_id: TrialId, request: TellRequest, store: Store
) -> StudyTrialOut:
    """Tell the times of a configuration (the median counts), or why it has none."""
    times_s, detail = _told(request)
    study = store.studies.get(study_id)
    told = store.studies.complete(study, trial_id, request.worker, times_s, detail)
    return _trial(told)


@router.post("/{study_id:name}/trials:add", responses=documented(404, 409, 413))
def add_trials(
    study_id: StudyId, request: AddRequest, store: Store, engine: Engine
) -> StudyTrialPage:
    """Tell what was measured elsewhere: the search learns from it, and asks for none of it.

    New configurations come on top of `max_trials`. What somebody holds is settled by this; what is
    known already stays as it is, so that the request may be sent again.
    """
    told = []
    for number, one in enumerate(request.trials):
        times_s, detail = _told(one, f"trials[{number}]: ")
        told.append(ToldConfig(config=one.config, times_s=times_s, detail=detail))
    found = engine.tell(store.studies.get(study_id), told, request.worker)
    return StudyTrialPage(items=[_trial(t) for t in found], next_cursor=None)


@router.post("/{study_id:name}:close", responses=documented(404))
def close_study(study_id: StudyId, store: Store) -> StudyOut:
    """Give out no more trials; what is under way may still be told."""
    return _to_wire(store, store.studies.close(study_id))


def _told(outcome: Outcome, where: str = "") -> tuple[Sequence[float], str]:
    """Return times in s and a detail; raises InvalidRequest where there are both or neither."""
    if bool(outcome.repeats_us) == bool(outcome.failure):
        found = "both" if outcome.failure else "none"
        message = f"{where}expected either repeats_us or failure, found {found}"
        raise InvalidRequest(message=message)
    times_s = [time_us / 1e6 for time_us in outcome.repeats_us or ()]
    return times_s, outcome.failure or outcome.detail


def _space(store: SqlStore, request: StudyRequest) -> ExternalSpace | KernelSpace:
    ways = ("parameters", "configurations", "t1", "kernel")
    given = [name for name in ways if getattr(request, name) is not None]
    if len(given) != 1:
        expected = "expected one of parameters, configurations, t1 and kernel"
        raise InvalidRequest(message=f"{expected}, found {' and '.join(given) or 'none'}")
    if request.kernel is not None:
        return _kernel_space(store, request, request.kernel)
    if request.threads:
        raise InvalidRequest(message="expected threads with kernel, found no kernel")
    if request.t1 is not None:
        return ExternalSpace.of_t1(request.t1)
    return written_down(
        request.parameters, request.configurations, request.conditions, request.default
    )


def _kernel_space(store: SqlStore, request: StudyRequest, kernel: str) -> KernelSpace:
    if request.conditions or request.default is not None:
        raise InvalidRequest(
            message="expected conditions and default with parameters, found kernel"
        )
    hardware = find_hardware(store, request.hardware or None).key  # one like it has other limits
    question = understand(
        store, kernel, request.problem or {}, threads=request.threads, hardware=hardware
    )
    return KernelSpace.of(store, question)


def _to_wire(store: Store, study: StudyRecord) -> StudyOut:
    return _all_to_wire(store, [study])[0]


def _all_to_wire(store: Store, studies: Sequence[StudyRecord]) -> list[StudyOut]:
    counts, best = store.studies.counts(studies), store.studies.best(studies)
    return [_one_to_wire(study, counts[study.id], best.get(study.id)) for study in studies]


def _one_to_wire(
    study: StudyRecord, counts: Mapping[str, int], best: StudyTrial | None
) -> StudyOut:
    return StudyOut(
        id=study.public_id,
        name=study.name,
        hardware=study.hardware,
        state=study.state,  # type: ignore[arg-type]  # the database closes the set
        strategy=study.strategy,
        seed=study.seed,
        max_trials=study.max_trials,
        kernel=study.space.get("kernel"),
        problem=study.space.get("problem"),
        learns_from=study.space.get("learns_from", []),
        space_size=study.space["size"],
        space_size_is_estimate=study.space.get("is_estimate", "sampled" in study.space),
        sampled=study.space.get("sampled"),
        notes=_notes(study),
        trials=dict(counts),
        best=None if best is None else _trial(best),
        created_by=study.created_by,
        created_at=study.created_at,
    )


def _notes(study: StudyRecord) -> list[str]:
    sampled = study.space.get("sampled")
    if sampled is None or study.strategy != "exhaustive":
        return []
    return [
        f"exhaustive: it ends with {sampled} configurations drawn at random and what is around "
        f"the fastest of them, not with all {study.space['size']}"
    ]


def _trial(trial: StudyTrial) -> StudyTrialOut:
    return StudyTrialOut(
        id=trial.id,
        config=dict(trial.config),
        state=trial.state,  # type: ignore[arg-type]  # the database closes the set
        worker=trial.worker,
        attempt=trial.attempt,
        lease_until=trial.lease_until,
        latency_us=None if trial.time_s is None else trial.time_s * 1e6,
        repeats_us=[time_s * 1e6 for time_s in trial.times_s],
        detail=trial.detail,
    )
