"""Torn branches: those that not all threads take, in which threads must meet nevertheless.

No barrier can stand inside. Which threads share an element there follows from the thread index,
which is evaluated for all threads of the block, and from the loops inside, turn by turn: threads of
a branch run their turns whenever they like. What is not known is taken to be any element.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from tilecore.errors import ScopeError
from tilecore.inference.gpu.loops import TILE_STATEMENTS
from tilecore.inference.gpu.threads.teams import EVERYBODY, MEETINGS, Team, Teams
from tilecore.ir import nodes
from tilecore.ir.analysis import reads, writes
from tilecore.ir.arithmetic.polynomial import Key, structural_key
from tilecore.ir.arithmetic.trips import trip_count
from tilecore.ir.expr import Binary, Cast, Const, Expr, Load, Unary, Var, int_value
from tilecore.ir.nodes import Buffer, KernelLaunch, Stmt
from tilecore.ir.substitute import substitute_expr
from tilecore.ir.values.evaluate import Evaluator
from tilecore.ir.visitor import buffers_of, children, distinct, flat, has_loads, loads, walk

WARP = 32
MOST_PLACES = 1 << 18  # of one access: threads times turns
MOST_TURNS = 64  # of the loops around a branch, which its threads run in step
Numbers = npt.NDArray[np.int64]


def torn_branches(
    launch: KernelLaunch,
    threads: tuple[int, int, int],
    teams: Teams,
    memory: Mapping[Buffer, set[Buffer]],
) -> dict[Stmt, frozenset[Stmt]]:
    """Return branches and loops of some threads, with what in them threads must meet before.

    Args:
        launch: the launch.
        threads: of its blocks.
        teams: its roles, in which barriers can stand.
        memory: for each tile in shared memory those that share its place.
    """
    if not launch.thread_vars:
        return {}
    whole = _Around(launch, threads)
    found: dict[Stmt, frozenset[Stmt]] = {}
    for branch, around in _branches(launch.body, teams, whole):
        walked = _Walk(teams, memory, around.turns())
        walked.visit_inside(branch, [], around)
        if walked.torn:
            found[branch] = frozenset(walked.torn)
    return found


def share_memory(
    stmt: Stmt, launch: KernelLaunch, threads: Sequence[int], lets: Mapping[Var, Expr]
) -> bool:
    """Return whether threads must meet inside a statement that each runs as often as it likes.

    Args:
        stmt: the statement.
        launch: around it.
        threads: of its blocks, along the axes of its thread indices.
        lets: what the names in the launch stand for, each in terms of names before it.
    """
    x, y, z = (*threads, 1, 1)[:3]
    whole = Team(0, x * y * z)
    around = _Around(launch, (x, y, z))
    for var, value in lets.items():
        around = around.knowing(nodes.Let(var, value))
    tiles = {b.root for b in buffers_of(stmt) if b.scope in ("shared", "fragment")}
    walked = _Walk(Teams(whole, {}, {}), {t: {t} for t in tiles}, [{}])
    walked.visit_inside(stmt, [], around)
    return bool(walked.torn)


@dataclass(frozen=True, slots=True)
class _Around:
    """What surrounds a statement.

    ``conds``: conditions of the branches inside of the outermost one that not all threads take, and
    whether they hold; ``inside``: the loops in it; ``loops``: those around it; ``single``: the
    outermost statement of one thread.
    """

    launch: KernelLaunch
    threads: tuple[int, int, int]
    lets: Mapping[Var, Expr] = field(default_factory=dict)
    loops: tuple[nodes.For, ...] = ()
    inside: tuple[nodes.For | nodes.While, ...] = ()
    conds: tuple[tuple[Expr, bool], ...] = ()
    single: Stmt | None = None

    def knowing(self, stmt: Stmt) -> _Around:
        """Return the same behind a statement."""
        match stmt:
            case nodes.Let(var=var, value=value):
                return replace(self, lets={**self.lets, var: self.spelled(value)})
            case nodes.If(cond=cond, then_body=then, else_body=None) if _leaves(then):
                return replace(self, conds=(*self.conds, (self.spelled(cond), False)))
            case _:
                return self

    def spelled(self, expr: Expr) -> Expr:
        """Return an expression without names."""
        return substitute_expr(expr, self.lets)

    @property
    def count(self) -> int:
        """Threads of a block."""
        return math.prod(self.threads)

    def thread_values(self) -> dict[Var, Numbers]:
        """Return the indices of all threads of a block."""
        x, y, _ = self.threads
        thread = np.arange(self.count)
        parts = (thread % x, thread // x % y, thread // (x * y))
        return dict(zip(self.launch.thread_vars, parts, strict=False))

    def turns(self) -> Sequence[Mapping[Var, int]]:
        """Return the values that variables of the loops around have together, turn by turn.

        Those of loops with many turns, or of a number that is not known, are left out.
        """
        ranges: dict[Var, range] = {}
        for loop in self.loops:
            bounds = [int_value(self.spelled(e)) for e in (loop.start, loop.stop, loop.step)]
            if None in bounds:
                continue
            values = range(*(b for b in bounds if b is not None))
            if math.prod(len(r) for r in ranges.values()) * len(values) <= MOST_TURNS:
                ranges[loop.loop_var] = values
        return [dict(zip(ranges, values, strict=True)) for values in product(*ranges.values())]


def _leaves(body: Stmt) -> bool:
    """Return whether a body always ends a turn of the loop around."""
    last = flat([body])[-1:]
    return bool(last) and isinstance(last[0], nodes.Jump)


def _meets_all(stmt: Stmt) -> bool:
    return isinstance(stmt, nodes.Sync) and stmt.scope in EVERYBODY


def _branches(stmt: Stmt, teams: Teams, around: _Around) -> Iterator[tuple[Stmt, _Around]]:
    """Yield the outermost branches and loops that not all threads of their team run alike."""
    if id(stmt) in teams.apart:
        yield stmt, around
        for body in _roles(stmt, teams):
            yield from _branches(body, teams, around)
        return
    if isinstance(stmt, nodes.Parallel):
        return
    if isinstance(stmt, nodes.For):
        around = replace(around, loops=(*around.loops, stmt))
    for child in children(stmt):
        yield from _branches(child, teams, around)
        around = around.knowing(child)


def _roles(stmt: Stmt, teams: Teams) -> Iterator[Stmt]:
    for body in children(stmt):
        if id(body) in teams.bodies:
            yield body
        else:
            yield from _roles(body, teams)


@dataclass(frozen=True, slots=True, eq=False)
class _Access:
    """An access of a shared tile by each thread that comes by.

    ``indices``: without names; None where it is of any part. ``key``: what decides which elements
    it is of. ``own``: axes, with the index, along which no two threads ever have the same index.
    ``is_told``: whether the lanes of each warp have met since.
    """

    buffer: Buffer
    indices: tuple[Expr, ...] | None
    kind: str  # "read", "write", "update"
    stmt: Stmt
    around: _Around
    key: Key = ()
    own: frozenset[tuple[int, Key]] = frozenset()
    is_told: bool = False


class _Walk:
    """Goes through a branch of some threads and notes where they must meet."""

    def __init__(
        self,
        teams: Teams,
        memory: Mapping[Buffer, set[Buffer]],
        turns: Sequence[Mapping[Var, int]],
    ) -> None:
        self.teams, self.memory, self.turns = teams, memory, turns
        self.torn: set[Stmt] = set()
        self.known: dict[tuple[Key, Key, bool], bool] = {}
        self.made: dict[int, list[_Access]] = {}  # by statement
        self.alone: dict[Key, bool] = {}  # of an index, whether it is another one in each thread
        self.places: dict[tuple[Key, int], _Places | None] = {}  # of an access, by turn

    def visit(self, stmt: Stmt, seen: list[_Access], around: _Around) -> list[_Access]:
        """Return what has been touched since the threads met, behind a statement.

        A role has barriers of its own, but for what the rest of the branch touches.
        """
        if id(stmt) not in self.teams.bodies:
            return self.visit_inside(stmt, seen, around)
        return [*seen, *self.of_role(stmt, around)]

    def visit_inside(self, stmt: Stmt, seen: list[_Access], around: _Around) -> list[_Access]:
        """Return what has been touched behind a statement, be it all that a role does."""
        if id(stmt) in self.teams.single and around.single is None:
            around = replace(around, single=stmt)
        match stmt:
            case nodes.Seq(stmts=stmts):
                for child in stmts:
                    seen = self.visit(child, seen, around)
                    around = around.knowing(child)
                return seen
            case nodes.Sync(scope="warp"):
                if _breaks_warps(around):
                    self.torn.add(stmt)
                return [replace(a, is_told=True) for a in seen]
            case nodes.Sync() if _meets_all(stmt):
                self.torn.add(stmt)
                return []
            case nodes.Sync(scope=scope) if scope in MEETINGS:
                return []
            case nodes.Wait():
                return []
            case nodes.If():
                return self.branch(stmt, self.touch(stmt, seen, around), around)
            case nodes.For() | nodes.While():
                return self.turn_by_turn(stmt, seen, around)
            case _:
                return self.touch(stmt, seen, around)

    def branch(self, stmt: nodes.If, seen: list[_Access], around: _Around) -> list[_Access]:
        """Return what has been touched behind a branch, whichever way threads go."""
        cond = around.spelled(stmt.cond)
        ways = [
            (body, replace(around, conds=(*around.conds, (cond, holds))))
            for body, holds in ((stmt.then_body, True), (stmt.else_body, False))
        ]
        for body, inside in ways:
            if body is not None and id(body) in self.teams.bodies:
                own = self.of_role(body, inside)
                if any(self.meet(one, other) for one in own for other in seen):
                    self.torn.add(stmt)
                    seen = []
        after: list[_Access] = []
        for body, inside in ways:
            after += seen if body is None else self.visit(body, list(seen), inside)
        return list(dict.fromkeys(after))

    def of_role(self, body: Stmt, around: _Around) -> list[_Access]:
        """Return all that a role touches."""
        if id(body) not in self.made:
            self.made[id(body)] = list(self.all_of(body, around))
        return self.made[id(body)]

    def all_of(self, stmt: Stmt, around: _Around) -> Iterator[_Access]:
        """Yield what a statement and those inside it touch."""
        yield from self.accesses(stmt, around)
        if isinstance(stmt, nodes.Parallel):
            return
        if isinstance(stmt, (nodes.For, nodes.While)):
            around = replace(around, inside=(*around.inside, stmt))
        for number, child in enumerate(children(stmt)):
            if isinstance(stmt, nodes.If):
                conds = (*around.conds, (around.spelled(stmt.cond), number == 0))
                yield from self.all_of(child, replace(around, conds=conds))
            else:
                yield from self.all_of(child, around)
                around = around.knowing(child)

    def turn_by_turn(
        self, loop: nodes.For | nodes.While, seen: list[_Access], around: _Around
    ) -> list[_Access]:
        """Return what has been touched behind a loop, of which a turn may follow another one."""
        seen = self.touch(loop, seen, around)
        inside = replace(around, inside=(*around.inside, loop))
        if isinstance(loop, nodes.While):
            conds = (*around.conds, (around.spelled(loop.cond), True))
            inside = replace(inside, conds=conds)
        once = self.visit(loop.body, list(seen), inside)
        twice = self.visit(loop.body, list(dict.fromkeys((*seen, *once))), inside)
        return list(dict.fromkeys((*seen, *once, *twice)))

    def touch(self, stmt: Stmt, seen: list[_Access], around: _Around) -> list[_Access]:
        """Return what has been touched behind a statement without others, or a head of others."""
        if id(stmt) not in self.made:
            self.made[id(stmt)] = list(self.accesses(stmt, around))
        own = self.made[id(stmt)]
        if stmt in self.torn or any(self.meet(one, other) for one in own for other in seen):
            self.torn.add(stmt)
            return own
        return [*seen, *(a for a in own if a not in seen)]

    def accesses(self, stmt: Stmt, around: _Around) -> Iterator[_Access]:
        """Yield what a statement itself touches of shared memory."""
        for load in loads(stmt):
            if load.buffer.root in self.memory:
                yield self.access(load.buffer, load.indices, "read", stmt, around)
        match stmt:
            case nodes.Atomic(buffer=buffer, indices=indices) if buffer.root in self.memory:
                yield self.access(buffer, indices, "update", stmt, around)
            case nodes.Store(buffer=buffer, indices=indices) if buffer.root in self.memory:
                yield self.access(buffer, indices, "write", stmt, around)
            case nodes.Parallel():
                for part in walk(stmt):
                    yield from self.parts(part, around)
            case _:
                yield from self.parts(stmt, around)

    def access(
        self, buffer: Buffer, indices: tuple[Expr, ...], kind: str, stmt: Stmt, around: _Around
    ) -> _Access:
        """Return an access of elements."""
        spelled = tuple(around.spelled(i) for i in indices)
        keys = [structural_key(i) for i in spelled]
        inside, conds = map(id, around.inside), ((id(c), holds) for c, holds in around.conds)
        key = id(buffer), id(around.single), *keys, *inside, *conds
        made = _Access(buffer, spelled, kind, stmt, around, key)
        own = frozenset((axis, k) for axis, k in enumerate(keys) if self.is_alone(made, axis, k))
        return replace(made, own=own)

    def is_alone(self, access: _Access, axis: int, key: Key) -> bool:
        """Return whether no two threads ever have the same index along an axis."""
        named = key, *map(id, access.around.inside)
        if named not in self.alone:
            assert access.indices is not None
            anywhere = replace(access.around, conds=())
            one = replace(access, indices=(access.indices[axis],), around=anywhere)
            found = _places(one, {})
            index = None if found is None else found.indices[0]
            self.alone[named] = False
            if found is not None and index is not None:
                pairs = np.unique(np.stack([index[0], found.thread], axis=1), axis=0)
                self.alone[named] = len(np.unique(pairs[:, 0])) == len(pairs)
        return self.alone[named]

    def parts(self, stmt: Stmt, around: _Around) -> Iterator[_Access]:
        """Yield the tiles that a statement touches in any part."""
        if isinstance(stmt, (nodes.Arrive, nodes.Wait)):
            return
        of_tiles = isinstance(stmt, (*TILE_STATEMENTS, nodes.LaneGemm))
        for buffers, kind in ((reads(stmt) if of_tiles else [], "read"), (writes(stmt), "write")):
            for buffer in buffers:
                if buffer.root in self.memory and buffer.arrive_counts is None:
                    yield _Access(buffer, None, kind, stmt, around)

    # --- who meets whom -----------------------------------------------------------------------

    def meet(self, one: _Access, other: _Access) -> bool:
        """Return whether two threads may touch one element, one of which writes it."""
        if one.kind == other.kind and one.kind != "write":
            return False
        if one.around.single is not None and one.around.single is other.around.single:
            return False
        if one.stmt is other.stmt and (one.kind == other.kind) and not _orders_turns(one):
            return False
        if other.buffer.root not in self.memory[one.buffer.root]:
            return False
        if one.buffer is not other.buffer or one.indices is None or other.indices is None:
            return True
        if one.own & other.own:
            return False
        key = one.key, other.key, other.is_told
        if key not in self.known:
            apart = WARP if other.is_told else 1
            turns = range(len(self.turns))
            self.known[key] = any(
                _share(self.elements(one, n), self.elements(other, n), apart) for n in turns
            )
        return self.known[key]

    def elements(self, access: _Access, number: int) -> _Places | None:
        """Return the elements of an access in a turn of the loops around."""
        key = access.key, number
        if key not in self.places:
            self.places[key] = _places(access, self.turns[number])
        return self.places[key]


def _orders_turns(write: _Access) -> bool:
    """Return whether it matters in which turn a statement writes an element at last.

    Where data say which element it is, the program has seen to it that they are different ones.
    """
    around, stmt = write.around, write.stmt
    is_known = not any(map(has_loads, write.indices or ()))
    is_one_value = isinstance(stmt, nodes.Store) and isinstance(stmt.value, Const)
    return bool(around.inside) and is_known and not is_one_value


def _share(a: _Places | None, b: _Places | None, apart: int) -> bool:
    """Return whether threads of two groups of ``apart`` threads may touch one element."""
    if a is None or b is None:
        return True
    columns = []
    for x, y in zip(a.indices, b.indices, strict=True):
        if x is not None and y is not None and x[1] == y[1]:
            columns.append((x[0], y[0]))
    ours = np.stack([*(x for x, _ in columns), np.zeros_like(a.thread)], axis=1)
    theirs = np.stack([*(y for _, y in columns), np.zeros_like(b.thread)], axis=1)
    if not len(ours) or not len(theirs):
        return False
    _, number = np.unique(np.concatenate([ours, theirs]), axis=0, return_inverse=True)
    number = number.reshape(-1)
    group = np.concatenate([a.thread, b.thread]) // apart
    is_ours = np.arange(len(number)) < len(ours)
    count = int(number.max()) + 1
    low = [np.full(count, np.iinfo(np.int64).max) for _ in range(2)]
    high = [np.full(count, -1) for _ in range(2)]
    for side, mine in enumerate((is_ours, ~is_ours)):
        np.minimum.at(low[side], number[mine], group[mine])
        np.maximum.at(high[side], number[mine], group[mine])
    both = (high[0] >= 0) & (high[1] >= 0)
    return bool((both & (np.minimum(*low) != np.maximum(*high))).any())


Index = tuple[Numbers, Mapping[Key, int]]  # a number, and multiples of what all threads have alike


@dataclass(frozen=True, slots=True)
class _Places:
    """The elements that threads touch: one row for each thread and turn of the loops inside.

    ``indices``: by axis; None where nothing is known.
    """

    thread: Numbers
    indices: tuple[Index | None, ...]


def _places(access: _Access, turn: Mapping[Var, int]) -> _Places | None:
    """Return the elements of an access in one turn of the loops around; None: too many to list."""
    around = access.around
    thread, values = np.arange(around.count), around.thread_values()
    values |= {v: np.full_like(thread, n) for v, n in turn.items()}
    inner: set[Var] = {*around.launch.thread_vars}
    indices = access.indices or ()
    needed = {n for e in (*indices, *(c for c, _ in around.conds)) for n in distinct(e)}
    for loop in around.inside:
        if isinstance(loop, nodes.While):
            continue
        var = loop.loop_var
        inner.add(var)
        if var not in needed and not any(
            var in set(distinct(e))
            for other in around.inside
            if isinstance(other, nodes.For)
            for e in map(around.spelled, (other.start, other.stop, other.step))
        ):
            continue
        head = [_number(around.spelled(e), values) for e in (loop.start, loop.stop, loop.step)]
        trips = _number(around.spelled(trip_count(loop)), values)
        if trips is None or head[0] is None or head[2] is None:
            continue  # any turn: what depends on it is not known
        trips = np.maximum(np.broadcast_to(trips, thread.shape), 0)
        if int(trips.sum()) > MOST_PLACES:
            return None
        rows = np.repeat(np.arange(len(thread)), trips)
        count = np.arange(len(rows)) - np.repeat(np.cumsum(trips) - trips, trips)
        start, step = (np.broadcast_to(h, thread.shape)[rows] for h in (head[0], head[2]))
        thread, values = thread[rows], {v: n[rows] for v, n in values.items()}
        values[var] = start + step * count
    mask = _mask(around, values, len(thread))
    values = {v: n[mask] for v, n in values.items()}
    found = tuple(_index(i, values, inner, int(mask.sum())) for i in indices)
    return _Places(thread[mask], found)


def _mask(around: _Around, values: Mapping[Var, Numbers], count: int) -> npt.NDArray[np.bool_]:
    """Return in which rows threads may come by, as far as that is known."""
    mask = np.ones(count, bool)
    for cond, holds in around.conds:
        for part, is_true in _conjuncts(cond, holds):
            met = _number(part, values)
            if met is not None:
                mask &= np.broadcast_to(met, mask.shape).astype(bool) == is_true
    return mask


def _breaks_warps(around: _Around) -> bool:
    """Return whether some lanes of a warp, and never the others, may come by."""
    values = around.thread_values()
    taken = _mask(around, values, around.count)
    starts = np.arange(0, around.count, WARP)
    comers = np.add.reduceat(taken.astype(int), starts)
    lanes = np.minimum(WARP, around.count - starts)
    return bool(((comers > 0) & (comers < lanes)).any())


def _conjuncts(cond: Expr, holds: bool) -> Iterator[tuple[Expr, bool]]:
    """Yield conditions that all hold, or do not, where one holds, or does not."""
    match cond:
        case Binary(op="and") if holds:
            yield from _conjuncts(cond.a, True)
            yield from _conjuncts(cond.b, True)
        case Binary(op="or") if not holds:
            yield from _conjuncts(cond.a, False)
            yield from _conjuncts(cond.b, False)
        case Unary(op="not"):
            yield from _conjuncts(cond.a, not holds)
        case _:
            yield cond, holds


def _number(expr: Expr, values: Mapping[Var, Numbers]) -> Numbers | None:
    """Return the value of an expression in each row; None: it depends on more."""
    if any(isinstance(n, Load) for n in distinct(expr)):
        return None
    with contextlib.suppress(ScopeError), np.errstate(all="ignore"):
        return np.asarray(Evaluator(values)(expr))
    return None


def _index(expr: Expr, values: Mapping[Var, Numbers], inner: set[Var], count: int) -> Index | None:
    """Return an index in each row; None: it depends on what threads may have differently."""
    number = _number(expr, values)
    if number is not None:
        return np.broadcast_to(number, (count,)).astype(np.int64), {}
    parts = set(distinct(expr))
    if not parts & inner and not any(isinstance(n, Load) for n in parts):
        return np.zeros(count, np.int64), {structural_key(expr): 1}
    match expr:
        case Cast(a=a) if expr.dtype.is_integer and a.dtype.is_integer and expr.dtype.bits >= 32:
            return _index(a, values, inner, count)
        case Binary(op="add" | "sub", a=a, b=b):
            left, right = _index(a, values, inner, count), _index(b, values, inner, count)
            if left is None or right is None:
                return None
            return _sum(left, right, 1 if expr.op == "add" else -1)
        case Binary(op="mul", a=a, b=b):
            for term, factor in ((a, int_value(b)), (b, int_value(a))):
                found = None if factor is None else _index(term, values, inner, count)
                if found is not None and factor is not None:
                    return _sum((np.zeros(count, np.int64), {}), found, factor)
            return None
        case _:
            return None


def _sum(left: Index, right: Index, factor: int) -> Index:
    terms = dict(left[1])
    for key, times in right[1].items():
        terms[key] = terms.get(key, 0) + factor * times
    return left[0] + factor * right[0], {k: n for k, n in terms.items() if n}
