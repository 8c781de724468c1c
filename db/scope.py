"""Which facets and workloads a query of the log selects, and how to walk them in order.

The log lies in order within every facet and within every workload (``db.models``). A query that
selects a good part of the log finds its rows among the next few of the whole; one that does not
takes the first rows of each of its facets or workloads and merges those. Neither reads far, however
large the log is and however deep the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    func,
    literal,
    select,
    true,
    tuple_,
)
from sqlalchemy.orm import Session, aliased

from db.models import (
    FacetRow,
    HardwareRow,
    MeasurementRow,
    ProgramRow,
    RunRow,
    ToolchainRow,
    TrialRow,
    WorkloadRow,
)
from db.records import MeasurementQuery
from recommender.measurement import MeasureStatus

Part = type[WorkloadRow] | type[FacetRow]
FEW = 1024  # facets or workloads that are walked one by one at most
DIRECT = 4  # so few are walked at once
PROBED = 2_000  # next rows of the log looked at first: a scope that is not rare ends there


@dataclass(frozen=True, slots=True)
class Order:
    """An order of the log: its column (ties: the id) and its direction."""

    by_time: bool

    def columns(self, row: Any) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        """Return the columns of the order of a table of measurements."""
        if self.by_time:
            return row.time_s.asc(), row.id.asc()
        return row.measured_at.desc(), row.id.desc()

    def behind(self, row: Any, after: tuple[Any, int]) -> ColumnElement[bool]:
        """Return the condition of the rows that come behind a key."""
        first = row.time_s if self.by_time else row.measured_at
        key = tuple_(first, row.id)
        bound = tuple_(literal(after[0], first.type), literal(after[1], row.id.type))
        return key > bound if self.by_time else key < bound


class Scope:
    """The facets, the workloads and the other conditions of one query."""

    def __init__(self, query: MeasurementQuery, near: Sequence[int] | None = None) -> None:
        self.query = query
        self.near = near
        self.facets = self._facets()
        self.workloads = self._workloads()

    def ids(
        self, session: Session, order: Order, after: tuple[Any, int] | None, limit: int
    ) -> list[int]:
        """Return the ids of the first measurements behind ``after``, in order."""
        row = MeasurementRow
        whole = select(row.id).where(*self._conditions(row, None), *_behind(order, row, after))
        whole = whole.order_by(*order.columns(row))
        if self.query.run is not None or (self.facets is None and self.workloads is None):
            return list(session.connection().execute(whole.limit(limit)).scalars())
        parts, count = self._few(session)
        if count > DIRECT:
            found = list(session.connection().execute(self._probe(order, after, limit)).scalars())
            if len(found) == limit:
                return found
        if parts is None:
            query = whole
        elif session.get_bind().dialect.name == "sqlite":
            query = self._merged_by_ids(parts, order, after, limit)
        else:
            query = self._merged_laterally(parts, order, after, limit)
        return list(session.connection().execute(query.limit(limit)).scalars())

    def workload_ids(self, session: Session, after: int, limit: int) -> list[int]:
        """Return the ids of the first workloads behind ``after``, ascending."""
        query = select(WorkloadRow.id) if self.workloads is None else self.workloads
        if self.query.kernel is not None and self.workloads is None:
            query = query.where(WorkloadRow.kernel == self.query.kernel)
        query = query.where(WorkloadRow.id > after).order_by(WorkloadRow.id).limit(limit)
        return list(session.connection().execute(query).scalars())

    def fastest(
        self, session: Session, workload_ids: Sequence[int]
    ) -> list[tuple[int, int, str, float, int]]:
        """Return the fastest OK measurement in every facet of some workloads.

        Returns:
            Workload, device, protocol, time and measurement id.
        """
        row, other = MeasurementRow, aliased(MeasurementRow)
        conditions = [row.workload_id.in_(workload_ids), *self._conditions(row, WorkloadRow)]
        groups = (
            select(row.workload_id, row.facet_id, func.min(row.time_s).label("time_s"))
            .where(*conditions)
            .group_by(row.workload_id, row.facet_id)
            .subquery()
        )
        first = select(func.min(other.id)).where(
            other.workload_id == groups.c.workload_id,
            other.facet_id == groups.c.facet_id,
            other.time_s == groups.c.time_s,
            *self._conditions(other, FacetRow),
        )
        found = select(
            groups.c.workload_id,
            FacetRow.hardware_id,
            FacetRow.protocol,
            groups.c.time_s,
            first.scalar_subquery(),
        ).join(FacetRow, FacetRow.id == groups.c.facet_id)
        return [tuple(r) for r in session.connection().execute(found)]

    def _few(self, session: Session) -> tuple[Part | None, int]:
        """Return the table to walk row by row and of how many; None for the log as a whole."""
        count = 0
        candidates: tuple[tuple[Part, Select[int] | None], ...] = (
            (WorkloadRow, self.workloads),
            (FacetRow, self.facets),
        )
        for part, ids in candidates:
            if ids is not None:
                some = select(func.count()).select_from(ids.limit(FEW + 1).subquery())
                count = session.connection().execute(some).scalar_one()
                if count <= FEW:
                    return part, count
        return None, count

    def _probe(self, order: Order, after: tuple[Any, int] | None, limit: int) -> Select[int]:
        """Return the query of the matching ones among the next rows of the whole log."""
        row = MeasurementRow
        columns = [
            row.id,
            row.facet_id,
            row.workload_id,
            row.time_s if order.by_time else row.measured_at,
        ]
        if self.query.program_digest is not None:
            columns.append(row.program_id)
        if order.by_time and (self.query.since or self.query.until):
            columns.append(row.measured_at)
        exists = [row.time_s.is_not(None)] if order.by_time else []
        near = select(*columns).where(*exists, *_behind(order, row, after))
        part = near.order_by(*order.columns(row)).limit(max(PROBED, limit)).subquery().c
        found = select(part.id).where(*self._conditions(part, None))
        return found.order_by(*order.columns(part)).limit(limit)

    def _merged_by_ids(
        self, part: Part, order: Order, after: tuple[Any, int] | None, limit: int
    ) -> Select[int]:
        """Return the query for SQLite, which knows no LATERAL but looks up ids as fast."""
        row = MeasurementRow
        first = self._first(part, order, after, limit)
        joined = select(row.id).select_from(part).join(row, row.id.in_(first))
        return joined.where(self._chosen(part)).order_by(*order.columns(row))

    def _merged_laterally(
        self, part: Part, order: Order, after: tuple[Any, int] | None, limit: int
    ) -> Select[int]:
        first = self._first(part, order, after, limit).lateral()
        joined = select(first.c.id).select_from(part).join(first, true())
        return joined.where(self._chosen(part)).order_by(*order.columns(first.c))

    def _first(
        self, part: Part, order: Order, after: tuple[Any, int] | None, limit: int
    ) -> Select[Any]:
        """Return the query of the first ids of one row of ``part``."""
        row = aliased(MeasurementRow)
        own = row.workload_id if part is WorkloadRow else row.facet_id
        return (
            select(row.id)
            .where(own == part.id, *self._conditions(row, part), *_behind(order, row, after))
            .order_by(*order.columns(row))
            .limit(limit)
            .correlate(part)
        )

    def _chosen(self, part: Part) -> ColumnElement[bool]:
        ids = self.workloads if part is WorkloadRow else self.facets
        assert ids is not None
        return part.id.in_(ids.correlate(None))

    def _conditions(self, row: Any, part: Part | None) -> list[ColumnElement[bool]]:
        """Return the conditions on a measurement, without that on the part that is walked."""
        query = self.query
        found: list[ColumnElement[bool]] = []
        if self.workloads is not None and part is not WorkloadRow:
            found.append(row.workload_id.in_(self.workloads.correlate(None)))
        if self.facets is not None and part is not FacetRow:
            found.append(row.facet_id.in_(self.facets.correlate(None)))
        if query.program_digest is not None:
            programs = select(ProgramRow.id).where(ProgramRow.digest == query.program_digest)
            found.append(row.program_id.in_(programs))
        if query.since is not None:
            found.append(row.measured_at >= query.since)
        if query.until is not None:
            found.append(row.measured_at < query.until)
        if query.run is not None:
            trials = select(TrialRow.id).join(RunRow, TrialRow.run_id == RunRow.id)
            found.append(row.trial_id.in_(trials.where(RunRow.public_id == query.run)))
        return found

    def _facets(self) -> Select[int] | None:
        query, facet = self.query, FacetRow
        only_ok = query.best_first or query.winners
        wanted: list[ColumnElement[bool]] = []
        if query.kernel is not None:
            wanted.append(facet.kernel == query.kernel)
        if query.protocol is not None:
            wanted.append(facet.protocol == query.protocol.value)
        if query.status is not None:
            wanted.append(facet.status == query.status.value)
        if only_ok:
            wanted.append(facet.status == MeasureStatus.OK.value)
        if query.hardware_key is not None:
            devices = select(HardwareRow.id).where(HardwareRow.key == query.hardware_key)
            wanted.append(facet.hardware_id == devices.scalar_subquery())
        if query.toolchain_key is not None:
            toolchains = select(ToolchainRow.id).where(ToolchainRow.key == query.toolchain_key)
            wanted.append(facet.toolchain_id == toolchains.scalar_subquery())
        return select(facet.id).where(*wanted) if wanted else None

    def _workloads(self) -> Select[int] | None:
        query, row = self.query, WorkloadRow
        columns = {
            row.key: query.workload_key,
            row.dtype: query.dtype,
            row.m: query.m,
            row.n: query.n,
            row.k: query.k,
            row.threads: query.threads,
        }
        wanted = [column == value for column, value in columns.items() if value is not None]
        if self.near is not None:
            wanted.append(row.id.in_(self.near))
        if not wanted:
            return None
        if query.kernel is not None:
            wanted.append(row.kernel == query.kernel)
        return select(row.id).where(*wanted)


def _behind(order: Order, row: Any, after: tuple[Any, int] | None) -> list[ColumnElement[bool]]:
    return [] if after is None else [order.behind(row, after)]
