"""Tracing a program with open knobs: once with symbols, or once per value of those that need one.

Python control flow, shapes and names of a program may depend on a knob's value. Then that knob gets
its values one after the other; all others stay symbols.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from recommender.errors import NothingOpen
from recommender.hardware import HardwareProfile
from recommender.knob_values import MOST_CONFIGS, Values, knob_values, left_out, thinned
from tilecore.errors import TileError
from tilecore.graph import TileGraph, build, free_vars
from tilecore.ir.expr import Expr, Var
from tilecore.ir.nodes import Assert, If, PrimFunc
from tilecore.ir.visitor import has_loads, walk
from tilecore.recommending import LOWERING, OpenProgram, knob_kind
from tilecore.tile_config import KnobValue, in_words

MOST_TRACES = 64
TYPICAL: Mapping[str, tuple[int, ...]] = {
    "tile": (64, 128, 32, 16), "stages": (2, 2, 1, 1), "threads": (128, 256, 128, 64),
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Programs that one trace stands for.

    Attributes:
        chosen: values of the knobs that are no symbols here.
        graph: closed forms of the other knobs.
        values: of every knob.
    """

    chosen: Mapping[str, KnobValue]
    graph: TileGraph
    values: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """All programs of a question.

    Attributes:
        families: one per trace.
        count: traces that made a program, and those that failed.
        seconds: what they took.
        notes: on knobs that could not be symbols.
    """

    families: tuple[Family, ...]
    count: int
    seconds: float
    notes: tuple[str, ...]


def trace_all(question: OpenProgram, hardware: HardwareProfile) -> Traces:
    """Return the programs of a question, with as few traces as its Python lets.

    Raises:
        NothingOpen: no parameter is open (RC608).
        TileError: the program's own fault, whatever values its knobs get.
    """
    if not question.knobs and not set(question.space) & set(LOWERING):
        raise NothingOpen(program=question.name, fixed=", ".join(question.fixed) or "none")
    begin = time.perf_counter()
    never = {k for k in question.knobs if not _may_be_symbol(question, k)}
    try:
        if never:
            raise NeedsValue(", ".join(sorted(never)))
        graph = _graph(question, {})
    except (TileError, NeedsValue) as error:
        return _by_values(question, hardware, never, error, begin)
    seconds = time.perf_counter() - begin
    found = knob_values(question, [graph], hardware)
    few = thinned(found)
    families = (Family({}, graph, few),)
    return Traces(families=families, count=1, seconds=seconds, notes=left_out(found, few))


class NeedsValue(Exception):
    """A symbol would say something else than the values of a knob do."""


def _may_be_symbol(question: OpenProgram, knob: str) -> bool:
    values = question.space.get(knob, (1,))
    return all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in values)


def _graph(question: OpenProgram, chosen: Mapping[str, KnobValue]) -> TileGraph:
    """Return the graph of one trace, all knobs but the chosen ones as symbols."""
    symbols = {k: Var(k) for k in question.knobs if k not in chosen}
    func = question.trace({**symbols, **chosen})
    refuse_branches_on(func, frozenset(symbols.values()))
    return build(func)


def refuse_branches_on(func: PrimFunc, symbols: frozenset[Var]) -> None:
    """Check that no `if` of the program's Python became one of the kernel for a symbol's sake."""
    for stmt in walk(func.body):
        if isinstance(stmt, (If, Assert)) and _is_of(stmt.cond, symbols):
            names = sorted(v.name for v in free_vars(stmt.cond))
            raise NeedsValue(", ".join(names))


def _is_of(cond: Expr, symbols: frozenset[Var]) -> bool:
    used = free_vars(cond)
    return bool(used) and used <= symbols and not has_loads(cond)


def _by_values(
    question: OpenProgram, hardware: HardwareProfile, never: set[str],
    why: TileError | NeedsValue, begin: float,
) -> Traces:  # fmt: skip
    """Return one trace per combination of values of the knobs that need one."""
    probe = working_values(question, why)
    count = 1 + len(probe)
    chosen = dict(probe)
    for knob in question.knobs:  # which of them can be symbols, beside those that can already?
        if knob in never:
            continue
        rest = {k: v for k, v in chosen.items() if k != knob}
        count += 1
        try:
            _graph(question, rest)
        except (TileError, NeedsValue):
            continue
        chosen = rest
    values = knob_values(question, [_graph(question, chosen)], hardware)
    return _trace_each(question, values, list(chosen), count, begin)


def _trace_each(
    question: OpenProgram, values: Values, needed: Sequence[str], count: int, begin: float
) -> Traces:
    few = thinned({k: values[k] for k in needed}, MOST_TRACES)
    each = max(1, MOST_CONFIGS // math.prod(map(len, few.values())))
    rest = thinned({k: v for k, v in values.items() if k not in few}, each)
    families: list[Family] = []
    failed: dict[str, TileError | NeedsValue] = {}
    for chosen in combinations(few):
        count += 1
        try:
            graph = _graph(question, chosen)
        except (TileError, NeedsValue) as error:
            failed[in_words(chosen)] = error
            continue
        own = {k: (chosen[k],) if k in chosen else rest[k] for k in values}
        families.append(Family(chosen, graph, own))
    if not families:
        raise next(e for e in failed.values() if isinstance(e, TileError))
    notes = [f"traced for every value of {', '.join(needed)}: the program's Python asks for it"]
    if any(few[k] != values[k] for k in few):
        shown = "; ".join(f"{k} {', '.join(map(str, few[k]))}" for k in few)
        notes.append(f"at most {MOST_TRACES} traces: {shown}")
    notes += left_out({**values, **few}, rest)
    if failed:
        first, fault = next(iter(failed.items()))
        text = fault.message if isinstance(fault, TileError) else f"branches on {fault}"
        notes.append(f"{len(failed)} combination(s) make no program, as {first}: {text}")
    return Traces(
        families=tuple(families), count=count, seconds=time.perf_counter() - begin,
        notes=tuple(notes),
    )  # fmt: skip


def combinations(values: Values) -> Iterator[dict[str, KnobValue]]:
    """Yield every choice of a value per knob."""
    for row in itertools.product(*values.values()):
        yield dict(zip(values, row, strict=True))


def working_values(
    question: OpenProgram, why: TileError | NeedsValue | None = None, *, later: bool = False
) -> dict[str, KnobValue]:
    """Return values of all knobs for which the program can be traced.

    Args:
        question: the program and what is open.
        why: the fault of the trace with symbols, if that was tried.
        later: the last ones of those tried, instead of the first.

    Raises:
        TileError: there are none among those tried; the fault of the first.
    """
    faults: list[TileError] = []
    positions = range(-1, len(TYPICAL["tile"]))
    for position in reversed(positions) if later else positions:
        values = {k: _probe(question, k, position) for k in question.knobs}
        try:
            question.trace(values)
        except TileError as error:
            named = in_words({k: v for k, v in values.items() if k in question.space})
            if named and not error.hint:
                error.hint = f"that is with {named}: name other values (`space`)"
            faults.append(error)
            continue
        return values
    raise faults[0] if faults or not isinstance(why, TileError) else why


def _probe(question: OpenProgram, knob: str, position: int) -> KnobValue:
    """Return the author's default (position -1), or a usual value."""
    options = question.space.get(knob) or TYPICAL.get(knob_kind(knob), (1,))
    default = question.knobs[knob]
    if position < 0 and default is not None and (knob not in question.space or default in options):
        return default
    return options[max(position, 0) % len(options)]
