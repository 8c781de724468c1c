"""Trials: proposals persisted, leased, and closed by exactly one accepted measurement."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, func, insert, or_, select, update
from sqlalchemy.orm import Session

from db.events import add_event
from db.identities import config_id
from db.leader import check_epoch
from db.models import MeasurementRow, RunRow, TrialRow
from db.records import NewTrial, TrialRecord
from db.rows import add_measurements, trial_of
from db.session import Database, change
from recommender.measurement import Measurement, MeasureStatus, Protocol

NO_SKEW = timedelta(seconds=1)  # the way to the database takes some of it


class Trials:
    """The work queue of tuning runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, run_id: int, new: Sequence[NewTrial], epoch: int) -> Sequence[NewTrial]:
        """Persist proposals before anybody works on them; return those that were known already."""
        repeated = []
        with self._database.write() as session:
            check_epoch(session, epoch)
            columns = (TrialRow.sequence, TrialRow.config_id, TrialRow.protocol, TrialRow.round)
            stored = session.execute(select(*columns).where(TrialRow.run_id == run_id)).all()
            known = {_identity(*row[1:]) for row in stored}
            sequence = 1 + max((row.sequence for row in stored), default=-1)
            for trial in new:
                key = config_id(session, trial.config)
                identity = _identity(key, trial.protocol.value, trial.round)
                if identity in known:
                    repeated.append(trial)
                    continue
                session.execute(insert(TrialRow).values(_new_row(run_id, sequence, key, trial)))
                known.add(identity)
                sequence += 1
        return repeated

    def claim(self, run_id: int, epoch: int, limit: int, lease_s: float) -> Sequence[TrialRecord]:
        """Lease up to ``limit`` pending trials in the order in which they were proposed."""
        with self._database.write() as session:
            check_epoch(session, epoch)
            now = self._database.now(session)
            ready = or_(TrialRow.not_before.is_(None), TrialRow.not_before <= now)
            rows = session.scalars(
                select(TrialRow)
                .where(TrialRow.run_id == run_id, TrialRow.state == "pending", ready)
                .order_by(TrialRow.sequence)
                .limit(limit)
                .with_for_update(of=TrialRow, skip_locked=True)
            ).all()
            for row in rows:
                row.state, row.attempt, row.lease_epoch = "leased", row.attempt + 1, epoch
                row.lease_until = now + timedelta(seconds=lease_s)
            return [trial_of(row) for row in rows]

    def accept(self, trial: TrialRecord, epoch: int, measurement: Measurement) -> int | None:
        """Store the outcome of a leased trial, or return None if the lease is not held any more."""
        return self.accept_all([(trial, measurement)], epoch)[0]

    def accept_all(
        self, outcomes: Sequence[tuple[TrialRecord, Measurement]], epoch: int
    ) -> Sequence[int | None]:
        """Store outcomes and return their ids, None where the lease is not held any more.

        Leases are given up and measurements inserted in one transaction: of an execution that
        happened twice exactly one record stays.
        """
        with self._database.write() as session:
            author_of = _locked_runs(session, {trial.run_id for trial, _ in outcomes})
            is_held = []
            for trial, measurement in outcomes:
                lost = measurement.status is MeasureStatus.WORKER_LOST
                values = {"state": "failed" if lost else "done", "last_error": None}
                is_held.append(self._give_up(session, trial, epoch, values))
            held = [outcome for outcome, is_ours in zip(outcomes, is_held, strict=True) if is_ours]
            trial_ids = [trial.id for trial, _ in held]
            now = self._database.now(session)
            authors = [author_of[trial.run_id] for trial, _ in held]
            skew = now - datetime.now(UTC)
            measured = [_by_its_clock(m, skew) for _, m in held]
            stored = iter(add_measurements(session, measured, now, trial_ids, authors))
            for trial, m in held:
                add_event(session, self._database, trial.run_id, "trial", _payload(trial, m))
            return [next(stored) if is_ours else None for is_ours in is_held]

    def retry_later(self, trial: TrialRecord, epoch: int, reason: str, delay_s: float) -> bool:
        """Put a trial back after a failure that is not its own; False if the lease is gone."""
        with self._database.write() as session:
            _locked_runs(session, {trial.run_id})
            not_before = self._database.now(session) + timedelta(seconds=delay_s)
            values = {
                "state": "pending",
                "last_error": reason[:4096],
                "not_before": not_before,
                "losses": TrialRow.losses + 1,
            }
            done = self._give_up(session, trial, epoch, values)
            if done:
                payload = {"sequence": trial.sequence, "reason": reason, "attempt": trial.attempt}
                add_event(session, self._database, trial.run_id, "retry", payload)
            return done

    def renew(self, trials: Sequence[TrialRecord], epoch: int, lease_s: float) -> int:
        """Prolong leases of this leader; return how many of them it still holds."""
        with self._database.write() as session:
            until = self._database.now(session) + timedelta(seconds=lease_s)
            held = [_held(trial, epoch) for trial in trials]
            return change(session, update(TrialRow).where(or_(*held)).values(lease_until=until))

    def requeue(self, epoch: int) -> int:
        """Put back what earlier leaders leased and what ran out of time; return how many."""
        with self._database.write() as session:
            check_epoch(session, epoch)
            stale = or_(
                TrialRow.lease_epoch < epoch, TrialRow.lease_until < self._database.now(session)
            )
            return self._put_back(session, stale)

    def release(
        self,
        epoch: int,
        *,
        keep: Sequence[TrialRecord] = (),
        runs: Sequence[int] | None = None,
    ) -> int:
        """Put back leases of this leader (of ``runs``), but for ``keep``; return how many."""
        where = [TrialRow.lease_epoch == epoch, TrialRow.id.not_in([t.id for t in keep])]
        if runs is not None:
            where.append(TrialRow.run_id.in_(runs))
        with self._database.write() as session:
            return self._put_back(session, and_(*where))

    def of_run(self, run_id: int, *, state: str | None = None) -> Sequence[TrialRecord]:
        """Return all trials of a run: measured ones in the order of acceptance, then open ones."""
        query = (
            select(TrialRow, MeasurementRow)
            .outerjoin(MeasurementRow, MeasurementRow.trial_id == TrialRow.id)
            .where(TrialRow.run_id == run_id)
            .order_by(MeasurementRow.id.is_(None), MeasurementRow.id, TrialRow.sequence)
        )
        if state is not None:
            query = query.where(TrialRow.state == state)
        with self._database.read() as session:
            return [trial_of(trial, measured) for trial, measured in session.execute(query)]

    def page(
        self, run_id: int, *, state: str | None = None, limit: int = 50, after: int | None = None
    ) -> Sequence[TrialRecord]:
        """Return trials of a run as they were proposed; ``after`` is the id to go on from."""
        query = (
            select(TrialRow, MeasurementRow)
            .outerjoin(MeasurementRow, MeasurementRow.trial_id == TrialRow.id)
            .where(TrialRow.run_id == run_id, TrialRow.id > (after or 0))
            .order_by(TrialRow.id)
            .limit(limit)
        )
        if state is not None:
            query = query.where(TrialRow.state == state)
        with self._database.read() as session:
            return [trial_of(trial, measured) for trial, measured in session.execute(query)]

    def count_by_status(self, run_id: int) -> dict[str, int]:
        """Return how many trials ended with which status; open ones count under their state."""
        return self.counts_by_status([run_id])[run_id]

    def counts_by_status(self, run_ids: Sequence[int]) -> dict[int, dict[str, int]]:
        """Return the same of several runs."""
        status = func.coalesce(MeasurementRow.status, TrialRow.state)
        query = (
            select(TrialRow.run_id, status, func.count())
            .select_from(TrialRow)
            .outerjoin(MeasurementRow, MeasurementRow.trial_id == TrialRow.id)
            .where(TrialRow.run_id.in_(run_ids))
            .group_by(TrialRow.run_id, status)
        )
        found: dict[int, dict[str, int]] = {run_id: {} for run_id in run_ids}
        with self._database.read() as session:
            for run_id, name, count in session.execute(query):
                found[run_id][name] = count
        return found

    @staticmethod
    def _give_up(session: Session, trial: TrialRecord, epoch: int, values: dict[str, Any]) -> bool:
        return change(session, update(TrialRow).where(_held(trial, epoch)).values(values)) == 1

    @staticmethod
    def _put_back(session: Session, where: Any) -> int:
        leased = update(TrialRow).where(TrialRow.state == "leased", where)
        return change(session, leased.values(state="pending"))


def _held(trial: TrialRecord, epoch: int) -> ColumnElement[bool]:
    """Return the condition that a lease is still that of this leader and attempt."""
    return and_(
        TrialRow.id == trial.id,
        TrialRow.state == "leased",
        TrialRow.attempt == trial.attempt,
        TrialRow.lease_epoch == epoch,
    )


def _by_its_clock(measurement: Measurement, skew: timedelta) -> Measurement:
    """Return a measurement dated by the database's clock, where this host's is another time.

    Coordinators of several hosts write one log: its order, drifts and ages rest on the dates.
    """
    if abs(skew) < NO_SKEW:
        return measurement
    return replace(measurement, measured_at=measurement.measured_at + skew)


def _locked_runs(session: Session, run_ids: Collection[int]) -> dict[int, str | None]:
    """Lock runs whose events are to be written, and return who asked for each of them.

    All who write events of a run hold its row (first, before its trials): so a later event is never
    seen before an earlier one, and who follows the events by their ids misses none.
    """
    query = select(RunRow.id, RunRow.created_by).where(RunRow.id.in_(run_ids)).order_by(RunRow.id)
    rows = session.execute(query.with_for_update(key_share=True))
    return {run_id: author for run_id, author in rows}  # noqa: C416


def _identity(config: int, protocol: str, number: int) -> tuple[int, str, int]:
    """Return what a run has once: a config is screened once, and confirmed once per round."""
    return config, protocol, 0 if protocol == Protocol.SCREEN.value else number


def _new_row(run_id: int, sequence: int, config: int, trial: NewTrial) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "sequence": sequence,
        "config_id": config,
        "protocol": trial.protocol.value,
        "round": trial.round,
        "purpose": trial.purpose,
        "predicted_s": trial.predicted_s,
        "state": "pending",
        "attempt": 0,
    }


def _payload(trial: TrialRecord, measurement: Measurement) -> dict[str, Any]:
    return {
        "sequence": trial.sequence,
        "purpose": trial.purpose,
        "protocol": trial.protocol.value,
        "status": measurement.status.value,
        "time_s": measurement.time_s,
        "reference_time_s": measurement.reference_time_s,
        "config": dict(trial.config.items_),
        "detail": measurement.detail[:200],
    }
