"""Scalar functions: arithmetic helpers, elementary functions, conditionals and conversions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.ir import expr as ir
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Const, Expr, ExprLike, as_expr, binary, call, const, select
from tilecore.ir.nodes import Region
from tilecore.ir.vector import Vector, VectorType, reinterpret_lanes

_FOLDED = {
    "exp": math.exp, "exp2": lambda x: 2.0**x, "exp10": lambda x: 10.0**x, "log": math.log,
    "log2": math.log2, "log10": math.log10, "sqrt": math.sqrt, "rsqrt": lambda x: x**-0.5,
    "tanh": math.tanh, "sin": math.sin, "cos": math.cos, "erf": math.erf, "tan": math.tan,
    "asin": math.asin, "acos": math.acos, "atan": math.atan, "sinh": math.sinh,
    "cosh": math.cosh, "log1p": math.log1p,
}  # fmt: skip


def _function(name: str, x: ExprLike) -> Any:
    if name in _FOLDED and isinstance(x, (int, float)):
        return _FOLDED[name](x)
    return call(name, x)


def exp(x: ExprLike) -> Any:
    """Return e ** x; a Python number gives a Python number (as in all functions here)."""
    return _function("exp", x)


def exp2(x: ExprLike) -> Any:
    """Return 2 ** x."""
    return _function("exp2", x)


def exp10(x: ExprLike) -> Any:
    """Return 10 ** x."""
    return _function("exp10", x)


def log(x: ExprLike) -> Any:
    """Return the natural logarithm."""
    return _function("log", x)


def log2(x: ExprLike) -> Any:
    """Return the logarithm to base 2."""
    return _function("log2", x)


def log10(x: ExprLike) -> Any:
    """Return the logarithm to base 10."""
    return _function("log10", x)


def sqrt(x: ExprLike) -> Any:
    """Return the square root."""
    return _function("sqrt", x)


def rsqrt(x: ExprLike) -> Any:
    """Return 1 / sqrt(x)."""
    return _function("rsqrt", x)


def tanh(x: ExprLike) -> Any:
    """Return the hyperbolic tangent."""
    return _function("tanh", x)


def sigmoid(x: ExprLike) -> Expr:
    """Return 1 / (1 + exp(-x))."""
    return call("sigmoid", x)


def erf(x: ExprLike) -> Any:
    """Return the error function."""
    return _function("erf", x)


def sin(x: ExprLike) -> Any:
    """Return the sine of an angle in radians."""
    return _function("sin", x)


def cos(x: ExprLike) -> Any:
    """Return the cosine of an angle in radians."""
    return _function("cos", x)


def tan(x: ExprLike) -> Any:
    """Return the tangent of an angle in radians."""
    return _function("tan", x)


def asin(x: ExprLike) -> Any:
    """Return the angle in radians whose sine is x."""
    return _function("asin", x)


def acos(x: ExprLike) -> Any:
    """Return the angle in radians whose cosine is x."""
    return _function("acos", x)


def atan(x: ExprLike) -> Any:
    """Return the angle in radians whose tangent is x."""
    return _function("atan", x)


def atan2(x1: ExprLike, x2: ExprLike) -> Expr:
    """Return the angle in radians of the point with ordinate x1 and abscissa x2."""
    return call("atan2", x1, x2)


def sinh(x: ExprLike) -> Any:
    """Return the hyperbolic sine."""
    return _function("sinh", x)


def cosh(x: ExprLike) -> Any:
    """Return the hyperbolic cosine."""
    return _function("cosh", x)


def log1p(x: ExprLike) -> Any:
    """Return log(1 + x), exact for small x."""
    return _function("log1p", x)


def fmod(x: ExprLike, y: ExprLike) -> Expr:
    """Return the remainder of x / y with the sign of x."""
    return call("fmod", x, y)


def isnan(x: ExprLike) -> Expr:
    """Return whether x is NaN."""
    value = as_expr(x)
    return binary("ne", value, value) if value.dtype.is_float else const(False)


def isinf(x: ExprLike) -> Expr:
    """Return whether x is an infinity."""
    value = as_expr(x)
    return binary("eq", abs(value), math.inf) if value.dtype.is_float else const(False)


def isfinite(x: ExprLike) -> Expr:
    """Return whether x is neither NaN nor an infinity."""
    value = as_expr(x)
    return binary("lt", abs(value), math.inf) if value.dtype.is_float else const(True)


def abs(x: ExprLike) -> Expr:
    """Return the absolute value, in the type of x."""
    return call("abs", x)


def floor(x: ExprLike) -> Expr:
    """Return the largest whole number not above x, as a float."""
    return call("floor", x)


def ceil(x: ExprLike) -> Expr:
    """Return the smallest whole number not below x, as a float."""
    return call("ceil", x)


def round(x: ExprLike, rounding_mode: str = "ties-to-even") -> Expr:
    """Return x rounded to the nearest whole number.

    Args:
        x: a number.
        rounding_mode: where halves go: "ties-to-even" or "ties-away-from-zero".

    Raises:
        TypeMismatch: another mode (TC202).
    """
    if rounding_mode == "ties-to-even":
        return call("round", x)
    if rounding_mode != "ties-away-from-zero":
        known = '"ties-to-even" or "ties-away-from-zero"'
        raise TypeMismatch(expected=known, found=repr(rounding_mode))
    given = as_expr(x)
    whole = call("trunc", given)
    rest = binary("sub", given, whole)  # exact
    up = select(binary("ge", rest, 0.5), 1.0, 0.0)
    step = select(binary("le", rest, -0.5), -1.0, up)
    return binary("add", whole, ir.cast(step, whole.dtype))


def nearbyint(x: ExprLike) -> Expr:
    """Return x rounded to the nearest whole number, halves to even."""
    return call("round", x)


def trunc(x: ExprLike) -> Expr:
    """Return x without its fraction."""
    return call("trunc", x)


def max(a: ExprLike, b: ExprLike) -> Expr:
    """Return the larger of two values."""
    return binary("max", a, b)


def min(a: ExprLike, b: ExprLike) -> Expr:
    """Return the smaller of two values."""
    return binary("min", a, b)


def clamp(dst: ExprLike, min_val: ExprLike, max_val: ExprLike) -> Expr:
    """Return ``dst`` limited to [min_val, max_val]."""
    return min(max(dst, min_val), max_val)


def pow(a: ExprLike, b: ExprLike) -> Expr:
    """Return a ** b."""
    return binary("pow", a, b)


def floordiv(a: ExprLike, b: ExprLike) -> Expr:
    """Return a // b, rounded down."""
    return binary("floordiv", a, b)


def floormod(a: ExprLike, b: ExprLike) -> Expr:
    """Return a % b, with the sign of b."""
    return binary("mod", a, b)


def ceildiv(a: ExprLike, b: ExprLike) -> Any:
    """Return a / b rounded up (a >= 0, b > 0); Python ints give a Python int."""
    return ir.ceildiv(a, b)


def cdiv(a: ExprLike, b: ExprLike) -> Any:
    """Return a / b rounded up."""
    return ir.ceildiv(a, b)


def align_up(a: ExprLike, b: ExprLike) -> Any:
    """Return the smallest multiple of b that is not below a (b > 0)."""
    return ir.ceildiv(a, b) * b


def index_to_coordinates(index: ExprLike, shape: Sequence[ExprLike]) -> list[Any]:
    """Return the indices of an element of a row-major box, given its position."""
    found: list[Any] = []
    for extent in reversed(shape):
        found.insert(0, binary("mod", index, extent))
        index = binary("floordiv", index, extent)
    return found


def if_then_else(cond: ExprLike, a: ExprLike, b: ExprLike) -> Expr:
    """Return ``a`` where ``cond`` holds, else ``b``; only the chosen one is evaluated."""
    return select(cond, a, b)


def Select(cond: ExprLike, a: ExprLike, b: ExprLike) -> Expr:
    """Return ``a`` where ``cond`` holds, else ``b``."""
    return select(cond, a, b)


def cast(value: Any, dtype: Any) -> Expr:
    """Return ``value`` converted to ``dtype``; arguments may stand in either order."""
    if isinstance(value, str) and not isinstance(dtype, str):
        value, dtype = dtype, value
    return ir.cast(value, DType(dtype))


def Cast(dtype: Any, value: Any) -> Expr:
    """Return ``value`` converted to ``dtype``."""
    return cast(value, dtype)


def reinterpret(value: Any, dtype: Any) -> Any:
    """Return the bits of ``value`` as ``dtype``; arguments may stand in either order.

    A "handle" is an address, a uint64. Slices and vectors may become vectors (T.float32x2).

    Raises:
        TypeMismatch: the types differ in width (TC202).
    """
    if isinstance(value, str) and not isinstance(dtype, str):
        value, dtype = dtype, value
    kind = VectorType.parse(dtype)
    if kind is not None or isinstance(value, (Vector, Region)):
        return reinterpret_lanes(value, kind or DType(dtype))
    return ir.reinterpret(value, DType("uint64" if dtype == "handle" else dtype))


def fma_halves(a: ExprLike, b: ExprLike, c: ExprLike, dtype: str) -> Expr:
    """Return ``a * b + c`` of the two numbers of 16 bits in each of three words (uint32).

    An instruction where a GPU has it, which rounds once; elsewhere sums are float32 before they are
    rounded.

    Args:
        a: two factors, the first in the low half.
        b: two factors.
        c: two summands.
        dtype: of the numbers: float16 or bfloat16.

    Raises:
        TypeMismatch: other numbers (TC202).
    """
    name = f"fma2_{dtype}"
    if name not in ir.PAIRED:
        raise TypeMismatch(expected="T.fma_halves of float16 or bfloat16", found=dtype)
    words = tuple(ir.cast(ir.as_expr(v), DType("uint32")) for v in (a, b, c))
    return ir.Call(name, words, DType("uint32"))


def infinity(dtype: Any = "float32") -> Const:
    """Return positive infinity of a float type.

    Raises:
        TypeMismatch: the type has no infinity (TC202).
    """
    kind = DType(dtype)
    if not kind.is_float or (kind.bits <= 8 and kind != "float8_e5m2"):
        raise TypeMismatch(expected="a float type with an infinity", found=kind)
    return const(math.inf, kind)


def max_value(dtype: Any) -> Const:
    """Return the largest finite value of an element type."""
    return _limit(dtype, "max")


def min_value(dtype: Any) -> Const:
    """Return the smallest finite value of an element type."""
    return _limit(dtype, "min")


def _limit(dtype: Any, side: str) -> Const:
    import ml_dtypes

    kind = DType(dtype)
    limits = (ml_dtypes.finfo if kind.is_float else ml_dtypes.iinfo)(kind.numpy)
    value = getattr(limits, side)
    return const(float(value) if kind.is_float else int(value), kind)


def _operator(op: str, a: ExprLike, b: ExprLike) -> Expr:
    return binary(op, as_expr(a), b)


def shift_left(a: ExprLike, b: ExprLike) -> Expr:
    """Return a << b."""
    return _operator("shl", a, b)


def shift_right(a: ExprLike, b: ExprLike) -> Expr:
    """Return a >> b."""
    return _operator("shr", a, b)


def bitwise_and(a: ExprLike, b: ExprLike) -> Expr:
    """Return a & b."""
    return _operator("bitand", a, b)


def bitwise_or(a: ExprLike, b: ExprLike) -> Expr:
    """Return a | b."""
    return _operator("bitor", a, b)


def bitwise_xor(a: ExprLike, b: ExprLike) -> Expr:
    """Return a ^ b."""
    return _operator("bitxor", a, b)
