"""GET /v1/measurements: the tuning log, in pages and as files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime, BeforeValidator

from db.records import MAX_INTEGER, MeasurementQuery, MeasurementRecord
from recommender.measurement import MeasureStatus, Protocol
from tilecore import kernels
from tilecore.kernels.definition import MAX_DIMENSION
from tilecore.tile_config import digest
from tuner_service.hardware import find_hardware
from tuner_service.log_names import logged_kernel
from tuner_service.questions import near_workload
from tuner_service.routes.context import (
    BIGINT,
    CreatedBy,
    Cursor,
    Limit,
    Store,
    decode_cursor,
    encode_cursor,
)
from tuner_service.schemas import MAX_THREADS, MeasurementOut, MeasurementPage
from tuner_service.web.problems import documented
from tuner_service.wording import in_utc

router = APIRouter(tags=["measurements"])
Name = Annotated[str | None, Query(max_length=200)]
Dimension = Annotated[int | None, Query(ge=1, le=MAX_DIMENSION)]
NEAR = "the nearest workloads to this problem: `m=1000,n=1024,k=512` (needs `kernel`)"
MEDIA = {
    "csv": "text/csv; charset=utf-8",
    "t4": "application/json",
    "parquet": "application/vnd.apache.parquet",
}
SUFFIX = {"csv": "csv", "t4": "t4.json", "parquet": "parquet"}


def _iso_time(value: Any) -> Any:
    """Refuse the numbers that pydantic would take for seconds since 1970."""
    if isinstance(value, str) and not re.match(r"[0-9]{4}-", value):
        raise ValueError("expected a time as ISO 8601 has it: 2026-11-22T10:00:00Z")
    return value


Time = Annotated[AwareDatetime, BeforeValidator(_iso_time)]


def log_query(
    store: Store,
    kernel: Name = None,
    workload: Annotated[str | None, Query(max_length=64, description="workload_key")] = None,
    dtype: Name = None,
    m: Dimension = None,
    n: Dimension = None,
    k: Dimension = None,
    threads: Annotated[int | None, Query(ge=0, le=MAX_THREADS)] = None,
    status: MeasureStatus | None = None,
    protocol: Protocol | None = None,
    hardware: Name = None,
    toolchain: Annotated[str | None, Query(max_length=32, description="toolchain_key")] = None,
    program: Annotated[str | None, Query(max_length=64, description="program_digest")] = None,
    run: Annotated[str | None, Query(max_length=64)] = None,
    created_by: CreatedBy = None,
    since: Annotated[Time | None, Query(description="measured then or later")] = None,
    until: Annotated[Time | None, Query(description="measured before")] = None,
    near: Annotated[str | None, Query(max_length=1000, description=NEAR)] = None,
    near_count: Annotated[int, Query(ge=1, le=64, description="how many workloads")] = 8,
    best: Annotated[bool, Query(description="fastest first, instead of newest first")] = False,
    best_per: Annotated[
        Literal["workload"] | None,
        Query(description="only the fastest of each workload and device, confirmed ones first"),
    ] = None,
) -> MeasurementQuery:
    """Return what a request asks of the log."""
    return MeasurementQuery(
        kernel=None if kernel is None else logged_kernel(kernel),
        workload_key=workload,
        dtype=dtype,
        m=m,
        n=n,
        k=k,
        threads=threads,
        status=status,
        protocol=protocol,
        hardware_key=None if hardware is None else find_hardware(store, hardware).key,
        toolchain_key=toolchain,
        program_digest=program,
        run=None if run is None else store.runs.get(run).public_id,
        created_by=created_by,
        since=in_utc("since", since),
        until=in_utc("until", until),
        near=None if near is None else near_workload(kernel, near),
        near_count=near_count,
        best_first=best,
        winners=best_per is not None,
    )


LogQuery = Annotated[MeasurementQuery, Depends(log_query)]


@router.get("/measurements", responses=documented(404, 422))
def list_measurements(
    store: Store, query: LogQuery, limit: Limit = 50, cursor: Cursor = None
) -> MeasurementPage:
    """Return measurements that match all filters."""
    name = digest(repr(query), 16)
    most = MAX_INTEGER if query.winners else BIGINT  # of winners: ids of workload and device
    key = decode_cursor(name, cursor, [most, most])
    after = None if key is None else (float(key[0]), int(key[1]))
    page = store.page(query, limit=limit, after=after)
    more = None if page.next_after is None else encode_cursor(name, list(page.next_after))
    return MeasurementPage(items=[to_wire(r) for r in page.items], next_cursor=more)


@router.get(
    "/measurements/export",
    response_class=StreamingResponse,
    responses={
        200: {
            "content": {"text/csv": {}, "application/json": {}, MEDIA["parquet"]: {}},
            "description": "The file",
        },
        **documented(404, 422),
    },
)
def export_measurements(
    store: Store,
    query: LogQuery,
    form: Annotated[Literal["csv", "t4", "parquet"], Query(alias="format")],
) -> StreamingResponse:
    """Stream all measurements that match: CSV, Parquet, or T4 results of one workload and device.

    Parquet needs pyarrow on the host of the service.
    """
    pieces: Iterator[str | bytes] = iter(store.log.export(query, form))
    first = next(pieces)  # a database that cannot be read is an error before the answer begins
    name = f"measurements.{SUFFIX[form]}"
    return StreamingResponse(
        chain([first], pieces),
        media_type=MEDIA[form],
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def to_wire(record: MeasurementRecord) -> MeasurementOut:
    """Return a measurement as it goes over the wire."""
    m = record.measurement
    problem = dict(m.workload.problem)
    definition = kernels.KERNELS.get(m.workload.kernel)
    gflops = None
    if definition is not None and m.time_s is not None:
        gflops = definition.work_flop(problem) / m.time_s / 1e9
    reference_s = m.reference_time_s
    return MeasurementOut(
        id=record.id,
        run=record.run,
        workload_key=m.workload.key,
        kernel=m.workload.kernel,
        problem=problem,
        threads=m.threads,
        hardware=m.hardware.name,
        hardware_key=m.hardware.key,
        program_digest=m.program_digest,
        toolchain_key=m.toolchain.key,
        config=dict(m.config.items_),
        protocol=m.protocol.value,
        status=m.status.value,
        latency_us=None if m.time_s is None else m.time_s * 1e6,
        reference_latency_us=None if reference_s is None else reference_s * 1e6,
        gflops=gflops,
        repeats_us=[t * 1e6 for t in m.times_s],
        reference_repeats_us=[t * 1e6 for t in m.reference_times_s],
        compile_ms=None if m.compile_s is None else m.compile_s * 1e3,
        max_error=m.max_error,
        detail=m.detail,
        worker=m.worker,
        driver=m.driver,
        created_by=record.created_by,
        metrics=dict(m.metrics),
        measured_at=m.measured_at,
        distance=record.distance,
    )
