"""nest_copies: nests of loops with stages that copy a box of a tensor to a shared tile are copies.

``for i, j in T.Parallel(m, n): tile[i, j] = A[y + i, x + j]`` says what ``T.copy`` says, which runs
ahead of what uses the tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilecore.ir.arithmetic.bounds import step_of
from tilecore.ir.expr import Expr, Load, Var, const
from tilecore.ir.nodes import Buffer, Copy, For, Parallel, PrimFunc, Region, Seq, Stmt, Store
from tilecore.ir.substitute import substitute_expr
from tilecore.ir.visitor import Rewriter, has_loads, walk_expr, with_body


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with copies in the place of such nests."""
    return with_body(func, _Copied().visit(func.body))


class _Copied(Rewriter):
    def visit_for(self, stmt: For) -> Stmt:
        """Return a loop of which the copies are written as such."""
        stmt = self.rebuild(stmt)  # type: ignore[assignment]
        if stmt.kind != "pipelined":
            return stmt
        body = stmt.body.stmts if isinstance(stmt.body, Seq) else (stmt.body,)
        found = tuple(_copy_of(s) or s for s in body)
        if all(a is b for a, b in zip(found, body, strict=True)):
            return stmt
        return replace(stmt, body=Seq(found, stmt.body.span))


def _copy_of(nest: Stmt) -> Copy | None:
    """Return the copy that a nest is, if it is one."""
    if not isinstance(nest, Parallel) or nest.annotations or not nest.loop_vars:
        return None
    store = nest.body
    if isinstance(store, Seq) and len(store.stmts) == 1:
        (store,) = store.stmts
    if not isinstance(store, Store) or not isinstance(store.value, Load):
        return None
    tile, tensor = store.buffer, store.value.buffer
    if (tile.scope, tensor.scope) != ("shared", "global") or tile.dtype != tensor.dtype:
        return None
    if any(b.base is not None or b.address is not None for b in (tile, tensor)):
        return None
    there = _box(tensor, store.value.indices, nest)
    here = _box(tile, store.indices, nest)
    if there is None or here is None:
        return None
    return Copy(there, here, span=nest.span)


def _box(buffer: Buffer, indices: Sequence[Expr], nest: Parallel) -> Region | None:
    """Return the box that a nest walks through, the last loop along the last of its axes."""
    pending = list(nest.loop_vars)
    extents: list[Expr] = []
    for index in indices:
        used = [v for v in nest.loop_vars if v in set(walk_expr(index))]
        if has_loads(index) or len(used) > 1:
            return None
        if not used:
            extents.append(const(1))
            continue
        if not pending or pending.pop(0) is not used[0] or step_of(index, used[0]) != 1:
            return None
        extents.append(nest.extents[len(nest.loop_vars) - len(pending) - 1])
    if pending:
        return None
    zeros: dict[Var, Expr] = {var: const(0, var.dtype) for var in nest.loop_vars}
    offsets = tuple(substitute_expr(index, zeros) for index in indices)
    return Region(buffer, offsets, tuple(extents))
