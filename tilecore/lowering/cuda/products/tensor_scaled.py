"""Products of elements and factors in tensor memory (sm_100), and what copies the factors there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx as tir

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.loops import divisor
from tilecore.inference.gpu.plan import GemmPlan
from tilecore.inference.gpu.products.tensor_scaled import depth_of
from tilecore.ir.arithmetic.polynomial import product
from tilecore.ir.expr import const, int_value
from tilecore.ir.nodes import ChunkCopy
from tilecore.ir.plain.scaled_gemm import (
    CHUNK,
    COLUMNS,
    LANES,
    PER_WORD,
    columns_of_word,
    words_along_k,
)
from tilecore.lowering.cuda.instructions.tcgen05_scaled import COPY_STEP
from tilecore.lowering.cuda.memory import SharedPlace
from tilecore.lowering.cuda.products.tcgen05 import CHUNK_BYTES, TensorProduct
from tilecore.lowering.cuda.products.tensor_memory import TensorMemory
from tilecore.lowering.tir import add, index, mul, quotient, remainder

if TYPE_CHECKING:
    from tilecore.lowering.cuda.lower import LaunchLowering


def copy_chunks(memory: TensorMemory, stmt: ChunkCopy) -> None:
    """Emit the copies of chunks of words, by the thread that issues products."""
    with memory.issuer():
        issue_chunks(memory, stmt)


def issue_chunks(memory: TensorMemory, stmt: ChunkCopy) -> None:
    """Emit the instructions that copy chunks of words."""
    builder, accessor = memory.builder, memory.accessor
    place = accessor.places[stmt.src.buffer]
    assert isinstance(place, SharedPlace)
    chunks = int_value(product(stmt.src.extents))
    assert chunks is not None
    memory.fence(before=False)
    offsets = [accessor.integer(o) for o in stmt.src.offsets]
    base = builder.address(place.memory, place.offset(offsets))
    source = builder.bind(ptx.tensor_descriptor(0, 0, COPY_STEP).call(base))
    target = builder.bind(memory.start(stmt.dst))
    with builder.turns(chunks // CHUNK) as turn:
        there = target + tir.Cast("uint32", index(mul(turn, COLUMNS)))
        step = mul(turn, CHUNK * 4 // CHUNK_BYTES)
        copied = ptx.tensor_copy(stmt.in_pair).call(there, source + tir.Cast("uint64", index(step)))
        builder.evaluate(copied)


def product_of(owner: LaunchLowering, plan: GemmPlan) -> TensorProduct:
    """Return the lowering of a product in tensor memory."""
    return ScaledTensorProduct(owner, plan) if plan.stmt.factors else TensorProduct(owner, plan)


class ScaledTensorProduct(TensorProduct):
    """A product of elements and factors: each instruction names the byte of its factors' words."""

    def begin(self) -> None:
        """Bind where the factors lie, and where the product begins along K."""
        self.places = [self.builder.bind(self.memory.start(f)) for f in self.stmt.factors]
        self.words = [words_along_k(depth_of(self.stmt), s) for s in self.stmt.sharing]
        self.starts = [self._start(side) for side in range(2)]

    def _start(self, side: int) -> Any:
        """Return where the product begins along K, or 0 where that decides on no factor."""
        start = self.stmt.start
        period = self.stmt.sharing[side] * PER_WORD * self.words[side]
        if start is None or divisor(start, self.accessor.lets) % period == 0:
            return 0
        return self.builder.bind(index(self.accessor.integer(start)))

    def multiply(self, at: tuple[int, int, Any], places: tuple[Any, Any, Any], kept: Any) -> None:
        """Emit the instruction of (row, column, K) with its sums, A and B at ``places``."""
        stmt, builder = self.stmt, self.builder
        kinds = [stmt.pairs_of or str(r.dtype) for r in (stmt.a, stmt.b)]
        each = 2 if stmt.pairs_of else 1
        words, bytes_of = zip(
            *(self._factors(side, at[side], mul(at[2], each)) for side in range(2)), strict=True
        )
        instruction = ptx.tensor_mma_scaled(
            self.plan.shape[1], *kinds, stmt.factor_type, pair=stmt.in_pair, **self.majors
        )
        builder.evaluate(instruction.call(*places, *words, *map(index, bytes_of), kept))

    def _factors(self, side: int, across: int, depth: Any) -> tuple[Any, Any]:
        """Return (the address of the words of an instruction, the byte of the first factor)."""
        number = quotient(add(self.starts[side], depth), self.stmt.sharing[side])
        word = remainder(quotient(number, PER_WORD), self.words[side])
        rows = const(self.plan.size[side])
        column = add(mul(word, int_value(columns_of_word(rows)) or 0), across // LANES)
        there = self.places[side] + tir.Cast("uint32", index(column))
        return there, remainder(number, PER_WORD)
