"""What torch would compute and nobody reads: the positions that ``max`` along an axis returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tilecore.computing.calls import Call, Hole
from tilecore.computing.functions.reductions import reduced
from tilecore.computing.functions.views import axes_of
from tilecore.computing.graph import FLOATS, Node, ordered, rewritten

EXTREMES: Mapping[str, str] = MappingProxyType({"max": "amax", "min": "amin"})


def without_positions(roots: Sequence[Node]) -> list[Node]:
    """Return results whose largest and smallest elements are reductions, if no position is read."""
    read = {
        node.attrs["call"]
        for node in ordered(roots)
        if node.kind == "call" and node.op in EXTREMES and node.attrs["place"] == 1
    }

    def change(node: Node) -> Node:
        asked = _axis(node.attrs["call"]) if node.kind == "call" and node.op in EXTREMES else None
        if asked is None or node.attrs["call"] in read:
            return node
        (x,), (dim, keepdim) = node.producers, asked
        if x.dtype not in FLOATS or not x.shape:
            return node
        return reduced(EXTREMES[node.op], x, axes_of(x, dim), keepdim, node.span)

    return rewritten(roots, change)


def _axis(call: Call) -> tuple[int, bool] | None:
    """Return the axis of a call, and whether it stays; None: it is of another kind."""
    names = ("input", "dim", "keepdim")
    given: dict[str, Any] = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    is_known = len(call.args) <= len(names) and given.keys() <= set(names)
    if not is_known or given["input"] != Hole(0) or type(given.get("dim")) is not int:
        return None
    return given["dim"], bool(given.get("keepdim", False))
