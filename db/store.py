"""SqlStore: the memory of the system. Implements ``recommender.ports.MeasurementStore``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Select, and_, func, or_, select, update
from sqlalchemy.orm import contains_eager

from db.errors import ModelCorrupt
from db.leader import Leadership
from db.models import (
    HardwareRow,
    MeasurementRow,
    ModelRow,
    ProgramRow,
    RunRow,
    ToolchainRow,
    TrialRow,
    WorkloadRow,
)
from db.records import MeasurementQuery, MeasurementRecord, Page
from db.rows import (
    add_measurement,
    hardware_id,
    hardware_of,
    measurement_of,
    measurements_of,
    model_of,
)
from db.runs import Runs
from db.session import Database
from db.trials import Trials
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.ports import StoredModel
from recommender.workload import Workload

REMEMBERED_QUERIES = 8  # measurements are append-only, so an answer holds until the next one


class SqlStore:
    """Measurements, hardware and cost models; ``runs``, ``trials`` and ``leader`` do the jobs."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.runs = Runs(database)
        self.trials = Trials(database)
        self.leader = Leadership(database)
        self._recent: dict[tuple[object, ...], tuple[int | None, Sequence[Measurement]]] = {}

    # --- measurements -------------------------------------------------------------------------

    def best(
        self, workload: Workload, hardware_key: str, program_digest: str, toolchain_key: str
    ) -> Measurement | None:
        """Return the fastest OK CONFIRM measurement (else the fastest SCREEN one) of this key."""
        query = (
            _joined()
            .where(
                WorkloadRow.key == workload.key,
                HardwareRow.key == hardware_key,
                ProgramRow.digest == program_digest,
                ToolchainRow.key == toolchain_key,
                MeasurementRow.status == MeasureStatus.OK.value,
            )
            .order_by(MeasurementRow.protocol, MeasurementRow.time_s, MeasurementRow.id)
            .limit(1)
        )  # "confirm" sorts before "screen"
        with self.database.read() as session:
            row = session.scalars(query).first()
            return None if row is None else measurement_of(row)

    def measurements(
        self,
        *,
        kernel: str | None = None,
        workload_key: str | None = None,
        hardware_key: str | None = None,
        protocol: Protocol | None = None,
        only_ok: bool = False,
        limit: int = 10_000,
    ) -> Sequence[Measurement]:
        """Return measurements, newest first (from memory while no new one was stored)."""
        asked = (kernel, workload_key, hardware_key, protocol, only_ok, limit)
        query = _joined().order_by(MeasurementRow.id.desc()).limit(limit)
        if kernel is not None:
            query = query.where(WorkloadRow.kernel == kernel)
        if workload_key is not None:
            query = query.where(WorkloadRow.key == workload_key)
        if hardware_key is not None:
            query = query.where(HardwareRow.key == hardware_key)
        if protocol is not None:
            query = query.where(MeasurementRow.protocol == protocol.value)
        if only_ok:
            query = query.where(MeasurementRow.status == MeasureStatus.OK.value)
        with self.database.read() as session:
            newest = session.execute(select(func.max(MeasurementRow.id))).scalar()
            known = self._recent.get(asked)
            if known is not None and known[0] == newest:
                return known[1]
            found = measurements_of(session.scalars(query))
        if len(self._recent) >= REMEMBERED_QUERIES:
            self._recent.clear()
        self._recent[asked] = (newest, found)
        return found

    def add(self, measurement: Measurement) -> int:
        """Store a measurement that belongs to no run and return its id."""
        return self.add_all([measurement])[0]

    def add_all(self, measurements: Sequence[Measurement]) -> list[int]:
        """Store measurements that belong to no run, all or none, and return their ids."""
        with self.database.write() as session:
            now = self.database.now(session)
            return [add_measurement(session, m, now) for m in measurements]

    def page(
        self, query: MeasurementQuery, *, limit: int, after: tuple[float, int] | None = None
    ) -> Page:
        """Return up to ``limit`` measurements that match, from behind the key ``after``.

        The key is (time_s, id) with ``best_first`` (failures are left out), else (0, id).
        """
        rows_query = _filtered(query)
        row = MeasurementRow
        if query.best_first:
            rows_query = rows_query.where(row.time_s.is_not(None)).order_by(row.time_s, row.id)
            if after is not None:
                behind = and_(row.time_s == after[0], row.id > after[1])
                rows_query = rows_query.where(or_(row.time_s > after[0], behind))
        else:
            rows_query = rows_query.order_by(row.id.desc())
            if after is not None:
                rows_query = rows_query.where(row.id < after[1])
        with self.database.read() as session:
            found = session.execute(rows_query.limit(limit + 1)).all()
            items = [
                MeasurementRecord(id=m.id, run=run, measurement=measurement_of(m))
                for m, run in found[:limit]
            ]
        if len(found) <= limit:
            return Page(items=items)
        last = found[limit - 1][0]
        return Page(items=items, next_after=(last.time_s or 0.0, last.id))

    # --- hardware -----------------------------------------------------------------------------

    def save_hardware(self, profile: HardwareProfile) -> None:
        """Store a profile, replacing the rates of an earlier one with the same key."""
        with self.database.write() as session:
            now = self.database.now(session)
            found = hardware_id(session, profile, now)
            session.execute(
                update(HardwareRow)
                .where(HardwareRow.id == found)
                .values(profile=profile.as_dict(), updated_at=now)
            )

    def hardware(self, key: str) -> HardwareProfile | None:
        """Return the stored profile of a device kind."""
        with self.database.read() as session:
            row = session.scalars(select(HardwareRow).where(HardwareRow.key == key)).first()
            return None if row is None else hardware_of(row)

    def all_hardware(self) -> Sequence[HardwareProfile]:
        """Return all stored profiles by name."""
        with self.database.read() as session:
            rows = session.scalars(select(HardwareRow).order_by(HardwareRow.name, HardwareRow.id))
            return [hardware_of(row) for row in rows]

    # --- cost models --------------------------------------------------------------------------

    def active_model(self, kernel: str) -> StoredModel | None:
        """Return the promoted cost model of a kernel.

        Raises:
            ModelCorrupt: its bytes are not those that were saved (DB808).
        """
        query = select(ModelRow).where(ModelRow.kernel == kernel, ModelRow.state == "active")
        with self.database.read() as session:
            row = session.scalars(query).first()
        if row is None:
            return None
        found = hashlib.sha256(row.blob).hexdigest()
        if found != row.sha256:
            raise ModelCorrupt(id=row.id, expected=row.sha256[:12], found=found[:12])
        return model_of(row)

    def save_model(
        self,
        *,
        kernel: str,
        blob: bytes,
        feature_schema: str,
        metrics: Mapping[str, Any],
        trained_on: int,
        promote: bool,
    ) -> int:
        """Store a trained model; with ``promote`` it replaces the active one. Returns its id."""
        with self.database.write() as session:
            if promote:
                session.execute(
                    update(ModelRow)
                    .where(ModelRow.kernel == kernel, ModelRow.state == "active")
                    .values(state="retired")
                )
            row = ModelRow(
                kernel=kernel,
                state="active" if promote else "candidate",
                feature_schema=feature_schema,
                sha256=hashlib.sha256(blob).hexdigest(),
                blob=blob,
                metrics=dict(metrics),
                trained_on=trained_on,
                created_at=self.database.now(session),
            )
            session.add(row)
            session.flush()
            return row.id

    def count_measurements(self) -> int:
        """Return how many measurements there are."""
        with self.database.read() as session:
            return session.execute(select(func.count(MeasurementRow.id))).scalar_one()


def _joined() -> Select[MeasurementRow]:
    return (
        select(MeasurementRow)
        .join(WorkloadRow, MeasurementRow.workload_id == WorkloadRow.id)
        .join(HardwareRow, MeasurementRow.hardware_id == HardwareRow.id)
        .join(ProgramRow, MeasurementRow.program_id == ProgramRow.id)
        .join(ToolchainRow, MeasurementRow.toolchain_id == ToolchainRow.id)
        .options(
            contains_eager(MeasurementRow.workload),
            contains_eager(MeasurementRow.hardware),
            contains_eager(MeasurementRow.program),
            contains_eager(MeasurementRow.toolchain),
        )
    )


def _filtered(query: MeasurementQuery) -> Select[MeasurementRow, str | None]:
    columns = {
        WorkloadRow.kernel: query.kernel,
        WorkloadRow.dtype: query.dtype,
        WorkloadRow.m: query.m,
        WorkloadRow.n: query.n,
        WorkloadRow.k: query.k,
        WorkloadRow.threads: query.threads,
        MeasurementRow.status: query.status.value if query.status else None,
        MeasurementRow.protocol: query.protocol.value if query.protocol else None,
        HardwareRow.key: query.hardware_key,
        ProgramRow.digest: query.program_digest,
        ToolchainRow.key: query.toolchain_key,
        RunRow.public_id: query.run,
    }
    return (
        _joined()
        .add_columns(RunRow.public_id)
        .outerjoin(TrialRow, MeasurementRow.trial_id == TrialRow.id)
        .outerjoin(RunRow, TrialRow.run_id == RunRow.id)
        .where(*(column == value for column, value in columns.items() if value is not None))
    )
