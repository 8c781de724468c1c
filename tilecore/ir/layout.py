"""Layouts of tiles: where each logical element lies, as an expression and as a table.

Tile domains are small, so equality, injectivity and inverse are decided by a NumPy table of
offsets, never by a prover.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tilecore.errors import ShapeMismatch, TypeMismatch
from tilecore.ir.expr import Expr, ExprLike, Var, as_expr, const, int_value
from tilecore.ir.indexing import format_shape
from tilecore.ir.nodes import Buffer
from tilecore.ir.substitute import substitute_expr
from tilecore.ir.values.evaluate import evaluate

Offsets = npt.NDArray[np.int64]


class Layout:
    """A map from the index of an element in a tile to its physical offset, in elements.

    Args:
        shape: logical extents.
        forward: indices -> offset, or -> physical coordinates (row-major in the box they span).
        name: what the layout is called in messages.

    Raises:
        ShapeMismatch: the shape is symbolic, or ``forward`` takes other indices (TC201).
        TypeMismatch: ``forward`` gives no integers (TC202).
    """

    def __init__(
        self, shape: Sequence[Any], forward: Callable[..., Any], name: str = "custom"
    ) -> None:
        extents = [int_value(e) for e in shape]
        if any(e is None for e in extents):
            raise ShapeMismatch(
                what="layout", expected="a shape of known ints", found=format_shape(tuple(shape))
            )
        self.shape = tuple(int(e) for e in extents if e is not None)
        self.name = name
        self.variables = tuple(Var(f"i{axis}") for axis in range(len(self.shape)))
        try:
            found = forward(*self.variables)
        except TypeError as error:
            raise ShapeMismatch(
                what="layout function", expected=f"{len(self.shape)} indices", found=str(error)
            ) from error
        coordinates = found if isinstance(found, (tuple, list)) else (found,)
        self.coordinates = tuple(as_expr(c) for c in coordinates)
        if not self.coordinates or not all(c.dtype.is_integer for c in self.coordinates):
            raise TypeMismatch(expected="integer coordinates from a layout function", found=found)

    @classmethod
    def of(cls, buffer: Buffer, layout: Layout | Callable[..., Any]) -> Layout:
        """Return ``layout`` (or the layout of a function) checked against the shape of a tile.

        Raises:
            ShapeMismatch: the layout has another shape (TC201).
        """
        made = layout if isinstance(layout, Layout) else cls(buffer.shape, layout)
        if made.shape != buffer.static_shape:
            raise ShapeMismatch(
                what=f"layout of `{buffer.name}`",
                expected=f"shape {format_shape(buffer.shape)}",
                found=str(made.shape),
            )
        return made

    @cached_property
    def physical_shape(self) -> tuple[int, ...]:
        """The box that the physical coordinates span."""
        return tuple(int(np.max(c)) + 1 for c in self.coordinate_tables)

    @cached_property
    def coordinate_tables(self) -> list[Offsets]:
        """Each physical coordinate of each element; the arrays have the logical shape."""
        grids = np.meshgrid(*(np.arange(n) for n in self.shape), indexing="ij", sparse=True)
        values = dict(zip(self.variables, grids, strict=True))
        tables = [np.asarray(evaluate(c, values), np.int64) for c in self.coordinates]
        return [np.broadcast_to(t, self.shape) for t in tables]

    @cached_property
    def table(self) -> Offsets:
        """The offset of each element; the array has the logical shape."""
        flat = np.zeros(self.shape, np.int64)
        for extent, coordinate in zip(self.physical_shape, self.coordinate_tables, strict=True):
            flat = flat * extent + coordinate
        return flat

    @property
    def size(self) -> int:
        """Elements of memory the tile takes, padding included."""
        return math.prod(self.physical_shape)

    @cached_property
    def is_injective(self) -> bool:
        """Whether no two elements share an offset."""
        flat = self.table.ravel()
        return bool(flat.min() >= 0) and np.unique(flat).size == flat.size

    @cached_property
    def inverse(self) -> Offsets:
        """The row-major logical index at each offset, -1 in padding (last one wins if shared)."""
        found = np.full(self.size, -1, np.int64)
        found[self.table.ravel()] = np.arange(self.table.size)
        return found

    def offset(self, indices: Sequence[ExprLike]) -> Expr:
        """Return the offset of an element as an expression of its indices."""
        total: Expr = const(0)
        for extent, coordinate in zip(self.physical_shape, self._at(indices), strict=True):
            total = total * extent + coordinate
        return total

    def equals(self, other: Layout) -> bool:
        """Return whether both place every element alike."""
        return self.shape == other.shape and bool(np.array_equal(self.table, other.table))

    def is_equal(self, other: Layout) -> bool:
        """Return whether both place every element alike."""
        return self.equals(other)

    def get_input_shape(self) -> list[int]:
        """Return the logical extents."""
        return list(self.shape)

    def get_output_shape(self) -> list[int]:
        """Return the box that the physical coordinates span."""
        return list(self.physical_shape)

    def get_forward_index(self) -> list[Expr]:
        """Return the physical coordinates of the element at ``variables``."""
        return list(self.coordinates)

    def map_forward_index(self, indices: Sequence[ExprLike]) -> list[Expr]:
        """Return the physical coordinates of the element at ``indices``.

        Raises:
            ShapeMismatch: not one index per axis (TC201).
        """
        if len(indices) != len(self.shape):
            raise ShapeMismatch(
                what=f"indices of a layout of {self.shape}",
                expected=len(self.shape), found=len(indices),
            )  # fmt: skip
        return self._at(indices)

    def get_linearized_forward_index(self) -> Expr:
        """Return the offset of the element at ``variables``."""
        return self.offset(self.variables)

    def expand(self, leading_shape: int | Sequence[int]) -> Layout:
        """Return this layout behind new leading axes, each of which stays what it is.

        Raises:
            ShapeMismatch: an extent that is no int of at least 1 (TC201).
        """
        given = (leading_shape,) if isinstance(leading_shape, (int, str)) else tuple(leading_shape)
        leading = tuple(_extent("expand", e) for e in given)
        if not leading:
            return self
        count = len(leading)

        def forward(*indices: Any) -> tuple[Any, ...]:
            return (*indices[:count], *self._at(indices[count:]))

        return Layout((*leading, *self.shape), forward, self.name)

    def repeat(self, dim: int, factor: int) -> Layout:
        """Return this layout ``factor`` times along an axis: the repeats come first in memory.

        Raises:
            ShapeMismatch: no such axis, or a factor below 1 (TC201).
        """
        if not isinstance(dim, int) or not -len(self.shape) <= dim < len(self.shape):
            expected = f"an axis of {len(self.shape)}"
            raise ShapeMismatch(what="Layout.repeat", expected=expected, found=repr(dim))
        axis, extent = dim % len(self.shape), self.shape[dim]
        if _extent("repeat", factor) == 1:
            return self

        def forward(*indices: Any) -> tuple[Any, ...]:
            inner = [i % extent if a == axis else i for a, i in enumerate(indices)]
            return (indices[axis] // extent, *self._at(inner))

        shape = [n * factor if a == axis else n for a, n in enumerate(self.shape)]
        return Layout(shape, forward, self.name)

    def _at(self, indices: Sequence[Any]) -> list[Expr]:
        values = dict(zip(self.variables, map(as_expr, indices), strict=True))
        return [substitute_expr(c, values) for c in self.coordinates]

    def describe(self) -> str:
        """Return the layout in words: name, shape, strides where it has them."""
        text = f"{self.name} layout of {'x'.join(map(str, self.shape))}"
        strides = self._strides()
        if strides is not None:
            return f"{text}, strides ({', '.join(map(str, strides))})"
        code = hashlib.sha256(self.table.tobytes()).hexdigest()[:12]
        return f"{text} in {self.size} elements, table {code}"

    def _strides(self) -> tuple[int, ...] | None:
        table, strides = self.table, []
        for axis, extent in enumerate(self.shape):
            steps = np.diff(table, axis=axis)
            if extent > 1 and steps.size and np.any(steps != steps.flat[0]):
                return None
            strides.append(int(steps.flat[0]) if steps.size else 0)
        return tuple(strides)

    def __repr__(self) -> str:
        return f"Layout({self.describe()})"


def _extent(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        expected = "an int of at least 1"
        raise ShapeMismatch(what=f"Layout.{name}", expected=expected, found=repr(value))
    return value


def row_major(shape: Sequence[int], leading: int | None = None) -> Layout:
    """Return the row-major layout; ``leading`` is the distance between rows (default: no padding).

    Raises:
        ShapeMismatch: ``leading`` is less than the length of a row (TC201).
    """
    extents = [int(e) for e in shape]
    row = extents[-1] if leading is None else leading
    if row < extents[-1]:
        raise ShapeMismatch(
            what="leading dimension", expected=f"at least {extents[-1]}", found=leading
        )
    padded = [*extents[:-1], row]

    def forward(*indices: Expr) -> Expr:
        total: Expr = const(0)
        for extent, index in zip(padded, indices, strict=True):
            total = total * extent + index
        return total

    return Layout(extents, forward, "row-major")


def panels(shape: Sequence[int], axis: int, width: int) -> Layout:
    """Return the panel-packed layout of a matrix, as the micro-kernels read it.

    The index along ``axis`` splits into (i // width, i % width): panels outermost, lanes of a panel
    innermost, the other index between. The last panel is padded to ``width``.

    Raises:
        ShapeMismatch: not a matrix, or a width below 1 (TC201).
    """
    if len(shape) != 2 or axis not in (0, 1) or width < 1:
        raise ShapeMismatch(
            what="panel layout",
            expected="two axes, axis 0 or 1, width >= 1",
            found=f"shape {tuple(shape)}, axis {axis}, width {width}",
        )
    other = int(shape[1 - axis])

    def forward(*indices: Expr) -> Expr:
        along, across = indices[axis], indices[1 - axis]
        return along // width * (other * width) + across * width + along % width

    return Layout(shape, forward, f"panels of {width} along axis {axis}")
