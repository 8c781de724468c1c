"""Arithmetic with a stated rounding: T.ieee_add and its kin. Only "rn", to nearest, exists here."""

from __future__ import annotations

from tilecore.errors import TypeMismatch
from tilecore.ir.expr import Expr, ExprLike, as_expr, binary, call, cast, const

__all__ = [
    "fast_rcp", "ieee_add", "ieee_fdiv", "ieee_fmaf", "ieee_frcp", "ieee_frsqrt", "ieee_fsqrt",
    "ieee_mul", "ieee_sub",
]  # fmt: skip
MODES = ("rn", "rz", "ru", "rd")


def _nearest(name: str, rounding_mode: str) -> None:
    if rounding_mode not in MODES:
        known = ", ".join(MODES)
        raise TypeMismatch(expected=f"rounding mode {known} of T.{name}", found=rounding_mode)
    if rounding_mode != "rn":
        raise TypeMismatch(
            expected=f'rounding_mode="rn" of T.{name}: this target rounds to nearest',
            found=repr(rounding_mode),
        )


def ieee_add(x: ExprLike, y: ExprLike, rounding_mode: str = "rn") -> Expr:
    """Return x + y, rounded once.

    Raises:
        TypeMismatch: another rounding than "rn" (TC202); so in all functions here.
    """
    _nearest("ieee_add", rounding_mode)
    return binary("add", x, y)


def ieee_sub(x: ExprLike, y: ExprLike, rounding_mode: str = "rn") -> Expr:
    """Return x - y, rounded once."""
    _nearest("ieee_sub", rounding_mode)
    return binary("sub", x, y)


def ieee_mul(x: ExprLike, y: ExprLike, rounding_mode: str = "rn") -> Expr:
    """Return x * y, rounded once."""
    _nearest("ieee_mul", rounding_mode)
    return binary("mul", x, y)


def ieee_fmaf(x: ExprLike, y: ExprLike, z: ExprLike, rounding_mode: str = "rn") -> Expr:
    """Return x * y + z; the product is exact but in float64, where it is rounded too."""
    _nearest("ieee_fmaf", rounding_mode)
    given = [as_expr(v) for v in (x, y, z)]
    kind = given[0].dtype
    wide = "float64" if kind == "float32" else "float32" if kind.bits == 16 else kind
    a, b, c = (cast(v, wide) for v in given)
    return cast(binary("add", binary("mul", a, b), c), kind)


def ieee_frcp(x: ExprLike, rounding_mode: str = "rn") -> Expr:
    """Return 1 / x, rounded once."""
    _nearest("ieee_frcp", rounding_mode)
    given = as_expr(x)
    return binary("div", const(1.0, given.dtype), given)


def ieee_fsqrt(x: ExprLike, rounding_mode: str = "rn") -> Expr:
    """Return the square root, rounded once."""
    _nearest("ieee_fsqrt", rounding_mode)
    return call("sqrt", x)


def ieee_frsqrt(x: ExprLike) -> Expr:
    """Return 1 / sqrt(x)."""
    return call("rsqrt", x)


def ieee_fdiv(x: ExprLike, y: ExprLike, rounding_mode: str = "rn") -> Expr:
    """Return x / y, rounded once."""
    _nearest("ieee_fdiv", rounding_mode)
    return binary("div", x, y)


def fast_rcp(x: ExprLike) -> Expr:
    """Return 1 / x; a GPU approximates it, here it is rounded once."""
    return ieee_frcp(x)
