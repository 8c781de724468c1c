"""T.copy between tensors and tiles: row copies, packing into panels, transposing packs.

Elements outside the source tensor become 0 in the tile; elements outside the destination tensor
are not written. What none of the fast paths covers is lowered as a parallel nest (see nest.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.storage import CACHE_LINE_BYTES, Storage
from tilecore.ir.analysis import covers_whole, kept_axes
from tilecore.ir.arithmetic.bounds import begins_inside
from tilecore.ir.dtype import DType
from tilecore.ir.expr import int_value
from tilecore.ir.nodes import Copy, Region
from tilecore.lowering.cpu.access import INT32_MAX, Accessor
from tilecore.lowering.cpu.place import Place, vector_load, vector_store
from tilecore.lowering.cpu.scalar import convert, kept, zero
from tilecore.lowering.cpu.shuffles import transpose
from tilecore.lowering.tir import TirBuilder, add, index, maximum, minimum, mul, quotient
from tilecore.target import Target

PIECE_BYTES = 256  # of a row, read at once by packing
# Of each row that is transposed, read before the rows of the next lanes of a panel. On Zen 3
# (benchmarks/packing.py, 2026-11-23) all widths of panels are alike with 16; with 1, three and four
# vectors took up to 2.2 times as long.
LINES_PER_RUN = 16


class Box:
    """The two varying axes of a region: extents, strides, offset of the first element, limits."""

    def __init__(self, accessor: Accessor, region: Region) -> None:
        self.place = accessor.places[region.buffer]
        self.axes = kept_axes(region)
        storage = self.place.storage
        self.extents = tuple(int_value(region.extents[a]) or 0 for a in self.axes)
        self.limits = tuple(self._limit(accessor, region, a) for a in self.axes)
        self.steps = tuple(accessor.step(self.place, a) for a in self.axes)
        self.starts_inside = not self.place.guarded or begins_inside(
            region.offsets, storage.shape, self.axes, accessor.known
        )
        self.dtype = str(region.buffer.dtype)

    @property
    def is_contiguous(self) -> bool:
        """Whether neighbours along the last varying axis lie side by side."""
        last = len(self.place.storage.shape) - 1
        return bool(self.axes) and self.axes[-1] == last and self.steps[-1] == 1

    def _limit(self, accessor: Accessor, region: Region, axis: int) -> Any | None:
        """Return how many elements along ``axis`` exist (None: all; may exceed the extent)."""
        if not self.place.guarded:
            return None
        size, offset = self.place.storage.shape[axis], region.offsets[axis]
        if isinstance(size, int) and size <= INT32_MAX:
            last = accessor.bounds(offset + region.extents[axis])
            if last is not None and last[1] <= size:
                return None
            if offset.dtype == "int32":
                rest = tir.IntImm("int32", size) - accessor.scalar(offset)
                return accessor.builder.bind(maximum(0, rest))
        rest = accessor.count(size - offset, int_value(region.extents[axis]) or INT32_MAX)
        return accessor.builder.bind(maximum(0, rest))


def is_row_copy(source: Box, target: Box) -> bool:
    """Return whether both sides are boxes with a contiguous last axis of whole-row storage."""
    contiguous = all(
        b.place.storage.kind != "panels"
        and not b.place.shift
        and b.is_contiguous
        and b.starts_inside
        for b in (source, target)
    )
    one_side = not (source.place.guarded and target.place.guarded)
    return contiguous and one_side and 1 <= len(source.axes) <= 2 and _same_extents(source, target)


def is_pack(copy: Copy, source: Box, target: Box) -> bool:
    """Return whether the copy fills all panels of a tile from a tensor."""
    storage = target.place.storage
    if not isinstance(storage, Storage) or storage.kind != "panels":
        return False
    return (
        len(source.axes) == 2
        and target.axes == (0, 1)
        and covers_whole(copy.dst)
        and source.place.guarded
        and source.starts_inside
        and source.is_contiguous
        and _same_extents(source, target)
        and (storage.group == 1 or source.dtype == copy.dst.buffer.dtype)
    )


def _same_extents(source: Box, target: Box) -> bool:
    return source.extents == target.extents and all(source.extents)


def row_copy(accessor: Accessor, copy: Copy, target: Target, skips_absent: bool = False) -> None:
    """Emit a copy of rows; the side that is a tensor gives the limits.

    ``skips_absent``: nobody reads rows that lie outside the tensor, they need not be 0.
    """
    builder = accessor.builder
    source, dest = Box(accessor, copy.src), Box(accessor, copy.dst)
    lanes = target.lanes(max((source.dtype, dest.dtype), key=lambda d: DType(d).itemsize))
    fills = not dest.place.guarded
    bounds = source if source.place.guarded else dest
    rows = source.extents[0] if len(source.extents) == 2 else 1
    row_limit = bounds.limits[0] if len(source.extents) == 2 else None
    source_base, _ = accessor.offset(source.place, copy.src.offsets)
    dest_base, _ = accessor.offset(dest.place, copy.dst.offsets)
    source_base, dest_base = builder.bind(source_base), builder.bind(dest_base)
    steps = [box.steps[0] if len(box.axes) == 2 else 0 for box in (source, dest)]
    count = rows if row_limit is None else builder.bind(minimum(rows, row_limit))
    with builder.loop(count) as r:
        _one_row(
            builder, source, dest, bounds.limits[-1], lanes, fills,
            builder.bind(add(source_base, mul(r, steps[0]))),
            builder.bind(add(dest_base, mul(r, steps[1]))),
        )  # fmt: skip
    if fills and row_limit is not None and not skips_absent:
        with builder.loop(index(rows) - index(count), start=count) as r:
            _zero_row(builder, dest, add(dest_base, mul(r, steps[1])), 0, source.extents[-1], lanes)


def _one_row(
    builder: TirBuilder,
    source: Box,
    dest: Box,
    limit: Any | None,
    lanes: int,
    fills: bool,
    source_at: Any,
    dest_at: Any,
) -> None:
    extent = source.extents[-1]
    valid = extent if limit is None else builder.bind(minimum(extent, limit))

    kinds = {source.place.storage.dtype, dest.place.storage.dtype}
    is_raw = len(kinds) == 1 and not DType(source.dtype).is_packed and source.dtype == dest.dtype

    def move(position: Any, width: int) -> None:
        if is_raw and not dest.place.stream_bytes:  # bit by bit: rounding a bfloat16 takes long
            value = builder.load(source.place.memory, add(source_at, position), width)
            builder.store(dest.place.memory, value, add(dest_at, position), width)
            return
        value = vector_load(builder, source.place, add(source_at, position), width, source.dtype)
        value = kept(value, source.dtype, dest.dtype, dest.place.storage.dtype, width)
        vector_store(builder, dest.place, value, add(dest_at, position), width)

    whole = quotient(valid, lanes)
    with builder.loop(whole) as q:
        move(mul(q, lanes), lanes)
    if not isinstance(valid, int) or valid % lanes:
        done = mul(whole, lanes)
        with builder.loop(index(valid) - index(done), start=done) as q:
            move(q, 1)
    if fills and limit is not None:
        _zero_row(builder, dest, dest_at, valid, extent, lanes)


def _zero_row(
    builder: TirBuilder, dest: Box, dest_at: Any, start: Any, extent: int, lanes: int
) -> None:
    stored = dest.place.storage.dtype
    if isinstance(start, int) and extent % lanes == 0:
        with builder.loop(extent // lanes) as q:
            vector_store(
                builder, dest.place, zero(stored, lanes), add(dest_at, mul(q, lanes)), lanes
            )
        return
    with builder.loop(index(extent) - index(start), start=start) as q:
        vector_store(builder, dest.place, zero(stored), add(dest_at, q), 1)


def packing_tasks(copy: Copy, storage: Storage) -> int:
    """Return how many parts the packing of a tile has (see ``PanelPacker.pack``)."""
    return -(-_panels(storage) // _together(copy, storage))


def _panels(storage: Storage) -> int:
    return -(-storage.shape[storage.axis] // storage.width)


def _together(copy: Copy, storage: Storage) -> int:
    """Return how many panels are packed at once: short pieces of many rows come in slowly."""
    piece = storage.width * copy.src.buffer.dtype.itemsize
    return 1 if storage.axis == 0 else max(1, min(_panels(storage), PIECE_BYTES // piece))


class PanelPacker:
    """Fills the panels of a tile from a box of a tensor, some neighbouring panels at a time.

    ``skips_absent``: nobody reads panels that lie outside the tensor, they need not be 0.
    """

    def __init__(
        self, accessor: Accessor, copy: Copy, target: Target, place: Place, skips_absent: bool
    ) -> None:
        self.skips_absent = skips_absent
        self.accessor, self.builder, self.place = accessor, accessor.builder, place
        self.source = Box(accessor, copy.src)
        storage = place.storage
        assert isinstance(storage, Storage)
        self.storage = storage
        self.axis, self.width = storage.axis, storage.width
        self.depth, self.columns = storage.shape[1 - self.axis], storage.shape[self.axis]
        self.panel_size = storage.depth * storage.width
        self.lanes = min(target.lanes(storage.dtype), self.width)
        self.together = _together(copy, storage)
        base, _ = accessor.offset(self.source.place, copy.src.offsets)
        self.base = self.builder.bind(base)
        self.step = self.source.steps[0]
        limits = self.source.limits
        self.column_limit, self.depth_limit = limits[self.axis], limits[1 - self.axis]

    def pack(self, task: Any) -> None:
        """Emit the packing of the ``task``-th group of neighbouring panels."""
        panel = self.builder.bind(mul(task, self.together))
        depth, columns = self._extent(self.depth, self.depth_limit), self._columns()
        if self.together == 1:
            self._one(panel, depth, columns)
            return
        is_whole = self.column_limit is None and self.columns % (self.together * self.width) == 0
        if is_whole:
            self._several(panel, depth)
            return
        first_beyond = mul(add(panel, self.together), self.width)
        with self.builder.when(tir.LE(index(first_beyond), index(columns))):
            self._several(panel, depth)
        rest = minimum(self.together, index(_panels(self.storage)) - index(panel))
        with self.builder.otherwise(), self.builder.loop(rest) as i:
            self._one(self.builder.bind(add(panel, i)), depth, columns)

    def _extent(self, extent: int, limit: Any | None) -> Any:
        return extent if limit is None else self.builder.bind(minimum(extent, limit))

    def _columns(self) -> Any:
        return self._extent(self.columns, self.column_limit)

    def _several(self, panel: Any, depth: Any) -> None:
        first, start = self._begin(panel)
        self._whole(first, start, depth, self.together)
        if self.depth_limit is not None:
            with self.builder.loop(self.together) as i:
                self._zero(self.builder.bind(add(start, mul(i, self.panel_size))), depth)

    def _one(self, panel: Any, depth: Any, columns: Any) -> None:
        builder = self.builder
        first, start = self._begin(panel)
        if self.column_limit is None and self.columns % self.width == 0:
            self._whole(first, start, depth, 1)
        else:
            with builder.when(tir.LE(index(add(first, self.width)), index(columns))):
                self._whole(first, start, depth, 1)
            exists = tir.LT(index(first), index(columns)) if self.skips_absent else tir.const(True)
            with builder.otherwise(), builder.when(exists):
                self._edge(first, start, depth, columns)
        if self.depth_limit is not None:
            self._zero(start, depth)

    def _begin(self, panel: Any) -> tuple[Any, Any]:
        """Return a panel's first column and its place in memory."""
        start = add(self.place.base, mul(panel, self.panel_size))
        return self.builder.bind(mul(panel, self.width)), self.builder.bind(start)

    def _value(self, offset: Any, lanes: int) -> Any:
        value = vector_load(self.builder, self.source.place, offset, lanes, self.source.dtype)
        return convert(value, self.source.dtype, self.place.storage.dtype, lanes)

    def _whole(self, first: Any, start: Any, depth: Any, count: int) -> None:
        """Emit the packing of ``count`` panels that lie inside the source."""
        if self.axis == 0:
            self._transposed(first, start, depth)
            return
        builder = self.builder
        with builder.loop(depth) as k:
            row = builder.bind(add(self.base, add(mul(k, self.step), first)))
            to = builder.bind(add(start, mul(k, self.width)))
            for j in range(count * self.width // self.lanes):
                panel, lane = divmod(j * self.lanes, self.width)
                value = self._value(add(row, j * self.lanes), self.lanes)
                at = add(to, panel * self.panel_size + lane)
                vector_store(builder, self.place, value, at, self.lanes)

    def _transposed(self, first: Any, start: Any, depth: Any) -> None:
        builder, lanes = self.builder, self.lanes
        blocks = quotient(depth, lanes)
        for q, j in self._blocks(blocks, self.width // lanes, lanes):
            k0, column = builder.bind(mul(q, lanes)), builder.bind(mul(j, lanes))
            rows = []
            for i in range(lanes):
                row = add(self.base, mul(add(first, add(column, i)), self.step))
                rows.append(builder.bind(self._value(add(row, k0), lanes)))
            for i, vector in enumerate(transpose(builder, rows, lanes)):
                to = add(start, add(mul(add(k0, i), self.width), column))
                vector_store(builder, self.place, vector, to, lanes)
        done = mul(blocks, lanes)
        rest = index(depth) - index(done)
        with builder.loop(rest, start=done) as k, builder.loop(self.width) as n:
            row = add(self.base, mul(add(first, n), self.step))
            to = add(start, add(mul(k, self.width), n))
            vector_store(builder, self.place, self._value(add(row, k), 1), to, 1)

    def _blocks(self, blocks: Any, columns: int, elements: int) -> Iterator[tuple[Any, Any]]:
        """Open the loops over blocks along K, of so many ``elements``, and along columns.

        Those that share cache lines of the source follow each other: rows that lie far apart push
        each other out. So do runs of lines of the same rows: a core fetches few rows ahead.
        """
        builder = self.builder
        share = max(1, CACHE_LINE_BYTES // (elements * DType(self.source.dtype).itemsize))
        lines = blocks if share == 1 else builder.bind(quotient(blocks, share))
        runs = quotient(add(lines, LINES_PER_RUN - 1), LINES_PER_RUN)
        is_even = isinstance(lines, int) and lines % LINES_PER_RUN == 0
        with builder.loop(runs) as run, builder.loop(columns) as j:
            begin = builder.bind(mul(run, LINES_PER_RUN))
            rest = LINES_PER_RUN if is_even else index(lines) - index(begin)
            length = minimum(LINES_PER_RUN, rest)
            with builder.loop(length, start=begin) as line, builder.loop(share) as part:
                yield add(mul(line, share), part), j
        if share == 1 or (isinstance(blocks, int) and blocks % share == 0):
            return
        done = mul(lines, share)
        with builder.loop(index(blocks) - index(done), start=done) as q, builder.loop(columns) as j:
            yield q, j

    def _edge(self, first: Any, start: Any, depth: Any, columns: Any) -> None:
        builder = self.builder
        stored = self.place.storage.dtype
        with builder.loop(depth) as k, builder.loop(self.width) as n:
            column = add(first, n)
            if self.axis == 0:
                offset = add(self.base, add(mul(column, self.step), k))
            else:
                offset = add(self.base, add(mul(k, self.step), column))
            inside = tir.LT(index(column), index(columns))
            value = tir.if_then_else(inside, self._value(offset, 1), zero(stored))
            vector_store(builder, self.place, value, add(start, add(mul(k, self.width), n)), 1)

    def _zero(self, start: Any, depth: Any) -> None:
        builder, lanes = self.builder, self.lanes
        stored = self.place.storage.dtype
        with builder.loop(index(self.depth) - index(depth), start=depth) as k:
            for j in range(self.width // lanes):
                to = add(start, add(mul(k, self.width), j * lanes))
                vector_store(builder, self.place, zero(stored, lanes), to, lanes)
