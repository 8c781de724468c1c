"""repeated_math: functions of several stores of a nest that a program wrote once are computed once.

``w = T.cos(angle)`` is a name for an expression: each of the stores that it stands in would compute
it anew. LLVM tells by itself of calls of libm that they are the same, not of code in their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilecore.ir.expr import QUICK_CALLS, Call, Expr, Load, Var
from tilecore.ir.nodes import Let, Parallel, PrimFunc, Seq, Stmt, Store
from tilecore.ir.substitute import Rebuilder
from tilecore.ir.visitor import Rewriter, expressions, flat, has_loads, walk_expr, with_body


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with names for what nests compute repeatedly."""
    return with_body(func, _Names().visit(func.body))


class _Names(Rewriter):
    def visit_parallel(self, nest: Parallel) -> Stmt:
        """Return a nest whose stores share what they compute."""
        stmts = flat([nest.body])
        stores = [s for s in stmts if isinstance(s, Store)]
        if len(stores) < 2 or not all(isinstance(s, (Let, Store)) for s in stmts):
            return self.rebuild(nest)
        found = stmts
        while (call := _repeated(found)) is not None:
            found = _named(found, call)
        return nest if found is stmts else replace(nest, body=Seq(tuple(found)))


def _repeated(stmts: Sequence[Stmt]) -> Call | None:
    """Return a call of a function that stands in several places, and reads nothing there."""
    calls = [node for stmt in stmts for node in _calls(stmt)]
    counts = Counter(map(id, calls))
    return next((c for c in calls if counts[id(c)] > 1 and not has_loads(c)), None)


def _calls(stmt: Stmt) -> Iterator[Call]:
    for expr in expressions(stmt):
        inside = {id(n) for x in walk_expr(expr) if isinstance(x, Load) for n in _indices(x)}
        for node in walk_expr(expr):
            is_value = isinstance(node, Call) and id(node) not in inside
            if is_value and node.name not in QUICK_CALLS and node.dtype.is_float:  # type: ignore[attr-defined]
                yield node  # type: ignore[misc]


def _indices(load: Load) -> Iterator[Expr]:
    for index in load.indices:
        yield from walk_expr(index)


def _named(stmts: Sequence[Stmt], call: Call) -> list[Stmt]:
    """Return statements of which the first that computes a call binds it to a name."""
    name, span = Var(call.name, call.dtype), stmts[0].span
    rebuilt = [_Named(call, name).stmt(stmt) for stmt in stmts]
    changed = [new is not old for new, old in zip(rebuilt, stmts, strict=True)]
    first = changed.index(True)
    return [*rebuilt[:first], Let(name, call, span), *rebuilt[first:]]


class _Named(Rebuilder):
    def __init__(self, node: Expr, name: Var) -> None:
        super().__init__()
        self.node, self.name = node, name

    def expr(self, expr: Expr) -> Expr:
        """Return ``expr`` with the name in the place of the node."""
        return self.name if expr is self.node else super().expr(expr)
