"""Nests of independent points: each thread runs its own, neighbours in memory at once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tvm import tirx as tir

from tilecore.inference.gpu.distribution import Distribution
from tilecore.inference.gpu.loops import Access, Condition
from tilecore.inference.gpu.places import Slots, slots_of
from tilecore.inference.gpu.plan import CHUNK_BYTES, NestPlan
from tilecore.ir import nodes
from tilecore.ir.expr import Expr, Var, binary, const, int_value
from tilecore.ir.nodes import Copy, Stmt
from tilecore.ir.visitor import has_loads
from tilecore.lowering.cpu.tir import add, index, mul
from tilecore.lowering.cuda.access import Accessor
from tilecore.lowering.cuda.instructions import async_copy
from tilecore.lowering.cuda.memory import (
    FragmentPlace,
    LocalPlace,
    SharedPlace,
    TensorPlace,
    Turn,
    is_first_copy,
    only,
    slot_index,
    thread_index,
)
from tilecore.lowering.cuda.scalar import memory_type
from tilecore.lowering.cuda.vector import copy_bytes

UNROLLED_SLOTS = 64  # points of a thread that are written out where no fragment asks for it
# Those of less than a word whose loads may lie outside of a tensor: each holds a register, and its
# address two more, until it is stored.
GUARDED_SLOTS = 16


AccessKey = tuple[nodes.Buffer, tuple[int, ...], bool]  # the name of one in ``Accessor.staged``


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
        self.plan = replace(plan, lanes=1, wide=frozenset()) if self.has_table else plan
        self.loops.lanes = self.plan.lanes
        # What is written the same way in several places moves where it is asked for in any.
        self.wide: list[Access] = []
        self.under: dict[AccessKey, list[tuple[Condition, ...]]] = {}
        for access in (self.points.accesses[n] for n in sorted(self.plan.wide)):
            places = self.under.setdefault(access_key(access), [])
            self.wide += [] if places else [access]
            places.append(access.under)

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
        lanes = self.plan.lanes
        if lanes == 1:
            with self.loops.at(digits):
                self.statement(nest.body)
            return
        arrays = [
            builder.local(lanes, memory_type(str(a.buffer.dtype)), a.buffer.name) for a in self.wide
        ]
        accessor, before = self.accessor, self.accessor.decided
        with self.loops.at(digits, is_checked=False):
            conditions = (c for places in self.under.values() for under in places for c in under)
            accessor.decided = before | {
                key: builder.bind(self._decided(meaning, digits))
                for key, meaning in {id(c.written): c.meaning for c in conditions}.items()
            }
        with self.loops.at(digits):
            for access, array in zip(self.wide, arrays, strict=True):
                if not access.is_store:
                    self._move(access, array)
        with builder.turns(lanes) as lane:
            for access, array in zip(self.wide, arrays, strict=True):
                accessor.staged[access_key(access)] = (array, lane)
            with self.loops.at(digits, lane):
                self.statement(nest.body)
            for access in self.wide:
                del accessor.staged[access_key(access)]
        with self.loops.at(digits):
            for access, array in zip(self.wide, arrays, strict=True):
                if access.is_store:
                    self._move(access, array)
        accessor.decided = before

    def _decided(self, meaning: Expr, digits: dict[int, Any]) -> Any:
        """Return the value of a condition; of one that loads, false where there is no point."""
        exists = self.loops.exists(digits) if has_loads(meaning) else None
        value = self.accessor.scalar(meaning)
        return (
            value if exists is None else tir.if_then_else(exists, value, tir.const(False, "bool"))
        )

    def _where(self, access: Access) -> Any | None:
        """Return the condition under which an access is asked for, None: it always is."""
        decided, found = self.accessor.decided, None
        places = self.under[access_key(access)]
        if () in places:
            return None
        for under in places:
            values = [decided[id(c.written)] for c in under]
            held = [v if c.holds else tir.Not(v) for c, v in zip(under, values, strict=True)]
            one = functools.reduce(tir.And, held)
            found = one if found is None else tir.Or(found, one)
        return found

    def _move(self, access: Access, array: Any) -> None:
        """Move the lanes of an access between memory and an array of the thread."""
        accessor, builder = self.accessor, self.builder
        place = accessor.places[access.buffer]
        itemsize = access.buffer.dtype.itemsize
        per_chunk = min(self.plan.lanes, CHUNK_BYTES // itemsize)
        move = copy_bytes(per_chunk * itemsize)
        memory, offset = accessor.locate(access.buffer, access.place)
        offset = builder.bind(offset) if not isinstance(offset, int) else offset
        is_swizzled = isinstance(place, SharedPlace) and place.layout.swizzle_bytes

        def start(first: int) -> Any:
            if not (first and is_swizzled):
                return add(offset, first)
            # Chunks that follow each other in a row do not in memory.
            *outer, last = access.place
            there = accessor.locate(access.buffer, (*outer, binary("add", last, first)))[1]
            return builder.bind(there) if not isinstance(there, int) else there

        starts = [(first, start(first)) for first in range(0, self.plan.lanes, per_chunk)]

        def chunks() -> None:
            for first, position in starts:
                there = builder.address(memory, position)
                here = builder.address(array, first)
                pair = (there, here) if access.is_store else (here, there)
                builder.evaluate(move.call(*pair))

        under = self._where(access)
        if access.is_store:
            with contextlib.ExitStack() as stack:
                if under is not None:
                    stack.enter_context(builder.when(under))
                stack.enter_context(accessor.storing(place, access.place))
                chunks()
            return
        cond = accessor.guard(place, access.place) if isinstance(place, TensorPlace) else None
        if under is not None:
            cond = under if cond is None else tir.And(under, cond)
        if cond is None:
            chunks()
            return
        pad = accessor.pads.get(access.buffer)
        raw = accessor.zero(str(access.buffer.dtype))
        if pad is not None:
            from tilecore.lowering.cuda.scalar import to_memory

            raw = to_memory(accessor.scalar(pad), str(access.buffer.dtype))
        with builder.when(cond):
            chunks()
        with builder.otherwise(), builder.turns(self.plan.lanes) as lane:
            builder.store(array, raw, lane)


def access_key(access: Access) -> AccessKey:
    """Return the name of an access among ``Accessor.staged``."""
    return access.buffer, tuple(id(i) for i in access.indices), access.is_store


class AsyncCopyLowering:
    """Emits a copy from a tensor to a shared tile that is not waited for (cp.async)."""

    def __init__(self, accessor: Accessor, plan: NestPlan) -> None:
        self.accessor, self.builder, self.plan = accessor, accessor.builder, plan
        self.loops = PointLoops(accessor, plan.distribution, plan.points.names, plan.lanes)

    def emit(self) -> None:
        """Emit the copies of the thread; what lies outside the tensor becomes 0."""
        source, target = self.plan.points.accesses
        assert isinstance(self.plan.points.stmt, Copy)
        size = self.plan.lanes * source.buffer.dtype.itemsize
        turns = self.plan.distribution.slots // self.plan.lanes
        leader = is_first_copy(self.plan.distribution, self.accessor.thread)
        with contextlib.ExitStack() as stack:
            if leader is not None:
                stack.enter_context(self.builder.when(leader))
            digits = stack.enter_context(self.loops.open(unrolled=turns <= UNROLLED_SLOTS))
            stack.enter_context(self.loops.at(digits))
            self._copy(source, target, size)

    def _copy(self, source: Access, target: Access, size: int) -> None:
        accessor, builder = self.accessor, self.builder
        place = accessor.places[source.buffer]
        assert isinstance(place, TensorPlace)
        to = builder.address(*accessor.locate(target.buffer, target.indices))
        cond = accessor.guard(place, source.indices)
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
