"""Parallel nests that compute a vector operand row by row, whose panels have lanes across the rows.

``b[n, k] = ...; gemm(a, b, c, transpose_B=True)``: neighbours that a nest computes together are
neighbours along K, those of a vector of the panel are along N. Square blocks are computed by rows,
transposed by shuffles and stored by columns, words of 32 bits at a time: groups along K stay
together. Rows that decode codes with one table go through several blocks at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.storage import Storage
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Var, binary, const, int_value
from tilecore.ir.nodes import Parallel, Seq, Store
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.nests.entry_nest import Coded, EntryNestLowering, coded
from tilecore.lowering.cpu.nests.lets import inlined
from tilecore.lowering.cpu.nests.nest import NestLowering, lanes_of
from tilecore.lowering.cpu.place import Place
from tilecore.lowering.cpu.scalar import memory_type
from tilecore.lowering.cpu.shuffles import transpose
from tilecore.lowering.tir import SLOT_BYTES, add, mul, vector_type
from tilecore.target import Target

WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A nest's store, and how many rows and columns of it are computed and moved together."""

    store: Store
    rows: int
    columns: int


def _blocks(nest: Parallel, accessor: Accessor, target: Target) -> _Blocks | None:
    """Return how a nest goes by blocks; None: it is not one that this module lowers."""
    body = nest.body.stmts if isinstance(nest.body, Seq) else (nest.body,)
    store, extents = body[-1], [int_value(extent) for extent in nest.extents]
    if not isinstance(store, Store) or len(extents) != 2 or None in extents:
        return None
    place = accessor.places.get(store.buffer)
    if place is None or place.memory is None or place.shift or place.pairs is not None:
        return None
    storage = place.storage
    if not isinstance(storage, Storage) or storage.kind != "panels" or storage.axis != 0:
        return None
    if any(index is not var for index, var in zip(store.indices, nest.loop_vars, strict=True)):
        return None
    if DType(storage.dtype).itemsize * storage.group != WORD_BYTES:
        return None
    rows, size = target.lanes("int32"), target.lanes("int32") * storage.group
    is_whole = not (extents[0] or 0) % rows and not (extents[1] or 0) % size
    return _Blocks(store, rows, size) if is_whole else None


def fills_panels(nest: Parallel, accessor: Accessor, target: Target) -> bool:
    """Return whether a nest is one that this module lowers."""
    found = _blocks(nest, accessor, target)
    return found is not None and PanelNestLowering.computes(nest, accessor, target, found)


class PanelNestLowering(NestLowering):
    """Emits one nest over (N, K) that fills a tile of panels along N."""

    @staticmethod
    def computes(nest: Parallel, accessor: Accessor, target: Target, blocks: _Blocks) -> bool:
        """Return whether rows of blocks can be computed in vectors."""
        made = PanelNestLowering(accessor, target, lambda stmt: None)
        nest, lanes = inlined(nest), lanes_of(nest.body, target)
        if lanes == 1 or blocks.columns % lanes:
            return False
        before = accessor.places[blocks.store.buffer]
        accessor.places[blocks.store.buffer] = made.block_place(before, None, blocks)
        found = made._vectorises(nest, nest.loop_vars[1], lanes)
        accessor.places[blocks.store.buffer] = before
        return found

    def emit(self, nest: Parallel) -> None:
        """Emit loops over blocks."""
        accessor, builder = self.accessor, self.builder
        blocks = _blocks(nest, accessor, self.target)
        assert blocks is not None
        nest, lanes = inlined(nest), lanes_of(nest.body, self.target)
        extents = [int_value(extent) or 0 for extent in nest.extents]
        for var, extent in zip(nest.loop_vars, extents, strict=True):
            accessor.tops[var] = const(extent)
        row, column = nest.loop_vars
        accessor.ranges[row] = (0, extents[0] - 1)
        tile = accessor.places[blocks.store.buffer]
        run = self._run(nest, tile, blocks)
        wide = blocks if run is None else replace(blocks, columns=run.run)
        memory = builder.alloc(
            wide.rows * wide.columns, memory_type(tile.storage.dtype), "block", on_stack=True
        )
        outer, inner = builder.loop(extents[0] // wide.rows), extents[1] // wide.columns
        with outer as p, builder.loop(inner) as q:
            corner = (mul(p, wide.rows), mul(q, wide.columns))
            for var, value in zip(self.corner, corner, strict=True):
                accessor.assign(var, value)
            accessor.places[blocks.store.buffer] = self.block_place(tile, memory, wide)
            with builder.loop(wide.rows) as i:
                accessor.assign(row, add(accessor.values[self.corner[0]], i))
                start = accessor.values[self.corner[1]]
                if run is not None:
                    accessor.ranges[column] = (0, extents[1] - 1)
                    EntryNestLowering(accessor, self.target, self.statement).emit_run(
                        run, column, start
                    )
                for first in range(0, 0 if run is not None else blocks.columns, lanes):
                    at = builder.bind(add(start, first))
                    self._vector(nest, column, at, lanes, (0, extents[1] - 1))
            accessor.places[blocks.store.buffer] = tile
            for first in range(0, wide.columns, blocks.columns):
                self._move(tile, memory, blocks, wide.columns, first)
        for var in (*nest.loop_vars, *self.corner):
            for known in (accessor.values, accessor.ranges, accessor.tops):
                known.pop(var, None)

    def _run(self, nest: Parallel, tile: Place, blocks: _Blocks) -> Coded | None:
        """Return what rows of several blocks decode with one table each; None: nothing."""
        places = self.accessor.places
        places[blocks.store.buffer] = self.block_place(tile, tile.memory, blocks)
        found = coded(nest, self.accessor)
        places[blocks.store.buffer] = tile
        if found is None:
            return None
        row_bytes = blocks.rows * DType(memory_type(tile.storage.dtype)).itemsize
        run = found.run
        while run * row_bytes > SLOT_BYTES:
            run //= 2
        return replace(found, run=run) if run % blocks.columns == 0 else None

    corner = Var("n0"), Var("k0")  # of the block, in the tile

    def block_place(self, tile: Place, memory: Any, blocks: _Blocks) -> Place:
        """Return the place of a tile of which only the block at ``corner`` is accessed."""
        shape, shift = (blocks.rows, blocks.columns), (binary("mul", v, -1) for v in self.corner)
        storage = Storage(shape, tile.storage.dtype, "rows", blocks.columns)
        return replace(tile, memory=memory, storage=storage, base=0, shift=(*shift,), axes=(0, 1))

    def _move(self, tile: Place, memory: Any, blocks: _Blocks, step: int, first: int) -> None:
        """Emit the transposition of a block, from column ``first`` of rows ``step`` long."""
        builder, storage = self.builder, tile.storage
        assert isinstance(storage, Storage)
        kind, count = memory_type(storage.dtype), blocks.rows * storage.group
        word = vector_type("float32" if storage.group == 1 else "int32", blocks.rows)
        rows = [builder.load(memory, i * step + first, count) for i in range(blocks.rows)]
        if storage.group > 1:
            rows = [tir.reinterpret(word, part) for part in rows]
        columns = transpose(builder, [builder.bind(part) for part in rows], blocks.rows)
        n, k = self.corner
        offset, _ = self.accessor.offset(tile, (n, binary("add", k, first)), of_vector=True)
        offset, apart = builder.bind(offset), storage.width * storage.group
        for i, part in enumerate(columns):
            raw = tir.reinterpret(vector_type(kind, count), part) if storage.group > 1 else part
            builder.store(tile.memory, raw, add(offset, i * apart), count)
