"""Sums, largest and smallest elements over any axes, as nodes.

Over the last axes they are reductions of rows ("reduce"). Over others they are folds: rows of what
lies behind the axis are added up one after the other, where they lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from tilecore.computing.extents import divides, varies
from tilecore.computing.graph import Node, need_floats, permuted, pointwise, reshaped, sliced
from tilecore.errors import SourceSpan

FEW_ROWS, LONG_ROW = 64, 8192  # fewer rows and longer ones are reduced in parts
MOST_OF_ROW, LEAST_OF_ROW = 4096, 63
FEW_PARTS = 8  # of an axis, which are added up element by element
LEAST_BEHIND = 32  # elements behind an axis: with fewer it is laid out to be the last
PAIRWISE = {"sum": "add", "amax": "maximum", "amin": "minimum"}


def reduced(
    op: str, x: Node, axes: Sequence[int], keepdim: bool, span: SourceSpan, by: Any = 1
) -> Node:
    """Return the sum divided by a number, or the largest or smallest element over some axes.

    Raises:
        TypeMismatch: of truth or integers (TC202).
    """
    need_floats(op, x, span=span)
    first = rank = len(x.shape)
    while first - 1 in axes:
        first -= 1
    others = [axis for axis in range(first) if axis in axes]
    kept = [axis for axis in range(rank) if axis not in axes]
    rest = tuple(x.shape[axis] for axis in kept)
    whole = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    dtype = x.dtype
    if others and not _is_long(x.shape[others[-1] + 1 : first]):
        x, first, others = permuted(x, (*kept, *axes), span), len(kept), []
    if not others or first < rank:
        x = _over_last(op, x, first, "float32" if others else dtype, span)
        x = reshaped(x, x.shape[:-1], span) if others else x
    is_kept = keepdim and len(axes) == 1
    while others:
        x, others = _neighbours_joined(x, others, span)
        axis = others.pop()
        if not others and _lies_whole(x):  # rows of all that lies behind the axis
            x = reshaped(x, (*x.shape[: axis + 1], math.prod(x.shape[axis + 1 :])), span)
        x = _fold(op, x, axis, is_kept, "float32" if others else dtype, span)
    x = pointwise("div", x, by, span=span) if varies(by) else x
    x = pointwise("mul", x, 1.0 / by, span=span) if not varies(by) and by != 1 else x
    return reshaped(x, whole if keepdim else rest, span)


def _is_long(shape: Sequence[Any]) -> bool:
    count = math.prod(shape)
    return varies(count) or count >= LEAST_BEHIND


def _over_last(op: str, x: Node, first: int, dtype: str, span: SourceSpan) -> Node:
    """Return the reduction over all axes from one on, of shape (*rows, 1)."""
    rows = x.shape[:first]
    flat = reshaped(x, (*rows, math.prod(x.shape[first:])), span)
    attrs = MappingProxyType({"keeps_nan": op != "sum"})
    part = _part_of_long_rows(math.prod(rows), flat.shape[-1])
    if part:  # each part by a block of its own
        split = reshaped(flat, (*rows, -1, part), span)
        parts = Node("reduce", op, (split,), (*split.shape[:-1], 1), "float32", attrs, span)
        flat = reshaped(parts, (*rows, -1), span)
    return Node("reduce", op, (flat,), (*rows, 1), dtype, attrs, span)


def _part_of_long_rows(rows: int, columns: int) -> int:
    """Return how long parts of rows are that keep many blocks at work; 0: rows as they are."""
    if rows >= FEW_ROWS or columns < LONG_ROW:
        return 0
    return next((n for n in range(MOST_OF_ROW, LEAST_OF_ROW, -1) if divides(n, columns)), 0)


def _neighbours_joined(x: Node, axes: list[int], span: SourceSpan) -> tuple[Node, list[int]]:
    """Return a tensor, and the axes to fold, with the last of them as one if they are neighbours.

    Not of functions of elements, which are computed where they are added up.
    """
    while len(axes) > 1 and axes[-2] + 1 == axes[-1] and _lies_whole(x):
        axis = axes[-2]
        both = x.shape[axis] * x.shape[axis + 1]
        x = reshaped(x, (*x.shape[:axis], both, *x.shape[axis + 2 :]), span)
        axes = axes[:-1]
    return x, axes


def _lies_whole(x: Node) -> bool:
    """Return whether a tensor lies in memory in the order of its axes, as far as nodes tell."""
    while x.kind == "view" and x.op == "reshape":
        (x,) = x.producers
    return x.kind not in ("pointwise", "view") and "strides" not in x.attrs


def _fold(op: str, x: Node, axis: int, keepdim: bool, dtype: str, span: SourceSpan) -> Node:
    """Return the reduction over an axis that is not the last one."""
    count = x.shape[axis]
    shape = (*x.shape[:axis], *((1,) * keepdim), *x.shape[axis + 1 :])
    if varies(count) or count > FEW_PARTS or x.kind == "pointwise":
        return Node("fold", op, (x,), shape, dtype, MappingProxyType({"axis": axis}), span)
    found: Node | None = None
    for i in range(count):
        index = (*[slice(None)] * axis, slice(i, i + 1) if keepdim else i)
        part = sliced(x, index, shape, span)
        found = part if found is None else pointwise(PAIRWISE[op], found, part, span=span)
    assert found is not None
    return found if found.dtype == dtype else pointwise("cast", found, span=span, dtype=dtype)
