"""Studies: searches over spaces of external kernels, measured by whoever asks for trials."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Text, cast, func, insert, select, update
from sqlalchemy import exc as sa_exc
from sqlalchemy.orm import Session

from db.errors import (
    AlreadyTold,
    IdempotencyConflict,
    LeaseLost,
    StudyClosed,
    UnknownStudy,
    UnknownTrial,
)
from db.records import NewStudy, StudyOutline, StudyRecord, StudyTrial, ToldConfig
from db.service_models import StudyRow, StudyTrialRow
from db.session import Database, change
from db.storable import decoded_json

MAX_ATTEMPTS = 3  # leases that ran out before a configuration counts as failed
OUTLINED = 300  # characters of a failure


class Studies:
    """The studies of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, new: NewStudy) -> tuple[StudyRecord, bool]:
        """Store a study; return it and whether it is new (False: the key came again).

        Raises:
            IdempotencyConflict: the key came before with another body (DB807).
        """
        try:
            with self._database.write() as session:
                row = StudyRow(
                    public_id=str(uuid.uuid4()),
                    idempotency_key=new.idempotency_key,
                    body_hash=new.body_hash,
                    name=new.name,
                    hardware=new.hardware,
                    space=dict(new.space),
                    space_key=new.space_key,
                    strategy=new.strategy,
                    seed=new.seed,
                    max_trials=new.max_trials,
                    state="OPEN",
                    created_by=new.created_by,
                    created_at=self._database.now(session),
                )
                session.add(row)
                session.flush()
                return _study(row), True
        except sa_exc.IntegrityError:
            if new.idempotency_key is None:
                raise
        with self._database.read() as session:
            query = select(StudyRow).where(StudyRow.idempotency_key == new.idempotency_key)
            found = session.scalars(query).one()
            if found.body_hash != new.body_hash:
                raise IdempotencyConflict(key=new.idempotency_key)
            return _study(found), False

    def get(self, public_id: str) -> StudyRecord:
        """Return a study.

        Raises:
            UnknownStudy: there is none with this id (DB821).
        """
        with self._database.read() as session:
            return _study(_row(session, public_id))

    def list(
        self, *, created_by: str | None = None, limit: int = 50, before: int | None = None
    ) -> Sequence[StudyRecord]:
        """Return studies, newest first; ``before`` is the id to go on from."""
        query = select(StudyRow).order_by(StudyRow.id.desc()).limit(limit)
        if created_by is not None:
            query = query.where(StudyRow.created_by == created_by)
        if before is not None:
            query = query.where(StudyRow.id < before)
        with self._database.read() as session:
            return [_study(row) for row in session.scalars(query)]

    def close(self, public_id: str) -> StudyRecord:
        """Give out no more trials; what was told stays, and what is under way may still be told."""
        with self._database.write() as session:
            row = _row(session, public_id)
            row.state = "CLOSED"
            return _study(row)

    def lease_again(
        self, study: StudyRecord, worker: str, count: int, lease_s: float
    ) -> Sequence[StudyTrial]:
        """Return trials that ``worker`` holds already, then those that others held too long.

        A trial whose lease ran out MAX_ATTEMPTS times becomes a failure: it may be what stops the
        workers.

        Raises:
            StudyClosed: nothing is given out any more (DB822).
        """
        with self._database.write() as session:
            self._lock(session, study)
            now = self._database.now(session)
            until = now + timedelta(seconds=lease_s)
            leased = (StudyTrialRow.study_id == study.id) & (StudyTrialRow.state == "leased")
            tired = leased & (StudyTrialRow.lease_until <= now)
            given_up = {"state": "failed", "detail": f"{MAX_ATTEMPTS} workers did not answer"}
            change(
                session,
                update(StudyTrialRow)
                .where(tired, StudyTrialRow.attempt >= MAX_ATTEMPTS)
                .values(told_at=now, **given_up),
            )
            mine = leased & (StudyTrialRow.worker == worker)
            rows = session.scalars(
                select(StudyTrialRow)
                .where(mine | tired)
                .order_by(StudyTrialRow.worker != worker, StudyTrialRow.id)
                .limit(count)
                .with_for_update()  # what is told meanwhile is leased no more
            ).all()
            for row in rows:
                row.attempt += row.worker != worker or row.lease_until <= now
                row.worker, row.lease_until = worker, until
            return [_trial(row) for row in rows]

    def add(
        self,
        study: StudyRecord,
        configs: Mapping[int, Mapping[str, Any]],
        worker: str,
        lease_s: float,
    ) -> Sequence[StudyTrial]:
        """Lease new trials (row -> config) to ``worker``; rows that exist are left out.

        Raises:
            StudyClosed: nothing is given out any more (DB822).
        """
        with self._database.write() as session:
            self._lock(session, study)
            of_study = StudyTrialRow.study_id == study.id
            taken = set(
                session.scalars(
                    select(StudyTrialRow.row).where(of_study, StudyTrialRow.row.in_(list(configs)))
                )
            )
            known = session.execute(select(func.count()).where(of_study)).scalar_one()
            rows = [row for row in configs if row not in taken][: study.max_trials - known]
            if not rows:
                return []
            until = self._database.now(session) + timedelta(seconds=lease_s)
            common = {"study_id": study.id, "worker": worker, "lease_until": until}
            values = [
                {"row": row, "config": dict(configs[row]), "state": "leased", "attempt": 1,
                 "times_s": [], "detail": "", **common}
                for row in rows
            ]  # fmt: skip
            session.execute(insert(StudyTrialRow), values)
            made = select(StudyTrialRow).where(of_study, StudyTrialRow.row.in_(rows))
            found = {trial.row: _trial(trial) for trial in session.scalars(made)}
            return [found[row] for row in rows]

    def complete(
        self, study: StudyRecord, trial: int, worker: str, times_s: Sequence[float], detail: str
    ) -> StudyTrial:
        """Store what came of a trial: its times, or none where it failed for the reason ``detail``.

        The same worker may say the same again; it may be late while nobody else has the trial.

        Raises:
            UnknownTrial: the study has no such trial (DB823).
            LeaseLost: another worker holds, or told, the trial (DB824).
            AlreadyTold: the worker told something else before, or was given up (DB828).
        """
        with self._database.write() as session:
            query = select(StudyTrialRow).where(
                StudyTrialRow.id == trial, StudyTrialRow.study_id == study.id
            )
            row = session.scalars(query.with_for_update()).first()
            if row is None:
                raise UnknownTrial(found=trial)
            if row.worker != worker:
                raise LeaseLost(trial=trial, worker=worker, holder=row.worker)
            is_same = row.times_s == list(times_s) and (times_s or row.detail == detail)
            if row.state != "leased" and not is_same:
                known = (
                    f"{len(row.times_s)} times" if row.times_s else f"failed: {row.detail[:200]}"
                )
                raise AlreadyTold(trial=trial, known=known)
            if row.state == "leased":
                _settle(row, times_s, detail, self._database.now(session))
            return _trial(row)

    def tell(
        self, study: StudyRecord, told: Mapping[int, ToldConfig], worker: str
    ) -> Sequence[StudyTrial]:
        """Store what ``worker`` measured without being given it (by row); return the trials.

        New ones come on top of the study's ``max_trials``. Of one that somebody holds this is what
        came of it; one that is known stays as it is.

        Raises:
            StudyClosed: nothing is taken any more (DB822).
        """
        of_study = StudyTrialRow.study_id == study.id
        wanted = select(StudyTrialRow).where(of_study, StudyTrialRow.row.in_(list(told)))
        with self._database.write() as session:
            self._lock(session, study)
            now = self._database.now(session)
            known = {r.row: r for r in session.scalars(wanted.with_for_update())}
            for row, trial in known.items():
                if trial.state == "leased":
                    trial.worker = worker
                    _settle(trial, told[row].times_s, told[row].detail, now)
            new = [row for row in told if row not in known]
            for row in new:
                trial = StudyTrialRow(
                    study_id=study.id, row=row, config=dict(told[row].config), worker=worker,
                    attempt=1, lease_until=now,
                )  # fmt: skip
                _settle(trial, told[row].times_s, told[row].detail, now)
                session.add(trial)
            if new:
                entry = session.get_one(StudyRow, study.id)
                most = max(entry.max_trials, int(entry.space["size"]))
                entry.max_trials = min(entry.max_trials + len(new), most)
            session.flush()
            found = {r.row: _trial(r) for r in session.scalars(wanted)}
            return [found[row] for row in told]

    def trials(
        self, study: StudyRecord, *, limit: int | None = None, after: int = 0
    ) -> Sequence[StudyTrial]:
        """Return trials in the order in which they were given out."""
        query = select(StudyTrialRow).where(
            StudyTrialRow.study_id == study.id, StudyTrialRow.id > after
        )
        query = query.order_by(StudyTrialRow.id).limit(limit)
        with self._database.read() as session:
            return [_trial(row) for row in session.scalars(query)]

    def outlines(self, study: StudyRecord) -> Sequence[StudyOutline]:
        """Return what there is to see of all trials in the order in which they were given out.

        A tenth of the work of ``trials``, for studies of tens of thousands of them.
        """
        row = StudyTrialRow
        detail = func.substr(row.detail, 1, OUTLINED).label("detail")
        query = select(cast(row.config, Text), row.id, row.state, row.time_s, detail)
        with self._database.read() as session:
            found = query.where(row.study_id == study.id).order_by(row.id)
            rows = session.execute(found).all()
        configs = decoded_json(f"[{','.join(row[0] for row in rows)}]")
        return [
            StudyOutline(
                id=row.id, config=config, state=row.state, time_s=row.time_s, detail=row.detail
            )
            for row, config in zip(rows, configs, strict=True)
        ]

    def some(self, ids: Sequence[int]) -> Sequence[StudyTrial]:
        """Return trials by their ids, in that order."""
        query = select(StudyTrialRow).where(StudyTrialRow.id.in_(ids))
        with self._database.read() as session:
            found = {row.id: _trial(row) for row in session.scalars(query)}
        return [found[number] for number in ids]

    def known(self, study: StudyRecord) -> Sequence[tuple[int, str, float | None]]:
        """Return row, state and time of all trials: what a search goes by."""
        query = (
            select(StudyTrialRow.row, StudyTrialRow.state, StudyTrialRow.time_s)
            .where(StudyTrialRow.study_id == study.id)
            .order_by(StudyTrialRow.id)
        )
        with self._database.read() as session:
            return [row.tuple() for row in session.execute(query)]

    def related(self, name: str, space_key: str, least: int, limit: int) -> Sequence[StudyRecord]:
        """Return studies of a name and a space that were told of ``least`` rows, newest first."""
        of_study = (StudyTrialRow.study_id == StudyRow.id) & StudyTrialRow.told_at.is_not(None)
        told = select(func.count()).select_from(StudyTrialRow).where(of_study).scalar_subquery()
        query = (
            select(StudyRow)
            .where(StudyRow.space_key == space_key, StudyRow.name == name, told >= least)
            .order_by(StudyRow.id.desc())
            .limit(limit)
        )
        with self._database.read() as session:
            return [_study(row) for row in session.scalars(query)]

    def told_before(self, study: StudyRecord, other: StudyRecord) -> dict[int, float | None]:
        """Return what another study had been told when this one began: times by row."""
        query = select(StudyTrialRow.row, StudyTrialRow.time_s).where(
            StudyTrialRow.study_id == other.id, StudyTrialRow.told_at <= study.created_at
        )
        with self._database.read() as session:
            return dict(row.tuple() for row in session.execute(query.order_by(StudyTrialRow.id)))

    def count(self, study: StudyRecord) -> dict[str, int]:
        """Return how many trials there are in each state."""
        return self.counts([study])[study.id]

    def counts(self, studies: Sequence[StudyRecord]) -> dict[int, dict[str, int]]:
        """Return the same of several studies, by their ids."""
        found: dict[int, dict[str, int]] = {study.id: {} for study in studies}
        query = (
            select(StudyTrialRow.study_id, StudyTrialRow.state, func.count())
            .where(StudyTrialRow.study_id.in_(found))
            .group_by(StudyTrialRow.study_id, StudyTrialRow.state)
        )
        with self._database.read() as session:
            for study, state, count in session.execute(query):
                found[study][state] = count
        return found

    def best(self, studies: Sequence[StudyRecord]) -> dict[int, StudyTrial]:
        """Return the fastest trial of each study that has one, by the ids of the studies."""
        row = StudyTrialRow
        fastest_first = func.row_number().over(
            partition_by=row.study_id, order_by=[row.time_s, row.id]
        )
        ranked = (
            select(row.id, fastest_first.label("place"))
            .where(row.study_id.in_([study.id for study in studies]), row.state == "ok")
            .subquery()
        )
        query = select(row).join(ranked, ranked.c.id == row.id).where(ranked.c.place == 1)
        with self._database.read() as session:
            return {found.study_id: _trial(found) for found in session.scalars(query)}

    @staticmethod
    def _lock(session: Session, study: StudyRecord) -> None:
        """Let one transaction at a time give out trials of a study."""
        query = select(StudyRow).where(StudyRow.id == study.id)
        locked = query.with_for_update(key_share=True)  # else what tells of a trial waits in turn
        if session.scalars(locked).one().state != "OPEN":
            raise StudyClosed(study=study.public_id)


def _settle(row: StudyTrialRow, times_s: Sequence[float], detail: str, now: datetime) -> None:
    row.told_at = now
    row.state = "ok" if times_s else "failed"
    row.time_s = statistics.median(times_s) if times_s else None
    row.times_s, row.detail = list(times_s), detail


def _row(session: Session, public_id: str) -> StudyRow:
    row = session.scalars(select(StudyRow).where(StudyRow.public_id == public_id)).first()
    if row is None:
        raise UnknownStudy(found=public_id)
    return row


def _study(row: StudyRow) -> StudyRecord:
    return StudyRecord(
        id=row.id,
        public_id=row.public_id,
        name=row.name,
        hardware=row.hardware,
        space=row.space,
        space_key=row.space_key,
        strategy=row.strategy,
        seed=row.seed,
        max_trials=row.max_trials,
        state=row.state,
        created_by=row.created_by,
        created_at=row.created_at,
    )


def _trial(row: StudyTrialRow) -> StudyTrial:
    return StudyTrial(
        id=row.id,
        row=row.row,
        config=row.config,
        state=row.state,
        worker=row.worker,
        attempt=row.attempt,
        lease_until=row.lease_until,
        time_s=row.time_s,
        times_s=tuple(row.times_s),
        detail=row.detail,
        told_at=row.told_at,
    )
