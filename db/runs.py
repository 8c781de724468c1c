"""Runs: tuning runs and their events."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, insert, select, update
from sqlalchemy import exc as sa_exc
from sqlalchemy.orm import Session

from db.errors import IdempotencyConflict, UnknownRun
from db.identities import hardware_id, program_id, toolchain_id, workload_id
from db.leader import check_epoch
from db.models import EventRow, HardwareRow, ProgramRow, RunRow, ToolchainRow, TrialRow, WorkloadRow
from db.records import FINISHED_STATES, EventRecord, NewRun, RunRecord
from db.rows import run_of
from db.session import Database, change
from recommender.workload import Workload


class Runs:
    """The queue and the history of tuning runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, new: NewRun) -> tuple[RunRecord, bool]:
        """Queue a run; return it and whether it is new (False: the idempotency key came again).

        Raises:
            IdempotencyConflict: the key came before with another body (DB807).
        """
        try:
            return self._insert(new), True
        except sa_exc.IntegrityError:
            if new.idempotency_key is None:
                raise
        with self._database.read() as session:
            found = session.scalars(
                select(RunRow).where(RunRow.idempotency_key == new.idempotency_key)
            ).one()
            if found.body_hash != new.body_hash:
                raise IdempotencyConflict(key=new.idempotency_key)
            return run_of(found), False

    def _insert(self, new: NewRun) -> RunRecord:
        with self._database.write() as session:
            now = self._database.now(session)
            row = RunRow(
                public_id=str(uuid.uuid4()),
                idempotency_key=new.idempotency_key,
                body_hash=new.body_hash,
                state="QUEUED",
                workload_id=workload_id(session, new.workload),
                hardware_id=hardware_id(session, new.hardware, now),
                program_id=program_id(session, new.workload.kernel, new.program_digest),
                toolchain_id=toolchain_id(session, new.toolchain),
                spec=dict(new.spec),
                seed=new.seed,
                planned_trials=new.planned_trials,
                created_at=now,
            )
            session.add(row)
            session.flush()
            session.refresh(row)
            add_event(session, self._database, row.id, "queued", {})
            return run_of(row)

    def get(self, public_id: str) -> RunRecord:
        """Return a run.

        Raises:
            UnknownRun: there is none with this id (DB809).
        """
        with self._database.read() as session:
            row = session.scalars(select(RunRow).where(RunRow.public_id == public_id)).first()
            if row is None:
                raise UnknownRun(found=public_id)
            return run_of(row)

    def list(
        self,
        *,
        state: str | None = None,
        kernel: str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> Sequence[RunRecord]:
        """Return runs, newest first; ``before`` is the id to go on from."""
        query = select(RunRow).order_by(RunRow.id.desc()).limit(limit)
        if state is not None:
            query = query.where(RunRow.state == state)
        if kernel is not None:
            query = query.where(RunRow.workload.has(WorkloadRow.kernel == kernel))
        if before is not None:
            query = query.where(RunRow.id < before)
        with self._database.read() as session:
            return [run_of(row) for row in session.scalars(query)]

    def latest(
        self,
        workload: Workload,
        *,
        hardware_key: str,
        program_digest: str,
        toolchain_key: str,
        states: Sequence[str],
    ) -> RunRecord | None:
        """Return the newest run of exactly this workload, device, program and toolchain."""
        query = (
            select(RunRow)
            .where(
                RunRow.workload.has(WorkloadRow.key == workload.key),
                RunRow.hardware.has(HardwareRow.key == hardware_key),
                RunRow.program.has(ProgramRow.digest == program_digest),
                RunRow.toolchain.has(ToolchainRow.key == toolchain_key),
                RunRow.state.in_(states),
            )
            .order_by(RunRow.id.desc())
            .limit(1)
        )
        with self._database.read() as session:
            row = session.scalars(query).first()
            return None if row is None else run_of(row)

    def next_open(self, hardware_key: str) -> RunRecord | None:
        """Return the run to work on for a device: one under way before the oldest queued one."""
        query = (
            select(RunRow)
            .where(
                RunRow.state.in_(("RUNNING", "QUEUED")),
                RunRow.hardware.has(HardwareRow.key == hardware_key),
            )
            .order_by(RunRow.state.desc(), RunRow.id)
            .limit(1)
        )  # "RUNNING" sorts after "QUEUED"
        with self._database.read() as session:
            row = session.scalars(query).first()
            return None if row is None else run_of(row)

    def start(self, run: RunRecord, epoch: int) -> None:
        """Mark a run as under way (again)."""
        with self._database.write() as session:
            check_epoch(session, epoch)
            now = self._database.now(session)
            again = run.started_at is not None
            values: dict[str, Any] = {"state": "RUNNING"} | ({} if again else {"started_at": now})
            self._change(session, RunRow.id == run.id, values)
            kind = "resumed" if again else "started"
            add_event(session, self._database, run.id, kind, {"epoch": epoch})

    def add_active_time(self, run_id: int, seconds: float, epoch: int) -> None:
        """Count time that a coordinator spent on a run."""
        with self._database.write() as session:
            check_epoch(session, epoch)
            self._change(session, RunRow.id == run_id, {"active_s": RunRow.active_s + seconds})

    def finish(
        self,
        run_id: int,
        epoch: int,
        state: str,
        *,
        result: Mapping[str, Any] | None = None,
        error: str | None = None,
    ) -> None:
        """Close a run: its result or error, and no trial left open."""
        with self._database.write() as session:
            check_epoch(session, epoch)
            self._close(session, run_id, state, result, error)

    def cancel(self, public_id: str) -> RunRecord:
        """Cancel a queued run at once; ask the coordinator to cancel one under way.

        Raises:
            UnknownRun: there is no such run (DB809).
        """
        with self._database.write() as session:
            query = select(RunRow).where(RunRow.public_id == public_id).with_for_update(of=RunRow)
            row = session.scalars(query).first()
            if row is None:
                raise UnknownRun(found=public_id)
            if row.state == "QUEUED":
                self._close(session, row.id, "CANCELLED", None, None)
            elif row.state == "RUNNING" and not row.cancel_requested:
                row.cancel_requested = True
                add_event(session, self._database, row.id, "cancel_requested", {})
        return self.get(public_id)

    def is_cancel_requested(self, run_id: int) -> bool:
        """Return whether someone wants a run to stop."""
        with self._database.read() as session:
            return bool(
                session.execute(select(RunRow.cancel_requested).where(RunRow.id == run_id)).scalar()
            )

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

    def _close(
        self,
        session: Session,
        run_id: int,
        state: str,
        result: Mapping[str, Any] | None,
        error: str | None,
    ) -> None:
        open_run = (RunRow.id == run_id) & RunRow.state.not_in(FINISHED_STATES)
        values = {
            "state": state,
            "result": None if result is None else dict(result),
            "error": error,
            "finished_at": self._database.now(session),
        }
        if self._change(session, open_run, values):
            left = TrialRow.state.in_(("pending", "leased"))
            still_open = update(TrialRow).where(TrialRow.run_id == run_id, left)
            change(session, still_open.values(state="cancelled"))
            payload = {"error": error} if error else {}
            add_event(session, self._database, run_id, state.lower(), payload)

    @staticmethod
    def _change(session: Session, where: ColumnElement[bool], values: Mapping[str, Any]) -> int:
        return change(session, update(RunRow).where(where).values(values))


def add_event(
    session: Session, database: Database, run_id: int, kind: str, payload: Mapping[str, Any]
) -> None:
    """Insert an event in the transaction of the change that it tells of."""
    session.execute(
        insert(EventRow).values(
            run_id=run_id, at=database.now(session), kind=kind, payload=dict(payload)
        )
    )
