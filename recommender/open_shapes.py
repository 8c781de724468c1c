"""One trace of a library kernel for all its shapes: closed forms of knobs and sizes.

Sizes are symbols only where that says the same: the program at two sets of sizes is the one that
Python traces with these numbers (compared by digest), and no branch of its Python depends on one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from recommender.hashed import Hashed
from recommender.tracing import NeedsValue, refuse_branches_on
from tilecore.errors import TileError
from tilecore.graph import (
    Contraction,
    TileGraph,
    build,
    parameter_bytes,
    sole_contraction,
)
from tilecore.ir import printer
from tilecore.ir.dims import dimensions
from tilecore.ir.document import digest
from tilecore.ir.expr import Expr, Var
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.open_text import OpenText
from tilecore.ir.substitute import Substitution
from tilecore.kernels.definition import KernelDefinition, Problem, knob_symbols
from tilecore.portable import at_sizes
from tilecore.tile_config import KnobValue

MOST_OPEN = 128  # traces that are kept: one for every set of fields that are no symbols
PROBES = (96, 1000)  # sizes of the first dimension; the next ones differ from it
NOT_OPEN = (TileError, NeedsValue, TypeError)  # TypeError: it wants numbers
Rest = tuple[tuple[str, Any], ...]  # fields of a problem that are no symbols


@dataclass(frozen=True, slots=True)
class TracedShape:
    """A program's graph with its main contraction, and the sizes that are symbols in the graph."""

    graph: TileGraph
    site: Contraction | None
    sizes: Mapping[str, int]


def traced(definition: KernelDefinition, problem: Problem) -> TracedShape:
    """Return the graph of a kernel for a canonical problem: sizes are symbols where they can be."""
    sizes, rest = _divided(definition, problem)
    known = _open(Hashed(definition, definition.name), rest)
    if known is None:
        graph = build(definition.program(problem, knob_symbols(definition)))
        return TracedShape(graph, sole_contraction(graph), {})
    return TracedShape(*known, sizes)


def _divided(definition: KernelDefinition, problem: Problem) -> tuple[dict[str, int], Rest]:
    """Return the sizes that may be symbols, and what else a trace depends on."""
    numbers = definition.numbers(problem)
    sizes = {
        f.name: int(problem[f.name])
        for f in definition.fields
        if f.kind == "dimension" and f.name not in numbers
    }
    return sizes, tuple(sorted((k, v) for k, v in problem.items() if k not in sizes))


@lru_cache(maxsize=MOST_OPEN)
def _open(kernel: Hashed, rest: Rest) -> tuple[TileGraph, Contraction | None] | None:
    """Return the graph of a kernel with sizes as symbols, None where they cannot be."""
    definition: KernelDefinition = kernel.value
    if {knob.name for knob in definition.knobs} & set(_symbols(definition, rest)):
        return None
    try:
        func = _with_open_sizes(definition, rest, knob_symbols(definition), digest)
        graph = None if func is None else build(func)
    except NOT_OPEN:
        return None
    return None if graph is None else (graph, sole_contraction(graph))


def _symbols(definition: KernelDefinition, rest: Rest) -> list[str]:
    given = dict(rest)
    return [f.name for f in definition.fields if f.name not in given]


def _with_open_sizes(
    definition: KernelDefinition, rest: Rest, knobs: Mapping[str, Expr | KnobValue],
    identify: Callable[[PrimFunc], str],
) -> PrimFunc | None:  # fmt: skip
    """Return the program with sizes as symbols, None where ``identify`` tells the difference."""
    names = _symbols(definition, rest)
    symbols: dict[str, Any] = {name: Var(name) for name in names}
    try:
        func = definition.program({**dict(rest), **symbols}, knobs)
        refuse_branches_on(func, frozenset(symbols.values()))
        for first in PROBES:
            sizes = {name: first + 8 * i for i, name in enumerate(names)}
            direct = definition.program({**dict(rest), **sizes}, knobs)
            if identify(at_sizes(func, sizes)) != identify(direct):
                return None
    except NOT_OPEN:
        return None
    return func


def program_digest(definition: KernelDefinition, problem: Problem) -> str:
    """Return what ``definition.program_digest`` does; one trace serves all sizes where it can."""
    return _digest(Hashed(definition, definition.name), tuple(sorted(problem.items())))


def tensor_bytes(definition: KernelDefinition, problem: Problem) -> int:
    """Return the bytes of the tensors that a kernel is called with (``parameter_bytes``)."""
    sizes, rest = _divided(definition, problem)
    known = _open_default(Hashed(definition, definition.name), rest)
    if known is not None:
        return parameter_bytes(known.func, sizes)
    return parameter_bytes(definition.program(problem, dict(definition.default_config())), {})


@lru_cache(maxsize=4096)
def _digest(kernel: Hashed, problem: Rest) -> str:
    definition: KernelDefinition = kernel.value
    sizes, rest = _divided(definition, dict(problem))
    known = _open_default(kernel, rest)
    return definition.program_digest(dict(problem)) if known is None else known.digest(sizes)


@lru_cache(maxsize=MOST_OPEN)
def _open_default(kernel: Hashed, rest: Rest) -> OpenDefault | None:
    definition: KernelDefinition = kernel.value
    config = dict(definition.default_config())
    func = _with_open_sizes(definition, rest, config, printer.program_digest)
    return None if func is None else OpenDefault(func)


class OpenDefault:
    """A kernel's program at its default config, sizes as symbols."""

    def __init__(self, func: PrimFunc) -> None:
        self.func = func
        scalars = [p for p in func.params if isinstance(p, Var)]
        self._symbols = {v.name: v for v in (*dimensions(func), *scalars)}
        self._text = OpenText.of(func, frozenset(self._symbols.values()))

    def digest(self, sizes: Mapping[str, int]) -> str:
        """Return the digest of the program at some sizes."""
        values = {self._symbols[k]: size for k, size in sizes.items() if k in self._symbols}
        if self._text is None:
            return printer.program_digest(Substitution(values).func(self.func))
        return printer.text_digest(self._text.at(values))
