"""tensor_memory: products of ordinary programs are summed up in tensor memory (sm_100).

``T.gemm`` into a fragment becomes one into a tile of tensor memory, around which the fragment is
copied there and back. Zeros are not copied: the first product drops what there was. Sums whose only
fate is to be copied out go part by part through few registers.
"""

from __future__ import annotations

import dataclasses

from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.options import GpuOptions
from tilecore.inference.gpu.products.tensor_products import HALF_LANES, LANES, refusal
from tilecore.ir import nodes
from tilecore.ir.analysis import covers_whole, kept_axes, reads, writes
from tilecore.ir.expr import Const, Expr, binary, const, int_value, is_zero
from tilecore.ir.indexing import whole
from tilecore.ir.nodes import (
    Alloc,
    Buffer,
    Copy,
    Fill,
    For,
    Gemm,
    KernelLaunch,
    PrimFunc,
    Region,
    Seq,
    Stmt,
)
from tilecore.ir.visitor import Rewriter, children, flat, per_launch, walk

PART_COLUMNS = 64  # that a warpgroup takes out at a time: as many registers of a thread
WARPGROUP = 128


def run(func: PrimFunc, options: GpuOptions, target: GpuTarget) -> PrimFunc:
    """Return the function with sums of products in tensor memory where all of a launch suit."""
    return per_launch(func, lambda launch: _in_tensor_memory(launch, options, target))


def _in_tensor_memory(launch: KernelLaunch, options: GpuOptions, target: GpuTarget) -> KernelLaunch:
    launch = dataclasses.replace(launch, body=_Flat().visit(launch.body))
    gemms = [s for s in walk(launch.body) if isinstance(s, Gemm)]
    sums = [g.c.buffer for g in gemms if not refusal(g, launch, options, target)]
    if not sums:
        return launch
    launch = dataclasses.replace(launch, body=_Operands().moved(launch.body))
    for buffer in dict.fromkeys(sums):
        launch = _moved(launch, buffer)
    return launch


class _Operands(Rewriter):
    """Fragments that products read go through tensor memory."""

    def __init__(self) -> None:
        self.tiles: dict[Buffer, Buffer] = {}

    def moved(self, body: Stmt) -> Stmt:
        """Return the body of a launch with A of its products in tensor memory."""
        changed = _Flat().visit(self.visit(body))
        stmts = changed.stmts if isinstance(changed, Seq) else (changed,)
        made = [Alloc(tile, tile.span) for tile in self.tiles.values()]
        return Seq((*made, *stmts), body.span)

    def visit_gemm(self, gemm: Gemm) -> Stmt:
        a = gemm.a.buffer
        if a.scope != "fragment":
            return gemm
        tile = self.tiles.setdefault(
            a,
            Buffer(
                f"{a.name}_tensor", a.shape, a.dtype, "shared", span=a.span, in_tensor_memory=True
            ),
        )
        there = Copy(whole(a), whole(tile), span=gemm.span)
        return Seq((there, dataclasses.replace(gemm, a=whole(tile))), gemm.span)


class _Flat(Rewriter):
    """Sequences within sequences become one."""

    def visit_seq(self, seq: Seq) -> Stmt:
        rebuilt = self.rebuild(seq)
        assert isinstance(rebuilt, Seq)
        return dataclasses.replace(rebuilt, stmts=tuple(flat(rebuilt.stmts)))


def _moved(launch: KernelLaunch, sums: Buffer) -> KernelLaunch:
    """Return the launch with the products into a fragment in tensor memory."""
    shape = sums.shape
    tile = Buffer(
        f"{sums.name}_tensor", shape, sums.dtype, "shared", span=sums.span, in_tensor_memory=True
    )
    mover = _Mover(launch, sums, tile)
    body = mover.visit(launch.body)
    if mover.is_stale:
        body = _Mover(launch, sums, tile, takes_out=True).visit(launch.body)
    stmts = body.stmts if isinstance(body, Seq) else (body,)
    return dataclasses.replace(launch, body=Seq((Alloc(tile, sums.span), *stmts), launch.span))


class _Mover(Rewriter):
    """Puts copies around the statements in which only products touch a fragment.

    A copy that alone reads the fragment reads the tile in its place, which leaves the fragment as
    it was: ``is_stale`` if the tile is filled from that later. ``takes_out``: never so.
    """

    def __init__(
        self, launch: KernelLaunch, sums: Buffer, tile: Buffer, *, takes_out: bool = False
    ) -> None:
        self.launch, self.sums, self.tile = launch, sums, tile
        self.takes_out = takes_out
        self.loops = 0  # around
        self.is_left = self.is_stale = False  # the fragment as it was; and used so
        self.is_open = False  # the statement before has left the sums in the tile
        self.groups = _threads(launch) // WARPGROUP
        self.is_only_summed = not any(
            sums in writes(s) for s in walk(launch.body) if not isinstance(s, Gemm)
        )

    def visit_seq(self, seq: Seq) -> Stmt:
        stmts = list(seq.stmts)
        position, self.is_open = 0, False
        while position < len(stmts):
            stmt = stmts[position]
            if not _multiplies(stmt, self.sums):
                position += 1
            elif _only_multiplies(stmt, self.sums):
                position = self._surround(stmts, position)
            else:
                stmts[position] = self.visit(stmt)
                position, self.is_open = position + 1, False
        return dataclasses.replace(seq, stmts=tuple(stmts))

    def visit_for(self, stmt: For) -> Stmt:
        return self._loop(stmt)

    def visit_while(self, stmt: nodes.While) -> Stmt:
        return self._loop(stmt)

    def _loop(self, stmt: Stmt) -> Stmt:
        self.loops += 1
        rebuilt = self.rebuild(stmt)
        self.loops -= 1
        return rebuilt

    def rebuild(self, stmt: Stmt) -> Stmt:
        """Return a statement whose body is a single one rebuilt as if that were a sequence."""
        if any(isinstance(c, Gemm) for c in children(stmt)) and not isinstance(stmt, Seq):
            stmt = _WithSequences().rebuild(stmt)
        return super().rebuild(stmt)

    def _surround(self, stmts: list[Stmt], position: int) -> int:
        """Rewrite one statement and its surroundings; return where to go on."""
        stmt = stmts[position]
        before: list[Stmt] = []
        cleared = None if self.is_open else self._cleared(stmts, position)
        clear: Expr | None = None
        if not (self.is_only_summed or self.is_open or _drops(stmt)):
            clear = _first_turn(stmt, self.sums) if cleared is not None else None
            if cleared is not None and clear is None:
                before.append(Fill(whole(self.tile), const(0, self.tile.dtype), stmt.span))
            elif cleared is None:
                before.append(Copy(whole(self.sums), whole(self.tile), span=stmt.span))
                self.is_stale |= self.is_left
        is_filled = any(isinstance(s, Copy) for s in before)
        rewritten = _Products(self.sums, self.tile, clear).visit(stmt)
        if cleared is not None:
            del stmts[cleared]
            position -= 1
        later = (s for s in stmts[position + 1 :] if _touches(s, self.sums))
        following = next(later, None)
        self.is_open = following is not None and _only_multiplies(following, self.sums)
        after = [] if self.is_open else self._read_out(stmts, position, following)
        if not after and not self.is_open and following is not None:
            self.is_left = True
            self.is_stale |= is_filled and self.loops > 0
        stmts[position : position + 1] = [*before, rewritten, *after]
        return position + len(before) + 1 + len(after)

    def _cleared(self, stmts: list[Stmt], position: int) -> int | None:
        """Return the statement that sets the sums to zero right before, if that is all it does."""
        for number in reversed(range(position)):
            stmt = stmts[number]
            if not _touches(stmt, self.sums) or isinstance(stmt, Alloc):
                continue
            if isinstance(stmt, Fill) and covers_whole(stmt.dst) and is_zero(stmt.value):
                return number
            return None
        return None

    def _read_out(self, stmts: list[Stmt], position: int, following: Stmt | None) -> list[Stmt]:
        """Return what takes the sums out; a copy that alone reads them is replaced in ``stmts``."""
        span = stmts[position].span
        readers = [
            s for s in walk(self.launch.body) if self.sums in reads(s) and not isinstance(s, Gemm)
        ]
        if not readers:
            return []
        (reader, *others) = readers
        places = [n for n, s in enumerate(stmts) if s is reader and n > position]
        is_elsewhere = others or not places or self.takes_out or reader is not following
        if is_elsewhere or not isinstance(reader, Copy) or not _is_matrix(reader):
            return [Copy(whole(self.tile), whole(self.sums), span=span)]
        stmts[places[0] : places[0] + 1] = self._parts(reader)
        return []

    def _parts(self, copy: Copy) -> list[Stmt]:
        """Return a copy of the sums as copies of some columns each."""
        rows, columns = self.tile.static_shape or (0, 0)
        most = PART_COLUMNS * self.groups // max(1, rows // LANES)
        if rows == HALF_LANES:
            most *= 2  # two threads share a row
        width = next(
            w for w in range(min(columns, most), 0, -1) if columns % w == 0 and w % 16 == 0
        )
        found: list[Stmt] = []
        part = Buffer(
            f"{self.sums.name}_part", (const(rows), const(width)), self.sums.dtype, "fragment",
            span=copy.span,
        )  # fmt: skip
        found.append(Alloc(part, copy.span))
        for start in range(0, columns, width):
            source = Region(self.tile, (const(0), const(start)), (const(rows), const(width)))
            found.append(Copy(source, whole(part), span=copy.span))
            target = _columns(copy.dst, start, width)
            found.append(dataclasses.replace(copy, src=whole(part), dst=target))
        return found


class _WithSequences(Rewriter):
    def visit(self, stmt: Stmt) -> Stmt:
        """Return a product as a sequence of one."""
        return Seq((stmt,), stmt.span) if isinstance(stmt, Gemm) else stmt


class _Products(Rewriter):
    """Products into a fragment become those into a tile; ``clear``: when the old sums go."""

    def __init__(self, sums: Buffer, tile: Buffer, clear: Expr | None) -> None:
        self.sums, self.tile, self.clear = sums, tile, clear

    def visit_gemm(self, gemm: Gemm) -> Stmt:
        if gemm.c.buffer is not self.sums:
            return gemm
        clear = gemm.clear_accum
        if self.clear is not None:
            clear = self.clear if _is_false(clear) else binary("or", clear, self.clear)
        tile = whole(self.tile)
        return dataclasses.replace(gemm, c=tile, clear_accum=clear, is_async=False)


def _threads(launch: KernelLaunch) -> int:
    count = 1
    for extent in launch.threads:
        count *= int_value(extent) or 1
    return count


def _touches(stmt: Stmt, buffer: Buffer) -> bool:
    return any(buffer in (*reads(s), *writes(s)) for s in walk(stmt))


def _multiplies(stmt: Stmt, sums: Buffer) -> bool:
    return any(isinstance(s, Gemm) and s.c.buffer is sums for s in walk(stmt))


def _only_multiplies(stmt: Stmt, sums: Buffer) -> bool:
    return all(isinstance(s, Gemm) or sums not in (*reads(s), *writes(s)) for s in walk(stmt))


def _is_false(value: Expr) -> bool:
    return isinstance(value, Const) and not value.value


def _drops(stmt: Stmt) -> bool:
    """Return whether a product surely drops the old sums."""
    return (
        isinstance(stmt, Gemm)
        and isinstance(stmt.clear_accum, Const)
        and bool(stmt.clear_accum.value)
    )


def _first_turn(stmt: Stmt, sums: Buffer) -> Expr | None:
    """Return the condition under which the one product of a statement is the first; None: unknown.

    It runs at least once, and nothing leaves out its first turn.
    """
    if isinstance(stmt, Gemm):
        return const(True)
    if not isinstance(stmt, For) or not isinstance(stmt.body, (Seq, Gemm)):
        return None
    known = [int_value(e) for e in (stmt.start, stmt.stop, stmt.step)]
    body = stmt.body.stmts if isinstance(stmt.body, Seq) else (stmt.body,)
    mine = [s for s in body if _multiplies(s, sums)]
    if len(mine) != 1 or not isinstance(mine[0], Gemm):
        return None
    if any(isinstance(s, nodes.Jump) for s in walk(stmt.body)):
        return None
    if any(k is None for k in known) or not range(*[k for k in known if k is not None]):
        return None
    return binary("eq", stmt.loop_var, stmt.start)


def _is_matrix(copy: Copy) -> bool:
    """Return whether a copy takes a whole matrix to two axes, the last of which is as long."""
    axes = kept_axes(copy.dst)
    return (
        covers_whole(copy.src)
        and len(axes) == 2
        and int_value(copy.dst.extents[axes[-1]]) == int_value(copy.src.extents[-1])
    )


def _columns(region: Region, start: int, width: int) -> Region:
    """Return some columns of a region of two axes."""
    axis = kept_axes(region)[-1]
    offsets, extents = list(region.offsets), list(region.extents)
    offsets[axis] = binary("add", offsets[axis], const(start))
    extents[axis] = const(width)
    return Region(region.buffer, tuple(offsets), tuple(extents))
