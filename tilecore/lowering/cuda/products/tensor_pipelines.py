"""Loops that do nothing but multiply in tensor memory (sm_100): one thread runs all of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.plan import Pipeline
from tilecore.inference.gpu.products.tensor_products import only_product
from tilecore.ir.nodes import ChunkCopy, Copy, Gemm
from tilecore.ir.visitor import children
from tilecore.lowering.cuda.copies.stages import use_stage
from tilecore.lowering.cuda.products.tensor_scaled import issue_chunks, product_of
from tilecore.lowering.tir import add

if TYPE_CHECKING:
    from tilecore.lowering.cuda.copies.pipelines import BoxPipelines
    from tilecore.lowering.cuda.lower import LaunchLowering


class TensorPipeline:
    """A loop that does nothing with its tiles but one product: one thread runs all of it."""

    def __init__(
        self, boxes: BoxPipelines, pipeline: Pipeline, factors: tuple[ChunkCopy, ...], product: Gemm
    ) -> None:
        self.boxes, self.pipeline, self.product = boxes, pipeline, product
        self.factors = factors  # copies of them, which stand before the product
        self.owner, self.builder = boxes.owner, boxes.builder

    def emit(self) -> None:
        """Emit the loop, and the wait of all threads for its last product."""
        owner, builder, pipeline, boxes = self.owner, self.builder, self.pipeline, self.boxes
        memory = owner.tensor
        assert memory is not None
        start, trips, _ = owner.loops.trips(pipeline.loop)
        product = product_of(owner, owner.plan.gemms[self.product])
        with memory.issuer():
            with builder.loop(trips) as turn:
                stage, parity = boxes.turn_of(pipeline)
                with owner.loops.named(pipeline.loop, add(start, turn)):
                    for copy in pipeline.copies:
                        boxes.wait_full(copy, stage, parity)
                    for factors in self.factors:
                        issue_chunks(memory, factors)
                    product.issue()
                for copy in pipeline.copies:
                    boxes.commit(pipeline, copy, stage)
                boxes.next_turn(pipeline)
            done = memory.done_barrier(self.product)
            builder.evaluate(ptx.tensor_commit().call(done))
        memory.wait(self.product)
        use_stage(owner, pipeline.tiles, 0)


def frees_by_commit(owner: LaunchLowering, pipeline: Pipeline, copy: Copy) -> bool:
    """Return whether a tile is free when products are complete, and not when threads are done."""
    gemms = owner.plan.gemms
    if only_product(pipeline, gemms) is not None:
        return True
    tile = copy.dst.buffer
    return any(
        isinstance(s, Gemm) and gemms[s].is_async and tile in (s.a.buffer.root, s.b.buffer.root)
        for s in children(pipeline.loop.body) or (pipeline.loop.body,)
    )
