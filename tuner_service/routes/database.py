"""/v1/database: for administrators: keep the log small."""

from __future__ import annotations

from fastapi import APIRouter

from db.records import RetentionPolicy
from tuner_service.operation_schemas import (
    CompactionOut,
    CompactionRequest,
    RemovedOut,
    RemovedPage,
)
from tuner_service.routes.context import Cursor, Limit, Sender, Store, part_of
from tuner_service.web.problems import documented

router = APIRouter(prefix="/database", tags=["database"])


@router.post(":compact", responses=documented(413))
def compact(request: CompactionRequest, store: Store, sender: Sender) -> CompactionOut:
    """Remove measurements that no answer rests on; never a best.

    Ends after `time_limit_s` (`is_complete` is false then: send it again).
    """
    policy = RetentionPolicy(
        keep_days=request.keep_days,
        keep_best=request.keep_best,
        keep_recent=request.keep_recent,
        keep_training=request.keep_training,
        above_bytes=request.above_mib << 20,
    )
    done = store.retention.compact(
        policy,
        dry_run=request.dry_run,
        vacuum=request.vacuum,
        time_limit_s=request.time_limit_s,
        created_by=sender.key_name,
    )
    return CompactionOut(
        measurements=done.measurements,
        removed=dict(done.removed),
        events=done.events,
        bytes_before=done.bytes_before,
        bytes_after=done.bytes_after,
        is_complete=done.is_complete,
        is_dry_run=done.is_dry_run,
        note=done.note,
    )


@router.get("/removed", responses=documented(422))
def list_removed(store: Store, limit: Limit = 50, cursor: Cursor = None) -> RemovedPage:
    """Return how many measurements were ever removed, by kernel, status and cause."""
    counts = sorted(store.retention.counts().items())
    found, more = part_of("removed", limit, cursor, counts, lambda one: repr(one[0]))
    items = [
        RemovedOut(kernel=kernel, status=status, cause=cause, count=count)
        for (kernel, status, cause), count in found
    ]
    return RemovedPage(items=items, next_cursor=more)
