"""T.thread_return: a kernel that its threads may leave early.

What follows a return becomes the body of a loop that runs once, and a return leaves that loop.
"""

from __future__ import annotations

from dataclasses import replace

from tilecore.errors import SourceSpan
from tilecore.ir import nodes
from tilecore.ir.expr import INT32, Load, Var, as_bool, const
from tilecore.ir.nodes import Buffer, Jump, Seq, Stmt
from tilecore.ir.visitor import Rewriter, walk

ZERO, ONE = const(0), const(1)


def without_returns(body: Seq) -> Seq:
    """Return ``body`` with every return as a break; the same object if it has none."""
    places = [i for i, s in enumerate(body.stmts) if _returns(s)]
    if not places:
        return body
    before, rest = body.stmts[: places[0]], Seq(body.stmts[places[0] :], body.span)
    flag = Buffer("returned", (ONE,), INT32, "local", is_var=True, span=body.span)
    left = nodes.For(Var("once"), ZERO, ONE, ONE, "serial", _Breaks(flag).visit(rest))
    span = rest.stmts[0].span
    clear = nodes.Store(flag, (ZERO,), ZERO, span)
    return Seq((*before, nodes.Alloc(flag, span), clear, replace(left, span=span)), body.span)


def _returns(stmt: Stmt) -> bool:
    return any(isinstance(s, Jump) and s.word == "return" for s in walk(stmt))


class _Breaks(Rewriter):
    """Leaves one loop after the other, while ``flag`` says so."""

    def __init__(self, flag: Buffer) -> None:
        self.flag = flag

    def visit_jump(self, stmt: Jump) -> Stmt:
        if stmt.word != "return":
            return stmt
        return Seq((nodes.Store(self.flag, (ZERO,), ONE, stmt.span), _leave(stmt.span)), stmt.span)

    def visit_for(self, stmt: nodes.For) -> Stmt:
        return self.loop(stmt)

    def visit_while(self, stmt: nodes.While) -> Stmt:
        return self.loop(stmt)

    def loop(self, stmt: nodes.For | nodes.While) -> Stmt:
        """Return a loop, and behind it the way out of the next one."""
        if not _returns(stmt):
            return stmt
        has_left = as_bool(Load(self.flag, (ZERO,), INT32))
        out = nodes.If(has_left, _leave(stmt.span), None, stmt.span)
        return Seq((self.rebuild(stmt), out), stmt.span)


def _leave(span: SourceSpan) -> Jump:
    return Jump("break", span)
