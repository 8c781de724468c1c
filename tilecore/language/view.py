"""Other names for memory: T.reshape, T.view, T.ptr, T.make_tensor, T.match_buffer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilecore.errors import ShapeMismatch, TypeMismatch
from tilecore.frontend.builder import current
from tilecore.frontend.signature import PointerSpec, tensor_spec
from tilecore.ir.arithmetic.polynomial import is_equal, product
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Load, Pointer, Var, cast
from tilecore.ir.indexing import format_shape, is_whole
from tilecore.ir.nodes import Alloc, Buffer, Region
from tilecore.ir.vector import VectorType

COVERS = (
    "a view has all elements of its memory, as far as the shapes say; for other shapes take a flat "
    "view, and compute the index"
)
ptr = PointerSpec()
handle = ptr


def reshape(src: Any, shape: Any) -> Buffer:
    """Return the memory of ``src`` with another shape, in row-major order.

    Raises:
        ShapeMismatch: the number of elements is not known to be the same (TC201).
        TypeMismatch: ``src`` is no tensor or tile (TC202).
    """
    return view(src, shape)


def view(src: Any, shape: Any = None, dtype: Any = None, strides: Any = None) -> Buffer:
    """Return the memory of ``src`` with another shape or element type.

    Args:
        src: a contiguous tensor or a tile.
        shape: extents of the view; without it those of ``src``, the last one scaled to ``dtype``.
        dtype: element type, or a vector's, that the bytes are taken as; without it that of ``src``.
        strides: accepted where they are those of a row-major tensor.

    Raises:
        ShapeMismatch: the sizes in memory are not known to be the same (TC201).
        TypeMismatch: ``src`` is no tensor or tile, or has strides (TC202).
    """
    source = _buffer(src)
    vectors = VectorType.parse(dtype)
    if dtype is None and source.lanes > 1:
        vectors = VectorType(source.dtype, source.lanes)
    kind = vectors.element if vectors else source.dtype if dtype is None else DType(dtype)
    spec = tensor_spec(_extents(source, shape, kind, vectors), kind, strides)
    if spec.strides is not None and not _is_row_major(spec.shape, spec.strides):
        raise TypeMismatch(expected="row-major strides of T.view", found=format_shape(spec.strides))
    own, whole = product((*spec.shape, kind.bits)), product((*source.shape, source.dtype.bits))
    if source.strides is not None or not is_equal(own, whole):
        raise ShapeMismatch(
            what=f"T.view of `{source.name}`",
            expected=f"the size of {source.dtype}{format_shape(source.shape)}, contiguous",
            found=f"{kind}{format_shape(spec.shape)}",
            hint="" if source.strides is not None else COVERS,
        )
    return _emit(
        Buffer(
            "", spec.shape, kind, source.scope, base=source.root,
            lanes=vectors.lanes if vectors else 1,
        ), f"{source.name}_view",
    )  # fmt: skip


def _buffer(value: Any) -> Buffer:
    if isinstance(value, Region) and is_whole(value):
        return value.buffer
    if isinstance(value, Load) and value.buffer.is_var:
        return value.buffer
    if not isinstance(value, Buffer):
        raise TypeMismatch(expected="a tensor or tile", found=type(value).__name__)
    return value


def _extents(source: Buffer, shape: Any, kind: DType, vectors: VectorType | None) -> Any:
    """Return the extents of a view as elements are counted here: lanes are an axis of their own."""
    lanes = () if vectors is None else (vectors.lanes,)
    if shape is not None:
        return (*(shape if isinstance(shape, (tuple, list)) else (shape,)), *lanes)
    *leading, last = source.shape
    if source.lanes > 1:
        leading, last = leading[:-1], product((leading[-1], last))
    have, want = source.dtype.bits, kind.bits
    last = last // (want // have) if want > have else last * (have // want)
    return (*leading, last if vectors is None else last // vectors.lanes, *lanes)


def _is_row_major(shape: tuple[Expr, ...], strides: tuple[Expr, ...]) -> bool:
    expected = [product(shape[axis + 1 :]) for axis in range(len(shape))]
    return all(is_equal(a, b) for a, b in zip(expected, strides, strict=True))


def _emit(buffer: Buffer, default: str) -> Buffer:
    builder = current()
    found = replace(buffer, name=builder.take_hint(default), span=builder.span)
    builder.emit(Alloc(found, builder.span))
    return found


def make_tensor(ptr: Any, shape: Any, dtype: Any = None, strides: Any = None) -> Buffer:
    """Return the tensor that starts at the address ``ptr``.

    Args:
        ptr: a parameter annotated with T.ptr, or an integer expression (an element of a table of
            addresses).
        shape: extents, known or dynamic.
        dtype: element type; without it the one T.ptr names, else float32.
        strides: elements between neighbours along each axis; without it row-major.

    Raises:
        TypeMismatch: the address is no integer, or a bad extent or element type (TC202).
    """
    if not isinstance(ptr, Expr) or not ptr.dtype.is_integer:
        raise TypeMismatch(
            expected="an address (T.ptr or an integer)",
            found=f"{ptr}" if isinstance(ptr, Expr) else type(ptr).__name__,
            hint="the memory of a tensor in another shape is T.view(A, shape) or "
            "T.Tensor(shape, dtype, A.data)",
        )
    named = ptr.target if isinstance(ptr, Pointer) else None
    kind = dtype if dtype is not None else named or "float32"
    spec = tensor_spec(shape, kind, strides)
    address = cast(ptr, "int64")
    if not isinstance(address, Var):
        address = current().let("address", address)
    buffer = Buffer("", spec.shape, spec.dtype, strides=spec.strides, address=address)
    return _emit(buffer, "tensor")


def make_tensor_from_addr(
    addr: Any,
    shape: Any,
    dtype: Any = "float32",
    strides: Any = None,
    storage_scope: str = "global",
) -> Buffer:
    """Return the tensor at an address that is a number; see make_tensor.

    Raises:
        TypeMismatch: also if ``storage_scope`` is not "global" (TC202).
    """
    if storage_scope != "global":
        raise TypeMismatch(expected='storage_scope "global"', found=repr(storage_scope))
    return make_tensor(addr, shape, dtype, strides)


def match_buffer(
    param: Any, shape: Any = None, dtype: Any = "float32", strides: Any = None, **options: Any
) -> Buffer:
    """Return the tensor that a pointer parameter or tensor stands for, with a shape of its own.

    Args:
        param: a parameter annotated with T.ptr or T.handle, or a tensor.
        shape: extents.
        dtype: element type.
        strides: elements between neighbours along each axis; without it row-major.
        options: further keywords of TVM (``align``, ``scope``, ...), without effect here.
    """
    _ = options
    if isinstance(param, (Buffer, Region)):
        return view(param, shape, dtype, strides)
    return make_tensor(param, shape, dtype, strides)


__all__ = [
    "handle", "make_tensor", "make_tensor_from_addr", "match_buffer", "ptr", "reshape", "view",
]  # fmt: skip
