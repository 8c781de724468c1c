"""Overview: what is under way, what came last, which devices, how much is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from db.overview import Counts
from db.records import OPEN_STATES
from recommender.workload import digest_of
from tuner_service.dashboard.rendering import HOME, page
from tuner_service.dashboard.runs import progress
from tuner_service.routes.catalog import list_hardware
from tuner_service.routes.context import AppMetrics, Store
from tuner_service.routes.tuning_runs import list_tuning_runs

router = APIRouter()
SHOWN = 10  # runs of each kind
MOST_DEVICES = 200


@router.get("/")
async def front_door() -> Response:
    """Send readers to the dashboard."""
    return RedirectResponse(HOME, 307)


@router.get(HOME)
def overview(request: Request, store: Store, metrics: AppMetrics) -> Response:
    """Return the first page."""
    open_runs = [
        run
        for state in OPEN_STATES
        for run in list_tuning_runs(store, state=state, limit=SHOWN).items  # type: ignore[arg-type]  # one of RunState
    ]
    latest = list_tuning_runs(store, limit=SHOWN).items
    devices = list_hardware(store, limit=MOST_DEVICES)
    counts: Counts = metrics.counts()
    return page(
        request, "overview.html",
        open_runs=[(run, progress(run)) for run in open_runs],
        latest=latest,
        devices=devices.items,
        more_devices=devices.next_cursor is not None,
        measured=by_kernel(counts.measurements),
        runs=counts.runs,
        models=counts.models,
    )  # fmt: skip


def by_kernel(measurements: Mapping[tuple[str, str], int]) -> list[dict[str, Any]]:
    """Return how many measurements there are of each kernel; sent programs count as one."""
    found: dict[str, dict[str, Any]] = {}
    for (kernel, status), count in sorted(measurements.items()):
        is_program = digest_of(kernel) is not None
        row = found.setdefault(
            "sent programs" if is_program else kernel,
            {"kernel": None if is_program else kernel, "ok": 0, "failed": 0},
        )
        row["ok" if status == "OK" else "failed"] += count
    return [{"name": name, **row} for name, row in found.items()]
