"""Re-measurement: an answer that rests on what may no longer hold is measured again, once.

The policy is in ARCHITECTURE.md ("What makes an answer doubtful").
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from db.errors import DatabaseError
from db.records import OPEN_STATES
from db.store import SqlStore
from tilecore.tile_config import TileConfig, digest
from tuner_service.jobs import Effort, submit
from tuner_service.questions import Question
from tuner_service.settings import Settings

log = structlog.get_logger()
PRIORITY = 1  # of the runs that the system queues: what people ask for goes before


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Why what was measured for a question may no longer hold.

    Attributes:
        cause: "stale" (another program, toolchain or driver) or "drift".
        reasons: in words.
        incumbents: configs that were best so far.
        name: tells one doubt about a question from the next; each is followed up once.
    """

    cause: str
    reasons: tuple[str, ...]
    incumbents: tuple[TileConfig, ...]
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remeasurement:
    """What becomes of a doubt: ``state`` is "queued" (``run`` is open) or "needed" (by people)."""

    cause: str
    reasons: tuple[str, ...]
    state: str
    detail: str
    run: str | None = None


def follow_up(
    store: SqlStore, settings: Settings, question: Question, doubt: Doubt
) -> Remeasurement:
    """Queue a run of low priority for a doubt, unless there was one, or say that one is needed."""
    try:
        state, detail, run = _follow_up(store, settings, question, doubt)
    except DatabaseError as error:  # answers do without
        log.warning("nothing queued", why=error.message)
        state, detail, run = "needed", error.message, None
    return Remeasurement(
        cause=doubt.cause, reasons=doubt.reasons, state=state, detail=detail, run=run
    )


def _follow_up(
    store: SqlStore, settings: Settings, question: Question, doubt: Doubt
) -> tuple[str, str, str | None]:
    key = _key(question, doubt)
    run = store.runs.with_key(key)
    if run is not None:
        if run.state in OPEN_STATES:
            return "queued", f"run {run.public_id} is {run.state}", run.public_id
        ended = f"run {run.public_id} measured again and ended as {run.state}"
        return "needed", ended, run.public_id
    if settings.retune == "off":
        return "needed", "TILECORE_RETUNE=off: the system queues no runs", None
    if not _has_worker(store, settings, question):
        return "needed", f"no worker with {question.hardware.name} is at work", None
    count = store.runs.count_caused()
    if count >= settings.retune_max_open:
        return "needed", f"{count} such runs are open, the limit", None
    effort = Effort(
        max_trials=settings.retune_trials, time_limit_s=settings.time_limit_s,
        priority=PRIORITY, on_this_host=settings.measures_here,
    )  # fmt: skip
    run, _ = submit(
        store, question, effort, idempotency_key=key, cause=doubt.cause,
        incumbents=doubt.incumbents,
    )  # fmt: skip
    log.info("queued again", run=run.public_id, cause=doubt.cause, why="; ".join(doubt.reasons))
    return "queued", f"run {run.public_id} is {run.state}", run.public_id


def _key(question: Question, doubt: Doubt) -> str:
    """Return the idempotency key of the run; with a space in it, which no client can send."""
    facts = [
        question.workload.key, question.hardware.key, question.hardware.driver,
        question.program_digest, question.toolchain.key, doubt.name,
    ]  # fmt: skip
    return f"{doubt.cause} {digest(facts)}"


def _has_worker(store: SqlStore, settings: Settings, question: Question) -> bool:
    """Whether a coordinator leads, and the device is there now."""
    leader = store.leader.current()
    if leader is None or not leader.is_alive:
        return False
    is_here = question.is_for_host and settings.ray_address is None
    return is_here or store.nodes.offers(question.hardware.key)
