"""What the store takes and returns: values, never rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol, Toolchain
from recommender.workload import Workload
from tilecore.tile_config import TileConfig

FINISHED_STATES = ("SUCCEEDED", "FAILED", "CANCELLED")
ROLES = ("read", "tune", "admin")  # each may do what those before it may
OPEN_STATES = ("QUEUED", "RUNNING", "PAUSED", "WAITING_FOR_HARDWARE")
DEFAULT_PRIORITY = 10
MAX_TRIALS = 100_000  # of a run
MAX_TIME_S = 7 * 86_400.0
MAX_INTEGER = 2**31 - 1  # that a column of PostgreSQL's INTEGER holds, as most ids are
MAX_SEED = MAX_INTEGER
CAUSES = ("stale", "drift")  # of runs that the system queues by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A tuning run to be queued.

    Attributes:
        spec: the request in canonical form.
        body_hash: its digest, compared when an idempotency key comes again.
        priority: its weight where runs share a device.
        ceiling_s: seconds of work after which it ends with what it has.
        group: what it was queued together with.
        created_by: the name of the API key that asked for it; None: nobody's.
        cause: why the system queued it (one of CAUSES); None: somebody asked for it.
    """

    workload: Workload
    hardware: HardwareProfile
    program_digest: str
    toolchain: Toolchain
    spec: Mapping[str, Any]
    body_hash: str
    seed: int = 0
    planned_trials: int = 0
    idempotency_key: str | None = None
    priority: int = DEFAULT_PRIORITY
    ceiling_s: float | None = None
    group: str | None = None
    created_by: str | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A tuning run as stored.

    Attributes:
        active_s: seconds in which a coordinator worked on it.
        device_s: its share of these, where other runs used the device, too.
        round: how often its budget was extended.
        cancel_requested: a coordinator is to cancel it.
        pause_requested: a coordinator is to pause it once what is under way has ended.
    """

    id: int
    public_id: str
    state: str
    workload: Workload
    hardware: HardwareProfile
    program_digest: str
    toolchain: Toolchain
    spec: Mapping[str, Any]
    body_hash: str
    seed: int
    planned_trials: int
    priority: int
    ceiling_s: float | None
    group: str | None
    created_by: str | None
    cause: str | None
    active_s: float
    device_s: float
    round: int
    cancel_requested: bool
    pause_requested: bool
    result: Mapping[str, Any] | None
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def is_finished(self) -> bool:
        """Whether nothing will change any more, unless its budget is extended."""
        return self.state in FINISHED_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class RunControl:
    """What people can change while a coordinator works on a run."""

    state: str
    priority: int
    ceiling_s: float | None
    round: int
    cancel_requested: bool
    pause_requested: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTrial:
    """A candidate that a run's session proposed; ``round``: after how many extensions."""

    config: TileConfig
    protocol: Protocol
    purpose: str
    predicted_s: float | None = None
    round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """A trial as stored, with its measurement where there is one.

    ``attempt`` counts its leases, ``losses`` those that ended with a lost worker.
    """

    id: int
    run_id: int
    sequence: int
    config: TileConfig
    protocol: Protocol
    purpose: str
    predicted_s: float | None
    state: str
    attempt: int
    losses: int = 0
    round: int = 0
    last_error: str | None = None
    measurement: Measurement | None = None
    measurement_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutline:
    """What tables and charts of a whole run need of a trial; ``detail`` is how it begins."""

    id: int
    sequence: int
    config_key: str
    config: Mapping[str, Any]
    protocol: str
    purpose: str
    state: str
    status: str | None
    time_s: float | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldConfig:
    """What was measured of a configuration that nobody had been given: times, or why none."""

    config: Mapping[str, Any]
    times_s: Sequence[float] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """One step of a run."""

    id: int
    at: datetime
    kind: str
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementRecord:
    """A measurement with its identity."""

    id: int
    run: str | None  # public id of the run it belongs to; None: imported
    measurement: Measurement
    created_by: str | None = None  # name of the API key that asked for it; None: nobody's
    distance: float | None = None  # from the workload that ``near`` named


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementQuery:
    """Filters of the tuning log; None: any.

    Attributes:
        since: not measured before.
        until: measured before.
        near: only the ``near_count`` workloads of its kernel that are nearest to this one
            (``recommender.nearest.workload_distance``).
        best_first: by time instead of by age; failures are left out.
        winners: only the fastest OK record of each workload and device, CONFIRM before SCREEN;
            in the order of the workloads (of their distance, with ``near``).
    """

    kernel: str | None = None
    workload_key: str | None = None
    dtype: str | None = None
    m: int | None = None
    n: int | None = None
    k: int | None = None
    threads: int | None = None
    status: MeasureStatus | None = None
    protocol: Protocol | None = None
    hardware_key: str | None = None
    program_digest: str | None = None
    toolchain_key: str | None = None
    run: str | None = None
    created_by: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    near: Workload | None = None
    near_count: int = 8
    best_first: bool = False
    winners: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some measurements and where to go on: pass ``next_after`` as ``after``."""

    items: Sequence[MeasurementRecord]
    next_after: tuple[float, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRecord:
    """Who leads, and until when unless it renews."""

    owner: str
    epoch: int
    until: datetime
    is_alive: bool = field(default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """An API key without its secret. ``prefix`` is public: the part of the key that logs may show.

    Attributes:
        name: whom or what the key is for.
        role: one of ROLES.
        expires_at: from when on it is refused; None: never.
        revoked_at: since when it is refused; None: it is not.
        is_valid: whether requests with it are let in, by the database's clock when it was read.
    """

    id: int
    prefix: str
    name: str
    role: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    is_valid: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftRecord:
    """Times of a workload that changed for good (``recommender.drift``).

    ``ended_at``: when a tuning run that began later had succeeded; None: none has.
    """

    id: int
    since: datetime
    ratio: float
    explanation: str
    found_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """What of the log is kept; the rest is removed, counted by its cause.

    What any one of these keeps stays, and all that belongs to runs that have not ended.

    Attributes:
        keep_days: everything younger.
        keep_best: so many of the fastest of each workload, device, toolchain, program, protocol and
            driver, before and after every drift. At least 1: no answer ever gets worse.
        keep_recent: so many of the newest of each workload and device.
        keep_training: so many of the newest OK ones of each kernel and family of devices (CPUs;
            GPUs of one architecture): models are trained on them.
        above_bytes: nothing is removed while the database is smaller.
    """

    keep_days: float = 90.0
    keep_best: int = 16
    keep_recent: int = 200
    keep_training: int = 20_000
    above_bytes: int = 0

    def __post_init__(self) -> None:
        if self.keep_days < 0 or self.keep_best < 1 or self.keep_recent < 0:
            raise ValueError(f"a policy that would drop what answers rest on: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """What a compaction removed, or would remove.

    Attributes:
        measurements: looked at.
        removed: by status.
        events: steps of runs that were removed with them.
        bytes_before, bytes_after: of the database.
        is_complete: False: its time was up; the next one goes on.
        note: what of it was not done, and why.
    """

    measurements: int
    removed: Mapping[str, int]
    events: int
    bytes_before: int
    bytes_after: int
    is_complete: bool
    is_dry_run: bool
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """A version of a cost model, without its bytes.

    Attributes:
        family: of which devices: "cpu", or the architecture of GPUs.
        state: active; retired (was active); candidate (never was).
        origin: trained or uploaded.
        reason: why it was promoted, or not.
    """

    id: int
    kernel: str
    family: str
    state: str
    feature_schema: str
    sha256: str
    size_bytes: int
    metrics: Mapping[str, Any]
    trained_on: int
    origin: str
    created_by: str | None
    reason: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStudy:
    """A study to be stored.

    ``space`` holds parameters, conditions, default and size, and the studies that it learns from.
    """

    name: str
    space: Mapping[str, Any]
    space_key: str
    strategy: str
    max_trials: int
    body_hash: str
    hardware: str = ""
    seed: int = 0
    created_by: str = ""
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """A study as stored."""

    id: int
    public_id: str
    name: str
    hardware: str
    space: Mapping[str, Any]
    space_key: str
    strategy: str
    seed: int
    max_trials: int
    state: str
    created_by: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTrial:
    """A configuration that a worker was given, and the median of the times that it told."""

    id: int
    row: int
    config: Mapping[str, Any]
    state: str
    worker: str
    attempt: int
    lease_until: datetime
    time_s: float | None
    times_s: Sequence[float]
    detail: str
    told_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOutline:
    """What tables and charts of a whole study need of a trial; ``detail`` is how it begins."""

    id: int
    config: Mapping[str, Any]
    state: str
    time_s: float | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A machine of the cluster: what it offers and where it stands."""

    id: int
    key: str
    name: str
    hardware: HardwareProfile
    devices: int
    state: str
    detail: str
    joined_at: datetime
    seen_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEntry:
    """A program that came as data, as lists have it.

    Attributes:
        digest: identifies it wherever its source stands.
        name: of the function that makes it.
        size_bytes: of its document.
        created_by: whose key sent it.
    """

    id: int
    digest: str
    name: str
    size_bytes: int
    created_by: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord(ProgramEntry):
    """A program with its document: the canonical text as it came first, source places included."""

    document: bytes
