"""Indices that are known to be negative: they count from the end of their axis.

As in TileLang this holds for an index all of whose values are below 0 (``A[-1 - i]``), and for
each lane of a vector of indices (``A[T.Ramp(i - 2, 1, 4)]``) by itself. Another index that may be
negative stays what it is: outside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

from tilecore.ir import nodes
from tilecore.ir.arithmetic.bounds import NON_NEGATIVE, Interval, interval, linear, narrowed
from tilecore.ir.dims import value_ranges
from tilecore.ir.expr import Binary, Expr, Load, Select, Unary, Var, binary, int_value
from tilecore.ir.nodes import Buffer, PrimFunc, Region, Stmt
from tilecore.ir.substitute import Rebuilder
from tilecore.ir.visitor import loads, regions, walk, walk_expr, with_body


def with_negative_indices(func: PrimFunc) -> PrimFunc:
    """Return ``func`` with negative indices counted from the start; itself if it has none."""
    suspects = _suspects(func.body)
    if not any(_may_be_negative(i, suspects) for s in walk(func.body) for i in _indices(s)):
        return func
    body = _FromStart(value_ranges(func), suspects).stmt(func.body)
    return with_body(func, body)


def _indices(stmt: Stmt) -> Iterator[Expr]:
    """Yield the indices that a statement itself uses."""
    for load in loads(stmt):
        yield from load.indices
    if isinstance(stmt, (nodes.Store, nodes.Atomic)):
        yield from stmt.indices
    for region in regions(stmt):
        yield from region.offsets


def _suspects(body: Stmt) -> set[Var]:
    """Return the variables of loops and lets that may be negative, at a glance."""
    found: set[Var] = set()
    for stmt in walk(body):
        if isinstance(stmt, nodes.Let) and _may_be_negative(stmt.value, found):
            found.add(stmt.var)
        if isinstance(stmt, nodes.For) and any(
            _may_be_negative(e, found) for e in (stmt.start, stmt.stop)
        ):
            found.add(stmt.loop_var)
    return found


def _may_be_negative(index: Expr, suspects: Collection[Var]) -> bool:
    """Return whether an index has a part that could make it negative, at a glance."""
    for node in walk_expr(index):
        if isinstance(node, Binary) and node.op == "sub":
            return True
        if isinstance(node, (Unary, Select)) or (int_value(node) or 0) < 0:
            return True
        if isinstance(node, Var) and node in suspects:
            return True
    return False


def _is_plain(index: Expr) -> bool:
    """Return whether no part of an index wraps around, as unsigned and narrow integers do."""
    return all(n.dtype in ("int32", "int64", "bool") for n in walk_expr(index))


class _FromStart(Rebuilder):
    def __init__(self, ranges: dict[Var, Interval], suspects: Collection[Var]) -> None:
        super().__init__()
        self.ranges, self.suspects = ranges, suspects
        self.lets: dict[Var, Expr] = {}

    def bounds(self, expr: Expr) -> Interval | None:
        """Return inclusive bounds of an integer expression, or None."""
        return interval(expr, self.ranges, self.lets)

    def stmt(self, stmt: Stmt) -> Stmt:
        match stmt:
            case nodes.KernelLaunch():
                threads = zip(stmt.thread_vars, stmt.threads, strict=False)
                for var, extent in (*zip(stmt.block_vars, stmt.grid, strict=True), *threads):
                    self.below(var, extent)
            case nodes.Parallel():
                for var, extent in zip(stmt.loop_vars, stmt.extents, strict=True):
                    self.below(var, extent)
            case nodes.For():
                self.loop(stmt)
            case nodes.Let():
                self.lets[stmt.var] = stmt.value
            case nodes.If():
                return self.branch(stmt)
            case _:
                pass
        made = super().stmt(stmt)
        if isinstance(made, (nodes.Store, nodes.Atomic)):
            indices = self.indices(made.buffer, made.indices)
            return made if indices is made.indices else dataclasses.replace(made, indices=indices)
        return made

    def expr(self, expr: Expr) -> Expr:
        made = super().expr(expr)
        if isinstance(made, Load):
            indices = self.indices(made.buffer, made.indices)
            return made if indices is made.indices else Load(made.buffer, indices, made.dtype)
        return made

    def _value(self, value: Any) -> Any:
        made = super()._value(value)
        if isinstance(made, Region):
            offsets = self.indices(made.buffer, made.offsets)
            return made if offsets is made.offsets else Region(made.buffer, offsets, made.extents)
        return made

    # --- what is known --------------------------------------------------------------------

    def below(self, var: Var, extent: Expr) -> None:
        """Note that ``var`` runs from 0 to below ``extent``."""
        bounds = self.bounds(extent)
        self.ranges[var] = NON_NEGATIVE if bounds is None else (0, max(0, bounds[1] - 1))

    def loop(self, stmt: nodes.For) -> None:
        """Note the range of a loop."""
        first, last, step = self.bounds(stmt.start), self.bounds(stmt.stop), int_value(stmt.step)
        self.ranges.pop(stmt.loop_var, None)
        if first is None or not step:
            return
        if step > 0:
            high = NON_NEGATIVE[1] if last is None else last[1] - 1
            self.ranges[stmt.loop_var] = first[0], max(first[0], high)
        elif last is not None:
            self.ranges[stmt.loop_var] = min(first[1], last[0] + 1), first[1]

    def branch(self, stmt: nodes.If) -> Stmt:
        """Return a branch, in which its condition narrows the ranges."""
        cond = self.expr(stmt.cond)
        outside = dict(self.ranges)
        self.ranges = narrowed(cond, outside, holds=True)
        then = self.stmt(stmt.then_body)
        self.ranges = narrowed(cond, outside, holds=False)
        other = None if stmt.else_body is None else self.stmt(stmt.else_body)
        self.ranges = outside
        if cond is stmt.cond and then is stmt.then_body and other is stmt.else_body:
            return stmt
        return dataclasses.replace(stmt, cond=cond, then_body=then, else_body=other)

    # --- indices --------------------------------------------------------------------------

    def indices(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the indices counted from the start; the same object where nothing changes."""
        if len(indices) != buffer.ndim:
            return indices  # the verifier says so
        made = tuple(self.index(i, e) for i, e in zip(indices, buffer.shape, strict=True))
        return indices if all(a is b for a, b in zip(made, indices, strict=True)) else made

    def index(self, index: Expr, extent: Expr) -> Expr:
        """Return one index counted from the start."""
        if not _may_be_negative(index, self.suspects) or not _is_plain(index):
            return index
        if isinstance(index, Select):
            holds = self.decided(index.cond)
            return index if holds is None else index.a if holds else index.b
        bounds = self.bounds(index)
        if bounds is None or bounds[1] >= 0:
            return index
        found = binary("add", extent, index)
        form = linear(found)
        return found if form is None else form.to_expr()

    def decided(self, cond: Expr) -> bool | None:
        """Return whether ``index < 0`` (of a lane) holds, where that is known."""
        if not (isinstance(cond, Binary) and cond.op == "lt" and int_value(cond.b) == 0):
            return None
        bounds = self.bounds(cond.a)
        if bounds is None or bounds[0] < 0 <= bounds[1]:
            return None
        return bounds[1] < 0
