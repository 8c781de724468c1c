"""Wire models of studies: kernels that others run."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from recommender.external import LONGEST_S, SHORTEST_S
from tuner_service.schemas import MAX_THREADS, Int, ProblemFields, Seconds, Wire

TILES = {"BLOCK_M": [64, 128], "BLOCK_N": [64, 128], "num_stages": [2, 3, 4]}
SharedText = Annotated[str, Field(min_length=1, max_length=200)]
ParameterValue = bool | int | float | Annotated[str, Field(max_length=64)]
ParameterValues = Annotated[list[ParameterValue], Field(min_length=1, max_length=1024)]
Microseconds = Annotated[  # a number: neither true nor "5"
    Seconds, Field(ge=SHORTEST_S * 1e6, le=LONGEST_S * 1e6)
]
ParameterName = Annotated[str, Field(max_length=64)]
Configuration = Annotated[dict[ParameterName, ParameterValue], Field(min_length=1, max_length=32)]


class StudyTerms(Wire):
    """What a study is of and how it searches, besides its space; ``Study`` takes no other."""

    name: SharedText
    hardware: str = Field("", max_length=200, description="where it is measured, as you call it")
    problem: ProblemFields | None = Field(
        None,
        description="sizes and other fields, of `kernel` or of a kernel of your own: of the latter "
        "they tell how near earlier studies are",
    )
    strategy: Literal["model", "evolutionary", "random", "exhaustive"] = "model"
    warm_start: bool = Field(
        True,
        description="begin with what earlier studies of this name and these parameters and "
        "conditions found, on whatever hardware and for whatever problem: the nearer, the more "
        "they count",
    )
    max_trials: Int = Field(200, ge=1, le=100_000)
    seed: Int = Field(0, ge=0, le=2**31 - 1)


class StudyRequest(StudyTerms):
    """Describe a search over the parameters of a kernel of your own."""

    parameters: (
        Annotated[dict[ParameterName, ParameterValues], Field(min_length=1, max_length=32)] | None
    ) = Field(None, examples=[TILES])
    conditions: list[Annotated[str, Field(max_length=2000)]] = Field(
        [],
        max_length=64,
        description="what every configuration keeps, in the names of the parameters",
        examples=[["(BLOCK_M + BLOCK_N) * 64 * num_stages <= 48 * 1024"]],
    )
    configurations: Annotated[list[Configuration], Field(min_length=1, max_length=4096)] | None = (
        Field(None, description="instead of parameters and conditions: these and no others")
    )
    default: dict[ParameterName, ParameterValue] | None = Field(
        None, max_length=32, description="measured first"
    )
    t1: dict[str, Any] | None = Field(
        None, description="instead of parameters, conditions and default: a T1 document"
    )
    kernel: str | None = Field(
        None,
        max_length=64,
        description="instead of these: a kernel of the library, whose knobs the parameters are, "
        "for `problem` on `hardware` (a known device; empty: the host of the service)",
    )
    threads: Int = Field(0, ge=0, le=MAX_THREADS, description="of `kernel`: cores; 0: all")


class StudyTrialOut(BaseModel):
    """A configuration that a worker was given."""

    id: int
    config: dict[str, bool | int | float | str]
    state: Literal["leased", "ok", "failed"]
    worker: str
    attempt: int
    lease_until: datetime
    latency_us: float | None
    repeats_us: list[float]
    detail: str


class StudyTrialPage(BaseModel):
    """Some trials of a study."""

    items: list[StudyTrialOut]
    next_cursor: str | None


class StudyOut(BaseModel):
    """A study: how far it is, and the fastest configuration so far."""

    id: str
    name: str
    hardware: str
    state: Literal["OPEN", "CLOSED"]
    strategy: str
    seed: int
    max_trials: int
    kernel: str | None = Field(description="of the library, whose knobs are the parameters")
    problem: dict[str, Any] | None
    learns_from: list[str] = Field(description="earlier studies, newest first")
    space_size: int = Field(description="configurations")
    space_size_is_estimate: bool = Field(
        description="whether those that keep the conditions were too many to count"
    )
    sampled: int | None = Field(
        description="of more than 200,000 configurations: how many the search looks at, besides "
        "what is around the fastest; null: all"
    )
    notes: list[str] = Field(description="what is to be known of its search")
    trials: dict[str, int]
    best: StudyTrialOut | None
    created_by: str
    created_at: datetime


class StudyPage(BaseModel):
    """Some studies, newest first."""

    items: list[StudyOut]
    next_cursor: str | None


class SuggestRequest(Wire):
    """Ask for configurations to measure."""

    worker: SharedText = Field(max_length=128, description="unique among those who measure")
    count: Int = Field(1, ge=1, le=64)
    lease_s: Seconds = Field(600.0, gt=0, le=86_400, description="then others may get them")


class Outcome(Wire):
    """What came of a configuration: times, or why there are none."""

    repeats_us: Annotated[list[Microseconds], Field(min_length=1, max_length=1000)] | None = None
    failure: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        None, description="why there is no time: it did not compile, or gave a wrong result"
    )
    detail: str = Field("", max_length=4096)


class TellRequest(Outcome):
    """Tell what came of a configuration."""

    worker: SharedText = Field(max_length=128)


class MeasuredConfig(Outcome):
    """A configuration of the space, and what came of it."""

    config: Configuration


class AddRequest(Wire):
    """Tell what was measured of configurations that nobody was given."""

    worker: SharedText = Field(max_length=128, description="who measured them")
    trials: Annotated[list[MeasuredConfig], Field(min_length=1, max_length=256)]
