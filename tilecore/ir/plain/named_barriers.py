"""Named barriers: threads that meet by number and count (bar.sync, bar.arrive of CUDA).

The barrier of a number is full when ``count`` threads have come to it; it is empty again at once.
Who arrives goes on, who synchronises waits until the barrier is full. Where the count is that of
the threads that take the same branches, and nobody arrives without waiting, it is these that meet:
a Sync of their group. Where more than the thread index chooses a branch, nobody knows how many
these are, and the barrier stays what it is.
Where there is no such hardware, an array of barriers in memory says the same: a thread waits for
the phase that runs when it comes, which cannot end before it has arrived.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np

from tilecore.errors import ScopeError, TypeMismatch
from tilecore.ir import nodes
from tilecore.ir.arithmetic.uniform import Uniform
from tilecore.ir.barrier import arrive_count
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Binary, Expr, Load, Var, binary, const
from tilecore.ir.indexing import whole
from tilecore.ir.nodes import Buffer, KernelLaunch, PrimFunc, Seq, Stmt, Sync
from tilecore.ir.values.evaluate import Evaluator
from tilecore.ir.visitor import Rewriter, children, flat, has_jump, per_launch, walk, walk_expr

MEETS, ARRIVES = "named", "named_arrive"  # scopes of a Sync
SCOPES = (MEETS, ARRIVES)
WARP = 32
MOST = 15  # PTX ISA 9.1: barriers 0 to 15; 0 is that of all threads of the block
ANY, ALL = -1, 0  # a barrier whose number, a count that is not known: of the threads of a branch
NAME = "named_barrier"  # of barriers in memory


def is_named(stmt: Stmt) -> TypeGuard[Sync]:
    """Return whether a statement synchronises or arrives at a named barrier."""
    return isinstance(stmt, Sync) and stmt.scope in SCOPES


def named(stmts: Iterable[Stmt]) -> dict[int, int]:
    """Return how many threads fill each named barrier.

    Raises:
        ScopeError: two statements expect different numbers of threads (TC104).
    """
    counts: dict[int, int] = {}
    for stmt in stmts:
        if not is_named(stmt):
            continue
        if counts.setdefault(stmt.barrier, stmt.count) != stmt.count:
            raise ScopeError(
                message=f"named barrier {stmt.barrier}: expected {counts[stmt.barrier]} threads as "
                f"elsewhere, found {stmt.count}",
                hint="give all arrivals and waits of one barrier the same number of threads",
                span=stmt.span,
            )
    return counts


def with_groups(body: Stmt, thread_vars: Sequence[Var], sizes: Sequence[int | None]) -> Stmt:
    """Return the body of a launch in which barriers of just the threads of a branch are groups'.

    Args:
        body: the body.
        thread_vars: the index of a thread along each axis, as far as the program asks for it.
        sizes: of the block along each axis; None where that is not known.

    Raises:
        ScopeError: a barrier that cannot be filled, or not by one number of threads (TC104).
        TypeMismatch: one that no GPU has, at which more than the threads of a branch meet (TC202).
    """
    found = [s for s in walk(body) if is_named(s)]
    if not found:
        return body
    branches = _Branches(Uniform(body, thread_vars, sizes), thread_vars, sizes)
    branches.visit(body)
    kept = branches.met_by_others
    body = _in_turn(body, kept, branches)
    used = [s for s in walk(body) if is_named(s) and s.barrier in kept]
    threads = branches.everyone
    for stmt in used:
        _check_known(stmt)
        if stmt.count < 1 or stmt.count % WARP:
            raise ScopeError(
                message=f"named barrier {stmt.barrier}: expected whole warps of {WARP} threads, "
                f"found {stmt.count} threads that are not those of the branch",
                hint="count all threads that come there, of every branch; where a variable or data "
                "chooses the branch, nobody knows how many these are",
                span=stmt.span,
            )
        if threads is not None and stmt.count > len(threads):
            raise ScopeError(
                message=f"named barrier {stmt.barrier}: expected at most the {len(threads)} "
                f"threads of the block, found {stmt.count}",
                hint="count the threads that arrive and those that wait",
                span=stmt.span,
            )
    named(used)
    return _Groups(kept).visit(body)


def _in_turn(body: Stmt, kept: set[int], branches: _Branches) -> Stmt:
    """Return the body of a launch in which each barrier that is kept is filled by one count.

    A barrier may get another count once all threads of the block have met: who waited there goes
    on, so that it is empty (PTX ISA 9.0, section 9.7.13.1), unless some arrive without waiting.
    What follows is a barrier of another number then, and where they meet, one of the whole block.

    Args:
        body: the body.
        kept: numbers of barriers; those that are given for others are added.
        branches: of the body.
    """
    counts: dict[int, set[int]] = {}
    for stmt in filter(is_named, walk(body)):
        counts.setdefault(stmt.barrier, set()).add(branches.count(stmt))
    arrives = {s.barrier for s in walk(body) if is_named(s) and s.scope == ARRIVES}
    several = {n for n in kept - arrives if n > 0 and len(counts[n]) > 1}
    if not several:
        return body
    free = [n for n in range(1, MOST + 1) if n not in counts]
    numbers: dict[tuple[int, int], int] = {}
    parts: list[list[Stmt]] = [[]]
    for top in flat([body]):
        parts[-1].append(top)
        if top in branches.meetings:
            parts.append([])
    found = []
    for part in parts:
        uses = [s for top in part for s in walk(top) if is_named(s) and s.barrier in several]
        named(replace(s, count=branches.count(s)) for s in uses)
        for stmt in uses:
            key = (stmt.barrier, stmt.count)
            if stmt in branches.meetings or key in numbers:
                continue
            is_first = all(number != stmt.barrier for number, _ in numbers)
            if not is_first and not free:
                raise ScopeError(
                    message=f"named barrier {stmt.barrier}: expected one number of threads, as all "
                    f"{MOST} barriers are in use, found {stmt.count} beside others",
                    span=stmt.span,
                )
            numbers[key] = stmt.barrier if is_first else free.pop(0)
        found += [_Numbers(numbers, branches.meetings, several).visit(top) for top in part]
    kept |= {*numbers.values()}
    return Seq(tuple(found), body.span)


class _Numbers(Rewriter):
    """Gives barriers their numbers, by the ones that they had and their counts."""

    def __init__(
        self, numbers: Mapping[tuple[int, int], int], meetings: Set[Stmt], several: Set[int]
    ) -> None:
        self.numbers, self.meetings, self.several = numbers, meetings, several

    def visit_sync(self, stmt: Sync) -> Stmt:
        if not is_named(stmt) or stmt.barrier not in self.several:
            return stmt
        if stmt in self.meetings:
            return Sync("group", stmt.span)
        return replace(stmt, barrier=self.numbers[stmt.barrier, stmt.count])


def _check_known(stmt: Sync) -> None:
    """Refuse a barrier of which it matters who it is, or how many fill it, where nobody knows."""
    if stmt.barrier == ANY or stmt.count == ALL:
        what = "number" if stmt.barrier == ANY else "count"
        raise ScopeError(
            message=f"T.sync_threads(barrier, count) in a branch: expected a {what} that is known "
            "when the program is traced, found none",
            hint=f"numbers from 1 to {MOST}, and the count of all threads that come there",
            span=stmt.span,
        )
    if stmt.barrier == 0:
        raise ScopeError(
            message="T.sync_threads(0, count): expected a number of its own for a barrier that is "
            "not just of the threads of its branch, found that of all threads of the block",
            hint=f"use one from 1 to {MOST}",
            span=stmt.span,
        )
    if stmt.barrier > MOST:
        raise TypeMismatch(
            expected=f"a barrier from 1 to {MOST} for T.sync_threads of others than the threads of "
            "its branch", found=str(stmt.barrier), span=stmt.span,
        )  # fmt: skip


class _Branches(Rewriter):
    """Finds the barriers that other threads come to than those of the branch that they stand in.

    Attributes:
        everyone: True for each thread of the block; None where their number is not known.
        met_by_others: numbers of barriers.
        meetings: statements at which all threads of the block wait for each other.
    """

    def __init__(
        self, uniform: Uniform, thread_vars: Sequence[Var], sizes: Sequence[int | None]
    ) -> None:
        self._uniform = uniform
        known = [size for size in sizes if size is not None]
        self.everyone = np.ones(math.prod(known), bool) if len(known) == len(sizes) else None
        self.met_by_others: set[int] = set()
        self.meetings: set[Stmt] = set()
        self._here = self.everyone  # the threads that come by; None: not known
        self._is_apart = False  # whether not all threads of the block come by
        self._own = {*thread_vars}  # what differs from thread to thread
        self._values, self._known = Evaluator(), set[Var]()
        if self.everyone is not None:
            indices = np.unravel_index(np.arange(len(self.everyone)), known[::-1])[::-1]
            for var, index in zip(thread_vars, indices, strict=False):
                self._set(var, index)

    def visit_let(self, stmt: nodes.Let) -> Stmt:
        if self._differs(stmt.value):
            self._own.add(stmt.var)
            value = self._value(stmt.value)
            if value is not None:
                self._set(stmt.var, value)
        return stmt

    def visit_if(self, stmt: nodes.If) -> Stmt:
        outside, was_apart, parts = self._here, self._is_apart, conjuncts(stmt.cond)
        choosing = [part for part in parts if self._differs(part)]
        taken = [self._value(part) for part in choosing]
        self._is_apart |= bool(choosing)
        if outside is None or any(value is None for value in taken):
            self._here = outside if not choosing else None
        else:
            self._here = np.logical_and.reduce([outside, *taken])
        self.visit(stmt.then_body)
        if choosing:
            inside = self._here if len(choosing) == len(parts) else None
            self._here = None if outside is None or inside is None else outside & ~inside
        if stmt.else_body is not None:
            self.visit(stmt.else_body)
        self._here, self._is_apart = outside, was_apart
        if choosing and _jumps(stmt):
            self._here, self._is_apart = None, True  # until the end of what is left
        return stmt

    def visit_for(self, stmt: nodes.For) -> Stmt:
        self._loop(stmt.body, self._differs(stmt.start, stmt.stop, stmt.step), stmt.loop_var)
        return stmt

    def visit_while(self, stmt: nodes.While) -> Stmt:
        self._loop(stmt.body, self._differs(stmt.cond))
        return stmt

    def _loop(self, body: Stmt, differs: bool, var: Var | None = None) -> None:
        """Look at a loop; where some threads leave it before others, nobody knows who is left."""
        outside, was_apart = self._here, self._is_apart
        if differs or self._leaves(body):
            self._here, self._is_apart = None, True
            self._own |= {var} if var is not None else set()
        self.visit(body)
        if not (_returns(body) and self._is_apart):
            self._here, self._is_apart = outside, was_apart

    def _leaves(self, stmt: Stmt) -> bool:
        """Return whether some threads may leave the loop around, or a turn of it, before others."""
        if isinstance(stmt, nodes.If) and self._differs(stmt.cond):
            return _jumps(stmt)
        inside = (s for s in children(stmt) if _returns(s) or not _is_loop(stmt))
        return any(self._leaves(s) for s in inside)

    def visit_sync(self, stmt: Sync) -> Stmt:
        if stmt.scope == ARRIVES or (stmt.scope == MEETS and not self._is_all(stmt)):
            self.met_by_others.add(stmt.barrier)
        elif not self._is_apart and stmt.scope in (MEETS, "block"):
            self.meetings.add(stmt)
        return stmt

    def count(self, stmt: Sync) -> int:
        """Return how many threads fill a barrier, also where that is all of the block."""
        if stmt.count == ALL and self.everyone is not None:
            return len(self.everyone)
        return stmt.count

    def _is_all(self, stmt: Sync) -> bool:
        """Return whether just the threads that come by fill a barrier."""
        if stmt.count == ALL:
            return not self._is_apart
        if self._here is None:
            return self.everyone is None and not self._is_apart
        return int(np.count_nonzero(self._here)) == stmt.count

    def _set(self, var: Var, value: Any) -> None:
        self._values.set(var, value)
        self._known.add(var)

    def _differs(self, *exprs: Expr) -> bool:
        """Return whether threads of a block may see different values of an expression."""
        return any(
            not self._uniform.holds(e)
            if isinstance(e, Load) and e.buffer.scope == "local"
            else e in self._own
            for expr in exprs
            for e in walk_expr(expr)
            if isinstance(e, (Load, Var))
        )

    def _value(self, expr: Expr) -> Any:
        """Return the value of an expression for every thread; None if more decides than that."""
        leaves = (e for e in walk_expr(expr) if isinstance(e, (Load, Var)))
        if self.everyone is None or any(e not in self._known for e in leaves):
            return None
        return np.broadcast_to(self._values(expr), self.everyone.shape)


def _is_loop(stmt: Stmt) -> bool:
    return isinstance(stmt, (nodes.For, nodes.While))


def _returns(stmt: Stmt) -> bool:
    return any(isinstance(s, nodes.Jump) and s.word == "return" for s in walk(stmt))


def _jumps(stmt: Stmt) -> bool:
    """Return whether threads may leave the loop around a statement there, or end."""
    return has_jump(stmt) or _returns(stmt)


def conjuncts(cond: Expr) -> list[Expr]:
    """Return the conditions that all hold where one does."""
    if isinstance(cond, Binary) and cond.op == "and":
        return [*conjuncts(cond.a), *conjuncts(cond.b)]
    return [cond]


class _Groups(Rewriter):
    def __init__(self, kept: set[int]) -> None:
        self.kept = kept

    def visit_sync(self, stmt: Sync) -> Stmt:
        if stmt.scope != MEETS or stmt.barrier in self.kept:
            return stmt
        return Sync("group", stmt.span)


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with named barriers as barriers in memory."""
    return per_launch(func, in_memory)


def in_memory(launch: KernelLaunch) -> KernelLaunch:
    """Return a launch with its named barriers as barriers in memory; itself if it has none."""
    counts = named(walk(launch.body))
    if not counts:
        return launch
    numbers = sorted(counts)
    buffer = Buffer(
        NAME, (const(len(numbers)),), DType("int32"), "shared", span=launch.span,
        arrive_counts=tuple(counts[n] for n in numbers),
    )  # fmt: skip
    body = _InMemory(buffer, numbers).visit(launch.body)
    clear = nodes.Fill(whole(buffer), const(0), launch.span)
    return replace(launch, body=Seq((nodes.Alloc(buffer, launch.span), clear, body), launch.span))


class _InMemory(Rewriter):
    def __init__(self, buffer: Buffer, numbers: list[int]) -> None:
        self.buffer, self.numbers = buffer, numbers

    def visit_sync(self, stmt: Sync) -> Stmt:
        if not is_named(stmt):
            return stmt
        place, span = const(self.numbers.index(stmt.barrier)), stmt.span
        arrive = nodes.Arrive(self.buffer, place, False, span)
        if stmt.scope == ARRIVES:
            return arrive
        arrived = Load(self.buffer, (place,), self.buffer.dtype)
        phase = binary("mod", binary("floordiv", arrived, arrive_count(self.buffer, place)), 2)
        parity = Var(f"phase_{stmt.barrier}", self.buffer.dtype)
        wait = nodes.Wait(self.buffer, place, parity, span)
        return Seq((nodes.Let(parity, phase, span), arrive, wait), span)
