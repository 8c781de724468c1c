"""fold_clear: ``clear(C); for k: gemm(A, B, C)`` becomes ``gemm(..., clear_accum=(k == first))``.

``clear(C); gemm(A, B, C)`` becomes ``gemm(..., clear_accum=True)``. Saves one pass of writes and
one of reads over the accumulator. Legal where the gemm writes the whole of C and, in a loop, is a
direct statement of its body, the loop runs at least once, and nothing else in it touches C.
"""

from __future__ import annotations

import dataclasses

from tilecore.ir.analysis import covers_whole
from tilecore.ir.expr import Const, Expr, binary, const, int_value, is_zero
from tilecore.ir.nodes import Buffer, Fill, For, Gemm, PrimFunc, Seq, Stmt
from tilecore.ir.visitor import Rewriter, buffers_of, has_jump, with_body


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with foldable clears removed."""
    return with_body(func, _Fold().visit(func.body))


def run_outside_loops(func: PrimFunc) -> PrimFunc:
    """Return the function with those clears removed that a product follows in the same sequence."""
    return with_body(func, _Fold(into_loops=False).visit(func.body))


class _Fold(Rewriter):
    def __init__(self, *, into_loops: bool = True) -> None:
        self.into_loops = into_loops

    def visit_seq(self, stmt: Seq) -> Stmt:
        stmts = [self.visit(s) for s in stmt.stmts]
        position = 0
        while position < len(stmts):
            fill = stmts[position]
            if isinstance(fill, Fill) and is_zero(fill.value) and covers_whole(fill.dst):
                target = _first_use(stmts, position + 1, fill.dst.buffer)
                folded = target is not None and self._fold_into(stmts[target], fill.dst.buffer)
                if target is not None and folded:
                    stmts[target] = folded
                    del stmts[position]
                    continue
            position += 1
        return dataclasses.replace(stmt, stmts=tuple(stmts))

    def _fold_into(self, user: Stmt, buffer: Buffer) -> Stmt | None:
        if isinstance(user, Gemm) and _may_clear(user, buffer):
            return dataclasses.replace(user, clear_accum=const(True))
        if self.into_loops and isinstance(user, For):
            return _fold_into_loop(user, buffer)
        return None


def _first_use(stmts: list[Stmt], start: int, buffer: Buffer) -> int | None:
    for position in range(start, len(stmts)):
        if buffer in buffers_of(stmts[position]):
            return position
    return None


def _may_clear(gemm: Gemm, buffer: Buffer) -> bool:
    """Return whether the gemm writes the whole buffer and reads it as its accumulator only."""
    if gemm.c.buffer is not buffer or not covers_whole(gemm.c):
        return False
    return gemm.a.buffer is not buffer and gemm.b.buffer is not buffer


def _fold_into_loop(loop: For, buffer: Buffer) -> For | None:
    first, stop = int_value(loop.start), int_value(loop.stop)
    forward = (int_value(loop.step) or 0) > 0
    if first is None or stop is None or stop <= first or not forward or has_jump(loop.body):
        return None
    body = loop.body.stmts if isinstance(loop.body, Seq) else (loop.body,)
    users = [i for i, s in enumerate(body) if buffer in buffers_of(s)]
    if len(users) != 1:
        return None
    gemm = body[users[0]]
    if not isinstance(gemm, Gemm) or not _may_clear(gemm, buffer):
        return None
    if int_value_of_bool(gemm.clear_accum):
        return None
    is_first = binary("eq", loop.loop_var, first)
    folded = dataclasses.replace(gemm, clear_accum=binary("or", gemm.clear_accum, is_first))
    stmts = (*body[: users[0]], folded, *body[users[0] + 1 :])
    return dataclasses.replace(loop, body=Seq(stmts, loop.body.span))


def int_value_of_bool(value: Expr) -> bool:
    """Return whether a bool expression is the literal True."""
    return isinstance(value, Const) and bool(value.value)
