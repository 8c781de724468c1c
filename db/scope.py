"""Which facets and workloads a query of the log selects, and how to walk them in order.

The log lies in order within every facet and within every workload (``db.models``). A query that
selects a good part of the log finds its rows among the next few of the whole; one that does not
takes the first rows of each of its facets or workloads and merges those. Neither reads far, however
large the log is and however deep the page.

Statements depend on a query's ``Shape`` alone; values are bound. Each shape is built once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Select,
    Table,
    bindparam,
    func,
    literal_column,
    select,
    true,
    tuple_,
)
from sqlalchemy.orm import Session
from sqlalchemy.sql import FromClause

from db.models import (
    Base,
    FacetRow,
    HardwareRow,
    MeasurementRow,
    ProgramRow,
    RunRow,
    ToolchainRow,
    TrialRow,
    WorkloadFacetRow,
    WorkloadRow,
)
from db.records import MeasurementQuery
from db.types import is_among
from recommender.measurement import MeasureStatus

FEW = 1024  # facets or workloads that are walked one by one at most
DIRECT = 4  # so few are walked at once
PROBED = 2_000  # next rows of the log looked at first: a scope that is not rare ends there
FARTHER = 20_000  # rows looked at next, where that costs less than merging
MERGED = 10_000  # ids that cost as much to merge: each is looked up
FACET_FILTERS = ("protocol", "status", "hardware_key", "toolchain_key")
WORKLOAD_FILTERS = {"workload_key": "key", "dtype": "dtype", "m": "m", "n": "n", "k": "k",
                    "threads": "threads"}  # fmt: skip
OWN_INDEX = {"run", "created_by"}  # filters that select few measurements by an index of their own
OTHER_FILTERS = ("kernel", "program_digest", "since", "until", "run", "created_by")


def _table(row: type[Base]) -> Table:
    table = row.__table__
    assert isinstance(table, Table)
    return table


LOG, FACETS, WORKLOADS = _table(MeasurementRow), _table(FacetRow), _table(WorkloadRow)
PAIRS = _table(WorkloadFacetRow)
HARDWARE, TOOLCHAINS, PROGRAMS = _table(HardwareRow), _table(ToolchainRow), _table(ProgramRow)
TRIALS, RUNS = _table(TrialRow), _table(RunRow)
PART = LOG.alias("part")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a statement depends on: the names of the filters, the order, what is walked."""

    names: frozenset[str]
    by_time: bool = False
    only_ok: bool = False
    goes_on: bool = False  # behind a key
    walked: str = ""  # table that is walked row by row

    @property
    def has_facets(self) -> bool:
        """Whether a filter selects facets."""
        return self.only_ok or bool(self.names & {"kernel", *FACET_FILTERS})

    @property
    def has_workloads(self) -> bool:
        """Whether a filter selects workloads."""
        return bool(self.names & {"near", *WORKLOAD_FILTERS})

    def keys(self, row: Any) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        """Return what says where some measurements stand in the order: a value, and the id."""
        return row.time_s if self.by_time else row.measured_at, row.id

    def order(self, row: Any) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        """Return the columns of the order of some measurements."""
        value, number = self.keys(row)
        return (value.asc(), number.asc()) if self.by_time else (value.desc(), number.desc())

    def conditions(self, row: Any) -> list[ColumnElement[bool]]:
        """Return the conditions on a measurement, without that on the part that is walked."""
        found: list[ColumnElement[bool]] = []
        if self.has_workloads and self.walked != WORKLOADS.name:
            found.append(row.workload_id.in_(workloads(self)))
        if self.has_facets and self.walked != FACETS.name:
            found.append(row.facet_id.in_(facets(self)))
        if "program_digest" in self.names:
            programs = select(PROGRAMS.c.id).where(_is(PROGRAMS.c.digest, "program_digest"))
            found.append(row.program_id.in_(programs))
        found += self.dates(row)
        if "run" in self.names:
            trials = select(TRIALS.c.id).join(RUNS, TRIALS.c.run_id == RUNS.c.id)
            found.append(row.trial_id.in_(trials.where(_is(RUNS.c.public_id, "run"))))
        if "created_by" in self.names:
            found.append(row.created_by == _bound(LOG.c.created_by, "created_by"))
        return found

    def dates(self, row: Any) -> list[ColumnElement[bool]]:
        """Return the conditions on the time of measuring."""
        found: list[ColumnElement[bool]] = []
        if "since" in self.names:
            found.append(row.measured_at >= _bound(LOG.c.measured_at, "since"))
        if "until" in self.names:
            found.append(row.measured_at < _bound(LOG.c.measured_at, "until"))
        return found

    def timed(self, row: Any) -> list[ColumnElement[bool]]:
        """Return the condition of the index of the times of a workload, where they are in order."""
        return [row.time_s.is_not(None)] if self.by_time else []

    def behind(self, row: Any) -> list[ColumnElement[bool]]:
        """Return the condition of the rows that come behind the key, if there is one."""
        if not self.goes_on:
            return []
        first = LOG.c.time_s if self.by_time else LOG.c.measured_at
        key = tuple_(*self.keys(row))
        bound = tuple_(_bound(first, "after_value"), _bound(LOG.c.id, "after_id"))
        return [key > bound if self.by_time else key < bound]


def _bound(column: Column[Any], name: str) -> Any:
    return bindparam(name, type_=column.type)


def _is(column: Column[Any], name: str) -> ColumnElement[bool]:
    found: ColumnElement[bool] = column == _bound(column, name)
    return found


def facets(shape: Shape) -> Select[Any]:
    """Return the query of the facets that the filters select."""
    return select(FACETS.c.id).where(*facet_conditions(shape)).correlate(None)


def facet_conditions(shape: Shape) -> list[ColumnElement[bool]]:
    """Return the conditions on a facet."""
    c, names = FACETS.c, shape.names
    wanted = [_is(c[name], name) for name in ("kernel", "protocol", "status") if name in names]
    if shape.only_ok:
        wanted.append(c.status == MeasureStatus.OK.value)
    if "hardware_key" in names:
        devices = select(HARDWARE.c.id).where(_is(HARDWARE.c.key, "hardware_key"))
        wanted.append(c.hardware_id == devices.scalar_subquery())
    if "toolchain_key" in names:
        toolchains = select(TOOLCHAINS.c.id).where(_is(TOOLCHAINS.c.key, "toolchain_key"))
        wanted.append(c.toolchain_id == toolchains.scalar_subquery())
    return wanted


def workloads(shape: Shape) -> Select[Any]:
    """Return the query of the workloads that the filters select."""
    c = WORKLOADS.c
    wanted = [_is(c[column], n) for n, column in WORKLOAD_FILTERS.items() if n in shape.names]
    if "near" in shape.names:
        wanted.append(c.id.in_(bindparam("near", expanding=True)))
    if "kernel" in shape.names:
        wanted.append(_is(c.kernel, "kernel"))
    return select(c.id).where(*wanted).correlate(None)


@lru_cache(maxsize=1000)
def whole(shape: Shape) -> Select[Any]:
    """Return the query of keys that walks the whole log."""
    c = LOG.c
    found = select(*shape.keys(c)).where(*shape.conditions(c), *shape.behind(c))
    return found.order_by(*shape.order(c)).limit(bindparam("limit"))


@lru_cache(maxsize=1000)
def probe(shape: Shape) -> Select[Any]:
    """Return the query of the matching ones among the next rows of the whole log."""
    c = LOG.c
    columns = [c.id, c.facet_id, c.workload_id, c.time_s if shape.by_time else c.measured_at]
    if "program_digest" in shape.names:
        columns.append(c.program_id)
    if shape.by_time and shape.names & {"since", "until"}:
        columns.append(c.measured_at)
    ordered_by = shape.timed(c) or shape.dates(c)
    rows = select(*columns).where(*ordered_by, *shape.behind(c)).order_by(*shape.order(c))
    part = rows.limit(bindparam("probed")).subquery().c
    found = select(*shape.keys(part)).where(*shape.conditions(part))
    return found.order_by(*shape.order(part)).limit(bindparam("limit"))


@lru_cache(maxsize=1000)
def merged(shape: Shape, dialect: str) -> Select[Any]:
    """Return the query that walks facets or workloads one by one and merges what it finds."""
    by_workload = shape.walked == WORKLOADS.name
    outer: Table = WORKLOADS if by_workload else FACETS
    own = PART.c.workload_id if by_workload else PART.c.facet_id
    inner = select(PART.c.id).where(
        own == outer.c.id, *shape.timed(PART.c), *shape.conditions(PART.c), *shape.behind(PART.c)
    )
    inner = inner.order_by(*shape.order(PART.c)).limit(bindparam("limit")).correlate(outer)
    joined: FromClause
    row: Any
    if dialect == "sqlite":  # knows no LATERAL but looks up ids as fast
        joined, row = outer.join(LOG, LOG.c.id.in_(inner)), LOG.c
    else:
        part = inner.add_columns(PART.c.measured_at, PART.c.time_s).lateral()
        joined, row = outer.join(part, true()), part.c
    chosen = workloads(shape) if by_workload else facets(shape)
    found = select(*shape.keys(row)).select_from(joined).where(outer.c.id.in_(chosen))
    return found.order_by(*shape.order(row)).limit(bindparam("limit"))


@lru_cache(maxsize=1000)
def counted(shape: Shape, table: str) -> Select[Any]:
    """Return the query of how many workloads or facets are selected, FEW + 1 at most."""
    ids = workloads(shape) if table == WORKLOADS.name else facets(shape)
    return select(func.count()).select_from(ids.limit(FEW + 1).subquery())


@lru_cache(maxsize=1000)
def fastest(shape: Shape, dialect: str) -> Select[Any]:
    """Return the query of the fastest measurement in every facet of the workloads ``some``.

    Each is the first of its facet in the index of its workload, so that the rest is not read.

    Args:
        shape: of the query; its conditions on workloads are not looked at.
        dialect: of the database.
    """
    pair, facet = PAIRS.c, FACETS.c
    others = replace(shape, only_ok=False, names=shape.names & {*OTHER_FILTERS} - {"kernel"})
    inner = select(PART.c.id).where(
        PART.c.workload_id == pair.workload_id, PART.c.facet_id == pair.facet_id,
        PART.c.time_s.is_not(None), *others.conditions(PART.c),
    )  # fmt: skip
    inner = inner.order_by(PART.c.time_s, PART.c.id).limit(literal_column("1")).correlate(PAIRS)
    joined = PAIRS.join(FACETS, facet.id == pair.facet_id)
    row: Any
    if dialect == "sqlite":
        joined, row = joined.join(LOG, LOG.c.id == inner.scalar_subquery()), LOG.c
    else:
        first = inner.add_columns(PART.c.time_s).lateral()
        joined, row = joined.join(first, true()), first.c
    found = select(pair.workload_id, facet.hardware_id, facet.protocol, row.time_s, row.id)
    wanted = (is_among(pair.workload_id, "some", dialect), *facet_conditions(shape))
    return found.select_from(joined).where(*wanted)


class Scope:
    """The facets, the workloads and the other conditions of one query."""

    def __init__(self, query: MeasurementQuery, near: Sequence[int] | None = None) -> None:
        self.query, self.near = query, near
        names = (*FACET_FILTERS, *WORKLOAD_FILTERS, *OTHER_FILTERS)
        values = {name: getattr(query, name) for name in names}
        self.values: dict[str, Any] = {n: v for n, v in values.items() if v is not None}
        if near is not None:
            self.values["near"] = list(near)
        only_ok = query.best_first or query.winners
        self.shape = Shape(frozenset(self.values), query.best_first, only_ok)

    def keys(
        self, session: Session, after: tuple[Any, int] | None, limit: int
    ) -> Sequence[tuple[Any, int]]:
        """Return the keys of the first measurements behind the key ``after``, in order.

        Returns:
            Of each its time, or when it was measured, as the order says; and its id.
        """
        shape = replace(self.shape, goes_on=after is not None)
        values = self.values | {"limit": limit}
        if after is not None:
            values |= {"after_value": after[0], "after_id": after[1]}
        if shape.names & OWN_INDEX or not (shape.has_facets or shape.has_workloads):
            return _keys(session, whole(shape), values)
        walked, count = self._few(session)
        by_other_index = shape.by_time and shape.names & {"since", "until"}
        if count > DIRECT and not (by_other_index and walked):
            found = _keys(session, probe(shape), values | {"probed": max(PROBED, limit)})
            if len(found) < limit and count * limit > MERGED:
                farther = min(2 * PROBED * limit // max(len(found), 1), FARTHER)
                found = _keys(session, probe(shape), values | {"probed": farther})
            if len(found) == limit:
                return found
        if not walked:
            return _keys(session, whole(shape), values)
        dialect = session.get_bind().dialect.name
        return _keys(session, merged(replace(shape, walked=walked), dialect), values)

    def workload_ids(self, session: Session, after: int, limit: int) -> list[int]:
        """Return the ids of the first workloads behind ``after``, ascending."""
        query = workloads(self.shape).where(WORKLOADS.c.id > after)
        return _ids(session, query.order_by(WORKLOADS.c.id).limit(limit), self.values)

    def fastest(
        self, session: Session, workload_ids: Sequence[int]
    ) -> Sequence[tuple[int, int, str, float, int]]:
        """Return the fastest OK measurement in every facet of some workloads.

        Returns:
            Workload, device, protocol, time and measurement id.
        """
        values = self.values | {"some": list(workload_ids)}
        query = fastest(self.shape, session.get_bind().dialect.name)
        return [tuple(row) for row in session.connection().execute(query, values).all()]

    def subjects(self, session: Session, limit: int) -> list[tuple[int, int]]:
        """Return some of the pairs of workload and device that have a measurement here."""
        query = select(LOG.c.workload_id, LOG.c.hardware_id).where(*self.shape.conditions(LOG.c))
        found = session.connection().execute(query.distinct().limit(limit), self.values)
        return [(workload, device) for workload, device in found]

    def _few(self, session: Session) -> tuple[str, int]:
        """Return the table to walk row by row ("": the log as a whole) and of how many rows."""
        count = 0
        parts = ((WORKLOADS.name, self.shape.has_workloads), (FACETS.name, self.shape.has_facets))
        for table, is_selected in parts:
            if is_selected:
                query = counted(self.shape, table)
                count = session.connection().execute(query, self.values).scalar_one()
                if count <= FEW:
                    return table, count
        return "", count


def _keys(
    session: Session, query: Select[Any], values: dict[str, Any]
) -> Sequence[tuple[Any, int]]:
    return [(row[0], row[1]) for row in session.connection().execute(query, values).all()]


def _ids(session: Session, query: Select[Any], values: dict[str, Any]) -> list[int]:
    return list(session.connection().execute(query, values).scalars().all())
