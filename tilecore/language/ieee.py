"""Arithmetic with a stated rounding: T.ieee_add and its kin."""

from __future__ import annotations

from tilecore.errors import TypeMismatch
from tilecore.ir.expr import Expr, ExprLike, as_expr, binary, call, cast, const, reinterpret

__all__ = [
    "fast_rcp", "fma", "fmul", "ieee_add", "ieee_fdiv", "ieee_fmaf", "ieee_frcp", "ieee_frsqrt",
    "ieee_fsqrt", "ieee_mul", "ieee_sub",
]  # fmt: skip
MODES = ("rn", "rz", "ru", "rd")


def _checked(name: str, rounding_mode: str, *given: ExprLike) -> str:
    """Return the rounding mode, which the types of the arguments have."""
    if rounding_mode not in MODES:
        found = f"Invalid rounding mode {rounding_mode!r}"
        raise TypeMismatch(expected=f"rounding mode {', '.join(MODES)} of T.{name}", found=found)
    kinds = [as_expr(v).dtype for v in given]
    if rounding_mode != "rn" and any(k.is_float and k.bits <= 16 for k in kinds):
        expected = f"float32 or float64 for rounding_mode={rounding_mode!r} of T.{name}"
        why = "Only rounding mode 'rn' is available for half precision"
        raise TypeMismatch(expected=f"{expected}: {why}", found=", ".join(map(str, kinds)))
    return rounding_mode


def _computed(op: str, mode: str, x: ExprLike, y: ExprLike) -> Expr:
    """Return a sum or product that no compiler contracts with another."""
    plain = binary(op, x, y)
    is_wide = plain.dtype.is_float and plain.dtype.bits >= 32
    return call(f"{op}_{mode}", x, y) if is_wide else plain


def ieee_add(x: ExprLike, y: ExprLike, rounding_mode: str = "rn") -> Expr:
    """Return x + y, rounded once: to nearest ("rn"), to zero ("rz"), up ("ru") or down ("rd").

    Raises:
        TypeMismatch: another mode, or of 16 bits another than "rn" (TC202); so in all of these.
    """
    mode = _checked("ieee_add", rounding_mode, x, y)
    return _computed("add", mode, x, y)


def ieee_sub(x: ExprLike, y: ExprLike, rounding_mode: str = "rn") -> Expr:
    """Return x - y, rounded once."""
    mode = _checked("ieee_sub", rounding_mode, x, y)
    return _computed("add", mode, x, -as_expr(y))


def ieee_mul(x: ExprLike, y: ExprLike, rounding_mode: str = "rn") -> Expr:
    """Return x * y, rounded once."""
    mode = _checked("ieee_mul", rounding_mode, x, y)
    return _computed("mul", mode, x, y)


def ieee_fmaf(x: ExprLike, y: ExprLike, z: ExprLike, rounding_mode: str = "rn") -> Expr:
    """Return x * y + z, rounded once."""
    mode = _checked("ieee_fmaf", rounding_mode, x, y, z)
    given = [as_expr(v) for v in (x, y, z)]
    kind = given[0].dtype
    if not kind.is_float or kind.bits >= 32:
        return call(f"fma_{mode}", *given)
    # In float32, rounded to odd: then rounding to 16 bits is as if there had been no other.
    down, low, high = (call(f"fma_{m}", *(cast(v, "float32") for v in given)) for m in MODES[1:])
    inexact = cast(binary("ne", low, high), "uint32")
    return cast(reinterpret(reinterpret(down, "uint32") | inexact, "float32"), kind)


def fma(x: ExprLike, y: ExprLike, z: ExprLike) -> Expr:
    """Return x * y + z, rounded once to nearest."""
    return ieee_fmaf(x, y, z)


def fmul(x: ExprLike, y: ExprLike) -> Expr:
    """Return x * y, which no compiler contracts with a sum."""
    return ieee_mul(x, y)


def ieee_frcp(x: ExprLike, rounding_mode: str = "rn") -> Expr:
    """Return 1 / x, rounded once."""
    given = as_expr(x)
    return ieee_fdiv(const(1.0, given.dtype), given, _checked("ieee_frcp", rounding_mode, x))


def ieee_fsqrt(x: ExprLike, rounding_mode: str = "rn") -> Expr:
    """Return the square root, rounded once."""
    mode = _checked("ieee_fsqrt", rounding_mode, x)
    return call("sqrt" if mode == "rn" else f"sqrt_{mode}", x)


def ieee_frsqrt(x: ExprLike) -> Expr:
    """Return 1 / sqrt(x)."""
    return call("rsqrt", x)


def ieee_fdiv(x: ExprLike, y: ExprLike, rounding_mode: str = "rn") -> Expr:
    """Return x / y, rounded once."""
    mode = _checked("ieee_fdiv", rounding_mode, x, y)
    return binary("div", x, y) if mode == "rn" else call(f"div_{mode}", x, y)


def fast_rcp(x: ExprLike) -> Expr:
    """Return 1 / x; a GPU approximates it, here it is rounded once."""
    return ieee_frcp(x)
