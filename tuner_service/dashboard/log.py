"""The tuning log: measurements by the filters of REST, in pages, with links to exports."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from recommender.measurement import MeasureStatus, Protocol
from tilecore import kernels
from tuner_service.dashboard.overview import MOST_DEVICES
from tuner_service.dashboard.rendering import HOME, address, page
from tuner_service.routes.catalog import list_hardware
from tuner_service.routes.context import Cursor, Store
from tuner_service.routes.measurements import LogQuery, list_measurements

router = APIRouter(prefix=HOME)
EXPORT = "/v1/measurements/export"
FORMS = {"csv": "CSV", "parquet": "Parquet", "t4": "T4"}


@router.get("/log")
def log(
    request: Request,
    store: Store,
    query: LogQuery,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Cursor = None,
) -> Response:
    """Return a page of the log."""
    found = list_measurements(store, query, limit, cursor)
    given, path = dict(request.query_params), request.url.path
    asked = {name: v for name, v in given.items() if name not in ("cursor", "limit")}
    kernel = given.get("kernel")
    known = list(kernels.KERNELS)
    more = found.next_cursor
    shown = {(record.workload_key, record.hardware_key) for record in found.items}
    forms = {f: text for f, text in FORMS.items() if f != "t4" or len(shown) == 1}
    return page(
        request, "log.html",
        items=found.items, given=given,
        kernels=known if kernel is None or kernel in known else [kernel, *known],
        devices=list_hardware(store, limit=MOST_DEVICES).items,
        statuses=[s.value for s in MeasureStatus],
        protocols=[p.value for p in Protocol],
        exports={text: address(EXPORT, asked, format=form) for form, text in forms.items()},
        first=address(path, given, cursor=None) if cursor else None,
        more=address(path, given, cursor=more) if more else None,
    )  # fmt: skip
