"""Tensors of equal parts (``cat``, ``stack``): one kernel computes all parts, and what follows.

Rotary embeddings are the case: ``x * cos + cat([-x2, x1]) * sin`` is ``cat([x1 * cos1 - x2 * sin1,
x2 * cos2 + x1 * sin2])``, which reads and writes each element once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tilecore.computing.calls import joined
from tilecore.computing.graph import (
    FLOATS,
    Node,
    consumers,
    ordered,
    reshaped,
    rewritten,
    rewritten_beside,
    sliced,
)

JOINING = ("cat", "stack")
MOST_PARTS = 8
LYING = ("input", "view", "call")  # tensors that no kernel could still compute in passing


def in_parts(roots: Sequence[Node]) -> list[Node]:
    """Return roots in which equal parts are computed by one kernel, with what follows them."""
    users = consumers(ordered(roots))
    found = rewritten(rewritten_beside(roots, _Push(users, _seen_from(roots)).change), _with_kernel)
    users = consumers(ordered(found))
    return rewritten(found, lambda node: _as_it_is(node, users))


def _seen_from(roots: Sequence[Node]) -> set[Node]:
    """Return roots, and what they are views of: results that share memory."""
    found: set[Node] = set()
    for root in roots:
        found.add(root)
        while root.kind == "view":
            (root,) = root.producers
            found.add(root)
    return found


def _as_it_is(node: Node, users: Mapping[Node, Sequence[Node]]) -> Node:
    """Return a tensor that repeats another one without a copy, where torch alone reads it."""
    readers = users.get(node, ())
    if (node.kind, node.op) != ("call", "expand") or not readers:
        return node
    if any(reader.kind != "call" for reader in readers):
        return node
    attrs = MappingProxyType({**node.attrs, "is_for_calls": True})
    return Node(node.kind, node.op, node.args, node.shape, node.dtype, attrs, node.span)


def _with_kernel(node: Node) -> Node:
    """Return equal parts, of which functions of elements make some, as one kernel's; else the node.

    What such a function makes of a product, or of a row's sum, is computed where these are.
    """
    split = Split.of(node)
    made = [] if split is None else [part for part in split.parts if part.kind == "pointwise"]
    if split is None or not made or not all(map(_is_of_elements, made)):
        return node
    attrs = MappingProxyType({"axis": split.axis})
    return Node("joined", node.op, split.parts, node.shape, node.dtype, attrs, node.span)


def _is_of_elements(x: Node) -> bool:
    """Return whether a tensor is a function of elements of tensors that are there."""
    if x.kind in LYING:
        return True
    return x.kind == "pointwise" and all(map(_is_of_elements, x.producers))


@dataclass(frozen=True, slots=True)
class Split:
    """How a tensor is made of equal parts.

    Attributes:
        op: "cat" along an axis, "stack" along one of its own.
        parts: the tensors.
        axis: of the whole.
        behind: how many axes there are from it on.
    """

    op: str
    parts: tuple[Node, ...]
    axis: int
    behind: int

    @classmethod
    def of(cls, node: Node) -> Split | None:
        """Return how a node is made, None if not so."""
        if node.kind != "call" or node.op not in JOINING or node.dtype not in FLOATS:
            return None
        parts = node.producers
        is_even = all(p.shape == parts[0].shape and p.dtype == node.dtype for p in parts)
        if not is_even or not 2 <= len(parts) <= MOST_PARTS:
            return None
        axis = node.attrs["call"].args[1]
        axis += len(node.shape) if axis < 0 else 0
        return cls(node.op, parts, axis, len(node.shape) - axis)

    def is_like(self, other: Split | None) -> bool:
        """Return whether another tensor has its parts at the same places."""
        if other is None or (self.op, self.behind) != (other.op, other.behind):
            return False
        return self.parts[0].shape[self.axis :] == other.parts[0].shape[other.axis :] and len(
            self.parts
        ) == len(other.parts)


class _Push:
    """Functions of elements of parts in place of those of the whole."""

    def __init__(self, users: Mapping[Node, Sequence[Node]], returned: Collection[Node]) -> None:
        self._users, self._returned = users, returned

    def change(self, node: Node, before: Node) -> Node:
        if (node.kind, node.op) == ("view", "slice") and before not in self._returned:
            return _of_one_part(node)
        if node.kind != "pointwise" or node.dtype not in FLOATS:
            return node
        splits = [s for s in map(Split.of, node.producers) if s is not None]
        if not splits or not all(self._has_parts(arg, splits[0]) for arg in node.producers):
            return node
        split = splits[0]
        parts = [self._function(node, split, at) for at in range(len(split.parts))]
        return joined(split.op, parts, len(node.shape) - split.behind, node.span)

    def _has_parts(self, x: Node, split: Split) -> bool:
        """Return whether parts of a tensor can be read, or computed for this reader alone."""
        if split.is_like(Split.of(x)) or x.kind in LYING:
            return True
        is_alone = x.kind == "pointwise" and len(self._users.get(x, (x,))) == 1
        return is_alone and all(self._has_parts(arg, split) for arg in x.producers)

    def _function(self, node: Node, split: Split, at: int) -> Node:
        """Return a part of a function of elements."""
        args = tuple(self._part(a, split, at) if isinstance(a, Node) else a for a in node.args)
        shape = _shape(node.shape, split)
        return Node("pointwise", node.op, args, shape, node.dtype, node.attrs, node.span)

    def _part(self, x: Node, split: Split, at: int) -> Node:
        """Return the part of a tensor that broadcasts to a part of the whole."""
        own = Split.of(x)
        if own is not None and split.is_like(own):
            return own.parts[at]
        axis = len(x.shape) - split.behind
        if axis < 0:
            return x
        if x.kind == "pointwise":
            return self._function(x, split, at)
        shape = _shape(x.shape, split)
        if x.shape[axis] == 1:
            return x if split.op == "cat" else reshaped(x, shape, x.span)
        first = at * split.parts[0].shape[split.axis] if split.op == "cat" else at
        entry: Any = slice(first, first + shape[axis]) if split.op == "cat" else first
        return sliced(x, (*[slice(None)] * axis, entry), shape, x.span)


def _of_one_part(view: Node) -> Node:
    """Return what lies within one part of a tensor as a view of that part; else the node."""
    (whole,) = view.producers
    if whole.kind != "call" or whole.op not in JOINING:
        return view
    axis = whole.attrs["call"].args[1] % len(whole.shape)
    index = view.attrs["index"]
    places = [at for at, entry in enumerate(index) if entry is not None]
    parts = [(part, part.shape[axis] if whole.op == "cat" else 1) for part in whole.producers]
    if axis >= len(places) or not all(isinstance(extent, int) for _, extent in parts):
        return view
    entry = index[at := places[axis]]
    bounds = (entry.start, entry.stop) if isinstance(entry, slice) else (entry,)
    if not all(n is None or isinstance(n, int) for n in bounds):
        return view
    is_one = isinstance(entry, int)
    taken = range(sum(extent for _, extent in parts))[slice(entry, None) if is_one else entry]
    if not taken or taken.step < 1:
        return view
    first, last = taken[0], taken[0] if is_one else taken[-1]
    begin = 0
    for part, extent in parts:
        if begin <= first and last < begin + extent and part.dtype == whole.dtype:
            own: tuple[Any, ...] = (slice(first - begin, last - begin + 1, taken.step),)
            if is_one:
                own = (first - begin,) if whole.op == "cat" else ()
            elif whole.op == "stack":
                own = (None,)
            rest = (*index[:at], *own, *index[at + 1 :])
            is_forward = all(not isinstance(n, slice) or n.step in (None, 1) for n in rest)
            if is_forward and view.size == part.size:
                return reshaped(part, view.shape, view.span)
            return sliced(part, rest, view.shape, view.span)
        begin += extent
    return view


def _shape(whole: Sequence[Any], split: Split) -> tuple[Any, ...]:
    """Return the shape of a part of a tensor that broadcasts to the whole."""
    axis = len(whole) - split.behind
    if axis < 0:
        return tuple(whole)
    if split.op == "stack":
        return (*whole[:axis], *whole[axis + 1 :])
    extent = whole[axis] if whole[axis] == 1 else split.parts[0].shape[split.axis]
    return (*whole[:axis], extent, *whole[axis + 1 :])
