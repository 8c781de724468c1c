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
    ast.In: lambda a, b: _is_in(a, b), ast.NotIn: lambda a, b: ~_is_in(a, b),
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
        called = {node.func for node in nodes if isinstance(node, ast.Call)}
        looked_in = {n.comparators[-1] for n in nodes if isinstance(n, ast.Compare) and _ends_in(n)}
        for node in nodes:
            if node not in called:
                self._check(node, parameters)
            if isinstance(node, ast.Tuple | ast.List) and node not in looked_in:
                raise self._fault(f"`{ast.unparse(node)}`, in which nothing is looked for")
        self.names = {n.id for n in nodes if isinstance(n, ast.Name)} & set(parameters)

    def holds(self, columns: Columns, wanted: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
        """Return where the condition holds.

        Args:
            columns: values of the parameters, by name, which are broadcast against each other: a
                grid's, each along an axis of its own, are never copied out.
            wanted: the configurations of which it is asked; None: all. Others may get any value.

        Raises:
            InvalidExternalSpace: it does not compute with these values, or divides by zero where
                what stands before it has not settled the matter, as in Python (RC610).
        """
        if wanted is None:
            wanted = np.ones(np.broadcast_shapes(*(c.shape for c in columns.values())), bool)
        try:
            with np.errstate(all="ignore"):
                found = _value(self._tree, columns, wanted)
            return np.broadcast_to(_truth(found), wanted.shape)
        except (TypeError, ValueError, OverflowError) as error:
            raise self._fault(f"values it cannot compute with: {error}") from error
        except _DividedByZero as error:
            used = {name: np.broadcast_to(columns[name], wanted.shape) for name in self.names}
            row = ", ".join(f"{n} = {_shown(used[n].flat[error.at])}" for n in sorted(used))
            where = f" where {row}: ask for another value before" if row else ""
            raise self._fault(f"a division by zero{where}") from error

    def _check(self, node: ast.AST, parameters: Collection[str]) -> None:
        if isinstance(node, ast.Name):
            if node.id not in parameters:
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


class _DividedByZero(Exception):
    """An operation that Python refuses, in the configuration ``at`` of those that are asked of."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


def _value(node: ast.expr, columns: Columns, reached: NDArray[np.bool_]) -> Any:
    """Return values of an expression; ``reached``: the configurations of which it is wanted."""
    match node:
        case ast.Constant(value=value):
            return float(value) if isinstance(value, (int, float)) else value
        case ast.Name(id=name):
            return columns[name]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [_value(part, columns, reached) for part in parts]
        case ast.UnaryOp(op=operator, operand=operand):
            return _UNARY[type(operator)](_value(operand, columns, reached))
        case ast.BinOp(left=left, op=binary, right=right):
            a, b = _value(left, columns, reached), _value(right, columns, reached)
            if _is_text(a) or _is_text(b):  # NumPy joins them, however long they get
                raise TypeError("texts can only be compared")
            _refuse_zero(type(binary), a, b, reached)
            return _BINARY[type(binary)](a, b)
        case ast.BoolOp(op=logic, values=parts):
            return _until_settled(isinstance(logic, ast.And), parts, columns, reached)
        case ast.Compare(left=first, ops=operators, comparators=others):
            before, found = _value(first, columns, reached), np.ones(reached.shape, bool)
            for compare, other in zip(operators, others, strict=True):
                value = _value(other, columns, reached & found)
                found = found & _truth(_COMPARE[type(compare)](before, value))
                before = value
            return found
        case ast.Call(func=ast.Name(id=name), args=arguments):
            values = [_value(argument, columns, reached) for argument in arguments]
            return _CALLS[name](*values) if name == "abs" else _join(_CALLS[name], values)
    raise TypeError(f"`{type(node).__name__}` has no value")


def _until_settled(
    is_and: bool, parts: list[ast.expr], columns: Columns, reached: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return a conjunction or disjunction; a part is wanted where those before it left it open."""
    found = np.full(reached.shape, is_and)
    for part in parts:
        truth = _truth(_value(part, columns, reached & (found == is_and)))
        found = found & truth if is_and else found | truth
    return found


def _refuse_zero(operator: type[ast.operator], a: Any, b: Any, reached: NDArray[np.bool_]) -> None:
    """Raise where Python would: division by zero, and zero to a negative power."""
    if operator in (ast.Div, ast.FloorDiv, ast.Mod):
        fails = reached & (np.asarray(b) == 0)
    elif operator is ast.Pow:
        fails = reached & (np.asarray(a) == 0) & (np.asarray(b) < 0)
    else:
        return
    if fails.any():
        raise _DividedByZero(int(np.argmax(fails)))


def _is_in(value: Any, options: Any) -> NDArray[np.bool_]:
    if not isinstance(options, list):
        raise TypeError("`in` asks for values in brackets: (1, 2)")
    found = np.zeros((), bool)
    for option in options:
        found = found | (value == option)
    return found


def _ends_in(comparison: ast.Compare) -> bool:
    """Return whether a comparison ends with ``in (...)``, the one place for several values."""
    return isinstance(comparison.ops[-1], ast.In | ast.NotIn)


def _is_text(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "UO"


def _shown(value: Any) -> str:
    return repr(str(value)) if isinstance(value, str) else f"{value:g}"


def _truth(value: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.asarray(value).astype(bool)
    return found


def _join(function: Callable[[Any, Any], Any], values: list[Any]) -> Any:
    found = values[0]
    for value in values[1:]:
        found = function(found, value)
    return found
