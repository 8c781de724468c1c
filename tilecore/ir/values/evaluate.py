"""The value of scalar expressions in NumPy, with the arithmetic of their element types.

Values are NumPy scalars or arrays that broadcast against each other, so that one evaluation covers
a whole loop nest. A mask says which lanes count: only they must index inside a tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilecore.errors import ScopeError
from tilecore.ir.expr import (
    NUM_THREADS,
    PAIRED,
    ROUNDED,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    Var,
)
from tilecore.ir.plain.halves import spelled_out
from tilecore.ir.values.conversion import convert
from tilecore.ir.values.packed import reinterpreted
from tilecore.ir.values.rounding import rounded

Value = Any  # a NumPy scalar or array of the dtype of the expression
Mask = Any  # True, or a bool array
LoadHook = Callable[[Load, tuple[Value, ...], Mask], Value]

# Arithmetic of NumPy's own gives NaN where these go beyond what they hold.
LIMITED = frozenset({"float8_e4m3fn", "float8_e8m0fnu"})
_ERF = np.vectorize(math.erf, otypes=[np.float64])
_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide,
    "floordiv": np.floor_divide, "mod": np.mod, "min": np.fmin, "max": np.fmax,
    "pow": np.power, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "bitand": np.bitwise_and, "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
_CALLS: dict[str, Callable[..., Value]] = {
    "exp": np.exp, "exp2": np.exp2, "exp10": lambda x: np.power(10.0, x), "log": np.log,
    "log2": np.log2, "log10": np.log10, "sqrt": np.sqrt, "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "tanh": np.tanh, "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)), "erf": _ERF, "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh, "log1p": np.log1p, "fmod": np.fmod,
    "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "trunc": np.trunc, NUM_THREADS: lambda: 1,
}  # fmt: skip


class Evaluator:
    """Evaluates expressions under values of their Vars.

    Args:
        values: the value of each Var.
        load: called for each Load with the values of its indices and the mask; None where loads
            cannot occur.
    """

    def __init__(self, values: Mapping[Var, Value] | None = None, load: LoadHook | None = None):
        self.values: dict[int, Value] = {}
        self.load = load
        self._keep: list[Var] = []
        for var, value in (values or {}).items():
            self.set(var, value)

    def set(self, var: Var, value: Value) -> None:
        """Give ``var`` a value, converted to its dtype."""
        if id(var) not in self.values:
            self._keep.append(var)
        self.values[id(var)] = _as_dtype(value, var.dtype.numpy)

    def __call__(self, expr: Expr, mask: Mask = True) -> Value:
        """Return the value of ``expr``.

        Raises:
            ScopeError: a Var has no value (TC104).
        """
        match expr:
            case Const():
                return expr.dtype.numpy.type(expr.value)
            case Var():
                if id(expr) not in self.values:
                    raise ScopeError(message=f"`{expr.name}` has no value here")
                return self.values[id(expr)]
            case Binary():
                return self._binary(expr, mask)
            case Unary():
                a = self(expr.a, mask)
                if expr.dtype in LIMITED:
                    a = np.asarray(a).astype(np.float32)
                found = {"neg": np.negative, "not": np.logical_not, "bitnot": np.invert}[expr.op](a)
                return convert(found, expr.dtype.numpy) if expr.dtype in LIMITED else found
            case Select():
                return self._select(expr, mask)
            case Cast():
                return convert(self(expr.a, mask), expr.dtype.numpy)
            case Load():
                assert self.load is not None
                return self.load(expr, tuple(self(i, mask) for i in expr.indices), mask)
            case Call():
                return self._call(expr, mask)
            case _:
                raise ScopeError(message=f"no value for {type(expr).__name__}")

    def _binary(self, expr: Binary, mask: Mask) -> Value:
        a = self(expr.a, mask)
        if expr.op in ("and", "or"):
            decides = np.logical_not(a) if expr.op == "and" else np.asarray(a)
            if np.all(decides):
                return a
            b = self(expr.b, np.logical_and(mask, np.logical_not(decides)))
            return np.logical_and(a, b) if expr.op == "and" else np.logical_or(a, b)
        b = self(expr.b, mask)
        if expr.op in ("floordiv", "mod") and expr.dtype.is_integer and (np.ndim(b) or not b):
            b = np.where(b == 0, np.ones_like(b), b)[()]  # only in lanes that do not count
        if expr.dtype in LIMITED:
            a, b = (np.asarray(x).astype(np.float32) for x in (a, b))
            return convert(_BINARY[expr.op](a, b), expr.dtype.numpy)
        return _as_dtype(_BINARY[expr.op](a, b), expr.dtype.numpy)

    def _select(self, expr: Select, mask: Mask) -> Value:
        cond = np.asarray(self(expr.cond, mask))
        if cond.ndim == 0:
            return self(expr.a if cond else expr.b, mask)
        a = self(expr.a, np.logical_and(mask, cond))
        b = self(expr.b, np.logical_and(mask, np.logical_not(cond)))
        return np.where(cond, a, b)

    def _call(self, expr: Call, mask: Mask) -> Value:
        """Evaluate in at least float32 (16-bit math functions are computed so everywhere)."""
        if expr.name in PAIRED:
            return self(spelled_out(expr), mask)
        args = [np.asarray(self(a, mask)) for a in expr.args]
        if expr.name == "reinterpret":
            return reinterpreted(args[0], expr.dtype)[()]
        if expr.name in ROUNDED:
            return rounded(expr.name, *args)[()]
        narrow = expr.dtype.is_float and expr.dtype.bits < 32
        result = _CALLS[expr.name](*(a.astype(np.float32) if narrow else a for a in args))
        return convert(result, expr.dtype.numpy)


def _as_dtype(value: Value, dtype: np.dtype[Any]) -> Value:
    """Return a value of NumPy's in an element type, itself where it has that type."""
    if isinstance(value, np.generic) and value.dtype == dtype:
        return value
    return np.asarray(value).astype(dtype, copy=False)[()]


def evaluate(expr: Expr, values: Mapping[Var, Value]) -> Value:
    """Return the value of an expression without loads."""
    with np.errstate(all="ignore"):
        return Evaluator(values)(expr)
