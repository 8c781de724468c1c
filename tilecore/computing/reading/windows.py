"""Parts of tensors that were written: what a tensor is once several of its parts were.

Parts that cover a tensor are joined (``cat``; ``stack`` of every other element), which kernels may
compute in place of a copy. Otherwise torch writes into a copy of what was there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from tilecore.computing import calls, graph, operands
from tilecore.computing.calls import Call, Hole, Whole
from tilecore.computing.extents import taken
from tilecore.computing.graph import Node, Shape
from tilecore.errors import SourceSpan

UNFILLED = "empty"  # the call that returns elements which nothing wrote
Range = tuple[Any, Any, int]  # first element, count and step


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a tensor, as a view of it has it.

    Attributes:
        ranges: of each of the tensor's axes.
        axes: of the view: which axis of the tensor each one is; None: a new one.
    """

    ranges: tuple[Range, ...]
    axes: tuple[int | None, ...]

    @classmethod
    def whole(cls, shape: Shape) -> Window:
        """Return that of the tensor itself."""
        return cls(tuple((0, n, 1) for n in shape), tuple(range(len(shape))))

    @property
    def counts(self) -> Shape:
        """Its extents, in the order of the tensor's axes."""
        return tuple(count for _, count, _ in self.ranges)

    def permuted(self, order: Sequence[int]) -> Window:
        """Return that of a view of the view with its axes in another order."""
        return Window(self.ranges, tuple(self.axes[axis] for axis in order))

    def sliced(self, index: Sequence[Any]) -> Window:
        """Return that of a part of the view."""
        ranges, axes = list(self.ranges), list[int | None]()
        rest = iter(self.axes)
        for entry in index:
            if entry is None:
                axes.append(None)
                continue
            axis = next(rest)
            if axis is None:
                axes += [None] if isinstance(entry, slice) else []
                continue
            start, count, step = ranges[axis]
            if isinstance(entry, slice):
                first, count, by = taken(entry, count)
                ranges[axis] = (start + first * step, count, step * by)
                axes.append(axis)
            else:
                at = entry + count if entry < 0 else entry
                ranges[axis] = (start + at * step, 1, 1)
        return Window(tuple(ranges), (*axes, *rest))

    def is_whole(self, shape: Shape) -> bool:
        """Return whether it is all of a tensor."""
        return all(count == n for count, n in zip(self.counts, shape, strict=True))

    def laid(self, value: Node) -> Node:
        """Return what has the view's shape in the order of the tensor's axes: shape ``counts``."""
        kept = [axis for axis in self.axes if axis is not None]
        extents = [n for n, axis in zip(value.shape, self.axes, strict=True) if axis is not None]
        found = graph.reshaped(value, extents, value.span)
        order = sorted(range(len(kept)), key=lambda at: kept[at])
        return graph.reshaped(graph.permuted(found, order, value.span), self.counts, value.span)

    def seen(self, value: Node, shape: Shape) -> Node:
        """Return what has shape ``counts`` as the view, of a shape, has it."""
        kept = [axis for axis in self.axes if axis is not None]
        dropped = [axis for axis in range(len(self.ranges)) if axis not in kept]
        found = graph.permuted(value, (*kept, *dropped), value.span)
        return graph.reshaped(found, shape, value.span)

    def free(self, shape: Shape) -> int | None:
        """Return the one axis of which it has a part; None: there are several."""
        pairs = enumerate(zip(self.counts, shape, strict=True))
        found = [axis for axis, (count, n) in pairs if count != n]
        return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class Write:
    """What was written to a part: a tensor of the window's ``counts``, or one number."""

    window: Window
    value: Any

    def within(self, ranges: Sequence[Range], shape: Shape) -> Node | bool | None:
        """Return its elements of some ranges; False: none of them are there; None: others too."""
        if tuple(ranges) == self.window.ranges:
            return _tensor_of(self.value, self.window.counts)
        axis = self.window.free(shape)
        if axis is None or self.window.ranges[axis][2] != 1 or ranges[axis][2] != 1:
            return None
        (start, count, _), (first, number, _) = self.window.ranges[axis], ranges[axis]
        if first + number <= start or start + count <= first:
            return False
        if first < start or first + number > start + count:
            return None
        entries = [slice(at, at + (n - 1) * step + 1, step) for at, n, step in ranges]
        entries[axis] = slice(first - start, first - start + number)
        whole = _tensor_of(self.value, self.window.counts)
        return graph.sliced(whole, tuple(entries), tuple(n for _, n, _ in ranges), whole.span)


@dataclass(frozen=True, slots=True)
class Filled:
    """A number in place of a tensor of some element type."""

    number: Any
    dtype: str
    span: SourceSpan

    def of(self, shape: Shape) -> Node:
        """Return the tensor of that number."""
        import torch

        named = {"dtype": getattr(torch, self.dtype), "device": operands.device()}
        call = Call("full", _full, (Whole(), self.number), MappingProxyType(named))
        is_numpy = operands.device() is None
        return calls.made(call, [], shape, self.dtype, self.span, is_numpy=is_numpy)


def _full(*args: Any, **kwargs: Any) -> Any:
    import torch

    return torch.full(*args, **kwargs)


def _tensor_of(value: Any, shape: Shape) -> Node:
    return value.of(shape) if isinstance(value, Filled) else value


def written(x: Node, writes: Sequence[Write], span: SourceSpan) -> Node:
    """Return a tensor some of whose parts were written, one after the other."""
    rest, put = list(writes), list[Write]()
    is_empty = is_unfilled(x)
    while rest:
        axis = rest[0].window.free(x.shape)
        count = 1
        while axis is not None and count < len(rest):
            if rest[count].window.free(x.shape) != axis:
                break
            count += 1
        now, rest = rest[:count], rest[count:]
        before = _put(x, put, span) if put else x
        joined = None if axis is None else _joined(before, axis, now, is_empty, span)
        if joined is None:
            put += now
        else:
            x, put, is_empty = joined, [], False
    return _put(x, put, span) if put else x


def _joined(
    x: Node, axis: int, writes: Sequence[Write], is_empty: bool, span: SourceSpan
) -> Node | None:
    """Return a tensor as its parts along an axis; None: it is to be copied."""
    found = _in_rows(x, axis, writes, is_empty, span)
    return _in_steps(x, axis, writes, is_empty, span) if found is None else found


def _in_rows(
    x: Node, axis: int, writes: Sequence[Write], is_empty: bool, span: SourceSpan
) -> Node | None:
    """Return a tensor as what was written beside what was there; None: it is to be copied."""
    if any(write.window.ranges[axis][2] != 1 for write in writes):
        return None
    parts: list[tuple[Any, Any, Write]] = []  # from, to
    for write in writes:
        start, count, _ = write.window.ranges[axis]
        stop, left = start + count, []
        for first, last, other in parts:
            if first < start:
                left.append((first, last if last <= start else start, other))
            if stop < last:
                left.append((first if stop <= first else stop, last, other))
        parts = [*left, (start, stop, write)]
    parts.sort(key=lambda part: part[0])
    found: list[Node] = []
    at: Any = 0
    has_gaps = any(a[1] != b[0] for a, b in pairwise(parts))
    has_gaps = has_gaps or parts[0][0] != 0 or parts[-1][1] != x.shape[axis]
    if has_gaps and (is_empty or any(isinstance(w.value, Filled) for _, _, w in parts)):
        return None
    for first, last, write in parts:
        if at != first:
            found.append(_rows(x, axis, at, first))
        start, count, _ = write.window.ranges[axis]
        counts = tuple(last - first if a == axis else n for a, n in enumerate(write.window.counts))
        if isinstance(write.value, Filled):
            found.append(write.value.of(counts))
        elif count == last - first:
            found.append(write.value)
        else:
            found.append(_rows(write.value, axis, first - start, last - start))
        at = last
    if at != x.shape[axis]:
        found.append(_rows(x, axis, at, x.shape[axis]))
    return calls.joined("cat", found, axis, span)


def _rows(x: Node, axis: int, first: Any, last: Any) -> Node:
    index = (*[slice(None)] * axis, slice(first, last))
    return graph.sliced(x, index, (*x.shape[:axis], last - first, *x.shape[axis + 1 :]), x.span)


def _in_steps(
    x: Node, axis: int, writes: Sequence[Write], is_empty: bool, span: SourceSpan
) -> Node | None:
    """Return a tensor of whose every so many elements each was written; None: it is none."""
    step = writes[0].window.ranges[axis][2]
    extent, parts = x.shape[axis], {}
    for write in writes:
        start, count, by = write.window.ranges[axis]
        if by != step or not start < step or count * step != extent:
            return None
        parts[start] = write.value
    has_gaps = len(parts) < step
    if has_gaps and (is_empty or any(isinstance(v, Filled) for v in parts.values())):
        return None
    counts = writes[0].window.counts
    found = []
    for start in range(step):
        if start in parts:
            found.append(_tensor_of(parts[start], counts))
        else:
            index = (*[slice(None)] * axis, slice(start, None, step))
            found.append(graph.sliced(x, index, counts, x.span))
    return graph.reshaped(calls.joined("stack", found, axis + 1, span), x.shape, span)


def _put(x: Node, writes: Sequence[Write], span: SourceSpan) -> Node:
    """Return a tensor of whose elements torch writes some."""
    import torch

    nodes: list[Node] = []

    def hole(node: Node) -> Hole:
        nodes.append(node)
        return Hole(len(nodes) - 1)

    base = None if is_unfilled(x) else hole(x)
    values = [w.value.number if isinstance(w.value, Filled) else hole(w.value) for w in writes]
    indices = [
        tuple(slice(at, at + (n - 1) * step + 1, step) for at, n, step in write.window.ranges)
        for write in writes
    ]
    named = {"dtype": getattr(torch, x.dtype), "device": operands.device()}
    args = (Whole(), base, values, indices)
    call = Call("put", _with_values, args, MappingProxyType(named))
    return calls.made(call, nodes, x.shape, x.dtype, span)


def _with_values(
    shape: Sequence[int], x: Any, values: Sequence[Any], indices: Sequence[Any], *, dtype: Any,
    device: Any,
) -> Any:  # fmt: skip
    """Return a tensor with some values at some places; ``x`` None: there is nothing elsewhere."""
    import torch

    found = torch.empty(shape, dtype=dtype, device=device) if x is None else x.clone()
    for value, index in zip(values, indices, strict=True):
        found[index] = value
    return found


def in_its_place(x: Node, base: Node) -> Node:
    """Return a tensor that is another one but for parts of an axis as one that torch writes to.

    It may then write to the other one itself, where the call asks for that; any other tensor is
    returned as it is.
    """
    if (x.kind, x.op) != ("call", "cat"):
        return x
    axis, at, new = x.attrs["call"].args[1], 0, list[tuple[tuple[slice, ...], Node]]()
    for part in x.producers:
        entries = (*[slice(None)] * axis, slice(at, at + part.shape[axis]))
        is_there = part.kind == "view" and part.args[0] is base
        if not is_there or part.attrs.get("index") != entries:
            new.append((entries, part))
        at += part.shape[axis]
    if len(new) == len(x.producers):
        return x
    holes = [Hole(number) for number in range(len(new) + 1)]
    args = (holes[0], tuple(entries for entries, _ in new), *holes[1:])
    call = Call("put", calls.with_parts, args, MappingProxyType({}))
    parts = [part for _, part in new]
    return calls.made(call, [base, *parts], x.shape, x.dtype, x.span)


def is_unfilled(x: Node) -> bool:
    """Return whether nothing wrote the elements of a tensor."""
    while x.kind == "view":
        (x,) = x.producers
    return x.kind == "call" and x.op == UNFILLED
