"""What became of a candidate at each step: values that cross process and machine borders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recommender.measurement import MeasureStatus
from workers.sandbox import Outcome, Raised, TimedOut

DETAIL_CHARACTERS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled candidate.

    Attributes:
        path: the artifact on the machine that compiled it.
        digest: of the generated code: equal code need not be measured twice.
        compile_s: wall time from program to artifact (near 0 when the store had it).
        metrics: resources the code takes, by name.
    """

    path: str
    digest: str
    compile_s: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A checked and timed candidate; times in seconds per call, in the order taken."""

    times_s: tuple[float, ...]
    reference_times_s: tuple[float, ...] = ()
    max_error: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a candidate has no time. The set of statuses is closed (MeasureStatus)."""

    status: MeasureStatus
    detail: str
    max_error: float | None = None
    compile_s: float | None = None


# Stable codes of tilecore's errors that say more than "the compiler refused".
_STATUS_OF_CODE = {
    "TC303": MeasureStatus.INVALID_CONFIG,
    "TC306": MeasureStatus.TOOLCHAIN_MISSING,
    "TC502": MeasureStatus.INVALID_CONFIG,
}


def compile_failure(outcome: Outcome, compile_s: float) -> Failure:
    """Return the failure that a compile call's outcome means."""
    status = MeasureStatus.COMPILE_ERROR
    if isinstance(outcome, TimedOut):
        status = MeasureStatus.COMPILE_TIMEOUT
    elif isinstance(outcome, Raised):
        status = _STATUS_OF_CODE.get(outcome.code, status)
    return Failure(status=status, detail=describe(outcome), compile_s=compile_s)


def run_failure(outcome: Outcome, phase: str) -> Failure:
    """Return the failure that a call of the measuring child means."""
    late = isinstance(outcome, TimedOut)
    status = MeasureStatus.RUN_TIMEOUT if late else MeasureStatus.LAUNCH_ERROR
    return Failure(status=status, detail=f"{phase}: {describe(outcome)}")


def describe(outcome: Outcome) -> str:
    """Return the outcome in words, at most a few kB."""
    return str(outcome)[:DETAIL_CHARACTERS]
