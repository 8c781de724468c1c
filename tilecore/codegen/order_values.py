"""Values of TIR expressions in the event language: numbers, or functions of the threads."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx as tir

from tilecore.ordering.program import Env, Expression, Value

Known = Any  # int, an Expression, or None where it follows from data


def truncated(a: Value, b: Value) -> Value:
    """Return a / b, rounded towards zero."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        quotient = np.floor_divide(a, b)
        if _may_be_negative(a) or _may_be_negative(b):
            quotient = quotient + ((quotient < 0) & (quotient * b != a))
        return quotient
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def _may_be_negative(a: Value) -> bool:
    return bool(a.min() < 0) if isinstance(a, np.ndarray) else a < 0


def _remainder(a: Value, b: Value) -> Value:
    if _may_be_negative(a) or _may_be_negative(b):
        return a - truncated(a, b) * b
    return a % b


def _least(a: Value, b: Value) -> Value:
    is_array = isinstance(a, np.ndarray) or isinstance(b, np.ndarray)
    return np.minimum(a, b) if is_array else min(a, b)


def _most(a: Value, b: Value) -> Value:
    is_array = isinstance(a, np.ndarray) or isinstance(b, np.ndarray)
    return np.maximum(a, b) if is_array else max(a, b)


def _both(a: Value, b: Value) -> Value:
    is_array = isinstance(a, np.ndarray) or isinstance(b, np.ndarray)
    return np.logical_and(a, b) if is_array else bool(a and b)


def _either(a: Value, b: Value) -> Value:
    is_array = isinstance(a, np.ndarray) or isinstance(b, np.ndarray)
    return np.logical_or(a, b) if is_array else bool(a or b)


def negated(a: Value) -> Value:
    """Return not a."""
    return np.logical_not(a) if isinstance(a, np.ndarray) else not a


def selected(cond: Value, a: Value, b: Value) -> Value:
    """Return a where a condition holds, else b."""
    if cond is None:
        return None
    if not isinstance(cond, np.ndarray):
        return a if cond else b
    return None if a is None or b is None else np.where(cond, a, b)


BINARY: dict[type, Callable[[Value, Value], Value]] = {
    tir.Add: operator.add, tir.Sub: operator.sub, tir.Mul: operator.mul, tir.Div: truncated,
    tir.Mod: _remainder, tir.FloorDiv: operator.floordiv, tir.FloorMod: operator.mod,
    tir.Min: _least, tir.Max: _most, tir.EQ: operator.eq, tir.NE: operator.ne,
    tir.LT: operator.lt, tir.LE: operator.le, tir.GT: operator.gt, tir.GE: operator.ge,
    tir.And: _both, tir.Or: _either,
    tir.BitwiseAnd: operator.and_, tir.BitwiseOr: operator.or_, tir.BitwiseXor: operator.xor,
    tir.LShift: operator.lshift, tir.RShift: operator.rshift,
}  # fmt: skip
CALLS: dict[str, Callable[[Value, Value], Value]] = {
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "shift_left": operator.lshift, "shift_right": operator.rshift, "truncdiv": truncated,
    "truncmod": _remainder, "floordiv": operator.floordiv, "floormod": operator.mod,
}  # fmt: skip


def _result(operate: Callable[[Value, Value], Value], a: Value, b: Value) -> Value:
    """Return the value of an operation, or None where it has none, as in branches not taken."""
    try:
        with np.errstate(divide="ignore"):  # in threads that do not take the branch
            return operate(a, b)
    except (ZeroDivisionError, ValueError):  # ValueError: a shift by less than 0
        return None


def binary(operate: Callable[[Value, Value], Value], a: Known, b: Known) -> Known:
    """Return the value of an operation on two values."""
    if operate is _both and (a is None or b is None):
        return _partly(a if b is None else b, decides=False)
    if operate is _either and (a is None or b is None):
        return _partly(a if b is None else b, decides=True)
    if a is None or b is None:
        return None
    if not callable(a) and not callable(b):
        return _result(operate, a, b)
    one, other = expression(a), expression(b)
    held: list[Value] = [None, None, None]  # what depends on threads alone is computed once

    def run(env: Env) -> Value:
        x, y = one(env), other(env)
        if x is None or y is None:
            return None
        if x is not held[0] or y is not held[1]:
            held[:] = x, y, _result(operate, x, y)
        return held[2]

    return run


def _partly(known: Known, *, decides: bool) -> Known:
    """Return ``and`` (``or``) of a value and one that follows from data."""
    if known is None or not callable(known):
        return decides if known is not None and bool(known) == decides else None

    def run(env: Env) -> Value:
        x = known(env)
        if x is None or isinstance(x, np.ndarray):
            # Threads for which it is decided are; the others may go either way.
            return decides if x is not None and bool(np.all(x.astype(bool) == decides)) else None
        return decides if bool(x) == decides else None

    return run


def unary(operate: Callable[[Value], Value], a: Known) -> Known:
    """Return the value of an operation on one value."""
    if a is None:
        return None
    if not callable(a):
        return operate(a)

    def run(env: Env) -> Value:
        x = a(env)
        return None if x is None else operate(x)

    return run


def choice(cond: Known, a: Known, b: Known) -> Known:
    """Return one of two values."""
    if cond is None:
        return None
    if not callable(cond):
        return a if cond else b
    if a is None and b is None:
        return None
    one, other = expression(a), expression(b)
    return lambda env: selected(cond(env), one(env), other(env))


def expression(value: Known) -> Expression:
    """Return a value as a function."""
    return value if callable(value) else lambda env: value
