"""Which facets and workloads a query of the log selects, and how to walk them in order.

The log lies in order within every facet and within every workload (``db.models``). A query that
selects a good part of the log finds its rows among the next few of the whole; one that does not
takes the first rows of each of its facets or workloads and merges those. Neither reads far, however
large the log is and however deep the page.

Statements depend on a query's ``Shape`` alone; values are bound. Each shape is built once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    BigInteger,
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
from db.reader import with_records
from db.records import MeasurementQuery
from db.types import is_among
from recommender.measurement import MeasureStatus

FEW = 1024  # facets or workloads that are walked one by one at most
PROBED = (2_000, 6_000, 20_000)  # next rows of the log that are looked at, as far as that pays
KEPT_FOR, MAX_KEPT = 64, 1000  # pages that know of one another; filters
HEAD = 30  # rows that could be looked at while the first one of a facet or workload is found
MOST_FASTEST = 2**20  # of some workloads: no limit, but PostgreSQL would guess one
FACET_FILTERS = ("protocol", "status", "hardware_key", "toolchain_key")
WORKLOAD_FILTERS = {"workload_key": "key", "dtype": "dtype", "m": "m", "n": "n", "k": "k",
                    "threads": "threads"}  # fmt: skip
OWN_INDEX = {"run", "created_by"}  # filters that select few measurements by an index of their own
OTHER_FILTERS = ("kernel", "program_digest", "since", "until", "run", "created_by")
Ask = Callable[[Select[Any], Mapping[str, Any]], Sequence[Any]]  # ``Database.ask``


def _table(row: type[Base]) -> Table:
    table = row.__table__
    assert isinstance(table, Table)
    return table


LOG, FACETS, WORKLOADS = _table(MeasurementRow), _table(FacetRow), _table(WorkloadRow)
PAIRS = _table(WorkloadFacetRow)
HARDWARE, TOOLCHAINS, PROGRAMS = _table(HardwareRow), _table(ToolchainRow), _table(ProgramRow)
TRIALS, RUNS = _table(TrialRow), _table(RunRow)
PART = LOG.alias("part")
LIMIT = bindparam("limit", type_=BigInteger())
WALKED = {"workload": (WORKLOADS, PART.c.workload_id), "facet": (FACETS, PART.c.facet_id)}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a statement depends on: the names of the filters, the order, what is walked."""

    names: frozenset[str]
    dialect: str
    by_time: bool = False
    only_ok: bool = False
    goes_on: bool = False  # behind a key
    walked: str = ""  # table that is walked row by row

    @property
    def has_facets(self) -> bool:
        """Whether a filter selects facets; workloads that are selected tell the kernel, too."""
        if self.only_ok or self.names & {*FACET_FILTERS}:
            return True
        return "kernel" in self.names and not self.has_workloads

    @property
    def has_workloads(self) -> bool:
        """Whether a filter selects workloads."""
        return bool(self.names & {"near", *WORKLOAD_FILTERS})

    def keys(self, row: Any) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        """Return what says where some measurements stand in the order: ``value`` and ``id``."""
        value, number = self._place(row)
        return value.label("value"), number

    def _place(self, row: Any) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        return row.time_s if self.by_time else row.measured_at, row.id

    def order(self, row: Any) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        """Return the columns of the order of some measurements."""
        value, number = self._place(row)
        return (value.asc(), number.asc()) if self.by_time else (value.desc(), number.desc())

    def conditions(self, row: Any, *, is_dated: bool = False) -> list[ColumnElement[bool]]:
        """Return the conditions on a measurement, without that on the part that is walked.

        ``is_dated``: nor those on the time of measuring.
        """
        found: list[ColumnElement[bool]] = []
        if self.has_workloads and self.walked != WORKLOADS.name:
            found.append(row.workload_id.in_(workloads(self)))
        if self.has_facets and self.walked != FACETS.name:
            found.append(row.facet_id.in_(facets(self)))
        if "program_digest" in self.names:
            programs = select(PROGRAMS.c.id).where(_is(PROGRAMS.c.digest, "program_digest"))
            found.append(row.program_id.in_(programs))
        if not is_dated:  # twice the same would let PostgreSQL expect next to no rows
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
        key = tuple_(*self._place(row))
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
    return select(WORKLOADS.c.id).where(*workload_conditions(shape)).correlate(None)


def workload_conditions(shape: Shape) -> list[ColumnElement[bool]]:
    """Return the conditions on a workload."""
    c = WORKLOADS.c
    wanted = [_is(c[column], n) for n, column in WORKLOAD_FILTERS.items() if n in shape.names]
    if "near" in shape.names:
        wanted.append(is_among(c.id, "near", shape.dialect))
    if "kernel" in shape.names:
        wanted.append(_is(c.kernel, "kernel"))
    return wanted


@lru_cache(maxsize=1000)
def first_rows(shape: Shape, most: int, probed: int = 0) -> Select[Any]:
    """Return the query of the first rows of ``reader.FLAT``, ``most`` at most, with their keys.

    With ``probed`` only of those among so many rows of the whole log; what belongs to them is read
    where they are as many as wanted.
    """
    if probed:
        return with_records(probe(shape, probed), most, wanted=LIMIT)
    return with_records(merged(shape) if shape.walked else whole(shape), most)


@lru_cache(maxsize=1000)
def whole(shape: Shape) -> Select[Any]:
    """Return the query of keys that walks the whole log."""
    c = LOG.c
    found = select(*shape.keys(c)).where(*shape.conditions(c), *shape.behind(c))
    return found.order_by(*shape.order(c)).limit(LIMIT)


@lru_cache(maxsize=1000)
def probe(shape: Shape, probed: int) -> Select[Any]:
    """Return the query of the matching ones among the next rows of the whole log.

    ``probed``, how many those are, stands in the text: PostgreSQL guesses a tenth of the log where
    it is bound, and other plans are good for that.
    """
    c = LOG.c
    columns = [c.id, c.facet_id, c.workload_id, c.time_s if shape.by_time else c.measured_at]
    if "program_digest" in shape.names:
        columns.append(c.program_id)
    if shape.by_time and shape.names & {"since", "until"}:
        columns.append(c.measured_at)
    ordered_by = shape.timed(c) or shape.dates(c)
    rows = select(*columns).where(*ordered_by, *shape.behind(c)).order_by(*shape.order(c))
    part = rows.limit(literal_column(str(probed))).subquery().c
    is_dated = not shape.by_time
    found = select(*shape.keys(part)).where(*shape.conditions(part, is_dated=is_dated))
    return found.order_by(*shape.order(part)).limit(LIMIT)


@lru_cache(maxsize=1000)
def merged(shape: Shape) -> Select[Any]:
    """Return the query that walks facets or workloads one by one and merges what it finds.

    The first row of each says which of them can have any of the first ``limit`` rows: as many as
    that, those whose own first rows are foremost. The others are looked at once. Not so of times
    of workloads, or within some days: there no index has them in order, and a first row takes as
    long as all of them.
    """
    outer, own = WALKED[shape.walked]
    by_workload = outer is WORKLOADS
    chosen = workload_conditions(shape) if by_workload else facet_conditions(shape)
    conditions = (*shape.timed(PART.c), *shape.conditions(PART.c), *shape.behind(PART.c))
    key = PART.c.time_s if shape.by_time else PART.c.measured_at  # the indices have one of them
    row: Any

    def rows(part: FromClause, limit: ColumnElement[int]) -> Select[Any]:
        inner = select(PART.c.id).where(own == part.c.id, *conditions)
        return inner.order_by(*shape.order(PART.c)).limit(limit).correlate(part)

    has_heads = not (shape.by_time and (by_workload or shape.dates(PART.c)))
    part: FromClause = outer
    count: ColumnElement[int] = LIMIT
    if shape.dialect == "sqlite":  # knows no LATERAL but looks up ids as fast
        if has_heads:
            head = LOG.alias("head")
            first = rows(outer, literal_column("1")).scalar_subquery()
            foremost = select(outer.c.id).join(head, head.c.id == first).where(*chosen)
            part = foremost.order_by(*shape.order(head.c)).limit(LIMIT).subquery("foremost")
        joined, row = part.join(LOG, LOG.c.id.in_(rows(part, count))), LOG.c
    else:
        if has_heads:
            lateral = rows(outer, literal_column("1")).add_columns(key).lateral("head")
            order = shape.order(lateral.c)
            place = func.row_number().over(order_by=order).label("place")
            foremost = select(outer.c.id, place).join(lateral, true()).where(*chosen)
            part = foremost.order_by(*order).limit(LIMIT).subquery("foremost")
            # Of the second foremost all but the last row can be among them, and so on.
            count = LIMIT + literal_column("1") - part.c.place
        found = rows(part, count).add_columns(key).lateral("found")
        joined, row = part.join(found, true()), found.c
    merged = select(*shape.keys(row)).select_from(joined)
    if not has_heads:
        merged = merged.where(*chosen)
    return merged.order_by(*shape.order(row)).limit(LIMIT)


@lru_cache(maxsize=1000)
def counted(shape: Shape, table: str) -> Select[Any]:
    """Return the query of how many workloads or facets are selected, FEW + 1 at most."""
    ids = workloads(shape) if table == WORKLOADS.name else facets(shape)
    return select(func.count()).select_from(ids.limit(FEW + 1).subquery())


@lru_cache(maxsize=1000)
def fastest(shape: Shape) -> Select[Any]:
    """Return the query of the fastest measurement in every facet of the workloads ``some``.

    Each is the first of its facet in the index of its workload, so that the rest is not read.
    Conditions on workloads are not looked at.
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
    if shape.dialect == "sqlite":
        joined, row = joined.join(LOG, LOG.c.id == inner.scalar_subquery()), LOG.c
    else:
        first = inner.add_columns(PART.c.time_s).lateral()
        joined, row = joined.join(first, true()), first.c
    found = select(pair.workload_id, facet.hardware_id, facet.protocol, row.time_s, row.id)
    wanted = (is_among(pair.workload_id, "some", shape.dialect), *facet_conditions(shape))
    return found.select_from(joined).where(*wanted)


@lru_cache(maxsize=1000)
def fastest_records(shape: Shape) -> Select[Any]:
    """Return the query of ``reader.FLAT`` of what ``fastest`` finds."""
    return with_records(fastest(shape), MOST_FASTEST)


@lru_cache(maxsize=1000)
def workloads_behind(shape: Shape) -> Select[Any]:
    """Return the query of the first workloads behind one, ascending."""
    query = workloads(shape).where(WORKLOADS.c.id > bindparam("behind", type_=WORKLOADS.c.id.type))
    return query.order_by(WORKLOADS.c.id).limit(LIMIT)


@lru_cache(maxsize=1000)
def pairs(shape: Shape) -> Select[Any]:
    """Return the query of some of the pairs of workload and device of the matching ones."""
    query = select(LOG.c.workload_id, LOG.c.hardware_id).where(*shape.conditions(LOG.c))
    return query.distinct().limit(LIMIT)


class Scope:
    """The facets, the workloads and the other conditions of one query."""

    def __init__(
        self, query: MeasurementQuery, dialect: str, near: Sequence[int] | None = None
    ) -> None:
        self.query, self.near = query, near
        names = (*FACET_FILTERS, *WORKLOAD_FILTERS, *OTHER_FILTERS)
        values = {name: getattr(query, name) for name in names}
        self.values: dict[str, Any] = {n: v for n, v in values.items() if v is not None}
        if near is not None:
            self.values["near"] = list(near)
        only_ok = query.best_first or query.winners
        self.shape = Shape(frozenset(self.values), dialect, query.best_first, only_ok)

    def rows(
        self, ask: Ask, after: tuple[Any, int] | None, limit: int, ways: Ways
    ) -> Sequence[Any]:
        """Return the first measurements behind the key ``after``, in order.

        Returns:
            Of each the columns of ``FLAT`` and its key: ``key_value``, ``key_id``.
        """
        shape = replace(self.shape, goes_on=after is not None)
        values = self.values | {"limit": limit}
        if after is not None:
            values |= {"after_value": after[0], "after_id": after[1]}
        found = self._rows(ask, shape, values, ways)
        place = attrgetter("key_value", "key_id")
        return sorted(found, key=place, reverse=not shape.by_time)

    def _rows(self, ask: Ask, shape: Shape, values: Mapping[str, Any], ways: Ways) -> Sequence[Any]:
        limit, most = values["limit"], _most(values["limit"])
        if shape.names & OWN_INDEX or not (shape.has_facets or shape.has_workloads):
            return ask(first_rows(shape, most), values)
        way = ways.of(self, ask)
        merging = HEAD * way.count + min(way.count, limit) * limit // 2
        by_date = shape.by_time and shape.names & {"since", "until"}
        if way.walked and (by_date or merging <= PROBED[0]):
            return ask(first_rows(replace(shape, walked=way.walked), most), values)
        while way.probed:
            found = ask(first_rows(shape, most, way.probed), values)
            if len(found) >= limit:
                return found
            way.probed = _farther(way.probed, limit, len(found), merging if way.walked else None)
        return ask(first_rows(replace(shape, walked=way.walked), most), values)

    def workload_ids(self, ask: Ask, after: int, limit: int) -> list[int]:
        """Return the ids of the first workloads behind ``after``, ascending."""
        values = self.values | {"behind": after, "limit": limit}
        return [row.id for row in ask(workloads_behind(self.shape), values)]

    def fastest(
        self, ask: Ask, workload_ids: Sequence[int]
    ) -> Sequence[tuple[int, int, str, float, int]]:
        """Return the fastest OK measurement in every facet of some workloads.

        Returns:
            Workload, device, protocol, time and measurement id.
        """
        return ask(fastest(self.shape), self.values | {"some": list(workload_ids)})

    def subjects(self, ask: Ask, limit: int) -> Sequence[tuple[int, int]]:
        """Return some of the pairs of workload and device that have a measurement here."""
        return ask(pairs(self.shape), self.values | {"limit": limit})

    def way(self, ask: Ask) -> Way:
        """Return how to walk: the table to walk row by row, and of how many rows."""
        if "near" in self.values or "workload_key" in self.values:  # these are few
            return Way(WORKLOADS.name, len(self.near or (1,)))
        count = 0
        parts = ((WORKLOADS.name, self.shape.has_workloads), (FACETS.name, self.shape.has_facets))
        for table, is_selected in parts:
            if is_selected:
                count = ask(counted(self.shape, table), self.values)[0][0]
                if count <= FEW:
                    return Way(table, count)
        return Way("", count)


@dataclass(slots=True)
class Way:
    """How to find what some filters select; a guess, which no row depends on.

    Attributes:
        walked: the table to walk row by row; "": the log as a whole.
        count: of its rows that are selected.
        probed: of how many rows of the log the next probe looks at; 0: probes find too little.
        asked: how often it was asked for.
    """

    walked: str
    count: int
    probed: int = PROBED[0]
    asked: int = 0


class Ways:
    """What was found out about filters by the last pages of theirs, so that the next one need not.

    It is found out anew every ``KEPT_FOR`` pages: the log grows.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, Way] = {}

    def of(self, scope: Scope, ask: Ask) -> Way:
        """Return the way of a query."""
        if scope.near is not None:
            return scope.way(ask)
        values = {n: v for n, v in scope.values.items() if n not in ("since", "until")}
        key = (scope.shape, *values.values())
        way = self._kept.get(key)
        if way is None or way.asked >= KEPT_FOR:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            way = self._kept[key] = scope.way(ask)
        way.asked += 1
        return way


def _most(limit: int) -> int:
    """Return a number of rows that is not smaller; there are few of these, each a statement."""
    return max(64, 1 << (limit - 1).bit_length())


def _farther(probed: int, limit: int, found: int, merging: int | None) -> int:
    """Return how many rows to look at after ``probed`` ones had too few; 0: it does not pay.

    ``merging``: the rows that could be looked at while parts are merged; None: they cannot be.
    """
    expected = probed * limit // max(found, 1)
    farther = [rows for rows in PROBED if rows > probed]
    if merging is None:
        return next((rows for rows in farther if rows >= 2 * expected), (farther or [0])[-1])
    return next((rows for rows in farther if rows >= 2 * expected), 0) if expected < merging else 0
