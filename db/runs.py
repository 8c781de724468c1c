"""Runs: tuning runs and their events."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, exists, func, select, update
from sqlalchemy import exc as sa_exc
from sqlalchemy.orm import Session

from db.errors import IdempotencyConflict
from db.events import add_event
from db.identities import of_runs
from db.leader import check_epoch
from db.models import (
    EventRow,
    HardwareRow,
    MeasurementRow,
    ProgramRow,
    RunRow,
    ToolchainRow,
    TrialRow,
    WorkloadRow,
)
from db.records import OPEN_STATES, EventRecord, NewRun, RunControl, RunRecord
from db.rows import run_of
from db.run_requests import RunRequests
from db.session import change
from recommender.measurement import Toolchain
from recommender.workload import Workload
from tilecore.tile_config import TileConfig


class Runs(RunRequests):
    """The queue and the history of tuning runs."""

    def create(self, new: NewRun) -> tuple[RunRecord, bool]:
        """Queue a run; return it and whether it is new (False: the idempotency key came again).

        Raises:
            IdempotencyConflict: the key came before with another body (DB807).
        """
        (run,), is_new = self.create_all([new])
        return run, is_new

    def create_all(self, new: Sequence[NewRun]) -> tuple[Sequence[RunRecord], bool]:
        """Queue runs, all or none; return them and whether they are new.

        The first one's idempotency key is that of all.

        Raises:
            IdempotencyConflict: the key came before with another body (DB807).
        """
        try:
            with self._database.write() as session:
                now = self._database.now(session)
                refer = of_runs(session, new, now)
                return [
                    self._insert(session, one, now, ids)
                    for one, ids in zip(new, refer, strict=True)
                ], True
        except sa_exc.IntegrityError:
            key = new[0].idempotency_key
            if key is None:
                raise
        with self._database.read() as session:
            found = session.scalars(select(RunRow).where(RunRow.idempotency_key == key)).one()
            if found.body_hash != new[0].body_hash:
                raise IdempotencyConflict(key=key)
            known = run_of(found)
        return ([known] if known.group is None else self.of_group(known.group)), False

    def _insert(
        self, session: Session, new: NewRun, now: datetime, refer: Mapping[str, int]
    ) -> RunRecord:
        row = RunRow(
            public_id=str(uuid.uuid4()),
            idempotency_key=new.idempotency_key,
            body_hash=new.body_hash,
            group_id=new.group,
            state="QUEUED",
            priority=new.priority,
            **refer,
            spec=dict(new.spec),
            created_by=new.created_by,
            cause=new.cause,
            seed=new.seed,
            planned_trials=new.planned_trials,
            ceiling_s=new.ceiling_s,
            created_at=now,
        )
        session.add(row)
        session.flush()
        session.refresh(row)
        add_event(session, self._database, row.id, "queued", {})
        return run_of(row)

    def list(
        self,
        *,
        state: str | None = None,
        kernel: str | None = None,
        group: str | None = None,
        created_by: str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> Sequence[RunRecord]:
        """Return runs, newest first; ``before`` is the id to go on from."""
        query = select(RunRow).order_by(RunRow.id.desc()).limit(limit)
        if state is not None:
            query = query.where(RunRow.state == state)
        if kernel is not None:
            query = query.where(RunRow.workload.has(WorkloadRow.kernel == kernel))
        if group is not None:
            query = query.where(RunRow.group_id == group)
        if created_by is not None:
            query = query.where(RunRow.created_by == created_by)
        if before is not None:
            query = query.where(RunRow.id < before)
        with self._database.read() as session:
            return [run_of(row) for row in session.scalars(query)]

    def latest(
        self,
        workload: Workload,
        *,
        hardware_key: str,
        states: Sequence[str],
        program_digest: str | None = None,
        toolchain_key: str | None = None,
    ) -> RunRecord | None:
        """Return the newest run of exactly this workload, device, program and toolchain.

        None for one of the latter: of any.
        """
        query = (
            select(RunRow)
            .where(
                RunRow.workload.has(WorkloadRow.key == workload.key),
                RunRow.hardware.has(HardwareRow.key == hardware_key),
                RunRow.state.in_(states),
            )
            .order_by(RunRow.id.desc())
            .limit(1)
        )
        if program_digest is not None:
            query = query.where(RunRow.program.has(ProgramRow.digest == program_digest))
        if toolchain_key is not None:
            query = query.where(RunRow.toolchain.has(ToolchainRow.key == toolchain_key))
        with self._database.read() as session:
            row = session.scalars(query).first()
            return None if row is None else run_of(row)

    def with_key(self, idempotency_key: str) -> RunRecord | None:
        """Return the run that was queued with this idempotency key."""
        query = select(RunRow).where(RunRow.idempotency_key == idempotency_key)
        with self._database.read() as session:
            row = session.scalars(query).first()
            return None if row is None else run_of(row)

    def count_caused(self) -> int:
        """Return how many runs are open that the system queued by itself."""
        is_open = RunRow.state.in_(OPEN_STATES) & RunRow.cause.is_not(None)
        with self._database.read() as session:
            return session.execute(select(func.count(RunRow.id)).where(is_open)).scalar_one()

    # --- what the leader does -----------------------------------------------------------------

    def open(self, hardware_key: str, *, limit: int = 1) -> Sequence[RunRecord]:
        """Return runs to work on: those under way, then by priority.

        Of one priority the groups take turns, each with its oldest run (a run of its own is a group
        of one): a group of hundreds makes nobody else wait for all of it.
        """
        under_way = RunRow.state == "RUNNING"
        is_open = RunRow.state.in_(("RUNNING", "QUEUED"))
        here = RunRow.hardware.has(HardwareRow.key == hardware_key)
        turn = func.row_number().over(
            partition_by=[func.coalesce(RunRow.group_id, RunRow.public_id), RunRow.priority],
            order_by=[under_way.desc(), RunRow.id],
        )
        turns = select(RunRow.id, turn.label("turn")).where(is_open, here).subquery()
        query = (
            select(RunRow)
            .join(turns, turns.c.id == RunRow.id)
            .order_by(under_way.desc(), RunRow.priority.desc(), turns.c.turn, RunRow.id)
            .limit(limit)
        )
        with self._database.read() as session:
            return [run_of(row) for row in session.scalars(query)]

    def controls(self, run_ids: Sequence[int]) -> Mapping[int, RunControl]:
        """Return what people want of runs that are being worked on."""
        columns = [getattr(RunRow, f.name) for f in fields(RunControl)]
        query = select(RunRow.id, *columns).where(RunRow.id.in_(run_ids))
        with self._database.read() as session:
            return {
                row.id: RunControl(**{f.name: getattr(row, f.name) for f in fields(RunControl)})
                for row in session.execute(query)
            }

    def match_hardware(self, offered: Sequence[str], epoch: int) -> None:
        """Let runs whose hardware nobody offers wait, and those that waited for it go on.

        Those that are to be cancelled or paused are so now: no coordinator works on them any more.
        """
        here = RunRow.hardware.has(HardwareRow.key.in_(offered))
        waits = RunRow.state == "WAITING_FOR_HARDWARE"
        with self._database.write() as session:
            check_epoch(session, epoch)
            for state, where, kind in (
                ("WAITING_FOR_HARDWARE", RunRow.state.in_(("QUEUED", "RUNNING")) & ~here, "waits"),
                ("CANCELLED", waits & RunRow.cancel_requested, ""),
                ("PAUSED", waits & RunRow.pause_requested, "paused"),
                ("QUEUED", waits & here, "hardware_joined"),
            ):
                for run_id in session.scalars(
                    select(RunRow.id).where(where).order_by(RunRow.id)
                ).all():
                    if state == "CANCELLED":
                        self._close(session, run_id, state, None, None)
                        continue
                    values = {"state": state} | (
                        {"pause_requested": False} if kind == "paused" else {}
                    )
                    self._change(session, RunRow.id == run_id, values)
                    add_event(session, self._database, run_id, kind, {})

    def start(self, run: RunRecord, epoch: int) -> bool:
        """Mark a run as under way (again); False: it is to be worked on no more."""
        with self._database.write() as session:
            check_epoch(session, epoch)
            again = run.started_at is not None
            values: dict[str, Any] = {"state": "RUNNING"}
            if not again:
                values["started_at"] = self._database.now(session)
            is_open = RunRow.state.in_(("QUEUED", "RUNNING"))
            started = self._change(session, (RunRow.id == run.id) & is_open, values) == 1
            if started:
                kind = "resumed" if again else "started"
                add_event(session, self._database, run.id, kind, {"epoch": epoch})
            return started

    def renew(
        self,
        run: RunRecord,
        epoch: int,
        *,
        program_digest: str,
        toolchain: Toolchain,
        incumbents: Sequence[TileConfig] = (),
    ) -> RunRecord:
        """Let an open run be one of another version of its program, or toolchain.

        What it measured before stays in the log, but it is no result of the run any more: it
        searches from the start, as long as it was to, after ``incumbents`` (and those it had).
        """
        new = NewRun(
            workload=run.workload, hardware=run.hardware, program_digest=program_digest,
            toolchain=toolchain, spec=run.spec, body_hash=run.body_hash,
        )  # fmt: skip
        is_open = (RunRow.id == run.id) & RunRow.state.in_(OPEN_STATES)
        with self._database.write() as session:
            check_epoch(session, epoch)
            (refer,) = of_runs(session, [new], self._database.now(session))
            locked = session.execute(select(RunRow.spec).where(is_open).with_for_update())
            spec = locked.scalar()
            if spec is not None:
                known = [*spec.get("incumbents", ()), *(dict(config) for config in incumbents)]
                changed = {"spec": spec | {"incumbents": known}} if known else {}
                self._change(session, is_open, refer | changed | {"device_s": 0.0})
                count = self._put_aside(session, run.id)
                payload = {"from": run.toolchain.key, "to": toolchain.key, "trials": count}
                add_event(session, self._database, run.id, "renewed", payload)
        return self.get(run.public_id)

    @staticmethod
    def _put_aside(session: Session, run_id: int) -> int:
        """Let the trials of a run be none of its own any more; return how many were measured."""
        of_run = TrialRow.run_id == run_id
        is_measured = exists().where(MeasurementRow.trial_id == TrialRow.id)
        counted = select(func.count()).where(of_run, TrialRow.round >= 0, is_measured)
        count = session.execute(counted).scalar_one()
        left = TrialRow.state.in_(("pending", "leased"))
        change(session, update(TrialRow).where(of_run, left).values(state="cancelled"))
        ends = select(func.min(TrialRow.round), func.max(TrialRow.round)).where(of_run)
        lowest, highest = (number or 0 for number in session.execute(ends).one())
        beyond = highest + 1 - min(lowest, 0)  # where none is: rows change one after the other
        change(session, update(TrialRow).where(of_run).values(round=TrialRow.round - beyond))
        return int(count)

    def settle_pause(self, run_id: int, epoch: int) -> bool:
        """Turn the wish to pause a run into the state; False: it was withdrawn, or is no more."""
        with self._database.write() as session:
            check_epoch(session, epoch)
            asked = (RunRow.id == run_id) & (RunRow.state == "RUNNING") & RunRow.pause_requested
            asked &= ~RunRow.cancel_requested
            values = {"state": "PAUSED", "pause_requested": False}
            paused = self._change(session, asked, values) == 1
            if paused:
                add_event(session, self._database, run_id, "paused", {})
            return paused

    def add_time(self, run_id: int, active_s: float, device_s: float, epoch: int) -> None:
        """Count time that a coordinator spent on a run, and the run's share of the device."""
        with self._database.write() as session:
            check_epoch(session, epoch)
            values = {
                "active_s": RunRow.active_s + active_s,
                "device_s": RunRow.device_s + device_s,
            }
            self._change(session, RunRow.id == run_id, values)

    def finish(
        self,
        run_id: int,
        epoch: int,
        state: str,
        *,
        result: Mapping[str, Any] | None = None,
        error: str | None = None,
        as_of: int | None = None,
    ) -> bool:
        """Close a run: its result or error, and no trial left open.

        Args:
            run_id: which.
            epoch: of the leader.
            state: how it ended.
            result: what was found.
            error: why it failed.
            as_of: the extensions that the result knows of; None: whatever it was extended by.

        Returns:
            Whether it is closed; False: it was extended meanwhile, and goes on.
        """
        with self._database.write() as session:
            check_epoch(session, epoch)
            return self._close(session, run_id, state, result, error, as_of)

    def add_event(self, run_id: int, kind: str, payload: Mapping[str, Any]) -> None:
        """Record a step of a run."""
        with self._database.write() as session:
            add_event(session, self._database, run_id, kind, payload)

    def events(self, run_id: int, *, after: int = 0, limit: int = 500) -> Sequence[EventRecord]:
        """Return the events of a run in order, from behind the id ``after``."""
        query = (
            select(EventRow)
            .where(EventRow.run_id == run_id, EventRow.id > after)
            .order_by(EventRow.id)
            .limit(limit)
        )
        with self._database.read() as session:
            return [
                EventRecord(id=row.id, at=row.at, kind=row.kind, payload=row.payload)
                for row in session.scalars(query)
            ]

    @staticmethod
    def _change(session: Session, where: ColumnElement[bool], values: Mapping[str, Any]) -> int:
        return change(session, update(RunRow).where(where).values(values))
