"""The statements that walk the log, and the shape of a query, on which alone they depend.

Values are bound, so that each shape is built once. How they are put together: ``db.scope``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Select,
    Table,
    bindparam,
    case,
    false,
    func,
    literal_column,
    select,
    true,
    tuple_,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import FromClause, Join
from sqlalchemy.sql.compiler import SQLCompiler

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
from db.types import is_among, place_among
from recommender.measurement import MeasureStatus, Protocol

FEW = 8192  # facets or workloads that are walked one by one at most
ALL = 2**31 - 1  # measurements
MOST_FASTEST = 2**20  # of some workloads: no limit, but PostgreSQL would guess one
FACET_FILTERS = ("protocol", "status", "hardware_key", "toolchain_key")
WORKLOAD_FILTERS = {"workload_key": "key", "dtype": "dtype", "m": "m", "n": "n", "k": "k",
                    "threads": "threads"}  # fmt: skip
OTHER_FILTERS = ("kernel", "program_digest", "since", "until", "run", "created_by")
OWN_INDICES = ("program_id", "created_by")  # columns; the log lies in order within each value


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
WALKED = {  # parts of the log in which it lies in order, and the columns that say which
    WORKLOADS.name: ("workload_id",),
    FACETS.name: ("facet_id",),
    PAIRS.name: ("workload_id", "facet_id"),  # of those with times
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a statement depends on: the names of the filters, the order, what is walked."""

    names: frozenset[str]
    dialect: str
    by_time: bool = False
    only_ok: bool = False
    goes_on: bool = False  # behind a key
    walked: str = ""  # one of WALKED: walked part by part
    is_own_few: bool = False  # few enough measurements to look up which pairs they are of
    is_dated_few: bool = False  # the same of those within some days

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

    @property
    def own(self) -> str:
        """The column by whose index of its own the log is walked; "": none."""
        return next((name for name in OWN_INDICES if name in self.names), "")

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

    def conditions(
        self, row: Any, *, is_dated: bool = False, is_own: bool = False
    ) -> list[ColumnElement[bool]]:
        """Return the conditions on a measurement, without that on the part that is walked.

        ``is_dated``: nor those on the time of measuring; ``is_own``: nor that of the own index.
        """
        found: list[ColumnElement[bool]] = []
        if self.has_workloads and "workload_id" not in WALKED.get(self.walked, ()):
            found.append(row.workload_id.in_(workloads(self)))
        if self.has_facets and "facet_id" not in WALKED.get(self.walked, ()):
            found.append(row.facet_id.in_(facets(self)))
        if "program_digest" in self.names:
            programs = select(PROGRAMS.c.id).where(_is(PROGRAMS.c.digest, "program_digest"))
            found.append(row.program_id.in_(programs))
        if not is_dated:  # twice the same would let PostgreSQL expect next to no rows
            found += self.dates(row)
        if "run" in self.names:
            trials = select(TRIALS.c.id).join(RUNS, TRIALS.c.run_id == RUNS.c.id)
            found.append(row.trial_id.in_(trials.where(_is(RUNS.c.public_id, "run"))))
        for name in OWN_INDICES:
            if name in self.names and not (is_own and name == self.own):
                # As a CASE, for which no index is used, and which PostgreSQL expects to hold for
                # every second row: it would walk all of an author for the first of each facet.
                is_wanted = row[name] == _bound(LOG.c[name], name)
                found.append(case((is_wanted, true()), else_=false()))
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


class InOrder(Join):
    """A join that SQLite walks from left to right.

    Else it may walk all measurements, since they are in order, and look through the part for each.
    """

    inherit_cache = True


@compiles(InOrder, "sqlite")
def _in_order(join: InOrder, compiler: SQLCompiler, **given: Any) -> str:
    given["asfrom"] = True
    left, right = compiler.process(join.left, **given), compiler.process(join.right, **given)
    assert join.onclause is not None
    return f"{left} CROSS JOIN {right} ON {compiler.process(join.onclause)}"


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
    """Return the query of keys that walks the whole log, or all of its own index."""
    c = LOG.c
    is_own = bool(shape.own) and "run" not in shape.names
    conditions = shape.conditions(c, is_own=is_own)
    if is_own:
        # PostgreSQL may walk the whole log for what an index of its own has in order, and SQLite
        # sorts all that a part has.
        if shape.dialect != "sqlite" or shape.has_facets or shape.has_workloads:
            return probe(shape, ALL)
        conditions.append(c[shape.own] == _bound(c[shape.own], shape.own))
    found = select(*shape.keys(c)).where(*conditions, *shape.behind(c))
    return found.order_by(*shape.order(c)).limit(LIMIT)


@lru_cache(maxsize=1000)
def probe(shape: Shape, probed: int) -> Select[Any]:
    """Return the query of the matching ones among the next rows of the log, or of its own index.

    ``probed``, how many those are, stands in the text: PostgreSQL guesses a tenth of the log where
    it is bound, and other plans are good for that.
    """
    c = LOG.c
    columns = [c.id, c.facet_id, c.workload_id, c.time_s if shape.by_time else c.measured_at]
    if "program_digest" in shape.names:
        columns.append(c.program_id)
    columns += [c[name] for name in OWN_INDICES if name in shape.names]
    if shape.by_time and shape.names & {"since", "until"}:
        columns.append(c.measured_at)
    ordered_by = shape.timed(c) or shape.dates(c)
    if shape.own:
        ordered_by.append(c[shape.own] == _bound(c[shape.own], shape.own))
    rows = select(*columns).where(*ordered_by, *shape.behind(c)).order_by(*shape.order(c))
    part = rows.limit(literal_column(str(probed))).subquery().c
    is_dated = not shape.by_time
    found = select(*shape.keys(part)).where(*shape.conditions(part, is_dated=is_dated, is_own=True))
    return found.order_by(*shape.order(part)).limit(LIMIT)


@lru_cache(maxsize=1000)
def merged(shape: Shape) -> Select[Any]:
    """Return the query that walks parts of the log one by one and merges what it finds.

    The first row of each says which of them can have any of the first ``limit`` rows: as many as
    that, those whose own first rows are foremost. The others are looked at once. Not so of times
    within some days: no index has them in order, and a first row takes as long as all of them.
    """
    own = WALKED[shape.walked]
    chosen = _chosen(shape).subquery("chosen")
    conditions = (*shape.timed(PART.c), *shape.conditions(PART.c), *shape.behind(PART.c))
    key = PART.c.time_s if shape.by_time else PART.c.measured_at  # the indices have one of them
    row: Any

    def rows(part: FromClause, limit: ColumnElement[int]) -> Select[Any]:
        of_part = [PART.c[column] == part.c[column] for column in own]
        inner = select(PART.c.id).where(*of_part, *conditions)
        return inner.order_by(*shape.order(PART.c)).limit(limit).correlate(part)

    has_heads = not (shape.by_time and shape.dates(PART.c))
    part: FromClause = chosen
    joined: FromClause
    count: ColumnElement[int] = LIMIT
    if shape.dialect == "sqlite":  # knows no LATERAL but looks up ids as fast
        if has_heads:
            head = LOG.alias("head")
            first = rows(chosen, literal_column("1")).scalar_subquery()
            foremost = select(*chosen.c).join(head, head.c.id == first)
            part = foremost.order_by(*shape.order(head.c)).limit(LIMIT).subquery("foremost")
        joined, row = InOrder(part, LOG, LOG.c.id.in_(rows(part, count))), LOG.c
    else:
        if has_heads:
            lateral = rows(chosen, literal_column("1")).add_columns(key).lateral("head")
            order = shape.order(lateral.c)
            place = func.row_number().over(order_by=order).label("place")
            foremost = select(*chosen.c, place).join(lateral, true())
            part = foremost.order_by(*order).limit(LIMIT).subquery("foremost")
            # Of the second foremost all but the last row can be among them, and so on.
            count = LIMIT + literal_column("1") - part.c.place
        found = rows(part, count).add_columns(key).lateral("found")
        joined, row = part.join(found, true()), found.c
    query = select(*shape.keys(row)).select_from(joined)
    return query.order_by(*shape.order(row)).limit(LIMIT)


def _chosen(shape: Shape) -> Select[Any]:
    """Return the query of the parts of the log that are walked, by the columns of ``WALKED``."""
    if shape.walked == FACETS.name:
        return select(FACETS.c.id.label("facet_id")).where(*facet_conditions(shape))
    if shape.walked == WORKLOADS.name:
        return select(WORKLOADS.c.id.label("workload_id")).where(*workload_conditions(shape))
    pairs = PAIRS.join(WORKLOADS, WORKLOADS.c.id == PAIRS.c.workload_id)
    pairs = pairs.join(FACETS, FACETS.c.id == PAIRS.c.facet_id)
    wanted = (*workload_conditions(shape), *facet_conditions(shape))
    return select(PAIRS.c.workload_id, PAIRS.c.facet_id).select_from(pairs).where(*wanted)


@lru_cache(maxsize=1000)
def counted(shape: Shape, table: str) -> Select[Any]:
    """Return the query of how many workloads or facets are selected, FEW + 1 at most."""
    ids = workloads(shape) if table == WORKLOADS.name else facets(shape)
    return select(func.count()).select_from(ids.limit(FEW + 1).subquery())


@lru_cache(maxsize=100)
def own_rows(shape: Shape, most: int) -> Select[Any]:
    """Return the query of how many measurements the own index has, ``most`` + 1 at most."""
    column = LOG.c[shape.own]
    found = select(LOG.c.id).where(column == _bound(column, shape.own)).limit(most + 1)
    return select(func.count()).select_from(found.subquery())


@lru_cache(maxsize=100)
def dated_rows(shape: Shape, most: int) -> Select[Any]:
    """Return the query of how many measurements there are within the days, ``most`` + 1 at most."""
    found = select(LOG.c.id).where(*shape.dates(LOG.c)).limit(most + 1)
    return select(func.count()).select_from(found.subquery())


@lru_cache(maxsize=100)
def programs(shape: Shape) -> Select[Any]:
    """Return the query of the programs that the filters select: one, unless kernels share it."""
    c = PROGRAMS.c
    wanted = [_is(c.digest, "program_digest")]
    if "kernel" in shape.names:
        wanted.append(_is(c.kernel, "kernel"))
    return select(c.id).where(*wanted)


@lru_cache(maxsize=1000)
def fastest(shape: Shape) -> Select[Any]:
    """Return the query of ``reader.FLAT`` of the fastest in every facet of the workloads ``some``.

    Conditions on workloads are not looked at.
    """
    found = _fastest(shape, PAIRS).where(is_among(PAIRS.c.workload_id, "some", shape.dialect))
    return with_records(found, MOST_FASTEST)


def _fastest(shape: Shape, pairs: FromClause, *more: ColumnElement[Any]) -> Select[Any]:
    """Return the query of the fastest measurement of each of some ``PAIRS``.

    Each is the first of its facet in the index of its workload, so that the rest is not read.
    """
    pair, facet = pairs.c, FACETS.c
    names = shape.names & {*OTHER_FILTERS, *OWN_INDICES} - {"kernel"}
    others = replace(shape, only_ok=False, names=names)
    inner = select(PART.c.id).where(
        PART.c.workload_id == pair.workload_id, PART.c.facet_id == pair.facet_id,
        PART.c.time_s.is_not(None), *others.conditions(PART.c),
    )  # fmt: skip
    inner = inner.order_by(PART.c.time_s, PART.c.id).limit(literal_column("1")).correlate(pairs)
    joined = pairs.join(FACETS, facet.id == pair.facet_id)
    row: Any
    if shape.dialect == "sqlite":
        joined, row = joined.join(LOG, LOG.c.id == inner.scalar_subquery()), LOG.c
    else:
        first = inner.add_columns(PART.c.time_s).lateral()
        joined, row = joined.join(first, true()), first.c
    found = select(row.id, row.time_s, facet.hardware_id, facet.protocol, *more)
    return found.select_from(joined).where(*facet_conditions(shape))


def _few(shape: Shape) -> list[ColumnElement[bool]]:
    """Return the condition that few measurements meet, none of the others can be a winner's."""
    if shape.is_own_few:
        return [LOG.c[shape.own] == _bound(LOG.c[shape.own], shape.own)]
    return shape.dates(LOG.c) if shape.is_dated_few else []


@lru_cache(maxsize=1000)
def winners(shape: Shape, most: int, width: int) -> Select[Any]:
    """Return the query of ``reader.FLAT`` of the winners of workloads, one of each device.

    Those behind the ``key_number`` and ``key_device`` that are bound as ``after_number`` and
    ``after_device``, the first ``limit`` ones (``most`` at most) of the next ``width`` workloads.
    The number of a workload is its id; with ``near``, its place there. ``key_end``, of every row,
    is the last number that was looked at, null where no workloads are left. Without a winner there
    is one row, without ``id``.
    """
    number: ColumnElement[int] = WORKLOADS.c.id
    if "near" in shape.names:
        number = place_among(WORKLOADS.c.id, "near", shape.dialect)
    after = [bindparam(f"after_{name}", type_=BigInteger()) for name in ("number", "device")]
    chosen = select(WORKLOADS.c.id, number.label("number"))
    chosen = chosen.where(*workload_conditions(shape), number >= after[0]).order_by(number)
    if few := _few(shape):
        chosen = chosen.where(WORKLOADS.c.id.in_(select(LOG.c.workload_id).where(*few)))
    looked_at = chosen.limit(literal_column(str(width))).cte("looked_at")
    is_full = func.count() == literal_column(str(width))
    end = select(case((is_full, func.max(looked_at.c.number))).label("end")).subquery()

    of_these = select(*PAIRS.c, looked_at.c.number).join_from(
        looked_at, PAIRS, PAIRS.c.workload_id == looked_at.c.id
    )
    if few:
        theirs = select(LOG.c.workload_id, LOG.c.facet_id).where(*few)
        of_these = of_these.where(tuple_(PAIRS.c.workload_id, PAIRS.c.facet_id).in_(theirs))
    # The limit keeps databases from going through all facets for each of the workloads.
    some = of_these.limit(literal_column(str(MOST_FASTEST))).subquery("some")
    first = _fastest(shape, some, some.c.number).subquery("first").c
    rivals = (first.number, first.hardware_id)
    order = (first.protocol != Protocol.CONFIRM.value, first.time_s, first.id)
    place = func.row_number().over(partition_by=rivals, order_by=order).label("place")
    ranked = select(first.id, first.number, first.hardware_id.label("device"), place)
    part = ranked.where(tuple_(*rivals) > tuple_(*after)).subquery("ranked").c
    found = select(part.id, part.number, part.device).where(part.place == literal_column("1"))
    best = found.order_by(part.number, part.device).limit(LIMIT).subquery("best")
    return with_records(select(*best.c, end.c.end).select_from(end.outerjoin(best, true())), most)


@lru_cache(maxsize=1000)
def pairs(shape: Shape) -> Select[Any]:
    """Return the query of some of the pairs of workload and device of the matching ones."""
    query = select(LOG.c.workload_id, LOG.c.hardware_id).where(*shape.conditions(LOG.c))
    return query.distinct().limit(LIMIT)
