"""Code of one thread: thread indices, private tiles, and values kept per thread."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tilecore.ir import nodes
from tilecore.ir.expr import Expr, Load, Var, const
from tilecore.ir.nodes import Buffer, Region, Seq, Stmt
from tilecore.ir.substitute import Rebuilder

if TYPE_CHECKING:
    from tilecore.passes.threads.serialize_threads import Serializer


class PerThread(Rebuilder):
    """Rewrites code for thread ``index``: thread indices, private tiles, values kept per thread."""

    def __init__(self, owner: Serializer, index: Expr) -> None:
        super().__init__()
        self.owner, self.index = owner, index

    def expr(self, expr: Expr) -> Expr:
        """Return ``expr`` as it is for the thread."""
        if isinstance(expr, Var):
            return self.owner.value(expr, self.index, self)
        if isinstance(expr, Load) and expr.buffer in self.owner.private:
            indices = (self.index, *(self.expr(i) for i in expr.indices))
            return Load(self.owner.private[expr.buffer], indices, expr.dtype)
        return super().expr(expr)

    def stmt(self, stmt: Stmt) -> Stmt:
        """Return ``stmt`` as the thread runs it."""
        if isinstance(stmt, nodes.Store) and stmt.buffer in self.owner.private:
            indices = (self.index, *(self.expr(i) for i in stmt.indices))
            buffer = self.owner.private[stmt.buffer]
            return nodes.Store(buffer, indices, self.expr(stmt.value), stmt.span)
        if isinstance(stmt, nodes.Alloc) and stmt.buffer in self.owner.private:
            return Seq((), stmt.span)
        if isinstance(stmt, nodes.Let):
            return self.owner.bind(stmt, self.index, self)
        if isinstance(stmt, nodes.Atomic) and stmt.prev in self.owner.private:
            return self.with_previous(stmt, stmt.prev)
        return super().stmt(stmt)

    def with_previous(self, stmt: nodes.Atomic, prev: Buffer) -> Stmt:
        """Return an atomic update whose old value goes to this thread's copy of ``prev``."""
        value = dataclasses.replace(prev)
        self.owner.allocs.append(nodes.Alloc(value, stmt.span))
        update = super().stmt(dataclasses.replace(stmt, prev=value))
        zeros = tuple(const(0) for _ in prev.shape)
        kept = self.owner.private[prev]
        old = Load(value, zeros, value.dtype)
        return Seq((update, nodes.Store(kept, (self.index, *zeros), old, stmt.span)), stmt.span)

    def _value(self, value: Any) -> Any:
        if isinstance(value, Region) and value.buffer in self.owner.private:
            offsets = (self.index, *(self.expr(o) for o in value.offsets))
            extents = (const(1), *(self.expr(e) for e in value.extents))
            return Region(self.owner.private[value.buffer], offsets, extents)
        return super()._value(value)
