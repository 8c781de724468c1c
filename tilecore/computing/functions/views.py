"""What computations know of torch's and NumPy's views: the same elements, no kernel."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from tilecore.computing import calls, graph
from tilecore.computing.extents import Extent, taken, varies
from tilecore.computing.graph import Node
from tilecore.errors import ShapeMismatch, SourceSpan, UnsupportedSyntax

# Views of torch's, by name; of the others it returns a copy where there are no strides for a view.
ALWAYS = (
    "transpose", "swapaxes", "swapdims", "t", "permute", "view", "unsqueeze", "squeeze", "chunk",
    "split", "split_with_sizes", "detach", "expand", "expand_as", "broadcast_to", "unbind",
    "narrow", "select", "movedim", "moveaxis", "unflatten", "view_as",
)  # fmt: skip
MAYBE = ("reshape", "reshape_as", "flatten", "contiguous")


def axes_of(x: Node, dim: Any) -> list[int]:
    """Return the axes that a dim names, from 0 on; all for None.

    Raises:
        ShapeMismatch: there is no such axis (TC201).
    """
    rank = len(x.shape)
    named = range(rank) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    if rank == 0 and all(a in (0, -1) for a in named):
        return []  # as torch has it
    axes = sorted({int(a) + rank if a < 0 else int(a) for a in named})
    if any(not 0 <= a < rank for a in axes):
        raise ShapeMismatch(
            what="reduction", expected=f"axes of shape {x.shape}", found=f"dim={dim}"
        )
    return axes


def axes_reduced(x: Node, dim: Any) -> list[int]:
    """Return the axes that a reduction of torch names: all where it names none."""
    return axes_of(x, None if dim in ((), []) else dim)


def transpose(span: SourceSpan, x: Node, dim0: int, dim1: int) -> Node:
    """Return it with two axes swapped."""
    if not x.shape:
        return x
    order = list(range(len(x.shape)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return graph.permuted(x, order, span)


def turned(span: SourceSpan, x: Node) -> Node:
    """Return a matrix with its axes swapped."""
    return transpose(span, x, 0, -1)


def permute(span: SourceSpan, x: Node, *axes: Any, dims: Any = ()) -> Node:
    """Return it with its axes in another order."""
    return graph.permuted(x, _several(axes or dims), span)


def reshape(span: SourceSpan, x: Node, *extents: Any, shape: Any = ()) -> Node:
    """Return the same elements in another shape."""
    wanted = _several(extents or shape)
    return graph.reshaped(x, [n if varies(n) else operator.index(n) for n in wanted], span)


def _several(given: Sequence[Any]) -> Sequence[Any]:
    """Return numbers that are given one by one, or as one sequence."""
    return given[0] if given and isinstance(given[0], tuple | list) else given


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
    if not x.shape:
        return graph.reshaped(x, (1,), span)
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


def unbind(span: SourceSpan, x: Node, dim: int = 0) -> list[Node]:
    """Return its parts along an axis, without that axis."""
    return [select(span, x, dim, at) for at in range(x.shape[dim])]


def select(span: SourceSpan, x: Node, dim: int, index: Any) -> Node:
    """Return one of its parts along an axis, without that axis."""
    (axis,) = axes_of(x, dim)
    return part(span, x, (*[slice(None)] * axis, index))


def narrow(span: SourceSpan, x: Node, dim: int, start: Any, length: Any) -> Node:
    """Return some of its parts along an axis."""
    (axis,) = axes_of(x, dim)
    first = start + x.shape[axis] if start < 0 else start
    return part(span, x, (*[slice(None)] * axis, slice(first, first + length)))


def movedim(span: SourceSpan, x: Node, source: Any, destination: Any) -> Node:
    """Return it with some axes at other places."""
    rank = len(x.shape)
    if rank == 0:
        return x
    moved, places = (
        [axis % rank for axis in ([of] if isinstance(of, int) else of)]
        for of in (source, destination)
    )
    rest = iter(axis for axis in range(rank) if axis not in moved)
    order = [moved[places.index(at)] if at in places else next(rest) for at in range(rank)]
    return graph.permuted(x, order, span)


def unflatten(span: SourceSpan, x: Node, dim: int, sizes: Sequence[Any]) -> Node:
    """Return it with an axis taken apart."""
    (axis,) = axes_of(x, dim)
    known = math.prod(n for n in sizes if n != -1)
    extents = [x.shape[axis] // known if n == -1 else n for n in sizes]
    return graph.reshaped(x, (*x.shape[:axis], *extents, *x.shape[axis + 1 :]), span)


def as_other(span: SourceSpan, x: Node, other: Node) -> Node:
    """Return the same elements in the shape of another tensor."""
    return graph.reshaped(x, other.shape, span)


def expand(span: SourceSpan, x: Node, *sizes: Any) -> Node:
    """Return it repeated along axes of one element; -1 keeps an extent."""
    wanted = _several(sizes)
    own = (*(1 for _ in wanted[: len(wanted) - len(x.shape)]), *x.shape)
    extents = zip(own, wanted, strict=False)
    shape = tuple(n if isinstance(m, int) and m == -1 else m for n, m in extents)
    return calls.expanded(x, shape, span)


def expand_as(span: SourceSpan, x: Node, other: Node) -> Node:
    """Return it repeated to the shape of another tensor."""
    return calls.expanded(x, other.shape, span)


def part(span: SourceSpan, x: Node, index: Any) -> Node:
    """Return the part that an index of integers, slices, None and ... names.

    Raises:
        UnsupportedSyntax: something else stands there (TC101).
        ShapeMismatch: an integer that is not in it, or more of them than axes (TC201).
    """
    entries = list(index) if isinstance(index, tuple) else [index]
    count = sum(e is not None and e is not Ellipsis for e in entries)
    whole = [slice(None)] * (len(x.shape) - count)
    at = next((i for i, e in enumerate(entries) if e is Ellipsis), len(entries))
    entries[at : at + 1] = whole
    extents, shape = iter(x.shape), []
    for entry in entries:
        if entry is None:
            shape.append(1)
            continue
        extent = next(extents, 0)
        if isinstance(entry, slice):
            shape.append(taken(entry, extent)[1])
        elif not isinstance(entry, int | Extent):
            raise UnsupportedSyntax(
                expected="integers, slices and None", found=f"[{index!r}]", span=span
            )
        elif not -extent <= entry < extent:
            raise ShapeMismatch(
                what="index", expected=f"one that lies in shape {x.shape}",
                found=f"[{_shown(index)}]", span=span,
            )  # fmt: skip
    return graph.sliced(x, tuple(entries), tuple(shape), span)


def _shown(index: Any) -> str:
    """Return an index as Python writes it."""
    if isinstance(index, tuple):
        return ", ".join(map(_shown, index))
    if index is Ellipsis:
        return "..."
    if not isinstance(index, slice):
        return repr(index)
    ends = [index.start, index.stop, *([] if index.step is None else [index.step])]
    return ":".join("" if end is None else repr(end) for end in ends)


def same(span: SourceSpan, x: Node, *given: Any, **named: Any) -> Node:
    """Return it as it is."""
    _ = span, given, named
    return x
