"""Schedules that divide a program among roles of warps (T.annotate_ws_schedule).

The program itself, read from top to bottom, says what is computed; the schedule says how a GPU may
overlap it. One thread runs the program as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.nodes import Buffer

WSID = "tl.ws_op_id"  # key of the annotation that names an operation or loop


@dataclass(frozen=True)
class WSRole:
    """The warps from ``warps_lo`` up to ``warps_hi``, and the registers of their threads."""

    name: str
    warps_lo: int
    warps_hi: int
    max_nreg: int | None = None


@dataclass(frozen=True)
class WSPipeline:
    """Tiles of which ``depth`` versions are in flight between two roles."""

    name: str
    buffers: Sequence[Buffer]
    depth: int = 1


@dataclass(frozen=True)
class WSOpRef:
    """The operation or loop of this name."""

    id: str


@dataclass(frozen=True)
class WSSync:
    """A place where a role takes or hands over a version of a pipeline's tiles."""

    kind: str
    pipeline: str
    stage: int = 0

    @classmethod
    def producer_acquire(cls, pipeline: str, stage: int = 0) -> WSSync:
        """Wait until a version is free."""
        return cls("producer_acquire", pipeline, stage)

    @classmethod
    def producer_commit(cls, pipeline: str, stage: int = 0) -> WSSync:
        """Hand over a version that is filled."""
        return cls("producer_commit", pipeline, stage)

    @classmethod
    def consumer_wait(cls, pipeline: str, stage: int = 0) -> WSSync:
        """Wait until a version is filled."""
        return cls("consumer_wait", pipeline, stage)

    @classmethod
    def consumer_release(cls, pipeline: str, stage: int = 0) -> WSSync:
        """Hand back a version that is used."""
        return cls("consumer_release", pipeline, stage)


@dataclass(frozen=True)
class WSScope:
    """What each role does in a loop, in its order."""

    ROOT: ClassVar[str] = "tl.ws_scope_root"
    id: str
    bodies: Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class WSSchedule:
    """How a kernel is divided among ``num_warps`` warps."""

    num_warps: int
    roles: Sequence[WSRole]
    pipelines: Sequence[WSPipeline]
    scopes: Sequence[WSScope]


def annotate_ws_schedule(schedule: WSSchedule) -> None:
    """Accept a schedule, which changes speed on a GPU only.

    Raises:
        TypeMismatch: not a schedule (TC202).
    """
    current()
    if not isinstance(schedule, WSSchedule):
        raise TypeMismatch(expected="a T.WSSchedule", found=repr(schedule))


@contextmanager
def ws_op(id: str) -> Iterator[None]:
    """Name the statements of the block for a schedule."""
    _ = id
    current()
    yield
