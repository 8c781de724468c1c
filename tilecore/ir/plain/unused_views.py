"""Views of tensors that nothing reads or writes: they are no use of the tensor.

A kernel that looks at an optional tensor in another shape before it asks whether it is there may
get None in its place.
"""

from __future__ import annotations

from dataclasses import replace

from tilecore.ir import nodes
from tilecore.ir.nodes import Buffer, PrimFunc, Seq, Stmt
from tilecore.ir.visitor import Rewriter, buffers_of, children, loads, walk


def without_unused_views(func: PrimFunc) -> PrimFunc:
    """Return ``func`` without such views; the same object if it has none.

    Where hints (T.annotate_layout and its kin) name buffers, all views stay.
    """
    params = {p for p in func.params if isinstance(p, Buffer)}
    views: set[Buffer] = set()
    used: set[Buffer] = set()
    for stmt in walk(func.body):
        if isinstance(stmt, nodes.Alloc):
            buffer = stmt.buffer
            if buffer.base is not None and buffer.address is None and buffer.root in params:
                views.add(buffer)
        elif isinstance(stmt, nodes.Pad):
            used.add(stmt.buffer)
        elif isinstance(stmt, nodes.Annotate) and not isinstance(stmt.value, (int, str)):
            return func
        else:
            used |= {load.buffer for load in loads(stmt)} if children(stmt) else buffers_of(stmt)
    unused = views - used
    return replace(func, body=_Without(unused).visit(func.body)) if unused else func


class _Without(Rewriter):
    def __init__(self, unused: set[Buffer]) -> None:
        self.unused = unused

    def visit_seq(self, stmt: Seq) -> Stmt:
        """Return the statements but for the views."""
        kept = (s for s in stmt.stmts if not self._is_unused(s))
        return Seq(tuple(self.visit(s) for s in kept), stmt.span)

    def _is_unused(self, stmt: Stmt) -> bool:
        return isinstance(stmt, nodes.Alloc) and stmt.buffer in self.unused
