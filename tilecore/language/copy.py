"""Moving and setting tiles: T.copy, T.fill, T.clear."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tilecore.errors import ShapeMismatch, TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.expr import ExprLike, Load, cast, int_value
from tilecore.ir.indexing import format_shape, grow, same_extents, squeeze, varying_axes, whole
from tilecore.ir.nodes import Buffer, Copy, Fill, Region, Store


def region(value: Any, what: str) -> Region:
    """Return a tile argument as a region: a buffer, a slice, or one element.

    Raises:
        TypeMismatch: it is not a tile (TC202).
    """
    if isinstance(value, Buffer):
        return whole(value)
    if isinstance(value, Load):
        return grow(value, ())
    if isinstance(value, Region):
        return value
    raise TypeMismatch(expected=f"a tensor or tile for {what}", found=f"{type(value).__name__}")


def copy(
    src: Any,
    dst: Any,
    coalesced_width: int | None = None,
    disable_tma: bool = False,
    eviction_policy: str | None = None,
    prefer_instruction: str | None = None,
    annotations: dict[str, Any] | None = None,
    loop_layout: Any = None,
) -> None:
    """Copy a tile, converting elements to the type of ``dst``.

    A buffer stands for all of it, a slice for its region; an element ``A[i, j]`` takes the extents
    of the other side, right-aligned; where a slice of a global tensor has a size known only at run
    time, a tile's size holds for both. Outside a global tensor loads give 0 and stores are skipped.

    Args:
        src: where to read.
        dst: where to write.
        coalesced_width: hint, changes speed only; so do the following.
        disable_tma: see coalesced_width.
        eviction_policy: see coalesced_width.
        prefer_instruction: see coalesced_width.
        annotations: kept on the node.
        loop_layout: see coalesced_width.

    Raises:
        ShapeMismatch: the extents of the two sides differ (TC201).
        TypeMismatch: a side is not a tile (TC202).
    """
    _ = (coalesced_width, disable_tma, eviction_policy, prefer_instruction, loop_layout)
    copy_tile(src, dst, annotations or {})


def copy_tile(
    src: Any, dst: Any, annotations: Mapping[str, Any], barrier: Load | None = None
) -> None:
    """Emit a copy, complete at the latest when the phase of ``barrier`` is; see ``copy``."""
    builder = current()
    if isinstance(src, Load) and isinstance(dst, Load):
        value = cast(src, dst.dtype)
        builder.emit(Store(dst.buffer, dst.indices, value, builder.span))
        return
    if isinstance(src, Load):
        target = region(dst, "the destination of T.copy")
        source = grow(src, target.extents)
    else:
        source = region(src, "the source of T.copy")
        grown = isinstance(dst, Load)
        target = grow(dst, source.extents) if grown else region(dst, "the destination of T.copy")
    if not same_extents(source.extents, target.extents):
        source, target = _as_the_tile(source, target)
    if not same_extents(source.extents, target.extents):
        raise ShapeMismatch(
            what=f"T.copy from `{source.buffer.name}` to `{target.buffer.name}`",
            expected=f"one shape on both sides; the source has {format_shape(source.extents)}",
            found=format_shape(target.extents),
        )
    notes = MappingProxyType(dict(annotations))
    builder.emit(Copy(source, target, notes, builder.span, barrier))


def _as_the_tile(source: Region, target: Region) -> tuple[Region, Region]:
    """Return both sides with the tile's extents where the tensor's are known at run time only."""
    tensors = [r for r in (source, target) if r.buffer.scope == "global"]
    if len(tensors) != 1:
        return source, target
    tensor, tile = (source, target) if tensors[0] is source else (target, source)
    axes = varying_axes(tensor)
    sizes = next((e for e in (squeeze(tile.extents), tile.extents) if len(e) == len(axes)), None)
    if sizes is None:
        return source, target
    extents = list(tensor.extents)
    for axis, size in zip(axes, sizes, strict=True):
        if int_value(extents[axis]) is None:
            extents[axis] = size
    grown = Region(tensor.buffer, tensor.offsets, tuple(extents))
    return (grown, tile) if tensor is source else (tile, grown)


def fill(buffer: Any, value: ExprLike = 0, annotations: dict[str, Any] | None = None) -> None:
    """Set every element of a tile to ``value``.

    Args:
        buffer: the tile, region or variable.
        value: a number.
        annotations: accepted for compatibility, without effect.

    Raises:
        TypeMismatch: not a tile, or not a number (TC202).
    """
    _ = annotations
    builder = current()
    if isinstance(buffer, Load) and buffer.buffer.is_var:
        number = cast(value, buffer.dtype)
        builder.emit(Store(buffer.buffer, buffer.indices, number, builder.span))
        return
    target = region(buffer, "T.fill")
    builder.emit(Fill(target, cast(value, target.buffer.dtype), builder.span))


def clear(buffer: Any, annotations: dict[str, Any] | None = None) -> None:
    """Set every element of a tile to 0."""
    fill(buffer, 0, annotations)
