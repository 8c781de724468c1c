"""The event language: what threads of a block do to memory and barriers, with loops as loops.

A value of a thread is a number, an array with an element per thread, or None where it follows from
data. An expression is a function of the environment: a list whose first element is the threads
that run (``Lanes``), then variables by slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilecore.errors import SourceSpan

if TYPE_CHECKING:
    from tilecore.ordering.machine import Machine

ACCESSES = ("access", "use")  # kinds of acts that order nothing
Array = NDArray[Any]
Value = Any  # int, Array or None
Wait = Callable[[], bool]


class Env(list[Any]):
    """Variables by slot; the first element is the threads that run."""

    machine: Machine


Expression = Callable[[Env], Value]


class Lanes:
    """Threads that run together: ``bits`` per thread, ``ids`` of those that are set."""

    __slots__ = ("bits", "ids")

    def __init__(self, bits: Array) -> None:
        self.bits = bits
        self.ids: Array = bits.nonzero()[0]

    def of(self, value: Value) -> Array:
        """Return the values of the threads that run."""
        if isinstance(value, np.ndarray):
            picked: Array = value[self.ids]
            return picked
        return np.full(len(self.ids), value)


@dataclass(frozen=True, slots=True)
class Site:
    """An instruction of the program and the statement that it belongs to."""

    text: str
    span: SourceSpan | None = None

    def __str__(self) -> str:
        return f"{self.text} at {self.span}" if self.span is not None else self.text


@dataclass(frozen=True, slots=True, eq=False)
class Act:
    """One instruction.

    Attributes:
        run: what it does; where threads must wait, it returns the question whether they may go on.
        site: number of its site.
        blocks: whether threads may have to wait.
        kind: "access" (of memory), "use" (of registers), or how it orders others: "barrier",
            "fence", "tensor fence", "registers" (a wgmma.fence), "wait", "arrival", "commit",
            "setup".
    """

    run: Callable[[Machine, Env], Wait | None]
    site: int
    blocks: bool = False
    kind: str = "access"


@dataclass(frozen=True, slots=True, eq=False)
class Let:
    """A variable gets a value."""

    slot: int
    value: Expression


@dataclass(frozen=True, slots=True, eq=False)
class Seq:
    """Statements in order."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class If:
    """A branch, taken by all threads or none if ``is_uniform``; condition None: not known."""

    cond: Expression
    then: Node
    other: Node | None
    is_uniform: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """``for slot in range(start, start + extent)``."""

    slot: int
    start: Expression
    extent: Expression
    body: Node


@dataclass(frozen=True, slots=True, eq=False)
class While:
    """``while cond``."""

    cond: Expression
    body: Node


@dataclass(frozen=True, slots=True, eq=False)
class Jump:
    """``break`` or ``continue`` of the innermost loop."""

    word: str


Node = Act | Let | Seq | If | Loop | While | Jump


@dataclass(frozen=True, slots=True)
class OrderProgram:
    """A kernel in the event language.

    Attributes:
        body: what each thread runs.
        sites: by number.
        threads: of a block.
        step: from the number of a thread to that of the same one in the next block: whole
            warpgroups, if there are several.
        blocks: that run together: those of a cluster.
        setup: the first values of variables, by slot.
        slots: of variables.
        shared_bytes: shared memory of a block.
        granule: bytes that all accesses of shared memory are multiples of.
        period: iterations after which slots and parities of a loop recur.
        globals: elements of the tensors that a block both reads and writes, by slot.
        unread: instructions whose address follows from data, so that nobody checks them.
        is_open: whether sizes or elements of tensors were taken for something.
    """

    body: Node
    sites: tuple[Site, ...]
    threads: int
    step: int
    blocks: int
    setup: Mapping[int, Value]
    slots: int
    shared_bytes: int
    granule: int
    period: int = 1
    globals: Mapping[int, int] = field(default_factory=dict)
    unread: tuple[Site, ...] = ()
    is_open: bool = False


def children(node: Node) -> tuple[Node, ...]:
    """Return the statements that a statement consists of."""
    match node:
        case Seq(parts=parts):
            return parts
        case If(then=then, other=other):
            return (then,) if other is None else (then, other)
        case Loop(body=body) | While(body=body):
            return (body,)
        case _:
            return ()


def is_empty(node: Node) -> bool:
    """Return whether a statement does nothing."""
    return isinstance(node, Seq) and all(is_empty(p) for p in node.parts)


def goes_on(node: Node) -> bool:
    """Return whether nobody waits in a statement or leaves a loop by it."""
    if isinstance(node, Jump) or (isinstance(node, Act) and node.blocks):
        return False
    return all(map(goes_on, children(node)))


def uses_registers_alone(node: Node) -> bool:
    """Return whether all that a statement does is the same in each turn of a loop."""
    match node:
        case Seq(parts=parts):
            return all(uses_registers_alone(p) for p in parts)
        case Loop(body=body):
            return uses_registers_alone(body)
        case Act(kind=kind):
            return kind == "use"
        case Let():
            return True
        case _:
            return False
