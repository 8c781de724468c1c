"""T.gemm as a register-blocked micro-kernel over packed operands.

For each panel of ``micro_n`` vectors along N and each group of ``micro_m`` rows the accumulators
stay in registers over the whole of K: per k, ``micro_n`` vector loads of b, ``micro_m`` broadcasts
of a, ``micro_m * micro_n`` fused multiply-adds.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.plan import GemmPlan
from tilecore.inference.cpu.storage import CACHE_LINE_BYTES, Storage
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Binary, Const, Expr, int_value
from tilecore.ir.gemm_shape import accumulator_dtype
from tilecore.lowering.cpu import prefetch
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.gemm.masks import MaskLowering
from tilecore.lowering.cpu.gemm.staging import RowStage
from tilecore.lowering.cpu.gemm.strided import (
    RowGroup,
    Strided,
    boxed,
    row_group,
    rows_within,
    strided,
)
from tilecore.lowering.cpu.place import LaneMask, Place, load_values, vector_load, vector_store
from tilecore.lowering.cpu.scalar import convert, kept, value_type, zero
from tilecore.lowering.tir import add, broadcast, index, maximum, minimum, mul
from tilecore.target import Target

STEPS_AHEAD = 32  # of K
CLEARED_AT_ONCE = 16  # vectors of a row: LLVM takes a second for hundreds of stores one by one
PRODUCTS = 24  # of registers, at least, in an iteration: in up to four steps of K


def balanced_splits(extent: int, largest: int) -> list[tuple[int, int]]:
    """Split ``extent`` rows into nearly equal groups of at most ``largest``: (rows, count)."""
    groups = -(-extent // largest)
    small, extra = divmod(extent, groups)
    pairs = [(small + 1, extra), (small, groups - extra)]
    return [(rows, count) for rows, count in pairs if count and rows]


class GemmLowering:
    """Emits one gemm."""

    def __init__(self, accessor: Accessor, plan: GemmPlan, target: Target) -> None:
        gemm = plan.gemm
        self.accessor, self.builder, self.plan, self.gemm = accessor, accessor.builder, plan, gemm
        self.accum = str(accumulator_dtype(gemm))
        self.lanes = target.lanes(self.accum)
        self.a = self._broadcast_operand()
        self.b_place = accessor.places[gemm.b.buffer]
        if self.b_place.storage.kind == "panels":
            self.b = Strided(self.b_place, self.b_place.base, 0, 0)
        else:
            self.b = strided(accessor, gemm.b, gemm.transpose_b)
        self.c = strided(accessor, gemm.c, False)
        self.rows = self._limit(plan.row_limits, plan.m)
        self.columns = self._limit(plan.col_limits, plan.n)
        depth = plan.k if plan.k_limit is None else self._limit((plan.k_limit,), plan.k)
        self.depth = plan.k if depth is None else depth
        self.hidden_sums, self.hidden_weights = (
            None if mask is None else MaskLowering(accessor, mask)
            for mask in (plan.hidden_sums, plan.hidden_weights)
        )
        self.in_output = self.c.place.guarded
        # Sums far away come in while products are made, and are added at the end.
        self.adds_last = self.in_output and self.c.place.storage.dtype == self.accum
        self.late = None if plan.late is None else boxed(accessor, plan.late.region)
        if plan.dot is not None and plan.dot.operands == ("bfloat16",):  # it flushes its sums
            self.c = self.c.flushing()
            self.late = self.late and self.late.flushing()
        # Rows of a whole tile are padded to vectors; elsewhere a neighbour follows the last column.
        tight = isinstance(self.c.place.storage, Storage) and self.c.place.storage.spare > 0
        fills_rows = int_value(gemm.c.extents[-1]) == self.c.place.storage.shape[-1]
        self.is_tight = self.in_output or tight or not fills_rows
        self.a_in_place = self.a.place.guarded
        self.stage = (
            RowStage(self.builder, self.a, plan, self.accum, target) if plan.stages_a else None
        )

    def _broadcast_operand(self) -> Strided:
        return strided(self.accessor, self.gemm.a, self.gemm.transpose_a)

    def _limit(self, limits: tuple[Expr, ...], extent: int) -> Any | None:
        if not limits:
            return None
        limit: Any = extent
        for expr in limits:
            limit = minimum(limit, self.accessor.count(expr, extent))
        return self.builder.bind(maximum(0, limit))

    def emit(self) -> None:
        """Emit all panels."""
        self._clear_edges()
        if self.plan.rows_first:
            for row, size in self._row_groups():
                with self._staged(row, size):
                    for panel, column, count in self._panels():
                        self._sums(panel, column, row, size, count)
            return
        for panel, column, count in self._panels():
            for row, size in self._row_groups():
                self._sums(panel, column, row, size, count)

    @contextlib.contextmanager
    def _staged(self, row: Any, size: int) -> Iterator[None]:
        """Copy a group of rows of a to scratch memory, which the products read inside."""
        if self.stage is None:
            yield
            return
        count = size if self.rows is None else minimum(size, index(self.rows) - index(row))
        self.a = self.stage.fill(row, count, self.depth)
        yield
        self.a = self.stage.source

    def _panels(self) -> Iterator[tuple[Any, Any, int]]:
        """Open the loops over panels of b: number, first column and vectors of each."""
        vectors = -(-self.plan.n // self.lanes)
        full, rest = divmod(vectors, self.plan.micro_n)
        if full:
            with self.builder.loop(full) as panel, self._columns_begin(panel) as column:
                yield panel, column, self.plan.micro_n
        if rest:
            with self._columns_begin(full) as column:
                yield full, column, rest

    @contextlib.contextmanager
    def _columns_begin(self, panel: Any) -> Iterator[Any]:
        """Give the first column of a panel, where it exists."""
        column = mul(panel, self.plan.micro_n * self.lanes)
        if self.columns is None:
            yield column
            return
        with self.builder.when(tir.LT(index(column), index(self.columns))):
            yield column

    def _row_groups(self) -> Iterator[tuple[Any, int]]:
        """Open the loops over groups of rows: first row and rows of each."""
        first = 0
        for size, groups in balanced_splits(self.plan.m, self.plan.micro_m):
            with self.builder.loop(groups) as group:
                yield self.builder.bind(add(first, mul(group, size))), size
            first += size * groups

    def _clear_edges(self) -> None:
        """Clear a tile of which some rows or columns get no products: they lie outside A or B."""
        clear = known_truth(self.gemm.clear_accum, self.accessor)
        limits = ((self.rows, self.plan.m), (self.columns, self.plan.n))
        short = [tir.LT(index(limit), index(size)) for limit, size in limits if limit is not None]
        if self.in_output or self.late is not None or clear is False or not short:
            return
        cond = short[0] if len(short) == 1 else tir.Or(*short)
        if clear is None:
            cond = tir.And(cond, self.accessor.scalar(self.gemm.clear_accum))
        with self.builder.when(cond), self.builder.loop(self.plan.m) as row:
            self._clear_row(row)

    def _clear_row(self, row: Any) -> None:
        """Clear a row of c."""
        builder, lanes = self.builder, self.lanes
        value = zero(self.c.place.storage.dtype, lanes)
        for j, _ in builder.runs(-(-self.plan.n // lanes), CLEARED_AT_ONCE):
            column = builder.bind(mul(j, lanes))
            offset, mask = self.c.at(row, column), self._mask(column, 0)
            vector_store(builder, self.c.place, value, offset, lanes, mask)

    def _sums(self, panel: Any, column: Any, row: Any, size: int, count: int) -> None:
        """Emit one group of rows by one panel, unless all its sums are hidden."""
        if self.hidden_sums is None:
            self._existing_sums(panel, column, row, size, count)
            return
        is_hidden = self.hidden_sums.hides(row, size, column, count * self.lanes)
        with self.builder.when(tir.Not(is_hidden)):
            self._existing_sums(panel, column, row, size, count)

    def _existing_sums(self, panel: Any, column: Any, row: Any, size: int, count: int) -> None:
        """Emit one group of rows by one panel, as far as its rows exist."""
        if self.rows is None:
            self._micro_kernel(panel, column, row, size, count, edge=False)
            return
        if not self.a_in_place and not self.in_output and self.late is None:
            with self.builder.when(tir.LT(index(row), index(self.rows))):
                self._micro_kernel(panel, column, row, size, count, edge=False)
            return
        with self.builder.when(tir.LE(index(add(row, size)), index(self.rows))):
            self._micro_kernel(panel, column, row, size, count, edge=False)
        begins = tir.LT(index(row), index(self.rows))
        with self.builder.otherwise(), self.builder.when(begins):
            self._micro_kernel(panel, column, row, size, count, edge=True)

    # --- one register tile --------------------------------------------------------------------

    def _micro_kernel(
        self, panel: Any, column: Any, row: Any, size: int, count: int, *, edge: bool
    ) -> None:
        builder, lanes = self.builder, self.lanes
        accumulators = builder.registers(size * count, lanes, value_type(self.accum))
        if self.plan.is_b_far and not self.plan.rows_first:
            self._fetch_ahead(panel, row, size)
        c = self.c.begun(builder, row, column)
        if self.adds_last:
            self._zero(accumulators)
            self._fetch_sums(c, size, count)
        else:
            self._start(accumulators, c, column, row, size, count, edge)
        rows = (
            rows_within(builder, self.a, row, size, self.rows)
            if edge
            else row_group(builder, self.a, row, size)
        )
        self._products(accumulators, row, rows, panel, column, count, self._depth(row, size))
        place = row, column, size, count, edge
        if self.adds_last:
            self._choose(
                known_truth(self.gemm.clear_accum, self.accessor), self.gemm.clear_accum,
                lambda: self._store_sums(accumulators, c, self._mask, *place),
                lambda: self._store_sums(accumulators, c, self._mask, *place, adds=True),
            )  # fmt: skip
            return

        def write() -> None:
            assert self.late is not None
            late = self.late.begun(builder, row, column)
            self._store_sums(accumulators, late, self._late_mask, *place)

        self._finish(lambda: self._store_sums(accumulators, c, self._mask, *place), write)

    def _depth(self, row: Any, size: int) -> Any:
        """Return how many products the sums of a group of rows have."""
        if self.hidden_weights is None:
            return self.depth
        return self.builder.bind(self.hidden_weights.end(row, size, self.depth))

    def _fetch_sums(self, c: Strided, size: int, count: int) -> None:
        """Fetch the lines of c that the sums are added to."""
        for i in range(size):
            for j in range(count):
                at = c.at(i, j * self.lanes)
                prefetch.fetch(self.builder, c.place.memory, at, prefetch.L1)

    def _fetch_ahead(self, panel: Any, row: Any, size: int) -> None:
        """Fetch the next panel of b: each group of rows its share."""
        storage = self.b_place.storage
        assert isinstance(storage, Storage)
        panel_size = storage.depth * storage.width
        line = CACHE_LINE_BYTES // DType(storage.dtype).itemsize
        first = add(self.b.base, mul(add(panel, 1), panel_size))
        first = self.builder.bind(add(first, mul(row, panel_size // self.plan.m)))
        with self.builder.loop(math.ceil(panel_size * size / self.plan.m / line)) as i:
            prefetch.fetch(self.builder, self.b_place.memory, add(first, mul(i, line)))

    def _finish(self, keep: Callable[[], None], write: Callable[[], None]) -> None:
        """Emit what happens to finished sums: they are kept, or the last step writes them."""
        if self.plan.late is None:
            keep()
            return
        last = self.plan.late.last
        assert last is not None
        self._choose(known_truth(last, self.accessor), last, write, keep)

    def _choose(
        self, known: bool | None, cond: Expr, one: Callable[[], None], other: Callable[[], None]
    ) -> None:
        """Emit ``one`` where a condition holds and ``other`` where not; both if it is not known."""
        if known is not None:
            (one if known else other)()
            return
        with self.builder.when(self.accessor.scalar(cond)):
            one()
        with self.builder.otherwise():
            other()

    def _store_sums(
        self, accumulators: list[Any], target: Strided,
        mask_of: Callable[[Any, int], LaneMask | None],
        row: Any, column: Any, size: int, count: int, edge: bool, adds: bool = False,
    ) -> None:  # fmt: skip
        """Store sums where ``target`` begins.

        ``adds``: they are added to what is there.
        """
        lanes = self.lanes
        for i in range(size):
            with self._row_guard(row, i, edge):
                for j in range(count):
                    sums = self.builder.load(accumulators[i * count + j], 0, lanes)
                    at, mask = target.at(i, j * lanes), mask_of(column, j)
                    if adds:
                        sums += vector_load(self.builder, target.place, at, lanes, self.accum, mask)
                    value = self._stored(sums, target.place)
                    vector_store(self.builder, target.place, value, at, lanes, mask)

    def _products(
        self, accumulators: list[Any], row: Any, rows: RowGroup,
        panel: Any, column: Any, count: int, depth: Any,
    ) -> None:  # fmt: skip
        """Add ``depth`` products to the accumulators of ``rows`` of a, which begin with ``row``."""
        builder, lanes = self.builder, self.lanes
        coming = None if self.stage is None else self.stage.coming(panel, row, len(rows.apart))
        steps = next(n for n in (4, 2, 1) if n == 1 or n // 2 * len(accumulators) < PRODUCTS)
        columns = self._vector_operand(panel, column)
        a, b = rows, columns  # from the first step of an iteration on
        for k, part in builder.runs(depth, steps):
            if self.stage is not None and coming is not None and not part:
                self.stage.fetch(coming, k)
            if not part:
                a, b = rows.begun(builder, k), columns.begun(builder, k, 0)
            vectors = [builder.bind(self._b_vector(b, part, j)) for j in range(count)]
            if self.plan.rows_first:
                self._fetch_steps_ahead(b.at(part, 0), count)
            for i in range(len(rows.apart)):
                value = builder.bind(broadcast(self._a_scalar(a.at(i, part)), lanes))
                for j in range(count):
                    register = accumulators[i * count + j]
                    total = builder.load(register, 0, lanes) + value * vectors[j]
                    builder.store(register, total, 0, lanes)

    def _vector_operand(self, panel: Any, column: Any) -> Strided:
        """Return b from the first column of a panel on, in the steps that its memory has."""
        storage = self.b_place.storage
        if not isinstance(storage, Storage) or storage.kind != "panels":
            return self.b.begun(self.builder, 0, column)
        first = add(self.b.base, mul(panel, storage.depth * storage.width))
        step = storage.width * storage.group
        return Strided(self.b_place, self.builder.bind(first), step, storage.group)

    def _fetch_steps_ahead(self, now: Any, count: int) -> None:
        """Fetch what b has some steps of K, or groups of them, later, or in the next panel.

        ``now``: where this step's are.
        """
        storage = self.b_place.storage
        assert isinstance(storage, Storage)
        later = STEPS_AHEAD * storage.width * storage.group
        line = CACHE_LINE_BYTES // DType(storage.dtype).itemsize
        for at in range(later, later + count * self.lanes * storage.group, line):
            prefetch.fetch(self.builder, self.b_place.memory, add(now, at), prefetch.L1)

    def _stored(self, value: Any, place: Place, lanes: int = 0) -> Any:
        """Return sums in the type that a place keeps, rounded to the tile's element type."""
        dtype, stored = str(self.gemm.c.buffer.dtype), place.storage.dtype
        return kept(value, self.accum, dtype, stored, lanes or self.lanes)

    def _start(
        self, accumulators: list[Any], c: Strided,
        column: Any, row: Any, size: int, count: int, edge: bool,
    ) -> None:  # fmt: skip
        clear = known_truth(self.gemm.clear_accum, self.accessor)
        if clear is True or edge:
            self._zero(accumulators)
        if clear is True:
            return
        if clear is False:
            self._load_c(accumulators, c, column, row, size, count, edge)
            return
        cond = self.accessor.scalar(self.gemm.clear_accum)
        if edge:
            with self.builder.when(tir.Not(cond)):
                self._load_c(accumulators, c, column, row, size, count, edge)
            return
        with self.builder.when(cond):
            self._zero(accumulators)
        with self.builder.otherwise():
            self._load_c(accumulators, c, column, row, size, count, edge)

    def _zero(self, accumulators: list[Any]) -> None:
        for register in accumulators:
            self.builder.store(register, zero(self.accum, self.lanes), 0, self.lanes)

    def _load_c(
        self, accumulators: list[Any], c: Strided,
        column: Any, row: Any, size: int, count: int, edge: bool,
    ) -> None:  # fmt: skip
        for i in range(size):
            with self._row_guard(row, i, edge):
                for j in range(count):
                    at, mask = c.at(i, j * self.lanes), self._mask(column, j)
                    value = vector_load(self.builder, c.place, at, self.lanes, self.accum, mask)
                    self.builder.store(accumulators[i * count + j], value, 0, self.lanes)

    def _row_guard(self, row: Any, i: int, edge: bool) -> Any:
        if not edge:
            return contextlib.nullcontext()
        return self.builder.when(tir.LT(index(add(row, i)), index(self.rows)))

    def _mask(self, column: Any, j: int) -> LaneMask | None:
        if not self.is_tight:
            return None
        if self.plan.n % self.lanes == 0 and (self.columns is None or not self.in_output):
            return None
        limit = self.plan.n if self.columns is None or not self.in_output else self.columns
        return LaneMask(add(column, j * self.lanes), limit, self.lanes)

    def _late_mask(self, column: Any, j: int) -> LaneMask | None:
        """Return which lanes of the output exist."""
        if self.columns is None and self.plan.n % self.lanes == 0:
            return None
        limit = self.plan.n if self.columns is None else self.columns
        return LaneMask(add(column, j * self.lanes), limit, self.lanes)

    def _a_scalar(self, offset: Any) -> Any:
        stored = self.a.place.storage.dtype
        value = load_values(self.builder, self.a.place, offset)
        return convert(value, stored, self.accum, 1)

    def _b_vector(self, b: Strided, k: int, j: int) -> Any:
        dtype = b.place.storage.dtype
        value = load_values(self.builder, b.place, b.at(k, j * self.lanes), self.lanes, b.column)
        return convert(value, dtype, self.accum, self.lanes)


def known_truth(cond: Expr, accessor: Accessor) -> bool | None:
    """Return the value of a condition where it is the same in every iteration here."""
    if isinstance(cond, Const):
        return bool(cond.value)
    if isinstance(cond, Binary) and cond.op == "eq" and not cond.a.dtype.is_float:
        difference = accessor.bounds(cond.a - cond.b)
        if difference == (0, 0):
            return True
        if difference is not None and (difference[0] > 0 or difference[1] < 0):
            return False
    return None
