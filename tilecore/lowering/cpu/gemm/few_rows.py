"""T.gemm of few rows: b is read where it lies in a tensor (inference/cpu/few_rows.py says when).

Dots: lanes run along K. Some rows of b stream from memory at once, each multiplied by every row
of a, while the rows after them are fetched; the lanes of each sum are added up at the end. Sums:
lanes run along N. Some rows of b at a time are added to the sums, which stay in the caches
meanwhile: few long streams.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.few_rows import ROWS_AT_ONCE
from tilecore.inference.cpu.plan import DOTS, GemmPlan
from tilecore.inference.cpu.storage import CACHE_LINE_BYTES
from tilecore.ir.dtype import DType
from tilecore.lowering.cpu import prefetch
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.gemm.dot import add_products
from tilecore.lowering.cpu.gemm.groups import load_words
from tilecore.lowering.cpu.gemm.packed_gemm import GemmLowering, balanced_splits, known_truth
from tilecore.lowering.cpu.gemm.strided import rows_within
from tilecore.lowering.cpu.place import LaneMask, Place, masked_raw, vector_load, vector_store
from tilecore.lowering.cpu.scalar import zero
from tilecore.lowering.llvm_text import shuffle_order
from tilecore.lowering.tir import add, broadcast, index, mul, quotient, vector_type
from tilecore.target import Target

SUM = "tilecore_sum_of_four"
AT_ONCE = 4  # sums whose lanes are added up together
HIGH_HALF = -0x10000
EMBEDDING_LANES = 16  # of AVX-512, whose products read one element of a for all lanes
FETCHED_LINES = 2048  # of cache, of rows ahead: L2 has room for them, L1 is full of these rows


class FewRowsLowering(GemmLowering, ABC):
    """What both forms share: rows of a, of which few are real."""

    def __init__(self, accessor: Accessor, plan: GemmPlan, target: Target) -> None:
        super().__init__(accessor, plan, target)
        bounds = [accessor.bounds(limit) for limit in plan.row_limits]
        self.registers = target.vector_registers
        self.fits_rows = all(b is not None and b[0] >= plan.most_rows for b in bounds)
        self.clears = known_truth(plan.gemm.clear_accum, accessor)

    def emit(self) -> None:
        """Emit all groups of columns, and of rows in each."""
        self._clear_edges()
        width = self._width
        limit = self.plan.n if self.columns is None else self.columns
        whole = quotient(limit, width)
        if not isinstance(whole, int) or whole:
            with self.builder.loop(whole) as group:
                self._groups_of_rows(mul(group, width), width // self._step, is_whole=True)
        if isinstance(limit, int) and limit % width == 0:
            return
        done = self.builder.bind(mul(whole, width))
        rest = index(limit) - index(done)
        steps = quotient(add(rest, self._step - 1), self._step)
        with self.builder.loop(steps) as one:
            self._groups_of_rows(add(done, mul(one, self._step)), 1, is_whole=False)

    @property
    def _step(self) -> int:
        """Columns of one row of b (dots) or one vector of it (sums)."""
        return 1 if self.plan.form == DOTS else self.lanes

    @property
    def _width(self) -> int:
        return self.plan.micro_n * self._step

    def _groups_of_rows(self, column: Any, count: int, *, is_whole: bool) -> None:
        column = self.builder.bind(column)
        first = 0
        for size, groups in balanced_splits(self.plan.most_rows, self.plan.micro_m):
            with self.builder.loop(groups) as group:
                row = self.builder.bind(add(first, mul(group, size)))
                if self.fits_rows or self.rows is None:
                    self._tile(row, size, column, count, is_whole=is_whole, edge=False)
                else:
                    self._edge(row, size, column, count, is_whole=is_whole)
            first += size * groups

    def _edge(self, row: Any, size: int, column: Any, count: int, *, is_whole: bool) -> None:
        builder, rows = self.builder, index(self.rows)
        with builder.when(tir.LE(index(add(row, size)), rows)):
            self._tile(row, size, column, count, is_whole=is_whole, edge=False)
        with builder.otherwise(), builder.when(tir.LT(index(row), rows)):
            self._tile(row, size, column, count, is_whole=is_whole, edge=True)

    def _a_bases(self, row: Any, size: int, edge: bool) -> list[Any]:
        if edge:  # rows that are not there are computed as the last one, and not stored
            return list(rows_within(self.builder, self.a, row, size, self.rows).apart)
        return [self.builder.bind(self.a.at(add(row, i), 0)) for i in range(size)]

    @abstractmethod
    def _tile(
        self, row: Any, size: int, column: Any, count: int, *, is_whole: bool, edge: bool
    ) -> None:
        """Emit one register tile."""


class DotsLowering(FewRowsLowering):
    """Lanes run along K."""

    def _tile(
        self, row: Any, size: int, column: Any, count: int, *, is_whole: bool, edge: bool
    ) -> None:
        builder, lanes = self.builder, self.lanes
        sums = builder.registers(size * count, lanes, "float32")
        for register in sums:
            builder.store(register, zero("float32", lanes), 0, lanes)
        a_rows = self._a_bases(row, size, edge)
        b_rows = [builder.bind(self.b.at(0, add(column, j))) for j in range(count)]
        step = lanes * self._parts
        blocks = quotient(self.depth, step)
        place = self.b_place
        line = CACHE_LINE_BYTES // DType(place.storage.dtype).itemsize
        is_near = not place.shift  # a tile, not a box of a tensor
        is_fetched = not is_near and self.plan.k * self.plan.micro_n <= FETCHED_LINES * line
        for block, part in builder.runs(blocks, max(1, line // step)):
            k = mul(block, step)
            if is_fetched and part == 0:
                for base in b_rows:
                    later = add(base, mul(count, self.b.column))
                    prefetch.fetch(builder, place.memory, add(later, k), prefetch.L2)
            self._products(sums, a_rows, b_rows, k, None)
        if not isinstance(self.depth, int) or self.depth % step:
            start = builder.bind(mul(blocks, step))
            with builder.when(tir.LT(index(start), index(self.depth))):
                self._products(sums, a_rows, b_rows, start, LaneMask(start, self.depth, step))
        builder.define_llvm(SUM, _sum_text(lanes))
        for i in range(size):
            with self._row_guard(row, i, edge):
                for j in range(0, count, AT_ONCE):
                    four = sums[i * count + j : i * count + min(count, j + AT_ONCE)]
                    self._add(add(row, i), add(column, j), four)

    @property
    def _parts(self) -> int:
        """Elements of each lane of what is read at once."""
        stored = {place.storage.dtype for place in (self.a.place, self.b_place)}
        return 2 if stored == {"bfloat16"} else 1

    def _products(  # type: ignore[override]
        self, sums: Sequence[Any], a_rows: Sequence[Any], b_rows: Sequence[Any], k: Any, mask: Any
    ) -> None:
        builder, lanes, count = self.builder, self.lanes, len(b_rows)
        a_parts = [self._operands(self.a.place, add(base, k), mask) for base in a_rows]
        for j, base in enumerate(b_rows):
            b_parts = self._operands(self.b_place, add(base, k), mask)
            for i, parts in enumerate(a_parts):
                register = sums[i * count + j]
                for a, b in zip(parts, b_parts, strict=True):
                    total = builder.load(register, 0, lanes)
                    builder.store(register, self._added(total, a, b), 0, lanes)

    def _added(self, total: Any, a: Any, b: Any) -> Any:
        if self.plan.dot is None:
            return total + a * b
        return add_products(self.builder, self.plan.dot, self.lanes, total, a, b)

    def _operands(self, place: Place, offset: Any, mask: Any) -> list[Any]:
        """Return neighbours along K: words of pairs for an instruction, else vectors of floats.

        Of pairs those are the first ones and the second ones.
        """
        builder, lanes = self.builder, self.lanes
        if self._parts == 1:
            return [builder.bind(vector_load(builder, place, offset, lanes, "float32", mask))]
        if mask is None:
            words = builder.bind(load_words(builder, place, offset, lanes))
        else:
            raw = masked_raw(place, offset, mask)
            words = builder.bind(tir.reinterpret(vector_type("int32", lanes), raw))
        if self.plan.dot is not None:
            return [words]
        first = tir.shift_left(words, broadcast(index(16), lanes))
        second = tir.bitwise_and(words, broadcast(index(HIGH_HALF), lanes))
        kind = vector_type("float32", lanes)
        return [builder.bind(tir.reinterpret(kind, half)) for half in (first, second)]

    def _add(self, row: Any, column: Any, sums: Sequence[Any]) -> None:
        """Add the lanes of up to four sums to their neighbouring elements of c."""
        builder, place, count = self.builder, self.c.place, len(sums)
        given = [builder.load(sums[i % count], 0, self.lanes) for i in range(AT_ONCE)]
        totals = tir.call_pure_extern(vector_type("float32", AT_ONCE), SUM, *given)
        totals = builder.bind(totals)
        parts = [(totals, AT_ONCE)]
        if count < AT_ONCE:
            parts = [(tir.Shuffle([totals], [index(i)]), 1) for i in range(count)]
        for i, (total, lanes) in enumerate(parts):
            offset = builder.bind(self.c.at(row, add(column, i)))
            if self.clears is not True:
                before = vector_load(builder, place, offset, lanes, "float32")
                if self.clears is None:
                    cond = self.accessor.scalar(self.gemm.clear_accum)
                    before = tir.if_then_else(cond, zero("float32", lanes), before)
                total = builder.bind(before) + total
            vector_store(builder, place, self._stored(total, place, lanes), offset, lanes)


class SumsLowering(FewRowsLowering):
    """Lanes run along N."""

    def emit(self) -> None:
        """Emit a pass over the columns for every few rows of b."""
        if self.clears is not False:
            self._clear()
        depth = self.depth
        whole = quotient(depth, ROWS_AT_ONCE)
        with self.builder.loop(whole) as block:
            self._pass(self.builder.bind(mul(block, ROWS_AT_ONCE)), ROWS_AT_ONCE)
        if not isinstance(depth, int) or depth % ROWS_AT_ONCE:
            done = self.builder.bind(mul(whole, ROWS_AT_ONCE))
            with self.builder.loop(index(depth) - index(done), start=done) as k:
                self._pass(k, 1)

    def _clear(self) -> None:
        """Clear c before the first pass."""
        builder = self.builder
        rows = self.plan.m if self.rows is None or not self.in_output else self.rows

        def clear() -> None:
            with builder.loop(rows) as row:
                self._clear_row(row)

        if self.clears:
            clear()
            return
        with builder.when(self.accessor.scalar(self.gemm.clear_accum)):
            clear()

    def _pass(self, k: Any, depth: int) -> None:
        self.k, self.pass_depth = k, depth
        super().emit()

    def _clear_edges(self) -> None:
        """Nothing: c was cleared whole."""

    def _tile(
        self, row: Any, size: int, column: Any, count: int, *, is_whole: bool, edge: bool
    ) -> None:
        builder, lanes = self.builder, self.lanes
        sums = builder.registers(size * count, lanes, "float32")
        mask = None if is_whole else self._edge_mask(column)
        places = [(i, j) for i in range(size) for j in range(count)]

        def load(*, edge: bool) -> None:
            for i, j in places:
                with self._row_guard(row, i, edge):
                    offset = self.c.at(add(row, i), add(column, j * lanes))
                    value = vector_load(builder, self.c.place, offset, lanes, "float32", mask)
                    builder.store(sums[i * count + j], value, 0, lanes)

        def store(*, edge: bool) -> None:
            for i, j in places:
                with self._row_guard(row, i, edge):
                    total = builder.load(sums[i * count + j], 0, lanes)
                    offset = self.c.at(add(row, i), add(column, j * lanes))
                    value = self._stored(total, self.c.place)
                    vector_store(builder, self.c.place, value, offset, lanes, mask)

        group = 1 if self.plan.dot is None or self.pass_depth == 1 else self.plan.dot.group
        if size == self.plan.most_rows:
            self._keep_factors_out(size * self.pass_depth // group, size * count, count)
        self._by_rows(load, row, size, edge)
        bases = self._a_bases(row, size, edge)
        if size == self.plan.most_rows:
            self._fetch_next_rows(column, count)
        for step in range(0, self.pass_depth, group):
            k = add(self.k, step)
            columns = [add(column, j * lanes) for j in range(count)]
            vectors = [builder.bind(self._b_values(k, at, mask, group)) for at in columns]
            for i, base in enumerate(bases):
                factor = builder.bind(broadcast(self._a_value(add(base, k), group), lanes))
                for j, vector in enumerate(vectors):
                    register = sums[i * count + j]
                    total = builder.load(register, 0, lanes)
                    builder.store(register, self._added(total, factor, vector, group), 0, lanes)
        self._by_rows(store, row, size, edge)

    def _keep_factors_out(self, factors: int, sums: int, uses: int) -> None:
        """Let elements of a be loaded for each group of columns, where there are many.

        LLVM would load them once for all columns, and keep on the stack those that no register
        is left for, and sums with them: across cache lines, as the stack happens to lie.
        """
        is_free = self.lanes == EMBEDDING_LANES or uses > 1
        if factors + sums > self.registers and is_free:
            self.builder.forget_memory()

    def _b_values(self, k: Any, column: Any, mask: LaneMask | None, group: int) -> Any:
        """Return a vector of a row of b, or the pairs that two rows make."""
        if group == 1:
            offset = self.b.at(k, column)
            return vector_load(self.builder, self.b_place, offset, self.lanes, "float32", mask)
        first, second = (self._wide(self.b.at(add(k, i), column), mask) for i in range(group))
        return tir.bitwise_or(first, tir.shift_left(second, broadcast(index(16), self.lanes)))

    def _wide(self, offset: Any, mask: LaneMask | None) -> Any:
        """Return the bits of elements of b as int32."""
        place, lanes = self.b_place, self.lanes
        if mask is None:
            raw = self.builder.load(place.memory, offset, lanes)
        else:
            raw = masked_raw(place, offset, mask)
        return self.builder.bind(tir.Cast(vector_type("int32", lanes), raw))

    def _a_value(self, offset: Any, group: int) -> Any:
        if group == 1:
            return self._a_scalar(offset)
        return load_words(self.builder, self.a.place, offset, 1)

    def _added(self, total: Any, a: Any, b: Any, group: int) -> Any:
        if group == 1 or self.plan.dot is None:
            return total + a * b
        return add_products(self.builder, self.plan.dot, self.lanes, total, a, b)

    def _edge(self, row: Any, size: int, column: Any, count: int, *, is_whole: bool) -> None:
        """Emit one register tile for groups that are whole and for the last one.

        Products are the same for both: they are most of the code, which LLVM takes its time for.
        """
        with self.builder.when(tir.LT(index(row), index(self.rows))):
            self._tile(row, size, column, count, is_whole=is_whole, edge=True)

    def _by_rows(self, move: Callable[..., None], row: Any, size: int, edge: bool) -> None:
        """Move sums of all rows, or at the edge of those that are there."""
        if not edge:
            move(edge=False)
            return
        with self.builder.when(tir.LE(index(add(row, size)), index(self.rows))):
            move(edge=False)
        with self.builder.otherwise():
            move(edge=True)

    def _fetch_next_rows(self, column: Any, count: int) -> None:
        """Fetch what the next pass reads at these columns, to L2: L1 is full of this pass's."""
        size = self.lanes * DType(self.b_place.storage.dtype).itemsize
        for step in range(self.pass_depth, 2 * self.pass_depth):
            for j in range(0, count, max(1, CACHE_LINE_BYTES // size)):
                place = self.b.at(add(self.k, step), add(column, j * self.lanes))
                prefetch.fetch(self.builder, self.b_place.memory, place, prefetch.L2)

    def _edge_mask(self, column: Any) -> Any:
        limit = self.plan.n if self.columns is None else self.columns
        return LaneMask(column, limit, self.lanes)


def _sum_text(lanes: int) -> str:
    """Return the function from four vectors to the sums of their lanes."""
    kind = f"<{lanes} x float>"
    lines: list[str] = []

    def shuffled(a: str, b: str, width: int, order: list[int]) -> str:
        source = f"<{width} x float>"
        lines.append(
            f"  %t{len(lines)} = shufflevector {source} {a}, {source} {b}, {shuffle_order(order)}"
        )
        return f"%t{len(lines) - 1}"

    def folded(a: str, b: str, width: int, orders: Sequence[list[int]]) -> str:
        low, high = (shuffled(a, b, width, order) for order in orders)
        lines.append(f"  %t{len(lines)} = fadd <{len(orders[0])} x float> {low}, {high}")
        return f"%t{len(lines) - 1}"

    def within(pattern: tuple[int, ...]) -> list[int]:
        """Return the order of a shuffle that does ``pattern`` in every 4 lanes of both."""
        return [i % 4 + q + (lanes if i > 3 else 0) for q in range(0, lanes, 4) for i in pattern]

    ones = within((0, 4, 1, 5)), within((2, 6, 3, 7))
    twos = within((0, 1, 4, 5)), within((2, 3, 6, 7))
    pairs = [folded(a, b, lanes, ones) for a, b in (("%a", "%b"), ("%c", "%d"))]
    total, width = folded(pairs[0], pairs[1], lanes, twos), lanes
    while width > AT_ONCE:
        half = width // 2
        total = folded(total, "poison", width, (list(range(half)), list(range(half, width))))
        width = half
    head = f"define linkonce_odr hidden <{AT_ONCE} x float> @{SUM}"
    given = ", ".join(f"{kind} %{name}" for name in "abcd")
    body = "\n".join(lines)
    return f"{head}({given}) alwaysinline {{\n{body}\n  ret <{AT_ONCE} x float> {total}\n}}"
