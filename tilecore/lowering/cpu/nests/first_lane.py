"""Quotients and remainders in a nest that are the same, or one apart, in all lanes of a vector.

``k // channels`` and ``k % channels`` say which pixel and which channel an element of a gathered
row is of. Vectors have no instruction for them; where a vector lies within a pixel, its first lane
tells for all.
"""

from __future__ import annotations

from dataclasses import replace

from tilecore.ir.arithmetic.bounds import mentions
from tilecore.ir.arithmetic.lane_offsets import lane_offsets
from tilecore.ir.expr import Binary, Expr, Var, binary, int_value
from tilecore.ir.nodes import Parallel
from tilecore.ir.substitute import Rebuilder, substitute_expr

DIVIDED = ("floordiv", "mod")


def shared(nest: Parallel, first: Var, lanes: int) -> Parallel:
    """Return a nest whose quotients and remainders of the last axis are those of ``first``.

    ``first`` is what the last axis is in the first lane. Those whose lanes differ otherwise stay.
    """
    body = _OfFirst(nest.loop_vars[-1], first, lanes).stmt(nest.body)
    return nest if body is nest.body else replace(nest, body=body)


class _OfFirst(Rebuilder):
    def __init__(self, var: Var, first: Var, lanes: int) -> None:
        super().__init__()
        self.var, self.first, self.lanes = var, first, lanes

    def expr(self, expr: Expr) -> Expr:
        """Return ``expr`` with such parts told by the first lane."""
        if not isinstance(expr, Binary) or expr.op not in DIVIDED:
            return super().expr(expr)
        if expr.dtype != "int32" or not mentions(expr, self.var):
            return super().expr(expr)
        apart = lane_offsets(expr, self.var, self.lanes)
        told = substitute_expr(expr, {self.var: self.first})
        if apart == (0,) * self.lanes:
            return told
        if apart == tuple(range(self.lanes)) and not _is_masked(expr):
            return binary("add", told, binary("sub", self.var, self.first))
        return super().expr(expr)


def _is_masked(expr: Binary) -> bool:
    """Return whether vectors have a remainder: by a power of two, as a mask."""
    number = int_value(expr.b) or 0
    return number > 0 and number & (number - 1) == 0
