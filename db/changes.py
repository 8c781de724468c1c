"""What was committed since somebody looked: which kernels, workloads and winners it concerns."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    or_,
    select,
)
from sqlalchemy.orm import aliased

from db.models import HardwareRow, MeasurementRow, WorkloadRow
from db.rows import workload_of
from db.service_models import CompactionRow, DriftRow, ModelRow
from db.session import Database
from recommender.workload import Workload

MOST = 2000  # new measurements that are told apart
# PostgreSQL: how many of the last numbers are looked at in the beginning. One that a transaction
# under way then took before these is told with the next of its workload.
RECENT = 1000
# PostgreSQL: between taking a number and being listed as a transaction that writes.
UNLISTED_S = 1.0


@dataclass(frozen=True, slots=True)
class Changes:
    """What was committed between two looks.

    Attributes:
        everything: devices, models, drifts, what is kept of the log; or more than is told apart.
        kernels: of which something was measured.
        grown: workloads that were measured for the first time, or for the first time on a device,
            with a toolchain, by a protocol.
        workloads: keys of those of which something was measured.
        won: ids of workloads that have a new fastest measurement of a device, toolchain and
            protocol.
    """

    everything: bool = False
    kernels: frozenset[str] = frozenset()
    grown: frozenset[Workload] = frozenset()
    workloads: frozenset[str] = frozenset()
    won: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return self.everything or bool(self.kernels)


NOTHING, EVERYTHING = Changes(), Changes(everything=True)


class Follower:
    """Follows what is committed to one database, from when it was made. For one thread at a time.

    Measurements are numbered as they are written; on PostgreSQL transactions may commit in another
    order. There, numbers behind ``_closed`` are looked for again until all transactions have ended
    that may have taken one of them (of any database of the server: its snapshots do not tell).
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_serial = database.engine.dialect.name == "sqlite"
        self._state = STATE if self._is_serial else STATE.add_columns(UNDER_WAY)
        self._facts: tuple[object, ...] | None = None
        self._closed = 0  # no measurement with this number or a lower one will be committed
        self._seen: set[int] = set()  # numbers behind it
        self._closing: tuple[int, _Moment] | None = None  # the next number like that, and how old

    def look(self) -> Changes:
        """Return what was committed since the last look; everything at the first one.

        Raises:
            DatabaseError: it cannot be asked; the next look then tells everything.
        """
        try:
            return self._look()
        except BaseException:
            self._facts = None
            raise

    def _look(self) -> Changes:
        (found,) = self._database.ask(self._state, {})
        facts = tuple(found)[1 : 1 + len(FACTS)]
        if facts != self._facts:
            self._facts = facts
            return self._begin(found)
        if found.newest == self._closed:
            return NOTHING
        numbers = self._numbers()
        if len(numbers) > MOST:
            return self._begin(found)
        changes = self._told(numbers - self._seen)
        self._seen = numbers
        self._close(found, max(numbers, default=self._closed))
        return changes

    def _begin(self, found: Any) -> Changes:
        """Follow what comes from now on."""
        self._closed = found.newest if self._is_serial else max(0, found.newest - RECENT)
        self._closing, self._seen = None, set()
        if not self._is_serial:
            self._close(found, found.newest)
            self._seen = self._numbers()
        return EVERYTHING

    def _numbers(self) -> set[int]:
        """Return the numbers of measurements behind the closed ones."""
        rows = self._database.ask(NUMBERS, {"closed": self._closed, "most": MOST + 1})
        return {row.id for row in rows}

    def _told(self, new: set[int]) -> Changes:
        """Return what measurements change."""
        if not new:
            return NOTHING
        rows = self._database.ask(TOLD, {"first": min(new), "last": max(new)})
        rows = [row for row in rows if row.id in new]
        return Changes(
            kernels=frozenset(row.kernel for row in rows),
            grown=frozenset(workload_of(row) for row in rows if row.is_first),
            workloads=frozenset(row.key for row in rows),
            won=frozenset(row.workload_id for row in rows if row.is_fastest),
        )

    def _close(self, found: Any, newest: int) -> None:
        """Note up to which number nothing will be committed any more."""
        if self._is_serial:
            self._closed = newest
        else:
            if self._closing is not None and self._closing[1].is_over(found):
                self._closed, self._closing = self._closing[0], None
            if self._closing is None and found.newest > self._closed:
                self._closing = found.newest, self._moment()
        self._seen = {number for number in self._seen if number > self._closed}

    def _moment(self) -> _Moment:
        ((number,),) = self._database.ask(NEXT_TRANSACTION, {})
        return _Moment(number, time.monotonic())


@dataclass(frozen=True, slots=True)
class _Moment:
    """When PostgreSQL gave the number ``transaction``: those that had begun have lower ones."""

    transaction: int
    at: float

    def is_over(self, found: Any) -> bool:
        """Return whether all that had begun by then has ended."""
        return bool(found.under_way > self.transaction) and time.monotonic() - self.at > UNLISTED_S


FACTS = (
    select(func.max(ModelRow.id)).scalar_subquery(),
    select(func.sum(ModelRow.id)).where(ModelRow.state == "active").scalar_subquery(),
    select(func.max(HardwareRow.updated_at)).scalar_subquery(),
    select(func.count(HardwareRow.id)).scalar_subquery(),
    select(func.max(DriftRow.id)).scalar_subquery(),
    select(func.count(DriftRow.ended_at)).scalar_subquery(),
    select(func.sum(CompactionRow.removed)).scalar_subquery(),
)
NEWEST = select(func.coalesce(func.max(MeasurementRow.id), 0)).scalar_subquery().label("newest")
STATE = select(NEWEST, *FACTS)


def _as_number(of_transaction: Any) -> Any:
    return cast(cast(of_transaction, Text), BigInteger)


# The first transaction that has not ended; what is under way may have higher numbers than the
# snapshot's xmax, so that a number has to be taken to know one that nobody has yet.
UNDER_WAY = _as_number(func.pg_snapshot_xmin(func.pg_current_snapshot())).label("under_way")
NEXT_TRANSACTION = select(_as_number(func.pg_current_xact_id()))


def _number_of(name: str) -> BindParameter[int]:
    return bindparam(name, type_=MeasurementRow.id.type)


NUMBERS = (
    select(MeasurementRow.id)
    .where(MeasurementRow.id > _number_of("closed"))
    .order_by(MeasurementRow.id)
    .limit(bindparam("most", type_=Integer()))
)


def _changed() -> Select[Any]:
    """Return the query of what measurements from ``first`` to ``last`` change."""
    log, other, subject = MeasurementRow, aliased(MeasurementRow), WorkloadRow
    same_pair = and_(
        other.workload_id == log.workload_id, other.facet_id == log.facet_id,
        other.time_s.is_not(None),
    )  # fmt: skip
    is_faster = or_(other.time_s < log.time_s, and_(other.time_s == log.time_s, other.id < log.id))
    is_ok, is_older = log.time_s.is_not(None), other.id < log.id
    in_pair = exists().where(same_pair, is_older)
    of_workload = exists().where(other.workload_id == log.workload_id, is_older)
    return (
        select(
            log.id, log.workload_id, subject.key, subject.kernel, subject.problem, subject.threads,
            and_(is_ok, ~exists().where(same_pair, is_faster)).label("is_fastest"),
            case((is_ok, ~in_pair), else_=~of_workload).label("is_first"),
        )
        .join(subject, subject.id == log.workload_id)
        .where(log.id.between(_number_of("first"), _number_of("last")))
    )  # fmt: skip


TOLD = _changed()
