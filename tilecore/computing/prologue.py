"""Right operands that the kernel of a product computes, as of weights of 8 bits and their scales.

A product of few rows takes as long as reading its right operand. Where that is plain arithmetic of
tensors that are there, the kernel reads these, and what they are converted to is never stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tilecore.computing.extents import present, varies
from tilecore.computing.graph import Node, Shape, consumers, ordered, rewritten_beside
from tilecore.ir.dtype import DType

OPERATIONS = ("cast", "add", "sub", "mul", "div", "neg")
MOST = 8  # operations
# Rows of a product: with more, what is computed for each block of them takes longer than to store
# it once.
MOST_ROWS, MOST_ROWS_ON_GPU = 256, 64
FEW_ROWS = 16  # for which every element is read once


@dataclass(frozen=True, eq=False)
class Prologue:
    """What computes a right operand.

    Attributes:
        members: its operations, producers first; the last one makes the operand.
        shape: of the operand, (K, N) or (N, K): the last operation's, or the same elements as rows.
    """

    members: tuple[Node, ...]
    shape: Shape

    @property
    def root(self) -> Node:
        """The last operation."""
        return self.members[-1]

    @property
    def leaves(self) -> list[Node]:
        """The tensors that it reads."""
        own = set(self.members)
        return list(dict.fromkeys(p for m in self.members for p in m.producers if p not in own))


def prologue_of(node: Node) -> tuple[Node, ...]:
    """Return the operations that compute the right operand of a product, if its kernel does."""
    found: Prologue | None = node.attrs.get("prologue")
    return found.members if found else ()


def with_prologues(roots: Sequence[Node], is_on_gpu: bool) -> list[Node]:
    """Return roots where products of few rows compute right operands that nobody else reads.

    Such a product reads its left operand and the leaves of its prologue, which is an attribute.
    """
    users, results = consumers(ordered(roots)), set(roots)
    most_rows = MOST_ROWS_ON_GPU if is_on_gpu else MOST_ROWS

    def is_alone(node: Node) -> bool:
        return len(users[node]) == 1 and node not in results

    def change(node: Node, before: Node) -> Node:
        if node.kind != "product":
            return node
        rows, (a, b) = present(math.prod(node.shape[:-1])), before.producers
        if rows > most_rows or b is not node.producers[1]:  # or its leaves are others by now
            return node
        root = b.producers[0] if (b.kind, b.op) == ("view", "reshape") else b
        if a is b or len(b.shape) != 2 or not is_alone(b) or not is_alone(root):
            return node
        if root is not b and not _is_of_rows(root.shape, b.shape):
            return node
        members = _members(root, is_alone)
        found = Prologue(members, b.shape)
        if not members or not _pays(found, rows):
            return node
        attrs = MappingProxyType({**node.attrs, "prologue": found})
        args = (node.producers[0], *found.leaves)
        return Node(node.kind, node.op, args, node.shape, node.dtype, attrs, node.span)

    return rewritten_beside(roots, change)


def _is_of_rows(shape: Shape, matrix: Shape) -> bool:
    """Return whether the rows of a matrix are whole rows of a tensor of the same elements."""
    if any(map(varies, (*shape, *matrix))):
        return False
    rest: int = matrix[-1] % shape[-1]
    return rest == 0


def _members(root: Node, is_alone: Any) -> tuple[Node, ...]:
    """Return the operations behind one that nobody else needs, producers first."""
    found = [
        node for node in ordered([root])
        if node.kind == "pointwise" and node.op in OPERATIONS and (node is root or is_alone(node))
    ]  # fmt: skip
    needed, kept = {root}, list[Node]()
    for node in reversed(found):
        if node in needed:
            needed |= set(node.producers)
            kept.append(node)
    return tuple(reversed(kept)) if root in kept and len(kept) <= MOST else ()


def _pays(prologue: Prologue, rows: int) -> bool:
    """Return whether what it reads is there anyway, and is not more than what it would store."""
    root = prologue.root
    wide = [leaf for leaf in prologue.leaves if present(leaf.size) == present(root.size)]
    if not all(map(_is_there, wide)):
        return False  # the kernel that makes it computes the rest as well
    itemsize = sum(DType(leaf.dtype).itemsize for leaf in wide)
    return bool(wide) and (rows <= FEW_ROWS or itemsize <= DType(root.dtype).itemsize)


def _is_there(node: Node) -> bool:
    while node.kind == "view":
        node = node.producers[0]
    return node.kind in ("input", "call")
