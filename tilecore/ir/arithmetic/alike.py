"""Stores that all threads of a block do alike: on a GPU they write one value to one place."""

from __future__ import annotations

from tilecore.ir import nodes
from tilecore.ir.arithmetic.uniform import Uniform
from tilecore.ir.expr import Expr, Load, Var, int_value
from tilecore.ir.nodes import Stmt
from tilecore.ir.substitute import substitute_expr
from tilecore.ir.visitor import children, has_jump, walk_expr


def alike_stores(launch: nodes.KernelLaunch) -> set[int]:
    """Return the ids of the stores, outside tile operations, that no thread does differently.

    Neither place nor value depends on the thread or on a variable that may be another one in each,
    and all threads of a branch that the index alone decides come by equally often.
    """
    finder = _Finder(launch)
    finder.visit(launch.body, True)
    return finder.found


class _Finder:
    def __init__(self, launch: nodes.KernelLaunch) -> None:
        self.own = {id(v) for v in launch.thread_vars}
        sizes = [int_value(t) for t in launch.threads]
        self.uniform = Uniform(launch.body, launch.thread_vars, sizes)
        self.lets: dict[Var, Expr] = {}
        self.found: set[int] = set()

    def visit(self, stmt: Stmt, is_common: bool) -> None:
        """Look at ``stmt``, which all threads of a branch run equally often if ``is_common``."""
        match stmt:
            case nodes.Parallel():
                return
            case nodes.Let(var=var, value=value):
                self.lets[var] = substitute_expr(value, self.lets)
            case nodes.Store(buffer=buffer, indices=indices, value=value):
                if is_common and buffer.scope != "local" and not self.differs(*indices, value):
                    self.found.add(id(stmt))
            case nodes.If(cond=cond):
                is_common = is_common and (not self.differs(cond) or not self.loads(cond))
            case nodes.For(start=start, stop=stop, step=step, body=body):
                is_common = is_common and not self.differs(start, stop, step) and not has_jump(body)
            case nodes.While(cond=cond, body=body):
                is_common = is_common and not self.differs(cond) and not has_jump(body)
            case _:
                pass
        for child in children(stmt):
            self.visit(child, is_common)

    def differs(self, *exprs: Expr) -> bool:
        """Return whether a value may differ between threads."""
        parts = [p for e in exprs for p in walk_expr(substitute_expr(e, self.lets))]
        return any(
            id(p) in self.own
            or (isinstance(p, Load) and p.buffer.scope == "local" and not self.uniform.holds(p))
            for p in parts
        )

    def loads(self, cond: Expr) -> bool:
        """Return whether a condition reads memory."""
        parts = walk_expr(substitute_expr(cond, self.lets))
        return any(isinstance(p, Load) for p in parts)
