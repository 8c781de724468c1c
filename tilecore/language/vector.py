"""Vectors: T.float32x2(a, b), T.Broadcast, T.extract_lane, T.add2, T.ldg128, ..."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, ExprLike, Load, as_expr, binary, call, int_value, select
from tilecore.ir.indexing import grow
from tilecore.ir.nodes import Buffer, If, Region, Seq, Store
from tilecore.ir.vector import Vector, VectorType, places, reinterpret_lanes, vector

__all__ = [
    "Broadcast", "Ramp", "Shuffle", "Vector", "abs2", "add2", "extract_lane", "fma2", "max2",
    "min2", "mul2", "sub2",
]  # fmt: skip


def Broadcast(value: ExprLike, lanes: int) -> Vector:
    """Return a vector with ``value`` in every lane."""
    return Vector((as_expr(value),) * _count(lanes))


def Ramp(base: ExprLike, stride: ExprLike, lanes: int) -> Vector:
    """Return ``base``, ``base + stride``, ...: as an index, ``A[T.Ramp(i, 1, 4)]``, several places.

    Used as an index, lanes below 0 count from the end of the axis.
    """
    steps = (binary("mul", stride, i) for i in range(_count(lanes)))
    return Vector(tuple(binary("add", base, step) for step in steps))


def Shuffle(vectors: Sequence[Any], indices: Sequence[Any]) -> Any:
    """Return chosen lanes of vectors laid end to end; one lane is a scalar."""
    lanes = [lane for v in vectors for lane in vector(v).lanes]
    chosen = tuple(lanes[_lane(i, len(lanes))] for i in indices)
    return chosen[0] if len(chosen) == 1 else Vector(chosen)


def extract_lane(value: Any, lane: Any) -> Expr:
    """Return one lane of a vector.

    Raises:
        TypeMismatch: no vector, or a lane that it does not have (TC202).
    """
    if not isinstance(value, (Vector, Region)):
        raise TypeMismatch(expected="a vector", found=type(value).__name__)
    lanes = vector(value).lanes
    return lanes[_lane(lane, len(lanes))]


def _lane(index: Any, count: int) -> int:
    number = int_value(index) if isinstance(index, (int, Expr)) else None
    if number is None or not 0 <= number < count:
        raise TypeMismatch(expected=f"a known lane from 0 to {count - 1}", found=str(index))
    return number


def _count(lanes: Any) -> int:
    number = int_value(lanes)
    if number is None or number < 1:
        raise TypeMismatch(expected="a known number of lanes", found=str(lanes))
    return number


def _by_lane(op: str) -> Callable[[Any, Any], Vector]:
    def compute(a: Any, b: Any) -> Vector:
        return vector(a).map(lambda x, y: binary(op, x, y), b)

    compute.__doc__ = f"Return the `{op}` of two vectors lane by lane."
    return compute


add2, sub2, mul2, max2, min2 = (_by_lane(op) for op in ("add", "sub", "mul", "max", "min"))


def fma2(a: Any, b: Any, c: Any) -> Vector:
    """Return ``a * b + c`` lane by lane."""
    return vector(a).map(lambda x, y, z: binary("add", binary("mul", x, y), z), b, c)


def abs2(a: Any) -> Vector:
    """Return magnitudes lane by lane."""
    return vector(a).map(lambda x: call("abs", x))


# --- loads and stores of a given width ---------------------------------------------------------


def _row(element: Any, bits: int) -> Region | Vector:
    """Return the neighbours that ``bits`` hold, from an element on or of a slice."""
    if isinstance(element, Load):
        return grow(element, (as_expr(max(1, bits // element.dtype.bits)),))
    if not isinstance(element, (Region, Vector)):
        raise TypeMismatch(expected="an element or a slice", found=type(element).__name__)
    return element


def _buffer(row: Region | Vector) -> Buffer:
    """Return the tensor or tile that a row lies in."""
    found = row if isinstance(row, Region) else row.lanes[0]
    if not isinstance(found, (Region, Load)):
        raise TypeMismatch(expected="elements of a tensor or tile", found=str(row))
    return found.buffer


def _load(bits: int) -> Callable[..., Any]:
    kind = DType("uint32") if bits == 32 else VectorType(DType("uint32"), bits // 32)

    def load(source: Any, pred: Any = None) -> Any:
        row = _row(source, bits)
        found = vector(row)
        if pred is not None:
            found = found.map(lambda lane: select(pred, lane, 0))
        return reinterpret_lanes(found, kind)

    load.__doc__ = f"Return {bits} bits from an element on as {kind}; 0 where ``pred`` fails."
    return load


def _store(bits: int) -> Callable[..., None]:
    def store(target: Any, value: Any, pred: Any = None) -> None:
        row, builder = _row(target, bits), current()
        at, buffer = places(row), _buffer(row)
        element = buffer.dtype
        kind = VectorType(element, len(at)) if len(at) > 1 else element
        found = vector(reinterpret_lanes(value, kind))
        kept = [builder.let("lane", lane) for lane in found.lanes]
        stores = [Store(buffer, i, k, builder.span) for i, k in zip(at, kept, strict=True)]
        body = Seq(tuple(stores), builder.span)
        builder.emit(body if pred is None else If(as_expr(pred), body, span=builder.span))

    store.__doc__ = f"Store {bits} bits from an element on; nothing where ``pred`` fails."
    return store


BY_WIDTH = {
    f"{verb}{bits}": (_load if verb.startswith("ld") else _store)(bits)
    for verb in ("ldg", "stg", "lds", "sts")
    for bits in (32, 64, 128, 256)
}
