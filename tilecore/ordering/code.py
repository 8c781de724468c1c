"""An order program as steps: where threads may wait, groups of them are at places of their own."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilecore.ordering.program import (
    ACCESSES,
    Act,
    Expression,
    If,
    Jump,
    Loop,
    Node,
    Seq,
    While,
    children,
)


@dataclass(frozen=True, slots=True)
class Unrolling:
    """How many iterations of long loops run: the first, then as many of the last.

    What is left out is a multiple of the program's period, so that slots and parities go on.
    """

    first: int = 8
    last: int = 8


@dataclass(slots=True)
class Join:
    """Where those meet again who went different ways; ``counters``: of the loops around."""

    counters: tuple[int, ...]
    place: int = -1


@dataclass(slots=True)
class Branch:
    """To the next step, or to ``other``; ``is_loop``: whether a loop goes on."""

    cond: Expression
    other: int
    key: Join | None
    is_loop: bool = False


@dataclass(slots=True)
class Enter:
    """A loop begins: three slots from ``counter`` on hold turn, trips and start."""

    start: Expression
    extent: Expression
    counter: int


@dataclass(slots=True)
class Head:
    """A turn begins, or the loop is left."""

    slot: int
    counter: int
    out: int
    key: Join


@dataclass(slots=True)
class Next:
    """The next turn."""

    counter: int
    head: int


@dataclass(slots=True)
class Go:
    """On at another step."""

    to: int


Step = Node | Branch | Enter | Head | Next | Go | Join


@dataclass(slots=True)
class Code:
    """Steps; ``ordering``: bodies of loops in which something is ordered."""

    steps: list[Step]
    slots: int
    ordering: set[Node] = field(default_factory=set)


@dataclass(slots=True)
class _LoopPlace:
    counters: tuple[int, ...]
    breaks: list[Go]
    continues: list[Go]


class Flattener:
    """Makes steps of a program."""

    def __init__(self, slots: int) -> None:
        self.code = Code([], slots)
        self.loops: list[_LoopPlace] = []
        self._blocks: dict[Node, bool] = {}

    def blocks(self, node: Node) -> bool:
        """Return whether somebody may wait in a statement, or leave a loop around it."""
        if node not in self._blocks:
            found = isinstance(node, Act) and node.blocks
            self._blocks[node] = found or any(self.blocks(c) for c in children(node))
        return self._blocks[node]

    def orders(self, node: Node) -> bool:
        """Return whether a statement orders anything."""
        if isinstance(node, Act):
            return node.kind not in ACCESSES
        found = [self.orders(c) for c in children(node)]
        if isinstance(node, (Loop, While)) and found[0]:
            self.code.ordering.add(node.body)
        return any(found)

    def leaves(self, node: Node) -> bool:
        """Return whether a jump leaves a statement."""
        if isinstance(node, Jump):
            return True
        return not isinstance(node, (Loop, While)) and any(self.leaves(c) for c in children(node))

    def flatten(self, node: Node) -> Code:
        """Return the steps of a whole program."""
        self.orders(node)
        self.emit(node)
        return self.code

    def emit(self, node: Node) -> None:
        """Append the steps of a statement."""
        steps = self.code.steps
        if not self.blocks(node) and not (self.loops and self.leaves(node)):
            steps.append(node)
            return
        match node:
            case Seq(parts=parts):
                for part in parts:
                    self.emit(part)
            case If(cond=cond, then=then, other=other):
                join = Join(self._counters())
                branch = Branch(cond, 0, join)
                steps.append(branch)
                self.emit(then)
                if other is not None:
                    over = Go(0)
                    steps.append(over)
                    branch.other = len(steps)
                    self.emit(other)
                    over.to = len(steps)
                else:
                    branch.other = len(steps)
                self._join(join)
            case Loop() | While():
                self._loop(node)
            case Jump(word=word):
                go = Go(0)
                place = self.loops[-1]
                (place.breaks if word == "break" else place.continues).append(go)
                steps.append(go)
            case _:
                steps.append(node)

    def _counters(self) -> tuple[int, ...]:
        return self.loops[-1].counters if self.loops else ()

    def _join(self, join: Join) -> None:
        join.place = len(self.code.steps)
        self.code.steps.append(join)

    def _loop(self, node: Loop | While) -> None:
        steps, counter = self.code.steps, self.code.slots
        self.code.slots += 3
        outer = self._counters()
        out = Join(outer)
        self.loops.append(_LoopPlace((*outer, counter), [], []))
        if isinstance(node, Loop):
            steps.append(Enter(node.start, node.extent, counter))
            head: Head | Branch = Head(node.slot, counter, 0, out)
        else:
            steps.append(Enter(lambda env: 0, lambda env: 0, counter))
            head = Branch(node.cond, 0, out, is_loop=True)
        at = len(steps)
        steps.append(head)
        self.emit(node.body)
        place = self.loops.pop()
        for go in place.continues:
            go.to = len(steps)
        steps.append(Next(counter, at))
        for go in place.breaks:
            go.to = len(steps)
        if isinstance(head, Head):
            head.out = len(steps)
        else:
            head.other = len(steps)
        self._join(out)
