"""Rows <-> values: the only place that knows both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from db.identities import References
from db.models import (
    Base,
    HardwareRow,
    MeasurementRow,
    NodeRow,
    RunRow,
    SampleRow,
    ToolchainRow,
    TrialRow,
    WorkloadRow,
)
from db.records import NodeRecord, RunRecord, TrialRecord
from db.service_models import ModelRow
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol, Toolchain
from recommender.ports import StoredModel
from recommender.workload import Workload
from tilecore.tile_config import TileConfig

NO_SKEW = timedelta(seconds=1)  # the way to the database takes some of it


def by_clock(measurements: Sequence[Measurement], now: datetime) -> Sequence[Measurement]:
    """Return what was measured here, dated by the database's clock if this host's is another time.

    Several hosts write one log: its order, drifts and ages rest on the dates.
    """
    skew = now - datetime.now(UTC)
    if abs(skew) < NO_SKEW:
        return measurements
    return [replace(m, measured_at=m.measured_at + skew) for m in measurements]


def add_measurements(
    session: Session,
    measurements: Sequence[Measurement],
    now: datetime,
    trial_ids: Sequence[int] | None = None,
    authors: Sequence[str | None] | None = None,
) -> list[int]:
    """Insert measurements with all their repeats and return their ids in the same order.

    Args:
        session: of a write.
        measurements: what to store.
        now: the time of the database.
        trial_ids: the trials they belong to; None: to none.
        authors: the names of the API keys that asked for them; None: nobody's.
    """
    if not measurements:
        return []
    refer = References(session, measurements, now)
    trials: Sequence[int | None] = trial_ids or [None] * len(measurements)
    creators: Sequence[str | None] = authors or [None] * len(measurements)
    values = [
        {"trial_id": trial_id, "created_by": author} | refer.columns(m) | _columns(m)
        for trial_id, author, m in zip(trials, creators, measurements, strict=True)
    ]
    connection = session.connection()
    statement = insert(MeasurementRow.__table__)  # type: ignore[arg-type]
    returning = statement.returning(MeasurementRow.id, sort_by_parameter_order=True)
    new_ids = list(connection.execute(returning, values).scalars())
    samples = [
        {
            "measurement_id": new_id,
            "times_s": list(m.times_s),
            "reference_times_s": list(m.reference_times_s),
        }
        for new_id, m in zip(new_ids, measurements, strict=True)
    ]
    connection.execute(insert(SampleRow.__table__), samples)  # type: ignore[arg-type]
    return new_ids


def _columns(m: Measurement) -> dict[str, Any]:
    return {
        "protocol": m.protocol.value,
        "threads": m.threads,
        "status": m.status.value,
        "time_s": m.time_s,
        "reference_time_s": m.reference_time_s,
        "compile_s": m.compile_s,
        "max_error": m.max_error,
        "detail": m.detail[:4096],
        "worker": m.worker[:200],
        "metrics": {name: value for name, value in m.metrics.items() if isfinite(value)},
        "measured_at": m.measured_at,
    }


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
        driver=row.driver.name if row.driver is not None else "",
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
        priority=row.priority,
        ceiling_s=row.ceiling_s,
        group=row.group_id,
        created_by=row.created_by,
        cause=row.cause,
        active_s=row.active_s,
        device_s=row.device_s,
        round=row.round,
        cancel_requested=row.cancel_requested,
        pause_requested=row.pause_requested,
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
        losses=row.losses,
        round=row.round,
        last_error=row.last_error,
        measurement=measurement_of(measurement) if measurement is not None else None,
        measurement_id=measurement.id if measurement is not None else None,
    )


def node_of(row: NodeRow) -> NodeRecord:
    """Return the node of a row."""
    return NodeRecord(
        id=row.id,
        key=row.key,
        name=row.name,
        hardware=hardware_of(row.hardware),
        devices=row.devices,
        state=row.state,
        detail=row.detail,
        joined_at=row.joined_at,
        seen_at=row.seen_at,
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
