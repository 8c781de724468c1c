"""hoist_views: a view stands where its memory comes into being, not where it is first used.

A tile may be read or accumulated where a tensor lies, and a pipeline copies ahead of its loop: both
need a view of the tensor before the statement that a program makes it with. Views of parameters and
workspaces come before all launches, those of tiles behind the tile. One whose shape is computed
within the launch stays.
"""

from __future__ import annotations

import dataclasses

from tilecore.ir.arithmetic.bounds import variables
from tilecore.ir.dims import dimensions
from tilecore.ir.expr import Var
from tilecore.ir.nodes import Alloc, Buffer, PrimFunc, Seq, Stmt
from tilecore.ir.visitor import Rewriter, flat, walk, with_body


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with its views where their memory is."""
    known = {p for p in func.params if isinstance(p, Var)} | set(dimensions(func))
    views: dict[Buffer, list[Alloc]] = {}
    for stmt in walk(func.body):
        if isinstance(stmt, Alloc) and _is_movable(stmt.buffer, known):
            views.setdefault(stmt.buffer.root, []).append(stmt)
    if not views:
        return func
    first = [alloc for root in func.buffers for alloc in views.get(root, ())]
    body = _Hoist(views).visit(func.body)
    return with_body(func, Seq(tuple(flat((*first, body))), func.body.span))


def _is_movable(buffer: Buffer, known: set[Var]) -> bool:
    if buffer.base is None or buffer.root.address is not None:
        return False
    extents = (*buffer.shape, *(buffer.strides or ()))
    return all(variables(extent) <= known for extent in extents)


class _Hoist(Rewriter):
    def __init__(self, views: dict[Buffer, list[Alloc]]) -> None:
        self.views = views
        self.moved = {id(alloc) for found in views.values() for alloc in found}

    def visit_seq(self, stmt: Seq) -> Stmt:
        """Return the statements, with the views of a tile behind it."""
        made: list[Stmt] = []
        for child in stmt.stmts:
            if id(child) in self.moved:
                continue
            made.append(self.visit(child))
            if isinstance(child, Alloc):
                made += self.views.get(child.buffer, ())
        same = len(made) == len(stmt.stmts) and all(
            a is b for a, b in zip(made, stmt.stmts, strict=True)
        )
        return stmt if same else dataclasses.replace(stmt, stmts=tuple(made))
