"""Loading and storing elements, under what is known of the variables around."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from tvm import tirx as tir

from tilecore.errors import UnsupportedOnTarget
from tilecore.inference.gpu.loops import Access
from tilecore.inference.gpu.places import Slots
from tilecore.ir.arithmetic.bounds import Interval, Known
from tilecore.ir.expr import Expr, Load, Var, binary, cast, const, int_value
from tilecore.ir.nodes import Buffer
from tilecore.lowering.cuda.builder import CudaBuilder
from tilecore.lowering.cuda.instruction_set import InstructionSet
from tilecore.lowering.cuda.instructions.base import Instruction
from tilecore.lowering.cuda.memory import (
    FragmentPlace,
    LocalPlace,
    Place,
    SharedPlace,
    TensorPlace,
    Turn,
)
from tilecore.lowering.cuda.scalar import Scope, constant, convert, from_memory, lower, to_memory
from tilecore.lowering.tir import add, index, mul

INT32_MAX = 2**31 - 1
AccessKey = tuple[Buffer, tuple[int, ...], bool]


@functools.cache
def store_half_byte() -> Instruction:
    """Return ``(void* bytes, int64 element, uint32 code)``: 4 bits, the other half kept.

    Atomic on the word around it: the other half may be another thread's.
    """
    body = """unsigned long long byte = (unsigned long long)bytes + (element >> 1);
unsigned* word = (unsigned*)(byte & ~3ull);
unsigned shift = (unsigned)(byte & 3ull) * 8u + (unsigned)(element & 1) * 4u;
unsigned seen = *(volatile unsigned*)word, expected;
do {
  expected = seen;
  seen = atomicCAS(word, expected, (expected & ~(15u << shift)) | code << shift);
} while (seen != expected);"""
    return Instruction("tc_store_half_byte", "void* bytes, long long element, unsigned code", body)


def access_key(access: Access) -> AccessKey:
    """Return the name of an access among ``Accessor.staged``: what, the ids of where, how."""
    return access.buffer, tuple(id(i) for i in access.indices), access.is_store


def half(offset: Any) -> Any:
    """Return the byte of an element of 4 bits."""
    place = index(offset)
    return tir.shift_right(place, tir.IntImm(str(getattr(place, "ty", "int32")), 1))


def halves(low: Any, high: Any) -> Any:
    """Return the byte of two elements of 4 bits (uint8)."""
    return tir.bitwise_or(low, tir.shift_left(high, tir.IntImm("uint8", 4)))


def _wide(offset: Any) -> Any:
    return tir.Cast("int64", index(offset))


class Accessor:
    """Lowers element accesses of one launch.

    Attributes:
        isa: the instructions that differ from target to target.
        places: where each buffer lies.
        values: TIR value of each variable.
        thread: TIR number of the thread in its block, one of ``thread_count``.
        warpgroup: TIR number of its warpgroup, which the compiler knows to be one for a warp.
        turn: the points being emitted, and where these find fragments.
        staged: elements that a wide access has brought, by access: see ``nests.py``.
        decided: conditions that neighbours have alike, by the id of their expression.
        leader: condition under which stores to memory happen, if not all threads do them.
    """

    def __init__(self, builder: CudaBuilder, isa: InstructionSet) -> None:
        self.builder, self.isa = builder, isa
        self.places: dict[Buffer, Place] = {}
        self.values: dict[Var, Any] = {}
        self.ranges: dict[Var, Interval] = {}
        self.tops: dict[Var, Expr] = {}
        self.lets: dict[Var, Expr] = {}
        self.lengths: dict[Var, int] = {}  # of what stands in the place of names
        self.pads: dict[Buffer, Expr] = {}
        self.thread: Any = 0
        self.warpgroup: Any = 0
        self.thread_count = 1
        self.turn: Turn | None = None
        self.slots: dict[tuple[int, tuple[Expr, ...]], Slots] = {}
        self.staged: dict[AccessKey, tuple[Any, Any]] = {}
        self.decided: dict[int, Any] = {}
        self.leader: Any | None = None

    @property
    def scope(self) -> Scope:
        """The meaning of names here."""
        return Scope(self.values, self.load)

    @property
    def known(self) -> Known:
        """What is known of the variables here."""
        return Known(self.ranges, self.tops, self.lets)

    def scalar(self, expr: Expr) -> Any:
        """Lower a scalar expression."""
        return lower(expr, self.scope)

    def decided_or(self, written: Expr, value: Expr) -> Any:
        """Return what neighbours have alike, where that was decided, else ``value`` as it is."""
        known = self.decided.get(id(written))
        return self.scalar(value) if known is None else known

    def integer(self, expr: Expr) -> Any:
        """Return an integer expression as int32: a Python int where it is known."""
        known = int_value(expr)
        return known if known is not None else self.scalar(cast(expr, "int32"))

    @contextlib.contextmanager
    def bound(
        self, var: Var, value: Any, bounds: Interval | None, top: Expr | None = None
    ) -> Iterator[None]:
        """Give a variable its value, and what is known of it, for a while."""
        typed = (
            value
            if isinstance(value, int) or var.dtype == "int32"
            else tir.Cast(str(var.dtype), value)
        )
        if isinstance(value, int) and var.dtype != "int32":
            typed = tir.IntImm(str(var.dtype), value)
        self.values[var] = typed
        if bounds is not None:
            self.ranges[var] = bounds
        if top is not None:
            self.tops[var] = top
        yield
        for known in (self.values, self.ranges, self.tops):
            known.pop(var, None)

    # --- guards -------------------------------------------------------------------------------

    def guard(self, place: TensorPlace, indices: Sequence[Expr]) -> Any | None:
        """Return the condition that indices are inside a tensor, or None where they surely are."""
        cond = None
        for value, extent in zip(indices, place.shape, strict=True):
            bounds = self.known.bounds(value)
            if bounds is None or bounds[0] < 0:
                one = lower(binary("ge", value, 0), self.scope)
                cond = one if cond is None else tir.And(cond, one)
            if not self.known.is_below(value, extent):
                one = lower(binary("lt", value, extent), self.scope)
                cond = one if cond is None else tir.And(cond, one)
        return cond

    # --- elements -----------------------------------------------------------------------------

    def load(self, expr: Load) -> Any:
        """Return an element; outside a tensor it is 0, or what the program pads with."""
        buffer, indices = expr.buffer, expr.indices
        place = self.places[buffer]
        key = (buffer, tuple(id(i) for i in indices), False)
        if key in self.staged:
            array, lane = self.staged[key]
            is_halved = buffer.dtype.is_packed and isinstance(place, TensorPlace)
            raw = self._half(array, lane) if is_halved else self.builder.load(array, lane)
            return from_memory(raw, str(buffer.dtype))
        memory, offset = self.locate(buffer, indices)
        if isinstance(place, TensorPlace) and buffer.dtype.is_packed:
            value = from_memory(self._half(memory, offset), place.dtype)
        else:
            value = from_memory(self.builder.load(memory, offset), place.dtype)
        if not isinstance(place, TensorPlace):
            return value
        cond = self.guard(place, indices)
        if cond is None:
            return value
        pad = self.pads.get(buffer, const(0, expr.dtype))
        return tir.if_then_else(cond, value, lower(pad, self.scope))

    def store(self, buffer: Buffer, indices: Sequence[Expr], value: Any, dtype: str) -> None:
        """Store a computed value of ``dtype``; outside a tensor nothing happens."""
        place = self.places[buffer]
        raw = to_memory(convert(value, dtype, str(buffer.dtype)), str(buffer.dtype))
        key = (buffer, tuple(id(i) for i in indices), True)
        if key in self.staged:
            array, lane = self.staged[key]
            if isinstance(place, TensorPlace) and buffer.dtype.is_packed:
                first = tir.bitwise_and(
                    tir.BufferLoad(array, [half(lane)]), tir.IntImm("uint8", 15)
                )
                is_first = tir.EQ(tir.bitwise_and(index(lane), index(1)), index(0))
                raw, lane = tir.if_then_else(is_first, raw, halves(first, raw)), half(lane)
            self.builder.store(array, raw, lane)
            return
        memory, offset = self.locate(buffer, indices)
        with self.storing(place, indices):
            if isinstance(place, TensorPlace) and buffer.dtype.is_packed:
                start = self.builder.address(memory)
                nibble = tir.Cast("uint32", raw)
                self.builder.evaluate(store_half_byte().call(start, _wide(offset), nibble))
            else:
                self.builder.store(memory, raw, offset)

    def _half(self, memory: Any, offset: Any) -> Any:
        """Return 4 bits of a byte that holds two elements, the first one in its low half."""
        kind = str(getattr(index(offset), "ty", "int32"))
        place, one = index(offset), tir.IntImm(kind, 1)
        byte = tir.BufferLoad(memory, [tir.shift_right(place, one)])
        shift = tir.Cast("uint8", tir.bitwise_and(place, one) * tir.IntImm(kind, 4))
        return tir.bitwise_and(tir.shift_right(byte, shift), tir.IntImm("uint8", 15))

    @contextlib.contextmanager
    def storing(self, place: Place, indices: Sequence[Expr]) -> Iterator[None]:
        """Open the conditions under which a store to ``indices`` takes place."""
        cond = None
        if isinstance(place, TensorPlace):
            cond = self.guard(place, indices)
        if self.leader is not None and isinstance(place, (TensorPlace, SharedPlace)):
            cond = self.leader if cond is None else tir.And(self.leader, cond)
        if cond is None:
            yield
            return
        with self.builder.when(cond):
            yield

    def locate(self, buffer: Buffer, indices: Sequence[Expr]) -> tuple[Any, Any]:
        """Return (TIR buffer, TIR offset) of an element."""
        place = self.places[buffer]
        match place:
            case TensorPlace():
                return place.memory, self._tensor_offset(place, indices)
            case SharedPlace():
                return place.memory, place.offset([self.integer(i) for i in indices])
            case LocalPlace():
                total: Any = 0
                for extent, value in zip(place.shape, indices, strict=True):
                    total = add(mul(total, extent), self.integer(value))
                return place.memory, total
            case FragmentPlace():
                return place.memory, self._fragment_slot(buffer, indices)

    def _tensor_offset(self, place: TensorPlace, indices: Sequence[Expr]) -> Any:
        is_wide = any(isinstance(s, Expr) for s in place.strides) or (
            all(isinstance(n, int) for n in place.shape)
            and sum(
                (int(n) - 1) * int(s) for n, s in zip(place.shape, place.strides, strict=True)
            )
            > INT32_MAX
        )  # fmt: skip
        total: Any = 0
        for value, step in zip(indices, place.strides, strict=True):
            if not is_wide:
                assert isinstance(step, int)
                total = add(total, mul(self.integer(value), step))
                continue
            wide = cast(value, "int64")
            factor = cast(step, "int64") if isinstance(step, Expr) else const(step, "int64")
            term = lower(binary("mul", wide, factor), self.scope)
            total = term if isinstance(total, int) and total == 0 else total + term
        return total

    def _fragment_slot(self, buffer: Buffer, indices: Sequence[Expr]) -> Any:
        found = self.slots.get((id(buffer), tuple(indices)))
        if found is None or self.turn is None:
            raise UnsupportedOnTarget(
                what=f"an element of the fragment `{buffer.name}` outside a parallel loop",
                target="cuda", reason="its elements are spread over threads", span=buffer.span,
            )  # fmt: skip
        total = self.turn.slot(found)
        for expr, weight, extent, stride in found.outer:
            value = self.integer(expr)
            digit = tir.truncmod(tir.truncdiv(index(value), index(weight)), index(extent))
            total = add(total, mul(digit, stride))
        return total

    def zero(self, dtype: str) -> Any:
        """Return 0 as it lies in memory."""
        return to_memory(constant(0, dtype), dtype)
