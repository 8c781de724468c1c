"""name_lookups: elements of tables that say where a copy begins get names.

``T.copy(K[table[b, k], :, :], tile)``: what is at an offset that is a name can be known to be
aligned, and the copies of a pipeline may look the name up ahead of the loop.
"""

from __future__ import annotations

import dataclasses

from tilecore.ir.expr import Expr, Load, Var
from tilecore.ir.nodes import Buffer, Copy, Let, PrimFunc, Region, Seq, Stmt
from tilecore.ir.substitute import Rebuilder
from tilecore.ir.visitor import Rewriter, flat


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with names for what copies look up."""
    body = _Copies().visit(func.body)
    return func if body is func.body else dataclasses.replace(func, body=body)


class _Copies(Rewriter):
    def visit_seq(self, stmt: Seq) -> Stmt:
        """Return the statements, with names right before the copies that need them."""
        new = [self.visit(s) for s in stmt.stmts]
        if all(a is b for a, b in zip(new, stmt.stmts, strict=True)):
            return stmt
        return dataclasses.replace(stmt, stmts=tuple(flat(new)))

    def visit_copy(self, stmt: Copy) -> Stmt:
        """Return a copy whose offsets look nothing up, after what they did."""
        names = _Names()
        src, dst = names.of_region(stmt.src), names.of_region(stmt.dst)
        if not names.found:
            return stmt
        lets = (Let(var, load, stmt.span) for load, var in names.found.values())
        return Seq((*lets, dataclasses.replace(stmt, src=src, dst=dst)), stmt.span)


class _Names(Rebuilder):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, tuple[Load, Var]] = {}

    def of_region(self, region: Region) -> Region:
        """Return a region with names in its offsets."""
        return dataclasses.replace(region, offsets=tuple(map(self.expr, region.offsets)))

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return ``buffer``: other statements name it, too."""
        return buffer

    def expr(self, expr: Expr) -> Expr:
        """Return the name of an element, else the expression with names in it."""
        if not isinstance(expr, Load):
            return super().expr(expr)
        if expr.buffer.scope != "global":
            return expr
        if id(expr) not in self.found:
            self.found[id(expr)] = (expr, Var(f"{expr.buffer.name}_at", expr.dtype))
        return self.found[id(expr)][1]
