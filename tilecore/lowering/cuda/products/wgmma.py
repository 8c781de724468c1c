"""Matrix products by warpgroups: wgmma."""

from __future__ import annotations

from typing import Any

from tvm import tirx as tir

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.plan import Operand
from tilecore.ir.expr import Const
from tilecore.ir.nodes import Region
from tilecore.lowering.cuda.memory import FragmentPlace, SharedPlace
from tilecore.lowering.cuda.products.mma import ProductLowering
from tilecore.lowering.tir import add, index, mul, quotient, remainder

WARPGROUP = 128
REGISTER_BITS = 32


class WgmmaLowering(ProductLowering):
    """A product by warpgroups, which read their operands from shared memory themselves.

    ``start`` emits a group that is under way afterwards; who waits for it calls ``keep_sums``.
    """

    def _clear(self) -> None:
        """Nothing: the first instruction drops the old sums."""

    def multiply(self) -> None:
        """Emit sums += A B, as one group."""
        plan, builder = self.plan, self.builder
        m, n, step = plan.shape
        group = self.accessor.warpgroup if plan.warps != (1, 1) else 0
        row, column = quotient(group, plan.warps[1]), remainder(group, plan.warps[1])
        parts = plan.size[0] // (m * plan.warps[0])
        chunks = plan.size[1] // (n * plan.warps[1])
        in_registers = plan.a.source == "registers"
        instruction = ptx.wgmma(
            n, *self.kinds(), self.dtype,
            a_in_registers=in_registers,
            a_major="m" if plan.a.is_transposed and not in_registers else "k",
            b_major="n" if plan.b.is_transposed else "k",
        )  # fmt: skip
        a_start = None if in_registers else self._descriptor(self.stmt.a, plan.a)
        b_start = self._descriptor(self.stmt.b, plan.b)
        drops = self._drops()
        self.keep_sums()
        builder.evaluate(ptx.wgmma_fence().call())
        with builder.turns(plan.size[2] // step) as turn:
            for part in range(parts):
                for chunk in range(chunks):
                    a_row = add(mul(row, plan.size[0] // plan.warps[0]), part * m)
                    b_row = add(mul(column, plan.size[1] // plan.warps[1]), chunk * n)
                    depth = mul(turn, step)
                    if in_registers:
                        a = self._registers(add(mul(turn, parts), part))
                    else:
                        a = self._advance(a_start, self.stmt.a, plan.a, a_row, depth)
                    b = self._advance(b_start, self.stmt.b, plan.b, b_row, depth)
                    place = builder.address(self.sums, (part * chunks + chunk) * n // 2)
                    builder.evaluate(instruction.call(place, a, b, self._accumulates(turn, drops)))
        builder.evaluate(ptx.wgmma_commit().call())

    def keep_sums(self) -> None:
        """Emit what orders accesses of the sums with the instructions: by register."""
        per_register = 2 if self.dtype == "float16" else 1
        keep = ptx.wgmma_keep(self.plan.c.slots // per_register, self.dtype)
        self.builder.evaluate(keep.call(self.builder.address(self.sums)))

    def keep_operand(self) -> None:
        """Emit what keeps an operand in its registers until here."""
        if self.plan.a.source == "registers":
            bits = self.plan.a.distribution.slots * self.stmt.a.dtype.bits
            keep = ptx.wgmma_keep(bits // REGISTER_BITS, "uint32")
            self.builder.evaluate(keep.call(self._registers(0)))

    def _drops(self) -> Any:
        """Return whether the old sums are dropped: a bool, or a condition in TIR."""
        clear = self.stmt.clear_accum
        if isinstance(clear, Const):
            return bool(clear.value)
        return self.builder.bind(self.accessor.scalar(clear))

    def _accumulates(self, turn: Any, drops: Any) -> Any:
        """Return 1 where an instruction adds to the sums, 0 where it replaces them."""
        if isinstance(drops, bool) and not drops:
            return index(1)
        is_first = tir.EQ(index(turn), index(0))
        cond = is_first if isinstance(drops, bool) else tir.And(is_first, drops)
        return tir.if_then_else(cond, index(0), index(1))

    def _registers(self, number: Any) -> Any:
        """Return where the A of an instruction begins in the fragment."""
        place = self.accessor.places[self.stmt.a.buffer]
        assert isinstance(place, FragmentPlace)
        per_instruction = 16 // self.stmt.a.dtype.itemsize
        return self.builder.address(place.memory, mul(number, per_instruction))

    def _descriptor(self, region: Region, operand: Operand) -> Any:
        """Return the descriptor of the first element of a tile."""
        place = self.accessor.places[region.buffer]
        assert isinstance(place, SharedPlace)
        layout = place.layout
        swizzle, rows = layout.swizzle_bytes, layout.elements // layout.shape[-1]
        leading = rows * swizzle if operand.is_transposed else 16
        outer = [self.accessor.integer(o) for o in region.offsets[:-2]]
        base = self.builder.address(place.memory, place.offset([*outer, 0, 0]))
        return self.builder.bind(ptx.descriptor(swizzle, leading, 8 * swizzle).call(base))

    def _advance(
        self, start: Any, region: Region, operand: Operand, across: Any, depth: Any
    ) -> Any:
        """Return the descriptor of the tile from (row of M or N, K) on."""
        place = self.accessor.places[region.buffer]
        assert isinstance(place, SharedPlace)
        layout = place.layout
        swizzle, rows = layout.swizzle_bytes, layout.elements // layout.shape[-1]
        width = swizzle // layout.itemsize
        first, last = (depth, across) if operand.is_transposed else (across, depth)
        row, column = (self.accessor.integer(o) for o in region.offsets[-2:])
        first, last = add(row, first), add(column, last)
        step = add(
            mul(first, swizzle),
            add(
                mul(quotient(last, width), rows * swizzle),
                mul(remainder(last, width), layout.itemsize),
            ),
        )
        return start + tir.Cast("uint64", index(quotient(step, 16)))
