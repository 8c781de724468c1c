"""wide_blocks: blocks that lie side by side along N become one, whose tiles are as much wider.

A block of the 128 columns that suit a GPU's tile reads a row of weights stored as (K, N) in a piece
of 256 or 512 bytes, each in another page of memory, where the fetchers of a core begin anew. A
product of few rows does little else than read them: wider blocks take 0.37 to 0.71 of the time
(benchmarks/results/wide_blocks_zen3_2026-11-26.md).

Columns are joined where each is computed on its own: axes that statements run through together,
index by index, are as long as a block is wide, and what says where a column lies in a tensor says
``block * width + column``. Then ``factor`` blocks are one with axes ``factor`` times as long.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from tilecore.inference.cpu.plan import TileSource
from tilecore.ir.analysis import reads, writes
from tilecore.ir.arithmetic.bounds import Linear, linear, variables
from tilecore.ir.arithmetic.polynomial import is_equal
from tilecore.ir.dtype import DType
from tilecore.ir.expr import (
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Var,
    as_expr,
    binary,
    ceildiv,
    const,
    int_value,
    num_threads,
)
from tilecore.ir.nodes import (
    THREADS,
    Alloc,
    Annotate,
    Buffer,
    Copy,
    Fill,
    For,
    Gemm,
    If,
    KernelLaunch,
    Let,
    Pad,
    Parallel,
    Reduce,
    Region,
    Scan,
    Seq,
    Stmt,
    Store,
    Sync,
)
from tilecore.ir.visitor import children, expr_children, expressions, loads, regions, walk
from tilecore.passes.live_rows import axis_extent, pairs_of, spans
from tilecore.passes.resize import Axis, Regions, Resizer, TileOp

# Of a row of weights in a block: shorter pieces take longer; longer ones, where FEW_BLOCKS are
# left, are hardly faster.
PIECES_BYTES = 4 << 10, 8 << 10
FEW_BLOCKS = 2
LEAST_BYTES = 1 << 20  # of weights: fewer lie in a cache, where a piece begins at no cost
MANY_BLOCKS = 256  # enough for any number of threads
IDLE = 8, 7  # what the busiest thread may do, of what each would do if all did as much
KNOWN = (Alloc, Annotate, Copy, Fill, For, Gemm, If, Let, Pad, Parallel, Reduce, Scan, Seq, Store,
         Sync)  # fmt: skip


def widened(
    launch: KernelLaunch, gemms: Iterable[Gemm], sources: Mapping[Buffer, TileSource]
) -> Stmt | None:
    """Return the launch in wider blocks, or both in versions; None: its blocks stay as they are.

    Args:
        launch: for products of few rows.
        gemms: its products whose columns are summed up beside each other, b in place.
        sources: of its tiles.
    """
    for gemm in gemms:
        block, width = _cut_by(launch, sources[gemm.b.buffer])
        if block is None:
            continue
        wide = _widened(launch, block, (gemm.b.buffer, 1), width)
        if wide is not None:
            return _versions(wide, launch)
    return None


def _cut_by(launch: KernelLaunch, source: TileSource) -> tuple[Var | None, int]:
    """Return the block index that cuts the columns of a tile's source, and how many it takes."""
    copy = source.copy
    width, size = int_value(copy.dst.buffer.shape[-1]), _bytes(copy.src.buffer)
    form = linear(copy.src.offsets[-1])
    if width is None or form is None or (size is not None and size < LEAST_BYTES):
        return None, 0
    found = [v for v in launch.block_vars if form.coefficient(v) == width]
    return (found[0] if found else None), width


def _bytes(buffer: Buffer) -> int | None:
    sizes = [int_value(extent) for extent in buffer.shape]
    if None in sizes:
        return None
    return math.prod(s for s in sizes if s is not None) * DType(buffer.dtype).itemsize


def _widened(launch: KernelLaunch, block: Var, axis: Axis, width: int) -> KernelLaunch | None:
    weights = axis[0]
    assert isinstance(weights, Buffer)
    most = [size // (width * DType(weights.dtype).itemsize) for size in PIECES_BYTES]
    position = launch.block_vars.index(block)
    blocks = launch.grid[position]
    count = int_value(blocks)
    factor = most[0]
    if count is not None:
        factor = max(1, min(most[1], max(factor, count // FEW_BLOCKS)))
        factor = math.ceil(count / max(1, math.ceil(count / factor)))
    if factor <= 1:
        return None
    columns = _Columns(launch, block, width, axis)
    if not columns.are_apart():
        return None
    is_even = count is not None and count % factor == 0
    if not is_even and not columns.end_with(blocks):
        return None
    grid = list(launch.grid)
    grid[position] = as_expr(ceildiv(blocks, const(factor)))
    return replace(
        launch, grid=tuple(grid), body=_Wider(block, columns.axes, factor).stmt(launch.body)
    )


def _versions(wide: KernelLaunch, launch: KernelLaunch) -> Stmt:
    """Return wide blocks for the numbers of threads that they keep busy, others for the rest."""
    blocks: Expr = const(1)
    for extent in wide.grid:
        blocks = binary("mul", blocks, extent)
    count, threads = int_value(blocks), num_threads()
    if count is not None and count >= MANY_BLOCKS:
        return wide
    rounds = binary("floordiv", blocks + threads - 1, threads)
    most, fair = IDLE
    are_busy = binary("le", rounds * threads * fair, blocks * most)
    return If(are_busy, wide, launch, launch.span)


class _Columns:
    """The axes along the columns of a launch's blocks, and whether each column is on its own."""

    def __init__(self, launch: KernelLaunch, block: Var, width: int, first: Axis) -> None:
        self.launch, self.block, self.width = launch, block, width
        self.first = first
        self.axes: set[Axis] = {first}
        self.loops: dict[Var, Axis] = {
            var: (nest, i)
            for nest in walk(launch)
            if isinstance(nest, Parallel)
            for i, var in enumerate(nest.loop_vars)
        }
        self.stored: list[tuple[Linear | None, Expr]] = []  # places of columns, ends of tensors
        while self._grow():
            pass

    # --- axes ---------------------------------------------------------------------------------

    def _grow(self) -> bool:
        """Add the axes that statements run through together with those known."""
        before = len(self.axes)
        for one, other in self._ties():
            if one in self.axes or other in self.axes:
                self.axes |= {one, other}
        return len(self.axes) > before

    def _ties(self) -> Iterator[tuple[Axis, Axis]]:
        for stmt in walk(self.launch.body):
            for source, i, target, j in pairs_of(stmt) or ():
                one, other = self._axis(source, i), self._axis(target, j)
                if one is not None and other is not None:
                    yield one, other
            for buffer, indices in _elements(stmt):
                for axis, index in enumerate(indices):
                    if buffer.scope == "global":
                        yield from ((self.first, loop) for loop in self._cut_loops(index))
                    elif (found := self._loop(index)) is not None:
                        yield (buffer, axis), found

    def _axis(self, region: Region, axis: int) -> Axis | None:
        """Return the axis of a tile, of the columns of a tensor the first one; None: neither."""
        if region.buffer.scope != "global":
            return region.buffer, axis
        return self.first if self._has_columns(region, axis) else None

    def _cut_loops(self, index: Expr) -> Iterator[Axis]:
        """Yield the loops that run through the columns of a block along a tensor's axis."""
        form = linear(index)
        if form is None:
            return
        for var, step in form.coefficients.items():
            if var in self.loops and form.coefficient(self.block) == step * self.width:
                yield self.loops[var]

    def _loop(self, index: Expr) -> Axis | None:
        """Return the loop whose variable an index is."""
        while isinstance(index, Cast):
            index = index.a
        return self.loops.get(index) if isinstance(index, Var) else None

    # --- columns that have nothing to do with each other --------------------------------------

    def are_apart(self) -> bool:
        """Return whether no column takes part in another, in all that the launch does."""
        launch = self.launch
        if launch.thread_vars or launch.cluster:
            return False
        if any(axis_extent(axis) != self.width for axis in self.axes):
            return False
        along = [thing for thing, _ in self.axes if isinstance(thing, Buffer)]
        tiles = set(along)
        if len(along) > len(tiles):  # columns by columns
            return False
        allocated = {s.buffer for s in walk(launch.body) if isinstance(s, Alloc)}
        if not tiles <= allocated or any(map(_is_special, allocated)):
            return False
        if any(tile.scope == "local" for tile in tiles) or self._reads_what_it_writes():
            return False
        return self._holds(launch.body, None)

    def _reads_what_it_writes(self) -> bool:
        """Return whether a tensor is read and written: by blocks in an order of their own."""
        stmts = list(walk(self.launch.body))
        read = {buffer.root for stmt in stmts for buffer in reads(stmt)}
        written = {buffer.root for stmt in stmts for buffer in writes(stmt)}
        return any(buffer.scope == "global" for buffer in read & written)

    def _holds(self, stmt: Stmt, column: Var | None) -> bool:
        """Return whether columns are apart in a statement, where ``column`` counts them."""
        if not isinstance(stmt, KNOWN) or (isinstance(stmt, For) and stmt.kind == THREADS):
            return False
        if isinstance(stmt, Sync) and stmt.scope not in ("block", "warp"):
            return False
        if isinstance(stmt, (Copy, Fill, Gemm, Reduce, Scan)):
            return column is None and self._tile_op(stmt)
        if isinstance(stmt, Store):
            return self._is_apart(stmt.value, column) and self._is_own(stmt, column)
        if not all(self._is_apart(expr, column) for expr in expressions(stmt)):
            return False
        if isinstance(stmt, Parallel):
            own = [v for i, v in enumerate(stmt.loop_vars) if (stmt, i) in self.axes]
            if len(own) > 1 or (own and column is not None):
                return False
            column = own[0] if own else column
        return all(self._holds(child, column) for child in children(stmt))

    def _is_apart(self, expr: Expr, column: Var | None) -> bool:
        """Return whether a value depends on block and column by the place in a tensor alone."""
        names = {self.block} if column is None else {self.block, column}
        form = linear(expr) if expr.dtype.is_integer else None
        if form is not None:
            by_column = 0 if column is None else form.coefficient(column)
            return form.coefficient(self.block) == by_column * self.width
        if expr in names:
            return False
        if isinstance(expr, Load):
            return self._element(expr.buffer, expr.indices, column)
        if _may_divide_by_0(expr):  # in columns that were not there
            return False
        return all(self._is_apart(part, column) for part in expr_children(expr))

    def _element(self, buffer: Buffer, indices: tuple[Expr, ...], column: Var | None) -> bool:
        """Return whether an element is one of its own column, or of none."""
        for axis, index in enumerate(indices):
            if (buffer, axis) not in self.axes:
                if not self._is_apart(index, column):
                    return False
            elif column is None or self._loop(index) != self.loops[column]:
                return False
        return True

    def _is_own(self, stmt: Store, column: Var | None) -> bool:
        """Return whether columns store to elements of their own."""
        buffer, indices = stmt.buffer, stmt.indices
        if not self._element(buffer, indices, column):
            return False
        if buffer.scope != "global":
            has_columns = any((buffer, axis) in self.axes for axis in range(buffer.ndim))
            return has_columns == (column is not None)
        if column is None:
            return False
        forms = [(linear(i), end) for i, end in zip(indices, buffer.shape, strict=True)]
        along = [(f, end) for f, end in forms if f is not None and f.coefficient(column)]
        self.stored += [(f.without(column), end) for f, end in along if f.coefficient(column) == 1]
        self.stored += [(None, end) for f, end in along if f.coefficient(column) != 1]
        return bool(along)

    def _tile_op(self, stmt: TileOp) -> bool:
        """Return whether a tile op moves or computes columns one by one."""
        pairs = pairs_of(stmt)
        if pairs is None:
            return False
        along: set[tuple[Region, int]] = set()
        for source, i, target, j in pairs:
            sides = {self._has_columns(source, i), self._has_columns(target, j)}
            if len(sides) > 1:
                return False
            along |= {(source, i), (target, j)} if True in sides else set()
        beside = [stmt.value] if isinstance(stmt, Fill) else []
        beside += [stmt.clear_accum] if isinstance(stmt, Gemm) else []
        for region in regions(stmt):
            for axis, offset in enumerate(region.offsets):
                if (region, axis) not in along:
                    if (region.buffer, axis) in self.axes:
                        return False
                    beside += [offset, region.extents[axis]]
        target = regions(stmt)[-1]
        if target.buffer.scope == "global":
            axes = [axis for axis in range(target.buffer.ndim) if (target, axis) in along]
            self.stored += [(linear(target.offsets[a]), target.buffer.shape[a]) for a in axes]
            if not axes:
                return False
        return all(self._is_apart(expr, None) for expr in beside)

    def _has_columns(self, region: Region, axis: int) -> bool:
        """Return whether a region runs through the columns of the block along an axis."""
        if region.buffer.scope != "global":
            return (region.buffer, axis) in self.axes and spans(region, axis)
        form = linear(region.offsets[axis])
        is_cut = form is not None and form.coefficient(self.block) == self.width
        return is_cut and int_value(region.extents[axis]) == self.width

    def end_with(self, blocks: Expr) -> bool:
        """Return whether what lies behind so many blocks is beyond the ends of tensors stored to.

        Nothing is stored there.
        """
        for form, end in self.stored:
            if form is None or form.coefficients != {self.block: self.width} or form.constant < 0:
                return False
            count, size = int_value(blocks), int_value(end)
            if count is not None and size is not None:
                if size > count * self.width:
                    return False
            elif not is_equal(blocks, ceildiv(end, self.width)):
                return False
        return True


def _elements(stmt: Stmt) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    """Yield the elements that a statement itself reads or stores."""
    yield from ((load.buffer, load.indices) for load in loads(stmt))
    if isinstance(stmt, Store):
        yield stmt.buffer, stmt.indices


def _may_divide_by_0(expr: Expr) -> bool:
    if not isinstance(expr, Binary) or expr.op not in ("floordiv", "mod", "div"):
        return False
    return expr.dtype.is_integer and not isinstance(expr.b, Const)


def _is_special(tile: Buffer) -> bool:
    is_elsewhere = tile.scope == "global" or tile.base is not None or tile.address is not None
    return is_elsewhere or bool(tile.reducer or tile.arrive_counts) or tile.lanes > 1


class _Wider(Resizer):
    """Puts ``factor`` blocks in the place of one."""

    def __init__(self, block: Var, axes: Collection[Axis], factor: int) -> None:
        super().__init__()
        self.block, self.axes, self.factor = block, axes, factor

    def expr(self, expr: Expr) -> Expr:
        """Return an expression of the index of a wider block."""
        return binary("mul", expr, self.factor) if expr is self.block else super().expr(expr)

    def extents(self, thing: Buffer | Parallel, old: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return extents of all columns."""
        if not any((thing, axis) in self.axes for axis in range(len(old))):
            return old
        return tuple(
            binary("mul", extent, self.factor) if (thing, axis) in self.axes else extent
            for axis, extent in enumerate(old)
        )

    def resized(self, stmt: TileOp, found: Regions) -> Regions:
        """Return regions of all columns."""
        return {name: self._region(region) for name, region in found.items()}

    def _region(self, region: Region) -> Region:
        extents = self.extents(region.buffer, region.extents)
        if region.buffer.scope == "global":
            extents = tuple(
                binary("mul", extent, self.factor) if self.block in variables(offset) else extent
                for offset, extent in zip(region.offsets, region.extents, strict=True)
            )
        return replace(region, extents=extents)
