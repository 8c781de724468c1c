"""Indexing a buffer: elements become Loads, slices Regions; and the extents rules of copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilecore.errors import ShapeMismatch, TypeMismatch, UnsupportedSyntax
from tilecore.ir.arithmetic.polynomial import is_equal, is_one, subtract
from tilecore.ir.expr import Binary, Expr, Load, as_expr, binary, const, int_value, select
from tilecore.ir.nodes import Buffer, Region
from tilecore.ir.vector import Vector


def index_buffer(buffer: Buffer, key: Any) -> Load | Region | Vector:
    """Return ``buffer[key]``: a Load if every axis has an index, a Region if one has a slice.

    Where an index is a vector (T.Ramp), or elements are vectors, it is the vector of what lies
    there.

    Raises:
        ShapeMismatch: the number of indices is not the rank (TC201).
        TypeMismatch: an index is not an integer (TC202).
    """
    keys = key if isinstance(key, tuple) else (key,)
    if any(k is Ellipsis for k in keys):
        keys = _expand_ellipsis(keys, buffer.ndim)
    if buffer.lanes > 1 and len(keys) == buffer.ndim - 1:
        if not any(isinstance(k, slice) for k in keys):
            return index_buffer(buffer, (*keys, Vector(tuple(map(const, range(buffer.lanes))))))
        keys = (*keys, slice(None))
    if len(keys) != buffer.ndim:
        raise ShapeMismatch(
            what=f"indices of `{buffer.name}`",
            expected=f"{buffer.ndim} (its shape is {format_shape(buffer.shape)})",
            found=len(keys),
        )
    if any(isinstance(k, Vector) for k in keys):
        return _gather(buffer, keys)
    if not any(isinstance(k, slice) for k in keys):
        indices = tuple(as_index(buffer, axis, k) for axis, k in enumerate(keys))
        return Load(buffer, indices, buffer.dtype)
    offsets, extents = [], []
    for axis, k in enumerate(keys):
        start, extent = _slice_bounds(buffer, axis, k)
        offsets.append(start)
        extents.append(extent)
    return Region(buffer, tuple(offsets), tuple(extents))


def _gather(buffer: Buffer, keys: tuple[Any, ...]) -> Vector:
    """Return the elements at the lanes of an index; lanes below 0 count from the end."""
    counts = {len(k.lanes) for k in keys if isinstance(k, Vector)}
    if len(counts) > 1 or any(isinstance(k, slice) for k in keys):
        raise TypeMismatch(
            expected=f"vectors of one length as indices of `{buffer.name}`, and no slices",
            found=", ".join(str(k.dtype) if isinstance(k, Vector) else str(k) for k in keys),
        )

    def index(axis: int, lane: int) -> Expr:
        key = keys[axis]
        if not isinstance(key, Vector):
            return as_index(buffer, axis, key)
        found = as_index(buffer, axis, key.lanes[lane])
        if int_value(found) is not None or all(x is key.lanes[0] for x in key.lanes):
            return found
        return select(binary("lt", found, 0), buffer.shape[axis] + found, found)

    lanes = (tuple(index(a, i) for a in range(len(keys))) for i in range(counts.pop()))
    return Vector(tuple(Load(buffer, at, buffer.dtype) for at in lanes))


def _expand_ellipsis(keys: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    position = next(i for i, k in enumerate(keys) if k is Ellipsis)
    missing = rank - (len(keys) - 1)
    return keys[:position] + (slice(None),) * missing + keys[position + 1 :]


def _slice_bounds(buffer: Buffer, axis: int, key: Any) -> tuple[Expr, Expr]:
    if not isinstance(key, slice):
        return as_index(buffer, axis, key), const(1)
    if key.step is not None and int_value(key.step) != 1:
        raise UnsupportedSyntax(expected="a slice with step 1", found=f"step {key.step}")
    start = const(0) if key.start is None else as_index(buffer, axis, key.start)
    stop = buffer.shape[axis] if key.stop is None else as_index(buffer, axis, key.stop)
    return start, subtract(stop, start)


def as_index(buffer: Buffer, axis: int, value: Any) -> Expr:
    """Return ``value`` as an index of ``axis``; a negative literal counts from the end."""
    index = as_expr(value)
    if not index.dtype.is_integer:
        is_quotient = isinstance(index, Binary) and index.op == "div"
        raise TypeMismatch(
            expected=f"an integer index of `{buffer.name}` (axis {axis})", found=index.dtype,
            hint="`//` divides integers" if is_quotient else 'T.cast(x, "int32") is an integer',
        )  # fmt: skip
    number, extent = int_value(index), int_value(buffer.shape[axis])
    if number is None or number >= 0:
        return index
    if extent is not None and number < -extent:
        raise ShapeMismatch(
            what=f"index of `{buffer.name}`, axis {axis}",
            expected=f"{-extent} to {extent - 1}",
            found=number,
        )
    return buffer.shape[axis] + index


def whole(buffer: Buffer) -> Region:
    """Return the region that covers all of ``buffer``."""
    return Region(buffer, tuple(const(0) for _ in buffer.shape), buffer.shape)


def is_whole(region: Region) -> bool:
    """Return whether ``region`` covers its buffer."""
    return all(int_value(o) == 0 for o in region.offsets) and all(
        is_equal(e, s) for e, s in zip(region.extents, region.buffer.shape, strict=True)
    )


def squeeze(extents: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return ``extents`` without the axes of size 1."""
    return tuple(e for e in extents if not is_one(e))


def same_extents(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Return whether two boxes have the same extents once axes of size 1 are dropped."""
    x, y = squeeze(a), squeeze(b)
    return len(x) == len(y) and all(is_equal(p, q) for p, q in zip(x, y, strict=True))


def grow(load: Load, extents: Sequence[Expr]) -> Region:
    """Return the region that starts at the element ``load`` and has ``extents``, right-aligned.

    Raises:
        ShapeMismatch: ``extents`` has more axes (other than size 1) than the buffer (TC201).
    """
    rank = load.buffer.ndim
    fitted = list(extents)
    while len(fitted) > rank and any(is_one(e) for e in fitted):
        del fitted[next(i for i, e in enumerate(fitted) if is_one(e))]
    if len(fitted) > rank:
        raise ShapeMismatch(
            what=f"copy at an element of `{load.buffer.name}`",
            expected=f"at most {rank} axes",
            found=format_shape(extents),
        )
    padded = [const(1)] * (rank - len(fitted)) + fitted
    return Region(load.buffer, load.indices, tuple(padded))


def varying_axes(box: Region) -> tuple[int, ...]:
    """Return the axes of a size other than 1."""
    return tuple(axis for axis, extent in enumerate(box.extents) if not is_one(extent))


def element(box: Region, names: Mapping[int, Expr]) -> Load:
    """Return the element of ``box`` at ``names``, by axis; 0 along the others."""
    indices = tuple(
        offset + names[axis] if axis in names else offset for axis, offset in enumerate(box.offsets)
    )
    return Load(box.buffer, indices, box.buffer.dtype)


def format_shape(shape: Sequence[Expr]) -> str:
    """Return a shape as people write it: ``(128, 32)``."""
    return "(" + ", ".join(str(e) for e in shape) + ("," if len(shape) == 1 else "") + ")"
