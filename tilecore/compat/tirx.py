"""``tvm.tirx`` for programs written for TileLang, whose expressions are tilecore's here."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tilecore import language
from tilecore.compat import stmt_functor
from tilecore.errors import UnknownPrimitive
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Const, Expr, Load, binary, const
from tilecore.ir.expr import Var as Variable
from tilecore.ir.nodes import PrimFunc, Stmt
from tilecore.language import Cast, Select, reinterpret

__all__ = [
    "BufferLoad", "Cast", "FloatImm", "IntImm", "PrimExpr", "PrimFunc", "Select",
    "Stmt", "Var", "all", "any", "const", "expr", "reinterpret",
    "stmt_functor",
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
