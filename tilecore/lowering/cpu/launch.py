"""A kernel launch in TIR for CPUs: the blocks of a grid run in one parallel loop over the cores."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.grain import blocks_of_a_share, tiles_of_a_share
from tilecore.inference.cpu.plan import DOTS, PANELS, SUMS, LaunchPlan, TilePlan
from tilecore.ir.analysis import kept_axes, pads
from tilecore.ir.arithmetic.bounds import NON_NEGATIVE, ends
from tilecore.ir.arithmetic.trips import trip_count
from tilecore.ir.expr import Expr, Var, cast, int_value
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
    Let,
    Pad,
    Parallel,
    Print,
    Reduce,
    Scan,
    Seq,
    Stmt,
    Store,
    While,
)
from tilecore.ir.plain.nests import copy_nest, fill_nest
from tilecore.ir.plain.updates import plain_updates
from tilecore.ir.visitor import has_jump, walk
from tilecore.lowering.cpu import stream
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.atomic import emit_atomic
from tilecore.lowering.cpu.copy import Box, is_pack, is_row_copy, packing_tasks, row_copy
from tilecore.lowering.cpu.fold import FoldLowering
from tilecore.lowering.cpu.gemm.amx import TileLowering, configured
from tilecore.lowering.cpu.gemm.computed import ComputedLowering
from tilecore.lowering.cpu.gemm.dot import DotLowering
from tilecore.lowering.cpu.gemm.few_rows import DotsLowering, SumsLowering
from tilecore.lowering.cpu.gemm.groups import packer_for
from tilecore.lowering.cpu.gemm.packed_gemm import GemmLowering
from tilecore.lowering.cpu.gemm.strided import box_place
from tilecore.lowering.cpu.nests.code_nest import CodeNestLowering, decodes
from tilecore.lowering.cpu.nests.entry_nest import EntryNestLowering, coded
from tilecore.lowering.cpu.nests.fused import FusedLowering
from tilecore.lowering.cpu.nests.group_nest import GroupNestLowering, fills_groups
from tilecore.lowering.cpu.nests.nest import NestLowering
from tilecore.lowering.cpu.nests.panel_nest import PanelNestLowering, fills_panels
from tilecore.lowering.cpu.nests.transposed import TransposedLowering, transposes
from tilecore.lowering.cpu.nests.window_nest import WindowLowering, window_of
from tilecore.lowering.cpu.output import Assertions, emit_print
from tilecore.lowering.cpu.place import Place
from tilecore.lowering.cpu.scalar import memory_type
from tilecore.lowering.cpu.scan import RowScanLowering
from tilecore.lowering.cpu.views import bind_let, declare
from tilecore.lowering.tir import add, maximum, minimum, mul, quotient, remainder
from tilecore.target import Target

FORMS = {PANELS: GemmLowering, DOTS: DotsLowering, SUMS: SumsLowering}
TASKS = 512  # most tasks of a launch: each takes some blocks, memory for their tiles and a fence


class LaunchLowering:
    """Emits one launch: what is packed for all blocks, then the blocks."""

    def __init__(
        self, accessor: Accessor, plan: LaunchPlan, target: Target, kept: Mapping[Buffer, Any]
    ) -> None:
        self.accessor, self.builder = accessor, accessor.builder
        self.plan, self.launch, self.target = plan, plan.launch, target
        self.packed: dict[Buffer, Any] = dict(kept)
        self.assertions = Assertions(self.builder, plan.launch)
        self.grain = blocks_of_a_share(plan.launch)
        self.awaited = {  # tensors whose place is known only within the launch
            s.buffer for s in walk(plan.launch)
            if isinstance(s, Alloc) and s.buffer.scope == "global"
        }  # fmt: skip
        self.extents: dict[Var, Any] = {}  # of the grid, once it is known
        self.alone: Any = None  # whether one thread runs all blocks, where that may be of use

    def emit(self) -> None:
        """Emit the packing phases, then the grid; nothing for a grid known to be empty."""
        if any(int_value(e) == 0 for e in self.launch.grid):
            return
        grid = [self._extent(e) for e in self.launch.grid]
        self.extents = dict(zip(self.launch.block_vars, grid, strict=True))
        for tile in self.plan.tiles.values():
            if tile.placement == "grid" and not tile.is_kept:
                dtype = memory_type(tile.storage.dtype)
                memory = self.builder.alloc(tile.packed_size, dtype, f"{tile.buffer.name}_packed")
                self.packed[tile.buffer] = memory
                self._pack(tile)
        self.accessor.pads = pads(self.launch)
        blocks: Any = 1
        for extent in grid:
            blocks = mul(blocks, extent)
        share = -(-blocks // TASKS) if isinstance(blocks, int) else 1
        tasks = -(-blocks // share) if isinstance(blocks, int) else blocks
        team = self._team(maximum(1, quotient(add(blocks, self.grain - 1), self.grain)))
        with self.builder.shared_loop(tasks, team) as task:
            first = mul(task, share)
            count: Any = share
            if isinstance(blocks, int) and blocks % share:
                count = self.builder.bind(minimum(share, add(blocks, mul(first, -1))))
            configuration = configured(self.accessor, self._tile_shape())
            with configuration, self._blocks(first, count) as block:
                self._block(block if blocks != 1 else 0, grid)
            if any(place.stream_bytes for place in self.accessor.places.values()):
                stream.fence(self.builder)
        self.assertions.finish()

    def _team(self, team: Any) -> Any:
        """Return how many threads may run the grid; find out whether it is one, if that matters."""
        if not any(isinstance(s, Atomic) for s in walk(self.launch.body)):
            return team
        if isinstance(team, int) and team == 1:
            self.alone = True
            return team
        self.alone = tir.NE(self.builder.bind(tir.call_extern("int32", "tilecore_alone")), 0)
        return tir.Select(self.alone, 1, team)

    @contextmanager
    def _blocks(self, first: Any, count: Any) -> Iterator[Any]:
        """Open the loop over the blocks of a task."""
        if count == 1:
            yield first
            return
        with self.builder.loop(count, start=self.builder.bind(first)) as block:
            yield block

    def _block(self, block: Any, grid: list[Any]) -> None:
        """Emit what the block of this number does."""
        rest = block
        for var, extent, top in zip(self.launch.block_vars, grid, self.launch.grid, strict=True):
            last = var is self.launch.block_vars[-1]
            self.accessor.assign(var, rest if last else remainder(rest, extent))
            bounds = self.accessor.bounds(top)
            last_index = NON_NEGATIVE[1] if bounds is None else min(bounds[1] - 1, NON_NEGATIVE[1])
            self.accessor.ranges[var] = (0, max(0, last_index))
            self.accessor.tops[var] = top
            rest = quotient(rest, extent)
        counted = zip(self.launch.block_vars, grid, strict=True)
        self.accessor.box = next(((var, 1) for var, extent in counted if extent != 1), None)
        self.statement(self.launch.body)

    def _tile_shape(self) -> tuple[int, int] | None:
        """Return the rows and groups of tiles of the launch's products, if all have the same."""
        shapes = {plan.tile for plan in self.plan.gemms.values() if plan.tile is not None}
        return shapes.pop() if len(shapes) == 1 else None

    def _extent(self, expr: Expr) -> Any:
        """Return the number of blocks along an axis, as an int or in TIR."""
        value = int_value(expr)
        if value is not None:
            return value
        return self.builder.bind(maximum(0, self.accessor.scalar(cast(expr, "int32"))))

    # --- packing ------------------------------------------------------------------------------

    def pack_kept(self) -> None:
        """Emit the packing of what the caller keeps."""
        for tile in self.plan.tiles.values():
            if tile.is_kept:
                self._pack(tile)

    def _pack(self, tile: TilePlan) -> None:
        assert tile.source is not None
        copy, storage, memory = tile.source.copy, tile.storage, self.packed[tile.buffer]
        tiles: Any = 1
        for _, _, count in self._hoisted(tile):
            tiles = mul(tiles, count)
        tasks = packing_tasks(copy, storage)
        share = tiles_of_a_share(storage.size)
        team = mul(tiles, tasks) if share == 1 else quotient(add(tiles, share - 1), share)
        with self.builder.shared_loop(mul(tiles, tasks), team) as task:
            number, part = quotient(task, tasks), remainder(task, tasks)
            rest = number
            for var, first, count in reversed(self._hoisted(tile)):
                self.accessor.values[var] = self.builder.bind(add(first, remainder(rest, count)))
                rest = quotient(rest, count)
            for var, first, most in tile.hoist_vars:
                self.accessor.ranges[var] = (first, first + most - 1)
            place = Place(memory, storage, self.builder.bind(mul(number, storage.size)))
            self.accessor.places[tile.buffer] = place
            packer = packer_for(self.accessor, copy, self.target, place, skips_absent=True)
            packer.pack(part)
        for var, _, _ in tile.hoist_vars:
            self.accessor.values.pop(var)
            self.accessor.ranges.pop(var)
        del self.accessor.places[tile.buffer]

    def _hoisted(self, tile: TilePlan) -> list[tuple[Var, int, Any]]:
        """Return the variables of packed tiles, with their first values and how many there are.

        What the caller keeps was packed for as many as there may be.
        """
        now = {} if tile.is_kept else self.extents
        return [(v, first, now.get(v, most)) for v, first, most in tile.hoist_vars]

    def _packed_place(self, tile: TilePlan) -> Place:
        number: Any = 0
        for var, first, count in self._hoisted(tile):
            number = add(mul(number, count), add(self.accessor.values[var], -first))
        base = self.builder.bind(mul(number, tile.storage.size))
        return Place(self.packed[tile.buffer], tile.storage, base)

    # --- statements ---------------------------------------------------------------------------

    def statement(self, stmt: Stmt) -> None:
        """Emit one statement, or the nest that begins with it."""
        if stmt in self.plan.elided:
            return
        nest = self.plan.fused.get(stmt)
        if nest is None:
            self._single(stmt)
        elif stmt is nest.members[0]:
            FusedLowering(self.accessor, self.target, nest, self._single).emit()

    def _single(self, stmt: Stmt) -> None:  # noqa: C901 - one case per node
        match stmt:
            case Seq(stmts=stmts):
                self._sequence(stmts)
            case Alloc(buffer=buffer) if buffer in self.plan.tiles:
                self._alloc(self.plan.tiles[buffer])
            case Alloc(buffer=buffer):
                declare(self.accessor, buffer)
                self.awaited.discard(buffer)
                for tile in self.plan.tiles.values():
                    if _lies_in(tile) is buffer:
                        self._alloc(tile)
            case Copy():
                self._copy(stmt)
            case Fill():
                self._nest(fill_nest(stmt))
            case Gemm():
                self._gemm(stmt)
            case Scan() if RowScanLowering.suits(self.accessor, stmt, self.target):
                RowScanLowering(self.accessor, self.target, stmt).emit()
            case Reduce() | Scan():
                FoldLowering(self.accessor, self.target, stmt).emit()
            case Atomic():
                self._updating(stmt, lambda s: emit_atomic(self.accessor, s, self.target))
            case Parallel():
                self._updating(stmt, self._nest)
            case For():
                self._for(stmt)
            case If() | While():
                self._control(stmt)
            case Jump(word=word):
                self.builder.jump(word)
            case Store(buffer=buffer, indices=indices, value=value):
                lowered = self.accessor.value(value)
                self.accessor.store(buffer, indices, lowered, value.dtype, self.accessor.scope())
            case Let():
                bind_let(self.accessor, stmt)
            case Assert():
                self.assertions.emit(self.accessor, stmt)
            case Print():
                emit_print(self.accessor, stmt)
            case Annotate() | Pad():
                pass
            case _:
                raise AssertionError(f"no lowering for {type(stmt).__name__}")

    def _sequence(self, stmts: Sequence[Stmt]) -> None:
        """Emit statements; a fill that a window begins with is left to that."""
        begun: tuple[WindowLowering, Fill] | None = None  # the child that comes next
        for child, after in itertools.zip_longest(stmts, stmts[1:]):
            if begun is not None:
                window, fill = begun
                window.emit_window(fill)
                begun = None
                continue
            begun = self._begun_window(child, after)
            if begun is None:
                self.statement(child)

    def _begun_window(self, fill: Stmt, loop: Stmt | None) -> tuple[WindowLowering, Fill] | None:
        """Return a loop that is a window and the fill before, if it begins with what that does."""
        if not isinstance(fill, Fill) or not isinstance(loop, For):
            return None
        if fill in self.plan.elided or fill in self.plan.fused:
            return None
        window = self._window(loop)
        return (window, fill) if window is not None and window.begins_with(fill) else None

    def _control(self, stmt: If | While) -> None:
        cond = self.accessor.scalar(stmt.cond)
        if isinstance(stmt, While):
            with self.builder.loop_while(cond):
                self.statement(stmt.body)
            return
        with self.builder.when(cond):
            self.statement(stmt.then_body)
        if stmt.else_body is not None:
            with self.builder.otherwise():
                self.statement(stmt.else_body)

    def _alloc(self, tile: TilePlan) -> None:
        places = self.accessor.places
        if _lies_in(tile) in self.awaited:
            return
        if tile.placement in ("in_place", "staged"):
            assert tile.source is not None
            source = tile.source
            places[tile.buffer] = box_place(self.accessor, source.copy.src, source.axes)
        elif tile.placement == "output":
            assert tile.output is not None
            places[tile.buffer] = box_place(self.accessor, tile.output.region)
        elif tile.placement in ("block", "late"):
            size, dtype, name = tile.storage.size, memory_type(tile.storage.dtype), tile.buffer.name
            on_stack = not self.plan.gemms  # beside products only spilled registers lie there
            memory = self.builder.alloc(size, dtype, name, on_stack=on_stack)
            places[tile.buffer] = Place(memory, tile.storage, flushes=tile.flushes)
        elif tile.placement == "computed":
            places[tile.buffer] = Place(None, tile.storage)

    def _gemm(self, stmt: Gemm) -> None:
        plan = self.plan.gemms[stmt]
        tile = self.plan.tiles.get(stmt.b.buffer)
        if tile is not None and tile.placement == "grid":
            self.accessor.places[stmt.b.buffer] = self._packed_place(tile)
        if plan.nest is not None:
            ComputedLowering(self.accessor, plan, self.target, self.statement).emit()
            return
        is_grouped = plan.form == PANELS and plan.dot is not None
        kind = DotLowering if is_grouped else FORMS[plan.form]
        if plan.tile is not None:
            kind = TileLowering
        kind(self.accessor, plan, self.target).emit()

    def _for(self, stmt: For) -> None:
        window = self._window(stmt)
        if window is not None:
            window.emit_window()
            return
        start, stop = int_value(stmt.start), int_value(stmt.stop)
        step = int_value(stmt.step)
        first: Any = start if start is not None else self.accessor.scalar(cast(stmt.start, "int32"))
        if start is not None and stop is not None and step is not None:
            values = range(start, stop, step)
            if len(values) == 1 and not has_jump(stmt.body):
                self._iteration(stmt, start, (start, start))
                return
            count: Any = len(values)
            bounds = ends(values) if values else (start, start)
        else:
            trips = self.accessor.scalar(cast(trip_count(stmt), "int32"))
            count = self.builder.bind(maximum(0, trips))
            low, high = self.accessor.bounds(stmt.start), self.accessor.bounds(stmt.stop)
            known = step == 1 and low is not None and high is not None
            bounds = (low[0], max(low[0], high[1] - 1)) if known and low and high else None  # type: ignore[assignment]
        distance: Any = step
        if step is None:
            distance = self.builder.bind(self.accessor.scalar(cast(stmt.step, "int32")))
        box = self.accessor.box
        with self.builder.loop(count) as index:
            self.accessor.box = (stmt.loop_var, step) if step is not None else None
            self._iteration(stmt, add(first, mul(index, distance)), bounds)
            self.accessor.box = box

    def _window(self, stmt: For) -> WindowLowering | None:
        """Return what emits a loop inside of the nest that it is around; None: it runs outside."""
        if any(s in self.plan.elided or s in self.plan.fused for s in walk(stmt)):
            return None
        return window_of(stmt, self.accessor, self.target, self.statement)

    def _iteration(self, stmt: For, value: Any, bounds: tuple[int, int] | None) -> None:
        self.accessor.assign(stmt.loop_var, value)
        if bounds is not None:
            self.accessor.ranges[stmt.loop_var] = bounds
        if (int_value(stmt.step) or 0) > 0:
            self.accessor.tops[stmt.loop_var] = stmt.stop
        self.statement(stmt.body)
        self.accessor.ranges.pop(stmt.loop_var, None)
        self.accessor.tops.pop(stmt.loop_var, None)
        self.accessor.values.pop(stmt.loop_var, None)

    # --- updates ------------------------------------------------------------------------------

    def _updating(self, stmt: Any, emit: Callable[[Any], None]) -> None:
        """Emit a statement, once more without atomic updates for one thread if it has some."""
        alone, plain = self.alone, stmt
        if alone is not None:
            plain = plain_updates(stmt, self._may_be_plain)
        if plain is stmt:
            emit(stmt)
            return
        if alone is True:
            self._single(plain)
            return
        self.alone = None
        with self.builder.when(alone):
            self._single(plain)
        with self.builder.otherwise():
            emit(stmt)
        self.alone = alone

    def _may_be_plain(self, stmt: Atomic) -> bool:
        """Return whether loads and stores do what one thread's update does.

        What an update outside of a tensor gives is 0; a load may give something else.
        """
        place = self.accessor.places[stmt.buffer]
        is_open = bool(self.accessor.open_ends(place, place.indices(stmt.indices)))
        is_padded = stmt.buffer in self.accessor.pads
        return not is_padded and not (is_open and stmt.prev is not None)

    # --- nests ---------------------------------------------------------------------------------

    def _copy(self, stmt: Copy) -> None:
        accessor = self.accessor
        axes = len(kept_axes(stmt.src))
        is_box = axes in (1, 2) and axes == len(kept_axes(stmt.dst))
        if is_box and stmt.src.buffer not in accessor.pads:
            source, dest = Box(accessor, stmt.src), Box(accessor, stmt.dst)
            if is_pack(stmt, source, dest):
                place = accessor.places[stmt.dst.buffer]
                is_known = self.plan.tiles[stmt.dst.buffer].source is not None
                packer = packer_for(accessor, stmt, self.target, place, is_known)
                with self.builder.loop(packing_tasks(stmt, packer.storage)) as task:
                    packer.pack(task)
                return
            if is_row_copy(source, dest):
                tile = self.plan.tiles.get(stmt.dst.buffer)
                row_copy(accessor, stmt, self.target, tile is not None and tile.skips_absent)
                return
        self._nest(copy_nest(stmt))

    def _nest(self, nest: Parallel) -> None:
        if nest.loop_vars:
            kind: type[NestLowering] = NestLowering
            if fills_groups(nest, self.accessor):
                kind = GroupNestLowering
            elif decodes(nest, self.accessor):
                kind = CodeNestLowering
            elif fills_panels(nest, self.accessor, self.target):
                kind = PanelNestLowering
            elif transposes(nest, self.accessor):
                kind = TransposedLowering
            elif coded(nest, self.accessor) is not None:
                kind = EntryNestLowering
            kind(self.accessor, self.target, self.statement).emit(nest)
        else:
            self.statement(nest.body)


def _lies_in(tile: TilePlan) -> Buffer | None:
    """Return the tensor that a tile is a box of, None if it has memory of its own."""
    if tile.placement in ("in_place", "staged") and tile.source is not None:
        return tile.source.copy.src.buffer
    return tile.output.region.buffer if tile.placement == "output" and tile.output else None
