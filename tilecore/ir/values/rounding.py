"""Arithmetic with a stated rounding, exactly: by rational numbers, one element after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from tilecore.ir.expr import ROUNDED

Number = float
_NEAREST = {"add_rn": np.add, "mul_rn": np.multiply}
FORMATS = {"float32": (24, -149, 127), "float64": (53, -1074, 1023)}


def rounded(name: str, *given: Any) -> Any:
    """Return the values of a function of ROUNDED ("add_rz"), in the type of the arguments."""
    op, mode = name.split("_")
    dtype = np.result_type(*given)
    if name in _NEAREST:
        return _NEAREST[name](*given)

    def one(*values: Number) -> Number:
        return _rounded(op, mode, [float(v) for v in values], dtype.name)

    return np.vectorize(one, otypes=[dtype])(*given)


def _rounded(op: str, mode: str, given: list[Number], dtype: str) -> Number:
    plain = _PLAIN[op](*given)  # right where the result is no number, or an exact infinity
    if not all(map(math.isfinite, given)) or math.isnan(plain) or (op == "div" and given[1] == 0):
        return plain
    negative = math.copysign(1.0, plain) < 0
    if op == "sqrt":
        return _round_root(given[0], mode, dtype) if given[0] else plain
    exact = _EXACT[op](*map(Fraction, given))
    if exact == 0:
        return _zero(op, mode, given, negative)
    size = _round(abs(exact), _towards(mode, exact < 0), dtype)
    return -size if exact < 0 else size


def _zero(op: str, mode: str, given: list[Number], negative: bool) -> Number:
    """Return an exact 0: a sum of two signs is -0 where it is rounded down."""
    if op not in ("add", "fma"):
        return -0.0 if negative else 0.0
    signs = [math.copysign(1.0, v) < 0 for v in given]
    first = signs[0] if op == "add" else signs[0] != signs[1]
    if first == signs[-1]:
        return -0.0 if first else 0.0
    return -0.0 if mode == "rd" else 0.0


def _towards(mode: str, negative: bool) -> str:
    """Return how the size of a number is rounded: "near", "up" or "down"."""
    if mode == "rn":
        return "near"
    return "up" if mode == ("rd" if negative else "ru") else "down"


def _round(exact: Fraction, way: str, dtype: str) -> Number:
    """Return a positive number, rounded."""
    digits, least, most = FORMATS[dtype]
    top = exact.numerator.bit_length() - exact.denominator.bit_length()
    top -= exact < Fraction(2) ** top
    unit = Fraction(2) ** max(top - digits + 1, least)
    whole, rest = divmod(exact, unit)
    rest /= unit
    whole += way == "up" and rest > 0
    whole += way == "near" and (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2))
    value = whole * unit
    if value < Fraction(2) ** (most + 1):
        return float(value)
    return math.inf if way != "down" else float(np.finfo(dtype).max)


def _round_root(x: Number, mode: str, dtype: str) -> Number:
    """Return the root of a positive number: that of its first bits, and one bit for the others."""
    value = Fraction(x)
    scale = 1200  # the last bit of a root counts less than 2 ** -1140
    root = math.isqrt(int(value * 4**scale))
    exact = Fraction(root, 2**scale)
    is_exact = exact * exact == value
    return _round(exact if is_exact else exact + Fraction(1, 2 ** (scale + 1)),
                  _towards(mode, False), dtype)  # fmt: skip


def _quotient(x: Number, y: Number) -> Number:
    if y != 0:
        return x / y
    if x == 0 or math.isnan(x):
        return math.nan
    return math.copysign(math.inf, x) * math.copysign(1.0, y)


def _multiply_add(x: Number, y: Number, z: Number) -> Number:
    if math.isfinite(x) and math.isfinite(y) and not math.isfinite(z):
        return z  # whatever the product
    return x * y + z if not (math.isfinite(x) and math.isfinite(y)) else 0.0


_PLAIN: dict[str, Callable[..., Number]] = {
    "add": lambda x, y: x + y, "mul": lambda x, y: x * y, "div": _quotient, "fma": _multiply_add,
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan,
}  # fmt: skip
_EXACT: dict[str, Callable[..., Fraction]] = {
    "add": lambda x, y: x + y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
    "fma": lambda x, y, z: x * y + z,
}  # fmt: skip
assert {name.split("_")[0] for name in ROUNDED} == {*_PLAIN}
