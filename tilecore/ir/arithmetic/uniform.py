"""Values that are one for all threads of a block, wherever all of them come by.

A private variable is uniform if every assignment to it is: a value that no thread has differently,
under conditions that all threads meet alike. What cannot be told is taken to differ.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilecore.ir import nodes
from tilecore.ir.analysis import read_buffers, written_buffers
from tilecore.ir.arithmetic.bounds import interval
from tilecore.ir.expr import Expr, Load, Var
from tilecore.ir.nodes import Buffer, Stmt
from tilecore.ir.visitor import children, expr_children, expressions, has_jump


class Uniform:
    """Which values are uniform in the body of one launch.

    ``sizes``: of the block along the axes of ``thread_vars``; None where that is not known.
    """

    def __init__(self, body: Stmt, thread_vars: Sequence[Var], sizes: Sequence[int | None]) -> None:
        known = zip(thread_vars, sizes, strict=False)
        self.ranges = {v: (0, size - 1) for v, size in known if size is not None}
        self.various: set[Var | Buffer] = {
            *thread_vars,
            *(b.root for b in written_buffers(body) if b.scope == "global"),
        }
        before = -1
        while before != len(self.various):
            before = len(self.various)
            self.visit(body, True)

    def holds(self, *exprs: Expr) -> bool:
        """Return whether all threads have the same values."""
        return all(self._holds(e) for e in exprs)

    def _holds(self, expr: Expr) -> bool:
        if isinstance(expr, Load) and expr.buffer.root in self.various:
            return False
        if isinstance(expr, Var) and expr in self.various:
            return self._is_known(expr)
        return all(map(self._holds, expr_children(expr))) or self._is_known(expr)

    def _is_known(self, expr: Expr) -> bool:
        """Return whether a value is one number in all threads: ``tx // 32`` of 32 threads is 0."""
        bounds = interval(expr, self.ranges) if expr.dtype.is_integer else None
        return bounds is not None and bounds[0] == bounds[1]

    def visit(self, stmt: Stmt, is_common: bool) -> None:
        """Add what ``stmt``, which all threads run alike if ``is_common``, makes differ."""
        match stmt:
            case nodes.Parallel():
                return
            case nodes.Let(var=var, value=value):
                if not self.holds(value):
                    self.various.add(var)
            case nodes.Atomic(prev=prev):
                self.various |= {prev} if prev is not None else set()
            case nodes.Exchange(op=op, dst=dst, width=width):
                if op in nodes.SHUFFLES or width or not is_common:
                    self.various.add(dst)
            case nodes.If(cond=cond):
                is_common = is_common and self.holds(cond)
            case nodes.For(loop_var=var, start=start, stop=stop, step=step, body=body):
                if not self.holds(start, stop, step):
                    self.various.add(var)
                    is_common = False
                is_common = is_common and not self.parts(body)
            case nodes.While(cond=cond, body=body):
                is_common = is_common and self.holds(cond) and not self.parts(body)
            case _:
                self.assign(stmt, is_common)
        for child in children(stmt):
            self.visit(child, is_common)

    def assign(self, stmt: Stmt, is_common: bool) -> None:
        """Add the private tiles that a store or tile operation sets, unless it is uniform."""
        if children(stmt):
            return
        read = {b.root for b in read_buffers(stmt)}
        if not (is_common and self.holds(*expressions(stmt)) and not read & self.various):
            self.various |= {b.root for b in written_buffers(stmt) if b.scope == "local"}

    def parts(self, stmt: Stmt) -> bool:
        """Return whether some threads leave an iteration of the loop around ``stmt`` early."""
        if isinstance(stmt, nodes.If) and has_jump(stmt) and not self.holds(stmt.cond):
            return True
        is_loop = isinstance(stmt, (nodes.For, nodes.While))
        return not is_loop and any(self.parts(child) for child in children(stmt))
