"""The tables, continued: what the service keeps beside runs and measurements."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from db.models import Base, one_of
from db.records import ROLES
from db.types import BigId

MODEL_STATES = ("candidate", "active", "retired")
STUDY_STATES = ("OPEN", "CLOSED")
STUDY_TRIAL_STATES = ("leased", "ok", "failed")


class InstallationRow(Base):
    """The name of this database among others (one row): its Ray actors bear it."""

    __tablename__ = "installation"
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(32))


class ModelRow(Base):
    """A cost model, trained or uploaded; at most one per kernel and family of devices is active.

    Retired ones were active before; candidates never were: ``reason`` says why.
    """

    __tablename__ = "model_version"
    __table_args__ = (
        one_of("state", MODEL_STATES),
        Index(
            "ix_model_version_active",
            "kernel",
            "family",
            unique=True,
            sqlite_where=text("state = 'active'"),
            postgresql_where=text("state = 'active'"),
        ),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    kernel: Mapped[str] = mapped_column(String(64))
    family: Mapped[str] = mapped_column(String(32), server_default="cpu")
    state: Mapped[str] = mapped_column(String(16))
    feature_schema: Mapped[str] = mapped_column(String(64))
    sha256: Mapped[str] = mapped_column(String(64))
    blob: Mapped[bytes] = mapped_column(LargeBinary)
    metrics: Mapped[dict[str, Any]]
    trained_on: Mapped[int]
    origin: Mapped[str] = mapped_column(String(16), server_default="trained")
    created_by: Mapped[str | None] = mapped_column(String(64))
    reason: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]


class CompactionRow(Base):
    """A compaction of the log; triggers let measurements be deleted while one is open.

    ``is_open`` is true within transactions that delete only: nobody else ever sees it.
    """

    __tablename__ = "compaction"
    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    created_by: Mapped[str | None] = mapped_column(String(64))
    policy: Mapped[dict[str, Any]]
    removed: Mapped[int] = mapped_column(server_default="0")
    is_open: Mapped[bool] = mapped_column(server_default=false())


class CompactedRow(Base):
    """How many measurements of a kind were removed: every failure's cause keeps its count."""

    __tablename__ = "compacted"
    __table_args__ = (UniqueConstraint("workload_id", "program_id", "facet_id", "cause"),)
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    workload_id: Mapped[int] = mapped_column(ForeignKey("workload.id"))
    program_id: Mapped[int] = mapped_column(ForeignKey("program.id"))
    facet_id: Mapped[int] = mapped_column(ForeignKey("facet.id"))
    cause: Mapped[str] = mapped_column(String(200))
    count: Mapped[int]
    first_at: Mapped[datetime]
    last_at: Mapped[datetime]


class DriftRow(Base):
    """Times of a workload that changed for good: what was measured before answers no more.

    It is open (``ended_at`` is null) until a tuning run that began later has succeeded.
    """

    __tablename__ = "drift"
    __table_args__ = (
        Index(
            "ix_drift_subject", "workload_id", "hardware_id", "program_id", "toolchain_id", "since"
        ),
        Index(
            "ix_drift_open", "workload_id", "hardware_id", "program_id", "toolchain_id",
            unique=True,
            sqlite_where=text("ended_at is null"),
            postgresql_where=text("ended_at is null"),
        ),
    )  # fmt: skip
    id: Mapped[int] = mapped_column(primary_key=True)
    workload_id: Mapped[int] = mapped_column(ForeignKey("workload.id"))
    hardware_id: Mapped[int] = mapped_column(ForeignKey("hardware.id"))
    program_id: Mapped[int] = mapped_column(ForeignKey("program.id"))
    toolchain_id: Mapped[int] = mapped_column(ForeignKey("toolchain.id"))
    since: Mapped[datetime]
    ratio: Mapped[float]
    explanation: Mapped[str] = mapped_column(Text)
    found_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class ApiKeyRow(Base):
    """A key of the REST service; the key itself is never stored."""

    __tablename__ = "api_key"
    __table_args__ = (one_of("role", ROLES),)
    id: Mapped[int] = mapped_column(primary_key=True)
    prefix: Mapped[str] = mapped_column(String(16), unique=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str] = mapped_column(String(64))
    role: Mapped[str] = mapped_column(String(8))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class StudyRow(Base):
    """A search over the space of an external kernel; outside workers measure its trials."""

    __tablename__ = "study"
    __table_args__ = (one_of("state", STUDY_STATES),)
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    public_id: Mapped[str] = mapped_column(String(36), unique=True)
    idempotency_key: Mapped[str | None] = mapped_column(String(128), unique=True)
    body_hash: Mapped[str] = mapped_column(String(32))
    name: Mapped[str] = mapped_column(String(200))
    hardware: Mapped[str] = mapped_column(String(200))
    space: Mapped[dict[str, Any]]
    space_key: Mapped[str] = mapped_column(String(32), index=True)
    strategy: Mapped[str] = mapped_column(String(32))
    seed: Mapped[int]
    max_trials: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    created_by: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]


class StudyTrialRow(Base):
    """One configuration of a study, with the worker that holds it or told its times."""

    __tablename__ = "study_trial"
    __table_args__ = (
        UniqueConstraint("study_id", "row"),
        one_of("state", STUDY_TRIAL_STATES),
        CheckConstraint("(state = 'ok') = (time_s is not null)", name="time_or_not"),
    )
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("study.id"))
    row: Mapped[int] = mapped_column(BigId)  # of large spaces the number of a combination
    config: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(16))
    worker: Mapped[str] = mapped_column(String(128))
    attempt: Mapped[int]
    lease_until: Mapped[datetime]
    time_s: Mapped[float | None]
    times_s: Mapped[list[float]]
    detail: Mapped[str] = mapped_column(Text)
    told_at: Mapped[datetime | None]


class TileProgramRow(Base):
    """A program that came as data: its canonical JSON, compressed (zlib)."""

    __tablename__ = "tile_program"
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    digest: Mapped[str] = mapped_column(String(32), unique=True)
    name: Mapped[str] = mapped_column(String(128))
    document: Mapped[bytes] = mapped_column(LargeBinary)
    size_bytes: Mapped[int] = mapped_column(server_default="0")  # of the JSON
    created_by: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]


class IdempotencyRow(Base):
    """What a request with an idempotency key made, where its own row does not bear the key."""

    __tablename__ = "idempotency"
    what: Mapped[str] = mapped_column(String(16), primary_key=True)
    key: Mapped[str] = mapped_column(String(128), primary_key=True)
    body_hash: Mapped[str] = mapped_column(String(32))
    made: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]
