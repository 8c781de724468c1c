"""Functions of numbers that are made of others: inverse hyperbolic ones, signs, exponents, bits.

They mean the same on every target, since they are expressions of what every target has.
"""

from __future__ import annotations

import math
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.ir.expr import (
    Expr,
    ExprLike,
    as_expr,
    binary,
    call,
    cast,
    const,
    reinterpret,
    select,
    unary,
)

__all__ = [
    "acosh", "asinh", "atanh", "bitwise_not", "clz", "copysign", "hypot", "ldexp", "likely",
    "nextafter", "popcount", "truncdiv", "truncmod",
]  # fmt: skip
LARGE = {"float32": 1e18, "float64": 1e153}  # its square is still finite
LIMITS = {"float32": (8, 23), "float64": (11, 52)}  # bits of exponent and fraction


def asinh(x: ExprLike) -> Expr:
    """Return the number whose hyperbolic sine is x."""
    wide, a = _magnitude("asinh", x)
    large = LARGE[wide.dtype]
    near = select(a < large, a, 1.0)
    exact = call("log1p", near + near * (near / (call("sqrt", near * near + 1.0) + 1.0)))
    far = call("log", a) + math.log(2.0)
    return cast(copysign(select(a >= large, far, select(a < large, exact, a)), wide), _kind(x))


def acosh(x: ExprLike) -> Expr:
    """Return the number of at least 0 whose hyperbolic cosine is x; NaN where x < 1."""
    wide = _wide("acosh", x)
    above = wide - 1.0
    exact = call("log1p", above + call("sqrt", above * (above + 2.0)))
    far = call("log", wide) + math.log(2.0)
    return cast(select(wide >= LARGE[wide.dtype], far, exact), _kind(x))


def atanh(x: ExprLike) -> Expr:
    """Return the number whose hyperbolic tangent is x; infinite at 1 and -1, NaN beyond."""
    wide, a = _magnitude("atanh", x)
    return cast(copysign(call("log1p", a * 2.0 / (1.0 - a)) * 0.5, wide), _kind(x))


def hypot(x: ExprLike, y: ExprLike) -> Expr:
    """Return sqrt(x * x + y * y), without overflow on the way."""
    kind = binary("add", x, y).dtype
    (_, a), (_, b) = _magnitude("hypot", cast(x, kind)), _magnitude("hypot", cast(y, kind))
    long, short = binary("max", a, b), binary("min", a, b)
    ratio = short / select(binary("eq", long, 0.0), 1.0, long)
    length = long * call("sqrt", ratio * ratio + 1.0)
    is_nan = binary("or", binary("ne", a, a), binary("ne", b, b))
    length = select(is_nan, a + b, length)
    return cast(select(binary("eq", long, math.inf), long, length), kind)


def copysign(x: ExprLike, y: ExprLike) -> Expr:
    """Return x with the sign of y, that of a zero or of NaN too."""
    value = _float("copysign", x)
    bits = f"uint{value.dtype.bits}"
    top = const(1 << (value.dtype.bits - 1), bits)
    rest = reinterpret(value, bits) & const((1 << (value.dtype.bits - 1)) - 1, bits)
    return reinterpret(rest | (reinterpret(cast(y, value.dtype), bits) & top), value.dtype)


def nextafter(x: ExprLike, y: ExprLike) -> Expr:
    """Return the number of x's type that comes next on the way to y; y where they are equal."""
    value = _float("nextafter", x)
    goal = cast(y, value.dtype)
    bits = f"int{value.dtype.bits}"
    code = reinterpret(value, bits)
    is_outward = binary("eq", value < goal, value > 0.0)
    moved = reinterpret(code + cast(select(is_outward, 1, -1), bits), value.dtype)
    least = reinterpret(const(1, bits), value.dtype)
    step = select(binary("eq", value, 0.0), copysign(least, goal), moved)
    is_nan = binary("or", binary("ne", value, value), binary("ne", goal, goal))
    return select(is_nan, value + goal, select(binary("eq", value, goal), goal, step))


def ldexp(x: ExprLike, exponent: ExprLike) -> Expr:
    """Return x * 2 ** exponent, rounded once."""
    wide = _wide("ldexp", x)
    e = cast(exponent, "int32")
    exponent_bits, fraction_bits = LIMITS[wide.dtype]
    top = (1 << (exponent_bits - 1)) - 1
    # Downwards in steps that leave every number but the last one with all its fraction.
    down = top - 1 - fraction_bits - 1
    up, less, one = (const(v, wide.dtype) for v in (2.0**top, 2.0**-down, 1.0))
    for _ in range(2):
        wide = wide * select(e > top, up, select(e < 1 - top, less, one))
        e = e - select(e > top, top, select(e < 1 - top, -down, 0))
    e = binary("min", binary("max", e, 1 - top), top)
    code = f"int{wide.dtype.bits}"
    power = reinterpret(cast(e + top, code) << fraction_bits, wide.dtype)
    return cast(wide * power, _kind(x))


def truncdiv(a: ExprLike, b: ExprLike) -> Any:
    """Return a / b of integers, rounded towards 0 as in C."""
    return binary("floordiv", a, b) + select(_rounds_up(a, b), 1, 0)


def truncmod(a: ExprLike, b: ExprLike) -> Any:
    """Return the remainder of truncdiv, with the sign of a as in C."""
    rest = binary("mod", a, b)
    return rest - select(_rounds_up(a, b), cast(b, rest.dtype), const(0, rest.dtype))


def _rounds_up(a: ExprLike, b: ExprLike) -> Expr:
    rest = binary("mod", a, b)
    if rest.dtype.is_float:
        raise TypeMismatch(expected="integers for T.truncdiv and T.truncmod", found=rest.dtype)
    signs = binary("ne", binary("lt", a, 0), binary("lt", b, 0))
    return binary("and", binary("ne", rest, 0), signs)


def popcount(x: ExprLike) -> Expr:
    """Return how many bits of an integer are set, in its type."""
    return cast(_count(_word("popcount", x)), as_expr(x).dtype)


def clz(x: ExprLike) -> Expr:
    """Return how many bits above the highest one that is set are 0, as int32; all where x is 0."""
    bits = as_expr(x).dtype.bits
    word = _word("clz", x)
    shift = 1
    while shift < bits:
        word = word | (word >> const(shift, word.dtype))
        shift *= 2
    return binary("sub", bits, cast(_count(word), "int32"))


def bitwise_not(x: ExprLike) -> Expr:
    """Return x with every bit turned."""
    value = as_expr(x)
    return unary("not" if value.dtype == "bool" else "bitnot", value)


def likely(cond: ExprLike) -> Expr:
    """Return ``cond``, which is expected to hold."""
    return as_expr(cond)


def _word(name: str, x: ExprLike) -> Expr:
    value = as_expr(x)
    if not value.dtype.is_integer:
        raise TypeMismatch(expected=f"an integer for T.{name}", found=value.dtype)
    bits = value.dtype.bits
    return cast(reinterpret(value, f"uint{bits}"), "uint64" if bits == 64 else "uint32")


def _count(word: Expr) -> Expr:
    """Return the bits set in a word: sums of pairs, nibbles, bytes, then of all bytes."""
    kind = word.dtype

    def mask(byte: int) -> Expr:
        return const(int.from_bytes(bytes([byte] * (kind.bits // 8)), "little"), kind)

    def shifted(value: Expr, by: int) -> Expr:
        return value >> const(by, kind)

    pairs = word - (shifted(word, 1) & mask(0x55))
    nibbles = (pairs & mask(0x33)) + (shifted(pairs, 2) & mask(0x33))
    octets = (nibbles + shifted(nibbles, 4)) & mask(0x0F)
    return shifted(octets * mask(0x01), kind.bits - 8)


def _float(name: str, x: ExprLike) -> Expr:
    value = as_expr(x)
    if not value.dtype.is_float or value.dtype.bits < 16:
        raise TypeMismatch(expected=f"a float of 16 bits or more for T.{name}", found=value.dtype)
    return value


def _kind(x: ExprLike) -> Any:
    return as_expr(x).dtype


def _wide(name: str, x: ExprLike) -> Expr:
    """Return a float in the type that it is computed in."""
    value = _float(name, x)
    return cast(value, "float64" if value.dtype == "float64" else "float32")


def _magnitude(name: str, x: ExprLike) -> tuple[Expr, Expr]:
    wide = _wide(name, x)
    return wide, call("abs", wide)
