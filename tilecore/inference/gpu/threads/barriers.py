"""Where the threads of a block must meet: proven by what statements read and write.

Two accesses of one memory, one of them a write, by different statements need a barrier between
them. The walk keeps what was touched since the last barrier and puts one before a statement only
if it conflicts; the body of a loop is walked again with what its end leaves, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from types import MappingProxyType

import numpy as np

from tilecore.inference.gpu.loops import TILE_STATEMENTS
from tilecore.inference.gpu.plan import Pipeline
from tilecore.inference.gpu.threads.teams import Team, Teams, side_by_side, waits
from tilecore.inference.gpu.threads.touches import Touch, Touched
from tilecore.inference.gpu.threads.turns import write_apart
from tilecore.inference.gpu.threads.under_way import UnderWay, waited_for
from tilecore.ir import nodes
from tilecore.ir.analysis import reads, writes
from tilecore.ir.arithmetic.bounds import linear
from tilecore.ir.arithmetic.polynomial import Key, structural_key
from tilecore.ir.arithmetic.trips import trip_count
from tilecore.ir.expr import Call, Expr, Load, Var, int_value
from tilecore.ir.nodes import Buffer, KernelLaunch, Stmt
from tilecore.ir.values.evaluate import evaluate
from tilecore.ir.visitor import children, expressions, flat, has_jump, walk, walk_expr


class _Unordered(Exception):
    """The barriers that are fixed do not order all accesses."""


class Barriers:
    """Finds the barriers of one launch.

    In a program written per thread, threads may take branches of their own: there can be no barrier
    inside, so one that is needed comes before. Its accesses of tensors the program orders itself.

    Args:
        launch: the launch.
        memory: for each tile in shared memory those that share its place.
        pipelines: loops whose copies run ahead. Where threads copy, all meet at the head of the
            loop; boxes have barriers of their own.
        teams: branches whose threads meet among themselves. In a program with mbarriers these order
            what different teams do.
        loads: copies (to several blocks, too) that are under way until a barrier of the program
            ends its phase.
        meeting: reductions whose threads meet between their reads and their writes.
        alone: pipelines that one thread runs, with the statements that each of their turns is.
        running: products that run on until threads wait for them; others are over at once.
        apart: tiles whose accesses are ordered where they stand.
    """

    def __init__(
        self,
        launch: KernelLaunch,
        memory: Mapping[Buffer, set[Buffer]],
        pipelines: Mapping[Stmt, Pipeline],
        teams: Teams,
        loads: Container[Stmt] = (),
        meeting: Container[Stmt] = (),
        alone: Mapping[Stmt, tuple[Stmt, ...]] = MappingProxyType({}),
        running: Container[Stmt] = (),
        apart: Container[Buffer] = (),
    ) -> None:
        self.launch, self.memory, self.pipelines = launch, memory, pipelines
        self.teams, self.meeting = teams, meeting
        self.alone, self.running, self.apart_tiles = alone, running, apart
        self.has_waits = waits(launch.body)
        self.left: list[Touched] = []  # of each loop around: where its turns are left early
        self.under_way = UnderWay()
        self.ahead = {id(s) for p in pipelines.values() for s in p.ahead}
        self.until = dict(waited_for(launch.body, loads))
        self.before: set[Stmt] = set()
        self.ends: set[Stmt] = set()
        self.is_fixed = False  # whether barriers are only checked
        self.found: dict[Stmt, Touched] = {}  # by each statement
        # Of a loop, a statement and a tile whether it writes elsewhere each turn; None: not inside.
        self.apart: dict[tuple[int, int, Buffer], bool | None] = {}
        self.beside: dict[int, Mapping[int, int]] = {}  # of a sequence, by id

    def find(self) -> tuple[frozenset[Stmt], frozenset[Stmt]]:
        """Return (statements before which the threads must meet, loops at whose end they must)."""
        self._walk(self.launch.body, Touched())
        self.is_fixed = True
        for stmt in [s for s in walk(self.launch.body) if s in self.before]:
            if self._can_do_without(stmt):
                self.before.discard(stmt)
        return frozenset(self.before), frozenset(self.ends)

    def _can_do_without(self, stmt: Stmt) -> bool:
        """Return whether those found after a barrier have made it superfluous."""
        found = self.before
        self.before = found - {stmt}
        self.left.clear()
        self.under_way = UnderWay()
        try:
            self._walk(self.launch.body, Touched())
        except _Unordered:
            return False
        finally:
            self.before = found
        return True

    def _place(self, places: set[Stmt], stmt: Stmt) -> None:
        if self.is_fixed and stmt not in places:
            raise _Unordered
        places.add(stmt)

    def _walk(self, stmt: Stmt, touched: Touched) -> Touched:
        if id(stmt) in self.teams.apart:
            return self._apart(stmt, touched)
        match stmt:
            case nodes.Seq(stmts=stmts):
                beside = self._side_by_side(stmt)
                for number, child in enumerate(stmts):
                    if number in beside:
                        self._before_roles(stmts[number : beside[number] + 1], touched)
                    touched = self._walk(child, touched)
                return touched
            case nodes.Sync() | nodes.Wait() | nodes.Annotate(key="wait_products"):
                return self._after(stmt, touched)
            case nodes.Jump():
                return self._leave(touched)
            case nodes.If(cond=cond, then_body=then, else_body=other):
                touched = self._touch(
                    stmt, self._of_exprs(self.teams.team_around(stmt), cond), touched
                )
                return self._branches(then, other, touched)
            case nodes.For(kind="vectorized") if self._is_at_once(stmt):  # none can stand inside
                return self._touch(stmt, self._of(stmt), touched)
            case nodes.For() if stmt in self.alone:
                return self._touch(stmt, self._turn_alone(stmt), touched)
            case nodes.For() | nodes.While():
                before = dict(self.under_way.read)
                after = self._loop(stmt, touched)
                if not _surely_runs(stmt):
                    self.under_way.join(before)
                return after
            case _:
                return self._touch(stmt, self._of(stmt), touched)

    def _leave(self, touched: Touched) -> Touched:
        """Return what is touched where a turn is left; who leaves a role may be in no loop."""
        if self.left:
            self.left[-1] = self.left[-1].union(touched)
        return touched

    def _turn_alone(self, stmt: nodes.For) -> Touched:
        """Return what the turns of a loop touch that one thread runs."""
        own = self._of_exprs(self.teams.team_around(stmt), *expressions(stmt))
        for child in self.alone[stmt]:
            own = own.union(self._of(child))
        return own

    def _side_by_side(self, stmt: nodes.Seq) -> Mapping[int, int]:
        """Return the first statements of those side by side, with the last ones."""
        if not self.has_waits:
            return {}
        if id(stmt) not in self.beside:
            self.beside[id(stmt)] = dict(side_by_side(stmt, self.teams))
        return self.beside[id(stmt)]

    def _before_roles(self, stmts: tuple[Stmt, ...], touched: Touched) -> None:
        """Place the barrier that any of some statements needs before the first of them.

        Between them it would hold up those that others wait for.
        """
        own = Touched()
        for stmt in stmts:
            own = own.union(self._of(stmt))
        if stmts[0] not in self.before and (
            self._conflict(own, touched, self._are_beside)
            or any(self._tells_for_others(s, touched) for s in stmts if id(s) in self.teams.apart)
        ):
            self._place(self.before, stmts[0])

    def _apart(self, stmt: Stmt, touched: Touched) -> Touched:
        """Return what is touched after a branch whose threads take roles."""
        own = self._of(stmt)
        if (
            stmt in self.before
            or self._conflict(own, touched, self._are_apart)
            or self._conflict(self._outside_roles(stmt), touched, lambda one, other: True)
            or self._tells_for_others(stmt, touched)
        ):
            self._place(self.before, stmt)
            touched = Touched()
        after = touched.union(own)
        for body in self._roles(stmt):
            after = after.union(self._walk(body, touched))
        meets = any(isinstance(s, nodes.Sync) and s.scope == "block" for s in walk(stmt))
        return own if meets else after

    def _branches(self, then: Stmt, other: Stmt | None, touched: Touched) -> Touched:
        """Return what is touched after a branch, whichever of the two is taken."""
        before, known = dict(self.under_way.read), self.under_way.in_order
        after = self._walk(then, touched)
        if other is None:
            self.under_way.join(before)
            return after.union(touched)
        beside, self.under_way = self.under_way, UnderWay(before, in_order=known)
        after = after.union(self._walk(other, touched))
        self.under_way.join(beside.read)
        self.under_way.in_order &= beside.in_order
        return after

    def _after(self, stmt: Stmt, touched: Touched) -> Touched:
        """Return what is still touched after a statement of the program that orders accesses."""
        match stmt:
            case nodes.Sync(scope="block" | "cluster" | "grid"):
                return self.under_way.all_read()
            case nodes.Sync(scope="named_arrive"):
                return touched
            case nodes.Sync(scope="group" | "named"):
                return touched.without(self.teams.team(stmt)).union(self.under_way.all_read())
            case nodes.Wait(buffer=buffer):  # what is under way has arrived
                there = frozenset(t for t in touched.written if t.until is not buffer)
                return Touched(touched.read, there)
            case nodes.Annotate(key="wait_products", value=pending):
                self.under_way.wait(pending)
                return touched
            case _:  # of a warp
                return self._touch(stmt, self._of(stmt), touched)

    def _roles(self, stmt: Stmt) -> Iterator[Stmt]:
        """Yield the bodies of the branches below one that are roles."""
        for body in children(stmt):
            if id(body) in self.teams.bodies:
                yield body
            else:
                yield from self._roles(body)

    def _tells_for_others(self, branch: Stmt, touched: Touched) -> bool:
        """Return whether a branch tells a barrier of what threads outside of it have touched.

        Who waits for it takes that for done. In the block itself a barrier of all threads stands
        before who waits, unless both are roles.
        """
        inside = {id(s) for body in self._roles(branch) for s in walk(body)}
        for stmt in walk(branch):
            if not isinstance(stmt, nodes.Arrive) or stmt.after_products:
                continue
            team = self.teams.team_around(branch)
            is_heard = team != self.teams.whole and id(stmt) not in inside
            if (is_heard or stmt.buffer.of_cluster) and any(
                t.team == team
                and t.until is None
                and (t.is_tile or t.buffer.root.scope != "global")
                for t in touched.read | touched.written
            ):
                return True
        return False

    def _outside_roles(self, stmt: Stmt) -> Touched:
        """Return what a branch touches where no role of it does: no barrier can stand inside.

        The branch itself may be all that a role does.
        """
        below = children(stmt)
        if not below or isinstance(stmt, nodes.Parallel):
            return self._of(stmt)
        found = self._of_exprs(self.teams.team_around(stmt), *expressions(stmt))
        for child in below:
            if id(child) not in self.teams.bodies:
                found = found.union(self._outside_roles(child))
        return found

    def _loop(self, stmt: nodes.For | nodes.While, touched: Touched) -> Touched:
        own = self._of_exprs(self.teams.team_around(stmt), *expressions(stmt))
        pipeline = self.pipelines.get(stmt)
        if pipeline is not None and not pipeline.boxes:
            filled = frozenset(
                Touch(tile, True, self.teams.team_around(s))
                for s, tile in zip(pipeline.ahead, pipeline.tiles, strict=True)
            )
            touched = self._touch(stmt, own.union(Touched(written=filled)), touched)
            # All copies have been waited for where the last turn begins.
            after = self._turn(stmt.body, Touched())
            if has_jump(stmt.body):  # who leaves has waited for its own copies under way alone
                after = after.union(Touched(written=filled))
            if _surely_runs(stmt):
                return after
            return Touched(touched.read, touched.written - filled).union(after)
        touched = self._touch(stmt, own, touched)
        if self.is_fixed or not self._conflict(
            self._of(stmt.body), touched, lambda one, other: True
        ):
            return self._turns(stmt, own, touched)
        # One barrier before the loop is better than one in each of its turns.
        begun = self.under_way.copy()
        self._turns(stmt, own, Touched())
        needed = set(self.before), set(self.ends)
        self.under_way = begun.copy()
        after = self._turns(stmt, own, touched)
        if (self.before, self.ends) != needed:
            self.before, self.ends = needed
            self.before.add(stmt)
            self.under_way = begun
            after = self._turns(stmt, own, own.union(begun.all_read()))
        return after

    def _turns(self, stmt: nodes.For | nodes.While, own: Touched, touched: Touched) -> Touched:
        """Return what is touched after a loop, with the barriers that its turns need."""
        entry = touched
        while True:
            count = len(self.before) + len(self.ends)
            after = self._turn(stmt.body, entry)
            if isinstance(stmt, nodes.While) and self._conflict(own, after, self._are_together):
                self._place(self.ends, stmt)
            entry = touched.union(Touched() if stmt in self.ends else self._next(stmt, after))
            if len(self.before) + len(self.ends) == count:
                after = self._turn(stmt.body, entry)
                if len(self.before) + len(self.ends) == count:
                    return after if _surely_runs(stmt) else entry

    def _is_at_once(self, loop: nodes.For) -> bool:
        """Return whether no statement of a loop needs that the threads meet behind another one."""
        pairs = combinations([self._of(s) for s in flat([loop.body])], 2)
        return not any(self._conflict(own, one, self._are_together) for one, own in pairs)

    def _next(self, stmt: nodes.For | nodes.While, after: Touched) -> Touched:
        """Return what a turn leaves, as the next one finds it."""
        return Touched(
            after.read,
            frozenset(replace(t, is_apart=self._lies_apart(stmt, t)) for t in after.written),
        )

    def _lies_apart(self, loop: nodes.For | nodes.While, touch: Touch) -> bool:
        """Return whether a statement of a loop writes elsewhere than in the turns before."""
        key = id(loop), touch.source, touch.buffer
        if key not in self.apart:
            stmt = next((s for s in walk(loop.body) if id(s) == touch.source), None)
            self.apart[key] = None if stmt is None else False
            if stmt is not None and isinstance(loop, nodes.For) and not self.launch.thread_vars:
                self.apart[key] = write_apart(stmt, touch.buffer, loop)
        found = self.apart[key]
        return touch.is_apart if found is None else found

    def _turn(self, body: Stmt, touched: Touched) -> Touched:
        """Return what is touched after a turn of a loop, wherever it is left."""
        self.left.append(Touched())
        after = self._walk(body, touched)
        return after.union(self.left.pop())

    def _touch(self, stmt: Stmt, own: Touched, touched: Touched) -> Touched:
        roots = {t.buffer.root for t in own.written}
        self.under_way.wait_for(stmt, {b for r in roots for b in self.memory.get(r, {r})})
        if isinstance(stmt, nodes.Reduce) and stmt in self.meeting:
            read = frozenset(t for t in own.read if t.buffer is not stmt.dst.buffer)
            if self._conflict(Touched(read), touched, self._are_together):
                self._place(self.before, stmt)
            return Touched(written=own.written).union(self.under_way.all_read())
        if isinstance(stmt, nodes.Gemm) and stmt.in_group and stmt in self.running:
            self.under_way.begin(stmt, own)
        if stmt in self.before or self._conflict(own, touched, self._are_together):
            self._place(self.before, stmt)
            return own.union(self.under_way.all_read())
        return touched.union(own)

    def _are_together(self, one: Touch, other: Touch) -> bool:
        """Return whether a barrier before what ``one`` belongs to orders both."""
        return one.team in (other.team, self.teams.whole)

    def _are_apart(self, one: Touch, other: Touch) -> bool:
        """Return whether all threads must meet between what two teams do."""
        if one.team == other.team:
            return False
        a, b = sorted((one.team, other.team), key=lambda t: t.first)
        # The program cannot order what only shares memory.
        is_same = one.buffer.root is other.buffer.root
        return not (self.has_waits and is_same and a.first + a.count <= b.first)

    def _are_beside(self, one: Touch, other: Touch) -> bool:
        """Return whether all threads must meet before ``one``, which stands among roles."""
        return one.team == self.teams.whole or self._are_apart(one, other)

    # --- conflicts ----------------------------------------------------------------------------

    def _conflict(
        self, own: Touched, touched: Touched, matter: Callable[[Touch, Touch], bool]
    ) -> bool:
        return (
            self._meet(own.written, touched.read, matter, both_write=False)
            or self._meet(own.read, touched.written, matter, both_write=False)
            or self._meet(own.written, touched.written, matter, both_write=True)
        )

    def _meet(
        self,
        some: frozenset[Touch],
        others: frozenset[Touch],
        matter: Callable[[Touch, Touch], bool],
        *,
        both_write: bool,
    ) -> bool:
        for one in some:
            places = self.memory.get(one.buffer.root, {one.buffer.root})
            for other in others:
                if other.buffer.root not in places:
                    continue
                if one.buffer is other.buffer and one.own & other.own:
                    continue
                if not matter(one, other):
                    continue
                if one.until is not None and other.until is not None and one.team == other.team:
                    continue  # one thread asks for both; it has waited until the tile is free
                is_same = both_write and one.source == other.source
                if is_same and other.is_apart and one.buffer is other.buffer:
                    continue
                if other.buffer.root.scope != "global":
                    return True
                # A statement in a loop writes other parts of a tensor each time.
                by_threads = bool(self.launch.thread_vars) and not (one.is_tile or other.is_tile)
                if not (is_same or by_threads):
                    return True
        return False

    # --- accesses -----------------------------------------------------------------------------

    def _of(self, stmt: Stmt) -> Touched:
        """Return what a statement and those inside it touch."""
        if stmt not in self.found:
            self.found[stmt] = self._find(stmt)
        return self.found[stmt]

    def _find(self, stmt: Stmt) -> Touched:
        if id(stmt) in self.ahead:
            return Touched()
        found = Touched()
        for node in walk(stmt):
            is_tile = isinstance(node, TILE_STATEMENTS) or isinstance(stmt, TILE_STATEMENTS)
            team = self.teams.team_around(node)
            loaded = self._of_exprs(team, *expressions(node), is_tile=is_tile)
            until = self.until.get(id(node))
            read = {Touch(b, is_tile, team, until=until) for b in reads(node) if self._matters(b)}
            seen = {t.buffer for t in loaded.read}
            read = {t for t in read if t.buffer not in seen}
            own: frozenset[tuple[int, Key]] = frozenset()
            if isinstance(node, nodes.Store) and not is_tile:
                own = self._own(node.indices)
            written = {
                Touch(b, is_tile, team, own, id(stmt), until)
                for b in writes(node)
                if self._matters(b)
            }
            found = found.union(loaded).union(Touched(frozenset(read), frozenset(written)))
        return found

    def _of_exprs(self, team: Team, *exprs: Expr, is_tile: bool = False) -> Touched:
        found = {
            Touch(n.buffer, is_tile, team, frozenset() if is_tile else self._own(n.indices))
            for e in exprs
            for n in walk_expr(e)
            if isinstance(n, Load) and self._matters(n.buffer)
        }
        return Touched(read=frozenset(found))

    def _own(self, indices: tuple[Expr, ...]) -> frozenset[tuple[int, Key]]:
        """Return the axes, with the index, along which no two threads ever have the same index."""
        threads = self.launch.thread_vars
        if not threads or any(int_value(t) != 1 for t in self.launch.threads[1:]):
            return frozenset()
        found = ((axis, i) for axis, i in enumerate(indices) if self._is_own(i, threads[0]))
        return frozenset((axis, structural_key(i)) for axis, i in found)

    def _is_own(self, index: Expr, thread: Var) -> bool:
        """Return whether an index is another one in each thread, whenever the threads come by."""
        form = linear(index)
        if form is not None:
            known = {id(thread), *(id(v) for v in self.launch.block_vars)}
            return bool(form.coefficient(thread)) and all(id(v) in known for v in form.coefficients)
        count = int_value(self.launch.threads[0])
        if count is None or any(
            isinstance(n, (Load, Call)) or (isinstance(n, Var) and n is not thread)
            for n in walk_expr(index)
        ):
            return False
        values = np.asarray(evaluate(index, {thread: np.arange(count)}))
        return len(np.unique(values)) == count

    def _matters(self, buffer: Buffer) -> bool:
        if buffer.arrive_counts is not None:
            return False  # mbarriers order themselves
        if buffer.root in self.apart_tiles:
            return False
        return buffer.root in self.memory or buffer.root.scope == "global"


def _surely_runs(loop: nodes.For | nodes.While) -> bool:
    """Return whether a loop runs once or more often."""
    trips = int_value(trip_count(loop)) if isinstance(loop, nodes.For) else None
    return trips is not None and trips > 0
