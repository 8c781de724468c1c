"""Matrix products in tensor memory (sm_100): one thread issues them, barriers tell their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx as tir

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.matrix_units import operand_kind
from tilecore.inference.gpu.plan import GemmPlan, Operand, Pipeline
from tilecore.inference.gpu.tensor_products import only_product
from tilecore.ir.expr import Const
from tilecore.ir.nodes import Copy, Gemm, Region
from tilecore.ir.visitor import children
from tilecore.lowering.cpu.tir import add, index, mul, quotient, remainder
from tilecore.lowering.cuda.memory import SharedPlace
from tilecore.lowering.cuda.stages import use_stage

if TYPE_CHECKING:
    from tilecore.lowering.cuda.lower import LaunchLowering
    from tilecore.lowering.cuda.pipelines import BoxPipelines

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
        m, n, step = plan.shape
        rows, columns = plan.rows, plan.columns_of_b
        instruction = ptx.tensor_mma(
            n, operand_kind(str(stmt.a.dtype)), operand_kind(str(stmt.b.dtype)), plan.sums, m=m,
            a_major="m" if plan.a.is_transposed else "k",
            b_major="n" if plan.b.is_transposed else "k",
            a_in_tensor_memory=plan.a.source == "tensor memory", pair=stmt.in_pair,
        )  # fmt: skip
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
                    builder.evaluate(instruction.call(there, a, b, kept))

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


class TensorPipeline:
    """A loop that does nothing with its tiles but one product: one thread runs all of it."""

    def __init__(self, boxes: BoxPipelines, pipeline: Pipeline, product: Gemm) -> None:
        self.boxes, self.pipeline, self.product = boxes, pipeline, product
        self.owner, self.builder = boxes.owner, boxes.builder

    def emit(self) -> None:
        """Emit the loop, and the wait of all threads for its last product."""
        owner, builder, pipeline, boxes = self.owner, self.builder, self.pipeline, self.boxes
        memory = owner.tensor
        assert memory is not None
        start, trips, _ = owner.loops.trips(pipeline.loop)
        product = TensorProduct(owner, owner.plan.gemms[self.product])
        with memory.issuer():
            with builder.loop(trips) as turn:
                stage, parity = boxes.turn_of(pipeline)
                with owner.loops.named(pipeline.loop, add(start, turn)):
                    for copy in pipeline.copies:
                        boxes.wait_full(copy, stage, parity)
                    product.issue()
                for copy in pipeline.copies:
                    boxes.commit(pipeline, copy, stage)
                boxes.next_turn(pipeline)
            done = memory.done_barrier(self.product)
            builder.evaluate(ptx.tensor_commit().call(done))
        memory.wait(self.product)
        use_stage(owner, pipeline.copies, 0)


def frees_by_commit(owner: LaunchLowering, pipeline: Pipeline, copy: Copy) -> bool:
    """Return whether a tile is free when products are complete, and not when threads are done."""
    gemms = owner.plan.gemms
    if only_product(pipeline, gemms) is not None:
        return True
    tile = copy.dst.buffer
    return any(
        isinstance(s, Gemm) and gemms[s].is_async and tile in (s.a.buffer, s.b.buffer)
        for s in children(pipeline.loop.body) or (pipeline.loop.body,)
    )
