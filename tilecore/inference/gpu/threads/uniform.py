"""Uniformity: which branches and loops all threads of a team run alike.

A variable of a thread (T.alloc_var) is the same in all threads of a team as long as they all give
it the same values, under conditions that are the same for them. The search begins with all
variables the same and takes back what is not, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilecore.ir import nodes
from tilecore.ir.analysis import writes
from tilecore.ir.expr import Expr, Load, Var
from tilecore.ir.nodes import Buffer, KernelLaunch, Stmt
from tilecore.ir.substitute import substitute_expr
from tilecore.ir.visitor import children, has_jump, walk, walk_expr


@dataclass(frozen=True, slots=True)
class Team:
    """Threads ``first`` to ``first + count - 1`` of a block."""

    first: int
    count: int

    def contains(self, other: Team) -> bool:
        """Return whether all threads of ``other`` are in this team."""
        return self.first <= other.first and other.first + other.count <= self.first + self.count

    def meets(self, other: Team) -> bool:
        """Return whether the two have threads in common."""
        return self.first < other.first + other.count and other.first < self.first + self.count


@dataclass(slots=True)
class Uniformity:
    """What is known of the variables of threads.

    Attributes:
        own: ids of the variables that number threads.
        lets: values of names.
        apart: variables that may differ within a team that stores to them.
        stored: for each variable the teams that store to it.
    """

    own: frozenset[int]
    lets: dict[Var, Expr] = field(default_factory=dict)
    apart: set[Buffer] = field(default_factory=set)
    stored: dict[Buffer, set[Team]] = field(default_factory=dict)

    def differs(self, team: Team, *exprs: Expr) -> bool:
        """Return whether a value may differ between threads of a team."""
        parts = [p for e in exprs for p in walk_expr(substitute_expr(e, self.lets))]
        return any(
            id(p) in self.own or (isinstance(p, Load) and self._differs(p.buffer, team))
            for p in parts
        )

    def _differs(self, buffer: Buffer, team: Team) -> bool:
        if buffer.scope != "local":
            return False
        if buffer.root in self.apart:
            return True
        stored = self.stored.get(buffer.root, ())
        return any(s.meets(team) and not s.contains(team) for s in stored)


def uniformity(launch: KernelLaunch) -> Uniformity:
    """Return what is known before any branch is looked at."""
    found = Uniformity(frozenset(id(v) for v in launch.thread_vars))
    for stmt in walk(launch.body):
        if isinstance(stmt, nodes.Let):
            found.lets[stmt.var] = substitute_expr(stmt.value, found.lets)
    return found


def branches_apart(launch: KernelLaunch, known: Uniformity, of: Mapping[int, Team]) -> set[int]:
    """Return the ids of the branches and loops that not all threads of their team run alike.

    Args:
        launch: the launch.
        known: of its variables.
        of: the team of each statement, by id; what no team runs is left out.
    """
    found: set[int] = set()
    for stmt in walk(launch.body):
        team = of.get(id(stmt))
        match stmt:
            case nodes.If(cond=cond) | nodes.While(cond=cond):
                differs = team is None or known.differs(team, cond)
            case nodes.For(start=start, stop=stop, step=step):
                differs = team is None or known.differs(team, start, stop, step)
            case _:
                continue
        if differs:
            found.add(id(stmt))
    for stmt in walk(launch.body):
        if isinstance(stmt, (nodes.For, nodes.While)) and _leaves_apart(stmt.body, found):
            found.add(id(stmt))
    return found


def _leaves_apart(stmt: Stmt, apart: set[int]) -> bool:
    """Return whether some threads may leave the loop around ``stmt``, or a turn of it, alone."""
    if isinstance(stmt, (nodes.For, nodes.While)):
        return False
    if isinstance(stmt, nodes.If) and id(stmt) in apart:
        return has_jump(stmt)
    return any(_leaves_apart(s, apart) for s in children(stmt))


def learn(launch: KernelLaunch, known: Uniformity, of: Mapping[int, Team]) -> bool:
    """Take back what the stores of a launch show to differ; return whether anything did.

    Args:
        launch: the launch.
        known: of its variables.
        of: the team of each statement, by id; a statement that only some threads of a team run,
            or not equally often, is left out.
    """
    before = len(known.apart), sum(map(len, known.stored.values()))
    _learn(launch.body, known, of)
    return before != (len(known.apart), sum(map(len, known.stored.values())))


def _learn(stmt: Stmt, known: Uniformity, of: Mapping[int, Team]) -> None:
    team = of.get(id(stmt))
    if isinstance(stmt, nodes.Store) and stmt.buffer.scope == "local":
        variable = stmt.buffer.root
        stored = known.stored.setdefault(variable, set())
        if team is None or known.differs(team, *stmt.indices, stmt.value):
            known.apart.add(variable)
        else:
            stored.add(team)
    else:
        known.apart |= {b.root for b in writes(stmt) if b.scope == "local"}
    if isinstance(stmt, nodes.Parallel) and stmt.loop_vars:  # each thread has points of its own
        inside = {b.root for s in walk(stmt) for b in writes(s)}
        known.apart |= {b for b in inside if b.scope == "local"}
        return
    for child in children(stmt):
        _learn(child, known, of)
