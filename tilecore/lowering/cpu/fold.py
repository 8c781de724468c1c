"""Reductions and scans on CPUs.

The last axis of the source gives the lanes. Where that axis is folded, several vectors collect
partial folds, which are folded across lanes at the end, those of as many rows as there are lanes
together; where it is kept, each lane folds its own element. What has no constant distance between
lanes, or may leave a tensor, runs in scalar code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tvm import tirx as tir

from tilecore.ir.analysis import kept_axes
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Load, Var, binary, cast, int_value
from tilecore.ir.fold import STEPS, fold_dtype, identity, magnitude
from tilecore.ir.nodes import Buffer, Reduce, Region, Scan
from tilecore.lowering.cpu.access import Accessor, Extent
from tilecore.lowering.cpu.scalar import Scope, constant_of, convert, differs, lower, widen
from tilecore.lowering.cpu.shuffles import fold_rows
from tilecore.lowering.tir import add, mul
from tilecore.target import Target

GROUPS = (4, 8, 16)  # lanes of which rows are folded together: a shuffle each
UNROLL = 4  # partial folds in flight: an addition takes 4 cycles and starts every half cycle


class FoldLowering:
    """Emits one reduction or scan."""

    def __init__(
        self,
        accessor: Accessor,
        target: Target,
        stmt: Reduce | Scan,
        names: Sequence[Var] | None = None,
    ) -> None:
        self.accessor, self.builder, self.stmt = accessor, accessor.builder, stmt
        self.src, self.dst = stmt.src, stmt.dst
        self.is_scan = isinstance(stmt, Scan)
        axes = stmt.axes if isinstance(stmt, Reduce) else (stmt.axis,)
        self.axes = kept_axes(self.src)
        names = names or [Var(f"f{axis}") for axis in self.axes]
        self.vars = dict(zip(self.axes, names, strict=True))
        self.folded = [a for a in self.axes if a in axes]
        self.outer = [a for a in self.axes if a not in axes]
        source, result = self.src.buffer.dtype, self.dst.buffer.dtype
        self.dtype = fold_dtype(source, result)
        self.lanes = target.vector_bytes // max(
            DType(d).itemsize for d in (source, result, self.dtype)
        )
        self.src_indices = self._indices(self.src, list(self.axes))
        kept = list(self.axes) if self.is_scan else self.outer
        self.dst_indices = self._indices(self.dst, kept)

    def _indices(self, region: Region, axes: list[int]) -> tuple[Expr, ...]:
        indices = list(region.offsets)
        for own, axis in zip(kept_axes(region), axes, strict=True):
            indices[own] = binary("add", indices[own], self.vars[axis])
        return tuple(indices)

    @property
    def accesses(self) -> list[tuple[Buffer, tuple[Expr, ...]]]:
        """The elements it reads and writes."""
        return [(self.src.buffer, self.src_indices), (self.dst.buffer, self.dst_indices)]

    def emit(self) -> None:
        """Emit loops over what is kept, and the folds inside."""
        with self._known_ranges(), ExitStack() as loops:
            vector = self._vector_axis()
            grouped = self.grouped_axis(vector)
            for axis in self.outer:
                if axis not in (vector, grouped):
                    loops.enter_context(self._loop(axis))
            if vector in self.outer:
                self._kept_lanes(vector)
            elif vector is not None and grouped is not None:
                self._groups(grouped, vector)
            elif vector is not None:
                self._folded_lanes(vector)
            else:
                self._fold(self.accessor.scope())
        for var in self.vars.values():
            self.accessor.values.pop(var, None)

    @contextmanager
    def _known_ranges(self) -> Iterator[None]:
        """Make known what the loop variables may be."""
        for axis, var in self.vars.items():
            extent = int_value(self.src.extents[axis])
            if extent is not None:
                self.accessor.ranges[var] = (0, extent - 1)
        yield
        for var in self.vars.values():
            self.accessor.ranges.pop(var, None)

    @property
    def is_reverse(self) -> bool:
        """Whether a scan begins at the end."""
        return isinstance(self.stmt, Scan) and self.stmt.reverse

    def _vector_axis(self) -> int | None:
        """Return the axis that runs over lanes, or None for scalar code."""
        if not self.axes or self.lanes < 2:
            return None
        axis = self.axes[-1]
        extent, var = int_value(self.src.extents[axis]), self.vars[axis]
        if extent is None or extent < self.lanes or (self.is_scan and axis in self.folded):
            return None
        if not self.has_vector_form(var, axis in self.folded):
            return None
        scope = self.accessor.scope(var, self.lanes)
        for buffer, indices in self._along_lanes(axis in self.folded):
            if any(scope.is_vector(index) for index, _ in self._open_ends(buffer, indices)):
                return None
        return axis

    def _open_ends(self, buffer: Buffer, indices: tuple[Expr, ...]) -> list[tuple[Expr, Extent]]:
        place = self.accessor.places[buffer]
        return self.accessor.open_ends(place, place.indices(indices))

    def has_vector_form(self, var: Var, is_folded: bool) -> bool:
        """Return whether neighbours along ``var`` lie side by side wherever it runs over lanes."""
        return self.dtype != "bool" and all(
            self.accessor.stride_of(buffer, indices, var) == 1
            for buffer, indices in self._along_lanes(is_folded)
        )

    def _along_lanes(self, is_folded: bool) -> list[tuple[Buffer, tuple[Expr, ...]]]:
        return self.accesses[:1] if is_folded else self.accesses

    def grouped_axis(self, vector: int | None) -> int | None:
        """Return the kept axis whose neighbours lie side by side in the result, if it is long."""
        if vector not in self.folded or not self.outer or self.lanes not in GROUPS:
            return None
        axis, size = self.outer[-1], int_value(self.src.extents[vector])
        extent, var = int_value(self.src.extents[axis]), self.vars[axis]
        if extent is None or extent < self.lanes or size is None or size % self.lanes:
            return None
        place, scope = self.accessor.places[self.dst.buffer], self.accessor.scope(var, self.lanes)
        ends = self.accessor.open_ends(place, place.indices(self.dst_indices))
        if any(scope.is_vector(index) for index, _ in ends):
            return None
        return (
            axis if self.accessor.stride_of(self.dst.buffer, self.dst_indices, var) == 1 else None
        )

    @contextmanager
    def _loop(self, axis: int) -> Iterator[None]:
        extent = self.src.extents[axis]
        size = int_value(extent)
        count: Any = size if size is not None else self.builder.bind(self.accessor.scalar(extent))
        with self.builder.loop(count) as index:
            if self.is_reverse and axis in self.folded:
                index = tir.Sub(add(count, -1), index)
            self.accessor.values[self.vars[axis]] = index
            yield

    # --- folds --------------------------------------------------------------------------------

    def _kept_lanes(self, axis: int) -> None:
        extent, var = int_value(self.src.extents[axis]), self.vars[axis]
        assert extent is not None
        whole = extent // self.lanes
        with self.builder.loop(whole) as q:
            self.accessor.values[var] = self.builder.bind(mul(q, self.lanes))
            self._fold(self.accessor.scope(var, self.lanes))
        if extent % self.lanes:
            with self.builder.loop(extent % self.lanes, start=whole * self.lanes) as index:
                self.accessor.values[var] = index
                self._fold(self.accessor.scope())

    def _fold(self, scope: Scope) -> None:
        """Emit the fold of one element (of ``scope.lanes`` neighbours) of the result."""
        total = self.accumulator(scope.lanes)
        with ExitStack() as loops:
            for axis in self.folded:
                loops.enter_context(self._loop(axis))
            self.take(total, scope)
            if self.is_scan:
                self.store(total, scope)
        if not self.is_scan:
            self.store(total, scope)

    def _groups(self, kept: int, axis: int) -> None:
        """Emit the folds of ``lanes`` neighbours along ``kept`` together."""
        extent, var = int_value(self.src.extents[kept]), self.vars[kept]
        assert extent is not None
        builder, lanes, values = self.builder, self.lanes, self.accessor.values
        block = self.block()
        with builder.loop(extent // lanes) as group:
            first = builder.bind(mul(group, lanes))
            with builder.loop(lanes) as row:
                values[var] = builder.bind(add(first, row))
                part = self._partial(axis, None)
                builder.store(block, builder.load(part, 0, lanes), mul(row, lanes), lanes)
            values[var] = first
            self.close_rows(block, var)
        with builder.loop(extent % lanes, start=extent // lanes * lanes) as row:
            values[var] = row
            self._folded_lanes(axis)

    def _folded_lanes(self, axis: int) -> None:
        total = self.accumulator(1)
        self.close_lanes(self._partial(axis, total), total, self.lanes)

    def _partial(self, axis: int, rest: Any | None) -> Any:
        """Return a vector that folds whole vectors; elements beyond them go to ``rest``."""
        extent, var = int_value(self.src.extents[axis]), self.vars[axis]
        assert extent is not None
        builder, lanes, values = self.builder, self.lanes, self.accessor.values
        vectors = extent // lanes
        count = min(UNROLL, vectors)
        parts = [self.accumulator(lanes) for _ in range(count)]
        scope = self.accessor.scope(var, lanes)
        with ExitStack() as loops:
            for other in self.folded[:-1]:
                loops.enter_context(self._loop(other))
            with builder.loop(vectors // count) as q:
                for i, part in enumerate(parts):
                    values[var] = builder.bind(add(mul(q, count * lanes), i * lanes))
                    self.take(part, scope)
            for i in range(vectors % count):
                values[var] = (vectors - vectors % count + i) * lanes
                self.take(parts[i], scope)
            if extent % lanes:
                with builder.loop(extent % lanes, start=vectors * lanes) as index:
                    values[var] = index
                    self.take(rest, self.accessor.scope())
        return self.merged(parts, lanes)

    def merged(self, parts: Sequence[Any], lanes: int) -> Any:
        """Fold partial folds into the first of them, and return it."""
        for part in parts[1:]:
            self._take(parts[0], self.builder.load(part, 0, lanes), lanes)
        return parts[0]

    def close_lanes(self, part: Any, total: Any, lanes: int) -> None:
        """Fold the lanes of a partial fold into ``total``, and store the result."""
        whole = part
        while lanes > 1:
            lanes //= 2
            half = self.accumulator(lanes)
            for first in (0, lanes):
                self._take(half, self.builder.load(whole, first, lanes), lanes)
            whole = half
        self._take(total, self.builder.load(whole, 0), 1)
        self.store(total, self.accessor.scope())

    def close_rows(self, block: Any, var: Var) -> None:
        """Store the results of as many neighbours along ``var`` as there are lanes.

        Each row of ``block`` holds the partial fold of one of them.
        """
        builder, lanes = self.builder, self.lanes
        parts = [builder.bind(builder.load(block, i * lanes, lanes)) for i in range(lanes)]
        total = self.accumulator(lanes)
        self._take(total, fold_rows(builder, parts, lanes, str(self.dtype), self._combine), lanes)
        self.store(total, self.accessor.scope(var, lanes))

    def block(self) -> Any:
        """Return memory for the partial folds of as many neighbours as there are lanes."""
        size = self.lanes * self.lanes
        return self.builder.alloc(size, str(self.dtype), "rows", on_stack=True)

    def accumulator(self, lanes: int) -> Any:
        """Return memory for a fold of each lane that nothing was folded into yet."""
        memory = self.builder.alloc(lanes, str(self.dtype), "acc")
        self._clear(memory, 0, lanes)
        return memory

    def accumulators(self, count: int, lanes: int) -> Any:
        """Return memory for ``count`` folds that nothing was folded into yet."""
        builder = self.builder
        memory = builder.alloc(count, str(self.dtype), "acc", on_stack=True)
        with builder.loop(count // lanes) as q:
            self._clear(memory, mul(q, lanes), lanes)
        for index in range(count - count % lanes, count):
            self._clear(memory, index, 1)
        return memory

    def _clear(self, memory: Any, first: Any, lanes: int) -> None:
        start = constant_of(identity(self.stmt.op, self.dtype), self.dtype, lanes)
        self.builder.store(memory, start, first, lanes)

    def _value(self, scope: Scope) -> Any:
        """Return the source element (vector) in the type of the accumulator."""
        value = cast(Load(self.src.buffer, self.src_indices, self.src.buffer.dtype), self.dtype)
        if STEPS[self.stmt.op][0]:
            value = magnitude(value)
        return widen(lower(value, scope), value, scope, scope.lanes)

    def take(self, memory: Any, scope: Scope, at: Any = 0) -> None:
        """Fold the element (one per lane) at the loop variables into an accumulator."""
        self._take(memory, self._value(scope), scope.lanes, at)

    def _take(self, memory: Any, value: Any, lanes: int, at: Any = 0) -> None:
        old = self._old(self.builder.load(memory, at, lanes), lanes)
        self.builder.store(memory, self._combine(old, self.builder.bind(value)), at, lanes)

    def _old(self, value: Any, lanes: int) -> Any:
        """Bind a value in whose place the fold is stored."""
        is_chosen = STEPS[self.stmt.op][1] in ("max", "min")
        return self.builder.frozen(value, lanes) if is_chosen else self.builder.bind(value)

    def _combine(self, old: Any, value: Any) -> Any:
        step = STEPS[self.stmt.op][1]
        if self.dtype == "bool":
            if step == "bitxor":
                return differs(old, value, "bool")
            return (tir.And if step == "bitand" else tir.Or)(old, value)
        if step in ("max", "min"):
            replaces = (tir.GT if step == "max" else tir.LT)(value, old)
            if isinstance(self.stmt, Reduce) and self.stmt.nan_propagate and self.dtype.is_float:
                replaces = tir.Or(replaces, differs(value, value, self.dtype))
            return tir.Select(replaces, value, old)
        return _STEPS[step](old, value)

    def store(self, total: Any, scope: Scope, at: Any = 0) -> None:
        """Store the result (one per lane) at the loop variables."""
        lanes, kind = scope.lanes, self.dst.buffer.dtype
        result = self.builder.load(total, at, lanes)
        if isinstance(self.stmt, Reduce) and not self.stmt.clear:
            old = Load(self.dst.buffer, self.dst_indices, kind)
            before = convert(widen(lower(old, scope), old, scope, lanes), kind, self.dtype, lanes)
            result = self._combine(self.builder.bind(result), self._old(before, lanes))
        self.accessor.store(self.dst.buffer, self.dst_indices, result, self.dtype, scope)


_STEPS = {
    "add": tir.Add, "bitand": tir.bitwise_and, "bitor": tir.bitwise_or, "bitxor": tir.bitwise_xor,
}  # fmt: skip
