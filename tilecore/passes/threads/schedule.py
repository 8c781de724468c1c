"""An order in which roles that wait for each other need not wait, found and proved by running.

Loops of the roles over the same range become one loop, in which the roles' pieces between waits
take turns. Whether each wait is over where it then stands is found out by running what happens to
the barriers, and only that: it must depend on nothing but the program's own loops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tilecore.errors import ScopeError, SourceSpan
from tilecore.ir import nodes
from tilecore.ir.barrier import is_over
from tilecore.ir.expr import Load, Var, int_value
from tilecore.ir.nodes import Seq, Stmt, Wait
from tilecore.ir.printer import Namer, format_expr
from tilecore.ir.substitute import substitute_stmt
from tilecore.ir.values.evaluate import Evaluator
from tilecore.ir.visitor import Rewriter, buffers_of, flat, walk

MAX_STEPS = 20_000  # barrier statements run for a proof; a longer one is given up
MAX_BLOCKS = 64  # values of a block index for which a proof is done one by one
MAX_ORDERS = 4  # orders tried for the pieces of one region
Piece = tuple[int, int]  # role, and which of its statements


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Region(Stmt):
    """Statements of roles without loops that wait, of which any order is legal that waits allow."""

    roles: tuple[tuple[Stmt, ...], ...]
    span: SourceSpan = nodes.NO_SPAN


class _NoProof(Exception):
    """The order of the roles depends on more than the program's own loops, or none is found."""


def fuse(roles: Sequence[Sequence[Stmt]]) -> list[Stmt] | None:
    """Return the roles with their waiting loops made one each, or None if those do not match."""
    bodies = [flat(body) for body in roles]
    loops = [[i for i, s in enumerate(body) if _loops_and_waits(s)] for body in bodies]
    counts = {len(found) for found in loops if found}
    if not counts:
        return [Region(tuple(tuple(body) for body in bodies))]
    if len(counts) > 1:
        return None
    done: list[Stmt] = []
    starts = [0] * len(bodies)
    for turn in range(counts.pop()):
        places = [found[turn] if found else None for found in loops]
        before = [
            b[s:p] if p is not None else [] for b, s, p in zip(bodies, starts, places, strict=True)
        ]
        inner = _fused_loop([b[p] for b, p in zip(bodies, places, strict=True) if p is not None])
        if inner is None:
            return None
        done += [Region(tuple(tuple(b) for b in before)), inner]
        starts = [s if p is None else p + 1 for s, p in zip(starts, places, strict=True)]
    rest = tuple(tuple(b[s:]) for b, s in zip(bodies, starts, strict=True))
    return [*done, Region(rest)]


def _has_gemm(stmts: Sequence[Stmt]) -> bool:
    return any(isinstance(s, nodes.Gemm) for stmt in stmts for s in walk(stmt))


def _waits(stmt: Stmt) -> bool:
    return any(isinstance(s, Wait) for s in walk(stmt))


def _loops_and_waits(stmt: Stmt) -> bool:
    return isinstance(stmt, (nodes.For, nodes.While)) and _waits(stmt)


def _fused_loop(loops: Sequence[Stmt]) -> Stmt | None:
    """Return one loop for all of them, or None if their ranges are not the same known ones."""
    counted = [loop for loop in loops if isinstance(loop, nodes.For)]
    namer = Namer()
    ranges = {tuple(format_expr(e, namer) for e in (s.start, s.stop, s.step)) for s in counted}
    if len(counted) < len(loops) or len(ranges) > 1:
        return None
    first = counted[0]
    inner = fuse([[substitute_stmt(s.body, {s.loop_var: first.loop_var})] for s in counted])
    return None if inner is None else dataclasses.replace(first, body=Seq(tuple(inner), first.span))


def settle(body: Stmt, launch: nodes.KernelLaunch) -> Stmt | None:
    """Return ``body`` with regions put in order and waits dropped, or None without a proof.

    Where loops depend on one block index, the proof is done for all of its values.
    """
    free: list[tuple[Var, int]] = [
        (var, size)
        for var, extent in zip(launch.block_vars, launch.grid, strict=True)
        if (size := int_value(extent)) is not None and size <= MAX_BLOCKS
    ]
    starts: list[list[dict[Var, int]]] = [[{}]]
    starts += [[{var: i} for i in range(size)] for var, size in free]
    for values in starts:
        try:
            return _settle(body, values)
        except ScopeError:
            continue
        except _NoProof:
            return None
    return None


def _settle(body: Stmt, starts: Sequence[Mapping[Var, int]]) -> Stmt:
    orders: dict[int, list[Piece]] = {}
    for _ in range(MAX_ORDERS):
        is_settled = True
        for values in starts:
            run = _Run(orders, values)
            run.stmt(body)
            is_settled &= not run.changed
        if is_settled:
            return _InOrder(orders).visit(body)
    raise _NoProof


class _Run:
    """One run of what happens to the barriers, in the orders known so far."""

    def __init__(self, orders: dict[int, list[Piece]], values: Mapping[Var, int]) -> None:
        self.orders = orders
        self.changed = False
        self.steps = 0
        self.known: dict[Stmt, bool] = {}
        self.arrived: dict[tuple[int, int], int] = {}
        self.evaluate = Evaluator(values, load=self.load)

    def load(self, expr: Load, indices: tuple[Any, ...], mask: Any) -> Any:
        if expr.buffer.arrive_counts is None:
            raise _NoProof
        return self.arrived.get((id(expr.buffer), int(indices[0])), 0)

    def stmt(self, stmt: Stmt) -> None:
        """Run one statement; raise _NoProof where a wait is not over or nothing is known."""
        if isinstance(stmt, nodes.Let):
            self.bind(stmt)
        elif self.touches_barriers(stmt):
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise _NoProof
            self.run(stmt)

    def touches_barriers(self, stmt: Stmt) -> bool:
        """Return whether anything in ``stmt`` has to do with barriers."""
        if stmt not in self.known:
            self.known[stmt] = any(isinstance(s, Region) for s in walk(stmt)) or any(
                b.arrive_counts is not None for b in buffers_of(stmt)
            )
        return self.known[stmt]

    def run(self, stmt: Stmt) -> None:
        """Run a statement that has to do with barriers."""
        match stmt:
            case Wait() | nodes.Store() | nodes.Fill():
                self.barrier(stmt)
            case Seq(stmts=stmts):
                for child in stmts:
                    self.stmt(child)
            case nodes.For():
                bounds = [int(self.evaluate(e)) for e in (stmt.start, stmt.stop, stmt.step)]
                for index in range(*bounds):
                    self.evaluate.set(stmt.loop_var, index)
                    self.stmt(stmt.body)
            case nodes.If():
                side = stmt.then_body if self.evaluate(stmt.cond) else stmt.else_body
                if side is not None:
                    self.stmt(side)
            case Region():
                self.region(stmt)
            case nodes.Alloc():
                pass
            case _:
                raise _NoProof

    def barrier(self, stmt: Wait | nodes.Store | nodes.Fill) -> None:
        """Run what waits for a barrier, counts arrivals at it, or makes it new."""
        if isinstance(stmt, Wait):
            if not self.evaluate(is_over(stmt)):
                raise _NoProof
        elif isinstance(stmt, nodes.Fill):
            for index in range(len(stmt.dst.buffer.arrive_counts or ())):
                self.arrived[id(stmt.dst.buffer), index] = 0
        else:
            index = int(self.evaluate(stmt.indices[0]))
            self.arrived[id(stmt.buffer), index] = int(self.evaluate(stmt.value))

    def bind(self, stmt: nodes.Let) -> None:
        try:
            self.evaluate.set(stmt.var, self.evaluate(stmt.value))
        except (_NoProof, ScopeError):
            self.evaluate.values.pop(id(stmt.var), None)

    def region(self, region: Region) -> None:
        """Run the pieces of a region in the order known, or find one."""
        before = dict(self.arrived)
        known = self.orders.get(id(region))
        if known is not None:
            try:
                for role, place in known:
                    self.stmt(region.roles[role][place])
                return
            except _NoProof:
                self.arrived = before
        self.orders[id(region)] = self.search(region)
        self.changed = True

    def search(self, region: Region) -> list[Piece]:
        """Return an order of the pieces in which each wait is over; run them.

        Roles that compute products go first: those that fill tiles for them run no further ahead
        than they must, which keeps what they fill in the cache.
        """
        order: list[Piece] = []
        at = [0] * len(region.roles)
        eager = sorted(range(len(region.roles)), key=lambda r: not _has_gemm(region.roles[r]))
        moved = True
        while moved:
            moved = False
            for role in eager:
                stmts = region.roles[role]
                while at[role] < len(stmts) and self.succeeds(stmts[at[role]]):
                    order.append((role, at[role]))
                    at[role] += 1
                    moved = True
                    if role != eager[0] and self.touches_barriers(stmts[at[role] - 1]):
                        break
                if moved:
                    break
        if any(place < len(stmts) for place, stmts in zip(at, region.roles, strict=True)):
            raise _NoProof
        return order

    def succeeds(self, stmt: Stmt) -> bool:
        """Run a piece if all of its waits are over; return whether they are."""
        before = dict(self.arrived)
        try:
            self.stmt(stmt)
        except _NoProof:
            self.arrived = before
            return False
        return True


class _InOrder(Rewriter):
    """Puts regions in order and drops the barriers, for which nothing waits any more."""

    def __init__(self, orders: Mapping[int, Sequence[Piece]]) -> None:
        self.orders = orders

    def visit_region(self, stmt: Region) -> Stmt:
        order = self.orders[id(stmt)]
        return Seq(tuple(self.visit(stmt.roles[r][i]) for r, i in order), stmt.span)

    def visit_wait(self, stmt: Wait) -> Stmt:
        return Seq((), stmt.span)

    def visit_store(self, stmt: nodes.Store) -> Stmt:
        return stmt if stmt.buffer.arrive_counts is None else Seq((), stmt.span)

    def visit_fill(self, stmt: nodes.Fill) -> Stmt:
        return stmt if stmt.dst.buffer.arrive_counts is None else Seq((), stmt.span)

    def visit_alloc(self, stmt: nodes.Alloc) -> Stmt:
        return stmt if stmt.buffer.arrive_counts is None else Seq((), stmt.span)
