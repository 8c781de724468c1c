"""merge_nests: one nest in place of a T.Parallel whose body is a T.Parallel.

On a GPU the points of a nest are spread over threads all at once. A nest that stands beside other
statements of its point, or whose extents follow from it, is a loop of the thread that has the
point.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from tilecore.ir.expr import Var, const
from tilecore.ir.nodes import For, Let, Parallel, PrimFunc, Seq, Stmt
from tilecore.ir.visitor import Rewriter, has_loads, walk, walk_expr


def run(func: PrimFunc) -> PrimFunc:
    """Return the function without nests in nests."""
    body = _Merged().visit(func.body)
    return func if body is func.body else replace(func, body=body)


class _Merged(Rewriter):
    def visit_parallel(self, nest: Parallel) -> Stmt:
        inside = _inside(nest)
        while inside is not None:
            names, inner = inside
            body = Seq((*names, inner.body), inner.span) if names else inner.body
            nest = Parallel(
                (*nest.loop_vars, *inner.loop_vars), (*nest.extents, *inner.extents), body,
                MappingProxyType({**nest.annotations, **inner.annotations}), nest.span,
            )  # fmt: skip
            inside = _inside(nest)
        if any(isinstance(s, Parallel) for s in walk(nest.body)):
            return replace(nest, body=_Loops().visit(nest.body))
        return nest


def _inside(nest: Parallel) -> tuple[tuple[Let, ...], Parallel] | None:
    """Return the nest that is all of another one's body, and the names bound before it."""
    stmts = nest.body.stmts if isinstance(nest.body, Seq) else (nest.body,)
    if not stmts or not isinstance(inner := stmts[-1], Parallel):
        return None
    names = tuple(s for s in stmts[:-1] if isinstance(s, Let) and not has_loads(s.value))
    own: set[Var] = {*nest.loop_vars, *(s.var for s in names)}
    depends = any(n in own for e in inner.extents for n in walk_expr(e) if isinstance(n, Var))
    return None if depends or len(names) < len(stmts) - 1 else (names, inner)


class _Loops(Rewriter):
    def visit_parallel(self, nest: Parallel) -> Stmt:
        body = self.visit(nest.body)
        for var, extent in zip(reversed(nest.loop_vars), reversed(nest.extents), strict=True):
            body = For(var, const(0), extent, const(1), "serial", body, span=nest.span)
        return body
