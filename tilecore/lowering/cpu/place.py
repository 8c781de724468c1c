"""Where a buffer lies, and what loads and stores elements and vectors there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.storage import Storage, TensorStorage
from tilecore.ir.arithmetic.lane_offsets import Offsets
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, binary
from tilecore.lowering.cpu import stream
from tilecore.lowering.cpu.functions import bfloat16
from tilecore.lowering.cpu.packed import load_codes, store_codes
from tilecore.lowering.cpu.scalar import (
    convert,
    from_memory,
    memory_type,
    moved_bits,
    to_memory,
    zero,
)
from tilecore.lowering.cpu.shuffles import spread
from tilecore.lowering.tir import TirBuilder, add, broadcast, index, minimum, ramp, vector_type

SHUFFLED = 2  # elements per lane that are loaded to choose from


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Memory of a buffer.

    Attributes:
        memory: the TIR buffer.
        storage: how elements are laid out.
        base: TIR offset of element 0 (a slice of a larger buffer).
        shift: added to the indices before the layout (a tile that is a box of a tensor).
        axes: the tensor's axis that each axis of such a tile runs along (None: extent 1).
        guarded: whether indices may leave the buffer (global tensors).
        stream_bytes: vectors of this size are stored past the caches (0: none).
        flushes: bfloat16 whose subnormal numbers may be kept as 0.
        pairs: keeps vectors of such numbers back, to be rounded in pairs.
        is_own: the memory holds nothing but the element (vector) of the running iteration.
    """

    memory: Any
    storage: Storage | TensorStorage
    base: Any = 0
    shift: tuple[Expr, ...] = ()
    axes: tuple[int | None, ...] = ()
    guarded: bool = False
    stream_bytes: int = 0
    flushes: bool = False
    pairs: bfloat16.Pairs | None = None
    is_own: bool = False

    def indices(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return the indices into ``memory``'s tensor for indices into the tile."""
        if not self.shift:
            return tuple(indices)
        result = list(self.shift)
        for axis, at in zip(self.axes, indices, strict=True):
            if axis is not None:
                result[axis] = binary("add", result[axis], at)
        return tuple(result)


def load_values(
    builder: TirBuilder, place: Place, offset: Any, lanes: int = 1, stride: int = 1
) -> Any:
    """Return elements as they are computed with, in the type they are stored in."""
    stored = place.storage.dtype
    if DType(stored).is_packed:
        return from_memory(load_codes(builder, place.memory, offset, lanes, stride), stored, lanes)
    return from_memory(builder.load(place.memory, offset, lanes, stride), stored, lanes)


def load_lanes(
    builder: TirBuilder, place: Place, offset: Any, apart: Offsets, cond: Any = None
) -> Any:
    """Return elements at known distances from the first one, as they are computed with.

    Where ``cond`` does not hold nothing is loaded, and they are anything.
    """
    stored, lanes = place.storage.dtype, len(apart)

    def loaded(at: Any, size: int = 1) -> Any:
        value = builder.load(place.memory, at, size)
        if cond is not None:
            nothing = broadcast(tir.const(0, memory_type(stored)), size)
            value = tir.if_then_else(cond, value, nothing)
        return builder.bind(value)

    step, least = apart[1] - apart[0], min(apart)
    if apart == tuple(range(0, step * lanes, step) if step else apart[:1] * lanes):
        if step:
            return load_values(builder, place, offset, lanes, step)
        return broadcast(load_values(builder, place, offset), lanes)
    count = max(apart) - least + 1
    first = add(offset, least)
    if count <= SHUFFLED * lanes:
        size = min(count, lanes)
        starts = (0,) if count <= lanes else (0, count - lanes)
        given = [loaded(add(first, s), size) for s in starts]
        return from_memory(
            picked(builder, given, memory_type(stored), size, count, apart), stored, lanes
        )
    first = builder.bind(offset)
    parts = [loaded(add(first, x)) for x in apart]
    order = [tir.IntImm("int32", i) for i in range(lanes)]
    return from_memory(tir.Shuffle(parts, order), stored, lanes)


def picked(
    builder: TirBuilder, parts: Sequence[Any], dtype: str, size: int, count: int, apart: Offsets
) -> Any:
    """Return the elements at ``apart``, of ``count`` from the least one on.

    ``parts`` are the first ``size`` of those and, if they are more, the last ones.
    """
    places = [x - min(apart) for x in apart]
    chosen = [x if x < size else x - (count - size) + size for x in places]
    return spread(builder, parts, dtype, size, chosen)


def store_values(
    builder: TirBuilder, place: Place, value: Any, offset: Any, lanes: int = 1, stride: int = 1
) -> None:
    """Store computed values of the storage's dtype."""
    stored = place.storage.dtype
    if place.pairs is not None and stride == 1 and _is_rounded(place, value, lanes):
        place.pairs.keep(place.memory, offset, value)
        return
    raw = raw_of(builder, place, value, lanes)
    if DType(stored).is_packed:
        store_codes(builder, place.memory, raw, offset, lanes, stride)
    elif stride == 1 and place.stream_bytes == lanes * DType(stored).itemsize:
        stream.store(builder, place.memory, raw, offset, lanes)
    else:
        builder.store(place.memory, raw, offset, lanes, stride)


def raw_of(builder: TirBuilder, place: Place, value: Any, lanes: int) -> Any:
    """Return a computed value of the storage's dtype as memory has it."""
    if _is_rounded(place, value, lanes):
        return bfloat16.rounded(builder, value)
    return to_memory(value, place.storage.dtype, lanes)


def _is_rounded(place: Place, value: Any, lanes: int) -> bool:
    """Return whether the instruction rounds a vector of a place, which is computed, not moved."""
    return place.flushes and lanes == bfloat16.LANES and moved_bits(value) is None


@dataclass(frozen=True, slots=True)
class LaneMask:
    """Which of ``lanes`` consecutive indices from ``first`` on are below ``limit``."""

    first: Any
    limit: Any
    lanes: int
    is_two_sided: bool = False  # indices below 0 are none of them

    @property
    def condition(self) -> Any:
        """The mask as a vector in TIR."""
        indices, limit = ramp(self.first, self.lanes), broadcast(index(self.limit), self.lanes)
        if not self.is_two_sided:
            return tir.LT(indices, limit)
        kind = vector_type("uint32", self.lanes)  # of which those below 0 are the largest
        return tir.LT(tir.reinterpret(kind, indices), tir.reinterpret(kind, limit))


def vector_load(
    builder: TirBuilder,
    place: Place,
    offset: Any,
    lanes: int,
    dtype: str,
    mask: LaneMask | None = None,
) -> Any:
    """Return ``lanes`` contiguous elements converted to ``dtype``; masked-off lanes are 0."""
    stored = place.storage.dtype
    if mask is None:
        return convert(load_values(builder, place, offset, lanes), stored, dtype, lanes)
    raw = masked_raw(place, offset, mask)
    return convert(from_memory(raw, stored, lanes), stored, dtype, lanes)


def masked_raw(place: Place, offset: Any, mask: LaneMask) -> Any:
    """Return contiguous elements as they lie in memory; masked-off lanes are 0."""
    kind, lanes, condition = memory_type(place.storage.dtype), mask.lanes, mask.condition
    raw = tir.op.masked_load(vector_type(kind, lanes), place.memory, ramp(offset, lanes), condition)
    return tir.Select(condition, raw, zero(kind, lanes))  # TVM leaves those lanes undefined


def vector_store(
    builder: TirBuilder,
    place: Place,
    value: Any,
    offset: Any,
    lanes: int,
    mask: LaneMask | None = None,
) -> None:
    """Store ``lanes`` contiguous values of the storage's dtype; masked-off lanes stay."""
    stored = place.storage.dtype
    if mask is None:
        store_values(builder, place, value, offset, lanes)
    elif DType(stored).itemsize >= 4:
        kept = to_memory(value, stored, lanes)
        builder.evaluate(
            tir.op.masked_store(place.memory, kept, ramp(offset, lanes), mask.condition)
        )
    else:
        _store_some(builder, place, raw_of(builder, place, value, lanes), offset, mask)


def _store_some(builder: TirBuilder, place: Place, kept: Any, offset: Any, mask: LaneMask) -> None:
    """Store narrow elements without masks: LLVM 22 writes 4 bytes for one element of 2."""
    kept, lanes = builder.bind(kept), mask.lanes
    with builder.when(tir.LE(index(add(mask.first, lanes)), index(mask.limit))):
        builder.store(place.memory, kept, offset, lanes)
    with builder.otherwise():
        edge = builder.alloc(lanes, memory_type(place.storage.dtype), "edge")
        builder.store(edge, kept, 0, lanes)
        with builder.loop(minimum(lanes, index(mask.limit) - index(mask.first))) as lane:
            builder.store(place.memory, builder.load(edge, lane), add(offset, lane))
