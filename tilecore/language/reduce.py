"""Folding tiles: T.reduce_*, T.cumsum, T.cummax, T.any_of, T.all_of."""

from __future__ import annotations

from typing import Any

from tilecore.errors import ScopeError, ShapeMismatch, TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Load, const
from tilecore.ir.fold import REDUCE_OPS, check_fold
from tilecore.ir.indexing import format_shape, same_extents
from tilecore.ir.nodes import Buffer, Reduce, Region, Scan
from tilecore.language.copy import region

Notes = dict[str, Any] | None


def reduce(
    buffer: Any,
    out: Any,
    reduce_type: str,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    nan_propagate: bool = False,
    annotations: Notes = None,
) -> None:
    """Fold a tile along one axis: ``out (op)= fold of buffer along dim``.

    Args:
        buffer: the tile, whole or a slice.
        out: tile of the extents of ``buffer`` without ``dim``, or with 1 there; or a variable.
        reduce_type: one of sum, max, min, abssum, absmax, bitand, bitor, bitxor.
        dim: the axis; negative counts from the end.
        clear: drop the old value of ``out``; else it takes part.
        batch: hint, changes speed only; so does annotations.
        nan_propagate: a maximum or minimum over a NaN is NaN; else NaN is dropped.
        annotations: see batch.

    Raises:
        ShapeMismatch: ``dim`` or the shape of ``out`` does not fit (TC201).
        TypeMismatch: not a tile, or an operation that the element type does not have (TC202).
        ScopeError: inside T.Parallel (TC104).
    """
    _ = annotations
    if reduce_type not in REDUCE_OPS:
        raise TypeMismatch(expected=f"one of {', '.join(REDUCE_OPS)}", found=repr(reduce_type))
    check_batch(batch)
    name = f"T.reduce_{reduce_type}"
    source, target = region(buffer, f"the source of {name}"), region(out, f"the result of {name}")
    axes = (axis_of(source, dim),)
    _emit_reduce(reduce_type, source, target, axes, bool(clear), bool(nan_propagate))


def check_batch(batch: int) -> None:
    """Check the hint ``batch``.

    Raises:
        TypeMismatch: it is not a positive int (TC202).
    """
    if not isinstance(batch, int) or batch < 1:
        raise TypeMismatch(expected="batch >= 1", found=f"{batch!r}")


def axis_of(source: Region, dim: int) -> int:
    """Return ``dim`` counted from the front.

    Raises:
        ShapeMismatch: the tile has no such axis (TC201).
    """
    rank = len(source.extents)
    if not -rank <= dim < rank:
        what = f"axis of `{source.buffer.name}`"
        raise ShapeMismatch(what=what, expected=f"{-rank} to {rank - 1}", found=dim)
    return dim % rank


def _emit_reduce(
    op: str, source: Region, target: Region, axes: tuple[int, ...], clear: bool, nan: bool
) -> None:
    builder = current()
    if builder.find("parallel") is not None:
        raise ScopeError(
            message=f"a reduction of `{source.buffer.name}` stands inside T.Parallel",
            hint="fold with T.reduce_* outside of it, or with T.alloc_reducer",
        )
    check_fold(op, source, target, axes)
    builder.emit(Reduce(op, source, target, axes, clear, nan, builder.span))


def reduce_sum(
    buffer: Any,
    out: Any,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    annotations: Notes = None,
) -> None:
    """Add up a tile along ``dim``; 16-bit floats are added in float32 (see T.reduce)."""
    reduce(buffer, out, "sum", dim, clear, batch, annotations=annotations)


def reduce_max(
    buffer: Any,
    out: Any,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    nan_propagate: bool = False,
    annotations: Notes = None,
) -> None:
    """Take the maximum of a tile along ``dim`` (see T.reduce)."""
    reduce(buffer, out, "max", dim, clear, batch, nan_propagate, annotations)


def reduce_min(
    buffer: Any,
    out: Any,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    nan_propagate: bool = False,
    annotations: Notes = None,
) -> None:
    """Take the minimum of a tile along ``dim`` (see T.reduce)."""
    reduce(buffer, out, "min", dim, clear, batch, nan_propagate, annotations)


def reduce_abssum(
    buffer: Any,
    out: Any,
    dim: int = -1,
    batch: int = 1,
    annotations: Notes = None,
    clear: bool = True,
) -> None:
    """Add up the absolute values of a tile along ``dim`` (see T.reduce)."""
    reduce(buffer, out, "abssum", dim, clear, batch, annotations=annotations)


def reduce_absmax(
    buffer: Any,
    out: Any,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    nan_propagate: bool = False,
    annotations: Notes = None,
) -> None:
    """Take the maximum of the absolute values of a tile along ``dim`` (see T.reduce)."""
    reduce(buffer, out, "absmax", dim, clear, batch, nan_propagate, annotations)


def reduce_bitand(
    buffer: Any,
    out: Any,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    annotations: Notes = None,
) -> None:
    """Combine a tile of integers or bools by ``&`` along ``dim`` (see T.reduce)."""
    reduce(buffer, out, "bitand", dim, clear, batch, annotations=annotations)


def reduce_bitor(
    buffer: Any,
    out: Any,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    annotations: Notes = None,
) -> None:
    """Combine a tile of integers or bools by ``|`` along ``dim`` (see T.reduce)."""
    reduce(buffer, out, "bitor", dim, clear, batch, annotations=annotations)


def reduce_bitxor(
    buffer: Any,
    out: Any,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    annotations: Notes = None,
) -> None:
    """Combine a tile of integers or bools by ``^`` along ``dim`` (see T.reduce)."""
    reduce(buffer, out, "bitxor", dim, clear, batch, annotations=annotations)


# --- scans ------------------------------------------------------------------------------------


def _scan(op: str, src: Any, dst: Any, dim: int, reverse: bool) -> None:
    builder = current()
    source = region(src, f"the source of T.cum{op}")
    target = source if dst is None else region(dst, f"the result of T.cum{op}")
    if not same_extents(source.extents, target.extents):
        raise ShapeMismatch(
            what=f"T.cum{op} of `{source.buffer.name}` into `{target.buffer.name}`",
            expected=format_shape(source.extents),
            found=format_shape(target.extents),
        )
    axis = axis_of(source, dim)
    builder.emit(Scan(op, source, target, axis, bool(reverse), builder.span))


def cumsum(
    src: Any, dst: Any = None, dim: int = 0, reverse: bool = False, annotations: Notes = None
) -> None:
    """Replace each element by the sum up to it along ``dim``.

    Args:
        src: the tile, whole or a slice.
        dst: where to write; default: ``src`` itself.
        dim: the axis; negative counts from the end.
        reverse: sum from the end instead.
        annotations: hint, changes speed only.

    Raises:
        ShapeMismatch: ``dim`` or the shape of ``dst`` does not fit (TC201).
        TypeMismatch: not a tile (TC202).
    """
    _ = annotations
    _scan("sum", src, dst, dim, reverse)


def cummax(
    src: Any, dst: Any = None, dim: int = 0, reverse: bool = False, annotations: Notes = None
) -> None:
    """Replace each element by the maximum up to it along ``dim`` (see T.cumsum)."""
    _ = annotations
    _scan("max", src, dst, dim, reverse)


# --- predicates -------------------------------------------------------------------------------


def _predicate(op: str, name: str, buffer: Any) -> Load:
    builder = current()
    source = region(buffer, name)
    kind = DType("bool")
    found = builder.variable(
        Buffer("found", (const(1),), kind, "local", is_var=True, span=builder.span)
    )
    builder.fresh.pop(id(found), None)
    axes = tuple(range(len(source.extents)))
    _emit_reduce(op, source, region(found, name), axes, True, False)
    return found


def any_of(buffer: Any) -> Load:
    """Return whether any element of a tile is not 0.

    Raises:
        TypeMismatch: not a tile (TC202).
        ScopeError: inside T.Parallel (TC104).
    """
    return _predicate("bitor", "T.any_of", buffer)


def all_of(buffer: Any) -> Load:
    """Return whether all elements of a tile are not 0.

    Raises:
        TypeMismatch: not a tile (TC202).
        ScopeError: inside T.Parallel (TC104).
    """
    return _predicate("bitand", "T.all_of", buffer)
