"""Axes of the threads of a block, and private tiles in their order.

The axes are those of the program, and those that it makes by dividing its thread index (``tx //
16``, ``tx % 16``). In terms of them such quotients and remainders are plain variables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilecore.ir.analysis import writes
from tilecore.ir.arithmetic.bounds import Interval, Linear, interval, linear
from tilecore.ir.expr import Binary, Cast, Expr, Load, Var, binary, cast, const, int_value
from tilecore.ir.nodes import THREADS, Alloc, Buffer, Copy, Fill, For, KernelLaunch, Stmt, Store
from tilecore.ir.plain.nests import copy_nest, fill_nest
from tilecore.ir.substitute import Rebuilder
from tilecore.ir.visitor import buffers_of, children, expressions, loads, regions, walk, walk_expr
from tilecore.passes.private_tiles import element_loops


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the threads: ``thread // inner % extent`` is called ``var``."""

    var: Var
    inner: int
    extent: int


def axes_of(launch: KernelLaunch, loops: Sequence[For]) -> list[Axis]:
    """Return the axes of the threads, the innermost first."""
    thread = loops[0].loop_var
    count = max(int_value(loop.stop) or 1 for loop in loops)
    sizes = {_period(e, thread) for s in walk(launch) for x in expressions(s) for e in walk_expr(x)}
    axes: list[Axis] = []
    inner = 1
    for size in sorted({*(s for s in sizes if s is not None), count}):
        if size > inner and size % inner == 0 and count % size == 0:
            name = Var(f"{thread.name}_{len(axes)}", thread.dtype)
            axes.append(Axis(name, inner, size // inner))
            inner = size
    return axes


def _period(expr: Expr, thread: Var) -> int | None:
    """Return the threads after which a quotient or remainder of the thread index changes anew."""
    size = _divisor(expr)
    if size is None or not isinstance(expr, Binary):
        return None
    inner = expr.a
    while isinstance(inner, Cast):
        inner = inner.a
    first = _divisor(inner)
    if first is not None and isinstance(inner, Binary) and inner.op in ("floordiv", "shr"):
        size, inner = size * first, inner.a
    form = linear(inner)
    factor = abs(form.coefficient(thread)) if form is not None else 0
    return size // factor if factor and size % factor == 0 else None


def _divisor(expr: Expr) -> int | None:
    """Return the number that an expression divides by, or takes the remainder of."""
    number = int_value(expr.b) if isinstance(expr, Binary) else None
    if not isinstance(expr, Binary) or number is None or number < 0:
        return None
    match expr.op:
        case "floordiv" | "mod":
            return number or None
        case "shr":
            return 1 << number if number < 31 else None
        case "bitand":
            return number + 1 if number & (number + 1) == 0 else None
        case _:
            return None


class Places(Rebuilder):
    """Puts axes in place of the thread index, and private tiles in the order of the axes."""

    def __init__(self, tiles: Mapping[Buffer, Buffer], order: Sequence[Axis]) -> None:
        super().__init__()
        self.tiles, self.order = tiles, order
        self.number = Linear({a.var: a.inner for a in order}, 0).to_expr()
        self.thread: Var | None = None  # what ``number`` stands for, in a loop over all threads
        self.is_own = False  # whether copies and fills are what each thread does for itself
        self.ranges: dict[Var, Interval] = {a.var: (0, a.extent - 1) for a in order}

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return the tile that stands for a private one."""
        return self.tiles.get(buffer) or super().buffer(buffer)

    def expr(self, expr: Expr) -> Expr:
        """Return an expression, with its quotients of axes as axes."""
        if expr is self.thread:
            return self.number
        if isinstance(expr, Load) and expr.buffer in self.tiles:
            return Load(self.tiles[expr.buffer], self._own(expr.indices), expr.dtype)
        return self._divided(super().expr(expr))

    def stmt(self, stmt: Stmt) -> Stmt:
        """Return a statement, rewritten."""
        if isinstance(stmt, (Copy, Fill)) and self.is_own:
            nest = copy_nest(stmt) if isinstance(stmt, Copy) else fill_nest(stmt)
            return self.stmt(element_loops(nest))
        if isinstance(stmt, Store) and stmt.buffer in self.tiles:
            indices, value = self._own(stmt.indices), self.expr(stmt.value)
            return Store(self.tiles[stmt.buffer], indices, value, stmt.span)
        if isinstance(stmt, For):
            first, end = int_value(stmt.start), int_value(stmt.stop)
            if first is not None and end is not None and end > first:
                self.ranges[stmt.loop_var] = (first, end - 1)
        return super().stmt(stmt)

    def _own(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return the indices into a private tile, of which the first one counts threads."""
        thread, *rest = (self.expr(i) for i in indices)
        places = []
        for axis in self.order:
            place = self._divided(binary("floordiv", thread, axis.inner))
            places.append(self._divided(binary("mod", place, axis.extent)))
        return (*rest, *places)

    def _divided(self, expr: Expr) -> Expr:
        """Return a quotient or remainder without a division, where axes and ranges tell it."""
        size = _divisor(expr)
        if size is None or not isinstance(expr, Binary) or not expr.dtype.is_integer:
            return expr
        form = linear(expr.a)
        if form is None:
            return expr
        within = {v: c for v, c in form.coefficients.items() if c % size}
        rest = Linear(within, form.constant % size)
        bounds = interval(rest.to_expr(), self.ranges)
        if bounds is None or bounds[0] < 0 or bounds[1] >= size:
            return expr
        if expr.op in ("mod", "bitand"):
            return cast(rest.to_expr(), expr.dtype)
        whole = {v: c // size for v, c in form.coefficients.items() if v not in within}
        return cast(Linear(whole, form.constant // size).to_expr(), expr.dtype)


def private_tiles(launch: KernelLaunch, order: Sequence[Axis]) -> dict[Buffer, Buffer]:
    """Return private tiles that only loads and stores of elements touch, and what they become."""
    allocs = [s.buffer for s in walk(launch) if isinstance(s, Alloc)]
    others = {b for s in _others(launch) for b in _named(s)} | {b.base for b in allocs}
    count = math.prod(a.extent for a in order)
    extents = tuple(const(a.extent) for a in order)
    return {
        tile: replace(tile, shape=(*tile.shape[1:], *extents))
        for tile in allocs
        if tile.scope == "local" and tile.shape and int_value(tile.shape[0]) == count
        if tile.strides is None and tile.base is None and tile not in others
    }


def _others(stmt: Stmt, *, inside: bool = False) -> Iterator[Stmt]:
    """Yield what touches more than elements: copies and fills of single threads become loops."""
    is_element = isinstance(stmt, (Alloc, Store, Copy, Fill) if inside else (Alloc, Store))
    if is_element:
        return
    below = children(stmt)
    if not below:
        yield stmt
    for child in below:
        yield from _others(child, inside=inside or (isinstance(stmt, For) and stmt.kind == THREADS))


def _named(stmt: Stmt) -> set[Buffer]:
    """Return the buffers of which a statement takes more than the value of an element."""
    loaded = {load.buffer for load in loads(stmt)}
    return (buffers_of(stmt) - loaded) | set(writes(stmt)) | {r.buffer for r in regions(stmt)}
