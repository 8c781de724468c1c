"""Dimensions of a call: values of the names in parameter shapes, read off the actual arguments."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType
from typing import Any

from tilecore.artifact import ParameterSpec
from tilecore.errors import ArgumentError
from tilecore.runtime.tensor import view

_OPERATORS = (
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.LShift, ast.RShift, ast.BitAnd,
    ast.BitOr, ast.BitXor,
)  # fmt: skip
_FUNCTIONS: Mapping[str, Callable[..., int]] = {"min": min, "max": max, "int32": int, "int64": int}
_GLOBALS = {"__builtins__": {}, **_FUNCTIONS}


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


@functools.lru_cache(maxsize=4096)
def _code(text: str) -> CodeType:
    """Return the code of an extent.

    Raises:
        ValueError: it is more than arithmetic on numbers and names.
    """
    node = _parse(text)
    if not _is_extent(node):
        raise ValueError(f"no extent: {ast.unparse(node)}")
    return compile(ast.Expression(node), "<extent>", "eval")


def _is_extent(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=int()) | ast.Name():
            return True
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_extent(operand)
        case ast.BinOp(left=left, op=op, right=right):
            return isinstance(op, _OPERATORS) and _is_extent(left) and _is_extent(right)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return name in _FUNCTIONS and all(map(_is_extent, args))
        case _:
            return False


def evaluate(extent: int | str, values: Mapping[str, int]) -> int:
    """Return the value of an extent: a number, a name, or an expression of names."""
    if isinstance(extent, int):
        return extent
    if extent in values:
        return values[extent]
    found: int = eval(_code(extent), _GLOBALS, values)  # arithmetic alone
    return found


def bind(parameters: Sequence[ParameterSpec], arguments: Sequence[Any]) -> dict[str, int]:
    """Return the value of each dimension.

    Args:
        parameters: the parameters of a kernel.
        arguments: one per parameter, None for outputs that are still to be made and for tensors
            that are not used.

    Raises:
        ArgumentError: a rank differs, or two tensors disagree about a dimension (TC402).
    """
    return bind_extents(
        parameters, [_extents(s, a) for s, a in zip(parameters, arguments, strict=True)]
    )


def _extents(spec: ParameterSpec, argument: Any) -> Any:
    if spec.kind == "scalar":
        return argument
    is_sized = spec.kind == "tensor" and argument is not None and not spec.is_static
    found = view(argument, spec.dtype) if is_sized else None
    return None if found is None else (found.shape, found.strides)


def bind_extents(parameters: Sequence[ParameterSpec], given: Sequence[Any]) -> dict[str, int]:
    """Return the value of each dimension.

    Args:
        parameters: the parameters of a kernel.
        given: per parameter the number of a scalar, shape and strides of a tensor in elements, or
            None.

    Raises:
        ArgumentError: a rank differs, or two tensors disagree about a dimension (TC402).
    """
    values: dict[str, int] = {}
    origin: dict[str, str] = {}
    linear: list[tuple[str, int]] = []
    for spec, number in zip(parameters, given, strict=True):
        if spec.kind == "scalar" and number is not None and "float" not in spec.dtype:
            values[spec.name], origin[spec.name] = int(number), "the scalar argument"
    for position, (spec, found) in enumerate(zip(parameters, given, strict=True)):
        if spec.kind != "tensor" or found is None or spec.is_static:
            continue
        shape, strides = found
        if len(shape) != len(spec.shape):
            raise ArgumentError(
                position=position,
                name=spec.name,
                expected=f"rank {len(spec.shape)} (shape {show(spec.shape)})",
                found=f"rank {len(shape)}",
            )
        actual = (*shape, *strides)
        for axis, name in enumerate((*spec.shape, *(spec.strides or ()))):
            if isinstance(name, int):
                continue
            if not name.isidentifier():
                linear.append((name, actual[axis]))
                continue
            if values.setdefault(name, actual[axis]) != actual[axis]:
                raise ArgumentError(
                    position=position,
                    name=spec.name,
                    expected=f"{name} = {values[name]}, as in {origin[name]}",
                    found=f"{name} = {actual[axis]} (shape {shape})",
                )
            origin.setdefault(name, f"`{spec.name}`")
    for text, size in linear:
        _solve(text, size, values)
    return values


def _solve(text: str, size: int, values: dict[str, int]) -> None:
    """Give the only unknown name of a linear expression the value that makes it ``size``."""
    unknown = _names(text) - values.keys()
    if len(unknown) != 1:
        return
    (name,) = unknown
    at = [evaluate(text, {**values, name: n}) for n in (0, 1, 2)]
    factor = at[1] - at[0]
    if factor > 0 and at[2] - at[1] == factor:
        values[name] = (size - at[0]) // factor


def output_shape(position: int, spec: ParameterSpec, values: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an output that the caller leaves out.

    Raises:
        ArgumentError: no input says how large it is (TC402).
    """
    unknown = missing(spec, values)
    if unknown:
        raise ArgumentError(
            position=position,
            name=spec.name,
            expected=f"its size: no input has an axis {', '.join(unknown)}",
            found="an output left out",
        )
    return tuple(evaluate(e, values) for e in spec.shape)


def missing(spec: ParameterSpec, values: Mapping[str, int]) -> list[str]:
    """Return the names in the shape of a parameter that have no value."""
    return sorted(names(spec) - values.keys())


def names(spec: ParameterSpec) -> set[str]:
    """Return the names in the shape and the strides of a parameter."""
    return names_in((*spec.shape, *(spec.strides or ())))


def names_in(extents: Iterable[int | str]) -> set[str]:
    """Return the names in some extents."""
    return {name for e in extents if isinstance(e, str) for name in _names(e)}


def with_absent(
    parameters: Sequence[ParameterSpec], arguments: Sequence[Any], values: Mapping[str, int]
) -> dict[str, int]:
    """Return ``values`` with 0 for the dimensions that only absent tensors have."""
    absent = [p for p, a in zip(parameters, arguments, strict=True) if a is None]
    return {**dict.fromkeys((n for p in absent for n in missing(p, values)), 0), **values}


def _names(text: str) -> set[str]:
    names = {n.id for n in ast.walk(_parse(text)) if isinstance(n, ast.Name)}
    return names - _FUNCTIONS.keys()


def show(shape: Sequence[int | str]) -> str:
    """Return a shape as people write it."""
    return "(" + ", ".join(str(e) for e in shape) + ("," if len(shape) == 1 else "") + ")"
