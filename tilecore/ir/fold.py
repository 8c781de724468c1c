"""What it means to fold many values into one: reductions, scans and atomic updates.

A fold starts at the identity of its operation and takes one value after the other. Floats of less
than 32 bits are accumulated in float32 and rounded once. ``max`` and ``min`` drop NaN, as fmaxf
does, unless the reduction asks for NaN to stay.
"""

from __future__ import annotations

import math

from tilecore.errors import ShapeMismatch, TypeMismatch
from tilecore.ir.dtype import DType, promote
from tilecore.ir.expr import Binary, Expr, Load, binary, call, int_value, select
from tilecore.ir.indexing import format_shape, same_extents
from tilecore.ir.nodes import Region, Store

# Each operation: how one value changes before it is folded, and what two values are folded with.
STEPS: dict[str, tuple[bool, str]] = {
    "sum": (False, "add"), "max": (False, "max"), "min": (False, "min"),
    "abssum": (True, "add"), "absmax": (True, "max"),
    "bitand": (False, "bitand"), "bitor": (False, "bitor"), "bitxor": (False, "bitxor"),
}  # fmt: skip
REDUCE_OPS = tuple(STEPS)
REDUCER_OPS = ("sum", "max", "min", "bitand", "bitor", "bitxor")
SCAN_OPS = ("sum", "max")
COMMUTATIVE = ("add", "max", "min", "bitand", "bitor", "bitxor", "and", "or", "ne")


def fold_dtype(source: DType, target: DType) -> DType:
    """Return the type that values of ``source`` are accumulated in on their way to ``target``."""
    if target == "bool":
        return target
    wide = promote(source, target).computed
    return DType("float32") if wide.is_float and wide.bits < 32 else wide


def identity(op: str, dtype: DType) -> float | int | bool:
    """Return the value that does not change what it is folded with."""
    step = STEPS[op][1]
    if dtype == "bool":
        return step == "bitand"
    if step == "bitand":
        return -1 if dtype.is_signed else dtype.ends[1]
    if step not in ("max", "min") or op == "absmax":
        return 0
    if dtype.is_float:
        return -math.inf if step == "max" else math.inf
    low, high = dtype.ends
    return low if step == "max" else high


def combine(op: str, old: Expr, value: Expr) -> Expr:
    """Return the fold of two values of one type as an expression."""
    step = STEPS[op][1]
    if old.dtype == "bool":
        return binary({"bitand": "and", "bitor": "or", "bitxor": "ne"}[step], old, value)
    return binary(step, old, value)


def magnitude(value: Expr) -> Expr:
    """Return the absolute value."""
    if value.dtype.is_float:
        return call("abs", value)
    return select(binary("lt", value, 0), -value, value) if value.dtype.is_signed else value


def reducer_update(stmt: Store) -> tuple[str, Expr] | None:
    """Return (operation, value) of a store ``r[i] = r[i] op value`` to a reducer, else None."""
    total = stmt.value
    if stmt.buffer.reducer is None or not isinstance(total, Binary) or total.op not in COMMUTATIVE:
        return None
    for old, value in ((total.a, total.b), (total.b, total.a)):
        if (
            isinstance(old, Load)
            and old.buffer is stmt.buffer
            and all(_same(*pair) for pair in zip(old.indices, stmt.indices, strict=True))
        ):
            return total.op, value
    return None


def _same(a: Expr, b: Expr) -> bool:
    return a is b or (int_value(a) is not None and int_value(a) == int_value(b))


def check_fold(op: str, source: Region, target: Region, axes: tuple[int, ...]) -> None:
    """Check axes, shapes and element types of a reduction.

    Raises:
        ShapeMismatch: an axis does not exist, or the target has another shape than the source
            without the axes (TC201).
        TypeMismatch: the operation does not exist for the element type (TC202).
    """
    rank = len(source.extents)
    name = source.buffer.name
    for axis in axes:
        if not 0 <= axis < rank:
            raise ShapeMismatch(
                what=f"axis of the reduction of `{name}`",
                expected=f"{-rank} to {rank - 1}",
                found=axis,
            )
    rest = [e for axis, e in enumerate(source.extents) if axis not in axes]
    if not same_extents(rest, target.extents):
        raise ShapeMismatch(
            what=f"`{target.buffer.name}`, the result of folding `{name}` along {list(axes)}",
            expected=format_shape(rest),
            found=format_shape(target.extents),
        )
    kind = target.buffer.dtype
    if STEPS[op][1].startswith("bit") and kind.is_float:
        raise TypeMismatch(expected=f"integers or bools for a reduction by {op}", found=kind)
    if kind == "bool" and not op.startswith("bit"):
        raise TypeMismatch(expected=f"numbers for a reduction by {op}", found=kind)
