"""Facts about regions and their limits that placing tiles asks for."""

from __future__ import annotations

from tilecore.ir.analysis import kept_axes
from tilecore.ir.arithmetic.bounds import Linear, linear
from tilecore.ir.expr import Expr, binary, int_value
from tilecore.ir.nodes import Region


def is_contiguous(region: Region) -> bool:
    """Return whether neighbours along the last varying axis lie side by side in the tensor."""
    axes, strides = kept_axes(region), region.buffer.strides
    is_last = bool(axes) and axes[-1] == region.buffer.ndim - 1
    return is_last and (strides is None or int_value(strides[-1]) == 1)


def gemm_extents(region: Region) -> tuple[int, int]:
    """Return the last two extents of a region as ints."""
    rows_, cols = (int_value(e) for e in region.extents[-2:])
    assert rows_ is not None
    assert cols is not None
    return rows_, cols


def distinct(*limits: Expr | None) -> tuple[Expr, ...]:
    """Return the limits that are not None, without repetitions of one linear form."""
    result: list[Expr] = []
    for limit in limits:
        if limit is None:
            continue
        form = linear(limit)
        known = [linear(other) for other in result]
        if form is None or not any(f and _is_zero_difference(form, f) for f in known):
            result.append(limit)
    return tuple(result)


def least(a: Expr | None, b: Expr | None) -> Expr | None:
    """Return the smaller of two limits; None is none."""
    limits = distinct(a, b)
    if len(limits) == 2:
        return binary("min", *limits)
    return limits[0] if limits else None


def _is_zero_difference(a: Linear, b: Linear) -> bool:
    difference = a.plus(b, -1)
    return not difference.coefficients and difference.constant == 0
