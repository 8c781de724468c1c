"""Conditions on parameters as people write them (``BM * BK * 2 <= 48 * 1024``), never as code.

The text is parsed, and only arithmetic, comparisons and logic on known names are let through; what
is left is evaluated by NumPy over all configurations at once.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recommender.errors import InvalidExternalSpace

MAX_LENGTH, MAX_NODES = 2000, 400
Columns = Mapping[str, NDArray[Any]]

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide, ast.Mod: np.mod, ast.Pow: np.float_power,
}  # fmt: skip
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b, ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b, ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: np.isin(a, b), ast.NotIn: lambda a, b: ~np.isin(a, b),
}  # fmt: skip
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: np.logical_not,
    ast.USub: np.negative,
    ast.UAdd: np.positive,
}
_CALLS: Mapping[str, Callable[..., Any]] = {"min": np.minimum, "max": np.maximum, "abs": np.abs}
ALLOWED = (
    "numbers, texts, parameters, + - * / // % **, comparisons, in, and, or, not, min, max, abs"
)


class Condition:
    """One condition, parsed and checked."""

    def __init__(self, text: str, parameters: Collection[str]) -> None:
        """Parse ``text``.

        Raises:
            InvalidExternalSpace: it is no such condition, or too long (RC610).
        """
        self.text = text
        try:
            if len(text) > MAX_LENGTH:
                raise SyntaxError(f"more than {MAX_LENGTH} characters")
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            raise self._fault(f"text that is no expression: {reason}") from error
        nodes = list(ast.walk(self._tree))
        if len(nodes) > MAX_NODES:
            raise self._fault(f"{len(nodes)} parts, more than {MAX_NODES}")
        for node in nodes:
            self._check(node, parameters)
        self.names = {n.id for n in nodes if isinstance(n, ast.Name)} & set(parameters)

    def holds(self, columns: Columns) -> NDArray[np.bool_]:
        """Return where the condition holds.

        Raises:
            InvalidExternalSpace: it does not compute with these values (RC610).
        """
        count = len(next(iter(columns.values())))
        try:
            with np.errstate(all="ignore"):
                found = _value(self._tree, columns)
            return np.broadcast_to(np.asarray(found).astype(bool), (count,))
        except (TypeError, ValueError) as error:
            raise self._fault(f"values it cannot compute with: {error}") from error

    def _check(self, node: ast.AST, parameters: Collection[str]) -> None:
        if isinstance(node, ast.Name):
            if node.id not in parameters and node.id not in _CALLS:
                known = ", ".join(parameters)
                raise self._fault(f"`{node.id}`, which is no parameter (there are {known})")
        elif isinstance(node, ast.Constant):
            if not isinstance(node.value, (bool, int, float, str)):
                raise self._fault(f"`{ast.unparse(node)}`")
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            fits = len(node.args) == 1 if name == "abs" else len(node.args) >= 1
            if name not in _CALLS or node.keywords or not fits:
                raise self._fault(f"`{ast.unparse(node)}`")
        elif not isinstance(node, _PARTS):
            raise self._fault(f"`{type(node).__name__}`")

    def _fault(self, found: str) -> InvalidExternalSpace:
        return InvalidExternalSpace(
            what=f"condition {self.text[:80]!r}", expected=ALLOWED, found=found
        )


_PARTS = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Tuple, ast.List, ast.Load, ast.And, ast.Or,
    *_BINARY, *_COMPARE, *_UNARY,
)  # fmt: skip


def _value(node: ast.expr, columns: Columns) -> Any:
    match node:
        case ast.Constant(value=value):
            return float(value) if isinstance(value, (int, float)) else value
        case ast.Name(id=name):
            return columns[name]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [_value(part, columns) for part in parts]
        case ast.UnaryOp(op=operator, operand=operand):
            return _UNARY[type(operator)](_value(operand, columns))
        case ast.BinOp(left=left, op=binary, right=right):
            return _BINARY[type(binary)](_value(left, columns), _value(right, columns))
        case ast.BoolOp(op=logic, values=parts):
            join = np.logical_and if isinstance(logic, ast.And) else np.logical_or
            return _join(join, [_value(part, columns) for part in parts])
        case ast.Compare(left=first, ops=operators, comparators=others):
            values = [_value(part, columns) for part in (first, *others)]
            pairs = zip(operators, values, values[1:], strict=False)
            return _join(np.logical_and, [_COMPARE[type(o)](a, b) for o, a, b in pairs])
        case ast.Call(func=ast.Name(id=name), args=arguments):
            values = [_value(argument, columns) for argument in arguments]
            return _CALLS[name](*values) if name == "abs" else _join(_CALLS[name], values)
    raise TypeError(f"`{type(node).__name__}` has no value")


def _join(function: Callable[[Any, Any], Any], values: list[Any]) -> Any:
    found = values[0]
    for value in values[1:]:
        found = function(found, value)
    return found
