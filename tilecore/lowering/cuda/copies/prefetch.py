"""Pipelined loops where no instruction copies to shared memory: the next tiles wait in registers.

The loads of the next iteration begin before the products of this one and are waited for after
them. With two tiles of each kind all threads meet once an iteration, with one tile twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tvm import tirx as tir

from tilecore.inference.gpu.plan import NestPlan
from tilecore.lowering.cuda.access import Accessor
from tilecore.lowering.cuda.copies.pipelines import AsyncPipeline
from tilecore.lowering.cuda.copies.stages import use_stage
from tilecore.lowering.cuda.instructions.wave import schedule_fence
from tilecore.lowering.cuda.memory import TensorPlace, is_first_copy
from tilecore.lowering.cuda.nests.nest import PointLoops
from tilecore.lowering.cuda.nests.vector import copy_bytes
from tilecore.lowering.cuda.scalar import memory_type
from tilecore.lowering.tir import add, index, mul, remainder


class RegisterPipeline(AsyncPipeline):
    """A loop whose next tiles all threads load while they use the tiles before."""

    def emit(self) -> None:
        """Emit the loop."""
        owner, builder, tiles = self.owner, self.builder, self.pipeline.tiles
        plans = [owner.plan.nests[copy] for copy in self.pipeline.copies]
        parts = [HeldCopy(self.accessor, plan) for plan in plans]
        use_stage(owner, tiles, 0)
        with self._if_there_is(0):
            self._load(parts, 0)
            self._store(parts, 0)
        with builder.loop(self.trips) as turn:
            owner.meetings.sync()
            later = builder.bind(add(turn, 1))
            with self._if_there_is(later):
                self._load(parts, later)
            builder.evaluate(schedule_fence().call())
            use_stage(owner, tiles, builder.bind(remainder(turn, self.pipeline.stages)))
            owner.loops.iteration(self.pipeline.loop, add(self.start, turn))
            builder.evaluate(schedule_fence().call())
            if self.pipeline.stages == 1:
                owner.meetings.sync()
            use_stage(owner, tiles, builder.bind(remainder(later, self.pipeline.stages)))
            with self._if_there_is(later):
                self._store(parts, later)
        use_stage(owner, tiles, 0)

    @contextlib.contextmanager
    def _if_there_is(self, turn: Any) -> Iterator[None]:
        """Open the condition that there is an iteration of this number."""
        if isinstance(turn, int) and isinstance(self.trips, int) and turn < self.trips:
            yield
            return
        with self.builder.when(tir.LT(index(turn), index(self.trips))):
            yield

    def _load(self, parts: list[HeldCopy], turn: Any) -> None:
        with self.owner.loops.named(self.pipeline.loop, add(self.start, turn)):
            for lookup in self.pipeline.lookups:
                self.owner.inner(lookup)
            for part in parts:
                part.load()

    def _store(self, parts: list[HeldCopy], turn: Any) -> None:
        with self.owner.loops.named(self.pipeline.loop, add(self.start, turn)):
            for part in parts:
                part.store()


class HeldCopy:
    """A copy from a tensor to a shared tile whose elements a thread holds in between."""

    def __init__(self, accessor: Accessor, plan: NestPlan) -> None:
        self.accessor, self.builder, self.plan = accessor, accessor.builder, plan
        self.source, self.target = plan.points.accesses
        self.dtype = str(self.source.buffer.dtype)
        self.held = self.builder.local(plan.distribution.slots, memory_type(self.dtype), "held")

    def load(self) -> None:
        """Emit the loads; what lies outside of the tensor becomes 0."""
        accessor, builder = self.accessor, self.builder
        place = accessor.places[self.source.buffer]
        assert isinstance(place, TensorPlace)
        with self._points() as number:
            registers = builder.address(self.held, number)
            cond = accessor.guard(place, self.source.indices)
            there = builder.address(*accessor.locate(self.source.buffer, self.source.indices))
            move = self._move().call(registers, there)
            if cond is None:
                builder.evaluate(move)
                return
            with builder.when(cond):
                builder.evaluate(move)
            with builder.otherwise(), builder.turns(self.plan.lanes) as lane:
                builder.store(self.held, accessor.zero(self.dtype), add(number, lane))

    def store(self) -> None:
        """Emit the stores."""
        accessor, builder = self.accessor, self.builder
        with self._points() as number:
            there = builder.address(*accessor.locate(self.target.buffer, self.target.indices))
            builder.evaluate(self._move().call(there, builder.address(self.held, number)))

    def _move(self) -> Any:
        return copy_bytes(self.plan.lanes * self.source.buffer.dtype.itemsize)

    @contextlib.contextmanager
    def _points(self) -> Iterator[Any]:
        """Open the loops of the thread and yield where it holds the lanes of a point."""
        plan = self.plan
        loops = PointLoops(self.accessor, plan.distribution, plan.points.names, plan.lanes)
        leader = is_first_copy(plan.distribution, self.accessor.thread)
        with contextlib.ExitStack() as stack:
            if leader is not None:
                stack.enter_context(self.builder.when(leader))
            digits = stack.enter_context(loops.open(unrolled=True))
            stack.enter_context(loops.at(digits))
            number: Any = 0
            for stride, value in digits.items():
                number = add(number, mul(value, stride))
            yield number
