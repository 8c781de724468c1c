"""Accesses that surely leave a tile. Tensors have guarded edges, tiles have none.

Only what runs unconditionally, with an index linear in loops of known range, is judged: such
an index takes both ends of its interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilecore.errors import ShapeMismatch, SourceSpan
from tilecore.ir import nodes
from tilecore.ir.bounds import Interval, interval, linear
from tilecore.ir.expr import Expr, Load, Select, Var, int_value
from tilecore.ir.nodes import Buffer, PrimFunc, Stmt
from tilecore.ir.visitor import children, expr_children, expressions, has_jump


def check_tile_bounds(func: PrimFunc) -> None:
    """Raise for the first access that leaves its tile whenever the program runs.

    Raises:
        ShapeMismatch: an index lies outside (TC201).
    """
    _Checker().visit(func.body)


def sure_loads(stmt: Stmt) -> Iterator[Load]:
    """Yield the loads of a statement's own expressions that run whenever it runs."""
    if not isinstance(stmt, (nodes.If, nodes.While)):
        for expr in expressions(stmt):
            yield from _sure(expr)


def _sure(expr: Expr) -> Iterator[Load]:
    if isinstance(expr, Load):
        yield expr
    if isinstance(expr, Select):
        yield from _sure(expr.cond)
        return
    for part in expr_children(expr):
        yield from _sure(part)


class _Checker:
    def __init__(self) -> None:
        self.ranges: dict[Var, Interval] = {}
        self.lets: dict[Var, Expr] = {}

    def visit(self, stmt: Stmt) -> None:
        """Check ``stmt`` and what always runs inside it."""
        if isinstance(stmt, nodes.Let):
            self.lets[stmt.var] = stmt.value
        for load in sure_loads(stmt):
            self.check(load.buffer, load.indices, stmt.span)
        if isinstance(stmt, nodes.Store):
            self.check(stmt.buffer, stmt.indices, stmt.span)
        if self.enter(stmt):
            for child in children(stmt):
                self.visit(child)

    def enter(self, stmt: Stmt) -> bool:
        """Note the ranges of the variables of ``stmt``; return whether its body surely runs."""
        match stmt:
            case nodes.If() | nodes.While():
                return False
            case nodes.KernelLaunch(block_vars=names, grid=extents):
                return self.count(names, extents)
            case nodes.Parallel(loop_vars=names, extents=extents):
                return self.count(names, extents)
            case nodes.For(loop_var=name, start=start, stop=stop, step=step):
                first, last, by = (int_value(e) for e in (start, stop, step))
                if first is None or last is None or by is None or has_jump(stmt.body):
                    return False
                values = range(first, last, by)
                if values:
                    self.ranges[name] = (min(values), max(values))
                return bool(values)
            case _:
                return True

    def count(self, names: Sequence[Var], extents: Sequence[Expr]) -> bool:
        """Note ranges from 0 on; unknown extents leave their variable unknown."""
        for name, extent in zip(names, extents, strict=True):
            size = int_value(extent)
            if size is not None and size > 0:
                self.ranges[name] = (0, size - 1)
        return all(int_value(e) != 0 for e in extents)

    def check(self, buffer: Buffer, indices: Sequence[Expr], span: SourceSpan) -> None:
        """Raise if an index surely leaves the buffer."""
        if buffer.scope == "global":
            return
        for axis, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            size, form = int_value(extent), linear(index, self.lets)
            found = None if form is None else interval(form.to_expr(), self.ranges)
            if size is not None and found is not None and (found[0] < 0 or found[1] >= size):
                shown = str(found[0]) if found[0] == found[1] else f"{found[0]} to {found[1]}"
                raise ShapeMismatch(
                    what=f"index of `{buffer.name}`, axis {axis}",
                    expected=f"0 to {size - 1}", found=shown, span=span,
                )  # fmt: skip
