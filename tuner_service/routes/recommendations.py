"""POST /v1/recommendations and /v1/dispatch-tables: which tile configs for what, on a device?"""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response

from tuner_service.dispatch.answers import WAITING, TuningOrder
from tuner_service.dispatch.schemas import (
    DispatchTableOut,
    DispatchTableRequest,
    DispatchTuningOut,
    DispatchTuningRequest,
)
from tuner_service.jobs import Effort
from tuner_service.routes.context import AppAnswers, AppSettings, IdempotencyKey, Sender
from tuner_service.schemas import (
    BatchRequest,
    BatchResponse,
    RecommendationRequest,
    RecommendationResponse,
)
from tuner_service.web.access import Needs
from tuner_service.web.problems import documented

PATH = "/recommendations"
router = APIRouter(tags=["recommendations"])
ASK_AGAIN_S = 2


@router.post(
    PATH,
    response_model=RecommendationResponse,
    responses=documented(404, 413),
)
async def create_recommendation(request: RecommendationRequest, answers: AppAnswers) -> Response:
    """Return ranked tile configs at once: measured here before, or predicted."""
    return _json(await answers.of(request))  # what can be read is answered by ``ShortWay``


@router.post("/recommendations:batch", response_model=BatchResponse, responses=documented(404, 413))
async def create_recommendations(request: BatchRequest, answers: AppAnswers) -> Response:
    """Answer several questions at once; one that cannot be understood fails the whole batch."""
    bodies = await answers.of_all(request.requests)
    return _json(b'{"responses":[' + b",".join(bodies) + b"]}")


@router.post("/dispatch-tables", response_model=DispatchTableOut, responses=documented(404, 413))
async def create_dispatch_table(request: DispatchTableRequest, answers: AppAnswers) -> Response:
    """Return the fewest configs for dynamic shapes, and which serves which, by what is known."""
    return _json(await answers.of(request))


@router.post(
    "/dispatch-tables:tune",
    response_model=DispatchTableOut,
    responses={
        202: {"model": DispatchTuningOut, "description": "It is being measured: ask again"},
        **documented(404, 409, 413),
    },
    dependencies=[Depends(Needs("tune"))],
)
async def tune_dispatch_table(
    request: DispatchTuningRequest,
    answers: AppAnswers,
    settings: AppSettings,
    sender: Sender,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Have the shapes of a table measured by the workers; the same request again has the table.

    Each shape is tuned, then what may serve several shapes is measured at all of them, side by
    side. The same request finds the same runs, whoever sends it; another Idempotency-Key begins
    anew.
    """
    effort = Effort(
        max_trials=request.max_trials,
        time_limit_s=request.time_limit_s or settings.time_limit_s,
        ceiling_s=request.ceiling_s,
        priority=request.priority,
        seed=request.seed,
        waits=request.wait_for_hardware,
        on_this_host=settings.measures_here,
    )
    order = TuningOrder(
        request=request, effort=effort, idempotency_key=idempotency_key,
        created_by=sender.key_name,
    )  # fmt: skip
    found = await answers.advance(order)
    if found.source != WAITING:
        return _json(found.body)
    again = {"Retry-After": str(ASK_AGAIN_S)}
    return Response(found.body, 202, again, media_type="application/json")


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
