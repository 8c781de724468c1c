"""Atomic updates of elements and tiles: T.atomic_add and its kin."""

from __future__ import annotations

from typing import Any

from tilecore.errors import ShapeMismatch, TypeMismatch
from tilecore.frontend.builder import current
from tilecore.frontend.loops import DEFAULT_NAMES
from tilecore.ir.arithmetic.polynomial import is_one
from tilecore.ir.expr import Expr, ExprLike, Load, Var, as_expr, cast, const
from tilecore.ir.indexing import element, format_shape, grow, same_extents, varying_axes
from tilecore.ir.nodes import ATOMIC_ORDERS, Atomic, Buffer, Parallel, Region
from tilecore.ir.vector import Vector
from tilecore.language.copy import region

# Orders that make no sense for an access that only reads, or only writes.
_SENSELESS = {"load": ("release", "acq_rel"), "store": ("consume", "acquire", "acq_rel")}
Notes = dict[str, Any] | None


def _check_order(memory_order: str | None, op: str = "") -> None:
    known = [o for o in ATOMIC_ORDERS if o not in _SENSELESS.get(op, ())]
    if memory_order is not None and memory_order not in known:
        raise TypeMismatch(
            expected=f"memory_order: one of {', '.join(known)}", found=repr(memory_order)
        )


def _element(
    op: str, place: Load, value: ExprLike, returns: bool, order: str | None = None
) -> Load | None:
    """Emit the update of one element; return a variable with its old value if asked for."""
    builder = current()
    number = cast(as_expr(value, place.dtype), place.dtype)
    prev = None
    if returns:
        buffer = Buffer("prev", (const(1),), place.dtype, "local", is_var=True, span=builder.span)
        prev = builder.variable(buffer)
        builder.fresh.pop(id(prev), None)
    variable = None if prev is None else prev.buffer
    builder.emit(
        Atomic(op, place.buffer, place.indices, number, variable, builder.span, order or "relaxed")
    )
    return prev


def _tile(op: str, dst: Any, value: Any) -> None:
    """Emit the update of all elements of a region by a tile or by one number."""
    builder = current()
    if isinstance(value, (Buffer, Region)):
        source = region(value, f"the value of T.atomic_{op}")
        target = _target(op, dst, source.extents)
        if not same_extents(source.extents, target.extents):
            raise ShapeMismatch(
                what=f"T.atomic_{op} of `{source.buffer.name}` to `{target.buffer.name}`",
                expected=format_shape(source.extents),
                found=format_shape(target.extents),
            )
    else:
        source, target = None, _target(op, dst, ())
    axes = varying_axes(target)
    extents = tuple(target.extents[axis] for axis in axes)
    names = tuple(Var(n) for n in DEFAULT_NAMES[: len(extents)])
    place = element(target, dict(zip(axes, names, strict=True)))
    if source is not None:
        value = element(source, dict(zip(varying_axes(source), names, strict=True)))
    number = cast(value, place.dtype)
    update = Atomic(op, place.buffer, place.indices, number, None, builder.span)
    builder.emit(Parallel(names, extents, update, span=builder.span) if names else update)


def _target(op: str, dst: Any, extents: tuple[Expr, ...]) -> Region:
    what = f"the destination of T.atomic_{op}"
    return grow(dst, extents) if isinstance(dst, Load) else region(dst, what)


def _atomic(
    op: str, dst: Any, value: Any, memory_order: str | None, return_prev: bool
) -> Load | None:
    _check_order(memory_order, op)
    is_tile = isinstance(dst, (Buffer, Region)) or isinstance(value, (Buffer, Region))
    if not is_tile:
        if not isinstance(dst, Load):
            raise TypeMismatch(
                expected=f"an element or tile for T.atomic_{op}", found=type(dst).__name__
            )
        return _element(op, dst, value, return_prev, memory_order)
    if return_prev:
        box = region(dst, f"the destination of T.atomic_{op}")
        if not all(is_one(e) for e in box.extents) or isinstance(value, (Buffer, Region)):
            raise TypeMismatch(
                expected="one element where return_prev=True",
                found=f"the tile `{box.buffer.name}`",
            )
        return _element(
            op, Load(box.buffer, box.offsets, box.buffer.dtype), value, True, memory_order
        )
    _tile(op, dst, value)
    return None


def atomic_add(
    dst: Any,
    value: Any,
    memory_order: str | None = None,
    return_prev: bool = False,
    use_tma: bool = False,
    annotations: Notes = None,
) -> Load | None:
    """Add ``value`` to an element, or a tile to a region, so that no block's addition is lost.

    Args:
        dst: an element ``A[i, j]``, a slice or a tensor.
        value: a number for an element; a tile, or a number for all, for a region.
        memory_order: of an element's update, as in C++ ("relaxed" where none is given): what it
            tells other blocks of accesses of other places. On CPUs, and of one place, updates are
            sequentially consistent. Those of tiles are relaxed.
        return_prev: return what the element held before.
        use_tma: hint of GPUs; so is annotations.
        annotations: see use_tma.

    Returns:
        The old value if ``return_prev``, else None.

    Raises:
        ShapeMismatch: the extents of tile and region differ (TC201).
        TypeMismatch: a bad argument or memory order (TC202).
    """
    _ = (use_tma, annotations)
    return _atomic("add", dst, value, memory_order, return_prev)


def atomic_max(
    dst: Any,
    value: Any,
    memory_order: str | None = None,
    return_prev: bool = False,
    annotations: Notes = None,
) -> Load | None:
    """Raise an element to at least ``value`` (see T.atomic_add)."""
    _ = annotations
    return _atomic("max", dst, value, memory_order, return_prev)


def atomic_min(
    dst: Any,
    value: Any,
    memory_order: str | None = None,
    return_prev: bool = False,
    annotations: Notes = None,
) -> Load | None:
    """Lower an element to at most ``value`` (see T.atomic_add)."""
    _ = annotations
    return _atomic("min", dst, value, memory_order, return_prev)


def atomic_or(
    dst: Any,
    value: Any,
    memory_order: str | None = None,
    return_prev: bool = False,
    annotations: Notes = None,
) -> Load | None:
    """Set the bits of ``value`` in an integer element (see T.atomic_add).

    Raises:
        TypeMismatch: the elements are floats (TC202).
    """
    _ = annotations
    kind = dst.dtype if isinstance(dst, Load) else region(dst, "T.atomic_or").buffer.dtype
    if kind.is_float:
        raise TypeMismatch(expected="integers for T.atomic_or", found=kind)
    return _atomic("or", dst, value, memory_order, return_prev)


def _first(value: Any, what: str) -> Load:
    """Return an argument that names one element; a tensor stands for its first."""
    first = value.lanes[0] if isinstance(value, Vector) else value
    if isinstance(first, Load):
        return first
    box = region(value, what)
    return Load(box.buffer, box.offsets, box.buffer.dtype)


def atomic_load(src: Any, memory_order: str = "seq_cst") -> Load:
    """Return an element as another block may have left it just now.

    Raises:
        TypeMismatch: not an element or tensor, or a bad memory order (TC202).
    """
    _check_order(memory_order, "load")
    place = _first(src, "T.atomic_load")
    value = _element("load", place, const(0, place.dtype), True, memory_order)
    assert value is not None
    return value


def atomic_store(dst: Any, src: Any, memory_order: str = "seq_cst") -> None:
    """Set an element, or a region, so that other blocks see it whole.

    Raises:
        TypeMismatch: a bad argument or memory order (TC202).
    """
    _atomic("store", dst, src, memory_order, False)


def _add_lanes(dst: Any, value: Any, lanes: int, return_prev: bool) -> Vector | None:
    name = f"T.atomic_addx{lanes}"
    target, source = _first(dst, name), _first(value, name)
    before: list[Expr] = []
    for lane in range(lanes):
        place, number = (
            Load(x.buffer, (*x.indices[:-1], x.indices[-1] + lane), x.dtype)
            for x in (target, source)
        )
        old = _element("add", place, number, return_prev)
        before += [] if old is None else [old]
    return Vector(tuple(before)) if before else None


def atomic_addx2(dst: Any, value: Any, return_prev: bool = False) -> Vector | None:
    """Add two neighbouring elements, from ``value`` on, to those from ``dst`` on.

    Each addition is indivisible, the pair is not. Returns the old values if ``return_prev``.

    Raises:
        TypeMismatch: not elements or slices (TC202).
    """
    return _add_lanes(dst, value, 2, return_prev)


def atomic_addx4(dst: Any, value: Any, return_prev: bool = False) -> Vector | None:
    """Add four neighbouring elements, from ``value`` on, to those from ``dst`` on.

    Each addition is indivisible, the four are not. Returns the old values if ``return_prev``.

    Raises:
        TypeMismatch: not elements or slices (TC202).
    """
    return _add_lanes(dst, value, 4, return_prev)
