"""Reductions and scans: in the registers of a thread, then among threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from tvm import tirx as tir

from tilecore.inference.gpu.distribution import Digit, Distribution
from tilecore.inference.gpu.plan import NestPlan
from tilecore.inference.gpu.scratch import folded_digits, folds_in_warp, lanes_of_one_value
from tilecore.ir.expr import Load, Var
from tilecore.ir.fold import STEPS, fold_dtype, identity
from tilecore.ir.nodes import Reduce, Scan
from tilecore.lowering.cuda.access import Accessor
from tilecore.lowering.cuda.memory import FragmentPlace, is_first_copy, only
from tilecore.lowering.cuda.nests.nest import PointLoops
from tilecore.lowering.cuda.scalar import (
    constant,
    convert,
    differs,
    exchanged_type,
    function,
    operate,
    value_type,
)
from tilecore.lowering.tir import add, index, mul, quotient, remainder


class FoldLowering:
    """Emits one reduction or scan.

    ``scratch`` gives shared memory of a type and where an element per thread is free; ``sync``
    lets all threads meet.
    """

    def __init__(
        self,
        accessor: Accessor,
        plan: NestPlan,
        scratch: Callable[[str], tuple[Any, int]],
        sync: Callable[[], None],
    ) -> None:
        self.accessor, self.builder, self.plan = accessor, accessor.builder, plan
        self.points, self.scratch, self.sync = plan.points, scratch, sync
        stmt = plan.points.stmt
        assert isinstance(stmt, (Reduce, Scan))
        self.stmt = stmt
        self.source, self.target = plan.points.accesses
        self.dtype = fold_dtype(stmt.src.buffer.dtype, stmt.dst.buffer.dtype)
        self.kind = value_type(self.dtype)

    def emit(self) -> None:
        """Emit the fold."""
        if isinstance(self.stmt, Scan):
            self._scan(self.stmt)
        else:
            self._reduce(self.stmt)

    # --- values -------------------------------------------------------------------------------

    def _identity(self) -> Any:
        return constant(identity(self.stmt.op, self.dtype), self.dtype)

    def _value(self) -> Any:
        """Return the element at the current point, as it is folded."""
        load = Load(self.source.buffer, self.source.indices, self.source.buffer.dtype)
        value = convert(self.accessor.load(load), str(load.dtype), str(self.dtype))
        if not STEPS[self.stmt.op][0]:
            return value
        if self.dtype.is_float:
            return function("fabs", [value], self.kind)
        zero = constant(0, self.dtype)
        return tir.if_then_else(tir.LT(value, zero), zero - value, value)

    def _step(self, a: Any, b: Any) -> Any:
        """Return the fold of two values."""
        op = STEPS[self.stmt.op][1]
        if self.dtype == "bool":
            return {"bitand": tir.And, "bitor": tir.Or, "bitxor": tir.NE}[op](a, b)
        result = operate(op, a, b, self.dtype)
        keeps_nan = isinstance(self.stmt, Reduce) and self.stmt.nan_propagate
        if keeps_nan and op in ("max", "min") and self.dtype.is_float:
            total = tir.if_then_else(differs(b, b, self.dtype), b, result)
            return tir.if_then_else(differs(a, a, self.dtype), a, total)
        return result

    # --- reductions ---------------------------------------------------------------------------

    def _reduce(self, stmt: Reduce) -> None:
        plan, builder = self.plan, self.builder
        kept = plan.distribution.without(self.points.folded)
        partial = builder.local(kept.slots, self.kind, "fold")
        with builder.turns(kept.slots) as slot:
            builder.store(partial, self._identity(), slot)
        loops = PointLoops(self.accessor, plan.distribution, self.points.names)
        loops.limits = self.points.limits
        self._fold_slots(loops, partial, kept)
        for digit in folded_digits(plan, self.accessor.isa.warp):
            with builder.turns(kept.slots) as slot:
                self._fold_threads(digit, partial, slot)
        names = tuple(n for p, n in enumerate(self.points.names) if p not in self.points.folded)
        self._write(stmt, kept, names, partial)

    def _kept_strides(self, kept: Distribution) -> dict[int, int]:
        """Return the stride in ``kept`` of each slot digit of the points that is not folded."""
        digits = [
            d.stride
            for p, axis in enumerate(self.plan.distribution.axes)
            if p not in self.points.folded
            for d in axis
            if not d.in_thread
        ]
        return dict(
            zip(sorted(digits), sorted(d.stride for d in kept.digits(in_thread=False)), strict=True)
        )

    def _fold_slots(self, loops: PointLoops, partial: Any, kept: Distribution) -> None:
        strides = self._kept_strides(kept)
        slots = loops.find_slots((self.source,))

        def one(digits: dict[int, Any]) -> None:
            place: Any = 0
            for stride, value in digits.items():
                place = add(place, mul(value, strides.get(stride, 0)))
            with loops.at(digits):
                old = self.builder.load(partial, place)
                self.builder.store(partial, self._step(old, self._value()), place)

        if any(s.table is not None for s in slots):
            for digits in loops.all_digits():
                one(dict(digits))
            return
        with loops.open(unrolled=True) as digits:
            one(digits)

    def _fold_threads(self, digit: Digit, partial: Any, slot: Any) -> None:
        """Fold one element of ``partial`` over the threads of a digit; all learn the result."""
        builder = self.builder
        isa = self.accessor.isa
        if folds_in_warp(digit, isa.warp):
            shuffled = exchanged_type(self.kind)
            move = isa.shuffle("xor", shuffled, isa.warp)
            distance = digit.stride * digit.extent // 2
            while distance >= digit.stride:
                mine = builder.bind(builder.load(partial, slot))
                sent = mine if shuffled == self.kind else tir.Cast(shuffled, mine)
                other = move.call(sent, index(distance))
                other = other if shuffled == self.kind else tir.Cast(self.kind, other)
                builder.store(partial, self._step(mine, builder.bind(other)), slot)
                distance //= 2
            return
        thread = self.accessor.thread
        scratch, start = self.scratch(self.kind)
        lanes = lanes_of_one_value(self.plan, digit, isa.warp)
        group, stride = quotient(thread, lanes), digit.stride // lanes
        # Lanes that have one value all store it: a branch around it costs registers.
        builder.store(scratch, builder.load(partial, slot), add(start, group))
        self.sync()
        around = digit.stride * digit.extent
        outside = mul(quotient(thread, around), around // lanes)
        inside = quotient(remainder(thread, digit.stride), lanes)
        first = builder.bind(add(add(start, outside), inside))
        total = builder.local(1, self.kind, "total")
        builder.store(total, builder.load(scratch, first), 0)
        with builder.turns(digit.extent - 1) as other:
            there = add(first, mul(add(other, 1), stride))
            value = builder.load(scratch, there)
            builder.store(total, self._step(builder.load(total, 0), value), 0)
        builder.store(partial, builder.load(total, 0), slot)
        self.sync()

    def _write(
        self, stmt: Reduce, kept: Distribution, names: tuple[Var, ...], partial: Any
    ) -> None:
        accessor = self.accessor
        loops = PointLoops(accessor, kept, names)
        slots = loops.find_slots((self.target,))
        before, accessor.leader = accessor.leader, is_first_copy(kept, accessor.thread)

        def one(digits: dict[int, Any]) -> None:
            place: Any = 0
            for stride, value in digits.items():
                place = add(place, mul(value, stride))
            with loops.at(digits):
                result = self.builder.load(partial, place)
                buffer, indices = self.target.buffer, self.target.indices
                if not stmt.clear:
                    load = Load(buffer, indices, buffer.dtype)
                    old = convert(accessor.load(load), str(buffer.dtype), str(self.dtype))
                    result = self._step(old, result)
                accessor.store(buffer, indices, result, str(self.dtype))

        with contextlib.ExitStack() as stack:
            if any(s.table is not None for s in slots):
                for digits in loops.all_digits():
                    one(dict(digits))
            else:
                one(stack.enter_context(loops.open(unrolled=True)))
        accessor.leader = before

    # --- scans --------------------------------------------------------------------------------

    def _scan(self, stmt: Scan) -> None:
        """Each thread runs along whole rows (inference spreads no scanned axis over threads)."""
        accessor, plan, builder = self.accessor, self.plan, self.builder
        along = self.points.folded[0] if self.points.folded else None  # None: of one element
        loops = PointLoops(accessor, plan.distribution, self.points.names)
        loops.find_slots((self.source, self.target))
        leader = is_first_copy(plan.distribution, accessor.thread)
        keeps = isinstance(accessor.places[self.target.buffer], FragmentPlace)
        before, accessor.leader = accessor.leader, leader if keeps else None
        digits_along = () if along is None else plan.distribution.weights(along)
        scanned = sorted((d.stride, d.extent) for d, _ in digits_along if not d.in_thread)
        others = [
            (d.stride, d.extent)
            for p, axis in enumerate(plan.distribution.axes)
            for d in axis
            if not d.in_thread and p != along
        ]
        total = builder.local(1, self.kind, "total")
        with contextlib.ExitStack() as stack:
            stack.enter_context(only(builder, None if keeps else leader))
            digits = {s: stack.enter_context(builder.turns(n)) for s, n in others}
            builder.store(total, self._identity(), 0)
            weights = {d.stride: w for d, w in digits_along}
            for stride, turns in sorted(scanned, key=lambda p: -weights[p[0]]):
                value = stack.enter_context(builder.turns(turns))
                digits[stride] = add(turns - 1, mul(value, -1)) if stmt.reverse else value
            with loops.at(digits):
                value = self._step(builder.load(total, 0), self._value())
                builder.store(total, value, 0)
                buffer, indices = self.target.buffer, self.target.indices
                accessor.store(buffer, indices, builder.load(total, 0), str(self.dtype))
        accessor.leader = before
