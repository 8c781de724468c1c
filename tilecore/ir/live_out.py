"""Variables that hold a value of a loop nest's last iteration when it is read behind the nest."""

from __future__ import annotations

from collections.abc import Mapping

from tilecore.ir import nodes
from tilecore.ir.arithmetic.collisions import carried_by, set_by
from tilecore.ir.nodes import Buffer, Parallel, Stmt
from tilecore.ir.visitor import children, loads, walk

Live = frozenset[Buffer]
NONE: Live = frozenset()


def left_behind(body: Stmt) -> Mapping[Parallel, Live]:
    """Return the variables that each nest in ``body`` sets and that are read after it, if any.

    A variable that every later reader sets anew before is none of them.
    """
    found = _Liveness()
    found.before(body, NONE)
    return {nest: live for nest, live in found.left.items() if live}


class _Liveness:
    def __init__(self) -> None:
        self.left: dict[Parallel, Live] = {}
        self.jumps: list[Live] = []  # what is live where a break or continue goes, by loop

    def before(self, stmt: Stmt, live: Live) -> Live:
        """Return what is live before a statement, of what is live behind it."""
        match stmt:
            case nodes.Seq(stmts=stmts):
                for child in reversed(stmts):
                    live = self.before(child, live)
                return live
            case nodes.Store(buffer=buffer) if buffer.is_var:
                return live - {buffer} | _read(stmt)
            case nodes.Alloc(buffer=buffer):
                return live - {buffer}
            case nodes.Jump():
                return self.jumps[-1] if self.jumps else live
            case nodes.If(then_body=then, else_body=other):
                both = self.before(then, live)
                both |= live if other is None else self.before(other, live)
                return both | _read(stmt)
            case nodes.For() | nodes.While():
                return self.loop(stmt, live)
            case Parallel():
                stored = {s.buffer for s in walk(stmt.body) if isinstance(s, nodes.Store)}
                private = {s.buffer for s in walk(stmt.body) if isinstance(s, nodes.Alloc)}
                mine = frozenset(b for b in stored - private if b.is_var and b in live)
                self.left[stmt] = self.left.get(stmt, NONE) | mine
                live -= {b for b in set_by(stmt) if b.is_var}
                return live | _read(stmt) | {b for b in carried_by(stmt) if b.is_var}
            case _:
                for child in reversed(children(stmt)):
                    live = self.before(child, live)
                return live | _read(stmt)

    def loop(self, stmt: nodes.For | nodes.While, behind: Live) -> Live:
        """Return what is live before a loop, whose body may run any number of times."""
        live = behind | _read(stmt)
        while True:
            self.jumps.append(live)
            found = live | self.before(stmt.body, live)
            self.jumps.pop()
            if found == live:
                return live
            live = found


def _read(stmt: Stmt) -> Live:
    return frozenset(load.buffer for load in loads(stmt) if load.buffer.is_var)
