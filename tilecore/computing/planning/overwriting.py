"""Arguments that kernels overwrite: what they become is written where they lie.

A kernel reads an element of such an argument before it writes it, and nothing reads the argument
after the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilecore.computing.graph import Node
from tilecore.computing.planning.fusion import Group


def overwritten(
    order: Sequence[Group | Node], results: Sequence[Node], becomes: Mapping[Node, Node]
) -> dict[Node, Node]:
    """Return which arguments kernels may overwrite, by what they become.

    Args:
        order: steps of a plan.
        results: what it computes for its caller.
        becomes: what arguments are afterwards, by argument.
    """
    makers = {
        root: at for at, step in enumerate(order) if isinstance(step, Group) for root in step.roots
    }
    read_last = {memory_of(node): len(order) for node in results}
    for at, step in enumerate(order):
        for node in step.operands if isinstance(step, Group) else _read(step):
            memory = memory_of(node)
            read_last[memory] = max(read_last.get(memory, at), at)
    found: dict[Node, Node] = {}
    for argument, root in becomes.items():
        at = makers.get(root, -1)
        maker = order[at]
        if at < 0 or not isinstance(maker, Group) or results.count(root) > 1:
            continue
        is_like = root.shape == argument.shape and root.dtype == argument.dtype
        if not is_like or "strides" in argument.attrs or not maker.is_of_rows:
            continue
        others = [n for n in maker.operands if n is not argument and memory_of(n) is argument]
        if read_last.get(argument, -1) <= at and not others:
            found[root] = argument
    return found


def memory_of(node: Node) -> Node:
    """Return the tensor in whose memory another one may lie, as far as that is known."""
    while True:
        shares = 0 if (node.kind, node.op) == ("call", "expand") else node.attrs.get("shares")
        if node.kind == "view":
            shares = 0
        if shares is None:
            return node
        node = node.producers[shares]


def _read(step: Node) -> Sequence[Node]:
    """Return what a step reads when it runs: views are read by others."""
    return step.producers if step.kind == "call" else ()
