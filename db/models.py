"""The tables. What is filtered, joined or constrained is a column; what only travels is JSON.

Identity tables (hardware, toolchain, program, workload, config) are written once per natural key.
``measurement`` is append-only (triggers refuse changes on SQLite; ``db.retention`` alone removes
what its policy does not keep); its repeats lie in a side table so that scans stay narrow. A change
here needs a migration in ``db/migrations/versions``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from db.types import BigId, JsonValue, UtcDateTime
from recommender.measurement import MeasureStatus, Protocol

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
RUN_STATES = (
    "QUEUED", "RUNNING", "PAUSED", "WAITING_FOR_HARDWARE", "SUCCEEDED", "FAILED", "CANCELLED",
)  # fmt: skip
TRIAL_STATES = ("pending", "leased", "done", "failed", "cancelled")
NODE_STATES = ("active", "draining", "drained", "refused", "lost")


def one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    """Return a constraint that closes the set of values of a column."""
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} in ({listed})", name=column)


class Base(DeclarativeBase):
    """Base of all rows."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012  read by SQLAlchemy's metaclass
        dict[str, Any]: JsonValue,
        list[float]: JsonValue,
        datetime: UtcDateTime,
    }


class HardwareRow(Base):
    """A kind of device, by the digest of its identity facts; the profile may get measured rates."""

    __tablename__ = "hardware"
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(32), unique=True)
    kind: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(String(200))
    profile: Mapped[dict[str, Any]]
    updated_at: Mapped[datetime]


class ToolchainRow(Base):
    """Versions that can change generated code."""

    __tablename__ = "toolchain"
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(32), unique=True)
    versions: Mapped[dict[str, Any]]


class DriverRow(Base):
    """A driver as devices tell it (``HardwareProfile.driver``)."""

    __tablename__ = "driver"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)


class ProgramRow(Base):
    """One version of a kernel's tile program."""

    __tablename__ = "program"
    __table_args__ = (UniqueConstraint("kernel", "digest"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    kernel: Mapped[str] = mapped_column(String(64))
    digest: Mapped[str] = mapped_column(String(64))


class WorkloadRow(Base):
    """A kernel and its problem; the columns that people filter by stand beside the JSON."""

    __tablename__ = "workload"
    __table_args__ = (Index(None, "kernel", "dtype", "m", "n", "k"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(32), unique=True)
    kernel: Mapped[str] = mapped_column(String(64))
    dtype: Mapped[str | None] = mapped_column(String(16))
    m: Mapped[int | None]
    n: Mapped[int | None]
    k: Mapped[int | None]
    threads: Mapped[int]
    problem: Mapped[dict[str, Any]]


class ConfigRow(Base):
    """A tile config, stored once."""

    __tablename__ = "config"
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(32), unique=True)
    knobs: Mapped[dict[str, Any]]


class RunRow(Base):
    """A tuning run: what was asked for, where it stands, what came out.

    ``created_by`` is the name of an API key (null: nobody's), ``cause`` why the system queued it
    (null: somebody asked).
    """

    __tablename__ = "tuning_run"
    __table_args__ = (one_of("state", RUN_STATES), Index(None, "workload_id", "hardware_id"))
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    public_id: Mapped[str] = mapped_column(String(36), unique=True)
    idempotency_key: Mapped[str | None] = mapped_column(String(128), unique=True)
    body_hash: Mapped[str] = mapped_column(String(32))
    group_id: Mapped[str | None] = mapped_column(String(36), index=True)
    state: Mapped[str] = mapped_column(String(20), index=True)
    priority: Mapped[int] = mapped_column(server_default="10")
    workload_id: Mapped[int] = mapped_column(ForeignKey("workload.id"))
    hardware_id: Mapped[int] = mapped_column(ForeignKey("hardware.id"))
    program_id: Mapped[int] = mapped_column(ForeignKey("program.id"))
    toolchain_id: Mapped[int] = mapped_column(ForeignKey("toolchain.id"))
    spec: Mapped[dict[str, Any]]
    created_by: Mapped[str | None] = mapped_column(String(64))
    cause: Mapped[str | None] = mapped_column(String(8))
    seed: Mapped[int]
    planned_trials: Mapped[int]
    ceiling_s: Mapped[float | None]
    active_s: Mapped[float] = mapped_column(server_default="0")
    device_s: Mapped[float] = mapped_column(server_default="0")
    round: Mapped[int] = mapped_column(server_default="0")
    cancel_requested: Mapped[bool] = mapped_column(server_default=false())
    pause_requested: Mapped[bool] = mapped_column(server_default=false())
    result: Mapped[dict[str, Any] | None]
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    workload: Mapped[WorkloadRow] = relationship(lazy="joined", innerjoin=True)
    hardware: Mapped[HardwareRow] = relationship(lazy="joined", innerjoin=True)
    program: Mapped[ProgramRow] = relationship(lazy="joined", innerjoin=True)
    toolchain: Mapped[ToolchainRow] = relationship(lazy="joined", innerjoin=True)


class TrialRow(Base):
    """One candidate of a run. ``(attempt, lease_epoch)`` is the fencing token of its lease.

    ``round`` counts the extensions of the run: each ends with a confirmation of its own. Below 0 it
    is a trial of other code than the run is of now (``Runs.renew``): no longer one of the run's.
    ``losses`` counts the workers that got lost under it; ``attempt`` every lease.
    """

    __tablename__ = "trial"
    __table_args__ = (
        UniqueConstraint("run_id", "config_id", "protocol", "round"),
        UniqueConstraint("run_id", "sequence"),
        one_of("state", TRIAL_STATES),
        one_of("protocol", tuple(p.value for p in Protocol)),
        Index(None, "state", "run_id", "sequence"),
    )
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("tuning_run.id"))
    config_id: Mapped[int] = mapped_column(ForeignKey("config.id"))
    protocol: Mapped[str] = mapped_column(String(16))
    round: Mapped[int] = mapped_column(server_default="0")
    purpose: Mapped[str] = mapped_column(String(16))
    predicted_s: Mapped[float | None]
    sequence: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    attempt: Mapped[int]
    losses: Mapped[int] = mapped_column(server_default="0")
    lease_epoch: Mapped[int | None]
    lease_until: Mapped[datetime | None]
    not_before: Mapped[datetime | None]
    last_error: Mapped[str | None] = mapped_column(Text)
    config: Mapped[ConfigRow] = relationship(lazy="joined", innerjoin=True)


class FacetRow(Base):
    """A combination of what people filter the log by; there are few, so that a query finds its own.

    Every filter of these columns selects some facets, and the log lies in order within each: any
    combination of filters is a merge of short index ranges (``db.log``).
    """

    __tablename__ = "facet"
    __table_args__ = (
        UniqueConstraint("kernel", "hardware_id", "toolchain_id", "protocol", "status"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    kernel: Mapped[str] = mapped_column(String(64))
    hardware_id: Mapped[int] = mapped_column(ForeignKey("hardware.id"))
    toolchain_id: Mapped[int] = mapped_column(ForeignKey("toolchain.id"))
    protocol: Mapped[str] = mapped_column(String(16))
    status: Mapped[str] = mapped_column(String(20))


class WorkloadFacetRow(Base):
    """A workload and a facet of which the workload has an OK measurement, or had one.

    Written with the measurement (``db.identities``), never changed or removed: who asks for winners
    looks at the first measurement of each pair, and finds none where none is left.
    """

    __tablename__ = "workload_facet"
    __table_args__ = ({"sqlite_with_rowid": False},)
    workload_id: Mapped[int] = mapped_column(
        ForeignKey("workload.id"), primary_key=True, autoincrement=False
    )
    facet_id: Mapped[int] = mapped_column(
        ForeignKey("facet.id"), primary_key=True, autoincrement=False
    )


class MeasurementRow(Base):
    """The accepted outcome of a trial (or an imported one): a time or a failure, never both.

    The indices hold what their queries filter by, so that a scan reads no row that it drops.
    """

    __tablename__ = "measurement"
    __table_args__ = (
        one_of("status", tuple(s.value for s in MeasureStatus)),
        one_of("protocol", tuple(p.value for p in Protocol)),
        CheckConstraint("(status = 'OK') = (time_s is not null)", name="time_or_failure"),
        Index("ix_measurement_log", "measured_at", "id", "facet_id", "workload_id"),
        Index("ix_measurement_times", "time_s", "id", "facet_id", "workload_id"),
        Index("ix_measurement_facet_log", "facet_id", "measured_at", "id"),
        Index("ix_measurement_facet_times", "facet_id", "time_s", "id"),
        Index("ix_measurement_workload_log", "workload_id", "measured_at", "id", "facet_id"),
        Index(
            "ix_measurement_workload_times",
            "workload_id", "facet_id", "time_s", "id", "program_id", "created_by",
            sqlite_where=text("time_s is not null"), postgresql_where=text("time_s is not null"),
        ),
        Index(
            "ix_measurement_program_log",
            "program_id", "measured_at", "id", "facet_id", "workload_id",
        ),
        Index(
            "ix_measurement_program_times",
            "program_id", "time_s", "id", "facet_id", "workload_id",
            sqlite_where=text("time_s is not null"), postgresql_where=text("time_s is not null"),
        ),
        Index(
            "ix_measurement_created_by_log",
            "created_by", "measured_at", "id", "facet_id", "workload_id",
            sqlite_where=text("created_by is not null"),
            postgresql_where=text("created_by is not null"),
        ),
        Index(
            "ix_measurement_created_by_times",
            "created_by", "time_s", "id", "facet_id", "workload_id",
            sqlite_where=text("created_by is not null and time_s is not null"),
            postgresql_where=text("created_by is not null and time_s is not null"),
        ),
    )  # fmt: skip
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    trial_id: Mapped[int | None] = mapped_column(ForeignKey("trial.id"), unique=True)
    workload_id: Mapped[int] = mapped_column(ForeignKey("workload.id"))
    hardware_id: Mapped[int] = mapped_column(ForeignKey("hardware.id"))
    program_id: Mapped[int] = mapped_column(ForeignKey("program.id"))
    toolchain_id: Mapped[int] = mapped_column(ForeignKey("toolchain.id"))
    config_id: Mapped[int] = mapped_column(ForeignKey("config.id"))
    # Derived from the others; may be null because SQLite adds no other column without a copy.
    facet_id: Mapped[int | None] = mapped_column(ForeignKey("facet.id"))
    driver_id: Mapped[int | None] = mapped_column(ForeignKey("driver.id"))
    created_by: Mapped[str | None] = mapped_column(String(64))
    protocol: Mapped[str] = mapped_column(String(16))
    threads: Mapped[int]
    status: Mapped[str] = mapped_column(String(20))
    time_s: Mapped[float | None]
    reference_time_s: Mapped[float | None]
    compile_s: Mapped[float | None]
    max_error: Mapped[float | None]
    detail: Mapped[str] = mapped_column(Text)
    worker: Mapped[str] = mapped_column(String(200))
    metrics: Mapped[dict[str, Any]]
    measured_at: Mapped[datetime]
    workload: Mapped[WorkloadRow] = relationship(lazy="joined")
    hardware: Mapped[HardwareRow] = relationship(lazy="joined")
    program: Mapped[ProgramRow] = relationship(lazy="joined")
    toolchain: Mapped[ToolchainRow] = relationship(lazy="joined")
    driver: Mapped[DriverRow | None] = relationship(lazy="joined")
    config: Mapped[ConfigRow] = relationship(lazy="joined")
    sample: Mapped[SampleRow] = relationship(lazy="joined")


class SampleRow(Base):
    """All repeats of one measurement, in the order taken, with those of the rival."""

    __tablename__ = "measurement_sample"
    measurement_id: Mapped[int] = mapped_column(
        BigId, ForeignKey("measurement.id"), primary_key=True, autoincrement=False
    )
    times_s: Mapped[list[float]]
    reference_times_s: Mapped[list[float]]


class EventRow(Base):
    """What happened in a run, in order; the id is the id of the server-sent event."""

    __tablename__ = "event"
    __table_args__ = (Index(None, "run_id", "id"),)
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("tuning_run.id"))
    at: Mapped[datetime]
    kind: Mapped[str] = mapped_column(String(32))
    payload: Mapped[dict[str, Any]]


class LeaderRow(Base):
    """Which coordinator may write; ``epoch`` grows with every change of leader."""

    __tablename__ = "leader"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    owner: Mapped[str] = mapped_column(String(200))
    epoch: Mapped[int]
    until: Mapped[datetime]


class NodeRow(Base):
    """A machine of the cluster as the leader last saw it; ``draining`` is what people ask for."""

    __tablename__ = "node"
    __table_args__ = (one_of("state", NODE_STATES), Index(None, "hardware_id", "state"))
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str] = mapped_column(String(200))
    hardware_id: Mapped[int] = mapped_column(ForeignKey("hardware.id"))
    devices: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    detail: Mapped[str] = mapped_column(Text)
    joined_at: Mapped[datetime]
    seen_at: Mapped[datetime]
    hardware: Mapped[HardwareRow] = relationship(lazy="joined", innerjoin=True)
