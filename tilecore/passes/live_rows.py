"""live_rows: rows of tiles that nothing reads are neither computed nor kept.

Tensor cores multiply 16 or 64 rows at once, and programs for them pad their tiles to that: 8 heads
that share their keys are the first of 64 rows, a single token is the first of 16, and the program
stores those rows and no others. What the others hold is computed from themselves alone.

Axes that statements run through together, index by index, are of one group: rows of the operand of
a product, of its sums, of the maxima of these, and the loop of a T.Parallel over them. A group is
cut to the rows that something outside of it reads, or that lie inside of a tensor they go to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilecore.inference.uses import Context, enter
from tilecore.ir.analysis import kept_axes
from tilecore.ir.arithmetic.bounds import narrowed, step_of
from tilecore.ir.dims import value_ranges
from tilecore.ir.expr import Cast, Expr, Var, binary, const, int_value
from tilecore.ir.nodes import (
    Alloc,
    Annotate,
    Assert,
    Atomic,
    Buffer,
    Copy,
    Fill,
    For,
    Gemm,
    If,
    Jump,
    KernelLaunch,
    Let,
    Pad,
    Parallel,
    PrimFunc,
    Print,
    Reduce,
    Region,
    Scan,
    Seq,
    Stmt,
    Store,
    Sync,
    While,
)
from tilecore.ir.substitute import substitute_expr
from tilecore.ir.versions import Ranges
from tilecore.ir.visitor import buffers_of, children, loads, per_launch, regions, walk
from tilecore.passes.resize import Axis, Regions, Resizer, TileOp

Pair = tuple[Region, int, Region, int]  # axes of two regions with one extent
CONTROL = (KernelLaunch, Seq, For, While, If, Jump, Let, Pad, Annotate, Alloc, Parallel, Sync)


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with tiles of no more rows than are read."""
    ranges = value_ranges(func)
    return per_launch(func, lambda launch: cut(launch, ranges))


def cut(launch: KernelLaunch, ranges: Ranges) -> KernelLaunch:
    """Return a launch whose tiles have the rows that are read, of dimensions in ``ranges``."""
    rows = _Rows(launch)
    rows.visit(launch, Context(ranges=dict(ranges)))
    live = rows.live()
    if not live:
        return launch
    shorter = _Cut(live).stmt(launch)
    assert isinstance(shorter, KernelLaunch)
    return shorter


def axis_extent(axis: Axis) -> int | None:
    """Return how long an axis is, None if that is not known."""
    thing, position = axis
    return int_value((thing.shape if isinstance(thing, Buffer) else thing.extents)[position])


def spans(region: Region, axis: int) -> bool:
    """Return whether a region has all that its tile has along an axis."""
    size = int_value(region.buffer.shape[axis])
    is_whole = int_value(region.offsets[axis]) == 0 and int_value(region.extents[axis]) == size
    return region.buffer.scope != "global" and size is not None and is_whole


def _copied(stmt: Copy) -> list[Pair] | None:
    """Return the axes that a copy runs through together; None: it is not told."""
    sources, targets = kept_axes(stmt.src), kept_axes(stmt.dst)
    if len(sources) != len(targets):
        return None
    return [(stmt.src, s, stmt.dst, d) for s, d in zip(sources, targets, strict=True)]


def _multiplied(stmt: Gemm) -> list[Pair] | None:
    """Return the rows of a and of c, the columns of b and of c."""
    if stmt.in_pair or any(region.buffer.ndim != 2 for region in (stmt.a, stmt.b, stmt.c)):
        return None
    return [
        (stmt.a, 1 if stmt.transpose_a else 0, stmt.c, 0),
        (stmt.b, 0 if stmt.transpose_b else 1, stmt.c, 1),
    ]


def _folded(stmt: Reduce | Scan) -> list[Pair] | None:
    along = stmt.axes if isinstance(stmt, Reduce) else (stmt.axis,)
    targets = kept_axes(stmt.dst)
    if isinstance(stmt, Scan):
        targets = tuple(axis for axis in targets if axis != stmt.axis)
    sources = [axis for axis in kept_axes(stmt.src) if axis not in along]
    if len(sources) != len(targets):
        return None
    return [(stmt.src, s, stmt.dst, d) for s, d in zip(sources, targets, strict=True)]


def pairs_of(stmt: Stmt) -> list[Pair] | None:
    """Return the axes that a tile op runs through together, of what it reads and of what it sets.

    None: that is not told.
    """
    match stmt:
        case Copy() if stmt.barrier is None:
            return _copied(stmt)
        case Gemm():
            return _multiplied(stmt)
        case Reduce() | Scan():
            return _folded(stmt)
        case Fill(dst=dst):
            return [(dst, axis, dst, axis) for axis in range(dst.buffer.ndim)]
        case _:
            return None


class _Rows:
    """The groups of axes of a launch, and how many rows of each are read."""

    def __init__(self, launch: KernelLaunch) -> None:
        self.leader: dict[Axis, Axis] = {}
        self.read: dict[Axis, int | None] = {}  # by leader; None: all
        self.loops: dict[Var, Axis] = {}  # of the nests around a statement
        tiles = {b for b in buffers_of(launch) if b.scope != "global"}
        self.viewed = {b.base for b in tiles if b.base is not None}
        self.kept = {b for b in tiles if self._is_kept(b)}

    def _is_kept(self, tile: Buffer) -> bool:
        """Return whether a tile stays as it is, whatever is read of it."""
        is_view = tile.base is not None or tile in self.viewed
        is_special = tile.reducer or tile.arrive_counts or tile.lanes > 1
        return is_view or bool(is_special) or tile.scope == "local"

    def live(self) -> dict[Axis, int]:
        """Return the axes that are longer than what is read, with the number of rows read."""
        found: dict[Axis, int] = {}
        for axis in self.leader:
            count, extent = self.read[self._leader(axis)], axis_extent(axis)
            if count is not None and extent is not None and max(1, count) < extent:
                found[axis] = max(1, count)
        return found

    # --- groups ------------------------------------------------------------------------------

    def _leader(self, axis: Axis) -> Axis:
        if axis not in self.leader:
            self.leader[axis] = axis
            thing, position = axis
            # Lanes run along the last axis of a tile: shorter ones are not worth it.
            is_last = isinstance(thing, Buffer) and 0 < position == thing.ndim - 1
            is_kept = is_last or thing in self.kept or axis_extent(axis) is None
            self.read[axis] = None if is_kept else 0
        while self.leader[axis] != axis:
            axis = self.leader[axis]
        return axis

    def tie(self, one: Axis, other: Axis) -> None:
        """Note that two axes are run through together."""
        one, other = self._leader(one), self._leader(other)
        if one != other:
            self.leader[other] = one
            self.need(one, self.read[other])

    def need(self, axis: Axis, count: int | None) -> None:
        """Note that the first ``count`` rows along an axis are read; None: that all may be."""
        leader = self._leader(axis)
        before, extent = self.read[leader], axis_extent(axis)
        is_all = before is None or count is None or extent is None or count >= extent
        self.read[leader] = None if is_all else max(before or 0, count or 0)

    # --- statements --------------------------------------------------------------------------

    def visit(self, stmt: Stmt, context: Context) -> None:
        """Note what a statement and those inside read."""
        for load in loads(stmt):
            self._element(load.buffer, load.indices, context)
        if not isinstance(stmt, CONTROL):
            self._effect(stmt, context)
        if isinstance(stmt, Seq):
            for child in stmt.stmts:
                self.visit(child, context)
                if isinstance(child, Let):
                    context = replace(context, lets={**context.lets, child.var: child.value})
            return
        outside = self.loops
        if isinstance(stmt, Parallel):
            axes = {var: (stmt, i) for i, var in enumerate(stmt.loop_vars)}
            self.loops = {**self.loops, **axes}
        for child, inner in _inside(stmt, context):
            self.visit(child, inner)
        self.loops = outside

    def _element(self, buffer: Buffer, indices: tuple[Expr, ...], context: Context) -> None:
        """Note the rows of an element."""
        if buffer.scope == "global":
            return
        for axis, index in enumerate(indices):
            loop = self._loop_of(buffer, axis, index)
            if loop is not None:
                self.tie((buffer, axis), loop)
                continue
            bounds = context.bounds(index)
            self.need((buffer, axis), None if bounds is None else bounds[1] + 1)

    def _loop_of(self, buffer: Buffer, axis: int, index: Expr) -> Axis | None:
        """Return the loop that an index takes through a whole axis."""
        while isinstance(index, Cast):
            index = index.a
        loop = self.loops.get(index) if isinstance(index, Var) else None
        extent = None if loop is None else axis_extent(loop)
        return loop if extent is not None and extent == axis_extent((buffer, axis)) else None

    def _effect(self, stmt: Stmt, context: Context) -> None:
        """Note what is needed for what a statement does."""
        through: set[Axis] = set()  # loops whose other iterations set other rows
        match stmt:
            case Store(buffer=buffer, indices=indices):
                self._element(buffer, indices, context)
                if buffer.scope != "global" and buffer not in self.kept:
                    of = [self._loop_of(buffer, axis, i) for axis, i in enumerate(indices)]
                    through = {loop for loop in of if loop is not None}
                else:
                    self._stored(stmt, context)
                    return
            case Atomic(buffer=buffer, indices=indices):
                self._element(buffer, indices, context)
            case Copy() | Fill() | Gemm() | Reduce() | Scan():
                self._tile_op(stmt, context)
            case Assert() | Print():
                pass
            case _:
                self._keep(stmt)
        for var, loop in self.loops.items():
            if loop not in through:
                self.need(loop, _behind(var, context))

    def _stored(self, stmt: Store, context: Context) -> None:
        """Note the iterations that store inside of a tensor."""
        for var, loop in self.loops.items():
            count = _behind(var, context)
            for index, extent in zip(stmt.indices, stmt.buffer.shape, strict=True):
                if step_of(index, var) == 1 and stmt.buffer.scope == "global":
                    first = substitute_expr(index, {var: const(0)})
                    count = _least(count, _rest(extent, first, context))
            self.need(loop, count)

    def _tile_op(self, stmt: Stmt, context: Context) -> None:
        pairs = pairs_of(stmt)
        if pairs is None:
            self._keep(stmt)
            return
        paired = {(id(r), axis) for pair in pairs for r, axis in (pair[:2], pair[2:])}
        for region in regions(stmt):
            for axis in range(region.buffer.ndim):
                if (id(region), axis) not in paired:
                    self._read(region, axis, context)
        for pair in pairs:
            self._pair(pair, context)

    def _pair(self, pair: Pair, context: Context) -> None:
        source, i, target, j = pair
        if spans(source, i) and spans(target, j):
            self.tie((source.buffer, i), (target.buffer, j))
        elif spans(source, i) and target.buffer.scope == "global":
            rest = _rest(target.buffer.shape[j], target.offsets[j], context)
            self.need((source.buffer, i), rest)
        else:
            self._read(source, i, context)
            if not spans(target, j):
                self._read(target, j, context)

    def _read(self, region: Region, axis: int, context: Context) -> None:
        """Note that all of a region along an axis stays."""
        if region.buffer.scope == "global":
            return
        bounds = context.bounds(binary("add", region.offsets[axis], region.extents[axis]))
        self.need((region.buffer, axis), None if bounds is None else bounds[1])

    def _keep(self, stmt: Stmt) -> None:
        """Note that all tiles of a statement stay as they are."""
        for inside in walk(stmt):
            for buffer in buffers_of(inside):
                for axis in range(buffer.ndim):
                    self.need((buffer, axis), None)


def _inside(stmt: Stmt, context: Context) -> Iterator[tuple[Stmt, Context]]:
    """Yield the statements inside one, with what is known where they stand."""
    inner = enter(stmt, context)
    if not isinstance(stmt, If):
        yield from ((child, inner) for child in children(stmt))
        return
    for body, holds in ((stmt.then_body, True), (stmt.else_body, False)):
        if body is not None:
            yield body, replace(inner, ranges=narrowed(stmt.cond, inner.ranges, holds=holds))


def _behind(var: Var, context: Context) -> int | None:
    """Return a number above all values of a variable."""
    bounds = context.ranges.get(var)
    return None if bounds is None else bounds[1] + 1


def _rest(extent: Expr, first: Expr, context: Context) -> int | None:
    """Return up to how many elements lie inside of a tensor from ``first`` on."""
    bounds = context.bounds(binary("sub", extent, first))
    return None if bounds is None else bounds[1]


def _least(one: int | None, other: int | None) -> int | None:
    known = [number for number in (one, other) if number is not None]
    return min(known, default=None)


class _Cut(Resizer):
    """Cuts axes to the rows that are read."""

    def __init__(self, live: Mapping[Axis, int]) -> None:
        super().__init__()
        self.live = live

    def extents(self, thing: Buffer | Parallel, old: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return extents of the rows that are read."""
        found = [self.live.get((thing, axis)) for axis in range(len(old))]
        if not any(found):
            return old
        return tuple(const(n) if n else e for n, e in zip(found, old, strict=True))

    def resized(self, stmt: TileOp, found: Regions) -> Regions:
        """Return regions of the rows that are read."""
        extents = {id(region): list(region.extents) for region in regions(stmt)}
        for pair in pairs_of(stmt) or ():
            sides = (pair[:2], pair[2:])
            counts = [self.live.get((r.buffer, axis)) for r, axis in sides if spans(r, axis)]
            count = min((n for n in counts if n is not None), default=None)
            if count is not None:
                for region, axis in sides:
                    extents[id(region)][axis] = const(count)
        return {f: replace(r, extents=tuple(extents[id(r)])) for f, r in found.items()}
