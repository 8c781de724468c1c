"""Teams: branches that some threads of a block take, in whole warps, to work together there.

A branch that the thread index alone decides is a role of warps (producer, consumer). Its tile
operations are shared out among its own threads, which meet at a barrier of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tilecore.errors import ScopeError, UnsupportedOnTarget
from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.loops import TILE_STATEMENTS
from tilecore.inference.gpu.threads.uniform import (
    Team,
    Uniformity,
    branches_apart,
    learn,
    uniformity,
)
from tilecore.ir import nodes
from tilecore.ir.expr import Binary, Expr, Var
from tilecore.ir.nodes import If, KernelLaunch, Parallel, Seq, Stmt
from tilecore.ir.plain.named_barriers import ARRIVES, SCOPES, is_named, named
from tilecore.ir.values.evaluate import Evaluator
from tilecore.ir.visitor import children, expressions, has_jump, has_loads, walk, walk_expr

Mask = npt.NDArray[np.bool_]  # of the threads of a block
WARP = 32
__all__ = ["Team", "Teams", "find_teams", "registers_to_trade"]
MAX_TEAMS = 14  # named barriers 2 to 15
MEETINGS = ("group", *SCOPES)  # scopes of barriers for whole warps
EVERYBODY = ("block", "cluster", "grid")  # and of those for all threads
WARPGROUP = 128
REGISTERS = 64 * 1024  # of a multiprocessor (CUDA C++ Programming Guide, compute capabilities)
REGISTER_UNIT, MOST_REGISTERS = 8, 256  # of a thread


@dataclass(frozen=True, slots=True)
class Teams:
    """The branches of a launch that are roles: the team of each branch body, by its id.

    ``of``: the team of each statement, by id; ``apart``: the branches and loops, by id, that not
    all threads of their team run alike; ``around``: the innermost team around each statement, some
    threads of which run it; ``single``: the statements, by id, that one thread at most runs;
    ``first``: the first thread that runs a statement, by id, where that is no team's and is known.
    """

    whole: Team
    bodies: Mapping[int, Team]
    of: Mapping[int, Team]
    apart: frozenset[int] = frozenset()
    around: Mapping[int, Team] = field(default_factory=dict)
    single: frozenset[int] = frozenset()
    first: Mapping[int, int] = field(default_factory=dict)

    def team(self, stmt: Stmt) -> Team:
        """Return the threads that run a statement together."""
        return self.of.get(id(stmt), self.whole)

    def team_around(self, stmt: Stmt) -> Team:
        """Return the innermost team around a statement, all or some threads of which run it."""
        return self.around.get(id(stmt), self.whole)

    @property
    def all(self) -> tuple[Team, ...]:
        """The teams of branches, each once, in order."""
        return tuple(dict.fromkeys(self.bodies.values()))


def waits(stmt: Stmt) -> bool:
    """Return whether threads wait for others somewhere in a statement, as the program says."""
    return any(isinstance(s, nodes.Wait) or is_named(s) for s in walk(stmt))


def side_by_side(body: Stmt, teams: Teams) -> tuple[tuple[int, int], ...]:
    """Return the (first, last) of statements that run while others of them do, and may wait.

    They lie between two roles, one of which waits for others, and the program lets its threads meet
    nowhere between these: nor may the compiler.
    """
    found: list[tuple[int, int]] = []
    roles: list[int] = []
    is_waiting = False
    for number, stmt in enumerate((*(body.stmts if isinstance(body, Seq) else (body,)), None)):
        if stmt is None or (isinstance(stmt, nodes.Sync) and stmt.scope in EVERYBODY):
            if is_waiting:
                found.append((roles[0], roles[-1]))
            roles, is_waiting = [], False
            continue
        apart = [s for s in walk(stmt) if id(s) in teams.apart]
        has_waits = any(waits(s) for s in apart)
        if has_waits or any(id(b) in teams.bodies for s in apart for b in children(s)):
            roles.append(number)
            is_waiting |= has_waits
    return tuple(found)


def find_teams(launch: KernelLaunch, threads: tuple[int, int, int], target: GpuTarget) -> Teams:
    """Return the roles of a launch.

    Raises:
        UnsupportedOnTarget: a tile operation in a branch that is no team's (TC302).
    """
    whole = Team(0, threads[0] * threads[1] * threads[2])
    taken = named(walk(launch.body))
    if taken and target.kind != "cuda":
        first = next(s for s in walk(launch.body) if is_named(s))
        arrives = first.scope == ARRIVES
        raise UnsupportedOnTarget(
            what="T.named_barrier_arrive" if arrives else "T.sync_threads between branches",
            target=target.name, span=first.span,
            reason="there are no named barriers",
            hint="T.sync_threads() of all threads of the block, outside of the branches",
        )  # fmt: skip
    warp = target.threads_per_warp
    teams = _teams(launch, threads, whole, WARP)
    if any(_is_broken(team, warp) for team in teams.all):
        _refuse_broken(launch, teams, target)
        teams = _teams(launch, threads, whole, warp)
    apart, bodies = teams.apart, teams.bodies
    for stmt, is_role in _with_roles(launch.body, apart, bodies, True):
        if isinstance(stmt, nodes.Copy) and stmt.barrier is not None and id(stmt) in teams.single:
            continue  # it asks the tensor memory accelerator, which memory.py checks
        if not is_role and _is_together(stmt):
            raise UnsupportedOnTarget(
                what=f"a {type(stmt).__name__} in a branch that only some threads take",
                target=target.name, span=stmt.span,
                reason="whole warps next to each other may share out a tile operation, which the "
                "thread index alone must choose",
                hint=f"`if tx < {target.threads_per_warp}:` lets one warp do it, "
                "T.if_then_else or a loop around all threads what data decides",
            )  # fmt: skip
    if len(teams.all) > MAX_TEAMS - len(taken):
        raise UnsupportedOnTarget(
            what=f"{len(teams.all)} roles of warps", target=target.name,
            reason=f"there are barriers for {MAX_TEAMS - len(taken)}", span=launch.span,
        )  # fmt: skip
    return teams


def _is_together(stmt: Stmt) -> bool:
    """Return whether the threads that run a statement share it out, or meet at it."""
    if isinstance(stmt, Parallel):
        return bool(stmt.loop_vars)
    is_meeting = isinstance(stmt, nodes.Sync) and stmt.scope in MEETINGS
    return is_meeting or isinstance(stmt, TILE_STATEMENTS[:-1])


def _is_broken(team: Team, warp: int) -> bool:
    return bool(team.first % warp or team.count % warp)


def _refuse_broken(launch: KernelLaunch, teams: Teams, target: GpuTarget) -> None:
    """Refuse parts of a warp that have something to do together; others are threads like any."""
    warp = target.threads_per_warp
    for stmt in walk(launch.body):
        team = teams.team(stmt)
        if team not in teams.all or not _is_broken(team, warp):
            continue
        if _is_together(stmt) or isinstance(stmt, nodes.Exchange):
            raise UnsupportedOnTarget(
                what=f"a role of {team.count} threads that begins with {team.first}",
                target=target.name,
                reason=f"lanes of a warp work together: whole warps of {warp} threads have a role",
                hint=f"branches on the thread index at multiples of {warp}, in a block of a "
                f"multiple of {warp} threads", span=launch.span,
            )  # fmt: skip


def _teams(launch: KernelLaunch, threads: tuple[int, int, int], whole: Team, warp: int) -> Teams:
    """Return the branches that are roles, whether they can be run or not."""
    if not launch.thread_vars:
        return Teams(whole, {}, {})
    known = uniformity(launch)
    of: dict[int, Team] = {id(s): whole for s in walk(launch.body)}
    while True:
        apart = branches_apart(launch, known, of)
        bodies: dict[int, Team] = {}
        found: dict[int, Team] = {}
        everyone = np.ones(whole.count, bool)
        values, single, first = _thread_values(launch, threads), set[int](), dict[int, int]()
        descent = _Descent(known, apart, values, bodies, found, single, first)
        descent.visit(launch.body, _Comers(everyone, ~everyone, whole, whole, warp))
        changed = learn(launch, known, found)
        if not changed and found == of:
            around = dict(_around(launch.body, bodies, whole))
            return Teams(whole, bodies, found, frozenset(apart), around, frozenset(single), first)
        of = found


def _around(stmt: Stmt, bodies: Mapping[int, Team], team: Team) -> Iterator[tuple[int, Team]]:
    """Yield each statement's id and the innermost team around it."""
    here = bodies.get(id(stmt), team)
    yield id(stmt), here
    for child in children(stmt):
        yield from _around(child, bodies, here)


def registers_to_trade(launch: KernelLaunch, teams: Teams, target: GpuTarget) -> bool | str:
    """Return whether warpgroups hand registers to each other as the program asks, or why not.

    A warpgroup that asks for more waits until others have given them away: together they have what
    the block is given at its launch, the same for each thread (PTX ISA 9.1, setmaxnreg).
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
    if not target.trades_registers:
        return f"{target.name} has no setmaxnreg"
    groups = -(-teams.whole.count // WARPGROUP)
    usual = REGISTERS // WARPGROUP // groups // REGISTER_UNIT * REGISTER_UNIT
    usual = min(usual, MOST_REGISTERS)
    total = sum(asked.get(group, usual) for group in range(groups))
    if total > groups * usual:
        return f"{total} for a thread of each warpgroup are asked for, {groups * usual} are there"
    return True


def _thread_values(launch: KernelLaunch, threads: tuple[int, int, int]) -> Evaluator:
    number = np.arange(threads[0] * threads[1] * threads[2])
    x, y, _ = threads
    parts = (number % x, number // x % y, number // (x * y))
    return Evaluator(dict(zip(launch.thread_vars, parts, strict=False)))


@dataclass(frozen=True, slots=True, eq=False)
class _Comers:
    """Who runs a statement.

    Attributes:
        taken: threads that may.
        unsure: those of them that may not, though others do.
        team: the threads, if they are one.
        around: the innermost team that all of them belong to.
        warp: threads that only together are a team.
    """

    taken: Mask
    unsure: Mask
    team: Team | None
    around: Team
    warp: int

    def inside(self, mask: Mask, *, holds: bool, is_exact: bool) -> _Comers:
        """Return who runs a branch, of a condition that holds for the threads of a mask.

        ``is_exact``: for all of them; else for all or for none, and all others go the other way.
        """
        if holds or is_exact:
            taken = self.taken & (mask == holds)
            unsure = self.unsure & taken
        else:
            taken, unsure = self.taken, self.unsure | (self.taken & mask)
        team = None if unsure.any() else _team(taken, self.warp)
        return _Comers(taken, unsure, team, team or self.around, self.warp)


@dataclass(frozen=True, slots=True)
class _Descent:
    """Notes the team of every statement below one, as far as the thread index decides it.

    Statements that threads do not run alike have none; ``single`` are those of one thread,
    ``first`` the first thread of those that have none and all of whose threads are known.
    """

    known: Uniformity
    apart: set[int]
    values: Evaluator
    bodies: dict[int, Team]
    of: dict[int, Team]
    single: set[int]
    first: dict[int, int]

    def visit(self, stmt: Stmt, here: _Comers) -> None:
        """Look at a statement that some threads run."""
        is_single = np.count_nonzero(here.taken) == 1
        if here.team is not None:
            self.of[id(stmt)] = here.team
        else:
            self._of_no_team(stmt, here, is_single)
        if isinstance(stmt, nodes.Let) and not any(map(has_loads, expressions(stmt))):
            with contextlib.suppress(ScopeError):  # it depends on more than the thread
                self.values.set(stmt.var, self.values(stmt.value))
        if isinstance(stmt, Parallel) and stmt.loop_vars:
            if here.team is not None:
                self.of.update({id(s): here.team for s in walk(stmt)})
            return  # its points are spread over threads
        is_loop = isinstance(stmt, (nodes.For, nodes.While))
        if id(stmt) not in self.apart or (is_loop and is_single):
            for child in children(stmt):
                self.visit(child, here)
        elif isinstance(stmt, If):
            self._branch(stmt, here)
        elif id(stmt) in self.first and self._is_in_step(stmt, here.around):
            self.first.update((id(s), self.first[id(stmt)]) for s in _straight(stmt))

    def _of_no_team(self, stmt: Stmt, here: _Comers, is_single: bool) -> None:
        """Note what is known of a statement that some threads run."""
        if is_single:
            self.single.add(id(stmt))
        if not here.unsure.any():
            self.first[id(stmt)] = int(np.argmax(here.taken))

    def _branch(self, stmt: If, here: _Comers) -> None:
        """Look at a branch that not all threads take alike."""
        if self._is_of_one(stmt.cond, here):
            self.single.update(map(id, walk(stmt.then_body)))
        mask, is_exact = self._mask(stmt.cond, here.around)
        for body, holds in ((stmt.then_body, True), (stmt.else_body, False)):
            if body is not None and mask is not None:
                inside = here.inside(mask, holds=holds, is_exact=is_exact)
                if inside.team is not None:
                    self.bodies[id(body)] = inside.team
                self.visit(body, inside)

    def _is_in_step(self, loop: Stmt, team: Team) -> bool:
        """Return whether all threads that come to a loop run it equally often."""
        return not has_jump(children(loop)[0]) and not self.known.differs(team, *expressions(loop))

    def _is_of_one(self, cond: Expr, here: _Comers) -> bool:
        """Return whether a condition lets one thread at most in: `tx == k`."""
        if not isinstance(cond, Binary):
            return False
        if cond.op == "and":
            return self._is_of_one(cond.a, here) or self._is_of_one(cond.b, here)
        if cond.op != "eq" or not cond.a.dtype.is_integer:
            return False
        for own, common in ((cond.a, cond.b), (cond.b, cond.a)):
            if self.known.differs(here.around, common) or has_loads(own):
                continue
            with contextlib.suppress(ScopeError):  # it depends on more than the thread
                found = np.broadcast_to(self.values(own), here.taken.shape)[here.taken]
                return len(np.unique(found)) == len(found)
        return False

    def _mask(self, cond: Expr, team: Team) -> tuple[Mask | None, bool]:
        """Return (which threads a condition may hold for, whether it does for all of them).

        What is the same in all threads, in a conjunction, decides for the team as a whole.
        """
        if isinstance(cond, Binary) and cond.op == "and":
            (left, exact), (right, also) = self._mask(cond.a, team), self._mask(cond.b, team)
            if left is None or right is None:
                return None, False
            return left & right, exact and also
        if not self.known.differs(team, cond):
            return np.ones(1, bool), False
        variables = [n for n in walk_expr(cond) if isinstance(n, Var)]
        own = [v for v in variables if id(v) in self.values.values]
        if len(own) < len(variables) or has_loads(cond):
            return None, False
        return np.asarray(self.values(cond), bool), True


def _straight(stmt: Stmt) -> Iterator[Stmt]:
    """Yield the statements below one that run whenever it does."""
    for child in children(stmt):
        yield child
        if isinstance(child, Seq):
            yield from _straight(child)


def _team(taken: Mask, warp: int) -> Team | None:
    """Return the threads in a mask as a team, if they are warps side by side."""
    found = np.nonzero(taken)[0]
    if found.size == 0:
        return Team(0, 0)
    first, last = int(found[0]), int(found[-1])
    is_run = last - first + 1 == found.size and first % warp == 0 and found.size % warp == 0
    return Team(first, found.size) if is_run else None


def _with_roles(
    stmt: Stmt, apart: Container[int], bodies: Mapping[int, Team], is_role: bool
) -> Iterator[tuple[Stmt, bool]]:
    """Yield every statement with whether the threads that run it are known as a team."""
    yield stmt, is_role
    for child in children(stmt):
        known = id(child) in bodies or (is_role and id(stmt) not in apart)
        yield from _with_roles(child, apart, bodies, known)
