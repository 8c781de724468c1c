"""Retention: removes what no answer rests on, never a best, beside running writers.

Some workloads of a kernel at a time, a few hundred rows per transaction. Which rows go is read
without a lock: what is stored meanwhile can only make more rows superfluous; a drift that is found
meanwhile, which could make an old row matter again, is noticed in the transaction that would delete
it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from db.models import (
    Base,
    EventRow,
    FacetRow,
    MeasurementRow,
    RunRow,
    SampleRow,
    TrialRow,
    WorkloadRow,
)
from db.records import FINISHED_STATES, CompactionReport, RetentionPolicy
from db.service_models import CompactedRow, CompactionRow, DriftRow
from db.session import Database, change
from db.space import give_back, size_bytes
from db.trained import devices_by_family
from recommender.measurement import MeasureStatus

CHUNK = 400  # rows deleted in one transaction
LOOKED_AT = 64  # workloads whose rows are ranked by one query
TOLD = ("trial", "retry")  # events that go with the trials of old runs
OK = MeasureStatus.OK.value
CAUSE_CHARACTERS = 200


class Retention:
    """Compactions of one database."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock

    def compact(
        self,
        policy: RetentionPolicy,
        *,
        dry_run: bool = False,
        vacuum: str = "auto",
        time_limit_s: float = float("inf"),
        created_by: str | None = None,
    ) -> CompactionReport:
        """Remove what the policy does not keep and give its space back.

        Args:
            policy: what to keep.
            dry_run: only count.
            vacuum: "auto"; "full" (PostgreSQL: locks the tables while it copies them); "off".
            time_limit_s: begin nothing more after so long.
            created_by: the name of the API key that asks for it.
        """
        before = size_bytes(self._database)
        if before < policy.above_bytes:
            note = f"smaller than {policy.above_bytes} bytes: nothing to do"
            return self._report(Counter(), 0, before, dry_run=dry_run, note=note)
        ends_at = self._clock() + time_limit_s
        job = None if dry_run else self._begin(policy, created_by)
        removed, events, is_complete = self._remove_all(policy, job, ends_at)
        note = ""
        if job is not None and vacuum != "off":
            note = give_back(self._database, full=vacuum == "full")
        report = self._report(removed, events, before, dry_run=dry_run, note=note)
        return replace(report, is_complete=is_complete)

    def counts(self) -> dict[tuple[str, str, str], int]:
        """Return how many measurements were removed by kernel, status and cause."""
        kind = (FacetRow.kernel, FacetRow.status, CompactedRow.cause)
        query = (
            select(*kind, func.sum(CompactedRow.count))
            .join(FacetRow, CompactedRow.facet_id == FacetRow.id)
            .group_by(*kind)
        )
        with self._database.read() as session:
            found = session.execute(query)
            return {(kernel, status, cause): int(n) for kernel, status, cause, n in found}

    # --- steps --------------------------------------------------------------------------------

    def _begin(self, policy: RetentionPolicy, created_by: str | None) -> int:
        with self._database.write() as session:
            at = self._database.now(session)
            row = CompactionRow(at=at, created_by=created_by, policy=asdict(policy))
            session.add(row)
            session.flush()
            return row.id

    def _remove_all(
        self, policy: RetentionPolicy, job: int | None, ends_at: float
    ) -> tuple[Counter[str], int, bool]:
        removed: Counter[str] = Counter()
        with self._database.read() as session:
            cutoff = self._database.now(session) - timedelta(days=policy.keep_days)
            workloads = session.execute(select(WorkloadRow.id, WorkloadRow.kernel)).all()
            trained = {
                kernel: _trained_since(session, kernel, policy.keep_training)
                for kernel in {kernel for _, kernel in workloads}
            }
        for kernel, since in trained.items():
            query = _superfluous(policy, cutoff, since)
            ids = [workload for workload, its_kernel in workloads if its_kernel == kernel]
            for start in range(0, len(ids), LOOKED_AT):
                if self._clock() >= ends_at:
                    return removed, 0, False
                while not self._remove_of(ids[start : start + LOOKED_AT], query, job, removed):
                    continue
        return removed, self._remove_events(cutoff, job, ends_at), self._clock() < ends_at

    def _remove_of(
        self,
        workloads: Sequence[int],
        query: Select[Any],
        job: int | None,
        removed: Counter[str],
    ) -> bool:
        """Remove what a query selects; False: a drift was found meanwhile, look again."""
        with self._database.read() as session:
            drift = session.execute(NEWEST_DRIFT).scalar()
            rows = session.execute(query, {"workloads": workloads}).all()
        if job is None:
            removed.update(row.status for row in rows)
            return True
        for start in range(0, len(rows), CHUNK):
            chunk = rows[start : start + CHUNK]
            with self._database.write() as session:
                if session.execute(NEWEST_DRIFT).scalar() != drift:
                    return False
                removed.update(_remove(session, chunk, job))
        return True

    def _remove_events(self, cutoff: datetime, job: int | None, ends_at: float) -> int:
        """Remove what old runs told of their trials; the newest event keeps its id from reuse."""
        newest = select(func.max(EventRow.id)).scalar_subquery()
        old = (
            select(EventRow.id)
            .join(RunRow, EventRow.run_id == RunRow.id)
            .where(
                EventRow.kind.in_(TOLD),
                EventRow.id < newest,
                RunRow.state.in_(FINISHED_STATES),
                RunRow.finished_at < cutoff,
            )
        )
        if job is None:
            with self._database.read() as session:
                counted = select(func.count()).select_from(old.subquery())
                return int(session.execute(counted).scalar_one())
        count = 0
        while self._clock() < ends_at:
            with self._database.write() as session:
                locked = old.limit(CHUNK).with_for_update(of=RunRow, read=True)
                ids = session.execute(locked).scalars().all()
                _delete(session, EventRow, EventRow.id.in_(ids))
            count += len(ids)
            if len(ids) < CHUNK:
                break
        return count

    def _report(
        self, removed: Counter[str], events: int, before: int, *, dry_run: bool, note: str
    ) -> CompactionReport:
        with self._database.read() as session:
            left = session.execute(select(func.count(MeasurementRow.id))).scalar_one()
        return CompactionReport(
            measurements=left + (0 if dry_run else removed.total()),
            removed=dict(removed),
            events=events,
            bytes_before=before,
            bytes_after=size_bytes(self._database),
            is_complete=True,
            is_dry_run=dry_run,
            note=note,
        )


NEWEST_DRIFT = select(func.max(DriftRow.id))


Trained = Sequence[tuple[Sequence[int], datetime]]


def _trained_since(session: Session, kernel: str, count: int) -> Trained:
    """Return the devices of each family that has more OK measurements of a kernel than are kept.

    And the date of the last of the newest of them, which are.
    """
    found = []
    for devices in devices_by_family(session, kernel).values():
        ids = [device.id for device in devices]
        facets = select(FacetRow.id).where(
            FacetRow.kernel == kernel, FacetRow.status == OK, FacetRow.hardware_id.in_(ids)
        )
        dates = select(MeasurementRow.measured_at).where(MeasurementRow.facet_id.in_(facets))
        newest = dates.order_by(MeasurementRow.measured_at.desc())
        since = session.execute(newest.offset(max(0, count - 1)).limit(1)).scalar()
        if since is not None:
            found.append((ids, since if count else since + timedelta(microseconds=1)))
    return found


def _superfluous(policy: RetentionPolicy, cutoff: datetime, trained: Trained) -> Select[Any]:
    """Return the query of the measurements of ``workloads`` that the policy does not keep."""
    row = MeasurementRow
    phase = (
        select(func.count(DriftRow.id))
        .where(
            DriftRow.workload_id == row.workload_id,
            DriftRow.hardware_id == row.hardware_id,
            DriftRow.program_id == row.program_id,
            DriftRow.toolchain_id == row.toolchain_id,
            DriftRow.since <= row.measured_at,
        )
        .correlate(row)
        .scalar_subquery()
    )
    alike = [row.workload_id, row.facet_id, row.program_id, row.driver_id, phase]
    by_time = func.row_number().over(partition_by=alike, order_by=[row.time_s, row.id])
    newest_first: list[ColumnElement[Any]] = [row.measured_at.desc(), row.id.desc()]
    by_age = func.row_number().over(
        partition_by=[row.workload_id, row.hardware_id], order_by=newest_first
    )
    ranked = (
        select(
            row.id, row.trial_id, row.measured_at, row.status, row.hardware_id,
            by_time.label("by_time"), by_age.label("by_age"),
        )
        .where(row.workload_id.in_(bindparam("workloads", expanding=True)))
        .subquery()
        .c
    )  # fmt: skip
    is_failure = ranked.status != OK
    untrained = [
        and_(ranked.hardware_id.in_(devices), ranked.measured_at < since)
        for devices, since in trained
    ]
    return select(ranked.id, ranked.status).where(
        ranked.measured_at < cutoff,
        ranked.by_age > policy.keep_recent,
        or_(is_failure, ranked.by_time > policy.keep_best),
        or_(is_failure, *untrained),
        _has_ended(ranked.trial_id),
        # SQLite gives the highest id again once it is free, and caches ask for it
        ranked.id < select(func.max(row.id)).scalar_subquery(),
        or_(
            ranked.trial_id.is_(None),
            ranked.trial_id < select(func.max(TrialRow.id)).scalar_subquery(),
        ),
    )


def _has_ended(trial: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return whether the run of a trial has ended, looked up for each: there are many trials."""
    ended = exists().where(
        TrialRow.id == trial, TrialRow.run_id == RunRow.id, RunRow.state.in_(FINISHED_STATES)
    )
    return or_(trial.is_(None), ended)


def _remove(session: Session, rows: Sequence[Row[Any]], job: int) -> list[str]:
    """Delete measurements whose runs have (still) ended, count their causes; return statuses."""
    wanted = MeasurementRow.id.in_([row.id for row in rows])
    runs = select(TrialRow.run_id).join(MeasurementRow, MeasurementRow.trial_id == TrialRow.id)
    locked = select(RunRow.id).where(RunRow.id.in_(runs.where(wanted))).order_by(RunRow.id)
    session.execute(locked.with_for_update(read=True)).all()  # none is extended until the end
    ids = session.execute(
        select(MeasurementRow.id).where(wanted, _has_ended(MeasurementRow.__table__.c.trial_id))
    ).scalars().all()  # fmt: skip
    change(session, update(CompactionRow).where(CompactionRow.id == job).values(is_open=True))
    _delete(session, SampleRow, SampleRow.measurement_id.in_(ids))
    gone = session.execute(
        delete(MeasurementRow)
        .where(MeasurementRow.id.in_(ids))
        .returning(
            MeasurementRow.trial_id, MeasurementRow.workload_id, MeasurementRow.program_id,
            MeasurementRow.facet_id, MeasurementRow.status, MeasurementRow.detail,
            MeasurementRow.measured_at,
        )
        .execution_options(synchronize_session=False)
    ).all()  # fmt: skip
    _delete(session, TrialRow, TrialRow.id.in_([g.trial_id for g in gone if g.trial_id]))
    _count_causes(session, gone)
    done = {"is_open": False, "removed": CompactionRow.removed + len(gone)}
    change(session, update(CompactionRow).where(CompactionRow.id == job).values(done))
    return [row.status for row in gone]


def _count_causes(session: Session, gone: Sequence[Any]) -> None:
    groups: dict[tuple[int, int, int, str], list[datetime]] = {}
    for row in gone:
        first_line = row.detail.strip().splitlines()[:1] if row.status != OK else []
        cause = "".join(first_line)[:CAUSE_CHARACTERS]
        key = (row.workload_id, row.program_id, row.facet_id, cause)
        groups.setdefault(key, []).append(row.measured_at)
    if not groups:
        return
    table = CompactedRow.__table__
    assert isinstance(table, Table)
    dialect = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    names = ("workload_id", "program_id", "facet_id", "cause")
    insert = dialect.insert(table)
    new = insert.excluded
    first, last = (
        (func.min, func.max) if dialect is sqlite else (func.least, func.greatest)
    )  # of two values
    statement = insert.on_conflict_do_update(
        index_elements=names,
        set_={
            "count": table.c["count"] + new["count"],
            "first_at": first(table.c.first_at, new.first_at),
            "last_at": last(table.c.last_at, new.last_at),
        },
    )
    values = [
        dict(zip(names, key, strict=True))
        | {"count": len(dates), "first_at": min(dates), "last_at": max(dates)}
        for key, dates in groups.items()
    ]
    session.connection().execute(statement, values)


def _delete(session: Session, row: type[Base], where: ColumnElement[bool]) -> None:
    statement = delete(row).where(where)
    session.execute(statement, execution_options={"synchronize_session": False})
