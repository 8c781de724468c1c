"""Matrix products of Volta (sm_70): mma.m8n8k4 by quad pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.plan import Operand
from tilecore.inference.gpu.products.quads import ATOM, EACH, SUMS
from tilecore.ir.nodes import Region
from tilecore.lowering.cuda.memory import thread_index
from tilecore.lowering.cuda.nests.vector import copy_bytes
from tilecore.lowering.cuda.products.mma import MmaLowering
from tilecore.lowering.tir import add, mul


class QuadLowering(MmaLowering):
    """A product whose warps multiply 16 x 16 elements at once, four along K."""

    def _load(self, operand: Operand, region: Region, array: Any, depth: Any, atom: int) -> None:
        if operand.source != "chunks":
            super()._load(operand, region, array, depth, atom)
            return
        builder, spread, thread = self.builder, operand.distribution, self.accessor.thread
        move = copy_bytes(EACH * region.dtype.itemsize)
        across, along = (builder.bind(thread_index(spread, axis, thread)) for axis in (0, 1))
        with builder.turns(spread.slots // EACH) as tile:
            pair = (add(across, mul(tile, ATOM)), add(depth, along))
            memory, offset = self._locate(region, pair[::-1] if operand.is_transposed else pair)
            registers = builder.address(array, mul(tile, EACH))
            builder.evaluate(move.call(registers, builder.address(memory, offset)))

    def _multiply(self, arrays: Sequence[Any], turn: Any) -> None:
        plan, builder = self.plan, self.builder
        layouts = [
            "row" if is_plain else "col"
            for is_plain in (self._is_by_rows(plan.a), not self._is_by_rows(plan.b))
        ]
        instruction = ptx.mma("m8n8k4", *self.kinds(), self.dtype, *layouts)
        counts = [plan.size[axis] // (ATOM * plan.warps[axis]) for axis in (0, 1)]
        starts = [
            mul(turn, count * EACH) if operand.source == "registers" else 0
            for operand, count in zip((plan.a, plan.b), counts, strict=True)
        ]
        with builder.turns(counts[0]) as row, builder.turns(counts[1]) as column:
            sums = mul(add(mul(row, counts[1]), column), SUMS)
            builder.evaluate(
                instruction.call(
                    builder.address(self.sums, sums),
                    builder.address(arrays[0], add(starts[0], mul(row, EACH))),
                    builder.address(arrays[1], add(starts[1], mul(column, EACH))),
                )
            )

    @staticmethod
    def _is_by_rows(operand: Operand) -> bool:
        """Return whether a lane holds neighbours along K."""
        return operand.source == "registers" or not operand.is_transposed
