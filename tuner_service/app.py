"""The REST service and its dashboard.

Their process imports none of TVM, torch and Ray (a test holds it to that).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module

from anyio import CapacityLimiter
from fastapi import Depends, FastAPI

from db.store import SqlStore
from tilecore import kernels
from tuner_service.answers.answers import Answers
from tuner_service.dashboard import routes as pages
from tuner_service.dashboard.shell import Shell
from tuner_service.metrics import Metrics
from tuner_service.model_uploads import ModelUploads
from tuner_service.routes import (
    catalog,
    database,
    health,
    keys,
    measurements,
    models,
    nodes,
    programs,
    recommendations,
    run_groups,
    studies,
    tuning_runs,
)
from tuner_service.routes.context import known_query
from tuner_service.settings import Settings
from tuner_service.studies.ask_tell import StudyEngine
from tuner_service.web import problems
from tuner_service.web.access import Access, Keyring, Needs
from tuner_service.web.conditional import ConditionalGet
from tuner_service.web.middleware import BodyLimit, FieldsOnce, HeadAsGet, PlainAddress
from tuner_service.web.places import Places
from tuner_service.web.short_way import ShortWay
from tuner_service.web.stopping import Stopping, UnderWay
from tuner_service.web.streams import OpenStreams
from tuner_service.web.telemetry import Telemetry
from tuner_service.wiring import open_store

DESCRIPTION = """Recommends tile configs for compute kernels and tunes them on real hardware.

Errors are `application/problem+json` (RFC 9457) with a stable `code`. Times are in microseconds
(`latency_us`). Lists page by `cursor`. JSON answers of GET bear an `ETag`:
`If-None-Match` gives 304. `X-Request-ID` is taken over, or made, and stands in the log."""
MAX_PROBES = 2  # of /readyz that wait for a database that hangs; others are told so at once
NEEDS = {
    recommendations: Needs("read"),
    measurements: Needs("read"),
    catalog: Needs("read"),
    tuning_runs: Needs("read", to_change="tune"),
    run_groups: Needs("read", to_change="tune"),
    studies: Needs("read", to_change="tune"),
    programs: Needs("read", to_change="tune"),
    nodes: Needs("read", to_change="admin"),
    keys: Needs("admin"),
    database: Needs("read", to_change="admin"),
    models: Needs("read", to_change="admin"),
}


def create_app(settings: Settings, store: SqlStore | None = None) -> FastAPI:
    """Return the application; without ``store`` it opens the database of the settings."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.answers.desk.open()
        yield
        app.state.answers.desk.close()
        app.state.store.database.close()

    app = FastAPI(
        title="tilecore tuner service",
        version="1",
        description=DESCRIPTION,
        lifespan=lifespan,
        responses=problems.documented(500, 503),
    )
    for module in kernels.MODULES:
        import_module(module)  # or the first question about each would wait for it
    app.state.settings = settings
    app.state.store = store if store is not None else open_store(settings)
    app.state.metrics = Metrics(app.state.store)
    app.state.keyring = Keyring(app.state.store, settings, app.state.metrics)
    app.state.models = ModelUploads(app.state.store)
    app.state.probes = CapacityLimiter(MAX_PROBES)
    app.state.streams = OpenStreams(settings.max_streams)
    app.state.under_way = UnderWay()
    app.state.engine = StudyEngine(app.state.store)
    app.state.answers = Answers(app.state.store, app.state.metrics, settings)
    for part, role in NEEDS.items():
        app.include_router(
            part.router,
            prefix="/v1",
            dependencies=[Depends(role), Depends(known_query)],
            responses=problems.documented(401, 403, 422, 429),
        )
    app.include_router(health.router)
    app.include_router(pages.router)
    problems.install(app)
    # The last one added meets a request first.
    app.add_middleware(FieldsOnce, but=f"/v1{programs.router.prefix}")
    app.add_middleware(ShortWay, answers=app.state.answers)
    app.add_middleware(PlainAddress)
    app.add_middleware(Places, settings=settings)
    app.add_middleware(
        BodyLimit,
        limit_bytes=settings.max_body_bytes,
        within_s=settings.body_timeout_s,
        of_administrators={"/v1/models": settings.max_model_bytes},
        longer={"/v1/programs": max(settings.max_body_bytes, settings.max_program_bytes)},
    )
    app.add_middleware(ConditionalGet)
    app.add_middleware(Access, settings=settings, keyring=app.state.keyring)
    app.add_middleware(Shell)
    app.add_middleware(HeadAsGet)
    app.add_middleware(Stopping, under_way=app.state.under_way)
    app.add_middleware(Telemetry, metrics=app.state.metrics, access_log=settings.access_log)
    return app
