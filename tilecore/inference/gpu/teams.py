"""Teams: branches that some threads of a block take, in whole warps, to work together there.

A branch that the thread index alone decides is a role of warps (producer, consumer). Its tile
operations are shared out among its own threads, which meet at a barrier of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tilecore.errors import ScopeError, UnsupportedOnTarget
from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.loops import TILE_STATEMENTS
from tilecore.ir import nodes
from tilecore.ir.alike import divergent
from tilecore.ir.evaluate import Evaluator
from tilecore.ir.expr import Binary, Expr, Load, Var
from tilecore.ir.nodes import If, KernelLaunch, Parallel, Stmt
from tilecore.ir.visitor import children, expressions, walk, walk_expr

WARP = 32
MAX_TEAMS = 14  # named barriers 2 to 15
WARPGROUP = 128
REGISTERS = 64 * 1024  # of a multiprocessor (CUDA C++ Programming Guide, compute capabilities)
REGISTER_UNIT = 8  # of a thread


@dataclass(frozen=True, slots=True)
class Team:
    """Threads ``first`` to ``first + count - 1`` of a block."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Teams:
    """The branches of a launch that are roles: the team of each branch body, by its id."""

    whole: Team
    bodies: Mapping[int, Team]
    of: Mapping[int, Team]  # of each statement, by id

    def team(self, stmt: Stmt) -> Team:
        """Return the threads that run a statement together."""
        return self.of.get(id(stmt), self.whole)

    @property
    def all(self) -> tuple[Team, ...]:
        """The teams of branches, each once, in order."""
        return tuple(dict.fromkeys(self.bodies.values()))


def find_teams(launch: KernelLaunch, threads: tuple[int, int, int], target: GpuTarget) -> Teams:
    """Return the roles of a launch.

    Raises:
        UnsupportedOnTarget: a tile operation in a branch that is no team's (TC302).
    """
    whole = Team(0, threads[0] * threads[1] * threads[2])
    apart = divergent(launch)
    bodies: dict[int, Team] = {}
    of: dict[int, Team] = {}
    if apart:
        _descend(launch.body, whole, apart, _thread_values(launch, threads), bodies, of)
    teams = Teams(whole, bodies, of)
    for stmt, is_role in _with_roles(launch.body, apart, bodies, True):
        is_shared_out = isinstance(stmt, Parallel) and stmt.loop_vars
        if not is_role and (is_shared_out or isinstance(stmt, TILE_STATEMENTS[:-1])):
            raise UnsupportedOnTarget(
                what=f"a {type(stmt).__name__} in a branch that only some threads take",
                target=target.name, span=stmt.span,
                reason="whole warps next to each other may share out a tile operation, which the "
                "thread index alone must choose",
            )  # fmt: skip
    warp = target.threads_per_warp
    if any(t.first % warp or t.count % warp for t in teams.all):
        raise UnsupportedOnTarget(
            what=f"a role of other than whole warps of {warp} threads", target=target.name,
            reason="lanes of a warp work together", span=launch.span,
        )  # fmt: skip
    if len(teams.all) > MAX_TEAMS:
        raise UnsupportedOnTarget(
            what=f"{len(teams.all)} roles of warps", target=target.name,
            reason=f"there are barriers for {MAX_TEAMS}", span=launch.span,
        )  # fmt: skip
    return teams


def registers_to_trade(launch: KernelLaunch, teams: Teams, target: GpuTarget) -> bool | str:
    """Return whether warpgroups hand registers to each other as the program asks, or why not.

    A warpgroup that asks for more waits until others have given them away (PTX ISA 9.0,
    setmaxnreg): together they may have what the block has.
    """
    asked: dict[int, int] = {}
    loops = [s for s in walk(launch.body) if isinstance(s, (nodes.For, nodes.While))]
    repeated = {id(s) for loop in loops for s in walk(loop)}
    for stmt in walk(launch.body):
        if not isinstance(stmt, nodes.Annotate) or stmt.key != "registers":
            continue
        team, (count, _) = teams.team(stmt), stmt.value
        if team == teams.whole or team.first % WARPGROUP or team.count % WARPGROUP:
            return "setmaxnreg is for roles of whole warpgroups"
        if id(stmt) in repeated:
            return "setmaxnreg in a loop leaves open what a thread has"
        for group in range(team.first // WARPGROUP, (team.first + team.count) // WARPGROUP):
            asked[group] = max(asked.get(group, 0), count)
    if not asked:
        return False
    if not target.has_wgmma:
        return f"{target.name} has no setmaxnreg"
    groups = -(-teams.whole.count // WARPGROUP)
    most = REGISTERS // WARPGROUP
    usual = most // groups // REGISTER_UNIT * REGISTER_UNIT
    total = sum(asked.get(group, usual) for group in range(groups))
    if total > most:
        return f"{total} for a thread of each warpgroup are asked for, {most} are there"
    return True


def _thread_values(launch: KernelLaunch, threads: tuple[int, int, int]) -> Evaluator:
    number = np.arange(threads[0] * threads[1] * threads[2])
    x, y, _ = threads
    parts = (number % x, number // x % y, number // (x * y))
    return Evaluator(dict(zip(launch.thread_vars, parts, strict=False)))


def _descend(
    stmt: Stmt, team: Team, apart: set[int], values: Evaluator,
    bodies: dict[int, Team], of: dict[int, Team],
) -> None:  # fmt: skip
    """Note the team of every statement below one that ``team`` runs."""
    of[id(stmt)] = team
    if isinstance(stmt, nodes.Let) and not any(
        isinstance(n, Load) for e in expressions(stmt) for n in walk_expr(e)
    ):
        with contextlib.suppress(ScopeError):  # it depends on more than the thread
            values.set(stmt.var, values(stmt.value))
    if isinstance(stmt, If) and id(stmt) in apart:
        taken, is_exact = _mask(stmt.cond, values)
        for body, holds in ((stmt.then_body, True), (stmt.else_body, False)):
            known = taken is not None and (holds or is_exact)
            inner = _team(taken == holds, team) if known and taken is not None else None
            if body is not None and inner is not None:
                bodies[id(body)] = inner
                _descend(body, inner, apart, values, bodies, of)
        return
    for child in children(stmt):
        _descend(child, team, apart, values, bodies, of)


def _mask(cond: Expr, values: Evaluator) -> tuple[np.ndarray | None, bool]:
    """Return (which threads a condition may hold for, whether it does for all of them).

    What is the same in all threads, in a conjunction, decides for the team as a whole.
    """
    if isinstance(cond, Binary) and cond.op == "and":
        (left, exact), (right, also) = _mask(cond.a, values), _mask(cond.b, values)
        if left is None or right is None:
            return None, False
        return left & right, exact and also
    variables = [n for n in walk_expr(cond) if isinstance(n, Var)]
    own = [v for v in variables if id(v) in values.values]
    if any(isinstance(n, Load) and n.buffer.scope == "local" for n in walk_expr(cond)):
        return None, False
    if not own:
        return np.asarray(True), False
    if len(own) < len(variables) or any(isinstance(n, Load) for n in walk_expr(cond)):
        return None, False
    return np.asarray(values(cond), bool), True


def _team(mask: np.ndarray, outer: Team) -> Team | None:
    """Return the threads of ``outer`` in a mask as a team, if they are warps side by side."""
    mask = np.broadcast_to(mask, (outer.first + outer.count,) if mask.ndim == 0 else mask.shape)
    inside = np.zeros(mask.shape, bool)
    inside[outer.first : outer.first + outer.count] = True
    taken = np.nonzero(mask & inside)[0]
    if taken.size == 0:
        return Team(outer.first, 0)
    first, last = int(taken[0]), int(taken[-1])
    is_run = last - first + 1 == taken.size
    return (
        Team(first, taken.size) if is_run and first % WARP == 0 and taken.size % WARP == 0 else None
    )


def _with_roles(
    stmt: Stmt, apart: set[int], bodies: Mapping[int, Team], is_role: bool
) -> Iterator[tuple[Stmt, bool]]:
    """Yield every statement with whether the threads that run it are known as a team."""
    yield stmt, is_role
    for child in children(stmt):
        known = is_role and (id(stmt) not in apart or id(child) in bodies)
        yield from _with_roles(child, apart, bodies, known)
