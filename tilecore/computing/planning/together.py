"""Kernels of the same rows that read the same, or one another's results, become one.

It reads what they share once, and what one alone needed of another is never stored: a step of an
optimizer reads a gradient once for the parameter and both moments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tilecore.computing.graph import Node
from tilecore.computing.planning.fusion import MOST_MEMBERS, Group

MOST_TENSORS = 16  # that a kernel reads and writes: more are more streams than caches follow
MOST_AT_ONCE = 256  # steps among which pairs are looked for: time grows with their square
Step = Group | Node


def together(order: Sequence[Step], results: Sequence[Node]) -> list[Step]:
    """Return steps of which those that are better one kernel are one, in an order that runs.

    Of long plans neighbours come first: what lies between two steps lies between them in the order.
    """
    found, wanted = list(order), set(results)
    while len(found) > MOST_AT_ONCE:
        before = len(found)
        parts = [found[at : at + MOST_AT_ONCE] for at in range(0, before, MOST_AT_ONCE)]
        found = [
            step
            for part in parts
            for step in _together(part, wanted.union(*_read_outside(part, parts)))
        ]
        if len(found) > before // 2:
            break
    return _together(found, wanted)


def _together(order: list[Step], wanted: set[Node]) -> list[Step]:
    """Return the same; ``wanted``: what others read as well."""
    while True:
        graph = _Graph(order)
        pair = next(graph.pairs(), None)
        if pair is None:
            return order
        order = graph.joined(*pair, wanted)


def _read_outside(part: list[Step], parts: Sequence[list[Step]]) -> Iterator[Sequence[Node]]:
    """Yield what the steps of other parts read."""
    return (read_by(step) for other in parts if other is not part for step in other)


class _Graph:
    """Which step needs which."""

    def __init__(self, order: Sequence[Step]) -> None:
        self._order = order
        self._makers = {node: at for at, step in enumerate(order) for node in made_by(step)}
        self._needs: list[int] = []  # a bit for each step that one needs, of whatever distance
        for step in order:
            makers = self._of(read_by(step))
            needs = 0
            for maker in makers:
                needs |= self._needs[maker] | 1 << maker
            self._needs.append(needs)

    def _of(self, nodes: Sequence[Node]) -> set[int]:
        """Return the steps that make some tensors; others lie further in front."""
        return {self._makers[node] for node in nodes if node in self._makers}

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield the numbers of steps that can be one."""
        readers: dict[Node, list[int]] = {}
        for at, step in enumerate(self._order):
            if not isinstance(step, Group) or not step.is_of_rows:
                continue
            for operand in step.operands:
                others = [*self._of([operand]), *readers.get(operand, ())]
                for other in others:
                    if self._can_join(other, at):
                        yield other, at
                if _is_whole(operand, step):
                    readers.setdefault(operand, []).append(at)

    def _can_join(self, first: int, last: int) -> bool:
        one, other = self._order[first], self._order[last]
        assert isinstance(other, Group)
        if not isinstance(one, Group) or not one.is_of_rows or not _fit(one, other):
            return False
        between = self._of(other.operands) - {first}
        return not any(self._needs[at] >> first & 1 for at in between)

    def joined(self, first: int, last: int, results: set[Node]) -> list[Step]:
        """Return the steps with two of them as one."""
        one, other = self._order[first], self._order[last]
        assert isinstance(one, Group)
        assert isinstance(other, Group)
        rest = [s for at, s in enumerate(self._order) if at not in (first, last)]
        read = {node for step in rest for node in read_by(step)} | results
        roots = [node for node in (*one.roots, *other.roots) if node in read]
        whole = Group(
            roots[-1], roots[:-1], list(dict.fromkeys([*one.members, *other.members])), one.rows,
            one.columns or other.columns, has_reductions=one.has_reductions or other.has_reductions,
        )  # fmt: skip
        behind = [s for at, s in enumerate(self._order) if self._needs[at] >> first & 1]
        early = [s for s in self._order[:last] if s is not one and s not in behind]
        return [*early, whole, *(s for s in rest if s not in early)]


def made_by(step: Step) -> tuple[Node, ...]:
    """Return the tensors that a step computes."""
    return step.roots if isinstance(step, Group) else (step,)


def read_by(step: Step) -> Sequence[Node]:
    """Return the tensors that a step reads, views as they are."""
    return step.operands if isinstance(step, Group) else step.producers


def _is_whole(node: Node, group: Group) -> bool:
    """Return whether a kernel reads an element of a tensor for each that it runs through."""
    size: int = node.size
    return size == math.prod(group.rows) * (group.columns or 1)


def _fit(one: Group, other: Group) -> bool:
    """Return whether two kernels run through the same rows, and one may have all their tensors."""
    if one.rows != other.rows or one.computed_in != other.computed_in:
        return False
    if len({*one.members, *other.members}) > MOST_MEMBERS:
        return False
    if not (one.has_reductions or other.has_reductions):
        if one.root.shape != other.root.shape:
            return False
    elif None not in (one.columns, other.columns) and one.columns != other.columns:
        return False
    tensors = {*one.operands, *other.operands, *one.roots, *other.roots}
    return len(tensors) <= MOST_TENSORS
