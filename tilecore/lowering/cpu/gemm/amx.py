"""T.gemm of bfloat16 and 8-bit integers on the tiles of AMX.

Four tiles of sums (2 x 2, each up to 16 rows of 16 lanes) stay in tile registers over the whole of
K; a step loads two tiles of each operand: of a as it lies in rows, of b from panels of groups. Sums
go to and from memory by tile where all of them exist, else through scratch memory.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu import gemm_order
from tilecore.inference.cpu.dots import Dot
from tilecore.inference.cpu.plan import GemmPlan
from tilecore.inference.cpu.storage import CACHE_LINE_BYTES, Storage
from tilecore.ir.dtype import DType
from tilecore.lowering.cpu import prefetch
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.functions.bfloat16 import Pairs
from tilecore.lowering.cpu.gemm.amx_text import (
    DECLARATIONS,
    LANES,
    RELEASE,
    RELEASE_TEXT,
    WORD_BYTES,
    configure_text,
    move_text,
    products_text,
)
from tilecore.lowering.cpu.gemm.packed_gemm import GemmLowering, known_truth
from tilecore.lowering.cpu.gemm.strided import Strided
from tilecore.lowering.cpu.place import LaneMask, Place, vector_load, vector_store
from tilecore.lowering.tir import TirBuilder, add, index, mul, quotient
from tilecore.target import Target


@contextlib.contextmanager
def configured(accessor: Accessor, tile: tuple[int, int] | None) -> Iterator[None]:
    """Set tiles of ``tile`` rows and groups up for what is inside, unless they are (None: do not).

    It takes some 60 ns, as long as ten products of tiles.
    """
    if tile is None or accessor.tile_shape == tile:
        yield
        return
    _call(accessor.builder, *configure_text(*tile))
    before, accessor.tile_shape = accessor.tile_shape, tile
    yield
    accessor.tile_shape = before
    if before is None:
        _call(accessor.builder, RELEASE, RELEASE_TEXT)
    else:
        _call(accessor.builder, *configure_text(*before))


def _call(builder: TirBuilder, name: str, text: str, *arguments: Any) -> None:
    prefetch.declare(builder)
    builder.define_llvm("amx", DECLARATIONS)
    builder.define_llvm(name, text)
    builder.evaluate(tir.call_extern("int32", name, *arguments))


class TileLowering(GemmLowering):
    """Emits one gemm whose plan names an instruction on tiles."""

    def __init__(self, accessor: Accessor, plan: GemmPlan, target: Target) -> None:
        super().__init__(accessor, plan, target)
        assert plan.dot is not None
        assert plan.tile is not None
        self.dot, (self.tile_rows, self.tile_groups) = plan.dot, plan.tile
        step = self.dot.group * self.tile_groups  # elements of K
        self.steps = self.builder.bind(quotient(add(self.depth, step - 1), step))
        self.scratch: Any = None

    def emit(self) -> None:
        """Emit all panels, between setting tiles up and giving them back if the block did not."""
        size = self.plan.micro_m * self.plan.micro_n * LANES
        with self.builder.scope():
            self.scratch = Place(
                self.builder.alloc(size, self.accum, "sums"), Storage((size,), self.accum)
            )
            with configured(self.accessor, self.plan.tile):
                super().emit()

    def _call(self, name: str, text: str, *arguments: Any) -> None:
        _call(self.builder, name, text, *arguments)

    # --- which sums ---------------------------------------------------------------------------

    def _row_groups(self) -> Iterator[tuple[Any, int]]:
        largest = self.plan.micro_m
        for size, first in ((largest, 0), (self.plan.m % largest, self.plan.m // largest)):
            if not size:
                continue
            with self.builder.loop(1 if first else self.plan.m // largest) as group:
                yield self.builder.bind(mul(add(first, group), largest)), size

    def _sums(self, panel: Any, column: Any, row: Any, size: int, count: int) -> None:
        """Emit one group of tiles by one panel, where its rows exist."""
        if self.rows is None:
            self._tiles(panel, column, row, size, count)
            return
        with self.builder.when(tir.LT(index(row), index(self.rows))):
            self._tiles(panel, column, row, size, count)

    def _tiles(self, panel: Any, column: Any, row: Any, size: int, count: int) -> None:
        """Emit the sums directly, through scratch memory, or as it turns out."""
        place = self.c.place
        if self.in_output or place.storage.dtype != self.accum:
            self._through_scratch(panel, column, row, size, count)
        elif all(self._mask(column, j) is None for j in range(count)):
            self._direct(panel, column, row, size, count)
        else:
            end = add(column, count * LANES)
            with self.builder.when(tir.LE(index(end), index(self.plan.n))):
                self._direct(panel, column, row, size, count)
            with self.builder.otherwise():
                self._through_scratch(panel, column, row, size, count)

    def _direct(self, panel: Any, column: Any, row: Any, size: int, count: int) -> None:
        """Emit sums that are kept in a tile of whole rows and vectors."""
        at = self.builder.bind(self.c.at(row, column))
        memory = self._address(self.c.place.memory, at), self._bytes(self.c.row, self.accum)
        self._start_tiles(memory, size, count, lambda: None)
        self._products_of_tiles(panel, row, size, count)

        def write() -> None:
            assert self.late is not None
            self._move("store", self._scratch_memory(count), size, count)
            self._copy_out(self.late, self._late_mask, row, column, size, count)

        self._finish(lambda: self._move("store", memory, size, count), write)

    def _through_scratch(self, panel: Any, column: Any, row: Any, size: int, count: int) -> None:
        memory = self._scratch_memory(count)
        self._start_tiles(memory, size, count, lambda: self._fill(row, column, size, count))
        self._products_of_tiles(panel, row, size, count)
        self._move("store", memory, size, count)
        self._finish(
            lambda: self._copy_out(self.c, self._mask, row, column, size, count),
            lambda: self._copy_out(self.late, self._late_mask, row, column, size, count),
        )

    def _scratch_memory(self, count: int) -> tuple[Any, Any]:
        return self._address(self.scratch.memory, 0), _i64(count * LANES * WORD_BYTES)

    def _fill(self, row: Any, column: Any, size: int, count: int) -> None:
        """Copy sums to scratch memory."""
        with self.builder.loop(self._row_count(row, size)) as i:
            for j in range(count):
                at, mask = self.c.at(add(row, i), add(column, j * LANES)), self._mask(column, j)
                value = vector_load(self.builder, self.c.place, at, LANES, self.accum, mask)
                to = add(mul(i, count * LANES), j * LANES)
                vector_store(self.builder, self.scratch, value, to, LANES)

    def _copy_out(
        self, target: Strided | None, mask_of: Callable[[Any, int], LaneMask | None],
        row: Any, column: Any, size: int, count: int,
    ) -> None:  # fmt: skip
        """Copy sums from scratch memory to ``target``."""
        assert target is not None
        place, pairs = target.place, Pairs(self.builder)
        if count == 2 and target.column == 1 and all(mask_of(column, j) is None for j in range(2)):
            place = replace(place, pairs=pairs)
        with self.builder.loop(self._row_count(row, size)) as i:
            for j in range(count):
                source = add(mul(i, count * LANES), j * LANES)
                value = vector_load(self.builder, self.scratch, source, LANES, self.accum)
                value = self._stored(value, place)
                at = target.at(add(row, i), add(column, j * LANES))
                vector_store(self.builder, place, value, at, LANES, mask_of(column, j))
            pairs.store()

    def _row_count(self, row: Any, size: int) -> Any:
        """Return how many rows of a group the output has."""
        if self.rows is None or not (self.in_output or self.late):
            return size
        return tir.Min(index(size), index(self.rows) - index(row))

    # --- tiles --------------------------------------------------------------------------------

    def _start_tiles(
        self, memory: tuple[Any, ...], size: int, count: int, fill: Callable[[], None]
    ) -> None:
        """Set the sums to 0 or to what ``fill`` leaves in memory."""
        clear = known_truth(self.gemm.clear_accum, self.accessor)
        if clear is True:
            self._move("zero", memory, size, count)
            return
        if clear is False:
            fill()
            self._move("load", memory, size, count)
            return
        with self.builder.when(self.accessor.scalar(self.gemm.clear_accum)):
            self._move("zero", memory, size, count)
        with self.builder.otherwise():
            fill()
            self._move("load", memory, size, count)

    def _move(self, what: str, memory: tuple[Any, ...], size: int, count: int) -> None:
        """Clear, load or store the tiles of sums."""
        tall = size // self.tile_rows
        name = f"tilecore_tile_{what}_{tall}x{count}"
        if what == "zero":
            memory = ()
        elif tall > 1:
            memory = (*memory, _i64(self.tile_rows))
        self._call(name, move_text(name, what, tall, count), *memory)

    def _products_of_tiles(self, panel: Any, row: Any, size: int, count: int) -> None:
        storage = self.b_place.storage
        assert isinstance(storage, Storage)
        tall, panel_size = size // self.tile_rows, storage.depth * storage.width
        first = self.builder.bind(add(self.b.base, mul(panel, panel_size)))
        lines, memory, ahead, apart, step = self._ahead(panel, first, row, size)
        passing = gemm_order.passing_operand(self.plan, LANES)
        name = f"tilecore_{self.dot.name}_{tall}x{count}_{lines}{passing}"
        steps = (
            tir.Cast("int64", self.steps) if not isinstance(self.steps, int) else _i64(self.steps)
        )
        self._call(
            name, products_text(name, self.dot.name, tall, count, lines, passing),
            self._address(self.a.place.memory, self.builder.bind(self.a.at(row, 0))),
            self._bytes(self.a.row, self.a.place.storage.dtype), _i64(self.tile_rows),
            self._address(self.b_place.memory, first),
            _i64(storage.width * WORD_BYTES), _i64(self.tile_groups), steps,
            self._address(memory, ahead), apart, _i64(step),
        )  # fmt: skip

    def _ahead(self, panel: Any, first: Any, row: Any, size: int) -> tuple[int, Any, Any, Any, int]:
        """Return what a step of the products fetches, a share of what is needed next.

        How many cache lines; memory and offset of those of the first step; bytes from one to the
        next, and from step to step.
        """
        storage, line = self.b_place.storage, CACHE_LINE_BYTES
        assert isinstance(storage, Storage)
        if self.stage is not None:
            source = self.stage.source
            ahead, share = self.stage.coming(panel, row, size)
            stride = self._bytes(source.row, source.place.storage.dtype)
            return share, source.place.memory, ahead, stride, self.tile_groups * WORD_BYTES
        if not self.plan.is_b_far or self.plan.rows_first:
            return 0, self.b_place.memory, first, _i64(0), 0
        panel_size = storage.depth * storage.width
        ahead = add(add(first, panel_size), mul(row, panel_size // self.plan.m))
        steps = -(-self.plan.k // (self.dot.group * self.tile_groups))
        bytes_of_group = panel_size * DType(storage.dtype).itemsize * size / self.plan.m
        lines = math.ceil(bytes_of_group / line / steps)
        return lines, self.b_place.memory, self.builder.bind(ahead), _i64(line), lines * line

    @staticmethod
    def _address(memory: Any, offset: Any) -> Any:
        return tir.address_of(tir.BufferLoad(memory, [index(offset)]))

    @staticmethod
    def _bytes(elements: Any, dtype: str) -> Any:
        """Return a distance between rows in bytes."""
        size = DType(dtype).itemsize
        if isinstance(elements, int):
            return _i64(elements * size)
        return tir.Cast("int64", elements) * _i64(size)


def emit_products(
    builder: TirBuilder, dot: Dot, operands: Any, out: Any, times: Any, depth: int
) -> None:
    """Emit ``times`` products of two tiles by two of ``operands``, each ``depth`` tiles deep."""
    row = depth * LANES * WORD_BYTES
    half = 2 * LANES * depth * LANES  # words of one operand

    def call(name: str, text: str, *arguments: Any) -> None:
        builder.define_llvm("amx", DECLARATIONS)
        builder.define_llvm(name, text)
        builder.evaluate(tir.call_extern("int32", name, *arguments))

    def address(memory: Any, offset: int) -> Any:
        return tir.address_of(tir.BufferLoad(memory, [index(offset)]))

    call(*configure_text(LANES, LANES))
    call("tilecore_zero", move_text("tilecore_zero", "zero", 2, 2))
    name = "tilecore_products"
    with builder.loop(times):
        call(
            name, products_text(name, dot.name, 2, 2, 0, ""), address(operands, 0), _i64(row),
            _i64(LANES), address(operands, half), _i64(2 * LANES * WORD_BYTES), _i64(LANES),
            _i64(depth), address(operands, 0), _i64(0), _i64(0),
        )  # fmt: skip
    name = "tilecore_store"
    call(
        name, move_text(name, "store", 2, 2), address(out, 0), _i64(2 * LANES * WORD_BYTES),
        _i64(LANES),
    )  # fmt: skip
    call(RELEASE, RELEASE_TEXT)


def _i64(value: int) -> Any:
    return tir.IntImm("int64", value)
