"""Values of several lanes, such as a float32x2: tuples of scalar expressions while tracing.

Lanes are computed one by one; the lowering finds its own vectors. In memory a vector is its lanes
side by side.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilecore.errors import ShapeMismatch, TypeMismatch
from tilecore.ir.dtype import DType
from tilecore.ir.expr import (
    Expr,
    Load,
    as_expr,
    binary,
    cast,
    int_value,
    reinterpret,
    unary,
)
from tilecore.ir.nodes import Buffer, Region

_NAME = re.compile(r"((?:bfloat|float|u?int)\d+(?:_e\dm\d\w*?)?)x(\d+)")
MOST = 128


@dataclass(frozen=True, slots=True)
class VectorType:
    """The type of a vector: ``lanes`` elements."""

    element: DType
    lanes: int

    @classmethod
    def parse(cls, name: Any) -> VectorType | None:
        """Return the type of a name such as "float32x2"; None if it is no vector's."""
        if isinstance(name, VectorType):
            return name
        found = _NAME.fullmatch(name) if isinstance(name, str) else None
        if found is None or not 2 <= int(found[2]) <= MOST:
            return None
        return cls(DType(found[1]), int(found[2]))

    @property
    def bits(self) -> int:
        """Width of all lanes."""
        return self.element.bits * self.lanes

    def as_torch(self) -> Any:
        """Return torch's dtype of the pair of 4-bit floats, the one vector that torch has.

        Raises:
            TypeMismatch: another vector (TC202).
        """
        if str(self) != "float4_e2m1fnx2":
            raise TypeMismatch(expected="a type that torch has", found=str(self))
        return self.element.as_torch()

    def __call__(self, *values: Any) -> Vector:
        """Return the vector of one value per lane, of one value in all, or of a vector converted.

        Raises:
            TypeMismatch: another number of values (TC202).
        """
        given: tuple[Any, ...] = values
        if len(values) == 1:
            only = values[0]
            is_many = isinstance(only, (Vector, Region))
            given = vector(only).lanes if is_many else (only,) * self.lanes
        if len(given) != self.lanes:
            raise TypeMismatch(expected=f"{self.lanes} values of {self}", found=len(given))
        return Vector(tuple(cast(v, self.element) for v in given))

    def __str__(self) -> str:
        return f"{self.element}x{self.lanes}"


@dataclass(frozen=True, slots=True, eq=False)
class Vector:
    """Lanes of one type; ``variable`` holds them if it is what T.alloc_var returned."""

    lanes: tuple[Expr, ...]
    variable: Buffer | None = None

    @property
    def dtype(self) -> VectorType:
        """The type."""
        return VectorType(self.lanes[0].dtype, len(self.lanes))

    def map(self, function: Callable[..., Expr], *others: Any) -> Vector:
        """Return a function of the lanes, and of those of other vectors or of scalars.

        Raises:
            ShapeMismatch: vectors of other lengths (TC201).
        """
        columns = [self._spread(other) for other in others]
        return Vector(tuple(function(*lane) for lane in zip(self.lanes, *columns, strict=True)))

    def _spread(self, other: Any) -> tuple[Any, ...]:
        if not isinstance(other, (Vector, Region)):
            return (other,) * len(self.lanes)
        found = vector(other)
        if len(found.lanes) != len(self.lanes):
            raise ShapeMismatch(what="vectors", expected=str(self.dtype), found=str(found.dtype))
        return found.lanes

    def __add__(self, other: Any) -> Vector:
        return self.map(lambda a, b: binary("add", a, b), other)

    def __radd__(self, other: Any) -> Vector:
        return self.map(lambda a, b: binary("add", b, a), other)

    def __sub__(self, other: Any) -> Vector:
        return self.map(lambda a, b: binary("sub", a, b), other)

    def __rsub__(self, other: Any) -> Vector:
        return self.map(lambda a, b: binary("sub", b, a), other)

    def __mul__(self, other: Any) -> Vector:
        return self.map(lambda a, b: binary("mul", a, b), other)

    def __rmul__(self, other: Any) -> Vector:
        return self.map(lambda a, b: binary("mul", b, a), other)

    def __truediv__(self, other: Any) -> Vector:
        return self.map(lambda a, b: binary("div", a, b), other)

    def __neg__(self) -> Vector:
        return self.map(lambda a: unary("neg", a))


def vector(value: Any) -> Vector:
    """Return a vector, a row of a tensor or tile, or a scalar, as a vector.

    Raises:
        TypeMismatch: another value, or a region that is no row of known length (TC202).
    """
    if isinstance(value, Vector):
        return value
    if isinstance(value, Region):
        return Vector(tuple(Load(value.buffer, at, value.buffer.dtype) for at in places(value)))
    if isinstance(value, (Expr, int, float)):
        return Vector((as_expr(value),))
    raise TypeMismatch(expected="a vector, a slice or a number", found=type(value).__name__)


def places(region: Region | Vector) -> list[tuple[Expr, ...]]:
    """Return the indices of the elements of a row, or of a vector of elements.

    Raises:
        TypeMismatch: several axes vary, or by an unknown number (TC202).
    """
    if isinstance(region, Vector):
        return [lane.indices for lane in region.lanes if isinstance(lane, Load)]
    sizes = [int_value(e) for e in region.extents]
    long = [axis for axis, size in enumerate(sizes) if size != 1]
    count = sizes[long[0]] if long else 1
    if len(long) > 1 or count is None or not 1 <= count <= MOST:
        shown = ", ".join(str(e) for e in region.extents)
        raise TypeMismatch(
            expected=f"a slice of 1 to {MOST} neighbours as a vector",
            found=f"`{region.buffer.name}`, extents ({shown})",
        )
    axis = long[0] if long else len(sizes) - 1
    found = []
    for i in range(count):
        indices = list(region.offsets)
        indices[axis] = binary("add", indices[axis], i)
        found.append(tuple(indices))
    return found


def reinterpret_lanes(value: Any, target: VectorType | DType) -> Vector | Expr:
    """Return the bits of a vector (the first lane lowest) as values of another type.

    Raises:
        TypeMismatch: the sizes differ, or there are bools (TC202).
    """
    source = vector(value)
    kind = target.element if isinstance(target, VectorType) else target
    if source.dtype.bits != target.bits or "bool" in (source.dtype.element, kind):
        raise TypeMismatch(expected=f"{target.bits} bits for {target}", found=str(source.dtype))
    lanes = list(_split(source.lanes, kind) if source.lanes[0].dtype.bits > kind.bits
                 else _joined(source.lanes, kind))  # fmt: skip
    return Vector(tuple(lanes)) if isinstance(target, VectorType) else lanes[0]


def _split(lanes: tuple[Expr, ...], kind: DType) -> list[Expr]:
    wide, part = DType(f"uint{lanes[0].dtype.bits}"), DType(f"uint{kind.bits}")
    found = []
    for lane in lanes:
        bits = reinterpret(lane, wide)
        for shift in range(0, wide.bits, kind.bits):
            piece = binary("bitand", binary("shr", bits, shift), (1 << kind.bits) - 1)
            found.append(reinterpret(cast(piece, part), kind))
    return found


def _joined(lanes: tuple[Expr, ...], kind: DType) -> list[Expr]:
    part, wide = DType(f"uint{lanes[0].dtype.bits}"), DType(f"uint{kind.bits}")
    count = kind.bits // part.bits
    found = []
    for first in range(0, len(lanes), count):
        total = cast(reinterpret(lanes[first], part), wide)
        for i in range(1, count):
            piece = cast(reinterpret(lanes[first + i], part), wide)
            total = binary("bitor", total, binary("shl", piece, i * part.bits))
        found.append(reinterpret(total, kind))
    return found
