"""merge_nests: one nest in place of a T.Parallel whose body is a T.Parallel.

On a GPU the points of a nest are spread over threads all at once. A nest that stands beside other
statements of its point, or whose extents follow from it, is a loop of the thread that has the
point. A serial loop whose turns fill different elements of a shared tile, from elsewhere, is a nest
as well (``T.im2col`` goes row by row): few threads would have work in each turn.

An axis of vectors and the lanes in them are one axis, where the nest only ever asks for ``4 * j +
lane``: the elements of fragments are then those of other nests, and need not be exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

from tilecore.inference.gpu.threads.turns import write_apart
from tilecore.ir.arithmetic.bounds import linear
from tilecore.ir.expr import Expr, Load, Var, binary, const, int_value
from tilecore.ir.nodes import Buffer, For, If, Let, Parallel, PrimFunc, Seq, Stmt, Store
from tilecore.ir.substitute import Rebuilder, substitute_expr
from tilecore.ir.visitor import (
    Rewriter,
    buffers_of,
    expressions,
    has_loads,
    walk,
    walk_expr,
    with_body,
)


def run(func: PrimFunc) -> PrimFunc:
    """Return the function without nests in nests."""
    return with_body(func, _Merged().visit(func.body))


class _Merged(Rewriter):
    def visit_for(self, loop: For) -> Stmt:
        made = self.rebuild(loop)
        if not isinstance(made, For) or not _fills_apart(made):
            return made
        nest = Parallel((made.loop_var,), (made.stop,), made.body, span=made.span)
        return self.visit_parallel(nest)

    def visit_parallel(self, nest: Parallel) -> Stmt:
        inside = _inside(nest)
        while inside is not None:
            names, inner = inside
            body = Seq((*names, inner.body), inner.span) if names else inner.body
            nest = Parallel(
                (*nest.loop_vars, *inner.loop_vars), (*nest.extents, *inner.extents), body,
                MappingProxyType({**nest.annotations, **inner.annotations}), nest.span,
            )  # fmt: skip
            inside = _inside(nest)
        nest = _with_lanes(nest)
        if any(isinstance(s, Parallel) for s in walk(nest.body)):
            return replace(nest, body=_Loops().visit(nest.body))
        return nest


def _inside(nest: Parallel) -> tuple[tuple[Let, ...], Parallel] | None:
    """Return the nest that is all of another one's body, and the names bound before it."""
    stmts = nest.body.stmts if isinstance(nest.body, Seq) else (nest.body,)
    if not stmts or not isinstance(inner := stmts[-1], Parallel):
        return None
    names = tuple(s for s in stmts[:-1] if isinstance(s, Let) and not has_loads(s.value))
    own: set[Var] = {*nest.loop_vars, *(s.var for s in names)}
    depends = any(n in own for e in inner.extents for n in walk_expr(e) if isinstance(n, Var))
    return None if depends or len(names) < len(stmts) - 1 else (names, inner)


def _with_lanes(nest: Parallel) -> Parallel:
    """Return a nest over fragments whose axis of vectors goes by their elements."""
    loop = nest.body.stmts[0] if isinstance(nest.body, Seq) and nest.body.stmts else nest.body
    is_alone = isinstance(nest.body, For) or len(getattr(nest.body, "stmts", ())) == 1
    if not (isinstance(loop, For) and loop.kind == "vectorized" and is_alone):
        return nest
    bounds, width = (int_value(loop.start), int_value(loop.step)), int_value(loop.stop)
    if bounds != (0, 1) or width is None or nest.annotations:
        return nest
    if not any(b.scope == "fragment" for b in buffers_of(loop.body)):
        return nest
    for number, (axis, extent) in enumerate(zip(nest.loop_vars, nest.extents, strict=True)):
        whole = Var(axis.name, axis.dtype)
        try:
            body = _Whole(axis, loop.loop_var, width, whole).stmt(loop.body)
        except _IsApart:
            continue
        names, extents = list(nest.loop_vars), list(nest.extents)
        names[number], extents[number] = whole, binary("mul", extent, width)
        return replace(nest, loop_vars=tuple(names), extents=tuple(extents), body=body)
    return nest


class _IsApart(Exception):
    """An axis is asked for without the lane in it, or the other way round."""


class _Whole(Rebuilder):
    """Puts one axis in the place of ``width * axis + lane``."""

    def __init__(self, axis: Var, lane: Var, width: int, whole: Var) -> None:
        super().__init__()
        self.axis, self.lane, self.width, self.whole = axis, lane, width, whole

    def expr(self, expr: Expr) -> Expr:
        """Return ``expr`` by the axis.

        Raises:
            _IsApart: it is not that of an element.
        """
        form = linear(expr) if expr.dtype.is_integer else None
        step = form.coefficient(self.lane) if form is not None else 0
        if form is not None and step and form.coefficient(self.axis) == step * self.width:
            rest = substitute_expr(expr, {self.axis: const(0), self.lane: const(0)})
            return binary("add", rest, binary("mul", self.whole, step))
        if expr is self.axis or expr is self.lane:
            raise _IsApart
        return super().expr(expr)


def _fills_apart(loop: For) -> bool:
    """Return whether a loop does nothing but fill a shared tile, other elements in each turn."""
    is_plain = loop.kind == "serial" and int_value(loop.start) == 0 and int_value(loop.step) == 1
    if not is_plain or int_value(loop.stop) is None:
        return False
    stmts = loop.body.stmts if isinstance(loop.body, Seq) else (loop.body,)
    if not stmts or not isinstance(stmts[-1], Parallel):
        return False
    if not all(isinstance(s, Let) and not has_loads(s.value) for s in stmts[:-1]):
        return False
    inside = list(walk(stmts[-1]))
    if not all(isinstance(s, (Parallel, Seq, Let, If, Store)) for s in inside):
        return False
    stores = [s for s in inside if isinstance(s, Store)]
    if len(stores) != 1 or stores[0].buffer.scope != "shared":
        return False
    tile = stores[0].buffer
    used = {b.root for s in inside for e in expressions(s) for b in _loaded(e)}
    return tile.root not in used and write_apart(stmts[-1], tile, loop)


def _loaded(expr: Expr) -> Iterator[Buffer]:
    return (n.buffer for n in walk_expr(expr) if isinstance(n, Load))


class _Loops(Rewriter):
    def visit_parallel(self, nest: Parallel) -> Stmt:
        body = self.visit(nest.body)
        for var, extent in zip(reversed(nest.loop_vars), reversed(nest.extents), strict=True):
            body = For(var, const(0), extent, const(1), "serial", body, span=nest.span)
        return body
