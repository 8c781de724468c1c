"""Wire models: what REST takes and gives. Numbers carry their unit; unknown fields are refused."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from db.records import DEFAULT_PRIORITY, MAX_SEED, MAX_TIME_S, MAX_TRIALS
from db.storable import UNSTORABLE
from tilecore.tile_config import MOST_RETURNED

MAX_THREADS = 4096
MAX_NESTING = 100  # of lists and objects in a body
GEMM_EXAMPLE = {"m": 1000, "n": 1024, "k": 512, "dtype": "float32"}


def _strict_number(value: Any) -> Any:
    """Refuse what JSON Schema does not call an integer; 750.0 is one, "750" and true are not."""
    if isinstance(value, (bool, str, bytes)):
        raise ValueError("expected an integer")
    return value


def _check_storable(value: Any) -> None:
    """Refuse JSON with texts that no database stores, or deeper than what reads it may recurse."""
    level = [value]
    for _ in range(MAX_NESTING + 1):
        if any(isinstance(v, str) and UNSTORABLE.search(v) for v in level):
            raise ValueError("expected texts without NUL and halves of surrogate pairs")
        inside = [v for v in level if isinstance(v, (dict, list))]
        if not inside:
            return
        level = [part for v in inside for part in _parts(v)]
    raise ValueError(f"expected JSON nested at most {MAX_NESTING} deep")


def _parts(value: dict[str, Any] | list[Any]) -> list[Any]:
    return [*value, *value.values()] if isinstance(value, dict) else value


def _strict_seconds(value: Any) -> Any:
    if isinstance(value, (bool, str, bytes)):
        raise ValueError("expected a number")
    return value


def _problem_value(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, (bool, int)) or (isinstance(value, str) and len(value) <= 64):
        return value
    raise ValueError("expected an integer, a flag or a short text")


Role = Literal["read", "tune", "admin"]
Int = Annotated[int, BeforeValidator(_strict_number)]
Seconds = Annotated[float, BeforeValidator(_strict_seconds), Field(allow_inf_nan=False)]
RunState = Literal[
    "QUEUED", "RUNNING", "PAUSED", "WAITING_FOR_HARDWARE", "SUCCEEDED", "FAILED", "CANCELLED"
]
ProblemValue = Annotated[bool | int | str, BeforeValidator(_problem_value)]
ProblemFields = Annotated[
    dict[Annotated[str, Field(max_length=64)], ProblemValue], Field(max_length=32)
]
KnobFields = Annotated[
    dict[Annotated[str, Field(max_length=128)], ProblemValue], Field(max_length=32)
]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{32}$", examples=["0" * 32])]


class Wire(BaseModel):
    """Base of all request bodies."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _can_be_stored(cls, value: Any) -> Any:
        _check_storable(value)
        return value


class QuestionIn(Wire):
    """A kernel or a program, its problem and the device it shall run on."""

    kernel: str | None = Field(
        None, max_length=64, examples=["gemm"], description="of the library; or else `program`"
    )
    program: Digest | None = Field(None, description="digest of a program that was sent before")
    problem: ProblemFields = Field(
        default_factory=dict, examples=[GEMM_EXAMPLE], description="sizes and other fields"
    )
    fixed: KnobFields | None = Field(None, description="of a program: knobs that are settled")
    threads: Int = Field(0, ge=0, le=MAX_THREADS, description="cores to use; 0: all")
    hardware: str | None = Field(
        None, max_length=200, description="name, alias or key; null: the host of the service"
    )


class RecommendationRequest(QuestionIn):
    """Ask for ranked tile configs."""

    top_k: Int = Field(5, ge=1, le=MOST_RETURNED)


class BatchRequest(Wire):
    """Ask several questions at once."""

    requests: list[RecommendationRequest] = Field(min_length=1, max_length=64)


class RecommendationOut(BaseModel):
    """One recommended config."""

    rank: int
    config: dict[str, int | str | bool]
    source: Literal["measured", "nearest", "predicted", "prior", "shipped", "analytic"]
    latency_us: float
    interval_us: tuple[float, float]
    gflops: float
    confidence: float
    distance: float
    bound_by: str
    rationale: str
    is_stale: bool = Field(
        description="evidence of another program version, toolchain or driver, or before a drift"
    )
    doubts: list[str] = Field(description="what of the evidence may no longer hold, in words")
    terms_us: dict[str, float] = Field(
        description="what the analytic estimate of its time is made of; empty for sent programs"
    )


class RemeasurementOut(BaseModel):
    """What becomes of doubts in what was measured for a question."""

    cause: Literal["stale", "drift"]
    reasons: list[str]
    state: Literal["queued", "needed"] = Field(
        description="queued: a run of low priority is open; needed: queue one yourself"
    )
    detail: str
    run: str | None


class RecommendationResponse(BaseModel):
    """Ranked configs for one question; the first is the best guess."""

    workload: dict[str, Any]
    workload_key: str
    hardware: str
    hardware_key: str
    hardware_asked_for: str | None = Field(
        None, description="an unknown device; `hardware` is the known one most like it"
    )
    recommendations: list[RecommendationOut]
    remeasurement: RemeasurementOut | None = Field(
        None, description="where what was measured for this question may no longer hold"
    )
    legal: int | None = Field(None, description="of a program: configs that the device can run")
    enumerated: int | None = Field(None, description="of a program: configs that were looked at")
    notes: list[str] = Field([], description="of a program: what else there is to know")
    tune_url: str = "/v1/tuning-runs"


class BatchResponse(BaseModel):
    """Answers in the order of the questions."""

    responses: list[RecommendationResponse]


class TuningRunRequest(QuestionIn):
    """Queue a tuning run."""

    max_trials: Annotated[Int, Field(ge=1, le=MAX_TRIALS)] | None = None
    time_limit_s: Annotated[Seconds, Field(gt=0, le=MAX_TIME_S)] | None = None
    ceiling_s: Seconds | None = Field(
        None, gt=0, le=MAX_TIME_S, description="end with what there is after so much work"
    )
    priority: Int = Field(DEFAULT_PRIORITY, ge=1, le=1000, description="weight among runs")
    seed: Int = Field(0, ge=0, le=MAX_SEED)
    wait_for_hardware: bool = Field(
        False, strict=True, description="queue the run even where nobody has offered the device yet"
    )


class TuningRunBatch(Wire):
    """Queue several tuning runs as one group."""

    runs: list[TuningRunRequest] = Field(min_length=1, max_length=256)


class Extension(Wire):
    """What a tuning run gets in addition."""

    trials: Int = Field(0, ge=0, le=MAX_TRIALS)
    seconds: Seconds = Field(0, ge=0, le=MAX_TIME_S)

    @model_validator(mode="after")
    def _gives_something(self) -> Self:
        if not self.trials and not self.seconds:
            raise ValueError("expected trials, seconds or both, found neither")
        return self


class Amendment(Wire):
    """What is to change of an open tuning run."""

    priority: Int | None = Field(None, ge=1, le=1000)
    ceiling_s: Seconds | None = Field(None, gt=0, le=MAX_TIME_S)


class TuningRunOut(BaseModel):
    """A tuning run: where it stands and, once finished, what came out."""

    id: str
    group: str | None = Field(description="what it was queued together with")
    created_by: str | None = Field(description="name of the API key that asked for it")
    cause: Literal["stale", "drift"] | None = Field(
        description="why the system queued it by itself; null: somebody asked for it"
    )
    state: RunState
    workload: dict[str, Any]
    workload_key: str
    hardware: str
    hardware_key: str
    program_digest: str
    toolchain_key: str
    spec: dict[str, Any]
    trials: dict[str, int]
    planned_trials: int
    priority: int
    ceiling_s: float | None
    active_s: float = Field(description="seconds in which a coordinator worked on it")
    device_s: float = Field(description="its share of these")
    round: int = Field(description="how often it was extended")
    pause_requested: bool
    cancel_requested: bool
    result: dict[str, Any] | None
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class TuningRunPage(BaseModel):
    """Some runs, newest first."""

    items: list[TuningRunOut]
    next_cursor: str | None


class RunGroupOut(BaseModel):
    """Runs that were queued together: where they stand and what they found."""

    id: str
    is_finished: bool
    runs_by_state: dict[str, int]
    trials: dict[str, int]
    planned_trials: int
    runs: list[TuningRunOut]


class ResultOut(BaseModel):
    """What a run has found so far."""

    state: RunState
    is_final: bool
    result: dict[str, Any]


class NodeOut(BaseModel):
    """A machine of the cluster."""

    key: str
    name: str
    hardware: str
    hardware_key: str
    devices: int
    state: Literal["active", "draining", "drained", "refused", "lost"]
    detail: str
    joined_at: datetime
    seen_at: datetime


class NodePage(BaseModel):
    """Some machines of the cluster, last joined first."""

    items: list[NodeOut]
    next_cursor: str | None


class TrialOut(BaseModel):
    """A candidate of a run and what became of it."""

    sequence: int
    config: dict[str, int | str | bool]
    protocol: str
    purpose: str
    state: str
    attempt: int
    predicted_us: float | None
    status: str | None
    latency_us: float | None
    reference_latency_us: float | None
    detail: str | None
    measurement_id: int | None


class TrialPage(BaseModel):
    """Some trials of a run."""

    items: list[TrialOut]
    next_cursor: str | None


class MeasurementOut(BaseModel):
    """One record of the tuning log, with all repeats."""

    id: int
    run: str | None
    workload_key: str = Field(description="`workload` of the log's filters")
    kernel: str
    problem: dict[str, Any]
    threads: int
    hardware: str
    hardware_key: str
    program_digest: str
    toolchain_key: str
    config: dict[str, int | str | bool]
    protocol: str
    status: str
    latency_us: float | None
    reference_latency_us: float | None
    gflops: float | None
    repeats_us: list[float]
    reference_repeats_us: list[float]
    compile_ms: float | None
    max_error: float | None
    detail: str
    worker: str
    driver: str = Field(description="of the device when it measured; of a CPU kernel and microcode")
    created_by: str | None = Field(description="name of the API key that asked for it")
    metrics: dict[str, float]
    measured_at: datetime
    distance: float | None = Field(None, description="from the problem that `near` named")


class MeasurementPage(BaseModel):
    """Some measurements; pass ``next_cursor`` as ``cursor`` for the next ones."""

    items: list[MeasurementOut]
    next_cursor: str | None


class KernelOut(BaseModel):
    """A kernel of the library: its problem fields and its knobs."""

    name: str
    doc: str
    fields: list[dict[str, Any]] = Field(
        description="`of_dtype`: by the problem's `dtype` the choices, the default first"
    )
    knobs: list[dict[str, Any]]


class HardwareOut(BaseModel):
    """A device."""

    key: str
    name: str
    kind: str
    arch: str
    cores: int
    aliases: list[str]
    source: str
    driver: str = Field(description="as last seen; of a CPU kernel and microcode")
    is_host: bool
    offers_tuning: bool
    peak_gflops_per_core: dict[str, float]
    bandwidth_gb_per_s: float


class HardwarePage(BaseModel):
    """Some devices, the host of the service first."""

    items: list[HardwareOut]
    next_cursor: str | None


KEY_NAME = r"^[^\x00-\x1f\x7f-\x9f]+$"  # tables and logs show it on a line


class KeyRequest(Wire):
    """Make an API key."""

    name: str = Field(
        min_length=1, max_length=64, pattern=KEY_NAME, description="whom or what it is for"
    )
    role: Role = "read"
    expires_in_days: Annotated[Int, Field(ge=1, le=3650)] | None = Field(
        None, description="null: never"
    )


class KeyOut(BaseModel):
    """An API key without its secret."""

    prefix: str
    name: str
    role: Role
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class KeyPage(BaseModel):
    """Some API keys, oldest first."""

    items: list[KeyOut]
    next_cursor: str | None


class NewKeyOut(KeyOut):
    """A new API key, told this one time."""

    key: str = Field(description="send it as `Authorization: Bearer KEY`")


class Health(BaseModel):
    """Whether the service can answer."""

    status: Literal["ok"]


class Readiness(BaseModel):
    """Whether the service has what it needs."""

    status: Literal["ready"]
    schema_revision: str
    coordinator: Literal["leading", "absent"]
    coordinator_epoch: int | None


class FieldFault(BaseModel):
    """One field of a request that cannot be used."""

    pointer: str
    detail: str
    code: str


class Problem(BaseModel):
    """An error as RFC 9457 has it, with the stable code of the error."""

    type: str = Field(examples=["urn:tilecore:error:TC502"])
    title: str = Field(examples=["invalid-problem"])
    status: int = Field(examples=[422])
    detail: str
    code: str = Field(examples=["TC502"])
    instance: str
    hint: str | None = None
    errors: list[FieldFault] | None = None
