"""One trace of a library kernel for all its shapes: closed forms of knobs and sizes.

Sizes are symbols only where that says the same: the program at two sets of sizes is the one that
Python traces with these numbers (compared by digest), and no branch of its Python depends on one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from recommender.tracing import NeedsValue, refuse_branches_on
from tilecore.errors import TileError
from tilecore.graph import Contraction, Operand, TileGraph, build, evaluate, sole_contraction
from tilecore.ir.document import digest
from tilecore.ir.expr import Var, const
from tilecore.kernels.definition import KernelDefinition, Problem, knob_symbols
from tilecore.portable import at_sizes

PROBES = (96, 1000)  # sizes of the first dimension; the next ones differ from it


@dataclass(frozen=True, slots=True)
class Hashed:
    """A value with unhashable fields as a cache key: hashed by name, compared whole."""

    value: Any
    name: str

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class TracedShape:
    """A program's graph with its main contraction, and the sizes that are symbols in the graph."""

    graph: TileGraph
    site: Contraction | None
    sizes: Mapping[str, int]


def traced(
    definition: KernelDefinition, problem: Problem, *, may_be_open: bool = True
) -> TracedShape:
    """Return the graph of a kernel for a canonical problem.

    Args:
        definition: the kernel.
        problem: all its fields.
        may_be_open: whether sizes may be symbols; else the program is traced for this problem.
    """
    sizes = {f.name: int(problem[f.name]) for f in definition.fields if f.kind == "dimension"}
    rest = tuple(sorted((k, v) for k, v in problem.items() if k not in sizes))
    known = _open(Hashed(definition, definition.name), rest) if may_be_open else None
    if known is None:
        graph = build(definition.program(problem, knob_symbols(definition)))
        return TracedShape(graph, sole_contraction(graph), {})
    graph, site = known
    return TracedShape(graph, None if site is None else _at(site, sizes), sizes)


@lru_cache(maxsize=64)
def _open(
    kernel: Hashed, rest: tuple[tuple[str, Any], ...]
) -> tuple[TileGraph, Contraction | None] | None:
    """Return the graph of a kernel with sizes as symbols, None where they cannot be."""
    definition: KernelDefinition = kernel.value
    names = [f.name for f in definition.fields if f.kind == "dimension"]
    if {knob.name for knob in definition.knobs} & set(names):
        return None
    knobs = knob_symbols(definition)
    symbols: dict[str, Any] = {name: Var(name) for name in names}
    try:
        func = definition.program({**dict(rest), **symbols}, knobs)
        refuse_branches_on(func, frozenset(symbols.values()))
        for first in PROBES:
            sizes = {name: first + 8 * i for i, name in enumerate(names)}
            direct = definition.program({**dict(rest), **sizes}, knobs)
            if digest(at_sizes(func, sizes)) != digest(direct):
                return None
        graph = build(func)
    except (TileError, NeedsValue, TypeError):  # TypeError: it wants numbers
        return None
    return graph, sole_contraction(graph)


def _at(site: Contraction, sizes: Mapping[str, int]) -> Contraction:
    """Return the contraction with the tensors behind its operands as large as they are."""
    return replace(site, a=_operand_at(site.a, sizes), b=_operand_at(site.b, sizes))


def _operand_at(operand: Operand, sizes: Mapping[str, int]) -> Operand:
    source = operand.source
    if source is None:
        return operand
    shape = tuple(const(int(evaluate(extent, sizes))) for extent in source.buffer.shape)
    return replace(operand, source=replace(source, buffer=replace(source.buffer, shape=shape)))
