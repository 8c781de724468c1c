"""``tvm.tirx`` for programs written for TileLang, whose expressions are tilecore's here."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from tilecore import language
from tilecore.errors import UnknownPrimitive
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Const, Expr, Load, binary, const, unary
from tilecore.ir.expr import Var as Variable
from tilecore.ir.nodes import PrimFunc, Stmt
from tilecore.language import Cast, Select, reinterpret

__all__ = [
    "EQ", "GE", "GT", "LE", "LT", "NE", "Add", "And", "BufferLoad", "Cast", "Div", "FloatImm",
    "FloorDiv", "FloorMod", "IntImm", "Max", "Min", "Mul", "Not", "Or", "PrimExpr", "PrimFunc",
    "Select", "Stmt", "Sub", "Var", "all", "any", "const", "expr", "reinterpret",
]  # fmt: skip

expr = sys.modules[__name__]  # `tvm.tirx.expr` has the same names

PrimExpr, BufferLoad = Expr, Load


def Var(name: str, dtype: Any = "int32") -> Variable:
    """Return a named scalar."""
    return Variable(name, DType(dtype))


def IntImm(dtype: Any, value: int) -> Const:
    """Return an integer literal."""
    return const(value, dtype)


def FloatImm(dtype: Any, value: float) -> Const:
    """Return a float literal."""
    return const(value, dtype)


def Min(a: Any, b: Any) -> Expr:
    """Return the smaller value."""
    return binary("min", a, b)


def Max(a: Any, b: Any) -> Expr:
    """Return the larger value."""
    return binary("max", a, b)


def _operator(op: str) -> Callable[[Any, Any], Expr]:
    def compute(a: Any, b: Any) -> Expr:
        return binary(op, a, b)

    compute.__doc__ = f"Return `a {op} b`."
    return compute


Add, Sub, Mul, Div, FloorDiv, FloorMod = (
    _operator(op) for op in ("add", "sub", "mul", "div", "floordiv", "mod")
)
EQ, NE, LT, LE, GT, GE = (_operator(op) for op in ("eq", "ne", "lt", "le", "gt", "ge"))
And, Or = _operator("and"), _operator("or")


def Not(a: Any) -> Expr:
    """Return whether ``a`` does not hold."""
    return unary("not", a)


def all(*conditions: Any) -> Any:
    """Return whether all conditions hold."""
    found: Expr = const(True)
    for condition in conditions:
        found = binary("and", found, condition)
    return found


def any(*conditions: Any) -> Any:
    """Return whether one of the conditions holds."""
    found: Expr = const(False)
    for condition in conditions:
        found = binary("or", found, condition)
    return found


def __getattr__(name: str) -> Any:
    """Return a function of the tile language, or what is TVM's alone."""
    try:
        return getattr(language, name)
    except UnknownPrimitive:
        return getattr(importlib.import_module("tvm.tirx"), name)
