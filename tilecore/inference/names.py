"""Values that the body of a parallel nest names, put in the place of their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tilecore.ir.expr import QUICK_CALLS, Binary, Call, Cast, Const, Expr, Load, Var
from tilecore.ir.nodes import Buffer, Let, Stmt, Store
from tilecore.ir.substitute import substitute_stmt
from tilecore.ir.visitor import expressions, walk_expr

MOST_REPEATED = 64  # nodes of a value that stands wherever its name stood: LLVM computes it once
EXACT = ("bool", "int32", "int64", "float32", "float64")  # a name of these rounds or cuts nothing


def without_names(stmts: Sequence[Stmt]) -> tuple[Store, ...] | None:
    """Return the stores of a body that names values, None where their meaning or cost would change.

    A value is read where it was named, so nothing it reads may be stored before its use; names used
    more than once stand for plain arithmetic alone, which costs no second computation.
    """
    values: dict[Var, Expr] = {}
    stale: set[Var] = set()
    uses = Counter(node for s in stmts for node in _nodes(s) if isinstance(node, Var))
    kept: list[Store] = []
    for stmt in stmts:
        if any(node in stale for node in _nodes(stmt)):
            return None
        found = substitute_stmt(stmt, values) if values else stmt
        if isinstance(found, Let):
            if uses[found.var] > 1 and not _is_plain(found.value):
                return None
            if found.var.dtype not in EXACT and not _is_element(found.value):
                return None
            values[found.var] = found.value
        elif isinstance(found, Store):
            kept.append(found)
            written = found.buffer.root
            stale |= {var for var, value in values.items() if written in roots_read(value)}
        else:
            return None
    return tuple(kept)


def _is_element(value: Expr) -> bool:
    return isinstance(value.a if isinstance(value, Cast) else value, (Const, Load, Var))


def _is_plain(value: Expr) -> bool:
    nodes = list(walk_expr(value))
    calls = {node.name for node in nodes if isinstance(node, Call)}
    powers = any(isinstance(node, Binary) and node.op == "pow" for node in nodes)
    return len(nodes) <= MOST_REPEATED and calls <= {*QUICK_CALLS} and not powers


def roots_read(value: Expr) -> set[Buffer]:
    """Return the roots of the buffers that a value is computed from."""
    return {node.buffer.root for node in walk_expr(value) if isinstance(node, Load)}


def _nodes(stmt: Stmt) -> Iterator[Expr]:
    return (node for e in expressions(stmt) for node in walk_expr(e))
