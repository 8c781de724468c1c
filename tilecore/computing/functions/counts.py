"""Counts, whether any or all are, and where the largest element is.

Signatures are torch's. Truth is counted in float32, which has all integers up to ``MOST_EXACT``,
and in float64 where there are more elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tilecore.computing import operands
from tilecore.computing.extents import present, varies
from tilecore.computing.functions.reductions import part_of_long_rows, reduced
from tilecore.computing.functions.views import axes_of, axes_reduced
from tilecore.computing.graph import (
    INTEGER,
    MOST_EXACT,
    Node,
    OfTorch,
    cast,
    computed_in,
    need_floats,
    pointwise,
    reshaped,
)
from tilecore.errors import SourceSpan

MOST_NUMBERED = 2**18  # elements of a row whose places a plan has as numbers


def counted(span: SourceSpan, x: Node, axes: Sequence[int], keepdim: bool) -> Node:
    """Return how many elements of truth hold along some axes, as int64."""
    return cast(_sum_of(span, x, axes, keepdim), INTEGER, span)


def count_nonzero(span: SourceSpan, x: Node, dim: Any = None, *, axis: Any = None) -> Node:
    """Return how many elements are not 0."""
    return counted(span, _truth(span, x), axes_of(x, axis if dim is None else dim), False)


def _whether(is_all: bool) -> Callable[..., Node]:
    def function(
        span: SourceSpan, x: Node, dim: Any = None, keepdim: bool = False, *, axis: Any = None,
        keepdims: bool = False,
    ) -> Node:  # fmt: skip
        """Return whether any element, or each, is not 0."""
        truth = _truth(span, x)
        if is_all:
            truth = pointwise("not", truth, span=span, dtype="bool")
        axes = axes_of(x, axis) if dim is None else axes_reduced(x, dim)
        count = _sum_of(span, truth, axes, keepdim or keepdims)
        return pointwise("eq" if is_all else "ne", count, 0, span=span, dtype="bool")

    return function


def _truth(span: SourceSpan, x: Node) -> Node:
    if x.dtype == "bool":
        return x
    need_floats("truth", x, span=span)
    return pointwise("ne", x, 0, span=span, dtype="bool")


def _sum_of(span: SourceSpan, truth: Node, axes: Sequence[int], keepdim: bool) -> Node:
    """Return how many hold, as floats."""
    most = present(math.prod(truth.shape[a] for a in axes))
    is_wide = most * (2 if any(map(varies, truth.shape)) else 1) > MOST_EXACT
    if is_wide and operands.is_on_gpu():
        raise OfTorch(expected=f"up to {MOST_EXACT} elements", found=most, span=span)
    ones = pointwise("where", truth, 1.0, 0.0, span=span, dtype="float64" if is_wide else "float32")
    return reduced("sum", ones, axes, keepdim, span)


# --- places ---------------------------------------------------------------------------------------


def _place_of(op: str) -> Callable[..., Node]:
    def function(
        span: SourceSpan, x: Node, dim: int | None = None, keepdim: bool = False, *,
        axis: int | None = None, keepdims: bool = False,
    ) -> Node:  # fmt: skip
        """Return the place of the first largest (smallest) element, or of the first NaN."""
        return place_of(op, span, x, axis if dim is None else dim, keepdim or keepdims)[1]

    return function


def place_of(
    op: str, span: SourceSpan, x: Node, dim: int | None, keepdim: bool
) -> tuple[Node, Node]:
    """Return the largest (smallest) elements along an axis, or of all, and their places as int64.

    Of places ``attrs`` say so ("counts_few"): they are numbers of float32.

    Raises:
        OfTorch: there are more elements than numbers for them, or they are on a GPU (TC202).
    """
    need_floats(op, x, span=span)
    if operands.is_on_gpu():
        raise OfTorch(expected="a tensor on the CPU", found="one on a GPU", span=span)
    if dim is not None and x.shape:
        (axis,) = axes_of(x, dim)
        end, place = _ends(op, span, x, axis)
        rest = tuple(n for a, n in enumerate(x.shape) if a != axis)
        shape = end.shape if keepdim else rest
    else:
        end, place = _end_of_all(op, span, reshaped(x, (x.size,), span))
        shape = tuple(1 for _ in x.shape) if keepdim else ()
    places = cast(reshaped(place, shape, span), INTEGER, span)
    few = MappingProxyType({**places.attrs, "counts_few": True})
    return reshaped(end, shape, span), replace(places, attrs=few)


def _ends(op: str, span: SourceSpan, x: Node, axis: int) -> tuple[Node, Node]:
    """Return the ends along an axis, which stays, and their places as floats."""
    end = reduced(op, x, [axis], True, span)
    numbers = _numbers(span, x.shape[axis])
    numbers = reshaped(numbers, (-1, *(1 for _ in x.shape[axis + 1 :])), span)
    return end, _first(span, x, end, numbers, axis)


def _end_of_all(op: str, span: SourceSpan, x: Node) -> tuple[Node, Node]:
    """Return the end of a row, and its place; of a long row by way of the ends of its parts."""
    (count,) = x.shape
    part = 0 if varies(count) else part_of_long_rows(1, count)
    if not part:
        return _ends(op, span, x, 0)
    if count > MOST_EXACT:
        raise OfTorch(expected=f"up to {MOST_EXACT} elements", found=count, span=span)
    ends, places = _ends(op, span, reshaped(x, (count // part, part), span), 1)
    ends, places = (reshaped(n, (count // part,), span) for n in (ends, places))
    starts = pointwise("mul", _numbers(span, count // part), float(part), span=span)
    end = reduced(op, ends, [0], True, span)
    return end, _first(span, ends, end, pointwise("add", starts, places, span=span), 0)


def _first(span: SourceSpan, x: Node, end: Node, numbers: Node, axis: int) -> Node:
    """Return the least number of elements that are the end of their row, or NaN."""
    is_end = pointwise("eq", x, end, span=span, dtype="bool")
    is_nan = pointwise("ne", x, x, span=span, dtype="bool")
    is_it = pointwise("or", is_end, is_nan, span=span, dtype="bool")
    found = pointwise(
        "where", is_it, numbers, float(MOST_EXACT), span=span, dtype=computed_in(x.dtype)
    )
    return reduced("amin", found, [axis], True, span)


def _numbers(span: SourceSpan, count: Any) -> Node:
    """Return the numbers from 0 on, which kernels know without reading them."""
    if varies(count) or count > MOST_NUMBERED:
        raise OfTorch(expected=f"up to {MOST_NUMBERED} elements", found=count, span=span)
    device = operands.device()
    held: Any = np.arange(count, dtype=np.float32)
    if device is not None:
        import torch

        held = torch.from_numpy(held).to(device)
    attrs = MappingProxyType({"held": held, "counts": (0, 1)})
    return Node("input", "held", (), (count,), "float32", attrs, span)


def _triangle(is_upper: bool) -> Callable[..., Node]:
    def function(span: SourceSpan, input: Node, diagonal: int = 0) -> Node:
        """Return matrices with 0 below (above) a diagonal."""
        need_floats("tril", input, span=span)
        if len(input.shape) < 2:
            raise OfTorch(expected="a matrix", found=input.shape, span=span)
        rows = reshaped(_numbers(span, input.shape[-2]), (-1, 1), span)
        if diagonal:
            rows = pointwise("add", rows, float(diagonal), span=span)
        columns, op = _numbers(span, input.shape[-1]), "ge" if is_upper else "le"
        is_kept = pointwise(op, columns, rows, span=span, dtype="bool")
        return pointwise("where", is_kept, input, 0.0, span=span, dtype=input.dtype)

    return function


# --- comparisons ----------------------------------------------------------------------------------


def isclose(
    span: SourceSpan, input: Node, other: Any, rtol: float = 1e-5, atol: float = 1e-8,
    equal_nan: bool = False,
) -> Node:  # fmt: skip
    """Return whether elements are equal, or no further apart than tolerances say."""

    def apart(op: str, a: Any, b: Any) -> Node:
        return pointwise(op, a, b, span=span, dtype="bool")

    size = pointwise("abs", other, span=span) if isinstance(other, Node) else abs(other)
    if isinstance(size, Node):
        most: Any = pointwise("mul", size, float(rtol), span=span)
        most = pointwise("add", most, float(atol), span=span)
    else:
        most = rtol * size + atol
    distance = pointwise("abs", pointwise("sub", input, other, span=span), span=span)
    is_near = apart("and", apart("le", distance, most), apart("lt", distance, math.inf))
    found = apart("or", apart("eq", input, other), is_near)
    if not equal_nan:
        return found
    are_nan = apart("ne", input, input)
    if isinstance(other, Node):
        return apart("or", found, apart("and", are_nan, apart("ne", other, other)))
    return apart("or", found, are_nan) if math.isnan(other) else found


FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "count_nonzero": count_nonzero, "any": _whether(False), "all": _whether(True),
    "argmax": _place_of("amax"), "argmin": _place_of("amin"), "isclose": isclose,
    "tril": _triangle(False), "triu": _triangle(True),
})  # fmt: skip
OF_TRUTH = ("sum", "any", "all", "count_nonzero")
