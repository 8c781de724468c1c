"""Where elements lie on a GPU: tensors, shared tiles, fragments and arrays of one thread."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx as tir

from tilecore.inference.gpu.distribution import Distribution
from tilecore.inference.gpu.places import Slots
from tilecore.inference.gpu.plan import CHUNK_BYTES, SharedLayout
from tilecore.ir.expr import Expr
from tilecore.lowering.cuda.builder import CudaBuilder
from tilecore.lowering.tir import add, index, mul, quotient, remainder


@dataclass(frozen=True, slots=True, eq=False)
class TensorPlace:
    """A tensor in global memory; ``strides`` are in elements, and indices may leave it."""

    memory: Any
    dtype: str
    shape: tuple[Expr | int, ...]
    strides: tuple[Expr | int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SharedPlace:
    """A shared tile; ``stage`` (TIR) says which of its copies is meant."""

    memory: Any
    dtype: str
    layout: SharedLayout
    stage: Any = 0

    def offset(self, indices: Sequence[Any]) -> Any:
        """Return the TIR offset of an element, from TIR indices."""
        layout = self.layout
        base = add(
            layout.offset_bytes // layout.itemsize,
            mul(self.stage, layout.stage_bytes // layout.itemsize),
        )
        return add(base, shared_offset(layout, indices))


def shared_offset(layout: SharedLayout, indices: Sequence[Any]) -> Any:
    """Return the TIR offset of an element within one copy of a tile."""
    row: Any = 0
    for extent, value in zip((layout.seen_as or layout.shape)[:-1], indices[:-1], strict=True):
        row = add(mul(row, extent), value)
    column = indices[-1] if indices else 0
    if layout.seen_as is not None:
        row, column = _in_memory(layout, layout.seen_as[-1], row, column)
    if not layout.swizzle_bytes:
        return add(mul(row, layout.leading), column)
    width, chunk = layout.swizzle_bytes // layout.itemsize, CHUNK_BYTES // layout.itemsize
    rows = layout.elements // layout.shape[-1]
    chunks = width // chunk
    within = remainder(column, width)
    turn = remainder(quotient(row, 8 // chunks), chunks)  # rows of 128 bytes repeat it
    moved = _xor(quotient(within, chunk), turn)
    place = add(mul(row, width), add(mul(moved, chunk), remainder(within, chunk)))
    return add(mul(quotient(column, width), rows * width), place)


def _in_memory(layout: SharedLayout, length: int, row: Any, column: Any) -> tuple[Any, Any]:
    """Return the TIR row and column in memory of an element of a view with rows of ``length``."""
    width = layout.shape[-1]
    if length % width == 0:
        row = add(mul(row, length // width), quotient(column, width))
        return row, remainder(column, width)
    if width % length == 0:
        part = remainder(row, width // length)
        return quotient(row, width // length), add(mul(part, length), column)
    place = add(mul(row, length), column)
    return quotient(place, width), remainder(place, width)


def _xor(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a ^ b
    return tir.bitwise_xor(index(a), index(b))


@dataclass(frozen=True, slots=True, eq=False)
class FragmentPlace:
    """A fragment: an array of each thread."""

    memory: Any
    dtype: str
    distribution: Distribution


@dataclass(frozen=True, slots=True, eq=False)
class LocalPlace:
    """An array that each thread has for itself, row-major."""

    memory: Any
    dtype: str
    shape: tuple[int, ...]


Place = TensorPlace | SharedPlace | FragmentPlace | LocalPlace


@dataclass(slots=True)
class Turn:
    """The slot of a distribution that is being emitted: the value of each digit, by stride."""

    distribution: Distribution
    digits: Mapping[int, Any]

    def slot(self, slots: Slots) -> Any:
        """Return the TIR slot of a fragment's element, outer loops aside.

        Where the slots are no sum of steps, all digits are known numbers.
        """
        if slots.table is not None:
            number = sum(stride * int(value) for stride, value in self.digits.items())
            return slots.table[number]
        total: Any = slots.base
        for stride, value in self.digits.items():
            total = add(total, mul(value, slots.steps.get(stride, 0)))
        return total


def thread_index(distribution: Distribution, axis: int, thread: Any) -> Any:
    """Return what the number of the thread adds to the index along ``axis``."""
    total: Any = 0
    for digit, weight in distribution.weights(axis):
        if digit.in_thread:
            value = quotient(thread, digit.stride)
            if digit.stride * digit.extent < distribution.threads:
                value = remainder(value, digit.extent)
            total = add(total, mul(value, weight))
    return total


def slot_index(distribution: Distribution, axis: int, digits: Mapping[int, Any]) -> Any:
    """Return what the slot adds to the index along ``axis``."""
    total: Any = 0
    for digit, weight in distribution.weights(axis):
        if not digit.in_thread:
            total = add(total, mul(digits[digit.stride], weight))
    return total


def only(builder: CudaBuilder, cond: Any | None) -> contextlib.AbstractContextManager[None]:
    """Open ``if cond``, or nothing where there is no condition."""
    return contextlib.nullcontext() if cond is None else builder.when(cond)


def is_first_copy(distribution: Distribution, thread: Any) -> Any | None:
    """Return the TIR condition that no lower thread has the same points, or None if none has."""
    cond = None
    for digit in distribution.copies:
        value = remainder(quotient(thread, digit.stride), digit.extent)
        one = tir.EQ(index(value), index(0))
        cond = one if cond is None else tir.And(cond, one)
    return cond
