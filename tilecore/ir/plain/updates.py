"""Atomic updates as loads and stores, for where nobody else is at the element meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from tilecore.ir.expr import Expr, Load, binary, cast, const
from tilecore.ir.nodes import Atomic, Seq, Stmt, Store
from tilecore.ir.visitor import Rewriter, loads

_OPERATORS = {"add": "add", "max": "max", "min": "min", "or": "bitor"}


def plain_updates(stmt: Stmt, may_be_plain: Callable[[Atomic], bool]) -> Stmt:
    """Return a statement whose updates are loads and stores where ``may_be_plain`` says so.

    It may say so of an element that surely is one of its buffer, and that nobody else is at.
    """
    return _PlainUpdates(may_be_plain).visit(stmt)


class _PlainUpdates(Rewriter):
    def __init__(self, may_be_plain: Callable[[Atomic], bool]) -> None:
        self.may_be_plain = may_be_plain

    def visit_atomic(self, stmt: Atomic) -> Stmt:
        """Return the update as loads and stores, if it may be those."""
        return (_plain(stmt) if self.may_be_plain(stmt) else None) or stmt


def _plain(stmt: Atomic) -> Stmt | None:
    """Return what an update does; None: where it has no such form."""
    buffer, prev = stmt.buffer, stmt.prev
    if buffer.dtype == "bool" or any(load.buffer is prev for load in loads(stmt)):
        return None
    old = Load(buffer, stmt.indices, buffer.dtype)
    new: Expr = cast(stmt.value, buffer.dtype)
    if stmt.op in _OPERATORS:
        new = cast(binary(_OPERATORS[stmt.op], old, new), buffer.dtype)
    stores: list[Stmt] = []
    if prev is not None:
        stores.append(Store(prev, (const(0),), cast(old, prev.dtype), stmt.span))
    if stmt.op != "load":
        stores.append(Store(buffer, stmt.indices, new, stmt.span))
    return stores[0] if len(stores) == 1 else Seq(tuple(stores))
