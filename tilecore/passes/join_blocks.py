"""Blocks that lie side by side, of which each computes elements on its own, become whole rows.

A grid of tiles is how GPUs want elementwise programs. A core wants one stream per tensor: a block
of 32 columns begins a new one in each of its rows. Where a launch is one nest over rows and columns
whose elements have nothing to do with each other, blocks and iterations may be cut anew: here into
blocks of one row each, from the first column to the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilecore.inference.cpu.fusion import together
from tilecore.inference.cpu.plan import FusedNest
from tilecore.inference.names import EXACT, roots_read
from tilecore.ir.analysis import reads
from tilecore.ir.arithmetic.bounds import Linear, linear, variables
from tilecore.ir.expr import Const, Expr, Load, Var, cast, const, int_value
from tilecore.ir.nodes import (
    Alloc,
    Annotate,
    Buffer,
    KernelLaunch,
    Let,
    Parallel,
    PrimFunc,
    Seq,
    Stmt,
    Store,
)
from tilecore.ir.substitute import Rebuilder
from tilecore.ir.visitor import flat, loads, with_body

LEAST_ROWS = 64  # fewer blocks than this might leave cores idle
HINTS = ("layout", "swizzle")
ROUNDING = ("float16", "bfloat16")  # conversions to these round as tiles of them do


class _ApartError(Exception):
    """An index or value does not depend on block and iteration by their common place alone."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis that blocks and iterations cut: at ``block * size + step``, called ``place``."""

    block: Var
    step: Var
    size: int
    place: Var


def run(func: PrimFunc) -> PrimFunc:
    """Return ``func`` with the blocks of elementwise launches joined."""
    stmts = [_joined(s) if isinstance(s, KernelLaunch) else s for s in flat([func.body])]
    if all(a is b for a, b in zip(stmts, flat([func.body]), strict=True)):
        return func
    return with_body(func, _seq(stmts))


def _joined(launch: KernelLaunch) -> KernelLaunch:
    """Return a launch over rows, or the launch itself where it is none of elements."""
    nest = None if launch.thread_vars or launch.cluster else _only_nest(launch)
    if nest is None or len(nest.loop_vars) != 2:
        return launch
    steps = _untiled(nest)
    rows, columns = (_axis(launch, steps or (), nest, number) for number in (0, 1))
    if steps is None or rows is None or columns is None or rows.block is columns.block:
        return launch
    if not all(_runs_along(indices, columns) for indices in _accesses(steps)):
        return launch
    grid = dict(zip(launch.block_vars, map(int_value, launch.grid), strict=True))
    bands, blocks = grid[rows.block], grid[columns.block]
    if bands is None or blocks is None or blocks == 1:
        return launch
    try:
        body = [_Places((rows, columns)).stmt(step) for step in steps]
    except _ApartError:
        return launch
    height = _covered(body, rows.place, bands * rows.size)
    width = _covered(body, columns.place, blocks * columns.size)
    if height < LEAST_ROWS:
        return launch
    nested = Parallel((columns.place,), (const(width),), _seq(body), span=nest.members[0].span)
    axes = zip(launch.block_vars, launch.grid, strict=True)
    kept = [(v, extent) for v, extent in axes if v not in {rows.block, columns.block}]
    names, extents = zip((rows.place, const(height)), *kept, strict=True)
    return replace(launch, block_vars=names, grid=extents, body=nested)


def _seq(stmts: Sequence[Stmt]) -> Stmt:
    return stmts[0] if len(stmts) == 1 else Seq(tuple(stmts))


def _only_nest(launch: KernelLaunch) -> FusedNest | None:
    """Return the one nest that a launch consists of, its tiles in registers; None: it does more."""
    stmts = flat([launch.body])
    hints = [s for s in stmts if isinstance(s, Annotate) and s.key in HINTS]
    allocs = [s for s in stmts if isinstance(s, Alloc)]
    if any(s.buffer.scope == "global" or s.buffer.base is not None for s in allocs):
        return None
    work = [s for s in stmts if s not in hints and s not in allocs]
    nest = together(launch, work) if work else None
    if nest is None or nest.folded:
        return None
    touched = {step.buffer for step in nest.steps if isinstance(step, Store)}
    touched.update(buffer for step in nest.steps for buffer in reads(step))
    tiles = {buffer for buffer in touched if buffer.scope != "global"}
    return nest if tiles <= nest.handed_on else None


# --- tiles ---------------------------------------------------------------------------------------


def _untiled(nest: FusedNest) -> list[Stmt] | None:
    """Return the steps of a nest with values in place of the elements of tiles.

    None: a tile changes what more is computed with, in a way that a conversion might not, or has
    what a tensor had that is stored anew before the tile is read.
    """
    values: dict[Buffer, Expr] = {}
    stale: set[Buffer] = set()
    found: list[Stmt] = []
    uses = Counter(load.buffer for step in nest.steps for load in loads(step))
    for step in nest.steps:
        assert isinstance(step, Store)
        if stale.intersection(reads(step)):
            return None
        inside = _Tiles(values)
        tile, value = step.buffer, inside.expr(step.value)
        if tile.scope == "global":
            indices = tuple(inside.expr(index) for index in step.indices)
            found.append(replace(step, indices=indices, value=value))
            stale |= {t for t, v in values.items() if tile.root in roots_read(v)}
            continue
        stale.discard(tile)
        is_same = value.dtype == tile.dtype and isinstance(value, (Const, Load, Var))
        if tile.dtype in EXACT:
            value = cast(value, tile.dtype)
            if uses[tile] > 1 and not is_same:
                name = Var(tile.name, tile.dtype)
                found.append(Let(name, value, step.span))
                value = name
        elif not is_same and not _is_moved_on(tile, nest.steps):
            if tile.dtype not in ROUNDING:
                return None
            name = Var(tile.name, tile.dtype)
            found.append(Let(name, cast(cast(value, "float32"), tile.dtype), step.span))
            value = name
        values[tile] = value
    return found


def _is_moved_on(tile: Buffer, steps: Sequence[Stmt]) -> bool:
    """Return whether elements of a tile are stored as they are, which rounds them as it does."""
    for step in steps:
        assert isinstance(step, Store)
        read = [load for load in loads(step) if load.buffer is tile]
        if read and (step.value is not read[0] or step.buffer.dtype != tile.dtype):
            return False
    return True


class _Tiles(Rebuilder):
    """Puts what tiles hold in the place of their elements."""

    def __init__(self, values: Mapping[Buffer, Expr]) -> None:
        super().__init__()
        self.values = values

    def expr(self, expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.buffer in self.values:
            return self.values[expr.buffer]
        return super().expr(expr)


# --- places --------------------------------------------------------------------------------------


def _axis(
    launch: KernelLaunch, stmts: Sequence[Stmt], nest: FusedNest, number: int
) -> _Axis | None:
    """Return how blocks and iterations cut an axis of the nest, by the first index that tells."""
    step, size = nest.loop_vars[number], nest.extents[number]
    indices = (index for access in _accesses(stmts) for index in access)
    for form in filter(None, map(linear, indices)):
        factor = form.coefficient(step)
        for block in launch.block_vars if factor else ():
            if form.coefficient(block) == factor * size:
                return _Axis(block, step, size, Var(step.name))
    return None


def _accesses(stmts: Sequence[Stmt]) -> Iterator[tuple[Expr, ...]]:
    for stmt in stmts:
        if isinstance(stmt, Store):
            yield stmt.indices
        yield from (load.indices for load in loads(stmt))


def _runs_along(indices: Sequence[Expr], columns: _Axis) -> bool:
    """Return whether neighbouring columns are neighbours in memory, or the same element.

    Blocks of a transposition keep the lines of both tensors in a cache: they are not joined.
    """
    *outer, last = indices or (const(0),)
    names = {columns.block, columns.step}
    if any(variables(index) & names for index in outer):
        return False
    form = linear(last)
    if form is None:
        return not variables(last) & names
    return form.coefficient(columns.step) in (0, 1)


def _covered(stmts: Sequence[Stmt], place: Var, most: int) -> int:
    """Return how many places there are, of which ``most`` are given; what is stored ends them."""
    ends: list[int] = []
    for stmt in stmts:
        if not isinstance(stmt, Store):
            continue
        sizes = zip(stmt.indices, map(int_value, stmt.buffer.shape), strict=True)
        along = [size for index, size in sizes if index is place and size is not None]
        if not along:
            return most
        ends.append(min(along))
    return min(most, max(ends))


class _Places(Rebuilder):
    """Puts common places in the place of blocks and iterations.

    Raises:
        _ApartError: something depends on them otherwise.
    """

    def __init__(self, axes: Sequence[_Axis]) -> None:
        super().__init__()
        self.axes = axes
        self.names = {name for axis in axes for name in (axis.block, axis.step)}

    def expr(self, expr: Expr) -> Expr:
        form = linear(expr) if expr.dtype == "int32" else None
        if form is None:
            if expr in self.names:
                raise _ApartError
            return super().expr(expr)
        if not form.coefficients.keys() & self.names:
            return expr
        factors = {v: c for v, c in form.coefficients.items() if v not in self.names}
        for axis in self.axes:
            factor = form.coefficient(axis.step)
            if form.coefficient(axis.block) != factor * axis.size:
                raise _ApartError
            if factor:
                factors[axis.place] = factor
        return Linear(factors, form.constant).to_expr()
