"""Addresses of elements (T.access_ptr, T.address_of), which foreign functions are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, ExprLike, Load, binary, cast, const, int_value
from tilecore.ir.nodes import Buffer, Region, Store

__all__ = ["Pointer", "access_ptr", "address_of", "tvm_access_ptr", "type_annotation"]


@dataclass(frozen=True, slots=True)
class Pointer:
    """The place of an element of a row-major tensor or tile; neighbours follow in its order.

    ``indices``: of that element, where no offset was added to it; else empty.
    """

    buffer: Buffer
    position: Expr
    indices: tuple[Expr, ...] = ()

    def load(self, distance: ExprLike = 0) -> Expr:
        """Return an element from here on."""
        return Load(self.buffer, self._indices(distance), self.buffer.dtype)

    def store(self, distance: ExprLike, value: ExprLike) -> None:
        """Set an element from here on, converted to the element type."""
        builder = current()
        kept = cast(value, self.buffer.dtype)
        builder.emit(Store(self.buffer, self._indices(distance), kept, builder.span))

    def byte(self, number: int) -> Expr:
        """Return a byte from here on as an int32 of 0 to 255; elements are integers."""
        size = self.buffer.dtype.itemsize
        whole = cast(self.load(number // size), "int64" if size == 8 else "int32")
        shifted = binary("shr", whole, 8 * (number % size))
        return cast(binary("bitand", shifted, 0xFF), "int32")

    def _indices(self, distance: ExprLike) -> tuple[Expr, ...]:
        rest = binary("add", self.position, distance)
        indices = []
        for extent in self.buffer.shape[:0:-1]:
            indices.append(binary("mod", rest, extent))
            rest = binary("floordiv", rest, extent)
        return (rest, *reversed(indices))  # the first axis tells what lies outside


def access_ptr(base: Any, access_type: str = "r", *extents: ExprLike, **options: Any) -> Pointer:
    """Return the address of an element, of a region's first one, or of a whole tile.

    Args:
        base: a tensor or tile, a slice, or an element.
        access_type: "r", "w" or "rw"; a hint.
        extents: how many elements are accessed; a hint.
        options: ``offset`` in elements, and hints of TVM.

    Raises:
        TypeMismatch: ``base`` is none of these, or has strides (TC202).
    """
    _ = extents
    if access_type not in ("r", "w", "rw"):
        raise TypeMismatch(expected='access_type "r", "w" or "rw"', found=repr(access_type))
    return _pointer(base, options.get("offset", 0))


def address_of(element: Any) -> Pointer:
    """Return the address of an element: ``T.address_of(A[i, j])``.

    Raises:
        TypeMismatch: not an element of a tensor or tile (TC202).
    """
    return _pointer(element, 0)


def type_annotation(dtype: Any) -> DType:
    """Return the element type that T.tvm_access_ptr takes."""
    return DType(dtype)


def tvm_access_ptr(
    ptype: Any, data: Any, offset: ExprLike, extent: ExprLike, rw_mask: int
) -> Pointer:
    """Return the address of an element of ``buffer.data``, as TVM says it.

    Args:
        ptype: the element type, that of the buffer.
        data: the memory of a tensor or tile.
        offset: which element, row by row.
        extent: how many elements are accessed; a hint.
        rw_mask: 1 to read, 2 to write, 3 for both; a hint.

    Raises:
        TypeMismatch: another type than the buffer's, or no memory of a buffer (TC202).
    """
    _ = (extent, rw_mask)
    if not isinstance(data, Buffer):
        raise TypeMismatch(expected="the memory of a buffer, as in A.data", found=f"{data}")
    if DType(ptype) != data.dtype:
        raise TypeMismatch(expected=f"the type of `{data.name}`, {data.dtype}", found=f"{ptype}")
    return _pointer(data, offset)


def _pointer(base: Any, offset: ExprLike) -> Pointer:
    indices: tuple[Expr, ...]
    if isinstance(base, Buffer):
        buffer, indices = base, tuple(const(0) for _ in base.shape)
    elif isinstance(base, Load):
        buffer, indices = base.buffer, base.indices
    elif isinstance(base, Region):
        buffer, indices = base.buffer, base.offsets
    else:
        raise TypeMismatch(expected="a tensor, tile or element", found=type(base).__name__)
    if buffer.strides is not None:
        raise TypeMismatch(expected="a row-major tensor", found=f"`{buffer.name}` with strides")
    position: Expr = const(0)
    for index, extent in zip(indices, buffer.shape, strict=True):
        position = binary("add", binary("mul", position, extent), index)
    kept = indices if int_value(offset) == 0 else ()
    return Pointer(buffer, binary("add", position, offset), kept)
