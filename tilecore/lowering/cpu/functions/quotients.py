"""Quotients and remainders, as TVM and LLVM take them: rounded down, whatever the signs."""

from __future__ import annotations

from typing import Any

from tvm import tirx as tir

from tilecore.ir.expr import (
    Binary,
    Cast,
    Expr,
    binary,
    cast,
    const,
    holds,
    int_value,
    select,
    unary,
)
from tilecore.ir.visitor import has_loads
from tilecore.lowering.tir import broadcast


def simpler(expr: Binary) -> Binary:
    """Return an expression of which quotients are shifts, or one, where that is the same."""
    return _joined_quotients(without_division(expr))


def divided(expr: Binary, a: Any, b: Any, lanes: int) -> Any:
    """Return the quotient or remainder of lowered operands; of vectors of integers by 2**n."""
    divisor, is_quotient = int_value(expr.b), expr.op == "floordiv"
    if expr.a.dtype.is_float:
        quotient = tir.floor(tir.Div(a, b))
        return quotient if is_quotient else a - quotient * b
    if lanes > 1 and divisor is not None:
        return _masked(expr.op, a, divisor, str(expr.dtype), lanes)
    if lanes == 1 and divisor is not None and _is_from_memory(expr):
        return _rounded_down(expr.op, a, divisor)
    return tir.FloorDiv(a, b) if is_quotient else tir.FloorMod(a, b)


def by_negative(expr: Binary, divisor: int) -> Expr:
    """Return a quotient or remainder by a negative number from those by its magnitude.

    TVM would name what it divides by; under conditions that never hold it names that twice. The
    least number of a type has no magnitude there: TVM fails at it.
    """
    if not holds(expr.dtype, -divisor):
        is_least, is_above = binary("eq", expr.a, expr.b), binary("gt", expr.a, 0)
        if expr.op == "mod":
            return select(is_least, 0, select(is_above, binary("add", expr.a, expr.b), expr.a))
        return select(is_least, 1, select(is_above, -1, 0))
    quotient, rest = (binary(op, expr.a, const(-divisor, expr.dtype)) for op in ("floordiv", "mod"))
    is_rest = binary("ne", rest, 0)
    if expr.op == "mod":
        return select(is_rest, binary("add", rest, expr.b), rest)
    return binary("sub", unary("neg", quotient), cast(is_rest, expr.dtype))


def without_division(expr: Binary) -> Binary:
    """Return a quotient or remainder by ``1 << n`` as a shift or a mask, else ``expr`` itself."""
    by = expr.b
    while isinstance(by, Cast) and by.dtype.is_integer and by.a.dtype.is_integer:
        by = by.a
    if expr.op not in ("floordiv", "mod") or not isinstance(by, Binary) or by.op != "shl":
        return expr
    if int_value(by.a) != 1 or by.dtype != expr.dtype or not expr.dtype.is_integer:
        return expr
    if expr.op == "floordiv":
        return Binary("shr", expr.a, by.b, expr.dtype)
    return Binary("bitand", expr.a, binary("sub", by, 1), expr.dtype)


def _joined_quotients(expr: Binary) -> Binary:
    """Return ``n // a // b`` as ``n // (a * b)``, else ``expr`` itself."""
    inner, divisor = expr.a, int_value(expr.b) if expr.op == "floordiv" else None
    if not isinstance(inner, Binary) or inner.op != "floordiv" or inner.dtype != "int32":
        return expr
    first = int_value(inner.b)
    if first is None or divisor is None or first <= 0 or divisor <= 0:
        return expr
    if not holds(expr.dtype, first * divisor):
        return expr
    return Binary("floordiv", inner.a, const(first * divisor, expr.dtype), expr.dtype)


def _is_from_memory(expr: Binary) -> bool:
    """Return whether an element may be any number below 0 that an expression divides."""
    is_known = isinstance(expr.a, Binary) and expr.a.op in ("mod", "bitand")
    return expr.dtype == "int32" and not is_known and has_loads(expr.a)


def _rounded_down(op: str, a: Any, divisor: int) -> Any:
    """Return a quotient or remainder of an int32 that may be any number.

    TVM, where it knows that the dividend is not the least int32, adds a multiple of the divisor to
    it, and multiplies what that adds to the quotient, some hundred millions, by what an index
    multiplies the quotient by: it fails over a literal that no int32 holds.
    """
    by, end = tir.IntImm("int32", divisor), tir.IntImm("int32", 31)
    rest = tir.truncmod(a, by)
    below = tir.shift_right(rest, end)  # -1 of a remainder below 0
    if op == "mod":
        return rest + tir.bitwise_and(by, below)
    return tir.truncdiv(a, by) + below


def _masked(op: str, value: Any, divisor: int, dtype: str, lanes: int) -> Any:
    """Return the quotient or remainder of a vector by a power of two."""

    def number(n: int) -> Any:
        return broadcast(tir.IntImm(dtype, n), lanes)

    if op == "mod":
        return tir.bitwise_and(value, number(divisor - 1))
    return tir.shift_right(value, number(divisor.bit_length() - 1))
