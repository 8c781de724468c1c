"""Nests of independent points: each thread runs its own, neighbours in memory at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tvm import tirx as tir

from tilecore.inference.gpu.distribution import Distribution
from tilecore.inference.gpu.loops import Access
from tilecore.inference.gpu.places import Slots, slots_of
from tilecore.inference.gpu.plan import Gather, NestPlan
from tilecore.ir.expr import Expr, Load, Var, const, int_value
from tilecore.ir.nodes import Copy, Stmt
from tilecore.ir.visitor import has_loads
from tilecore.lowering.cuda.access import Accessor
from tilecore.lowering.cuda.instructions import async_copy
from tilecore.lowering.cuda.memory import (
    FragmentPlace,
    LocalPlace,
    TensorPlace,
    Turn,
    is_first_copy,
    only,
    slot_index,
    thread_index,
)
from tilecore.lowering.cuda.nests.wide import WideMoves
from tilecore.lowering.tir import add, index, mul

UNROLLED_SLOTS = 64  # points of a thread that are written out where no fragment asks for it
# Those of less than a word whose loads may lie outside of a tensor: each holds a register, and its
# address two more, until it is stored.
GUARDED_SLOTS = 16


class PointLoops:
    """Opens the loops over the slots of a distribution, and gives the names their values."""

    def __init__(
        self,
        accessor: Accessor,
        distribution: Distribution,
        names: tuple[Var, ...],
        lanes: int = 1,
    ) -> None:
        self.accessor, self.builder = accessor, accessor.builder
        self.distribution, self.names = distribution, names
        self.lanes = lanes
        self.limits: Mapping[int, Expr] = {}
        self.starts = [
            self.builder.bind(thread_index(distribution, axis, accessor.thread))
            for axis in range(len(names))
        ]

    def find_slots(self, accesses: tuple[Access, ...]) -> list[Slots]:
        """Say where the points find the fragments they access."""
        found = []
        for access in accesses:
            place = self.accessor.places.get(access.buffer)
            if isinstance(place, FragmentPlace):
                slots = slots_of(self.distribution, self.names, access.indices, place.distribution)
                assert slots is not None  # inference has checked it
                self.accessor.slots[id(access.buffer), access.indices] = slots
                found.append(slots)
        return found

    def digits(self) -> list[tuple[int, int]]:
        """Return (stride, turns) of each loop, outermost first."""
        found = sorted(
            ((d.stride, d.extent) for d in self.distribution.digits(in_thread=False)), reverse=True
        )
        if self.lanes > 1:
            found[-1] = (found[-1][0], found[-1][1] // self.lanes)
        return found

    @contextlib.contextmanager
    def open(self, *, unrolled: bool) -> Iterator[dict[int, Any]]:
        """Open the loops and yield the value of each digit at lane 0."""
        digits: dict[int, Any] = {}
        with contextlib.ExitStack() as stack:
            for stride, turns in self.digits():
                value = stack.enter_context(self.builder.turns(turns, unrolled=unrolled))
                is_lane = self.lanes > 1 and stride == 1
                digits[stride] = mul(value, self.lanes) if is_lane else value
            yield digits

    def all_digits(self) -> Iterator[dict[int, int]]:
        """Yield the values of the digits of every slot, as numbers."""
        loops = self.digits()
        total = 1
        for _, turns in loops:
            total *= turns
        for number in range(total):
            digits, rest = {}, number
            for stride, turns in reversed(loops):
                digits[stride] = (
                    rest % turns * (self.lanes if self.lanes > 1 and stride == 1 else 1)
                )
                rest //= turns
            yield digits

    @contextlib.contextmanager
    def at(
        self, digits: dict[int, Any], lane: Any = 0, *, is_checked: bool = True
    ) -> Iterator[None]:
        """Name the point of these digits, where it exists, if that is to be checked."""
        accessor, distribution = self.accessor, self.distribution
        here = dict(digits)
        if self.lanes > 1:
            here[1] = add(here[1], lane)
        before, accessor.turn = accessor.turn, Turn(distribution, here)
        with contextlib.ExitStack() as stack:
            for axis, name in enumerate(self.names):
                value = add(self.starts[axis], slot_index(distribution, axis, here))
                extent = distribution.shape[axis]
                stack.enter_context(accessor.bound(name, value, (0, extent - 1), const(extent)))
            cond = self.exists(here) if is_checked else None
            if cond is not None:
                stack.enter_context(self.builder.when(cond))
            yield
        accessor.turn = before

    def exists(self, digits: dict[int, Any]) -> Any | None:
        """Return the condition under which there is a point of these digits; None: there is."""
        cond = None
        for axis in range(len(self.names)):
            value = add(self.starts[axis], slot_index(self.distribution, axis, digits))
            limit = self.limits.get(axis)
            if limit is not None:
                one = tir.LT(index(value), index(self.accessor.integer(limit)))
            elif self.distribution.is_padded(axis):
                one = tir.LT(index(value), index(self.distribution.shape[axis]))
            else:
                continue
            cond = one if cond is None else tir.And(cond, one)
        return cond


class NestLowering:
    """Emits one nest, copy or fill."""

    def __init__(
        self, accessor: Accessor, plan: NestPlan, statement: Callable[[Stmt], None]
    ) -> None:
        self.accessor, self.builder = accessor, accessor.builder
        self.points, self.statement = plan.points, statement
        self.loops = PointLoops(accessor, plan.distribution, plan.points.names)
        self.loops.limits = plan.points.limits
        self.has_table = any(
            s.table is not None for s in self.loops.find_slots(self.points.accesses)
        )
        # Where slots are looked up by number, the lanes have to be written out too.
        self.plan = replace(plan, lanes=1, wide=()) if self.has_table else plan
        self.loops.lanes = self.plan.lanes

    def emit(self) -> None:
        """Emit all points of the thread."""
        accessor, nest = self.accessor, self.points.nest
        assert nest is not None
        leader = is_first_copy(self.plan.distribution, accessor.thread)
        own = (FragmentPlace, LocalPlace)
        keeps = any(
            a.is_store and isinstance(accessor.places.get(a.buffer), own)
            for a in self.points.accesses
        )
        with only(self.builder, None if keeps else leader):
            self._points(leader if keeps else None)

    def _points(self, leader: Any | None) -> None:
        """Emit the points; ``leader``: under which they store to memory."""
        accessor = self.accessor
        before, accessor.leader = accessor.leader, leader
        holds = any(
            isinstance(accessor.places.get(a.buffer), FragmentPlace) for a in self.points.accesses
        )
        turns = self.plan.distribution.slots // self.plan.lanes
        if self.has_table:
            for digits in self.loops.all_digits():
                self._turn(digits)
        else:
            unrolled = holds or turns <= self._most_unrolled()
            with self.loops.open(unrolled=unrolled) as digits:
                self._turn(digits)
        accessor.leader = before

    def _most_unrolled(self) -> int:
        """Return how many points of a thread may be written out."""
        if not isinstance(self.points.stmt, Copy) or self.plan.lanes > 1:
            return UNROLLED_SLOTS
        source = self.points.accesses[0]
        is_open = int_value(source.buffer.shape[-1]) is None
        return GUARDED_SLOTS if is_open and source.buffer.scope == "global" else UNROLLED_SLOTS

    def _turn(self, digits: dict[int, Any]) -> None:
        """Emit the points of one slot: all lanes."""
        nest, builder = self.points.nest, self.builder
        assert nest is not None
        if not self.plan.wide:
            assert self.plan.lanes == 1
            with self.loops.at(digits):
                self.statement(nest.body)
            return
        moves = WideMoves(self.accessor, self.plan)
        moves.declare()
        accessor, before = self.accessor, self.accessor.decided
        with self.loops.at(digits, is_checked=False):
            accessor.decided = before | {
                key: builder.bind(self._decided(meaning, digits))
                for key, meaning in moves.conditions().items()
            }
        with self.loops.at(digits):
            moves.load()
        with (
            builder.turns(self.plan.lanes) as lane,
            moves.staged(lane),
            self.loops.at(digits, lane),
        ):
            self.statement(nest.body)
        with self.loops.at(digits):
            moves.store()
        accessor.decided = before

    def _decided(self, meaning: Expr, digits: dict[int, Any]) -> Any:
        """Return the value of a condition; of one that loads, false where there is no point."""
        exists = self.loops.exists(digits) if has_loads(meaning) else None
        value = self.accessor.scalar(meaning)
        return (
            value if exists is None else tir.if_then_else(exists, value, tir.const(False, "bool"))
        )


class AsyncCopyLowering:
    """Emits a copy from a tensor to a shared tile that is not waited for (cp.async)."""

    def __init__(self, accessor: Accessor, plan: NestPlan) -> None:
        self.accessor, self.builder, self.plan = accessor, accessor.builder, plan
        self.loops = PointLoops(accessor, plan.distribution, plan.points.names, plan.lanes)

    def emit(self, gather: Gather | None = None) -> None:
        """Emit the copies of the thread; what lies outside the tensor becomes 0.

        Args:
            gather: what the nest is, if it is no copy.
        """
        target = next(a for a in self.plan.points.accesses if a.is_store)
        if gather is not None:
            source = gather.source
        else:
            first = self.plan.points.accesses[0]
            source = Load(first.buffer, first.indices, first.buffer.dtype)
        cond = None if gather is None else gather.cond
        size = self.plan.lanes * source.buffer.dtype.itemsize
        turns = self.plan.distribution.slots // self.plan.lanes
        leader = is_first_copy(self.plan.distribution, self.accessor.thread)
        with contextlib.ExitStack() as stack:
            if leader is not None:
                stack.enter_context(self.builder.when(leader))
            digits = stack.enter_context(self.loops.open(unrolled=turns <= UNROLLED_SLOTS))
            stack.enter_context(self.loops.at(digits))
            self._copy(source, target, cond, size)

    def _copy(self, source: Load, target: Access, asked: Expr | None, size: int) -> None:
        accessor, builder = self.accessor, self.builder
        place = accessor.places[source.buffer]
        assert isinstance(place, TensorPlace)
        to = builder.address(*accessor.locate(target.buffer, target.indices))
        cond = accessor.guard(place, source.indices)
        if asked is not None:
            value = accessor.scalar(asked)
            cond = value if cond is None else tir.And(value, cond)
        memory, offset = accessor.locate(source.buffer, source.indices)
        if cond is None:
            copy = async_copy.cp_async(size)
            builder.evaluate(copy.call(to, builder.address(memory, offset)))
            return
        inside = builder.bind(cond)
        read = tir.if_then_else(inside, index(size), index(0))
        kept = tir.if_then_else(
            inside, index(offset), index(0) if not _is_wide(offset) else tir.IntImm("int64", 0)
        )
        copy = async_copy.cp_async(size, has_size=True)
        builder.evaluate(copy.call(to, builder.address(memory, kept), read))


def _is_wide(offset: Any) -> bool:
    return not isinstance(offset, int) and str(getattr(offset, "ty", "")) == "int64"
