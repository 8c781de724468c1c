"""Storage: where each element of a tile or tensor lies in memory on a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilecore.errors import UnsupportedOnTarget
from tilecore.ir.arithmetic.bounds import step_of
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Var, binary, cast, const
from tilecore.ir.nodes import Buffer
from tilecore.target import Target

CACHE_LINE_BYTES = 64
# Tiles without views keep 4-bit elements in types of their own: none shares a byte.
UNPACKED = {"int4": "int8", "uint4": "uint8", "float4_e2m1fn": "float16"}


@dataclass(frozen=True, slots=True)
class Storage:
    """Rows with a padded leading dimension, or panels of ``width`` lanes.

    rows:   offset(i.., j) = row_major(i..) * leading + j
    panels: offset(k, n) = (n // width) * depth * width + k * width + n % width, where n runs along
            ``axis`` and k along the other one; the vector operand of a gemm is kept so.
            With groups, k // group takes the place of k, and each lane holds the group's elements.
    """

    shape: tuple[int, ...]
    dtype: str
    kind: str = "rows"  # "rows" | "panels"
    leading: int = 0  # rows: elements from one row to the next
    axis: int = 1  # panels: the axis cut into panels
    width: int = 0  # panels: elements of ``axis`` per panel
    spare: int = 0  # rows that may not be padded: elements after the last row
    group: int = 1  # panels: neighbours along k in one lane
    beyond: int = 0  # rows: further ones, which vectors along the rows may read

    @property
    def depth(self) -> int:
        """Panels: elements along k, whole groups."""
        return math.ceil(self.shape[1 - self.axis] / self.group) * self.group

    @property
    def size(self) -> int:
        """Elements of memory, padding included."""
        if self.kind == "panels":
            return math.ceil(self.shape[self.axis] / self.width) * self.depth * self.width
        return (math.prod(self.shape[:-1]) + self.beyond) * self.leading + self.spare

    def offset(self, indices: Sequence[Expr | int]) -> Expr:
        """Return the flat offset of an element."""
        if self.kind == "panels":
            n, k = indices[self.axis], indices[1 - self.axis]
            panel = binary("mul", binary("floordiv", n, self.width), self.depth * self.width)
            lane = binary("mod", n, self.width)
            if self.group > 1:
                row = binary("mul", binary("floordiv", k, self.group), self.width * self.group)
                place = binary("add", binary("mul", lane, self.group), binary("mod", k, self.group))
                return binary("add", panel, binary("add", row, place))
            return binary("add", panel, binary("add", binary("mul", k, self.width), lane))
        flat: Expr = const(0)
        if not self.shape:
            return flat
        for extent, index in zip(self.shape[:-1], indices[:-1], strict=True):
            flat = binary("add", binary("mul", flat, extent), index)
        return binary("add", binary("mul", flat, self.leading), indices[-1])

    def step(self, axis: int) -> int:
        """Return the elements from one index of ``axis`` to the next (rows)."""
        if axis == len(self.shape) - 1:
            return 1
        return self.leading * math.prod(self.shape[axis + 1 : -1])

    def describe(self) -> str:
        """Return the storage in words."""
        if self.kind == "panels":
            groups = f" of groups of {self.group}" if self.group > 1 else ""
            return f"panels of {self.width} along axis {self.axis}{groups} ({self.dtype})"
        pad = self.leading - self.shape[-1]
        return f"rows, leading dimension {self.leading} (+{pad}) ({self.dtype})"


@dataclass(frozen=True, slots=True)
class TensorStorage:
    """A tensor whose extents or strides are known only at run time, or that is very large.

    offset(i..) = sum(i * stride), in int64.
    """

    shape: tuple[Expr | int, ...]
    dtype: str
    strides: tuple[Expr | int, ...]
    kind: str = "tensor"

    def offset(self, indices: Sequence[Expr | int]) -> Expr:
        """Return the flat offset of an element."""
        flat: Expr = const(0, "int64")
        for index, stride in zip(indices, self.strides, strict=True):
            flat = binary("add", flat, binary("mul", cast(index, "int64"), stride))
        return flat

    def step(self, axis: int) -> Expr | int:
        """Return the elements from one index of ``axis`` to the next."""
        return self.strides[axis]

    def lane_distance(self, indices: Sequence[Expr], var: Var) -> int | None:
        """Return how the offset grows with ``var``; None: not by a known number."""
        total = 0
        for index, stride in zip(indices, self.strides, strict=True):
            factor = step_of(index, var)
            if factor is None or (factor and not isinstance(stride, int)):
                return None
            total += factor * stride if isinstance(stride, int) else 0
        return total


def rows(shape: tuple[int, ...], dtype: str, itemsize: int, lanes: int) -> Storage:
    """Return row storage whose leading dimension is whole vectors and an odd number of cache lines.

    An even number (above all a power of two) puts the rows of a micro-tile into few cache sets:
    82 instead of 107 GFLOP/s at 1000^3 (one thread of AMD Zen 4, 2026-11-20).
    """
    leading = math.ceil(shape[-1] / lanes) * lanes if len(shape) > 1 else shape[-1]
    per_line = CACHE_LINE_BYTES // itemsize
    if len(shape) > 1 and shape[-1] >= 4 * per_line:
        lines = math.ceil(leading / per_line)
        leading = (lines + 1 - lines % 2) * per_line
    return Storage(shape, dtype, "rows", leading)


def panels(shape: tuple[int, ...], dtype: str, axis: int, width: int, group: int = 1) -> Storage:
    """Return panel storage along ``axis``."""
    return Storage(shape, dtype, "panels", axis=axis, width=width, group=group)


def tile_rows(buffer: Buffer, target: Target, is_dense: bool) -> Storage:
    """Return row storage; without padding where other views of the tile must see its elements."""
    shape = buffer.static_shape
    if shape is None:
        raise UnsupportedOnTarget(
            what=f"a tile `{buffer.name}` of symbolic shape",
            target=target,
            reason="tile shapes must be known when the kernel is compiled",
            span=buffer.span,
            hint="a tile of the largest size, or a loop over tiles of a known one",
        )
    if buffer.dtype.is_packed and not is_dense:
        kind = DType(UNPACKED[buffer.dtype])
        return rows(shape, kind, kind.itemsize, target.lanes(kind))
    if is_dense or shape[-1] == 1:  # values of threads: neighbours lie side by side
        return Storage(shape, buffer.dtype, "rows", shape[-1], spare=target.lanes(buffer.dtype))
    return rows(shape, buffer.dtype, buffer.dtype.itemsize, target.lanes(buffer.dtype))
