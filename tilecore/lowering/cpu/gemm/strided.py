"""Operands of a gemm as two axes in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilecore.ir.analysis import kept_axes
from tilecore.ir.expr import const
from tilecore.ir.nodes import Region
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.place import Place
from tilecore.lowering.tir import TirBuilder, add, minimum, mul


@dataclass(frozen=True, slots=True)
class Strided:
    """A 2-D operand in memory: element (i, j) lies at base + i * row + j * column."""

    place: Place
    base: Any
    row: Any
    column: Any

    def at(self, i: Any, j: Any) -> Any:
        """Return the offset of element (i, j)."""
        return add(self.base, add(mul(i, self.row), mul(j, self.column)))

    def begun(self, builder: TirBuilder, i: Any, j: Any) -> Strided:
        """Return the operand from element (i, j) on.

        Offsets of numbers from there are one addition each: what LLVM takes for a kernel goes with
        the size of its addresses.
        """
        return replace(self, base=builder.bind(self.at(i, j)))

    def flushing(self) -> Strided:
        """Return the operand where subnormal bfloat16 numbers may be stored as 0."""
        is_rounded = self.place.storage.dtype == "bfloat16"
        return replace(self, place=replace(self.place, flushes=is_rounded))


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Some rows of an operand: column k of the i-th lies at first + apart[i] + k * column."""

    first: Any
    apart: tuple[Any, ...]
    column: Any

    def begun(self, builder: TirBuilder, k: Any) -> RowGroup:
        """Return the rows from column k on."""
        return replace(self, first=builder.bind(add(self.first, mul(k, self.column))))

    def at(self, i: int, k: int = 0) -> Any:
        """Return the offset of column k of the i-th row."""
        return add(self.first, add(self.apart[i], mul(k, self.column)))


def row_group(builder: TirBuilder, operand: Strided, row: Any, size: int) -> RowGroup:
    """Return ``size`` rows of an operand from ``row`` on."""
    apart = tuple(builder.bind(mul(i, operand.row)) for i in range(size))
    return RowGroup(builder.bind(operand.at(row, 0)), apart, operand.column)


def rows_within(builder: TirBuilder, operand: Strided, row: Any, size: int, limit: Any) -> RowGroup:
    """Return ``size`` rows of an operand from ``row`` on, the last one for those from it on."""
    rows = [builder.bind(minimum(add(row, i), add(limit, -1))) for i in range(size)]
    return RowGroup(0, tuple(builder.bind(operand.at(r, 0)) for r in rows), operand.column)


def strided(accessor: Accessor, region: Region, transposed: bool) -> Strided:
    """Return the last two axes of a region as a strided operand (i, j), swapped if transposed."""
    place = accessor.places[region.buffer]
    origin = place.indices(region.offsets)
    offset, _ = accessor.offset(place, origin)
    storage = place.storage
    axes = _axes(place)[-2:] if place.shift else (len(storage.shape) - 2, len(storage.shape) - 1)
    steps = [accessor.step(place, axis) for axis in axes]
    row, column = (steps[1], steps[0]) if transposed else (steps[0], steps[1])
    return Strided(place, accessor.builder.bind(offset), row, column)


def _axes(place: Place) -> tuple[int, ...]:
    return tuple(axis for axis in place.axes if axis is not None)


def box_place(
    accessor: Accessor, region: Region, axes: tuple[int | None, ...] | None = None
) -> Place:
    """Return the place of a tile that is a box of a tensor and runs along ``axes`` of it."""
    origin = accessor.places[region.buffer]
    kept = kept_axes(region) if axes is None else axes
    return replace(origin, shift=region.offsets, axes=kept, guarded=True)


def boxed(accessor: Accessor, region: Region) -> Strided:
    """Return a box of a tensor with two axes as a strided operand."""
    place = box_place(accessor, region)
    offset, _ = accessor.offset(place, place.indices((const(0), const(0))))
    row, column = (accessor.step(place, axis) for axis in _axes(place))
    return Strided(place, accessor.builder.bind(offset), row, column)
