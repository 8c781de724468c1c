"""The port behind ``recommend``: what is asked of a recommender, what it answers, where it is.

tilecore compiles; decisions are the business of the packages above it. They register a recommender
under the entry point group ``tilecore.recommender``.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from tilecore.errors import (
    RecommenderMissing,
    SourceSpan,
    TileError,
    TypeMismatch,
    program_error,
)
from tilecore.gpu_target import GpuTarget
from tilecore.ir.expr import Var
from tilecore.ir.nodes import PrimFunc
from tilecore.target import Target, parse_target
from tilecore.tile_config import KnobValue, TileConfig

GROUP = "tilecore.recommender"
TOP_K = 8
ASKED = ("target", "top_k", "space", "cores")  # keywords of recommend itself
ASKED_OF_A_SERVICE = ("service", "problem")  # too, unless the program has such parameters
LOWERING = ("micro_m", "micro_n", "pack_a", "pack_b")  # knobs of the CPU's lowering
_KINDS = {
    "stages": re.compile(r"(num|n)?_?stages?", re.IGNORECASE),
    "threads": re.compile(r"(num|n)?_?threads", re.IGNORECASE),
    "tile": re.compile(
        r"(block|tile|BLOCK|TILE)(_[A-Za-z0-9]{1,2}|[A-Z][0-9]?|_?[Ss]ize|_SIZE(_[A-Z])?|_[a-z]+_size)"
    ),
}
Trace = Callable[[Mapping[str, Any]], PrimFunc]
Further = Callable[[Mapping[str, Any]], Sequence[str]]


def knob_kind(name: str) -> str:
    """Return what a parameter of that name sets: "tile", "stages", "threads", "" for none."""
    return next((kind for kind, known in _KINDS.items() if known.fullmatch(name)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenProgram:
    """A program of which some parameters are open: which values are the fastest?

    Attributes:
        name: of the program.
        trace: values of the open parameters, integers or symbols -> the program.
        knobs: the open parameters, with the default that the author gave them (None: none).
        fixed: what the caller gave, for people to read.
        space: values to choose from, where the caller names them; knobs of the lowering too.
        lowering: knobs of the lowering that are settled.
        target: the device; None: this machine.
        top_k: how many configs.
        cores: of a CPU; 0: all.
        sizes: integers that the caller gave, which ``trace`` takes other values of, too.
        service: address of the service that is to answer; None: this installation answers.
        problem: values of sizes that the program finds out at its call, for a service.
        logged: what the log of measurements calls the program; "": nothing of it is there.
        text: all that the program is made of; "": Python that nobody has looked through. What was
            recommended for a text holds for it in other processes, too.
    """

    name: str
    trace: Trace
    knobs: Mapping[str, KnobValue | None]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    space: Mapping[str, tuple[KnobValue, ...]] = field(default_factory=dict)
    lowering: Mapping[str, KnobValue] = field(default_factory=dict)
    target: str | None = None
    top_k: int = TOP_K
    cores: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    service: str | None = None
    problem: Mapping[str, int] = field(default_factory=dict)
    logged: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendedConfig:
    """Values of the open parameters with what is expected of them.

    Attributes:
        config: keywords of the program's function.
        lowering: knobs of the lowering, for ``config=`` of ``jit`` and ``compile``.
        time_s: expected time per call.
        interval_s: ends of the interval that holds 80 % of outcomes.
        bound_by: what most of the time goes to.
        rationale: why, in words.
        source: "analytic", or where the evidence is: "measured", "nearest", and of the library's
            gemm "predicted", "prior", "shipped", too.
    """

    config: TileConfig
    lowering: TileConfig
    time_s: float
    interval_s: tuple[float, float]
    bound_by: str
    rationale: str
    source: str = "analytic"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAdvice(Sequence[RecommendedConfig]):
    """Ranked configs of a program; a sequence of them, the one to use first.

    Attributes:
        hardware: the device's name.
        work_flop: operations of the program (1 FMA = 2 FLOP).
        legal, enumerated: configs that the device can run, of all that were looked at.
        traces: how often the program was traced for the estimates; 1: with all knobs as symbols.
        trace_s, evaluate_s, check_s: where the answer's own time went: tracing, closed forms of
            all configs, tile inference of those that are recommended.
        notes: what else there is to know of how the answer was found.
    """

    configs: tuple[RecommendedConfig, ...]
    hardware: str
    work_flop: float
    legal: int
    enumerated: int
    traces: int
    trace_s: float
    evaluate_s: float
    check_s: float
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.configs)

    def __getitem__(self, position: Any) -> Any:
        return self.configs[position]

    def __iter__(self) -> Iterator[RecommendedConfig]:
        return iter(self.configs)

    def __repr__(self) -> str:
        first = f"; the first {self.configs[0].config}" if self.configs else ""
        return f"ProgramAdvice({len(self)} configs for {self.hardware}{first})"

    def __str__(self) -> str:
        lines = [
            f"{self.hardware}: {self.legal} legal of {self.enumerated} configs, {self.traces} "
            f"trace(s) {self.trace_s * 1e3:.0f} ms, evaluation {self.evaluate_s * 1e3:.0f} ms"
        ]
        for rank, r in enumerate(self.configs, 1):
            lines.append(f"{rank}. {r.config}{_and(r.lowering)}\n   {r.rationale}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _and(lowering: TileConfig) -> str:
    return f" ({lowering})" if lowering else ""


Recommender = Callable[[OpenProgram], ProgramAdvice]


@cache
def installed_recommender() -> Recommender:
    """Return the recommender of this installation.

    Raises:
        RecommenderMissing: nothing is registered, as where tilecore's files are used uninstalled
            (TC505).
    """
    for entry in entry_points(group=GROUP):
        recommender: Recommender = entry.load()
        return recommender
    raise RecommenderMissing(group=GROUP)


def device_name(
    target: str | Target | GpuTarget | Mapping[str, object] | None,
) -> str | None:
    """Return the device that the target of ``jit`` names, None for this machine's CPU."""
    if isinstance(target, str) and target != "auto":
        return target
    found = parse_target(target)
    if not isinstance(found, GpuTarget):
        return None
    return found.kind if target == "auto" else found.device


def open_program(
    make: Callable[..., PrimFunc], signature: inspect.Signature, args: Sequence[Any],
    given: Mapping[str, Any], *, name: str, space: Mapping[str, Any] | None = None,
    tensors: Sequence[str] = (), further: Further | None = None, **asked: Any,
) -> OpenProgram:  # fmt: skip
    """Return the question for a function that makes a program of its arguments.

    Args:
        make: (arguments) -> program.
        signature: of the function.
        args: what the caller fixes.
        given: the same by keyword.
        name: of the program.
        space: values to choose from, by parameter; these parameters are open, too.
        tensors: parameters that are no arguments of ``make``.
        further: (arguments) -> keywords beside the parameters; None: there are none, and
            parameters without a default need a value.
        asked: further fields of OpenProgram.

    Raises:
        TypeMismatch: a parameter is unknown or has no value, or ``space`` is not one (TC202).
    """
    values = _values(space or {})
    own = {k: v for k, v in given.items() if k in signature.parameters}
    try:
        bound = signature.bind_partial(*args, **own).arguments
    except TypeError as error:
        raise TypeMismatch(expected=f"arguments of {name}{signature}", found=str(error)) from error
    settable = [p for p in signature.parameters if p not in tensors]
    _check_space(values, {*bound, *given}, settable, name)
    knobs = {
        p.name: p.default if _is_whole(p.default) else None
        for p in signature.parameters.values()
        if p.name not in bound and p.name in settable and (p.name in values or _is_knob(p))
    }
    if further is None:
        _require_arguments(signature, {*bound, *given, *knobs}, name)
    symbols = {k: Var(k) for k in knobs}
    _refuse_strange(signature, given, {**bound, **symbols}, settable, further, name)
    fixed = {k: v for k, v in {**bound, **given}.items() if k not in tensors}
    named = _given_by_name(signature, bound)

    def trace(chosen: Mapping[str, Any]) -> PrimFunc:
        if any(name in chosen for name in named):  # a size that was given by its place
            return _traced(make, (), {**{k: bound[k] for k in named}, **given, **chosen})
        return _traced(make, args, {**given, **chosen})

    return OpenProgram(
        name=name, trace=trace, knobs=knobs, fixed=fixed, space=values, sizes=_sizes(fixed),
        **asked,
    )  # fmt: skip


def _sizes(fixed: Mapping[str, Any]) -> dict[str, int]:
    """Return the integers among what the caller gave that are not named like a knob."""
    return {k: int(v) for k, v in fixed.items() if _is_whole(v) and v > 0 and not knob_kind(k)}


def _check_space(
    values: Mapping[str, Any], given: set[str], settable: Sequence[str], name: str
) -> None:
    twice = sorted(set(values) & given)
    if twice:
        raise TypeMismatch(
            expected="a parameter either given or in `space`", found=f"both for {', '.join(twice)}"
        )
    strange = sorted(set(values) - {*settable, *LOWERING})
    if strange:
        raise TypeMismatch(
            expected=f"`space` for parameters of {name} ({', '.join(settable)}) or knobs of the "
            f"lowering ({', '.join(LOWERING)})",
            found=", ".join(strange),
        )


def _refuse_strange(
    signature: inspect.Signature, given: Mapping[str, Any], values: Mapping[str, Any],
    settable: Sequence[str], further: Further | None, name: str,
) -> None:  # fmt: skip
    """Refuse keywords that neither the function nor what it is called through has.

    ``values``: of parameters, of which ``further`` tells what keywords there are beside them.
    """
    strange = [n for n in given if n not in signature.parameters]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    if not strange or takes_any:
        return
    defaults = {p.name: p.default for p in signature.parameters.values() if p.default != p.empty}
    static = {k: v for k, v in {**defaults, **values}.items() if k in settable}
    known = [*settable, *(further(static) if further is not None else ())]
    strange = [n for n in strange if n not in known]
    if strange:
        expected = f"arguments of {name} ({', '.join(known)})"
        raise TypeMismatch(expected=expected, found=", ".join(strange))


def _given_by_name(signature: inspect.Signature, bound: Mapping[str, Any]) -> Sequence[str]:
    """Return the arguments that may as well be given by name: none where some may not."""
    kinds = {n: p.kind for n, p in signature.parameters.items()}
    if any(k in (k.VAR_POSITIONAL, k.POSITIONAL_ONLY) for k in kinds.values()):
        return ()
    return [n for n in bound if kinds[n] is not inspect.Parameter.VAR_KEYWORD]


def _require_arguments(signature: inspect.Signature, known: set[str], name: str) -> None:
    bare = [
        p.name
        for p in signature.parameters.values()
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        and p.name not in known
    ]
    if bare:
        raise TypeMismatch(
            expected=f"a value of {', '.join(f'`{n}`' for n in bare)}, a parameter of "
            f"{name} that is not named like a knob",
            found="none",
            hint="give it, or give `space` the values to choose from",
        )


def _is_knob(p: inspect.Parameter) -> bool:
    return bool(knob_kind(p.name)) and (p.default in (p.empty, None) or _is_whole(p.default))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _values(space: Mapping[str, Any]) -> dict[str, tuple[KnobValue, ...]]:
    found: dict[str, tuple[KnobValue, ...]] = {}
    for name, values in space.items():
        listed = () if isinstance(values, (str, int)) else tuple(values)
        kinds = {type(v) for v in listed}
        if len(kinds) != 1 or not kinds <= {int, str, bool}:
            raise TypeMismatch(
                expected=f"`space` with a list of integers, names or flags for `{name}`",
                found=repr(values),
            )
        found[str(name)] = tuple(dict.fromkeys(listed))
    return found


def _traced(make: Callable[..., Any], args: Sequence[Any], values: Mapping[str, Any]) -> PrimFunc:
    """Return what ``make`` returns; what it raises becomes an error with a place."""
    try:
        func = make(*args, **values)
    except TileError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise program_error(error, SourceSpan(frame.filename, frame.lineno or 0)) from error
    if not isinstance(func, PrimFunc):
        raise TypeMismatch(
            expected="a function that returns a program made by @T.prim_func",
            found=type(func).__name__,
        )
    return func
