"""Dynamic dimensions: symbols in the shapes and strides of tensor parameters.

A symbol gets its value from an axis (or stride) that is the symbol alone, such as ``m`` in
``T.Tensor((m, 64), ...)``, or linear in it, such as ``m * 2``; other shapes may then be any
expressions of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilecore.ir.arithmetic.bounds import narrowed
from tilecore.ir.arithmetic.polynomial import Polynomial
from tilecore.ir.expr import Expr, Var
from tilecore.ir.nodes import Buffer, PrimFunc
from tilecore.ir.visitor import walk_expr

Interval = tuple[int, int]


def extents_of(buffer: Buffer) -> tuple[Expr, ...]:
    """Return the shape of a tensor, then its strides if it has any."""
    return (*buffer.shape, *(buffer.strides or ()))


def dimensions(func: PrimFunc) -> list[Var]:
    """Return the symbols that get their values from the tensors of a call, in order."""
    scalars = {id(p) for p in func.params}
    found: dict[int, Var] = {}
    for buffer in func.buffers:
        for extent in extents_of(buffer):
            solved = solve(extent)
            if solved is not None and id(solved.symbol) not in scalars:
                found.setdefault(id(solved.symbol), solved.symbol)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Solved:
    """An extent ``symbol * factor + rest``, which gives the symbol its value."""

    symbol: Var
    factor: int
    rest: int


def solve(extent: Expr) -> Solved | None:
    """Return how an axis determines a symbol: it is linear in that one, with a factor above 0."""
    form = Polynomial.of(extent)
    symbols = [m for m in form.terms if m]
    if len(symbols) != 1 or len(symbols[0]) != 1 or form.terms[symbols[0]] <= 0:
        return None
    atom = form.atoms[symbols[0][0]]
    if not isinstance(atom, Var):
        return None
    return Solved(atom, form.terms[symbols[0]], form.terms.get((), 0))


def unbound(buffer: Buffer, known: set[int]) -> list[Var]:
    """Return the symbols of a tensor's shape whose ids are not in ``known``."""
    found: dict[int, Var] = {}
    for extent in extents_of(buffer):
        for node in walk_expr(extent):
            if isinstance(node, Var) and id(node) not in known:
                found.setdefault(id(node), node)
    return list(found.values())


def value_ranges(func: PrimFunc) -> dict[Var, Interval]:
    """Return inclusive bounds of dimensions and integer parameters: their types', or as assumed."""
    ranges = {v: (0, v.dtype.ends[1]) for v in dimensions(func)}
    for param in func.params:
        if isinstance(param, Var) and param.dtype.is_integer:
            ranges[param] = param.dtype.ends
    for condition in func.attrs.get("assumed", ()):
        ranges = narrowed(condition, ranges, holds=True)
    return ranges
