"""T.gemm of bfloat16 and 8-bit integers by instructions that sum up groups of products.

The vector operand lies in panels of groups (see groups.py); a group of the broadcast operand is one
32-bit word. ``vpmaddwd`` multiplies bytes that were widened to 16 bits. ``vpdpbusd`` multiplies
unsigned by signed bytes, T.gemm those of one type: b is shifted by 128, which adds 128 times the
sum of a's row to every product of that row (of unsigned bytes takes it off); these sums are
computed first. LLVM has one intrinsic for ``vpdpbusd`` of AVX512-VNNI and of AVX-VNNI.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.dots import Dot
from tilecore.inference.cpu.plan import GemmPlan
from tilecore.inference.cpu.storage import Storage
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.gemm.groups import load_words
from tilecore.lowering.cpu.gemm.packed_gemm import GemmLowering
from tilecore.lowering.cpu.gemm.strided import RowGroup, Strided
from tilecore.lowering.tir import (
    TirBuilder,
    add,
    broadcast,
    index,
    minimum,
    mul,
    quotient,
    vector_type,
)
from tilecore.target import Target

ONES, SIGNS = 0x01010101, -0x7F7F7F80  # bytes of 1 and of 0x80
ROW_SUM = "tilecore_sum_x16"


class DotLowering(GemmLowering):
    """Emits one gemm whose plan names an instruction."""

    def __init__(self, accessor: Accessor, plan: GemmPlan, target: Target) -> None:
        super().__init__(accessor, plan, target)
        assert plan.dot is not None
        self.dot, self.group = plan.dot, plan.dot.group
        self.is_signed = plan.gemm.a.buffer.dtype.is_signed
        self.is_shifted = self.dot.is_mixed
        self.groups = self._grouped(self.depth)
        self.sums: Any = None

    def _broadcast_operand(self) -> Strided:
        place = self.accessor.places[self.gemm.a.buffer]
        storage = place.storage
        if not isinstance(storage, Storage) or storage.kind == "rows":
            return super()._broadcast_operand()
        # Steps from row to row, and from group to group as if elements of one were side by side.
        return Strided(place, place.base, storage.group, storage.width)

    def _grouped(self, depth: Any) -> Any:
        assert self.plan.dot is not None
        group = self.plan.dot.group
        return self.builder.bind(quotient(add(depth, group - 1), group))

    def emit(self) -> None:
        """Emit the sums of rows where they are needed, then all panels."""
        if self.is_shifted:
            self.builder.define_llvm(ROW_SUM, _sum_text(self.lanes))
            with self.builder.scope():
                rows = -(-self.plan.m // self.lanes) * self.lanes
                self.sums = self.builder.alloc(rows, "int32", "sums")
                self._sum_rows()
                super().emit()
            return
        super().emit()

    # --- products -----------------------------------------------------------------------------

    def _products(
        self, accumulators: list[Any], row: Any, rows: RowGroup,
        panel: Any, column: Any, count: int, depth: Any,
    ) -> None:  # fmt: skip
        builder, size = self.builder, len(rows.apart)
        groups = self.groups if depth is self.depth else self._grouped(depth)
        if self.sums is not None:
            for i in range(size):
                total = builder.load(self.sums, add(row, i))
                total = builder.bind(broadcast(total, self.lanes))
                for j in range(count):
                    register = accumulators[i * count + j]
                    raised = builder.load(register, 0, self.lanes) + total
                    builder.store(register, raised, 0, self.lanes)
        whole = self.plan.k // self.group
        is_even = self.plan.k % self.group == 0
        coming = None if self.stage is None else self.stage.coming(panel, row, size)
        b = self._vector_operand(panel, column)
        with builder.loop(groups if is_even else minimum(groups, whole)) as q:
            if self.stage is not None and coming is not None:
                self.stage.fetch(coming, mul(q, self.group))
            self._step(accumulators, rows, b, count, q, None)
        if is_even:
            return
        mask = (1 << 32 // self.group * (self.plan.k % self.group)) - 1
        with builder.when(tir.LT(index(whole), index(groups))):
            self._step(accumulators, rows, b, count, whole, mask)

    def _step(
        self, accumulators: list[Any], rows: RowGroup, b: Strided, count: int, q: Any,
        mask: int | None,
    ) -> None:  # fmt: skip
        """Add the products of group ``q``; ``mask`` has the bits of elements that exist."""
        builder = self.builder
        b = b.begun(builder, q, 0)
        vectors = [builder.bind(self._b_words(b, j, mask)) for j in range(count)]
        if self.plan.rows_first:
            self._fetch_steps_ahead(b.base, count)
        self._add_products(accumulators, rows, q, vectors, mask)

    def _add_products(
        self, accumulators: list[Any], rows: RowGroup, q: Any, vectors: list[Any],
        mask: int | None,
    ) -> None:  # fmt: skip
        """Add the products of group ``q`` of each row with vectors of b."""
        builder, count = self.builder, len(vectors)
        a = rows.begun(builder, mul(q, self.group))
        for i in range(len(rows.apart)):
            word = builder.bind(broadcast(self._a_word(a.at(i), mask), self.lanes))
            for j in range(count):
                register = accumulators[i * count + j]
                total = self._dot(builder.load(register, 0, self.lanes), word, vectors[j])
                builder.store(register, total, 0, self.lanes)

    def _a_word(self, offset: Any, mask: int | None) -> Any:
        word = load_words(self.builder, self.a.place, offset, 1)
        return word if mask is None else tir.bitwise_and(word, tir.IntImm("int32", mask))

    def _b_words(self, b: Strided, j: int, mask: int | None) -> Any:
        words = load_words(self.builder, b.place, b.at(0, j * self.lanes), self.lanes)
        if mask is not None:
            words = tir.bitwise_and(words, self._splat(mask))
        return tir.bitwise_xor(words, self._splat(SIGNS)) if self.is_shifted else words

    def _dot(self, total: Any, a: Any, b: Any) -> Any:
        """Return ``total`` plus the products of each lane's group."""
        if self.is_shifted and self.is_signed:
            a, b = b, a  # the first operand is taken as unsigned
        return self._call(total, a, b)

    # --- sums of rows -------------------------------------------------------------------------

    def _sum_rows(self) -> None:
        """Store what b's shift by 128 adds to the products of each row of a, negated."""
        builder, storage = self.builder, self.a.place.storage
        if isinstance(storage, Storage) and storage.kind == "panels":
            with builder.loop(-(-self.plan.m // self.lanes)) as block:
                first = builder.bind(mul(block, self.lanes))
                total = builder.alloc(self.lanes, "int32", "r")
                builder.store(total, self._splat(0), 0, self.lanes)
                with builder.loop(self.groups) as q:
                    at = add(self.a.at(first, mul(q, self.group)), 0)
                    self._add(total, load_words(builder, self.a.place, at, self.lanes))
                value = builder.load(total, 0, self.lanes) * self._splat(self._factor)
                builder.store(self.sums, value, first, self.lanes)
            return
        if self.rows is not None:  # rows of a beyond are 0, but in a group of rows multiplied too
            with builder.loop(-(-self.plan.m // self.lanes)) as block:
                builder.store(self.sums, self._splat(0), mul(block, self.lanes), self.lanes)
        with builder.loop(self.plan.m if self.rows is None else self.rows) as row:
            builder.store(self.sums, self._row_sum(row) * tir.IntImm("int32", self._factor), row)

    @property
    def _factor(self) -> int:
        return -128 if self.is_signed else 128

    def _row_sum(self, row: Any) -> Any:
        builder = self.builder
        total = builder.alloc(self.lanes, "int32", "r")
        builder.store(total, self._splat(0), 0, self.lanes)
        base = builder.bind(self.a.at(row, 0))
        whole = minimum(self.groups, self.plan.k // self.group)
        blocks = builder.bind(quotient(whole, self.lanes))
        with builder.loop(blocks) as block:
            at = add(base, mul(block, self.lanes * self.group))
            self._add(total, load_words(builder, self.a.place, at, self.lanes))
        done = builder.bind(mul(blocks, self.lanes))
        with builder.loop(index(whole) - index(done), start=done) as q:
            self._add(total, self._lane(self._a_word(add(base, mul(q, self.group)), None)))
        if self.plan.k % self.group:
            mask = (1 << 32 // self.group * (self.plan.k % self.group)) - 1
            last = self.plan.k // self.group
            with builder.when(tir.LT(index(last), index(self.groups))):
                at = add(base, last * self.group)
                self._add(total, self._lane(self._a_word(at, mask)))
        return tir.call_pure_extern("int32", ROW_SUM, builder.load(total, 0, self.lanes))

    def _add(self, total: Any, words: Any) -> None:
        """Add the bytes of ``words`` to the lanes of ``total``."""
        ones = self._splat(ONES)
        operands = (ones, words) if self.is_signed else (words, ones)
        value = self._call(self.builder.load(total, 0, self.lanes), *operands)
        self.builder.store(total, value, 0, self.lanes)

    def _lane(self, word: Any) -> Any:
        """Return a vector with ``word`` in its first lane, else 0."""
        first = tir.EQ(tir.Ramp(index(0), index(1), self.lanes), self._splat(0))
        return tir.Select(first, broadcast(word, self.lanes), self._splat(0))

    def _call(self, total: Any, a: Any, b: Any) -> Any:
        return add_products(self.builder, self.dot, self.lanes, total, a, b)

    def _splat(self, value: int) -> Any:
        signed = value - (1 << 32) if value >= 1 << 31 else value
        return broadcast(tir.IntImm("int32", signed), self.lanes)


def add_products(builder: TirBuilder, dot: Dot, lanes: int, total: Any, a: Any, b: Any) -> Any:
    """Return ``total`` plus the products of each lane's group, by one instruction (or two)."""
    builder.define_llvm(dot.name, _text(dot.name, lanes))
    kind = vector_type(dot.accum, lanes)
    return tir.call_pure_extern(kind, f"tilecore_{dot.name}", total, a, b)


def _text(name: str, lanes: int) -> str:
    """Return the function of an instruction that adds products of so many words to sums."""
    bits = 32 * lanes
    if name == "vpmaddwd":
        return _sum_of_products(lanes)
    if name == "vdpbf16ps":
        accum, operand = f"<{lanes} x float>", f"<{2 * lanes} x bfloat>"
        intrinsic = f"llvm.x86.avx512bf16.dpbf16ps.{bits}"
    else:
        accum, operand = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
        intrinsic = f"llvm.x86.avx512.{name}.{bits}"
    words = f"<{lanes} x i32>"
    given = f"{accum} %c, {words} %a, {words} %b"
    return f"""declare {accum} @{intrinsic}({accum}, {operand}, {operand})
define linkonce_odr hidden {accum} @tilecore_{name}({given}) alwaysinline {{
  %x = bitcast {words} %a to {operand}
  %y = bitcast {words} %b to {operand}
  %r = call {accum} @{intrinsic}({accum} %c, {operand} %x, {operand} %y)
  ret {accum} %r
}}"""


def _sum_of_products(lanes: int) -> str:
    """Return the function of ``vpmaddwd``, which itself adds pairs of products only."""
    words, operand = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
    intrinsic = "avx2.pmadd.wd" if lanes == 8 else "avx512.pmaddw.d.512"
    given = f"{words} %c, {words} %a, {words} %b"
    return f"""declare {words} @llvm.x86.{intrinsic}({operand}, {operand})
define linkonce_odr hidden {words} @tilecore_vpmaddwd({given}) alwaysinline {{
  %x = bitcast {words} %a to {operand}
  %y = bitcast {words} %b to {operand}
  %p = call {words} @llvm.x86.{intrinsic}({operand} %x, {operand} %y)
  %r = add {words} %c, %p
  ret {words} %r
}}"""


def _sum_text(lanes: int) -> str:
    """Return the function that sums up a vector of words."""
    words, intrinsic = f"<{lanes} x i32>", f"llvm.vector.reduce.add.v{lanes}i32"
    return f"""declare i32 @{intrinsic}({words})
define linkonce_odr hidden i32 @{ROW_SUM}({words} %x) alwaysinline {{
  %r = call i32 @{intrinsic}({words} %x)
  ret i32 %r
}}"""
