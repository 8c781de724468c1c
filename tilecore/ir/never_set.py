"""Outputs of a program that it only adds to: their first elements are what memory holds."""

from __future__ import annotations

from tilecore.ir.analysis import marked_outputs, sets, writes
from tilecore.ir.arithmetic.polynomial import is_equal
from tilecore.ir.expr import Binary, Cast, Expr, Load
from tilecore.ir.nodes import Atomic, Buffer, PrimFunc, Stmt, Store
from tilecore.ir.visitor import walk


def never_set(func: PrimFunc) -> dict[Buffer, Stmt]:
    """Return the marked outputs that are updated and that nothing sets, with the first update.

    A store of a sum of the element that it replaces is an update, as ``C[i] += x`` is.
    """
    outputs = {p for i, p in enumerate(func.params) if i in marked_outputs(func)}
    found: dict[Buffer, Stmt] = {}
    for stmt in walk(func.body):
        touched = {b.root for b in writes(stmt)} & outputs
        if isinstance(stmt, Atomic) and stmt.op == "load":
            touched.discard(stmt.buffer.root)
        for buffer in touched:
            if isinstance(stmt, Store) and _adds(stmt):
                found.setdefault(buffer, stmt)
            elif buffer in {b.root for b in sets(stmt)}:
                outputs.discard(buffer)
            else:
                found.setdefault(buffer, stmt)
    return {buffer: stmt for buffer, stmt in found.items() if buffer in outputs}


def _adds(stmt: Store) -> bool:
    """Return whether a store adds to the element that it replaces."""
    total = _unconverted(stmt.value)
    if not isinstance(total, Binary) or total.op not in ("add", "sub"):
        return False
    terms = (total.a, total.b) if total.op == "add" else (total.a,)
    return any(_is_old(_unconverted(term), stmt) for term in terms)


def _unconverted(expr: Expr) -> Expr:
    return _unconverted(expr.a) if isinstance(expr, Cast) else expr


def _is_old(expr: Expr, stmt: Store) -> bool:
    return (
        isinstance(expr, Load)
        and expr.buffer is stmt.buffer
        and all(a is b or is_equal(a, b) for a, b in zip(expr.indices, stmt.indices, strict=True))
    )
