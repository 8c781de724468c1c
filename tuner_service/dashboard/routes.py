"""All pages of the dashboard; those with content need a key that may read."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from tuner_service.dashboard import (
    files,
    log,
    overview,
    recommend,
    runs,
    session,
    studies,
    workload,
)
from tuner_service.web.access import Needs

router = APIRouter(include_in_schema=False)
for part in (overview, runs, studies, log, recommend, workload):
    router.include_router(part.router, dependencies=[Depends(Needs("read"))])
for part in (session, files):
    router.include_router(part.router)
