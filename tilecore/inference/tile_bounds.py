"""Accesses that leave a tile, or that no iteration has inside of a tensor.

Tensors have guarded edges, tiles have none. Only an index linear in loops of known range is judged:
it takes both ends of its interval. What runs unconditionally then leaves its tile for sure. What
stands under a condition, with loops of its own, does so if it runs at all. Of a tensor nothing is
loaded or stored where the whole interval lies outside: nobody means that without a condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilecore.errors import ShapeMismatch, SourceSpan
from tilecore.ir import nodes
from tilecore.ir.arithmetic.bounds import Interval, ends, interval, linear
from tilecore.ir.expr import Expr, Load, Select, Var, int_value
from tilecore.ir.nodes import Buffer, PrimFunc, Stmt
from tilecore.ir.visitor import children, expr_children, expressions, has_jump

OUTSIDE = "outside of a tensor loads give 0 and stores do nothing: put what is meant so under an if"


def check_tile_bounds(func: PrimFunc) -> None:
    """Raise for the first access that leaves its tile, or never meets its tensor, in each run.

    Raises:
        ShapeMismatch: an index lies outside (TC201).
    """
    for _, error, is_sure in _Checker().visit(func.body, True):
        if is_sure:
            raise error


def conditional_faults(func: PrimFunc) -> dict[int, ShapeMismatch]:
    """Return what to say, by id, of statements that leave a tile if they run."""
    found = _Checker(of_tensors=False).visit(func.body, True)
    return {id(stmt): error for stmt, error, is_sure in found if not is_sure}


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
    def __init__(self, *, of_tensors: bool = True) -> None:
        self.of_tensors = of_tensors
        self.padded: set[Buffer] = set()
        self.ranges: dict[Var, Interval] = {}
        self.lets: dict[Var, Expr] = {}

    def visit(self, stmt: Stmt, is_sure: bool) -> Iterator[tuple[Stmt, ShapeMismatch, bool]]:
        """Yield the faults of ``stmt``, which surely runs or perhaps, and of what is inside."""
        if isinstance(stmt, nodes.Let):
            self.lets[stmt.var] = stmt.value
        if isinstance(stmt, nodes.Pad):
            self.padded.add(stmt.buffer)
        accesses = [(load.buffer, load.indices) for load in sure_loads(stmt)]
        if isinstance(stmt, (nodes.Store, nodes.Atomic)):
            accesses.append((stmt.buffer, stmt.indices))
        for buffer, indices in accesses:
            error = self.check(buffer, indices, stmt.span)
            if error is not None:
                yield stmt, error, is_sure
        runs = self.enter(stmt)
        if runs is None:
            return
        outside = self.ranges
        if not runs:  # a condition may keep the variables outside it from their ends
            self.ranges = {}
        for child in children(stmt):
            yield from self.visit(child, is_sure and runs)
        self.ranges = outside

    def enter(self, stmt: Stmt) -> bool | None:
        """Note the ranges of the variables of ``stmt``.

        Returns:
            Whether its body surely runs (each time in full); None if it never does.
        """
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
                    self.ranges[name] = ends(values)
                return True if values else None
            case _:
                return True

    def count(self, names: Sequence[Var], extents: Sequence[Expr]) -> bool | None:
        """Note ranges from 0 on; unknown extents leave their variable unknown."""
        for name, extent in zip(names, extents, strict=True):
            size = int_value(extent)
            if size is not None and size > 0:
                self.ranges[name] = (0, size - 1)
        return True if all(int_value(e) != 0 for e in extents) else None

    def check(
        self, buffer: Buffer, indices: Sequence[Expr], span: SourceSpan
    ) -> ShapeMismatch | None:
        """Return the error of an access with an index that leaves the buffer."""
        if buffer.scope == "global":
            is_judged = self.of_tensors and buffer not in self.padded
            return self.check_tensor(buffer, indices, span) if is_judged else None
        for axis, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            size, found = int_value(extent), self.bounds(index)
            if size is not None and found is not None and (found[0] < 0 or found[1] >= size):
                return ShapeMismatch(
                    what=f"index of `{buffer.name}`, axis {axis}",
                    expected=f"0 to {size - 1}", found=_shown(*found), span=span,
                )  # fmt: skip
        return None

    def check_tensor(
        self, buffer: Buffer, indices: Sequence[Expr], span: SourceSpan
    ) -> ShapeMismatch | None:
        """Return the error of an access to a tensor of which no iteration is inside."""
        for axis, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            size, found = int_value(extent), self.bounds(index)
            if not size or found is None or (found[0] < size and found[1] >= 0):
                continue
            # What is negative in all iterations counts from the end: so much has been added to it.
            low, high = found if found[0] >= size else (found[0] - size, found[1] - size)
            return ShapeMismatch(
                what=f"index of `{buffer.name}`, axis {axis}", expected=f"{-size} to {size - 1}",
                found=_shown(low, high), span=span, hint=OUTSIDE,
            )  # fmt: skip
        return None

    def bounds(self, index: Expr) -> Interval | None:
        """Return both ends of the values of an index; None: they are not known exactly."""
        form = linear(index, self.lets)
        return None if form is None else interval(form.to_expr(), self.ranges)


def _shown(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
