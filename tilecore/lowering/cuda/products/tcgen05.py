"""Matrix products in tensor memory (sm_100): one thread issues them, barriers tell their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx as tir

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.plan import GemmPlan, Operand
from tilecore.inference.gpu.products.matrix_units import operand_kind
from tilecore.ir.expr import Const
from tilecore.ir.nodes import Region
from tilecore.lowering.cuda.memory import SharedPlace
from tilecore.lowering.tir import add, index, mul, quotient, remainder

if TYPE_CHECKING:
    from tilecore.lowering.cuda.lower import LaunchLowering

CHUNK_BYTES = 16  # the unit of a descriptor's address


class TensorProduct:
    """One product, by the thread that issues all of its team."""

    def __init__(self, owner: LaunchLowering, plan: GemmPlan) -> None:
        assert owner.tensor is not None
        self.owner, self.plan, self.memory = owner, plan, owner.tensor
        self.accessor, self.builder, self.stmt = owner.accessor, owner.builder, plan.stmt

    def emit(self) -> None:
        """Emit the product; all threads wait for it, unless the program does."""
        with self.memory.issuer():
            self.issue()
            if not self.plan.is_async:
                done = self.memory.done_barrier(self.stmt)
                self.builder.evaluate(ptx.tensor_commit().call(done))
        if not self.plan.is_async:
            self.memory.wait(self.stmt)

    def issue(self) -> None:
        """Emit the instructions: C += A B, or C = A B."""
        plan, builder, stmt = self.plan, self.builder, self.stmt
        n, step = plan.shape[1:]
        rows, columns = plan.rows, plan.columns_of_b
        self.begin()
        self.memory.fence(before=False)
        a_start = self._left()
        b_start = self._descriptor(stmt.b, plan.b)
        sums = builder.bind(self.memory.start(stmt.c))
        tile = self.owner.plan.tensor_tiles[stmt.c.buffer]
        drops = self._drops()
        with builder.turns(plan.size[2] // step) as turn:
            depth = mul(turn, step)
            for row in range(0, plan.size[0], rows):
                a = self._left_at(a_start, row, depth)
                for number, column in enumerate(range(0, plan.size[1], n)):
                    b = self._advance(b_start, stmt.b, plan.b, number * columns, depth)
                    place = row // rows * tile.row_columns + column
                    there = sums + tir.Cast("uint32", index(place))
                    kept = self._accumulates(turn, drops)
                    self.multiply((row, column, depth), (there, a, b), kept)

    @property
    def majors(self) -> dict[str, str]:
        """The axes along which A and B are contiguous."""
        plan = self.plan
        return {
            "a_major": "m" if plan.a.is_transposed else "k",
            "b_major": "n" if plan.b.is_transposed else "k",
        }

    def begin(self) -> None:
        """Emit what comes before all instructions."""

    def multiply(self, at: tuple[int, int, Any], places: tuple[Any, Any, Any], kept: Any) -> None:
        """Emit the instruction of (row, column, K) with its sums, A and B at ``places``."""
        plan, stmt = self.plan, self.stmt
        instruction = ptx.tensor_mma(
            plan.shape[1], operand_kind(str(stmt.a.dtype)), operand_kind(str(stmt.b.dtype)),
            plan.sums, m=plan.shape[0], **self.majors,
            a_in_tensor_memory=plan.a.source == "tensor memory", pair=stmt.in_pair,
        )  # fmt: skip
        self.builder.evaluate(instruction.call(*places, kept))

    def _left(self) -> Any:
        """Return where A begins: its descriptor, or its address in tensor memory."""
        if self.plan.a.source == "tensor memory":
            return self.builder.bind(self.memory.start(self.stmt.a))
        return self._descriptor(self.stmt.a, self.plan.a)

    def _left_at(self, start: Any, row: int, depth: Any) -> Any:
        """Return A from a row and a K on."""
        if self.plan.a.source != "tensor memory":
            return self._advance(start, self.stmt.a, self.plan.a, row, depth)
        tile = self.owner.plan.tensor_tiles[self.stmt.a.buffer]
        columns = add(row // self.plan.rows * tile.row_columns, quotient(depth, tile.packed))
        return start + tir.Cast("uint32", index(columns))

    def _drops(self) -> Any:
        """Return whether the old sums are dropped: a bool, or a condition in TIR."""
        clear = self.stmt.clear_accum
        if isinstance(clear, Const):
            return bool(clear.value)
        return self.builder.bind(tir.Cast("int32", self.accessor.scalar(clear)))

    def _accumulates(self, turn: Any, drops: Any) -> Any:
        """Return 1 where an instruction adds to the sums, 0 where it replaces them."""
        if isinstance(drops, bool) and not drops:
            return index(1)
        is_first = tir.EQ(index(turn), index(0))
        dropped = True if isinstance(drops, bool) else tir.NE(drops, index(0))
        cond = is_first if dropped is True else tir.And(is_first, dropped)
        return tir.if_then_else(cond, index(0), index(1))

    def _layout(self, region: Region) -> tuple[SharedPlace, int, int]:
        """Return (place, bytes of the swizzle, rows of a panel) of an operand's tile."""
        place = self.accessor.places[region.buffer]
        assert isinstance(place, SharedPlace)
        rows = place.layout.elements // place.layout.shape[-1]
        return place, place.layout.swizzle_bytes, rows

    def _descriptor(self, region: Region, operand: Operand) -> Any:
        """Return the descriptor of the first element of a matrix."""
        place, swizzle, rows = self._layout(region)
        # Not contiguous along K: from panel to panel; else the field means nothing.
        leading = rows * swizzle if operand.is_transposed else CHUNK_BYTES
        outer = [self.accessor.integer(o) for o in region.offsets[:-2]]
        base = self.builder.address(place.memory, place.offset([*outer, 0, 0]))
        return self.builder.bind(ptx.tensor_descriptor(swizzle, leading, 8 * swizzle).call(base))

    def _advance(
        self, start: Any, region: Region, operand: Operand, across: Any, depth: Any
    ) -> Any:
        """Return the descriptor of the matrix from (row of M or N, K) on."""
        place, swizzle, rows = self._layout(region)
        itemsize = place.layout.itemsize
        width = swizzle // itemsize
        first, last = (depth, across) if operand.is_transposed else (across, depth)
        panel = mul(quotient(last, width), rows * swizzle)
        step = add(mul(first, swizzle), add(panel, mul(remainder(last, width), itemsize)))
        return start + tir.Cast("uint64", index(quotient(step, CHUNK_BYTES)))
