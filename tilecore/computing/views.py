"""What computations know of torch's and NumPy's views: the same elements, no kernel."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from tilecore.computing import graph
from tilecore.computing.extents import varies
from tilecore.computing.graph import Node
from tilecore.errors import ShapeMismatch, SourceSpan


def axes_of(x: Node, dim: Any) -> list[int]:
    """Return the axes that a dim names, from 0 on; all for None.

    Raises:
        ShapeMismatch: there is no such axis (TC201).
    """
    rank = len(x.shape)
    named = range(rank) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    axes = sorted({int(a) + rank if a < 0 else int(a) for a in named})
    if any(not 0 <= a < rank for a in axes):
        raise ShapeMismatch(
            what="reduction", expected=f"axes of shape {x.shape}", found=f"dim={dim}"
        )
    return axes


def transpose(span: SourceSpan, x: Node, dim0: int, dim1: int) -> Node:
    """Return it with two axes swapped."""
    order = list(range(len(x.shape)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return graph.permuted(x, order, span)


def turned(span: SourceSpan, x: Node) -> Node:
    """Return a matrix with its axes swapped."""
    return transpose(span, x, 0, -1)


def permute(span: SourceSpan, x: Node, *axes: Any) -> Node:
    """Return it with its axes in another order."""
    return graph.permuted(x, axes[0] if isinstance(axes[0], tuple | list) else axes, span)


def reshape(span: SourceSpan, x: Node, *shape: Any) -> Node:
    """Return the same elements in another shape."""
    wanted = shape[0] if isinstance(shape[0], tuple | list) else shape
    extents = [n if varies(n) else operator.index(n) for n in wanted]
    return graph.reshaped(x, extents, span)


def unsqueeze(span: SourceSpan, x: Node, dim: int) -> Node:
    """Return it with an axis of one element more."""
    at = dim + len(x.shape) + 1 if dim < 0 else dim
    return graph.reshaped(x, (*x.shape[:at], 1, *x.shape[at:]), span)


def squeeze(span: SourceSpan, x: Node, dim: int | None = None) -> Node:
    """Return it without axes of one element: all of them, or those named."""
    axes = range(len(x.shape)) if dim is None else axes_of(x, dim)
    kept = [n for axis, n in enumerate(x.shape) if axis not in axes or n != 1]
    return graph.reshaped(x, kept, span)


def flatten(span: SourceSpan, x: Node, start_dim: int = 0, end_dim: int = -1) -> Node:
    """Return it with some axes as one."""
    first, last = start_dim % len(x.shape), end_dim % len(x.shape)
    return graph.reshaped(x, (*x.shape[:first], -1, *x.shape[last + 1 :]), span)


def chunk(span: SourceSpan, x: Node, chunks: int, dim: int = 0) -> list[Node]:
    """Return it in so many parts along an axis."""
    return split(span, x, -(-x.shape[dim] // chunks), dim)


def split(span: SourceSpan, x: Node, size: int | Sequence[int], dim: int = 0) -> list[Node]:
    """Return it in parts of a size, or of several, along an axis."""
    (axis,) = axes_of(x, dim)
    extent, parts, first = x.shape[axis], [], 0
    sizes = list(size) if isinstance(size, Sequence) else [size] * -(-extent // size)
    for wanted in sizes:
        last = min(first + wanted, extent)
        index = (*[slice(None)] * axis, slice(first, last))
        shape = (*x.shape[:axis], last - first, *x.shape[axis + 1 :])
        parts.append(graph.sliced(x, index, shape, span))
        first = last
    return parts


def same(span: SourceSpan, x: Node, *given: Any, **named: Any) -> Node:
    """Return it as it is."""
    _ = span, given, named
    return x
