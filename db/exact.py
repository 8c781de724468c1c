"""Statements of what was fastest for exactly one workload, device, program and toolchain.

Keys are resolved once (``SUBJECT``); then each protocol's measurements lie in order in the index of
the workload, so that the first one is read alone. The texts are short: psycopg keeps what it made
of a statement of up to 4,096 characters.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    CTE,
    BindParameter,
    ColumnElement,
    ScalarSelect,
    Select,
    Table,
    bindparam,
    func,
    literal_column,
    or_,
    select,
)

from db.models import (
    Base,
    DriverRow,
    FacetRow,
    HardwareRow,
    MeasurementRow,
    ProgramRow,
    ToolchainRow,
    WorkloadRow,
)
from db.reader import FLAT
from db.service_models import DriftRow
from recommender.measurement import MeasureStatus, Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ALWAYS = bindparam("epoch", EPOCH, type_=MeasurementRow.measured_at.type)


def _table(row: type[Base]) -> Table:
    table = row.__table__
    assert isinstance(table, Table)
    return table


WORKLOADS, PROGRAMS = _table(WorkloadRow), _table(ProgramRow)
HARDWARE, TOOLCHAINS, DRIVERS = _table(HardwareRow), _table(ToolchainRow), _table(DriverRow)
FACETS, DRIFTS, LOG = _table(FacetRow), _table(DriftRow), _table(MeasurementRow)


def _id(table: Table, **columns: str) -> ScalarSelect[Any]:
    """Return the id of a row by columns that are bound, under these names."""
    where = [table.c[c] == bindparam(n, type_=table.c[c].type) for c, n in columns.items()]
    return select(table.c.id).where(*where).scalar_subquery()


def _key() -> CTE:
    """Return one row: the ids of what the key names, null what nobody has named before."""
    return select(
        _id(WORKLOADS, key="workload").label("w"),
        _id(PROGRAMS, kernel="kernel", digest="digest").label("p"),
        _id(HARDWARE, key="hardware").label("h"),
        _id(TOOLCHAINS, key="toolchain").label("t"),
        _id(DRIVERS, name="driver").label("d"),
    ).cte("k")


def _subject() -> CTE:
    """Return the row with the facets of OK measurements, and since when times are as they are."""
    key, facet, drift = _key().c, FACETS.alias("f").c, DRIFTS.alias("x").c
    ok: ColumnElement[str] = literal_column(f"'{MeasureStatus.OK.value}'")

    def facet_of(protocol: Protocol) -> ScalarSelect[Any]:
        return (
            select(facet.id)
            .where(
                facet.kernel == bindparam("kernel", type_=FACETS.c.kernel.type),
                facet.hardware_id == key.h,
                facet.toolchain_id == key.t,
                facet.protocol == literal_column(f"'{protocol.value}'"),
                facet.status == ok,
            )
            .scalar_subquery()
        )

    since = select(func.max(drift.since)).where(
        drift.workload_id == key.w,
        drift.hardware_id == key.h,
        drift.program_id == key.p,
        drift.toolchain_id == key.t,
    )
    return select(
        key.w, key.p, key.d,
        facet_of(Protocol.CONFIRM).label(Protocol.CONFIRM.value),
        facet_of(Protocol.SCREEN).label(Protocol.SCREEN.value),
        func.coalesce(since.scalar_subquery(), ALWAYS).label("since"),
    ).cte("s")  # fmt: skip


SUBJECT = _subject()


def _fastest(
    protocol: Protocol, *, of_driver: bool, count: BindParameter[int] | None = None
) -> Select[Any]:
    """Return the query of the ids of the fastest ones of a protocol."""
    row = LOG.alias("m").c
    since = _of_subject("since")
    # SQLite would take a range of dates for what selects most and read the workload's whole log.
    at = row.measured_at if count is None else func.coalesce(row.measured_at, since)
    where: list[ColumnElement[bool]] = [
        row.workload_id == _of_subject("w"),
        row.facet_id == _of_subject(protocol.value),
        row.time_s.is_not(None),  # as the index says
        row.program_id == _of_subject("p"),
        at >= since,
    ]
    if of_driver:
        unknown = bindparam("driver", type_=DRIVERS.c.name.type) == literal_column("''")
        where.append(or_(unknown, row.driver_id.is_(None), row.driver_id == _of_subject("d")))
    limit = literal_column("1") if count is None else count
    return select(row.id).where(*where).order_by(row.time_s, row.id).limit(limit)


def _of_subject(column: str) -> ScalarSelect[Any]:
    return select(SUBJECT.c[column]).scalar_subquery()


def _best() -> Select[Any]:
    """Return the query of the best measurement: protocols in turn, of each this driver first."""
    in_turn = (
        _fastest(protocol, of_driver=of_driver).scalar_subquery()
        for protocol in (Protocol.CONFIRM, Protocol.SCREEN)
        for of_driver in (True, False)
    )
    return FLAT.where(MeasurementRow.id == func.coalesce(*in_turn))


def _several() -> Select[Any]:
    """Return the query of the fastest CONFIRM measurements of this driver."""
    row = MeasurementRow
    ids = _fastest(Protocol.CONFIRM, of_driver=True, count=bindparam("count"))
    return FLAT.where(row.id.in_(ids)).order_by(row.time_s, row.id)


BEST, FASTEST = _best(), _several()
KNOWN = select(WORKLOADS.c.id).where(WORKLOADS.c.key == bindparam("workload"))
