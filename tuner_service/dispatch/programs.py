"""Dispatch tables for a program of the user's: a function, the sizes that change, the rest.

The function is traced with its sizes open, as for ``tilecore tune program.py:function``. A
dimension is an argument that can stay open, or a dynamic axis of a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from db.store import SqlStore
from recommender.dispatch.question import DispatchQuestion
from recommender.dispatch.table import Choice
from recommender.errors import InvalidShapes
from recommender.hardware import HardwareProfile
from recommender.portable_tracing import portable
from recommender.shapes import ShapeSet, Sizes, parse_sizes
from tilecore.advice import question_of
from tilecore.autotuner import AutoTuneImpl
from tilecore.dispatch_table import DispatchTable
from tilecore.dispatcher import with_digest
from tilecore.errors import InvalidProblem
from tilecore.jit import JITImpl, jit
from tilecore.portable import PortableProgram
from tilecore.tile_config import KnobValue
from tuner_service.cli.dispatching import make_table
from tuner_service.dispatch.sent import question_about
from tuner_service.dispatch.shapes import AskedTable, known_device, shapes_of
from tuner_service.jobs import Effort
from tuner_service.settings import load_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedForDispatch:
    """A function of the user's, traced with its sizes open.

    Attributes:
        program: what it makes.
        sizes: what that leaves open.
        shapes: that are asked for.
        given: arguments that have one value, sizes among them.
    """

    program: PortableProgram
    sizes: tuple[str, ...]
    shapes: ShapeSet
    given: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FunctionForDispatch:
    """A function of the user's that makes the programs of a table.

    Attributes:
        function: it.
        space: values to choose from, by knob.
    """

    function: JITImpl
    space: Mapping[str, Sequence[KnobValue]]

    @classmethod
    def of(
        cls, function: Any, space: Mapping[str, Sequence[KnobValue]] | None = None
    ) -> FunctionForDispatch:
        """Return it for a function, be it decorated or not."""
        if isinstance(function, AutoTuneImpl):
            function = function.impl
        return cls(function if isinstance(function, JITImpl) else jit(function), space or {})

    def question(self, store: SqlStore, asked: AskedTable) -> DispatchQuestion:
        """Return the question of a table in canonical form; the program is stored.

        Raises:
            UnknownHardware, TooManyThreads: see ``dispatch_shapes.understand_table``.
            TileError: what ``opened`` raises.
        """
        device = known_device(store, asked)
        opened = self.opened(asked, device)
        program = opened.program
        record, _ = store.programs.add(program.digest, program.name, program.to_bytes(), "local")
        return question_about(
            record, asked, opened.shapes, opened.sizes, device, given=opened.given
        )

    def opened(self, asked: AskedTable, device: HardwareProfile) -> OpenedForDispatch:
        """Trace the function with its sizes open.

        Raises:
            InvalidProblem: a dimension is neither an argument nor a dynamic axis (TC502).
            InvalidShapes: no dimension is dynamic, or one cannot stay open (RC611).
            TileError: the program's own fault.
        """
        given, varied, program = self._program(asked, device)
        sizes = (*program.sizes, *program.call_sizes)
        shapes = shapes_of(asked, dict.fromkeys((*sizes, *varied), ()))
        settled = sorted(set(shapes.dims) - set(sizes))
        if settled:
            expected = f"dimensions that stay open: {', '.join(sizes) or 'none can'}"
            found = f"{', '.join(settled)}, whose value the Python of {program.name} asks for"
            raise InvalidShapes(where=asked.kernel, expected=expected, found=found)
        _refuse_others(asked, {*given, *sizes})
        known = {k: v for k, v in {**given, **asked.problem}.items() if k not in shapes.dims}
        return OpenedForDispatch(program=program, sizes=sizes, shapes=shapes, given=known)

    def completed(self, table: DispatchTable) -> DispatchTable:
        """Return a table with the version of the program that the function makes today."""
        return with_digest(table, self.function)

    def _program(
        self, asked: AskedTable, device: HardwareProfile
    ) -> tuple[Mapping[str, Any], Sequence[str], PortableProgram]:
        """Return the arguments that stay, those that vary, and the program with its sizes open."""
        named = {name.lower(): name for name in self.function.signature.parameters}
        wanted = {named.get(name.lower(), name): size for name, size in _largest(asked).items()}
        given = self.function.own_arguments({**asked.problem, **wanted})
        question = question_of(
            self.function, (), given, target=asked.hardware, space=self.space
        )  # fmt: skip
        varied = [name for name in given if name in wanted]
        fixed = {k: v for k, v in given.items() if k not in wanted}
        return fixed, varied, portable(question, device)


def _refuse_others(asked: AskedTable, names: set[str]) -> None:
    """Check that the program has all arguments that were given, and that a table can hold them."""
    for name, value in asked.problem.items():
        if name not in names:
            expected = f"an argument or an open size: {', '.join(sorted(names)) or 'none'}"
            raise InvalidProblem(field=name, expected=expected, found="neither")
        if not isinstance(value, (int, str, bool)):
            expected = "an integer, a name or a flag, which a table can hold"
            raise InvalidProblem(field=name, expected=expected, found=repr(value))


def _largest(asked: AskedTable) -> dict[str, int]:
    """Return each dimension with its largest size."""
    found = {dim: s.high if s.is_range else max(s.values) for dim, s in asked.sizes.items()}
    for shape, _ in asked.counts:
        for dim, size in shape.items():
            found[dim] = max(size, found.get(dim, 1))
    return found


def split_given(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Sizes]]:
    """Return arguments that have one value, and the sizes of those with several.

    Several are texts: ``1:4096`` or ``1,16,100``.
    """
    several = {
        name: parse_sizes(name, text)
        for name, text in given.items()
        if isinstance(text, str) and text[:1].isdigit() and set(text) <= set("0123456789:, ")
    }
    sizes = {k: s for k, s in several.items() if s.is_range or len(s.values) > 1}
    single = {k: s.values[0] for k, s in several.items() if k not in sizes}
    return {k: single.get(k, v) for k, v in given.items() if k not in sizes}, sizes


def dispatch_program(
    function: Any, sizes: Mapping[str, Any], *, tolerance: float = 0.05,
    max_configs: int | None = None, trials: int | None = None, hardware: str | None = None,
    threads: int = 0, samples: int | None = None,
    space: Mapping[str, Sequence[KnobValue]] | None = None, service: str | None = None,
    **given: Any,
) -> DispatchTable:  # fmt: skip
    """Return the dispatch table of a program, for ``tilecore.Dispatcher(table, program=function)``.

    Args:
        function: under ``@tilelang.jit``, or one that returns a program.
        sizes: by dimension ``"1:4096"``, ``"1,16"`` or a list.
        tolerance: 0.05: every shape within 5 % of its best.
        max_configs: no more, whatever the loss; None: as many as that takes.
        trials: screening trials of each shape; None: nothing is measured.
        hardware: a device; None: this host.
        threads: cores to use; 0: all.
        samples: sizes taken of each range.
        space: values to choose from, by knob.
        service: address of the service that is to answer, and to measure; None: this
            installation.
        given: the function's other arguments.

    Raises:
        TileError: what ``FunctionForDispatch.question`` raises, runs that fail (SV911), and what
            ``dispatch_by_service.ask`` raises.
    """
    settings = load_settings()
    texts = {k: v if isinstance(v, str) else ",".join(map(str, v)) for k, v in sizes.items()}
    asked = AskedTable(
        kernel=getattr(function, "__name__", "program"), problem=given,
        sizes={k: parse_sizes(k, text) for k, text in texts.items()}, threads=threads,
        hardware=hardware, program=FunctionForDispatch.of(function, space),
    )  # fmt: skip
    if samples is not None:
        asked = replace(asked, samples=samples)
    effort = None
    if trials is not None:
        effort = Effort(
            max_trials=trials, time_limit_s=settings.time_limit_s,
            on_this_host=settings.measures_here,
        )  # fmt: skip
    choice = Choice(tolerance=tolerance, max_configs=max_configs)
    if service is not None:
        from tuner_service.dispatch.by_service import ask

        return ask(settings, service, asked, choice, effort=effort)
    return make_table(settings, asked, choice, effort=effort)[0]
