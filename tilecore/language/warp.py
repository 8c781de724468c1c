"""What the lanes of a warp find out about each other's values: T.match_any_sync, T.__fns."""

from __future__ import annotations

from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.dtype import DType
from tilecore.ir.expr import (
    Expr,
    ExprLike,
    Load,
    Var,
    as_expr,
    binary,
    cast,
    const,
    int_value,
    reinterpret,
    select,
)
from tilecore.ir.nodes import Buffer, For, Store
from tilecore.language.thread import WARP, shfl_sync, warp_reduce_max, warp_reduce_min

__all__ = ["fns", "match_all_sync", "match_any_sync"]
MASK = DType("uint32")
EVERYONE = 0xFFFFFFFF


def _bits(value: ExprLike) -> Expr:
    """Return a value as an integer that is the same for the same bits."""
    given = as_expr(value)
    if given.dtype.is_integer:
        return given
    if given.dtype == "bool":
        return cast(given, "int32")
    return reinterpret(given, f"uint{given.dtype.bits}")


def _variable(name: str, start: int) -> Load:
    builder = current()
    buffer = Buffer(builder.take_hint(name), (const(1),), MASK, "local", is_var=True)
    found = builder.variable(buffer)
    builder.emit(Store(buffer, found.indices, const(start, MASK), builder.span))
    return found


def _set(variable: Load, value: Expr) -> None:
    builder = current()
    builder.emit(Store(variable.buffer, variable.indices, value, builder.span))


def match_any_sync(value: ExprLike, mask: Any = None) -> Expr:
    """Return the lanes of the warp that have the value of this thread, one bit each (uint32)."""
    _ = mask
    builder, bits = current(), _bits(value)
    found, lane = _variable("peers", 0), Var("lane")
    with builder.open("loop") as frame:
        is_same = binary("eq", shfl_sync(bits, lane), bits)
        bit = binary("shl", const(1, MASK), cast(lane, MASK))
        _set(found, binary("bitor", found, select(is_same, bit, const(0, MASK))))
    bounds = (const(0), const(WARP), const(1))
    builder.emit(For(lane, *bounds, "serial", frame.body(), span=builder.span))
    return builder.let("peers", found)


def match_all_sync(value: ExprLike, mask: Any = None) -> Expr:
    """Return all lanes of the warp, one bit each (uint32), if they have one value, else 0."""
    _ = mask
    bits = _bits(value)
    is_same = binary("eq", warp_reduce_max(bits), warp_reduce_min(bits))
    return current().let("peers", select(is_same, const(EVERYONE, MASK), const(0, MASK)))


def fns(mask: ExprLike, base: ExprLike, offset: ExprLike) -> Expr:
    """Return the position of a bit of ``mask`` that is set; 0xFFFFFFFF where there is none.

    Args:
        mask: 32 bits.
        base: where to start, 0 to 31.
        offset: which bit to find: the first (1), second, ... from ``base`` on upwards, the first
            (-1), ... downwards, or (0) the one at ``base`` if it is set.

    Raises:
        TypeMismatch: ``offset`` is not a known number (TC202).
    """
    wanted, builder = int_value(as_expr(offset)), current()
    if wanted is None:
        raise TypeMismatch(expected="a known offset of __fns", found=str(offset))
    bits, start = builder.let("mask", cast(mask, MASK)), builder.let("base", cast(base, "int32"))
    if wanted == 0:
        is_set = binary("bitand", binary("shr", bits, cast(start, MASK)), const(1, MASK))
        return select(binary("ne", is_set, 0), cast(start, MASK), const(EVERYONE, MASK))
    found, count, number = _variable("found", EVERYONE), _variable("count", 0), Var("bit")
    place = number if wanted > 0 else binary("sub", WARP - 1, number)
    with builder.open("loop") as frame:
        reached = binary("ge" if wanted > 0 else "le", place, start)
        bit = binary("bitand", binary("shr", bits, cast(place, MASK)), const(1, MASK))
        counted = builder.let("counted", select(reached, bit, const(0, MASK)))
        _set(count, binary("add", count, counted))
        is_it = binary("and", binary("eq", count, abs(wanted)), binary("eq", counted, 1))
        _set(found, select(is_it, cast(place, MASK), found))
    bounds = (const(0), const(WARP), const(1))
    builder.emit(For(number, *bounds, "serial", frame.body(), span=builder.span))
    return builder.let("found", found)
