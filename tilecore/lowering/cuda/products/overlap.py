"""Pipelined loops in which the products of two iterations overlap (``plan.Overlap``)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvm import tirx as tir

from tilecore.inference.gpu.plan import Overlap, Pipeline
from tilecore.ir.nodes import Copy, Stmt
from tilecore.ir.visitor import roots_of
from tilecore.lowering.cuda.copies.stages import use_stage
from tilecore.lowering.tir import add, index

if TYPE_CHECKING:
    from tilecore.lowering.cuda.copies.pipelines import BoxPipelines


class OverlappedLoop:
    """A loop whose iterations issue their first products before the last one of the one before.

    What a tile is for in an iteration decides about its barriers: it is waited for before its first
    use, and freed when the statements and products that use it are over.
    """

    def __init__(self, boxes: BoxPipelines, pipeline: Pipeline, order: Overlap) -> None:
        self.boxes, self.pipeline, self.order = boxes, pipeline, order
        self.owner, self.builder = boxes.owner, boxes.builder
        self.start, self.trips, _ = boxes.owner.loops.trips(pipeline.loop)
        self.early = (*order.first, *order.meanwhile, *order.rest)

    def emit(self) -> None:
        """Emit the loop: the first iteration, all others, the last product."""
        builder = self.builder
        with contextlib.ExitStack() as stack:
            if not isinstance(self.trips, int):
                stack.enter_context(builder.when(tir.GT(index(self.trips), index(0))))
            elif not self.trips:
                return
            self._iteration(0, is_first=True)
            with builder.kept_loop(add(self.trips, -1)) as turn:
                self._iteration(add(turn, 1), is_first=False)
            self._last(self.trips, *self.boxes.turn_of(self.pipeline))
            self.owner.running.drain()
        use_stage(self.owner, self.pipeline.tiles, 0)

    def _iteration(self, turn: Any, *, is_first: bool) -> None:
        """Emit an iteration without its last product, but with that of the one before."""
        order, loop = self.order, self.pipeline.loop
        stage, parity = self.boxes.turn_of(self.pipeline)
        with self.owner.loops.named(loop, add(self.start, turn)):
            self._statements(order.first, stage, parity)
        if not is_first:
            self._last(turn, stage, parity)
            use_stage(self.owner, self.pipeline.tiles, stage)
        with self.owner.loops.named(loop, add(self.start, turn)):
            self._statements((*order.meanwhile, *order.rest), stage, parity)
            self.owner.running.drain()
        self.boxes.next_turn(self.pipeline)

    def _statements(self, stmts: Sequence[Stmt], stage: Any, parity: Any) -> None:
        """Emit statements of an iteration."""
        for stmt in stmts:
            position = self.early.index(stmt)
            for copy in self._copies_in(stmt):
                if not self._is_used(copy, self.early[:position]):
                    self.boxes.wait_full(copy, stage, parity)
            self.owner.statement(stmt)
            for copy in self._copies_in(stmt):
                after = (*self.early[position + 1 :], self.order.last)
                if not self._is_used(copy, after):
                    self.boxes.free_after(self.pipeline, copy, stage)

    def _last(self, turn: Any, stage: Any, parity: Any) -> None:
        """Emit the last product of the iteration before, and what frees its tiles after that."""
        stage, parity = self.boxes.rings[id(self.pipeline.loop)].before(stage, parity)
        use_stage(self.owner, self.pipeline.tiles, stage)
        copies = self._copies_in(self.order.last)
        for copy in copies:
            if not self._is_used(copy, self.early):
                self.boxes.wait_full(copy, stage, parity)
        with self.owner.loops.named(self.pipeline.loop, add(self.start, add(turn, -1))):
            self.owner.statement(self.order.last)
        for copy in copies:
            self.boxes.free_after(self.pipeline, copy, stage)

    def _copies_in(self, stmt: Stmt) -> list[Copy]:
        return [c for c in self.pipeline.copies if c.dst.buffer in roots_of(stmt)]

    def _is_used(self, copy: Copy, stmts: Sequence[Stmt]) -> bool:
        return any(copy.dst.buffer in roots_of(s) for s in stmts)
