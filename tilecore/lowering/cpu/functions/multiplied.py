"""Quotients and remainders by numbers in vectors: by a multiplication, where the dividend is small.

Vectors have no instruction that divides integers. ``n // d`` is ``n * m >> s`` for all n from 0 to
some limit, with m a little more than ``2**s / d`` (Granlund and Montgomery, "Division by invariant
integers using multiplication"); what is known of loops and blocks tells the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilecore.ir.arithmetic.bounds import Interval, mentions
from tilecore.ir.expr import Binary, Expr, Var, binary, int_value
from tilecore.ir.nodes import Parallel
from tilecore.ir.substitute import Rebuilder

MOST = 1 << 31  # products stay below it
DIVIDED = ("floordiv", "mod")


def multiplied(nest: Parallel, bounds: Callable[[Expr], Interval | None]) -> Parallel:
    """Return a nest without quotients of what differs along its last axis, where it can be."""
    body = _Multiplied(nest.loop_vars[-1], bounds).stmt(nest.body)
    return nest if body is nest.body else replace(nest, body=body)


def factor(divisor: int, most: int) -> tuple[int, int] | None:
    """Return m and s with ``n // divisor == n * m >> s`` for n up to ``most``, None: none fit."""
    for shift in range(31):
        number = -(-(1 << shift) // divisor)
        if (number * divisor - (1 << shift)) * most < 1 << shift:
            return (number, shift) if number * most < MOST else None
    return None


class _Multiplied(Rebuilder):
    def __init__(self, var: Var, bounds: Callable[[Expr], Interval | None]) -> None:
        super().__init__()
        self.var, self.bounds = var, bounds

    def expr(self, expr: Expr) -> Expr:
        """Return ``expr`` with such parts multiplied."""
        if not isinstance(expr, Binary) or expr.op not in DIVIDED or expr.dtype != "int32":
            return super().expr(expr)
        divisor, known = int_value(expr.b), self.bounds(expr.a)
        is_small = divisor is not None and divisor > 0 and known is not None and known[0] >= 0
        if not is_small or not mentions(expr.a, self.var) or divisor is None or known is None:
            return super().expr(expr)
        found = factor(divisor, known[1])
        if divisor & (divisor - 1) == 0 or found is None:
            return super().expr(expr)
        given = self.expr(expr.a)
        quotient = binary("shr", binary("mul", given, found[0]), found[1])
        if expr.op == "floordiv":
            return quotient
        return binary("sub", given, binary("mul", quotient, divisor))
