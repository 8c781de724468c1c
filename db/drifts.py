"""Drifts: times of workloads that changed for good, and the measurements that show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy import exc as sa_exc

from db.models import (
    HardwareRow,
    MeasurementRow,
    ProgramRow,
    RunRow,
    ToolchainRow,
    TrialRow,
    WorkloadRow,
)
from db.reader import FLAT, Reader, rows_of
from db.records import DriftRecord, RunRecord
from db.service_models import DriftRow
from db.session import Database, change
from db.trials import CURRENT
from recommender.measurement import Measurement, MeasureStatus
from recommender.workload import Workload

if TYPE_CHECKING:
    from recommender.drift import Drift

MAX_RUNS = 32  # the last ones of a workload are looked at


class Drifts:
    """The drifts of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reader = Reader(database.engine.dialect.name)

    def history(self, run: RunRecord) -> Sequence[tuple[str, Sequence[Measurement]]]:
        """Return the OK measurements of the last runs like this one, by run, since the last drift.

        Runs are alike that had its workload, hardware, program and toolchain.
        """
        alike = _of_run(run, RunRow)
        last = select(func.max(DriftRow.since)).where(_of_run(run, DriftRow))
        with self._database.read() as session:
            since = session.execute(last).scalar()
            chosen = session.execute(
                select(RunRow.id, RunRow.public_id)
                .where(alike, RunRow.started_at.is_not(None))
                .order_by(RunRow.id.desc())
                .limit(MAX_RUNS)
            ).all()
            query = FLAT.where(
                TrialRow.run_id.in_([number for number, _ in chosen]),
                CURRENT,
                MeasurementRow.status == MeasureStatus.OK.value,
            )
            if since is not None:
                query = query.where(MeasurementRow.measured_at >= since)
            execute = rows_of(session)
            records = self._reader.records(execute, execute(query, {}))
        found: dict[str, list[Measurement]] = {name: [] for _, name in chosen}
        for record in records:
            found[str(record.run)].append(record.measurement)
        return [(name, measured) for name, measured in found.items() if measured]

    def add(self, run: RunRecord, drift: Drift) -> DriftRecord | None:
        """Note a drift that a run showed; None: one is open already."""
        try:
            with self._database.write() as session:
                ids = session.execute(
                    select(
                        RunRow.workload_id, RunRow.hardware_id, RunRow.program_id,
                        RunRow.toolchain_id,
                    ).where(RunRow.id == run.id)
                ).one()  # fmt: skip
                row = DriftRow(
                    **ids._mapping,
                    since=drift.since,
                    ratio=drift.ratio,
                    explanation=drift.explain(),
                    found_at=self._database.now(session),
                )
                session.add(row)
                session.flush()
                return _record(row)
        except sa_exc.IntegrityError:
            return None

    def open(
        self, workload: Workload, hardware_key: str, program_digest: str, toolchain_key: str
    ) -> DriftRecord | None:
        """Return the drift of this key that nobody has tuned after."""
        query = select(DriftRow).where(
            _of(DriftRow, workload.key, hardware_key, program_digest, toolchain_key),
            DriftRow.ended_at.is_(None),
        )
        with self._database.read() as session:
            row = session.scalars(query).first()
            return None if row is None else _record(row)

    def any_open(self) -> bool:
        """Return whether there is a drift that nobody has tuned after."""
        query = select(DriftRow.id).where(DriftRow.ended_at.is_(None)).limit(1)
        with self._database.read() as session:
            return session.connection().execute(query).first() is not None

    def end(self, run: RunRecord) -> bool:
        """End the open drift of a run that succeeded, if it was queued after the drift was found.

        Returns:
            Whether there was one.
        """
        with self._database.write() as session:
            where = _of_run(run, DriftRow) & DriftRow.ended_at.is_(None)
            found = session.scalars(select(DriftRow.id).where(where)).all()
            done = (
                update(DriftRow)
                .where(DriftRow.id.in_(found), DriftRow.found_at <= run.created_at)
                .values(ended_at=self._database.now(session))
            )
            return change(session, done) > 0


def _of_run(run: RunRecord, row: Any) -> ColumnElement[bool]:
    return _of(row, run.workload.key, run.hardware.key, run.program_digest, run.toolchain.key)


def _of(
    row: Any, workload: str, hardware: str, program: str, toolchain: str
) -> ColumnElement[bool]:
    """Return the condition that runs or drifts are of this key."""
    programs = select(ProgramRow.id).where(ProgramRow.digest == program)
    found: ColumnElement[bool] = (
        row.workload_id.in_(select(WorkloadRow.id).where(WorkloadRow.key == workload))
        & row.hardware_id.in_(select(HardwareRow.id).where(HardwareRow.key == hardware))
        & row.program_id.in_(programs)
        & row.toolchain_id.in_(select(ToolchainRow.id).where(ToolchainRow.key == toolchain))
    )
    return found


def _record(row: DriftRow) -> DriftRecord:
    return DriftRecord(
        id=row.id,
        since=row.since,
        ratio=row.ratio,
        explanation=row.explanation,
        found_at=row.found_at,
        ended_at=row.ended_at,
    )
