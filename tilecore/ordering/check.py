"""check(): the faults of an order program, and the barriers in its loops that it does not need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tilecore.ordering.code import Flattener, Unrolling
from tilecore.ordering.faults import Fault
from tilecore.ordering.machine import Guess, Machine
from tilecore.ordering.program import (
    ACCESSES,
    Act,
    If,
    Loop,
    Node,
    OrderProgram,
    Seq,
    Site,
    While,
    children,
)

ALL = Unrolling(first=1 << 30)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check has found.

    Attributes:
        faults: each pair of instructions once.
        unread: instructions that it says nothing about: their addresses follow from data.
    """

    faults: tuple[Fault, ...]
    unread: tuple[Site, ...]


def judge(program: OrderProgram, unrolling: Unrolling = ALL) -> Verdict:
    """Return what is wrong with the order of a program."""
    code = Flattener(program.slots).flatten(program.body)
    machines: list[Machine] = []

    def run(guess: Guess) -> None:
        machines.append(Machine(program, code, unrolling, guess))
        machines[-1].run()

    run(Guess())
    if machines[0].has_chosen:
        run(Guess(is_contrary=True))
    if any(machine.has_open_loops for machine in machines):
        run(Guess(is_contrary=True, turns=0))
    faults: dict[Any, Fault] = {}
    unread = list(program.unread)
    for machine in machines:
        faults = {**machine.faults.found, **faults}
        unread += [program.sites[n] for n in sorted(machine.unread)]
    return Verdict(tuple(faults.values()), tuple(dict.fromkeys(unread)))


def check(program: OrderProgram, unrolling: Unrolling = ALL) -> list[Fault]:
    """Return the faults of a program."""
    return list(judge(program, unrolling).faults)


def unneeded(program: OrderProgram, unrolling: Unrolling = ALL) -> list[Site]:
    """Return the barriers and fences inside loops without which a program is in order as well."""
    kinds = ("barrier", "fence")
    found = [a for a in acts(program, inside_loops=True) if a.kind in kinds]
    return [program.sites[a.site] for a in found if not check(without(program, a), unrolling)]


def acts(program: OrderProgram, *, inside_loops: bool = False) -> list[Act]:
    """Return the instructions that order something: all, or those inside loops."""
    return list(dict.fromkeys(_acts(program.body, is_inside=not inside_loops)))


def _acts(node: Node, *, is_inside: bool) -> Iterator[Act]:
    if isinstance(node, Act):
        if is_inside and node.kind not in ACCESSES:
            yield node
        return
    is_loop = isinstance(node, (Loop, While))
    for child in children(node):
        yield from _acts(child, is_inside=is_inside or is_loop)


def without(program: OrderProgram, act: Act) -> OrderProgram:
    """Return a program that lacks an instruction."""
    return replace(program, body=_without(program.body, act))


def _without(node: Node, act: Act) -> Node:
    match node:
        case Seq(parts=parts):
            return Seq(tuple(_without(p, act) for p in parts if p is not act))
        case If(then=then, other=other):
            rest = None if other is None else _without(other, act)
            return replace(node, then=_without(then, act), other=rest)
        case Loop(slot=slot, start=start, extent=extent, body=body):
            return Loop(slot, start, extent, _without(body, act))
        case While(cond=cond, body=body):
            return While(cond, _without(body, act))
        case _:
            return Seq(()) if node is act else node
