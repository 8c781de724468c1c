"""Products of which only the halves are read: ``gate, up = (x @ w).chunk(2, -1)``.

As two products they can be one kernel with the expression in which the halves meet.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tilecore.computing.extents import taken
from tilecore.computing.graph import Node, consumers, ordered, rewritten, sliced

ALIGNMENT = 8  # rows or columns at which a half may begin: where a GPU's addresses lie, too


def in_halves(roots: Sequence[Node]) -> list[Node]:
    """Return roots with two products for each whose halves alone go into functions of elements."""
    found = list(roots)
    while (whole := _halved(found)) is not None:
        found = rewritten(found, functools.partial(_half, whole))
    return found


def _halved(roots: Sequence[Node]) -> Node | None:
    """Return a product of which two parts of one width, and nothing else, are read."""
    nodes = ordered(roots)
    users = consumers(nodes)
    for node in nodes:
        halves = users[node]
        if node.kind not in ("product", "grouped") or node in roots or len(halves) != 2:
            continue
        read = [user.kind for half in halves for user in users[half]]
        if all(_is_part(h, node) for h in halves) and set(read) == {"pointwise"}:
            return node
    return None


def _is_part(node: Node, whole: Node) -> bool:
    """Return whether a view is some neighbouring columns, as many as half of a product has."""
    if node.op != "slice" or len(node.attrs["index"]) != len(whole.shape):
        return False
    *lead, columns = node.attrs["index"]
    if any(index != slice(None) for index in lead) or not isinstance(columns, slice):
        return False
    first, count, step = taken(columns, whole.shape[-1])
    is_half = step == 1 and count * 2 == whole.shape[-1]
    return is_half and isinstance(first, int) and first % ALIGNMENT == 0


def _half(whole: Node, node: Node) -> Node:
    """Return a part of the product as a product."""
    if whole not in node.producers:
        return node
    columns = node.attrs["index"][-1]
    a, b, *ends = whole.producers
    *lead, rows, last = b.shape
    if whole.attrs["trans_b"]:
        part, shape = (columns, slice(None)), (*lead, node.shape[-1], last)
    else:
        part, shape = (slice(None), columns), (*lead, rows, node.shape[-1])
    half = sliced(b, (*(slice(None) for _ in lead), *part), shape, node.span)
    args = (a, half, *ends)
    return Node(whole.kind, whole.op, args, node.shape, node.dtype, whole.attrs, node.span)
