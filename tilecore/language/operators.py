"""Operators by the names of TVM's expressions: ``T.And(a, b)`` is ``a and b``."""

from __future__ import annotations

from collections.abc import Callable

from tilecore.ir.expr import Expr, ExprLike, binary, unary

__all__ = [
    "EQ", "GE", "GT", "LE", "LT", "NE", "Add", "And", "Div", "FloorDiv", "FloorMod", "Max", "Min",
    "Mul", "Not", "Or", "Sub",
]  # fmt: skip


def _named(op: str, meaning: str) -> Callable[[ExprLike, ExprLike], Expr]:
    def apply(a: ExprLike, b: ExprLike) -> Expr:
        return binary(op, a, b)

    apply.__name__ = op
    apply.__doc__ = f"Return {meaning}."
    return apply


And, Or = _named("and", "whether both hold"), _named("or", "whether one of both holds")
EQ, NE = _named("eq", "whether a == b"), _named("ne", "whether a != b")
LT, LE = _named("lt", "whether a < b"), _named("le", "whether a <= b")
GT, GE = _named("gt", "whether a > b"), _named("ge", "whether a >= b")
Add, Sub, Mul = _named("add", "a + b"), _named("sub", "a - b"), _named("mul", "a * b")
Div = _named("div", "a / b")
FloorDiv, FloorMod = _named("floordiv", "a // b"), _named("mod", "a % b, with the sign of b")
Min, Max = _named("min", "the smaller value"), _named("max", "the larger value")


def Not(a: ExprLike) -> Expr:
    """Return whether ``a`` does not hold."""
    return unary("not", a)
