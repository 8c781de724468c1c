"""Tiles that all iterations of a nest may update: T.alloc_reducer and what belongs to it."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from tilecore.errors import ShapeMismatch, TypeMismatch
from tilecore.frontend.builder import current
from tilecore.frontend.signature import tensor_spec
from tilecore.ir.expr import Load, cast, const
from tilecore.ir.fold import REDUCER_OPS, combine, identity
from tilecore.ir.indexing import format_shape, same_extents, whole
from tilecore.ir.nodes import Buffer, Copy, Fill, Region, Store
from tilecore.language.copy import region
from tilecore.language.reduce import check_batch


def alloc_reducer(shape: Any, dtype: Any, op: str = "sum", replication: Any = None) -> Buffer:
    """Return a tile that the iterations of a T.Parallel nest may all update by ``op``.

    Args:
        shape: extents in elements.
        dtype: element type.
        op: sum, max, min, bitand, bitor or bitxor.
        replication: hint of older programs, which update with ``r[i] += x``.

    Raises:
        ScopeError: outside ``with T.Kernel(...)`` (TC104).
        TypeMismatch: a bad extent, element type or operation (TC202).
    """
    _ = replication
    if op not in REDUCER_OPS:
        raise TypeMismatch(expected=f"one of {', '.join(REDUCER_OPS)}", found=repr(op))
    builder = current()
    spec = tensor_spec(shape, dtype, least=1)
    name = builder.take_hint("reducer")
    return builder.allocate(
        Buffer(name, spec.shape, spec.dtype, "fragment", reducer=op, span=builder.span)
    )


def _operation(reducer: Any, what: str) -> str:
    op = reducer.reducer if isinstance(reducer, Buffer) else None
    if op is None:
        found = f"`{reducer.name}`" if isinstance(reducer, Buffer) else type(reducer).__name__
        raise TypeMismatch(expected=f"what T.alloc_reducer returned for {what}", found=found)
    return str(op)


def reducer_init(reducer: Any, init: Any = None) -> None:
    """Set a reducer to the identity of its operation, or to ``init`` (a number or a tile).

    Raises:
        TypeMismatch: not a reducer (TC202).
        ShapeMismatch: the tile ``init`` has another shape (TC201).
    """
    op = _operation(reducer, "T.reducer_init")
    builder = current()
    if isinstance(init, (Buffer, Region)):
        _copy(region(init, "the start of T.reducer_init"), whole(reducer))
        return
    value = const(identity(op, reducer.dtype), reducer.dtype) if init is None else init
    builder.emit(Fill(whole(reducer), cast(value, reducer.dtype), builder.span))


def reducer_update(target: Any, value: Any) -> None:
    """Fold ``value`` into an element of a reducer: ``T.reducer_update(r[i], x)``.

    Raises:
        TypeMismatch: not an element of a reducer (TC202).
    """
    if not isinstance(target, Load):
        raise TypeMismatch(expected="an element such as r[i]", found=type(target).__name__)
    op = _operation(target.buffer, "T.reducer_update")
    builder = current()
    folded = combine(op, target, cast(value, target.dtype))
    builder.emit(Store(target.buffer, target.indices, folded, builder.span))


def finalize_reducer(
    reducer: Any, dst: Any = None, batch: int = 1, annotations: dict[str, Any] | None = None
) -> None:
    """End the updates of a reducer; its values go to ``dst``, or may be read from it after.

    Args:
        reducer: what T.alloc_reducer returned.
        dst: a tile of its shape, or None.
        batch: hint, changes speed only; so does annotations.
        annotations: see batch.

    Raises:
        TypeMismatch: not a reducer, or batch < 1 (TC202).
        ShapeMismatch: ``dst`` has another shape (TC201).
    """
    _ = annotations
    check_batch(batch)
    _operation(reducer, "T.finalize_reducer")
    if dst is not None:
        _copy(whole(reducer), region(dst, "the destination of T.finalize_reducer"))


def _copy(source: Region, target: Region) -> None:
    builder = current()
    if not same_extents(source.extents, target.extents):
        raise ShapeMismatch(
            what=f"`{target.buffer.name}`, which takes the values of `{source.buffer.name}`",
            expected=format_shape(source.extents),
            found=format_shape(target.extents),
        )
    builder.emit(Copy(source, target, MappingProxyType({}), builder.span))
