"""Loops that do nothing but copy tiles and multiply them take longer steps along K."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilecore.inference.uses import Context, enter
from tilecore.ir.analysis import covers_whole, kept_axes, pads
from tilecore.ir.arithmetic.bounds import step_of
from tilecore.ir.arithmetic.polynomial import is_equal
from tilecore.ir.arithmetic.trips import trip_count
from tilecore.ir.expr import Binary, Const, Expr, Var, binary, ceildiv, const, int_value
from tilecore.ir.nodes import (
    THREADS,
    Alloc,
    Annotate,
    Buffer,
    Copy,
    For,
    Gemm,
    KernelLaunch,
    Region,
    Seq,
    Stmt,
)
from tilecore.ir.substitute import substitute_expr
from tilecore.ir.versions import Ranges
from tilecore.ir.visitor import Rewriter, buffers_of, flat, walk

DEEP = 512  # elements along K (2048 is no better, 128 up to 1.5 times as slow; Zen 3, 2026-11-25)


def with_long_steps(launch: KernelLaunch, ranges: Ranges) -> KernelLaunch | None:
    """Return the launch with long steps in loops over transposed products; None: there are none."""
    loops = _loops(launch, Context(ranges=dict(ranges)))
    found = {loop: steps for loop, c in loops if (steps := _steps(loop, c, launch))}
    if not found:
        return None
    tiles = {tile: axis for steps in found.values() for tile, axis in steps.axes.items()}
    factors = {tile: steps.factor for steps in found.values() for tile in steps.axes}
    deeper = {tile: _deeper(tile, axis, factors[tile]) for tile, axis in tiles.items()}
    return replace(launch, body=_LongSteps(found, deeper).visit(launch.body))


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps of ``factor`` iterations each, ``count`` of them; the axes along K of the tiles."""

    factor: int
    count: Expr
    axes: Mapping[Buffer, int]


def _loops(stmt: Stmt, context: Context) -> Iterator[tuple[For, Context]]:
    """Yield the loops below ``stmt`` with what is known where they stand."""
    if isinstance(stmt, For):
        yield stmt, context
    inner = context if isinstance(stmt, Seq) else enter(stmt, context)
    for child in _inside(stmt):
        yield from _loops(child, inner)


def _inside(stmt: Stmt) -> tuple[Stmt, ...]:
    if isinstance(stmt, Seq):
        return stmt.stmts
    return (stmt.body,) if isinstance(stmt, (KernelLaunch, For)) else ()


def _steps(loop: For, context: Context, launch: KernelLaunch) -> _Steps | None:
    """Return the longer steps of a loop, None where it cannot have any."""
    body = [s for s in flat([loop.body]) if not isinstance(s, Annotate)]
    copies = [s for s in body if isinstance(s, Copy) and s.barrier is None]
    gemms = [s for s in body if isinstance(s, Gemm)]
    if not gemms or len(copies) + len(gemms) != len(body) or not _counts_steps(loop):
        return None
    axes = {c.dst.buffer: axis for c in copies if (axis := _axis(c, loop.loop_var)) is not None}
    if len(axes) != len(copies) or not _are_of_the_loop(axes, loop, launch):
        return None
    written = {g.c.buffer.root for g in gemms}
    read = {c.src.buffer.root for c in copies} | {g.a.buffer.root for g in gemms}
    if read & written:
        return None
    sizes = {_along_k(gemm, axes, loop) for gemm in gemms}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None or size > DEEP // 2:
        return None
    are_copied = all(gemm.a.buffer in axes for gemm in gemms)
    may_overrun = are_copied and _reads_to_the_end(loop, copies, context, launch)
    return _cut(loop, DEEP // size, may_overrun, axes)


def _counts_steps(loop: For) -> bool:
    return loop.kind != THREADS and int_value(loop.start) == 0 and int_value(loop.step) == 1


def _axis(copy: Copy, var: Var) -> int | None:
    """Return the axis of the tile along which iterations copy one stretch after another.

    None: the copy is none of a box of a tensor into a whole tile, or moves in other ways.
    """
    source, tile = copy.src, copy.dst.buffer
    is_box = source.buffer.scope == "global" and covers_whole(copy.dst)
    if not is_box or tile.scope == "global" or tile.base is not None or len(tile.shape) != 2:
        return None
    moving = [i for i, offset in enumerate(source.offsets) if step_of(offset, var) != 0]
    pairs = dict(zip(kept_axes(source), kept_axes(copy.dst), strict=False))
    if len(moving) != 1 or len(kept_axes(source)) != len(kept_axes(copy.dst)):
        return None
    size = int_value(source.extents[moving[0]])
    if moving[0] not in pairs or step_of(source.offsets[moving[0]], var) != size:
        return None
    return pairs[moving[0]]


def _are_of_the_loop(tiles: Mapping[Buffer, int], loop: For, launch: KernelLaunch) -> bool:
    """Return whether nothing outside of the loop touches the tiles, by whatever name."""
    inside = set(walk(loop))
    others = [s for s in walk(launch) if s not in inside and not isinstance(s, Annotate)]
    plain = [s for s in others if not isinstance(s, (Alloc, KernelLaunch, Seq, For))]
    views = {s.buffer.root for s in others if isinstance(s, Alloc) and s.buffer.base is not None}
    touched = {b.root for s in plain for b in buffers_of(s)} | views
    return not touched.intersection(tiles)


def _along_k(gemm: Gemm, axes: Mapping[Buffer, int], loop: For) -> int | None:
    """Return how many products along K an iteration adds up; None: longer ones it could not.

    b is one of the tiles, transposed; a is one, or a stretch of a larger tile.
    """
    b = gemm.b.buffer
    if not gemm.transpose_b or gemm.transpose_a or axes.get(b) != 1 or not covers_whole(gemm.b):
        return None
    if not _adds(gemm, loop) or any(_mentions(o, loop.loop_var) for o in gemm.c.offsets):
        return None
    size = int_value(gemm.b.extents[1])
    if gemm.a.buffer in axes:
        return size if axes[gemm.a.buffer] == 1 and covers_whole(gemm.a) else None
    steps = [step_of(offset, loop.loop_var) for offset in gemm.a.offsets]
    return size if steps[-1] == size and all(step == 0 for step in steps[:-1]) else None


def _adds(gemm: Gemm, loop: For) -> bool:
    """Return whether every iteration adds to the sums, but the first one, which may begin them."""
    clear = gemm.clear_accum
    if isinstance(clear, Binary) and clear.op == "eq":
        return clear.a is loop.loop_var and int_value(clear.b) == 0
    return isinstance(clear, Const) and not clear.value


def _mentions(expr: Expr, var: Var) -> bool:
    return step_of(expr, var) != 0


def _reads_to_the_end(
    loop: For, copies: Sequence[Copy], context: Context, launch: KernelLaunch
) -> bool:
    """Return whether what lies behind the last iteration is beyond the ends of tensors, where 0 is.

    Then a last step may be longer than what is left for it.
    """
    padded = pads(launch)
    trips = trip_count(loop)
    for copy in copies:
        if copy.src.buffer in padded:
            return False
        for offset, extent, end in zip(
            copy.src.offsets, copy.src.extents, copy.src.buffer.shape, strict=True
        ):
            if not _mentions(offset, loop.loop_var):
                continue
            rest = binary("sub", end, substitute_expr(offset, {loop.loop_var: const(0)}))
            behind = binary("sub", rest, binary("mul", trips, extent))
            bounds = context.bounds(behind)
            is_short = bounds is not None and bounds[1] <= 0
            if not is_short and not is_equal(trips, ceildiv(rest, extent)):
                return False
    return True


def _cut(loop: For, most: int, may_overrun: bool, axes: Mapping[Buffer, int]) -> _Steps | None:
    """Return steps of up to ``most`` iterations each."""
    trips = int_value(trip_count(loop))
    if trips is None:
        if not may_overrun:
            return None
        return _Steps(most, binary("floordiv", trip_count(loop) + (most - 1), const(most)), axes)
    if may_overrun:
        factor = math.ceil(trips / math.ceil(trips / most)) if trips > 0 else 1
    else:
        factor = max(f for f in range(1, most + 1) if trips % f == 0)
    return _Steps(factor, const(math.ceil(trips / factor)), axes) if factor > 1 else None


def _deeper(tile: Buffer, axis: int, factor: int) -> Buffer:
    shape = [e if i != axis else binary("mul", e, factor) for i, e in enumerate(tile.shape)]
    return replace(tile, shape=tuple(shape))


class _LongSteps(Rewriter):
    """Puts longer loops and deeper tiles in place of what they were."""

    def __init__(self, found: Mapping[For, _Steps], deeper: Mapping[Buffer, Buffer]) -> None:
        self.found, self.deeper = found, deeper

    def visit_alloc(self, stmt: Alloc) -> Stmt:
        return replace(stmt, buffer=self.deeper.get(stmt.buffer, stmt.buffer))

    def visit_annotate(self, stmt: Annotate) -> Stmt:
        if stmt.key != "layout":
            return stmt
        kept = {b: layout for b, layout in stmt.value.items() if b not in self.deeper}
        return replace(stmt, value=kept)

    def visit_for(self, stmt: For) -> Stmt:
        steps = self.found.get(stmt)
        if steps is None:
            return self.rebuild(stmt)
        self.var, self.factor = stmt.loop_var, steps.factor
        return replace(stmt, stop=steps.count, body=self.rebuild(stmt.body))

    def visit_copy(self, stmt: Copy) -> Stmt:
        if stmt.dst.buffer not in self.deeper:
            return stmt
        return replace(stmt, src=self._region(stmt.src), dst=self._whole(stmt.dst))

    def visit_gemm(self, stmt: Gemm) -> Stmt:
        if stmt.b.buffer not in self.deeper:
            return stmt
        is_tile = stmt.a.buffer in self.deeper
        a = self._whole(stmt.a) if is_tile else self._region(stmt.a)
        return replace(stmt, a=a, b=self._whole(stmt.b))

    def _whole(self, region: Region) -> Region:
        tile = self.deeper[region.buffer]
        return Region(tile, region.offsets, tile.shape)

    def _region(self, region: Region) -> Region:
        """Return a box as long as some of those that followed each other."""
        longer = {self.var: binary("mul", self.var, self.factor)}
        offsets = tuple(substitute_expr(o, longer) for o in region.offsets)
        extents = tuple(
            binary("mul", extent, self.factor) if _mentions(offset, self.var) else extent
            for offset, extent in zip(region.offsets, region.extents, strict=True)
        )
        return Region(region.buffer, offsets, extents)
