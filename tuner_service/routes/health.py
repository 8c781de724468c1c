"""/healthz, /readyz and /metrics."""

from __future__ import annotations

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST

from db.errors import DatabaseUnreachable, SchemaTooOld
from db.migrate import HEAD, revision
from db.store import SqlStore
from tuner_service.routes.context import AppMetrics, Probes, Store
from tuner_service.schemas import Health, Readiness
from tuner_service.web.access import Needs
from tuner_service.web.problems import documented

router = APIRouter(tags=["health"])
READY_WITHIN_S = 5.0


@router.get("/healthz")
async def health() -> Health:
    """Say that the process lives; touches nothing else."""
    return Health(status="ok")


@router.get("/readyz", responses=documented(503))
async def ready(store: Store, probes: Probes) -> Readiness:
    """Say whether the database can be used, and whether a coordinator leads.

    Without a coordinator recommendations still work; tuning runs wait.
    """
    with anyio.move_on_after(READY_WITHIN_S):
        return await run_sync(_readiness, store, abandon_on_cancel=True, limiter=probes)
    reason = f"it has not answered for {READY_WITHIN_S:g} s"
    raise DatabaseUnreachable(url=store.database.shown_url, reason=reason)


def _readiness(store: SqlStore) -> Readiness:
    found = revision(store.database)
    if found != HEAD:
        url = store.database.shown_url
        raise SchemaTooOld(url=url, expected=HEAD, found=found or "no schema")
    leader = store.leader.current()
    leads = leader is not None and leader.is_alive
    return Readiness(
        status="ready",
        schema_revision=found,
        coordinator="leading" if leads else "absent",
        coordinator_epoch=leader.epoch if leader is not None else None,
    )


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {}}, "description": "Prometheus text format"},
        **documented(401, 429),
    },
    dependencies=[Depends(Needs("read"))],
)
def metrics(found: AppMetrics) -> Response:
    """Return the metrics of this process and of the runs, trials and models in the database."""
    return Response(found.text(), media_type=CONTENT_TYPE_LATEST)
