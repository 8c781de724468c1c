"""Trials: proposals persisted, leased, and closed by exactly one accepted measurement."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, func, insert, or_, select, tuple_, update
from sqlalchemy.orm import Session

from db.events import add_event, add_events
from db.identities import config_ids
from db.leader import check_epoch
from db.models import ConfigRow, MeasurementRow, RunRow, TrialRow
from db.records import NewTrial, TrialOutline, TrialRecord
from db.rows import add_measurements, by_clock, trial_of
from db.session import Database, change
from db.types import is_among
from recommender.measurement import Measurement, MeasureStatus, Protocol

Lease = tuple[int, int]  # id and attempt of a trial
OUTLINED = 300  # characters of a failure
CURRENT = TrialRow.round >= 0  # not put aside when the code of the run changed
LONGEST_DELAY = timedelta(minutes=1)  # of a retry; a date beyond it is of a clock since set back


class Trials:
    """The work queue of tuning runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, run_id: int, new: Sequence[NewTrial], epoch: int) -> Sequence[NewTrial]:
        """Persist proposals before anybody works on them; return those that were known already."""
        repeated: list[NewTrial] = []
        rows: list[dict[str, Any]] = []
        with self._database.write() as session:
            check_epoch(session, epoch)
            ids = config_ids(session, [trial.config for trial in new])
            of_run = TrialRow.run_id == run_id
            last = session.scalar(select(func.max(TrialRow.sequence)).where(of_run))
            first = 0 if last is None else last + 1
            dialect = self._database.engine.dialect.name
            config = TrialRow.__table__.c.config_id
            columns = (config, TrialRow.protocol, TrialRow.round)
            named = select(*columns).where(of_run, CURRENT, is_among(config, "configs", dialect))
            stored = session.execute(named, {"configs": list(ids.values())})
            known = {_identity(*row) for row in stored}
            for trial in new:
                identity = _identity(ids[trial.config], trial.protocol.value, trial.round)
                if identity in known:
                    repeated.append(trial)
                    continue
                known.add(identity)
                rows.append(_new_row(run_id, first + len(rows), ids[trial.config], trial))
            if rows:
                session.connection().execute(insert(TrialRow.__table__), rows)  # type: ignore[arg-type]
        return repeated

    def claim(self, run_id: int, epoch: int, limit: int, lease_s: float) -> Sequence[TrialRecord]:
        """Lease up to ``limit`` pending trials in the order in which they were proposed.

        Confirmations wait for the last of them: they are timed interleaved, or say little.
        """
        with self._database.write() as session:
            check_epoch(session, epoch)
            now = self._database.now(session)
            is_pending = (TrialRow.run_id == run_id) & (TrialRow.state == "pending")
            confirms = is_pending & (TrialRow.protocol == Protocol.CONFIRM.value)
            delayed = TrialRow.not_before.between(now, now + LONGEST_DELAY)
            last = session.scalar(select(func.max(TrialRow.not_before)).where(confirms, delayed))
            ready = or_(TrialRow.not_before.is_(None), ~delayed)
            if last is not None:
                ready &= TrialRow.protocol != Protocol.CONFIRM.value
            rows = session.scalars(
                select(TrialRow)
                .where(is_pending, ready)
                .order_by(TrialRow.sequence)
                .limit(limit)
                .with_for_update(of=TrialRow, skip_locked=True)
            ).all()
            for row in rows:
                row.state, row.attempt, row.lease_epoch = "leased", row.attempt + 1, epoch
                row.lease_until = now + timedelta(seconds=lease_s)
            return [trial_of(row) for row in rows]

    def accept_all(
        self, outcomes: Sequence[tuple[TrialRecord, Measurement]], epoch: int
    ) -> Sequence[int | None]:
        """Store outcomes and return their ids, None where the lease is not held any more.

        Leases are given up and measurements inserted in one transaction: of an execution that
        happened twice exactly one record stays.
        """
        with self._database.write() as session:
            author_of = _locked_runs(session, {trial.run_id for trial, _ in outcomes})
            places: dict[Lease, int] = {}  # of several outcomes of one lease the first counts
            for place, (trial, _) in enumerate(outcomes):
                places.setdefault(_lease(trial), place)
            leases: set[Lease] = set()
            for state in ("done", "failed"):
                ended = [
                    lease for lease, i in places.items() if _end_state(outcomes[i][1]) == state
                ]
                values = {"state": state, "last_error": None}
                leases |= self._give_up(session, ended, epoch, values)
            held = [place for lease, place in places.items() if lease in leases]
            ours = [outcomes[place] for place in held]
            now = self._database.now(session)
            ids = add_measurements(
                session, by_clock([m for _, m in ours], now), now,
                [trial.id for trial, _ in ours], [author_of[trial.run_id] for trial, _ in ours],
            )  # fmt: skip
            told = [(trial.run_id, _payload(trial, m)) for trial, m in ours]
            add_events(session, now, "trial", told)
            stored = dict(zip(held, ids, strict=True))
            return [stored.get(place) for place in range(len(outcomes))]

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
            done = bool(self._give_up(session, [_lease(trial)], epoch, values))
            if done:
                payload = {"sequence": trial.sequence, "reason": reason, "attempt": trial.attempt}
                add_event(session, self._database, trial.run_id, "retry", payload)
            return done

    def renew(self, trials: Sequence[TrialRecord], epoch: int, lease_s: float) -> int:
        """Prolong leases of this leader; return how many of them it still holds."""
        with self._database.write() as session:
            until = self._database.now(session) + timedelta(seconds=lease_s)
            held = update(TrialRow).where(_held(list(map(_lease, trials)), epoch))
            return change(session, held.values(lease_until=until))

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
            .where(TrialRow.run_id == run_id, CURRENT)
            .order_by(MeasurementRow.id.is_(None), MeasurementRow.id, TrialRow.sequence)
        )
        if state is not None:
            query = query.where(TrialRow.state == state)
        with self._database.read() as session:
            return [trial_of(trial, measured) for trial, measured in session.execute(query)]

    def outlines(self, run_id: int) -> Sequence[TrialOutline]:
        """Return what there is to see of all trials of a run, in the order of ``of_run``.

        A hundredth of the work of ``of_run``, for runs of tens of thousands of trials.
        """
        detail = func.coalesce(MeasurementRow.detail, TrialRow.last_error, "")
        query = (
            select(
                TrialRow.id, TrialRow.sequence, ConfigRow.key, ConfigRow.knobs, TrialRow.protocol,
                TrialRow.purpose, TrialRow.state, MeasurementRow.status, MeasurementRow.time_s,
                func.substr(detail, 1, OUTLINED),
            )
            .join(ConfigRow, ConfigRow.id == TrialRow.config_id)
            .outerjoin(MeasurementRow, MeasurementRow.trial_id == TrialRow.id)
            .where(TrialRow.run_id == run_id, CURRENT)
            .order_by(MeasurementRow.id.is_(None), MeasurementRow.id, TrialRow.sequence)
        )  # fmt: skip
        names = [field.name for field in fields(TrialOutline)]
        with self._database.read() as session:
            return [
                TrialOutline(**dict(zip(names, row, strict=True))) for row in session.execute(query)
            ]

    def some(self, ids: Sequence[int]) -> Sequence[TrialRecord]:
        """Return trials by their ids, in that order; those that are gone are left out."""
        query = (
            select(TrialRow, MeasurementRow)
            .outerjoin(MeasurementRow, MeasurementRow.trial_id == TrialRow.id)
            .where(TrialRow.id.in_(ids))
        )
        with self._database.read() as session:
            found = {t.id: trial_of(t, measured) for t, measured in session.execute(query)}
        return [found[number] for number in ids if number in found]

    def page(
        self, run_id: int, *, state: str | None = None, limit: int = 50, after: int | None = None
    ) -> Sequence[TrialRecord]:
        """Return trials of a run as they were proposed; ``after`` is the id to go on from."""
        query = (
            select(TrialRow, MeasurementRow)
            .outerjoin(MeasurementRow, MeasurementRow.trial_id == TrialRow.id)
            .where(TrialRow.run_id == run_id, CURRENT, TrialRow.id > (after or 0))
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
            .where(TrialRow.run_id.in_(run_ids), CURRENT)
            .group_by(TrialRow.run_id, status)
        )
        found: dict[int, dict[str, int]] = {run_id: {} for run_id in run_ids}
        with self._database.read() as session:
            for run_id, name, count in session.execute(query):
                found[run_id][name] = count
        return found

    @staticmethod
    def _give_up(
        session: Session, leases: Sequence[Lease], epoch: int, values: dict[str, Any]
    ) -> set[Lease]:
        """Change the trials of those leases that are held; return these."""
        if not leases:
            return set()
        given_up = update(TrialRow).where(_held(leases, epoch)).values(values)
        found = session.execute(
            given_up.returning(TrialRow.id, TrialRow.attempt),
            execution_options={"synchronize_session": False},
        )
        return {(number, attempt) for number, attempt in found}

    @staticmethod
    def _put_back(session: Session, where: Any) -> int:
        leased = update(TrialRow).where(TrialRow.state == "leased", where)
        return change(session, leased.values(state="pending"))


def _lease(trial: TrialRecord) -> Lease:
    return trial.id, trial.attempt


def _held(leases: Sequence[Lease], epoch: int) -> ColumnElement[bool]:
    """Return the condition of the trials whose leases are still those of this leader."""
    return and_(
        tuple_(TrialRow.id, TrialRow.attempt).in_(leases),
        TrialRow.state == "leased",
        TrialRow.lease_epoch == epoch,
    )


def _end_state(measurement: Measurement) -> str:
    return "failed" if measurement.status is MeasureStatus.WORKER_LOST else "done"


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
