"""Closed forms: integer expressions over knobs and dimensions, evaluated by NumPy in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tilecore.errors import TypeMismatch
from tilecore.ir.dtype import DType
from tilecore.ir.expr import (
    Binary,
    Cast,
    Const,
    Expr,
    ExprLike,
    Select,
    Unary,
    Var,
    as_expr,
    binary,
    cast,
    const,
    select,
    unary,
)
from tilecore.ir.visitor import walk_expr

Value = int | float | np.ndarray
Environment = Mapping[str, Value]

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide,
    "floordiv": np.floor_divide, "mod": np.mod, "min": np.minimum, "max": np.maximum,
    "pow": np.power, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "and": np.logical_and, "or": np.logical_or,
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor,
    "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
_UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative,
    "not": np.logical_not,
    "bitnot": np.invert,
}


class Bindings(dict[str, Any]):
    """Values of Vars that stay as they are: what was computed of them is computed once.

    Attributes:
        computed: values of expressions by their ids, and by other keys what is made of them.
        held: the expressions, whose ids are theirs as long as they live.
    """

    __slots__ = ("computed", "held")

    def __init__(self, values: Environment) -> None:
        super().__init__(values)
        self.computed: dict[Any, Any] = {}
        self.held: list[ExprLike] = []


def evaluate(expr: ExprLike, env: Environment) -> np.ndarray:
    """Return the value of ``expr`` where every Var has the value ``env[var.name]``.

    Integers are computed in 64 bits: counts of bytes and FLOP of a whole problem do not wrap.

    Args:
        expr: an expression without loads and math calls.
        env: per Var name an int or an array (or what stands for one in NumPy's functions); arrays
            broadcast against each other. ``Bindings`` keep what was computed.

    Raises:
        TypeMismatch: a Var has no value, or the expression reads memory (TC202).
    """
    if type(expr) is Const and expr.dtype.is_integer:
        return np.asarray(np.int64(expr.value))
    e, memo = as_expr(expr), env.computed if type(env) is Bindings else {}
    if type(env) is Bindings and id(e) not in memo:
        env.held.append(e)
    found: np.ndarray = _array(_value(e, env, memo))
    return found


def _value(e: Expr, env: Environment, memo: dict[int, Any]) -> Any:
    if isinstance(e, Const):
        return np.int64(e.value) if e.dtype.is_integer else e.value
    if id(e) in memo:
        return memo[id(e)]
    result: Any
    if isinstance(e, Var):
        if e.name not in env:
            raise TypeMismatch(
                expected=f"values for {', '.join(sorted(v.name for v in free_vars(e)))}",
                found=f"values for {', '.join(sorted(env)) or 'nothing'}",
            )
        value = _array(env[e.name])
        is_narrow = value.dtype.kind in "iu" and value.dtype != np.int64
        result = value.astype(np.int64) if is_narrow else value
    elif isinstance(e, Binary):
        links = [e]  # of a sum of many terms, deeper than Python recurses
        while isinstance(first := links[-1].a, Binary) and id(first) not in memo:
            links.append(first)
        result = _value(first, env, memo)
        for link in reversed(links):
            result = memo[id(link)] = _BINARY[link.op](result, _value(link.b, env, memo))
    elif isinstance(e, Unary):
        result = _UNARY[e.op](_value(e.a, env, memo))
    elif isinstance(e, Select):
        result = np.where(_value(e.cond, env, memo), _value(e.a, env, memo), _value(e.b, env, memo))
    elif isinstance(e, Cast):
        value = _array(_value(e.a, env, memo))
        result = value.astype(np.int64 if e.dtype.is_integer else np.float64)
    else:
        raise TypeMismatch(expected="a closed form of knobs and dimensions", found=f"`{e}`")
    memo[id(e)] = result
    return result


def _array(value: Any) -> Any:
    """Return a value as an array; what takes part in NumPy's functions as one stays as it is."""
    return value if hasattr(value, "__array_ufunc__") else np.asarray(value)


def free_vars(*exprs: Expr) -> frozenset[Var]:
    """Return every Var that occurs in ``exprs``."""
    return frozenset(v for e in exprs for v in walk_expr(e) if isinstance(v, Var))


def substitute(e: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Return ``e`` with Vars replaced, folded again on the way up."""
    if isinstance(e, Var):
        return values.get(e, e)
    if isinstance(e, Binary):
        return binary(e.op, substitute(e.a, values), substitute(e.b, values))
    if isinstance(e, Unary):
        return unary(e.op, substitute(e.a, values))
    if isinstance(e, Select):
        return select(*(substitute(x, values) for x in (e.cond, e.a, e.b)))
    if isinstance(e, Cast):
        return cast(substitute(e.a, values), e.dtype)
    return e


def product(factors: Iterable[ExprLike]) -> Expr:
    """Return the product of ``factors`` (1 if there are none)."""
    result: Expr = const(1)
    for factor in factors:
        result = binary("mul", result, factor)
    return result


def total(terms: Iterable[ExprLike]) -> Expr:
    """Return the sum of ``terms`` (0 if there are none)."""
    result: Expr = const(0)
    for term in terms:
        result = binary("add", result, term)
    return result


def ceildiv(a: ExprLike, b: ExprLike) -> Expr:
    """Return ``a / b`` rounded up."""
    return binary("floordiv", binary("sub", binary("add", a, b), 1), b)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """Return the smaller of two closed forms."""
    return binary("min", a, b)


def size_bytes(extents: Iterable[ExprLike], dtype: DType) -> Expr:
    """Return the bytes of a box of elements."""
    if dtype.is_packed:
        return ceildiv(product(extents), 8 // dtype.bits)
    return product((*extents, dtype.itemsize))
