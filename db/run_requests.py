"""What people ask of runs: pause, resume, cancel, extend, change; refused where it makes no sense.

A coordinator that works on the run sees the change at its next step (``Runs.controls``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from db.errors import BudgetUsedUp, IdempotencyConflict, IllegalTransition, UnknownRun
from db.events import add_event
from db.models import EventRow, RunRow, TrialRow
from db.records import FINISHED_STATES, MAX_TIME_S, MAX_TRIALS, RunRecord
from db.rows import run_of
from db.session import Database, change
from db.trials import CURRENT
from recommender.measurement import Protocol

IDLE_STATES = ("QUEUED", "WAITING_FOR_HARDWARE", "PAUSED")  # no coordinator works on it


class RunRequests:
    """Transitions of runs that people ask for."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def cancel(self, public_id: str) -> RunRecord:
        """Cancel a run at once; ask the coordinator where one works on it. Twice is as once.

        Raises:
            UnknownRun: there is no such run (DB809).
            IllegalTransition: it has ended otherwise (DB811).
        """
        with self._row(public_id) as (session, row):
            if row.state in IDLE_STATES:
                self._close(session, row.id, "CANCELLED", None, None)
            elif row.state == "RUNNING":
                self._ask(session, row, "cancel_requested")
            elif row.state != "CANCELLED":
                raise IllegalTransition(run=public_id, verb="cancelled", state=row.state)
        return self.get(public_id)

    def pause(self, public_id: str) -> RunRecord:
        """Pause a run: what is under way ends and counts. Twice is as once.

        Raises:
            UnknownRun: there is no such run (DB809).
            IllegalTransition: it has ended, or is to be cancelled (DB811).
        """
        with self._row(public_id) as (session, row):
            if row.state in FINISHED_STATES or row.cancel_requested:
                raise IllegalTransition(run=public_id, verb="paused", state=_state(row))
            if row.state == "RUNNING":
                self._ask(session, row, "pause_requested")
            elif row.state != "PAUSED":
                row.state = "PAUSED"
                add_event(session, self._database, row.id, "paused", {})
        return self.get(public_id)

    def resume(self, public_id: str) -> RunRecord:
        """Let a paused run go on, or withdraw the wish to pause it.

        Raises:
            UnknownRun: there is no such run (DB809).
            IllegalTransition: it is not paused (DB811).
        """
        with self._row(public_id) as (session, row):
            if row.state == "PAUSED":
                row.state = "QUEUED"
            elif row.state != "RUNNING" or not row.pause_requested:
                raise IllegalTransition(run=public_id, verb="resumed", state=row.state)
            row.pause_requested = False
            add_event(session, self._database, row.id, "unpaused", {})
        return self.get(public_id)

    def extend(
        self, public_id: str, *, trials: int = 0, seconds: float = 0.0,
        idempotency_key: str | None = None, renewed: Collection[int] = (),
    ) -> tuple[RunRecord, bool]:  # fmt: skip
        """Give a run more trials and seconds; a finished one is queued again with all it knows.

        It searches on and then confirms its finalists, those found before included, once more. Its
        result stays until it has a new one.

        Args:
            public_id: of the run.
            trials: how many more.
            seconds: how many more.
            idempotency_key: of the request; the same one again extends nothing.
            renewed: ids of runs of other code than there is now: they will begin again
                (``Runs.renew``), so that what they have used leaves them all they are granted.

        Returns:
            The run, and whether this extended it (False: the key of an extension came again).

        Raises:
            UnknownRun: there is no such run (DB809).
            IdempotencyConflict: the key came before with another extension of this run (DB807).
            IllegalTransition: it was cancelled, or is to be (DB811).
            BudgetUsedUp: of what is not extended nothing is left, or it would be too much (DB812).
        """
        asked = _extension(trials, seconds, idempotency_key)
        with self._row(public_id) as (session, row):
            is_new = self._extend(session, row, asked, renewed)
        return self.get(public_id), is_new

    def extend_group(
        self, group: str, *, trials: int = 0, seconds: float = 0.0,
        idempotency_key: str | None = None, renewed: Collection[int] = (),
    ) -> tuple[Sequence[RunRecord], bool]:  # fmt: skip
        """Give every run of a group that is not cancelled more, as ``extend``; all or none.

        Returns:
            The runs, and whether this extended one of them.

        Raises:
            UnknownRun: there is no such group (DB809).
            IdempotencyConflict, BudgetUsedUp: see ``extend``.
        """
        asked, is_new = _extension(trials, seconds, idempotency_key), False
        query = select(RunRow).where(RunRow.group_id == group).order_by(RunRow.id)
        with self._database.write() as session:
            for row in session.scalars(query.with_for_update(of=RunRow)).all():
                if row.state != "CANCELLED" and not row.cancel_requested:
                    is_new |= self._extend(session, row, asked, renewed)
        return self.of_group(group), is_new

    def _extend(
        self, session: Session, row: RunRow, asked: Mapping[str, Any], renewed: Collection[int]
    ) -> bool:
        """Extend a locked run, unless that was done before under the same key."""
        if _is_repeated(session, row.id, asked):
            return False
        if row.state == "CANCELLED" or row.cancel_requested:
            raise IllegalTransition(run=row.public_id, verb="extended", state=_state(row))
        spec = dict(row.spec)
        spec["max_trials"] = int(spec["max_trials"]) + asked["trials"]
        spec["time_limit_s"] = float(spec["time_limit_s"]) + asked["seconds"]
        ceiling_s = None if row.ceiling_s is None else row.ceiling_s + asked["seconds"]
        self._check_budget(session, row, spec, ceiling_s, is_renewed=row.id in renewed)
        row.spec, row.planned_trials, row.ceiling_s = spec, spec["max_trials"], ceiling_s
        row.round += 1
        if row.state in FINISHED_STATES:
            row.state, row.finished_at, row.error = "QUEUED", None, None
            dropped = (TrialRow.run_id == row.id) & (TrialRow.state == "cancelled") & CURRENT
            change(session, update(TrialRow).where(dropped).values(state="pending"))
        add_event(session, self._database, row.id, "extended", asked)
        return True

    def amend(
        self, public_id: str, *, priority: int | None = None, ceiling_s: float | None = None
    ) -> RunRecord:
        """Change the weight or the ceiling of an open run; None: stays.

        Raises:
            UnknownRun: there is no such run (DB809).
            IllegalTransition: it has ended (DB811).
        """
        given = {"priority": priority, "ceiling_s": ceiling_s}
        values = {name: value for name, value in given.items() if value is not None}
        with self._row(public_id) as (session, row):
            if row.state in FINISHED_STATES:
                raise IllegalTransition(run=public_id, verb="changed", state=row.state)
            for name, value in values.items():
                setattr(row, name, value)
            if values:
                add_event(session, self._database, row.id, "amended", values)
        return self.get(public_id)

    def get(self, public_id: str) -> RunRecord:
        """Return a run.

        Raises:
            UnknownRun: there is none with this id (DB809).
        """
        with self._database.read() as session:
            row = session.scalars(select(RunRow).where(RunRow.public_id == public_id)).first()
            if row is None:
                raise UnknownRun(what="tuning run", found=public_id)
            return run_of(row)

    def of_group(self, group: str) -> Sequence[RunRecord]:
        """Return the runs of a group in the order in which they were given.

        Raises:
            UnknownRun: there is no such group (DB809).
        """
        query = select(RunRow).where(RunRow.group_id == group).order_by(RunRow.id)
        with self._database.read() as session:
            found = [run_of(row) for row in session.scalars(query)]
        if not found:
            hint = "POST /v1/tuning-runs:batch returned it"
            raise UnknownRun(what="group of tuning runs", found=group, hint=hint)
        return found

    @contextmanager
    def _row(self, public_id: str) -> Iterator[tuple[Session, RunRow]]:
        """Yield the row of a run, locked, in a transaction."""
        with self._database.write() as session:
            query = select(RunRow).where(RunRow.public_id == public_id).with_for_update(of=RunRow)
            row = session.scalars(query).first()
            if row is None:
                raise UnknownRun(what="tuning run", found=public_id)
            yield session, row

    def _ask(self, session: Session, row: RunRow, wish: str) -> None:
        if not getattr(row, wish):
            setattr(row, wish, True)
            add_event(session, self._database, row.id, wish, {})

    @staticmethod
    def _check_budget(
        session: Session, row: RunRow, spec: Mapping[str, Any], ceiling_s: float | None,
        *, is_renewed: bool,
    ) -> None:  # fmt: skip
        """Refuse an extension that would end where it begins, or go beyond what a run may have."""
        if not (spec["max_trials"] <= MAX_TRIALS and spec["time_limit_s"] <= MAX_TIME_S):
            limit = f"at most {MAX_TRIALS} trials and {MAX_TIME_S:g} s in all"
            found = f"{spec['max_trials']} trials and {spec['time_limit_s']:g} s"
            raise BudgetUsedUp(run=row.public_id, expected=limit, found=found)
        if row.state not in FINISHED_STATES:
            return
        screened = select(func.count()).where(
            TrialRow.run_id == row.id, CURRENT, TrialRow.protocol == Protocol.SCREEN.value
        )
        used = 0 if is_renewed else session.execute(screened).scalar_one()
        device_s = 0.0 if is_renewed else row.device_s
        for what, spent, granted in (
            ("trials", used, spec["max_trials"]),
            ("seconds of screening", device_s, spec["time_limit_s"]),
            ("seconds below its ceiling", row.active_s, ceiling_s),
        ):
            if granted is not None and spent >= granted:
                raise BudgetUsedUp(
                    run=row.public_id,
                    expected=f"more than {spent:g} {what}, which it has used",
                    found=f"{granted:g}",
                )

    def _close(
        self,
        session: Session,
        run_id: int,
        state: str,
        result: Mapping[str, Any] | None,
        error: str | None,
        as_of: int | None = None,
    ) -> bool:
        """Close a run unless it was extended more than ``as_of`` times; return whether it is."""
        open_run = (RunRow.id == run_id) & RunRow.state.not_in(FINISHED_STATES)
        if as_of is not None:
            extended = session.execute(select(RunRow.round).where(open_run).with_for_update())
            if extended.scalar() not in (None, as_of):
                return False
        values: dict[str, Any] = {
            "state": state,
            "error": error,
            "pause_requested": False,
            "cancel_requested": False,  # it is cancelled, or had ended before that was seen
            "finished_at": self._database.now(session),
        }
        if result is not None:  # else that of before its extension stays
            values["result"] = dict(result)
        if change(session, update(RunRow).where(open_run).values(values)):
            left = TrialRow.state.in_(("pending", "leased"))
            still_open = update(TrialRow).where(TrialRow.run_id == run_id, left)
            change(session, still_open.values(state="cancelled"))
            payload = {"error": error} if error else {}
            add_event(session, self._database, run_id, state.lower(), payload)
        return True


def _extension(trials: int, seconds: float, idempotency_key: str | None) -> dict[str, Any]:
    key = {} if idempotency_key is None else {"idempotency_key": idempotency_key}
    return {"trials": trials, "seconds": seconds, **key}


def _is_repeated(session: Session, run_id: int, asked: Mapping[str, Any]) -> bool:
    """Return whether an extension was made before under its key; the run's events tell."""
    key = asked.get("idempotency_key")
    if key is None:
        return False
    query = select(EventRow.payload).where(EventRow.run_id == run_id, EventRow.kind == "extended")
    known = [e for e in session.scalars(query) if e.get("idempotency_key") == key]
    if any(e != asked for e in known):
        raise IdempotencyConflict(key=key)
    return bool(known)


def _state(row: RunRow) -> str:
    return f"{row.state}, to be cancelled" if row.cancel_requested else row.state
