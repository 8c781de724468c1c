"""Memory: T.alloc_shared, T.alloc_fragment, T.alloc_local, T.alloc_global, T.alloc_var."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import ml_dtypes

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import current
from tilecore.frontend.signature import TensorSpec, tensor_spec
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Load, cast, const
from tilecore.ir.nodes import Alloc, Buffer, Store
from tilecore.ir.vector import Vector, VectorType


def _allocate(shape: Any, dtype: Any, scope: str, default: str) -> Buffer:
    builder = current()
    spec, lanes = elements(shape, dtype)
    name = builder.take_hint(default)
    return builder.allocate(
        Buffer(name, spec.shape, spec.dtype, scope, span=builder.span, lanes=lanes)
    )


def elements(shape: Any, dtype: Any) -> tuple[TensorSpec, int]:
    """Return the spec of a tile, and how many elements lie side by side in a vector of it.

    Raises:
        TypeMismatch: a bad extent or element type (TC202).
    """
    kind = VectorType.parse(dtype)
    if kind is None:
        return tensor_spec(shape, dtype, least=1), 1
    extents = shape if isinstance(shape, (tuple, list)) else (shape,)
    return tensor_spec((*extents, kind.lanes), kind.element, least=1), kind.lanes


def alloc_shared(shape: Any, dtype: Any, scope: str = "shared.dyn") -> Buffer:
    """Return a tile that all threads of a block share; its contents are undefined.

    Args:
        shape: extents in elements.
        dtype: element type, or a vector's ("float32x4"): then an index names a vector.
        scope: "shared.dyn" or "shared"; no difference here.

    Raises:
        ScopeError: outside ``with T.Kernel(...)`` (TC104).
        TypeMismatch: a bad extent, element type or scope (TC202).
    """
    if scope not in ("shared", "shared.dyn"):
        raise TypeMismatch(expected='scope "shared" or "shared.dyn"', found=repr(scope))
    return _allocate(shape, dtype, "shared", "shared")


def alloc_fragment(shape: Any, dtype: Any, scope: str = "local.fragment") -> Buffer:
    """Return a tile kept in the registers of a block; its contents are undefined.

    With scope "local" it is what T.alloc_local returns.

    Raises:
        ScopeError: outside ``with T.Kernel(...)`` (TC104).
        TypeMismatch: a bad extent, element type or scope (TC202).
    """
    if scope not in ("local.fragment", "local"):
        raise TypeMismatch(expected='scope "local.fragment" or "local"', found=repr(scope))
    return _allocate(shape, dtype, "local" if scope == "local" else "fragment", "fragment")


def alloc_local(shape: Any, dtype: Any, scope: str = "local") -> Buffer:
    """Return a small private array; its contents are undefined.

    Raises:
        ScopeError: outside ``with T.Kernel(...)`` (TC104).
        TypeMismatch: a bad extent, element type or scope (TC202).
    """
    if scope != "local":
        raise TypeMismatch(expected='scope "local"', found=repr(scope))
    return _allocate(shape, dtype, "local", "local")


def alloc_global(shape: Any, dtype: Any, scope: str = "global") -> Buffer:
    """Return a workspace in main memory that lives through all kernel launches of the program.

    One for all blocks; its contents are undefined. The shape may be dynamic.

    Raises:
        TypeMismatch: a bad extent, element type or scope (TC202).
    """
    if scope != "global":
        raise TypeMismatch(expected='scope "global"', found=repr(scope))
    builder = current()
    spec, lanes = elements(shape, dtype)
    found = spec.buffer(builder.take_hint("workspace"))
    buffer = replace(found, span=builder.span, lanes=lanes)
    builder.frames[0].stmts.append(Alloc(buffer, builder.span))
    return buffer


def alloc_buffer(
    shape: Any, dtype: Any = "float32", scope: str = "global", **options: Any
) -> Buffer:
    """Return memory of a scope by TVM's name: a workspace, or a shared, fragment or local tile.

    Args:
        shape: extents in elements.
        dtype: element type.
        scope: "global", "shared", "shared.dyn", "local.fragment" or "local".
        options: keywords of TVM (``align``, ...), without effect here.

    Raises:
        TypeMismatch: a bad extent, element type or scope (TC202).
    """
    _ = options
    if scope.startswith("shared"):
        return alloc_shared(shape, dtype, scope)
    if scope.startswith("local"):
        return alloc_fragment(shape, dtype, scope)
    return alloc_global(shape, dtype, scope)


def alloc_var(dtype: Any, *init: Any, scope: str = "local.var", **keywords: Any) -> Any:
    """Return a scalar variable: ``x = T.alloc_var("int32", init=1)``; later ``x = ...`` stores.

    Without ``init`` it starts at 0, which programs for TileLang rely on. One of a vector type
    (T.float32x2) is a vector to be assigned as a whole.

    Raises:
        ScopeError: outside ``with T.Kernel(...)`` (TC104).
        TypeMismatch: a bad element type, or unknown keywords (TC202).
    """
    value = keywords.pop("init", init[0] if init else 0)
    if keywords or len(init) > 1 or scope != "local.var":
        raise TypeMismatch(expected="T.alloc_var(dtype, init)", found=f"{[*init, *keywords]}")
    builder = current()
    lanes = VectorType.parse(dtype)
    if lanes is not None:
        return _vector(lanes, value)
    kind = DType(dtype)
    name = builder.take_hint("var")
    buffer = Buffer(name, (const(1),), kind, "local", is_var=True, span=builder.span)
    if isinstance(value, float) and kind.is_float and math.isfinite(value):
        largest = float(ml_dtypes.finfo(kind.numpy).max)
        if abs(value) > largest:
            raise TypeMismatch(
                expected=f"an initial value of `{name}` within {kind}",
                found=f"{value}, which exceeds maximum of {kind} ({largest:.6g})",
            )
    variable = builder.variable(buffer)
    builder.emit(Store(buffer, variable.indices, cast(value, kind), builder.span))
    return variable


def _vector(kind: VectorType, value: Any) -> Vector:
    """Return a variable of several lanes."""
    builder = current()
    buffer = _allocate((kind.lanes,), kind.element, "local", "vector")
    places = [Load(buffer, (const(i),), kind.element) for i in range(kind.lanes)]
    for place, lane in zip(places, kind(value).lanes, strict=True):
        builder.emit(Store(buffer, place.indices, lane, builder.span))
    return Vector(tuple(places), buffer)
