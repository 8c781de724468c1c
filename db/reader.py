"""Reads measurements by id: flat rows, what many share built once and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    Text,
    and_,
    cast,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.orm import Session

from db.models import (
    Base,
    ConfigRow,
    DriverRow,
    HardwareRow,
    MeasurementRow,
    ProgramRow,
    RunRow,
    SampleRow,
    ToolchainRow,
    TrialRow,
    WorkloadRow,
)
from db.records import MeasurementRecord
from db.rows import hardware_of, toolchain_of, workload_of
from db.storable import decoded_json
from db.types import is_among
from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.workload import Workload
from tilecore.tile_config import TileConfig

MAX_KEPT = 50_000  # workloads, devices and toolchains in memory
PROTOCOLS = {protocol.value: protocol for protocol in Protocol}
STATUSES = {status.value: status for status in MeasureStatus}
CHUNK = 400  # rows asked for in one statement
Execute = Callable[[Select[Any], Mapping[str, Any]], Sequence[Any]]
Shared = Mapping[tuple[type[Base], Any], Any]


def rows_of(session: Session) -> Execute:
    """Return what runs queries in a session; rows fetched one by one cost twice as much."""
    connection = session.connection()
    return lambda query, values: connection.execute(query, values).all()


class Reader:
    """Measurements as values. Identities never change, so those read once are kept.

    The profile of a device does change (``SqlStore.save_hardware``): it is kept with its date.
    """

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._kept: dict[tuple[type[Base], Any], Any] = {}

    def records(
        self, execute: Execute, rows: Sequence[Row[Any]],
        distance: Mapping[str, float] | None = None,
    ) -> list[MeasurementRecord]:  # fmt: skip
        """Return the records of rows of ``FLAT``; ``distance``: by keys of workloads."""
        found = self.measurements(execute, rows)
        return [
            MeasurementRecord(
                id=row.id, run=row.public_id, measurement=m, created_by=row.created_by,
                distance=distance.get(m.workload.key) if distance else None,
            )
            for row, m in zip(rows, found, strict=True)
        ]  # fmt: skip

    def measurements(
        self, execute: Execute, rows: Sequence[Row[Any]],
        workloads: Mapping[int, Workload] | None = None,
    ) -> list[Measurement]:  # fmt: skip
        """Return the measurements of rows of ``FLAT``; ``workloads``: those known, by their ids."""
        shared = self._shared(execute, rows, workloads or {})
        texts = [row[column] for row in rows for column in DECODED]
        # One call for all of them: most are so short that a call costs more than what is in them.
        values = iter(decoded_json(f"[{','.join(texts)}]"))
        return [
            _measurement(row, decoded, shared)
            for row, *decoded in zip(rows, values, values, values, strict=True)
        ]

    def _shared(
        self, execute: Execute, rows: Sequence[Row[Any]], workloads: Mapping[int, Workload]
    ) -> Shared:
        """Return what rows refer to, by table and id."""
        wanted: set[tuple[type[Base], Any]] = set()
        given: dict[tuple[type[Base], Any], Any] = {}
        for row in rows:
            if row.workload_id in workloads:
                given[WorkloadRow, row.workload_id] = workloads[row.workload_id]
            else:
                wanted.add((WorkloadRow, row.workload_id))
            wanted.add((ToolchainRow, row.toolchain_id))
            wanted.add((HardwareRow, (row.hardware_id, row.updated_at)))
            if row.driver_id is not None:
                wanted.add((DriverRow, row.driver_id))
        kept = self._kept
        found = {key: kept[key] for key in wanted if key in kept}
        if len(found) == len(wanted):
            return found | given
        read: dict[tuple[type[Base], Any], Any] = {}
        by_table: dict[type[Base], dict[int, Any]] = {}
        for table, key in wanted - found.keys():
            by_table.setdefault(table, {})[key[0] if table is HardwareRow else key] = key
        for table, keys in by_table.items():
            for row in execute(referred(table, self._dialect), {"ids": list(keys)}):
                own = (row.id, row.updated_at) if table is HardwareRow else row.id
                read[table, keys.get(row.id, own)] = _value(table, row)
        self._kept = read if len(kept) + len(read) > MAX_KEPT else kept | read
        return found | read | given


@lru_cache(maxsize=MAX_KEPT)
def _config(knobs: str) -> TileConfig:
    """Return a config: there are far fewer than measurements of them."""
    return TileConfig.of(decoded_json(knobs))


def _value(table: type[Base], row: Any) -> Any:
    if table is WorkloadRow:
        return workload_of(row)
    if table is HardwareRow:
        return hardware_of(row)
    if table is DriverRow:
        return row.name
    return toolchain_of(row)


def _measurement(row: Row[Any], decoded: Sequence[Any], shared: Shared) -> Measurement:
    metrics, times_s, reference_times_s = decoded
    return Measurement(
        workload=shared[WorkloadRow, row.workload_id],
        config=_config(row.knobs),
        hardware=shared[HardwareRow, (row.hardware_id, row.updated_at)],
        toolchain=shared[ToolchainRow, row.toolchain_id],
        program_digest=row.digest,
        protocol=PROTOCOLS[row.protocol],
        threads=row.threads,
        status=STATUSES[row.status],
        times_s=tuple(times_s),
        reference_times_s=tuple(reference_times_s),
        detail=row.detail,
        compile_s=row.compile_s,
        max_error=row.max_error,
        worker=row.worker,
        driver="" if row.driver_id is None else shared[DriverRow, row.driver_id],
        measured_at=row.measured_at,
        metrics=metrics,
    )


def _columns() -> tuple[Any, ...]:
    row = MeasurementRow
    # PostgreSQL would read all programs, which are many, to join those of a page.
    program = select(ProgramRow.digest).where(ProgramRow.id == row.program_id).scalar_subquery()
    json_columns = (row.metrics, SampleRow.times_s, SampleRow.reference_times_s, ConfigRow.knobs)
    return (
        *(cast(column, Text).label(column.key) for column in json_columns),
        row.id, row.workload_id, row.hardware_id, program.label("digest"), row.toolchain_id,
        row.protocol, row.threads, row.status, row.compile_s, row.max_error, row.detail,
        row.worker, row.measured_at, row.driver_id, row.created_by,
        HardwareRow.updated_at, RunRow.public_id,
    )  # fmt: skip


def _with_referred(query: Select[Any], *, isouter: bool = False) -> Select[Any]:
    """Return a query of measurements with the tables that ``_columns`` are of.

    ``isouter``: where it may have no measurement.
    """
    row = MeasurementRow
    return (
        query.join(HardwareRow, row.hardware_id == HardwareRow.id, isouter=isouter)
        .join(ConfigRow, row.config_id == ConfigRow.id, isouter=isouter)
        .join(SampleRow, SampleRow.measurement_id == row.id, isouter=isouter)
        .outerjoin(TrialRow, row.trial_id == TrialRow.id)
        .outerjoin(RunRow, TrialRow.run_id == RunRow.id)
    )


def with_records(
    keys: Select[Any], most: int, *, wanted: ColumnElement[int] | None = None
) -> Select[Any]:
    """Return the query of ``keys`` with the columns of ``FLAT`` before theirs, in no order.

    Args:
        keys: a query with the column ``id``.
        most: so many rows at most. It stands in the text: of a bound limit PostgreSQL expects a
            tenth of the log, and would read it as a whole for so many.
        wanted: with fewer keys than this, the columns of ``FLAT`` are null, and nothing is read
            for them.
    """
    row, found = MeasurementRow, keys.cte("keys")
    number = select(found).limit(literal_column(str(most))).subquery("part")
    chosen = row.id == number.c.id
    if wanted is not None:
        count = select(func.count()).select_from(found).scalar_subquery()
        chosen = and_(chosen, count >= wanted)
    own = [column.label(f"key_{name}") for name, column in number.c.items()]
    query = select(*_columns(), *own).select_from(number).outerjoin(row, chosen)
    return _with_referred(query, isouter=True)


FLAT = _with_referred(select(*_columns()))
DECODED = range(3)  # its columns of JSON, as texts; ``knobs`` is another


@lru_cache
def referred(table: type[Base], dialect: str) -> Select[Any]:
    """Return the query of rows by their ids, bound as ``ids``.

    Of what there is little of, the newest ones come with them: they are asked for next.
    """
    rows: Any = table.__table__
    wanted = is_among(rows.c.id, "ids", dialect)
    if table is not WorkloadRow:
        last = select(func.max(rows.c.id)).scalar_subquery()
        wanted = or_(wanted, rows.c.id > last - literal_column(str(CHUNK)))
    return select(rows).where(wanted)
