"""The REST service. Its process imports none of TVM, torch and Ray (a test holds it to that)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from db.store import SqlStore
from tuner_service import problems
from tuner_service.middleware import BodyLimit
from tuner_service.routes import (
    catalog,
    health,
    measurements,
    nodes,
    recommendations,
    run_groups,
    tuning_runs,
)
from tuner_service.settings import Settings
from tuner_service.wiring import open_store

DESCRIPTION = """Recommends tile configs for compute kernels and tunes them on real hardware.

Errors are `application/problem+json` (RFC 9457) with a stable `code`. Times are in microseconds
(`latency_us`). Lists page by `cursor`."""


def create_app(settings: Settings, store: SqlStore | None = None) -> FastAPI:
    """Return the application; without ``store`` it opens the database of the settings."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        app.state.store.database.close()

    app = FastAPI(
        title="tilecore tuner service",
        version="1",
        description=DESCRIPTION,
        lifespan=lifespan,
        responses=problems.documented(500, 503),
    )
    app.state.settings = settings
    app.state.store = store if store is not None else open_store(settings)
    for part in (recommendations, tuning_runs, run_groups, measurements, nodes, catalog):
        app.include_router(part.router, prefix="/v1")
    app.include_router(health.router)
    problems.install(app)
    app.add_middleware(BodyLimit, limit_bytes=settings.max_body_bytes)
    return app
