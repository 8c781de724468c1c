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
from tilecore.computing.graph import (
    Node,
    Shape,
    cast,
    computed_in,
    need_floats,
    permuted,
    pointwise,
    reshaped,
    sliced,
)
from tilecore.errors import SourceSpan

FEW_ROWS, LONG_ROW = 64, 8192  # fewer rows and longer ones are reduced in parts
MOST_OF_ROW, LEAST_OF_ROW = 4096, 63
FEW_PARTS = 8  # of an axis, which are added up element by element
LEAST_BEHIND = 32  # elements behind an axis: with fewer it is laid out to be the last
FEW = 8192  # elements in all that are not laid out for it
THERE = ("input", "call")  # what no kernel could still compute in passing
PAIRWISE = {"sum": "add", "amax": "maximum", "amin": "minimum"}


def reduced(
    op: str, x: Node, axes: Sequence[int], keepdim: bool, span: SourceSpan, by: Any = 1,
    dtype: str | None = None,
) -> Node:  # fmt: skip
    """Return the sum divided by a number, or the largest or smallest element over some axes.

    What is divided by 0, or by less, is infinite, or no number: as of a variance in torch.
    ``dtype``: of the result, in which one kernel may store it for others; None: that of ``x``.

    Raises:
        TypeMismatch: of truth or integers (TC202).
    """
    need_floats(op, x, span=span)
    rest = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
    whole = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    x = _over(op, x, axes, dtype or x.dtype, span, is_kept=keepdim and len(axes) == 1)
    if varies(by):
        x = pointwise("div", x, by, span=span)
    elif by != 1:
        x = pointwise("mul", x, 1.0 / by if by > 0 else math.inf, span=span)
    return reshaped(x, whole if keepdim else rest, span)


def _over(
    op: str, x: Node, axes: Sequence[int], dtype: str, span: SourceSpan, *, is_kept: bool = False
) -> Node:
    """Return the reduction over some axes; ``is_kept``: one that is folded stays, of extent 1."""
    first = rank = len(x.shape)
    while first - 1 in axes:
        first -= 1
    others = [axis for axis in range(first) if axis in axes]
    if others and first < rank:
        rows = reshaped(_over_last(op, x, first, computed_in(x.dtype), span), x.shape[:first], span)
        return _over(op, rows, others, dtype, span)
    if others and not _is_long(x.shape[others[-1] + 1 :]) and not _are_few(x):
        kept = [axis for axis in range(rank) if axis not in axes]
        x, first, others = permuted(x, (*kept, *axes), span), len(kept), []
    if not others:
        return _over_last(op, x, first, dtype, span)
    while others:
        x, others = _neighbours_joined(x, others, span)
        axis = others.pop()
        if not others:  # rows of all that lies behind the axis
            behind = x.shape[axis + 1 :]
            x = _regrouped(x, behind, (math.prod(behind),), 0, span) or x
        x = _fold(op, x, axis, is_kept, computed_in(x.dtype) if others else dtype, span)
    return x


def _are_few(x: Node) -> bool:
    return not varies(x.size) and x.size <= FEW


def _is_long(shape: Sequence[Any]) -> bool:
    count = math.prod(shape)
    return varies(count) or count >= LEAST_BEHIND


def _over_last(op: str, x: Node, first: int, dtype: str, span: SourceSpan) -> Node:
    """Return the reduction over all axes from one on, of shape (*rows, 1)."""
    rows, last = x.shape[:first], x.shape[first:]
    columns = math.prod(last)
    attrs = MappingProxyType({"keeps_nan": op != "sum"})
    part = part_of_long_rows(math.prod(rows), columns)
    into = (columns // part, part) if part else (columns,)
    split = _regrouped(x, last, into, 0, span)
    if split is None and len(last) > 1 and x.kind == "pointwise" and _is_long(last[-1:]):
        inner = _over_last(op, x, len(x.shape) - 1, computed_in(x.dtype), span)
        return _over_last(op, reshaped(inner, x.shape[:-1], span), first, dtype, span)
    split = split or reshaped(x, (*rows, *into), span)
    if part:  # each part by a block of its own
        parts = Node(
            "reduce", op, (split,), (*split.shape[:-1], 1), computed_in(x.dtype), attrs, span
        )
        split = reshaped(parts, (*rows, into[0]), span)
    return Node("reduce", op, (split,), (*rows, 1), dtype, attrs, span)


def part_of_long_rows(rows: int, columns: int) -> int:
    """Return how long parts of rows are that keep many blocks at work; 0: rows as they are."""
    if rows >= FEW_ROWS or columns < LONG_ROW:
        return 0
    return next((n for n in range(MOST_OF_ROW, LEAST_OF_ROW, -1) if divides(n, columns)), 0)


def _neighbours_joined(x: Node, axes: list[int], span: SourceSpan) -> tuple[Node, list[int]]:
    """Return a tensor, and the axes to fold, with the last ones as one if they are neighbours."""
    while len(axes) > 1 and axes[-2] + 1 == axes[-1]:
        first, last = axes[-2:]
        both = x.shape[first : last + 1]
        found = _regrouped(x, both, (math.prod(both),), len(x.shape) - last - 1, span)
        if found is None:
            break
        x, axes = found, axes[:-1]
    return x, axes


def _regrouped(
    x: Node, whole: Shape, into: Shape, after: int, span: SourceSpan, *, is_part: bool = False
) -> Node | None:
    """Return a tensor with some neighbouring axes as others, None where it would be stored for it.

    Functions of elements are computed of tensors with these axes, which have to be there.

    Args:
        x: the tensor.
        whole: extents of the axes.
        into: extents of those that take their place.
        after: how many axes come behind them.
        span: the line that asks for it.
        is_part: whether it broadcasts: it may have none of the axes, or extents of one.
    """
    end = len(x.shape) - after
    own = x.shape[max(0, end - len(whole)) : max(0, end)]
    if is_part and all(n == 1 for n in own):
        into = tuple(1 for _ in into) if own else ()
    elif own != whole:
        return None
    shape = (*x.shape[: max(0, end - len(whole))], *into, *x.shape[max(0, end) :])
    if x.kind == "pointwise":
        args = [
            _regrouped(a, whole, into, after, span, is_part=True) if isinstance(a, Node) else a
            for a in x.args
        ]
        if any(a is None for a in args):
            return None
        return Node("pointwise", x.op, tuple(args), shape, x.dtype, x.attrs, x.span)
    if is_part and own != whole:
        return reshaped(x, shape, span)
    is_there = not is_part or _source(x).kind in THERE
    return reshaped(x, shape, span) if is_there and _lies_whole(x) else None


def _lies_whole(x: Node) -> bool:
    """Return whether a tensor lies in memory in the order of its axes, as far as nodes tell."""
    source = _source(x)
    return source.kind not in ("pointwise", "view") and "strides" not in source.attrs


def _source(x: Node) -> Node:
    """Return the tensor that another one is in another shape."""
    while x.kind == "view" and x.op == "reshape":
        (x,) = x.producers
    return x


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
    return cast(found, dtype, span)
