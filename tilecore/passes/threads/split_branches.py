"""split_branches: where threads of a branch must meet, it ends and begins anew.

``if c: a; b`` becomes ``if c: a``, ``if c: b``, between which a barrier of all threads can stand. A
loop that threads run differently often runs as often for all of them as any thread may need; who
has left it, or its turn, takes no part. What threads keep from one part to the next are variables.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np

from tilecore.errors import UnsupportedOnTarget
from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.threads.teams import waits
from tilecore.ir import nodes
from tilecore.ir.arithmetic.trips import trip_count
from tilecore.ir.dtype import DType
from tilecore.ir.expr import (
    INT32,
    Binary,
    Cast,
    Expr,
    Load,
    Var,
    as_bool,
    binary,
    cast,
    const,
    int_value,
    unary,
)
from tilecore.ir.nodes import Buffer, KernelLaunch, PrimFunc, Seq, Stmt
from tilecore.ir.plain.named_barriers import conjuncts
from tilecore.ir.substitute import Substitution
from tilecore.ir.values.evaluate import Evaluator
from tilecore.ir.visitor import (
    Rewriter,
    distinct,
    expressions,
    flat,
    has_jump,
    has_loads,
    per_launch,
    walk,
)

INLINE_NODES = 32  # a longer value is kept instead of being computed again
RUNNING, CONTINUED, LEFT = 0, 1, 2  # what a thread's turn of a loop is
ZERO, ONE = const(0), const(1)


def run(func: PrimFunc, torn: Mapping[Stmt, Set[Stmt]], target: GpuTarget) -> PrimFunc:
    """Return the function with branches in parts.

    Args:
        func: the function.
        torn: branches and loops of some threads, with the statements inside before which the
            threads must meet (``inference/gpu/threads/torn.py``).
        target: named in errors.

    Raises:
        UnsupportedOnTarget: how often a loop runs is known to each thread alone, or threads wait
            for each other in a branch (TC302).
    """
    return per_launch(func, lambda launch: _Branches(launch, torn, target).rebuild(launch))


class _Branches(Rewriter):
    def __init__(
        self, launch: KernelLaunch, torn: Mapping[Stmt, Set[Stmt]], target: GpuTarget
    ) -> None:
        self.launch, self.torn, self.target = launch, torn, target

    def visit(self, stmt: Stmt) -> Stmt:
        before = self.torn.get(stmt)
        return super().visit(stmt) if before is None else self.split(stmt, before)

    def split(self, branch: Stmt, before: Set[Stmt]) -> Stmt:
        """Return a branch in parts."""
        if waits(branch):
            first = next(s for s in walk(branch) if s in before)
            raise _refusal(first, self.target, "threads wait at barriers of the program there, too")
        parts = _Parts(self.launch, before, self.target)
        made = parts.of([branch], ())
        what = "branch" if isinstance(branch, nodes.If) else "loop"
        note = f"the {what} of some threads at {branch.span} is in parts, as all must meet in it"
        return Seq((nodes.Annotate(nodes.NOTE, note), *parts.allocs, *made), branch.span)


def _refusal(stmt: Stmt, target: GpuTarget, reason: str) -> UnsupportedOnTarget:
    return UnsupportedOnTarget(
        what="a barrier where only some threads come by", target=target.name, span=stmt.span,
        reason=f"threads read what others have written to shared memory, or meet, and {reason}",
        hint="let all threads run the loop equally often, with the branch inside; "
        "T.sync_warp() where only the lanes of a warp share, all of which come by",
    )  # fmt: skip


class _Parts:
    """Takes one branch to pieces.

    Attributes:
        allocs: tiles and variables that live from one piece to another.
    """

    def __init__(self, launch: KernelLaunch, before: Set[Stmt], target: GpuTarget) -> None:
        self.launch, self.before, self.target = launch, before, target
        self.allocs: list[Stmt] = []
        self.values: dict[Var, Expr] = {}  # of names that are bound no more
        self.turns: list[Buffer] = []  # of the loops around: RUNNING, CONTINUED or LEFT

    def of(self, stmts: Iterable[Stmt], conds: tuple[Expr, ...]) -> list[Stmt]:
        """Return what threads do for which all of ``conds`` hold."""
        done: list[Stmt] = []
        group: list[Stmt] = []
        for stmt in flat(stmts):
            if isinstance(stmt, nodes.Alloc):
                self.allocate(stmt)
                continue
            is_split = has_jump(stmt) or any(s in self.before for s in walk(stmt))
            if is_split and not isinstance(stmt, nodes.Jump):
                done += _where(conds, group)
                group = []
            if is_split and isinstance(stmt, (nodes.If, nodes.For, nodes.While)):
                done += self.compound(stmt, conds)
            elif isinstance(stmt, nodes.Sync) and is_split:
                done.append(stmt)
            else:
                group += self.simple(stmt)
            if has_jump(stmt):
                done += _where(conds, group)
                group, conds = [], (*conds, self.is_running())
        return done + _where(conds, group)

    def simple(self, stmt: Stmt) -> list[Stmt]:
        """Return a statement that stays whole."""
        if isinstance(stmt, nodes.Jump):
            turn = CONTINUED if stmt.word == "continue" else LEFT
            return [nodes.Store(self.turns[-1], (ZERO,), const(turn), stmt.span)]
        made = Substitution(self.values).stmt(stmt) if self.values else stmt
        if not isinstance(made, nodes.Let):
            return [made]
        if _is_repeatable(made.value):
            self.values[made.var] = made.value
            return []
        dtype = INT32 if made.var.dtype == "bool" else made.var.dtype
        kept = self.variable(made.var.name, dtype, stmt)
        value = Load(kept, (ZERO,), dtype)
        self.values[made.var] = as_bool(value) if made.var.dtype == "bool" else value
        return [nodes.Store(kept, (ZERO,), cast(made.value, dtype), stmt.span)]

    def allocate(self, stmt: nodes.Alloc) -> None:
        """Let a tile live from before the branch on."""
        if any(n in self.values for e in expressions(stmt) for n in distinct(e)):
            raise _refusal(stmt, self.target, "what is known there alone decides about a tile")
        self.allocs.append(stmt)

    def variable(self, name: str, dtype: DType, stmt: Stmt) -> Buffer:
        """Return a new variable of each thread."""
        made = Buffer(name, (ONE,), dtype, "local", is_var=True, span=stmt.span)
        self.allocs.append(nodes.Alloc(made, stmt.span))
        return made

    def expr(self, expr: Expr) -> Expr:
        """Return an expression without the names that are bound no more."""
        return Substitution(self.values).expr(expr)

    def is_running(self) -> Expr:
        """Return whether a thread takes part in the turn of the loop around."""
        return binary("eq", Load(self.turns[-1], (ZERO,), INT32), RUNNING)

    def compound(
        self, stmt: nodes.If | nodes.For | nodes.While, conds: tuple[Expr, ...]
    ) -> list[Stmt]:
        """Return a statement in the pieces that its bodies are in."""
        match stmt:
            case nodes.If():
                return self.branch(stmt, conds)
            case nodes.For():
                return self.loop(stmt, conds)
            case _:
                raise _refusal(
                    next(s for s in walk(stmt) if s in self.before), self.target,
                    "how often they run the loop is known to each of them alone",
                )  # fmt: skip

    def branch(self, stmt: nodes.If, conds: tuple[Expr, ...]) -> list[Stmt]:
        """Return the pieces of a branch; a condition that memory decides is looked at once."""
        cond, done = self.expr(stmt.cond), list[Stmt]()
        then: tuple[Expr, ...] = (*conds, cond)
        if not _is_repeatable(cond):
            taken = self.variable("taken", INT32, stmt)
            look = nodes.Store(taken, (ZERO,), cast(cond, "int32"), stmt.span)
            done = [nodes.Store(taken, (ZERO,), ZERO, stmt.span), *_where(conds, [look])]
            known = [c for c in (*conds, *conjuncts(cond)) if not has_loads(c)]
            cond = as_bool(Load(taken, (ZERO,), INT32))
            then = (*known, cond)  # those who do not come by are told once more
        one = self.of([stmt.then_body], then)
        if stmt.else_body is None:
            return [*done, *one]
        other = self.of([stmt.else_body], (*conds, unary("not", cond)))
        if all(isinstance(s, nodes.If) for s in (*one, *other)):  # others may meet where some do
            pairs = itertools.zip_longest(one, other)
            return [*done, *(s for pair in pairs for s in pair if s is not None)]
        return [*done, *one, *other]

    def loop(self, stmt: nodes.For, conds: tuple[Expr, ...]) -> list[Stmt]:
        """Return a loop that all threads run equally often, or what it does if that is once."""
        begin: list[Stmt] = []
        body, is_left = stmt.body, has_jump(stmt.body)
        if is_left:
            turn = self.variable("turn", INT32, stmt)
            begin = [nodes.Store(turn, (ZERO,), const(RUNNING), stmt.span)]
            self.turns.append(turn)
        if int_value(trip_count(stmt)) == 1:
            self.values[stmt.loop_var] = self.expr(stmt.start)
            made = self.of([body], (*conds, self.is_running()) if is_left else conds)
        else:
            made = [self.turn_by_turn(stmt, conds, is_left)]
        if is_left:
            self.turns.pop()
        return [*begin, *made]

    def turn_by_turn(self, stmt: nodes.For, conds: tuple[Expr, ...], is_left: bool) -> nodes.For:
        """Return a loop that all threads run equally often; some may have left it before."""
        head = [self.expr(e) for e in (stmt.start, stmt.stop, stmt.step)]
        made = dataclasses.replace(
            stmt, start=head[0], stop=head[1], step=head[2],
            kind="unroll" if stmt.kind == "unroll" else "serial",
        )  # fmt: skip
        if any(self.is_own(e) for e in head):
            most = self.most_turns(made)
            number = Var(f"{stmt.loop_var.name}_turn", INT32)
            self.values[stmt.loop_var] = head[0] + number * head[2]
            conds = (*conds, binary("lt", number, trip_count(made)))
            made = nodes.For(number, ZERO, most, ONE, "serial", stmt.body, span=stmt.span)
        first: list[Stmt] = []
        if is_left:
            turn = self.turns[-1]
            go_on = nodes.Store(turn, (ZERO,), const(RUNNING), stmt.span)
            is_next = binary("eq", Load(turn, (ZERO,), INT32), CONTINUED)
            first = [nodes.If(is_next, go_on, None, stmt.span)]
            conds = (*conds, self.is_running())
        body = Seq((*first, *self.of([stmt.body], conds)), stmt.span)
        return dataclasses.replace(made, body=body)

    def is_own(self, expr: Expr) -> bool:
        """Return whether a bound may be another one in each thread."""
        own = set(self.launch.thread_vars)
        return any(isinstance(n, Load) or n in own for n in distinct(expr))

    def most_turns(self, loop: nodes.For) -> Expr:
        """Return a number of turns that no thread needs more than, the same for all threads."""
        step = int_value(loop.step)
        if step is not None:
            first, last = (loop.start, loop.stop) if step > 0 else (loop.stop, loop.start)
            low, high = self.extreme(first, -1), self.extreme(last, 1)
            if low is not None and high is not None:
                return (high - low + (abs(step) - 1)) // abs(step)
        raise _refusal(
            next(s for s in walk(loop) if s in self.before),
            self.target,
            "how often they run the loop is known to each of them alone",
        )

    def extreme(self, expr: Expr, sign: int) -> Expr | None:
        """Return a bound of what an integer is in any thread: above for 1, below for -1."""
        own = set(self.launch.thread_vars)
        parts = list(distinct(expr))
        if not self.is_own(expr):
            return expr
        if all(n in own for n in parts if isinstance(n, (Var, Load))):
            values = np.asarray(self.threads()(expr))
            return const(int(values.max() if sign > 0 else values.min()))
        match expr:
            case Cast(a=a) if expr.dtype.is_integer and expr.dtype.bits >= 32:
                return self.extreme(a, sign)
            case Binary(op="add" | "sub" | "min" | "max" as op, a=a, b=b):
                left, right = self.extreme(a, sign), self.extreme(b, -sign if op == "sub" else sign)
                return None if left is None or right is None else binary(op, left, right)
            case Binary(op="mul" | "floordiv" as op, a=a, b=b) if factor := int_value(b):
                found = self.extreme(a, sign if factor > 0 else -sign)
                return None if found is None else binary(op, found, factor)
            case _:
                return None

    def threads(self) -> Evaluator:
        """Return what knows the indices of all threads of a block."""
        sizes = [int_value(e) or 1 for e in self.launch.threads]
        grids = np.meshgrid(*map(np.arange, sizes), indexing="ij")
        return Evaluator(dict(zip(self.launch.thread_vars, grids, strict=False)))


def _is_repeatable(value: Expr) -> bool:
    return not has_loads(value) and len(list(distinct(value))) <= INLINE_NODES


def _where(conds: Sequence[Expr], stmts: Sequence[Stmt]) -> list[Stmt]:
    """Return statements under conditions, those that memory decides inside of the others."""
    if not stmts or not conds:
        return list(stmts)
    body: Stmt = Seq(tuple(stmts), stmts[0].span)
    kept = [c for c in conds if has_loads(c)]
    for some in (kept, [c for c in conds if not has_loads(c)]):
        if some:
            cond = functools.reduce(lambda a, b: binary("and", a, b), some)
            body = Seq((nodes.If(cond, body, None, body.span),), body.span)
    return flat([body])
