"""GET /v1/measurements: the tuning log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from db.records import MeasurementQuery, MeasurementRecord
from recommender.measurement import MeasureStatus, Protocol
from tilecore import kernels
from tilecore.kernels.definition import MAX_DIMENSION
from tilecore.tile_config import digest
from tuner_service.hardware import find_hardware
from tuner_service.problems import documented
from tuner_service.routes.context import Cursor, Limit, Store, decode_cursor, encode_cursor
from tuner_service.schemas import MAX_THREADS, MeasurementOut, MeasurementPage

router = APIRouter(tags=["measurements"])
Name = Annotated[str | None, Query(max_length=200)]
Dimension = Annotated[int | None, Query(ge=1, le=MAX_DIMENSION)]


@router.get("/measurements", responses=documented(404, 422))
def list_measurements(
    store: Store,
    kernel: Name = None,
    dtype: Name = None,
    m: Dimension = None,
    n: Dimension = None,
    k: Dimension = None,
    threads: Annotated[int | None, Query(ge=0, le=MAX_THREADS)] = None,
    status: MeasureStatus | None = None,
    protocol: Protocol | None = None,
    hardware: Name = None,
    run: Annotated[str | None, Query(max_length=64)] = None,
    best: Annotated[bool, Query(description="fastest first, instead of newest first")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> MeasurementPage:
    """Return measurements that match all filters."""
    query = MeasurementQuery(
        kernel=None if kernel is None else kernels.get(kernel).name,
        dtype=dtype,
        m=m,
        n=n,
        k=k,
        threads=threads,
        status=status,
        protocol=protocol,
        hardware_key=None if hardware is None else find_hardware(store, hardware).key,
        run=None if run is None else store.runs.get(run).public_id,
        best_first=best,
    )
    name = digest(repr(query), 16)
    key = decode_cursor(name, cursor, 2)
    after = None if key is None else (float(key[0]), int(key[1]))
    page = store.page(query, limit=limit, after=after)
    more = None if page.next_after is None else encode_cursor(name, list(page.next_after))
    return MeasurementPage(items=[to_wire(r) for r in page.items], next_cursor=more)


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
        metrics=dict(m.metrics),
        measured_at=m.measured_at,
    )
