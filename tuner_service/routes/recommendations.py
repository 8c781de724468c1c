"""POST /v1/recommendations: which tile config for this workload on this device?"""

from __future__ import annotations

from fastapi import APIRouter

from db.store import SqlStore
from recommender.recommend import Recommendation
from tuner_service.jobs import Question, answer, understand
from tuner_service.metrics import Metrics
from tuner_service.problems import documented
from tuner_service.routes.context import AppMetrics, Store
from tuner_service.schemas import (
    BatchRequest,
    BatchResponse,
    RecommendationOut,
    RecommendationRequest,
    RecommendationResponse,
)

router = APIRouter(tags=["recommendations"])


@router.post("/recommendations", responses=documented(404, 413, 422))
def create_recommendation(
    request: RecommendationRequest, store: Store, metrics: AppMetrics
) -> RecommendationResponse:
    """Return ranked tile configs at once: measured here before, or predicted."""
    return _respond(store, metrics, request)


@router.post("/recommendations:batch", responses=documented(404, 413, 422))
def create_recommendations(
    request: BatchRequest, store: Store, metrics: AppMetrics
) -> BatchResponse:
    """Answer several questions at once; one that cannot be understood fails the whole batch."""
    return BatchResponse(responses=[_respond(store, metrics, r) for r in request.requests])


def _respond(
    store: SqlStore, metrics: Metrics, request: RecommendationRequest
) -> RecommendationResponse:
    question = understand(
        store,
        request.kernel,
        request.problem,
        threads=request.threads,
        hardware=request.hardware,
    )
    ranked = answer(store, question, top_k=request.top_k)
    metrics.recommendation(question.workload.kernel, ranked[0].source)
    return RecommendationResponse(
        workload=question.workload.as_dict(),
        workload_key=question.workload.key,
        hardware=question.hardware.name,
        hardware_key=question.hardware.key,
        hardware_asked_for=question.asked_for or None,
        recommendations=[to_wire(question, i + 1, r) for i, r in enumerate(ranked)],
    )


def to_wire(question: Question, rank: int, r: Recommendation) -> RecommendationOut:
    """Return a recommendation as it goes over the wire."""
    work_flop = question.definition.work_flop(dict(question.workload.problem))
    low_s, high_s = r.interval_s
    return RecommendationOut(
        rank=rank,
        config=dict(r.config.items_),
        source=r.source,  # type: ignore[arg-type]  # one of recommend.SOURCES
        latency_us=r.time_s * 1e6,
        interval_us=(low_s * 1e6, high_s * 1e6),
        gflops=work_flop / r.time_s / 1e9,
        confidence=r.confidence,
        distance=r.distance,
        bound_by=r.bound_by,
        rationale=r.rationale,
        is_stale=r.is_stale,
    )
