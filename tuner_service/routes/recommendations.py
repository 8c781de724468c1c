"""POST /v1/recommendations and /v1/dispatch-tables: which tile configs for what, on a device?"""

from __future__ import annotations

from fastapi import APIRouter, Response

from tuner_service.dispatch_schemas import DispatchTableOut, DispatchTableRequest
from tuner_service.problems import documented
from tuner_service.routes.context import AppAnswers
from tuner_service.schemas import (
    BatchRequest,
    BatchResponse,
    RecommendationRequest,
    RecommendationResponse,
)

router = APIRouter(tags=["recommendations"])


@router.post(
    "/recommendations",
    response_model=RecommendationResponse,
    responses=documented(404, 413),
)
async def create_recommendation(request: RecommendationRequest, answers: AppAnswers) -> Response:
    """Return ranked tile configs at once: measured here before, or predicted."""
    return _json(await answers.of(request))


@router.post("/recommendations:batch", response_model=BatchResponse, responses=documented(404, 413))
async def create_recommendations(request: BatchRequest, answers: AppAnswers) -> Response:
    """Answer several questions at once; one that cannot be understood fails the whole batch."""
    bodies = await answers.of_all(request.requests)
    return _json(b'{"responses":[' + b",".join(bodies) + b"]}")


@router.post("/dispatch-tables", response_model=DispatchTableOut, responses=documented(404, 413))
async def create_dispatch_table(request: DispatchTableRequest, answers: AppAnswers) -> Response:
    """Return the fewest configs for dynamic shapes, and which serves which, by what is known."""
    return _json(await answers.of(request))


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
