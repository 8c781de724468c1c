"""Rows <-> values: the only place that knows both."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from db.models import (
    Base,
    ConfigRow,
    HardwareRow,
    MeasurementRow,
    ModelRow,
    ProgramRow,
    RunRow,
    SampleRow,
    ToolchainRow,
    TrialRow,
    WorkloadRow,
)
from db.records import RunRecord, TrialRecord
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol, Toolchain
from recommender.ports import StoredModel
from recommender.workload import Workload
from tilecore.tile_config import TileConfig

RowT = TypeVar("RowT", bound=Base)


def identity(session: Session, row: type[RowT], natural: dict[str, Any], **rest: Any) -> int:
    """Return the id of the row with this natural key, inserting it first where it is missing."""
    table = row.__table__
    where: list[ColumnElement[bool]] = [table.c[name] == value for name, value in natural.items()]
    found = session.execute(select(table.c.id).where(*where)).scalar()
    if found is None:
        dialect = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
        add = dialect.insert(row).values(**natural, **rest).on_conflict_do_nothing()
        session.execute(add)
        found = session.execute(select(table.c.id).where(*where)).scalar_one()
    return int(found)


def workload_id(session: Session, workload: Workload) -> int:
    """Return the id of a workload, storing it at its first use."""
    problem = dict(workload.problem)
    return identity(
        session,
        WorkloadRow,
        {"key": workload.key},
        kernel=workload.kernel,
        dtype=problem.get("dtype"),
        m=problem.get("m"),
        n=problem.get("n"),
        k=problem.get("k"),
        threads=workload.threads,
        problem=problem,
    )


def hardware_id(session: Session, hardware: HardwareProfile, now: datetime) -> int:
    """Return the id of a device kind, storing its profile at its first use."""
    return identity(
        session,
        HardwareRow,
        {"key": hardware.key},
        kind=hardware.kind,
        name=hardware.name,
        profile=hardware.as_dict(),
        updated_at=now,
    )


def toolchain_id(session: Session, toolchain: Toolchain) -> int:
    """Return the id of a toolchain."""
    versions = {
        "tilecore": toolchain.tilecore,
        "tvm": toolchain.tvm,
        "llvm": toolchain.llvm,
        "linker": toolchain.linker,
    }
    return identity(session, ToolchainRow, {"key": toolchain.key}, versions=versions)


def program_id(session: Session, kernel: str, digest: str) -> int:
    """Return the id of one version of a kernel's program."""
    return identity(session, ProgramRow, {"kernel": kernel, "digest": digest})


def config_id(session: Session, config: TileConfig) -> int:
    """Return the id of a config."""
    return identity(session, ConfigRow, {"key": config.key}, knobs=dict(config.items_))


def add_measurement(
    session: Session, measurement: Measurement, now: datetime, trial_id: int | None = None
) -> int:
    """Insert a measurement with all its repeats and return its id."""
    m = measurement
    values = {
        "trial_id": trial_id,
        "workload_id": workload_id(session, m.workload),
        "hardware_id": hardware_id(session, m.hardware, now),
        "program_id": program_id(session, m.workload.kernel, m.program_digest),
        "toolchain_id": toolchain_id(session, m.toolchain),
        "config_id": config_id(session, m.config),
        "protocol": m.protocol.value,
        "threads": m.threads,
        "status": m.status.value,
        "time_s": m.time_s,
        "reference_time_s": m.reference_time_s,
        "compile_s": m.compile_s,
        "max_error": m.max_error,
        "detail": m.detail[:4096],
        "worker": m.worker[:200],
        "metrics": dict(m.metrics),
        "measured_at": m.measured_at,
    }
    new_id = session.execute(insert(MeasurementRow).values(values).returning(MeasurementRow.id))
    measurement_id = new_id.scalar_one()
    session.execute(
        insert(SampleRow).values(
            measurement_id=measurement_id,
            times_s=list(m.times_s),
            reference_times_s=list(m.reference_times_s),
        )
    )
    return measurement_id


def workload_of(row: WorkloadRow) -> Workload:
    """Return the workload of a row."""
    return Workload.of(row.kernel, row.problem, row.threads)


def hardware_of(row: HardwareRow) -> HardwareProfile:
    """Return the hardware profile of a row."""
    facts = dict(row.profile)
    for name in ("features", "aliases"):
        facts[name] = tuple(facts.get(name, ()))
    return HardwareProfile(**facts)


def toolchain_of(row: ToolchainRow) -> Toolchain:
    """Return the toolchain of a row."""
    return Toolchain(**row.versions)


def measurements_of(rows: Iterable[MeasurementRow]) -> list[Measurement]:
    """Return the measurements of rows; what they share is built once."""
    shared: dict[Base, Any] = {}
    return [measurement_of(row, shared) for row in rows]


def measurement_of(row: MeasurementRow, shared: dict[Base, Any] | None = None) -> Measurement:
    """Return the measurement of a row with all its repeats.

    ``shared`` holds what earlier rows of one session made of workload, hardware and so on.
    """
    memo = {} if shared is None else shared
    return Measurement(
        workload=memo.get(row.workload) or memo.setdefault(row.workload, workload_of(row.workload)),
        config=TileConfig.of(row.config.knobs),
        hardware=memo.get(row.hardware) or memo.setdefault(row.hardware, hardware_of(row.hardware)),
        toolchain=memo.get(row.toolchain)
        or memo.setdefault(row.toolchain, toolchain_of(row.toolchain)),
        program_digest=row.program.digest,
        protocol=Protocol(row.protocol),
        threads=row.threads,
        status=MeasureStatus(row.status),
        times_s=tuple(row.sample.times_s),
        reference_times_s=tuple(row.sample.reference_times_s),
        detail=row.detail,
        compile_s=row.compile_s,
        max_error=row.max_error,
        worker=row.worker,
        measured_at=row.measured_at,
        metrics=row.metrics,
    )


def run_of(row: RunRow) -> RunRecord:
    """Return the tuning run of a row."""
    return RunRecord(
        id=row.id,
        public_id=row.public_id,
        state=row.state,
        workload=workload_of(row.workload),
        hardware=hardware_of(row.hardware),
        program_digest=row.program.digest,
        toolchain=toolchain_of(row.toolchain),
        spec=row.spec,
        body_hash=row.body_hash,
        seed=row.seed,
        planned_trials=row.planned_trials,
        active_s=row.active_s,
        cancel_requested=row.cancel_requested,
        result=row.result,
        error=row.error,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def trial_of(row: TrialRow, measurement: MeasurementRow | None = None) -> TrialRecord:
    """Return the trial of a row."""
    return TrialRecord(
        id=row.id,
        run_id=row.run_id,
        sequence=row.sequence,
        config=TileConfig.of(row.config.knobs),
        protocol=Protocol(row.protocol),
        purpose=row.purpose,
        predicted_s=row.predicted_s,
        state=row.state,
        attempt=row.attempt,
        last_error=row.last_error,
        measurement=measurement_of(measurement) if measurement is not None else None,
        measurement_id=measurement.id if measurement is not None else None,
    )


def model_of(row: ModelRow) -> StoredModel:
    """Return the cost model of a row."""
    return StoredModel(
        id=row.id,
        kernel=row.kernel,
        blob=row.blob,
        feature_schema=row.feature_schema,
        metrics=row.metrics,
        trained_on=row.trained_on,
    )
