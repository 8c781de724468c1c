"""Matrix products of wavefronts (AMD's MFMA)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx as tir

from tilecore.inference.gpu.plan import Operand
from tilecore.ir.nodes import Region
from tilecore.lowering.cuda.instructions import wave
from tilecore.lowering.cuda.memory import thread_index
from tilecore.lowering.cuda.narrow import upper_half
from tilecore.lowering.cuda.nests.vector import copy_bytes
from tilecore.lowering.cuda.products.mma import MmaLowering
from tilecore.lowering.cuda.scalar import from_memory, memory_type
from tilecore.lowering.tir import add, mul, quotient, remainder

WAVE = 64
ATOM = 16


class MfmaLowering(MmaLowering):
    """A product of wavefronts: each multiplies its part, step by step along K."""

    def multiply(self) -> None:
        """Emit sums += A B."""
        plan, builder = self.plan, self.builder
        lane = builder.bind(remainder(self.accessor.thread, WAVE))
        self.row = builder.bind(remainder(lane, ATOM))
        self.quarter = builder.bind(quotient(lane, ATOM))
        sides = ((plan.a, self.stmt.a, "a"), (plan.b, self.stmt.b, "b"))
        arrays = [self._array(*side) for side in sides]
        step = plan.shape[2] * self._at_once()
        with builder.turns(plan.size[2] // step) as turn:
            for (operand, region, _), array in zip(sides, arrays, strict=True):
                self._load(operand, region, array, mul(turn, step), ATOM)
            if self.plan.converts_to:
                arrays = [
                    self._exact(operand, region, array, turn)
                    for (operand, region, _), array in zip(sides, arrays, strict=True)
                ]
            self._multiply(arrays, turn)

    def _at_once(self) -> int:
        """Return how many instructions' worth of K is loaded at once."""
        for operand in (self.plan.a, self.plan.b):
            if operand.source != "registers":
                return operand.distribution.shape[1] // self.plan.shape[2]
        return 1

    def _load(self, operand: Operand, region: Region, array: Any, depth: Any, atom: int) -> None:
        if operand.source == "rows":
            self._load_rows(operand, region, array, depth)
            return
        if operand.source != "chunks":
            super()._load(operand, region, array, depth, atom)
            return
        builder, spread = self.builder, operand.distribution
        unit = self.plan.shape[2] // 4 * self._at_once()
        move = copy_bytes(unit * region.dtype.itemsize)
        wavefront = mul(quotient(self.accessor.thread, WAVE), WAVE)
        first = builder.bind(add(thread_index(spread, 0, wavefront), self.row))
        along = builder.bind(add(depth, mul(self.quarter, unit)))
        with builder.turns(spread.slots // unit) as tile:
            at = add(first, mul(tile, atom))
            memory, offset = self._locate(region, (at, along))
            registers = builder.address(array, mul(tile, unit))
            builder.evaluate(move.call(registers, builder.address(memory, offset)))

    def _load_rows(self, operand: Operand, region: Region, array: Any, depth: Any) -> None:
        """Load neighbours along the rows at each K of the lane, and deal them out to the tiles."""
        builder, spread = self.builder, operand.distribution
        unit = self.plan.shape[2] // 4 * self._at_once()
        wide = spread.axes[0][-1].extent
        move = copy_bytes(wide * region.dtype.itemsize)
        wavefront = mul(quotient(self.accessor.thread, WAVE), WAVE)
        first = add(thread_index(spread, 0, wavefront), mul(self.row, wide))
        first = builder.bind(first)
        along = builder.bind(add(depth, mul(self.quarter, unit)))
        staged = builder.local(wide, memory_type(str(region.dtype)), "row")
        with builder.turns(spread.slots // (unit * wide)) as group, builder.turns(unit) as turn:
            at = add(first, mul(group, ATOM * wide))
            memory, offset = self._locate(region, (add(along, turn), at))
            builder.evaluate(move.call(builder.address(staged), builder.address(memory, offset)))
            with builder.turns(wide) as tile:
                slot = add(mul(add(mul(group, wide), tile), unit), turn)
                builder.store(array, builder.load(staged, tile), slot)

    def _exact(self, operand: Operand, region: Region, array: Any, turn: Any) -> Any:
        """Return the registers of a turn as the instruction reads them: of a type that holds all.

        That of 8-bit floats is the upper half of their float32.
        """
        builder, count, start = self.builder, operand.distribution.slots, 0
        if operand.source == "registers":
            count //= self.plan.size[2] // self.plan.shape[2]
            start = mul(turn, count)
        made = builder.local(count, memory_type(self.plan.converts_to), "exact")
        with builder.turns(count) as slot:
            value = from_memory(builder.load(array, add(start, slot)), str(region.dtype))
            half = upper_half().call(value)
            builder.store(made, tir.Cast("uint16", half), slot)
        return made

    def _multiply(self, arrays: Sequence[Any], turn: Any) -> None:
        plan, builder = self.plan, self.builder
        step, at_once = plan.shape[2], self._at_once()
        x, y = (plan.converts_to or str(region.dtype) for region in (self.stmt.b, self.stmt.a))
        instruction = wave.mfma(
            step, x, y, self.dtype, flushes=self.accessor.isa.flushes_subnormals
        )
        rows = plan.size[0] // (ATOM * plan.warps[0])
        columns = plan.size[1] // (ATOM * plan.warps[1])
        each = step // 4
        unit = each * at_once
        starts = [
            mul(turn, count * unit) if operand.source == "registers" and not plan.converts_to else 0
            for operand, count in ((plan.a, rows), (plan.b, columns))
        ]
        with (
            builder.turns(at_once) as part,
            builder.turns(rows) as row,
            builder.turns(columns) as column,
        ):
            offset = mul(part, each)
            a = add(add(starts[0], mul(row, unit)), offset)
            b = add(add(starts[1], mul(column, unit)), offset)
            sums = mul(add(mul(row, columns), column), 4)
            builder.evaluate(
                instruction.call(
                    builder.address(self.sums, sums),
                    builder.address(arrays[1], b),
                    builder.address(arrays[0], a),
                )
            )
