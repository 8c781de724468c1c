"""Running several sequences with waits on one thread: each is a coroutine that stops at its waits.

A sequence becomes states: pieces without a wait, each of which says which state comes next. A
variable per sequence holds the number of the state it is in. In turn each of them runs until a wait
that is not over; a round in which none gets on is a deadlock. Loops with a wait inside keep their
variable in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from tilecore.ir import nodes
from tilecore.ir.barrier import deadlock, is_over
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Load, binary, const, int_value, select
from tilecore.ir.nodes import Buffer, Seq, Stmt, Store, Wait
from tilecore.ir.substitute import substitute_stmt
from tilecore.ir.visitor import has_loads, walk

UNROLL_TRIPS = 8  # an unrolled loop with a wait inside and no more trips is repeated in the text
ZERO = (const(0),)


def interleave(bodies: Sequence[Stmt]) -> list[Stmt]:
    """Return statements that run ``bodies``, which wait for each other, to their ends."""
    moved, left, running = (_variable(n) for n in ("moved", "left", "running"))
    flows = [_Flow(body, moved, left, running) for body in bodies]
    stmts: list[Stmt] = [nodes.Alloc(v) for v in (moved, left, running)]
    stmts += [s for flow in flows for s in flow.allocs]
    stmts += [_set(flow.at, 0) for flow in flows]
    turns: list[Stmt] = [_set(moved, 0), *(flow.turn() for flow in flows)]
    stuck = Seq(tuple(check for flow in flows for check in flow.checks()))
    turns.append(nodes.If(binary("eq", _get(moved), 0), stuck))
    rounds = nodes.While(binary("gt", _get(left), 0), Seq(tuple(turns)))
    return [*stmts, _set(left, len(flows)), rounds]


def _variable(name: str, like: str = "int32") -> Buffer:
    return Buffer(name, (const(1),), DType(like), "local", is_var=True)


def _get(variable: Buffer) -> Load:
    return Load(variable, ZERO, variable.dtype)


def _set(variable: Buffer, value: Expr | int) -> Stmt:
    return Store(variable, ZERO, const(value) if isinstance(value, int) else value)


@dataclass(eq=False)
class _State:
    """A piece of a sequence; ``wait`` or ``stmts``, then ``next`` (a number or an expression)."""

    number: int
    lets: tuple[nodes.Let, ...]
    stmts: list[Stmt] = field(default_factory=list)
    wait: Wait | None = None
    next: Expr | int = 0


class _Flow:
    """The states of one sequence."""

    def __init__(self, body: Stmt, moved: Buffer, left: Buffer, running: Buffer) -> None:
        self.moved, self.left, self.running = moved, left, running
        self.at = _variable("state")
        self.allocs: list[Stmt] = [nodes.Alloc(self.at)]
        self.states: list[_State] = []
        self.lets: tuple[nodes.Let, ...] = ()
        last = self.add(body, self.state())
        last.stmts += [_set(left, binary("sub", _get(left), 1)), _set(running, 0)]
        last.next = self.end = len(self.states)

    # --- building -----------------------------------------------------------------------------

    def state(self) -> _State:
        """Return a new state inside the loops that are open."""
        made = _State(len(self.states), self.lets)
        self.states.append(made)
        return made

    def add(self, stmt: Stmt, here: _State) -> _State:
        """Append ``stmt`` to the state ``here``; return the state in which its end is reached."""
        if isinstance(stmt, Seq):
            return functools.reduce(lambda state, child: self.add(child, state), stmt.stmts, here)
        if isinstance(stmt, nodes.Alloc):
            self.allocs.append(stmt)
            return here
        if not any(isinstance(s, Wait) for s in walk(stmt)):
            here.stmts.append(stmt)
            return here
        match stmt:
            case Wait():
                return self.add_wait(stmt, here)
            case nodes.If():
                return self.add_branch(stmt, here)
            case nodes.While():
                return self.add_loop(stmt.cond, stmt.body, here)
            case nodes.For():
                return self.add_for(stmt, here)
            case _:
                raise AssertionError(f"a wait inside a {type(stmt).__name__}")

    def add_wait(self, stmt: Wait, here: _State) -> _State:
        wait = self.state()
        wait.wait = stmt
        after = self.state()
        here.next, wait.next = wait.number, after.number
        return after

    def add_branch(self, stmt: nodes.If, here: _State) -> _State:
        ends, targets = [], []
        for body in (stmt.then_body, stmt.else_body):
            if body is None:
                continue
            first = self.state()
            targets.append(first.number)
            ends.append(self.add(body, first))
        after = self.state()
        other = targets[1] if len(targets) > 1 else after.number
        here.next = select(stmt.cond, const(targets[0]), const(other))
        for end in ends:
            end.next = after.number
        return after

    def add_loop(self, cond: Expr, body: Stmt, here: _State) -> _State:
        head = self.state()
        here.next = head.number
        first = self.state()
        last = self.add(body, first)
        last.next = head.number
        after = self.state()
        head.next = select(cond, const(first.number), const(after.number))
        return after

    def add_for(self, stmt: nodes.For, here: _State) -> _State:
        bounds = [int_value(e) for e in (stmt.start, stmt.stop, stmt.step)]
        start, stop, step = bounds
        if start is not None and stop is not None and step is not None:
            trips = range(start, stop, step)
            if stmt.kind == "unroll" and len(trips) <= UNROLL_TRIPS:
                copies = (substitute_stmt(stmt.body, {stmt.loop_var: i}) for i in trips)
                return functools.reduce(lambda state, copy: self.add(copy, state), copies, here)
        kept = _variable(stmt.loop_var.name, stmt.loop_var.dtype)
        self.allocs.append(nodes.Alloc(kept))
        end, by = (self.settled(e, here) for e in (stmt.stop, stmt.step))
        here.stmts.append(_set(kept, stmt.start))
        outside = self.lets
        inside = nodes.Let(stmt.loop_var, _in_range(_get(kept), stmt), stmt.span)
        upwards = binary("lt", _get(kept), end)
        downwards = binary("gt", _get(kept), end)
        cond = upwards if step is not None and step > 0 else downwards
        if step is None:
            cond = select(binary("gt", by, 0), upwards, downwards)
        again = _set(kept, binary("add", _get(kept), by))
        head = self.state()
        here.next = head.number
        self.lets = (*outside, inside)
        first = self.state()
        last = self.add(stmt.body, first)
        last.stmts.append(again)
        last.next = head.number
        self.lets = outside
        after = self.state()
        head.next = select(cond, const(first.number), const(after.number))
        return after

    def settled(self, expr: Expr, here: _State) -> Expr:
        """Return ``expr`` as it is in the state ``here``, whatever changes later."""
        if not has_loads(expr):
            return expr
        kept = _variable("bound", expr.dtype)
        self.allocs.append(nodes.Alloc(kept))
        here.stmts.append(_set(kept, expr))
        return _get(kept)

    # --- running ------------------------------------------------------------------------------

    def turn(self) -> Stmt:
        """Return the statement that runs the sequence until it waits or ends."""
        go = nodes.While(binary("gt", _get(self.running), 0), self.choose(self.states))
        unfinished = binary("lt", _get(self.at), self.end)
        return nodes.If(unfinished, Seq((_set(self.running, 1), go)))

    def choose(self, states: Sequence[_State]) -> Stmt:
        """Return the statement that runs the state the sequence is in."""
        if len(states) == 1:
            return self.run(states[0])
        half = len(states) // 2
        below = binary("lt", _get(self.at), states[half].number)
        return nodes.If(below, self.choose(states[:half]), self.choose(states[half:]))

    def run(self, state: _State) -> Stmt:
        """Return the statements of one state."""
        go_on = (_set(self.at, state.next), _set(self.moved, 1))
        if state.wait is None:
            return Seq((*state.lets, *state.stmts, *go_on))
        over = is_over(state.wait)
        return Seq((*state.lets, nodes.If(over, Seq(go_on), _set(self.running, 0))))

    def checks(self) -> list[Stmt]:
        """Return the assertions that name the wait where the sequence is stuck."""
        return [
            nodes.Assert(binary("ne", _get(self.at), s.number), deadlock(s.wait), s.wait.span)
            for s in self.states
            if s.wait is not None
        ]


def _in_range(value: Expr, loop: nodes.For) -> Expr:
    """Return the kept loop variable so that its bounds can be read off the expression."""
    start, stop = int_value(loop.start), int_value(loop.stop)
    if start is None or stop is None or int_value(loop.step) != 1 or stop <= start:
        return value
    distance = binary("sub", value, start)
    return binary("add", binary("mod", distance, stop - start), start)
