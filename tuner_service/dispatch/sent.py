"""Dispatch tables for programs that came as data: what a stored program leaves open is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from db.records import ProgramRecord
from db.store import SqlStore
from recommender.dispatch.question import AskedProgram, DispatchQuestion, Problem
from recommender.errors import InvalidShapes
from recommender.hardware import HardwareProfile
from recommender.program_table import ProgramTable
from recommender.shapes import ShapeSet
from tilecore.dispatch_table import DispatchTable
from tilecore.portable import parse_sizes
from tilecore.tile_config import KnobValue
from tuner_service.dispatch.shapes import AskedTable, known_device, shapes_of
from tuner_service.sent_programs import LIMIT_S, look_at
from tuner_service.wiring import compile_target, host_toolchain, program_desk
from workers.errors import ProgramTooCostly

MAX_SHAPES = 32  # in one request: each is a question to the desk


@dataclass(frozen=True, slots=True)
class StoredForDispatch:
    """A stored program, and the knobs that whoever asks has settled."""

    digest: str
    fixed: Mapping[str, KnobValue] = field(default_factory=dict)

    def question(self, store: SqlStore, asked: AskedTable) -> DispatchQuestion:
        """Return the question of a table in canonical form.

        Raises:
            UnknownProgram: no program has this digest (DB827).
            InvalidProblem: a size is unknown, missing or out of range (TC502).
            InvalidShapes: no dimension is dynamic, or there are too many shapes (RC611).
            TooManyThreads, UnknownHardware: see ``dispatch_shapes.understand_table``.
            TileError: see ``questions.understand_sent``.
        """
        record = store.programs.get(self.digest)
        device = known_device(store, asked)
        sizes = program_desk().read(record.document).sizes
        shapes = shapes_of(asked, dict.fromkeys(sizes, ()))
        if len(shapes.shapes) > MAX_SHAPES:
            expected = f"at most {MAX_SHAPES} of a program in one request"
            raise InvalidShapes(where="shapes", expected=expected, found=len(shapes.shapes))
        parse_sizes(sizes, dict.fromkeys(shapes.dims, 1) | dict(asked.problem))
        return question_about(
            record, asked, shapes, sizes, device, given=asked.problem, fixed=self.fixed,
            until=time.monotonic() + LIMIT_S,
        )  # fmt: skip

    def completed(self, table: DispatchTable) -> DispatchTable:
        """Return the table as it is: who has the program's Python adds the digest."""
        return table


def question_about(
    record: ProgramRecord, asked: AskedTable, shapes: ShapeSet, sizes: Sequence[str],
    device: HardwareProfile, *, given: Problem, fixed: Mapping[str, KnobValue] | None = None,
    until: float | None = None,
) -> DispatchQuestion:  # fmt: skip
    """Return the question about a stored program.

    Args:
        record: the program.
        asked: threads, and what the problem is called in errors.
        shapes: of dimensions that are among ``sizes``.
        sizes: what the program leaves open.
        device: that the table is for.
        given: what the table is to say of the problem; sizes that stay are among it.
        fixed: knobs that are settled.
        until: of the monotonic clock, when no further shape is looked at; None: never.

    Raises:
        InvalidProblem: a size is missing or out of range (TC502).
    """
    known = {name: given[name] for name in sizes if name in given}
    largest = dict(zip(shapes.dims, map(max, zip(*shapes.shapes, strict=True)), strict=True))
    checked = parse_sizes(sizes, known | largest)
    return DispatchQuestion(
        definition=None,
        fixed={name: value for name, value in checked.items() if name not in shapes.dims},
        shapes=shapes, hardware=device, toolchain=host_toolchain().on(device.kind),
        target=compile_target(device), threads=asked.threads,
        program=AskedProgram(
            name=record.name, digest=record.digest,
            given={k: v for k, v in given.items() if k not in shapes.dims},
            table=_tables(record, device, fixed or {}, asked.threads, until),
        ),
    )  # fmt: skip


def _tables(
    record: ProgramRecord, device: HardwareProfile, fixed: Mapping[str, KnobValue], threads: int,
    until: float | None,
) -> Callable[[Problem], ProgramTable]:  # fmt: skip
    """Return (sizes) -> the program's configs there, each looked at once."""

    @cache
    def looked_at(sizes: tuple[tuple[str, KnobValue], ...]) -> ProgramTable:
        if until is not None and time.monotonic() > until:
            raise ProgramTooCostly(
                limit_s=LIMIT_S, limit="at all shapes", found="found one that takes longer"
            )
        return look_at(record, dict(sizes), device, fixed, threads).table

    return lambda problem: looked_at(tuple(problem.items()))
