"""Answers: recommendations, from memory while what they rest on stays as it is.

A cold answer costs tens of milliseconds of one core, so each question is worked out once however
many ask it, on as many threads as there are cores, and a bounded number of questions wait.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any

import anyio
from anyio.to_thread import run_sync

from db.snapshot import Snapshot
from db.store import SqlStore
from recommender.recommend import Recommendation
from tuner_service.drifting import doubt_of
from tuner_service.errors import InvalidRequest, Overloaded
from tuner_service.metrics import Metrics
from tuner_service.questions import (
    Evidence,
    Question,
    ranked_with_evidence,
    understand,
    understand_sent,
)
from tuner_service.remeasure import Doubt, Remeasurement, follow_up
from tuner_service.schemas import (
    QuestionIn,
    RecommendationOut,
    RecommendationRequest,
    RecommendationResponse,
    RemeasurementOut,
)
from tuner_service.settings import Settings

FRESH_S = 0.1  # an answer from memory is at most so far behind the database
MAX_REMEMBERED = 4096
ASK_AGAIN_S = 30.0  # whether a worker is there by now that can measure again
MAX_WAITING = 64  # questions that are worked out, or wait for it
# Who is refused and asks again at once would leave the working threads no interpreter lock: beside
# 2,200 refusals/s no answer at all was worked out in 6 s (measured on 2 cores).
REFUSE_AFTER_S = 0.25


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it goes over the wire, and what the metrics say of it."""

    body: bytes
    kernel: str
    source: str
    until: float = math.inf  # on the monotonic clock


class Answers:
    """Answers of one process."""

    def __init__(self, store: SqlStore, metrics: Metrics, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._known: OrderedDict[str, Answer] = OrderedDict()
        self._asked: dict[str, asyncio.Task[Answer]] = {}
        self._cores = anyio.CapacityLimiter(os.cpu_count() or 1)
        self._generation: tuple[object, ...] = ()
        self._snapshot = Snapshot(store)
        self._checked_at = -FRESH_S

    async def of(self, request: RecommendationRequest) -> bytes:
        """Return the JSON of the ``RecommendationResponse`` to a question.

        Raises:
            Overloaded: too many other questions wait (SV923).
            TileError: what ``questions.understand`` and ``questions.answer`` raise.
        """
        if time.monotonic() >= self._checked_at + FRESH_S:
            await self._refresh()
        key = request.model_dump_json()
        found = self._known.get(key)
        if found is None or found.until < time.monotonic():
            found = await self._work_out(key, request)
        else:
            self._known.move_to_end(key)
        self._metrics.recommendation(found.kernel, found.source)
        return found.body

    async def _refresh(self) -> None:
        """Forget all answers if there is anything new that they might rest on."""
        self._checked_at = time.monotonic()
        generation = await run_sync(self._store.generation)
        if generation != self._generation:
            self._generation, self._snapshot = generation, Snapshot(self._store)
            self._known.clear()
            self._asked.clear()  # those who wait get what they asked for; it is not remembered

    async def _work_out(self, key: str, request: RecommendationRequest) -> Answer:
        task = self._asked.get(key)
        if task is None:
            if len(self._asked) >= MAX_WAITING:
                await asyncio.sleep(REFUSE_AFTER_S)
                raise Overloaded(limit=MAX_WAITING)
            task = asyncio.create_task(self._compute(key, request))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen
            self._asked[key] = task
        return await asyncio.shield(task)  # a client that leaves takes nobody's answer with it

    async def _compute(self, key: str, request: RecommendationRequest) -> Answer:
        generation = self._generation
        try:
            made = await run_sync(
                _answer, self._snapshot, self._settings, request, limiter=self._cores
            )
        finally:
            if self._asked.get(key) is asyncio.current_task():
                del self._asked[key]
        if generation == self._generation:
            self._known[key] = made
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return made


def _answer(store: SqlStore, settings: Settings, request: RecommendationRequest) -> Answer:
    question = asked(store, request)
    ranked, evidence = ranked_with_evidence(store, question, top_k=request.top_k)
    again = remeasurement(store, settings, question, evidence)
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
    return Answer(body, kernel, ranked[0].source, until)


def remeasurement(
    store: SqlStore, settings: Settings, question: Question, evidence: Evidence
) -> Remeasurement | None:
    """Return what becomes of doubts in what was measured for a question; None: there are none."""
    best = evidence.best
    if best is None or not best.doubts:
        return None
    if evidence.drift is not None:
        doubt = doubt_of(evidence.drift, best.config)
    else:
        doubt = Doubt(cause="stale", reasons=best.doubts, incumbents=(best.config,))
    return follow_up(store, settings, question, doubt)


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
        raise InvalidRequest(message="expected either kernel or program, found both or none")
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
        source=r.source,  # type: ignore[arg-type]  # one of recommend.SOURCES
        latency_us=r.time_s * 1e6,
        interval_us=(low_s * 1e6, high_s * 1e6),
        gflops=work_flop / r.time_s / 1e9,
        confidence=r.confidence,
        distance=r.distance,
        bound_by=r.bound_by,
        rationale=r.rationale,
        is_stale=r.is_stale,
        doubts=list(r.doubts),
    )
