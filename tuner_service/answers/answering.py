"""One answer: what a question means, what is recommended, and how that goes over the wire."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from db.snapshot import Snapshot
from db.store import SqlStore
from recommender.recommendation import Recommendation
from tuner_service.answers.memory import Answer, Basis
from tuner_service.doubts import remeasurement
from tuner_service.errors import InvalidRequest
from tuner_service.questions import (
    Question,
    ranked_with_evidence,
    understand,
    understand_sent,
)
from tuner_service.remeasure import Remeasurement
from tuner_service.schemas import (
    QuestionIn,
    RecommendationOut,
    RecommendationRequest,
    RecommendationResponse,
    RemeasurementOut,
)
from tuner_service.settings import Settings

ASK_AGAIN_S = 30.0  # whether a worker is there by now that can measure again


def work_out(snapshot: Snapshot, settings: Settings, request: RecommendationRequest) -> Answer:
    """Return the answer to a question; what it rests on may have to be measured again.

    Raises:
        TileError: what ``questions.understand`` and ``questions.ranked_with_evidence`` raise.
    """
    store = snapshot.view()
    question = asked(store, request)
    ranked, evidence = ranked_with_evidence(store, question, top_k=request.top_k)
    again = remeasurement(store, settings, question, evidence)
    return _told(question, ranked, store, again)


def work_out_undoubted(snapshot: Snapshot, request: RecommendationRequest) -> Answer | None:
    """Return the same, None where something speaks against what was measured.

    It changes nothing in the database.

    Raises:
        TileError: see ``work_out``.
    """
    store = snapshot.view()
    question = asked(store, request)
    ranked, evidence = ranked_with_evidence(store, question, top_k=request.top_k)
    if evidence.best is not None and evidence.best.doubts:
        return None
    return _told(question, ranked, store, None)


def _told(
    question: Question,
    ranked: Sequence[Recommendation],
    store: Snapshot,
    again: Remeasurement | None,
) -> Answer:
    response = RecommendationResponse(
        workload=question.workload.as_dict(),
        workload_key=question.workload.key,
        hardware=question.hardware.name,
        hardware_key=question.hardware.key,
        hardware_asked_for=question.asked_for or None,
        recommendations=[to_wire(question, i + 1, r) for i, r in enumerate(ranked)],
        remeasurement=None if again is None else RemeasurementOut(**asdict(again)),
        **_of_table(question),
    )
    body = response.model_dump_json().encode()
    is_open = again is not None and again.state == "needed"
    until = time.monotonic() + ASK_AGAIN_S if is_open else math.inf
    kernel = question.workload.kernel if question.sent is None else "program"
    workload, near = question.workload, frozenset(store.looked_at)
    basis = Basis(workload.kernel, workload, near, store.reach)
    return Answer(body, kernel, ranked[0].source, basis, until)


def _of_table(question: Question) -> dict[str, Any]:
    if question.sent is None:
        return {}
    table = question.sent.table
    return {"legal": table.legal, "enumerated": table.enumerated, "notes": list(table.notes)}


def asked(store: SqlStore, request: QuestionIn) -> Question:
    """Return what a request asks, about a kernel of the library or a program that was sent.

    Raises:
        InvalidRequest: both are named, or none, or knobs of a library kernel are fixed (SV901).
        TileError: what ``questions.understand`` and ``questions.understand_sent`` raise.
    """
    if (request.kernel is None) == (request.program is None):
        found = "both" if request.program else "none"
        raise InvalidRequest(message=f"expected either kernel or program, found {found}")
    if request.program is not None:
        return understand_sent(
            store, request.program, request.problem, threads=request.threads,
            hardware=request.hardware, fixed=request.fixed or {},
        )  # fmt: skip
    if request.fixed:
        raise InvalidRequest(message="expected `fixed` with a program, found it with a kernel")
    assert request.kernel is not None
    return understand(
        store, request.kernel, request.problem, threads=request.threads, hardware=request.hardware
    )


def to_wire(question: Question, rank: int, r: Recommendation) -> RecommendationOut:
    """Return a recommendation as it goes over the wire."""
    work_flop = question.work_flop
    low_s, high_s = r.interval_s
    return RecommendationOut(
        rank=rank,
        config=dict(r.config.items_),
        source=r.source,
        latency_us=r.time_s * 1e6,
        interval_us=(low_s * 1e6, high_s * 1e6),
        gflops=work_flop / r.time_s / 1e9,
        confidence=r.confidence,
        distance=r.distance,
        bound_by=r.bound_by,
        rationale=r.rationale,
        is_stale=r.is_stale,
        doubts=list(r.doubts),
        terms_us={name: s * 1e6 for name, s in r.terms_s.items()},
    )
