"""Wire models of what operators do: cost models, compaction of the log."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field, StrictBool

from db.records import MAX_INTEGER, RetentionPolicy
from tuner_service.schemas import Int, Seconds, Wire

KEPT = RetentionPolicy()


class ModelOut(BaseModel):
    """A version of a cost model."""

    id: int
    kernel: str
    family: str = Field(description="of which devices: cpu, or the architecture of GPUs")
    state: Literal["candidate", "active", "retired"] = Field(
        description="retired: was active; candidate: never was"
    )
    origin: Literal["trained", "uploaded"]
    feature_schema: str
    sha256: str = Field(description="of what is stored")
    size_bytes: int
    metrics: dict[str, float] = Field(
        description="mean of best time over chosen time, by who chose, on measured workloads"
    )
    trained_on: int
    created_by: str | None
    reason: str | None = Field(description="why it was promoted, or not")
    created_at: datetime


class ModelPage(BaseModel):
    """Some versions, newest first."""

    items: list[ModelOut]
    next_cursor: str | None


class CompactionRequest(Wire):
    """What of the log to keep; the rest is removed."""

    keep_days: Seconds = Field(KEPT.keep_days, ge=0, le=36_500, description="everything younger")
    keep_best: Int = Field(
        KEPT.keep_best, ge=1, le=100_000,
        description="so many of the fastest of each workload, device, toolchain and program",
    )  # fmt: skip
    keep_recent: Int = Field(
        KEPT.keep_recent, ge=0, le=MAX_INTEGER,
        description="so many of the newest of each workload and device",
    )  # fmt: skip
    keep_training: Int = Field(
        KEPT.keep_training, ge=0, le=MAX_INTEGER,
        description="so many of the newest OK ones of each kernel and family of devices",
    )  # fmt: skip
    above_mib: Int = Field(0, ge=0, le=MAX_INTEGER, description="only if the database is larger")
    dry_run: StrictBool = Field(False, description="only count")
    vacuum: Literal["auto", "off"] = "auto"
    time_limit_s: Seconds = Field(20, gt=0, le=300, description="begin nothing more after so long")


class CompactionOut(BaseModel):
    """What was removed, or (dry run) would be."""

    measurements: int
    removed: dict[str, int] = Field(description="measurements by status")
    events: int
    bytes_before: int
    bytes_after: int
    is_complete: bool
    is_dry_run: bool
    note: str = Field(description="what was not done, and why")


class RemovedOut(BaseModel):
    """How many measurements of a kind were ever removed."""

    kernel: str
    status: str
    cause: str = Field(description="first line of the failure; empty for OK ones")
    count: int


class RemovedPage(BaseModel):
    """Some counts of what was removed, by kernel, status and cause."""

    items: list[RemovedOut]
    next_cursor: str | None
