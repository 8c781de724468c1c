"""Columns that know which knobs they depend on: formulas at the cost of few combinations.

A space of tens of thousands of configs is spanned by a handful of values per knob, and most
quantities of a model (blocks, panels, bytes of a tile) depend on two or three knobs. A
:class:`Factored` array holds one value per combination of *these* and takes part in NumPy's
functions like the column it stands for; once a result depends on so many knobs that combinations
are no fewer than configs, it is a plain column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray


class Grid:
    """Knobs as axes, and the configs: some of the points.

    Attributes:
        sizes: number of values along every axis.
        codes: flat index of every config over ``sizes``.
    """

    def __init__(self, sizes: Sequence[int], codes: NDArray[np.intp] | None = None) -> None:
        """Args: sizes: as above. codes: as above; None: all points."""
        self.sizes = tuple(sizes)
        self.codes = np.arange(math.prod(self.sizes)) if codes is None else codes
        self._digits: dict[int, NDArray[np.intp]] = {}
        self._places: dict[tuple[int, ...], NDArray[np.intp]] = {}

    def __len__(self) -> int:
        return len(self.codes)

    def combinations(self, axes: Sequence[int]) -> int:
        """Return how many combinations the values along some axes have."""
        return math.prod(self.sizes[axis] for axis in axes)

    def columns(self, choices: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Return the column of every knob, whose values are given in the order of the axes."""
        return {
            knob: Factored(self, (axis,), values) if len(values) > 1 else constant(values[0], self)
            for axis, (knob, values) in enumerate(choices.items())
        }

    def places(self, axes: tuple[int, ...]) -> NDArray[np.intp]:
        """Return for every config the flat index of its combination along ``axes``."""
        if axes not in self._places:
            for axis in axes:
                if axis not in self._digits:
                    self._digits[axis] = self._digit(self.codes, axis)
            self._places[axes] = self._joined(axes, self._digits.__getitem__)
        return self._places[axes]

    def places_of(self, index: Any, axes: tuple[int, ...]) -> NDArray[np.intp]:
        """Return the same for some of the configs."""
        codes = np.asarray(self.codes[index])
        return self._joined(axes, lambda axis: self._digit(codes, axis))

    def _digit(self, codes: NDArray[np.intp], axis: int) -> NDArray[np.intp]:
        found: NDArray[np.intp] = codes // math.prod(self.sizes[axis + 1 :]) % self.sizes[axis]
        return found

    def _joined(
        self, axes: tuple[int, ...], digit: Callable[[int], NDArray[np.intp]]
    ) -> NDArray[np.intp]:
        found = digit(axes[0])
        for axis in axes[1:]:
            found = found * self.sizes[axis] + digit(axis)
        return found


class Factored(NDArrayOperatorsMixin):
    """A column of a grid's configs, held by combinations of the knobs that it depends on.

    Attributes:
        axes: of the grid, ascending.
        values: one dimension per axis.
    """

    def __init__(self, grid: Grid, axes: tuple[int, ...], values: NDArray[Any]) -> None:
        self.grid, self.axes, self.values = grid, axes, values
        self._column: NDArray[Any] | None = None

    @property
    def shape(self) -> tuple[int]:
        """The shape of the column."""
        return (len(self.grid),)

    @property
    def ndim(self) -> int:
        """One: along the configs."""
        return 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return self.values.dtype

    def __len__(self) -> int:
        return len(self.grid)

    def __getitem__(self, index: Any) -> Any:
        if not self.axes:
            return np.broadcast_to(self.values, self.shape)[index]
        return self.values.ravel()[self.grid.places_of(index, self.axes)]

    @property
    def column(self) -> NDArray[Any]:
        """One value per config."""
        if self._column is None:
            if self.axes:
                self._column = self.values.ravel()[self.grid.places(self.axes)]
            else:
                self._column = np.full(self.shape, self.values)
        return self._column

    def astype(self, dtype: Any) -> Factored:
        """Return the column with elements of another type."""
        return Factored(self.grid, self.axes, self.values.astype(dtype))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.column, dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(x, Factored) for x in options.get("out", ())):
            del options["out"]  # columns are not changed: x += y names a new one
        if method == "__call__" and "out" not in options:
            return _apply(lambda *x: ufunc(*x, **options), inputs)
        return getattr(ufunc, method)(*(_plain(x) for x in inputs), **options)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        if func is np.where and len(args) == 3:
            return _apply(np.where, args)
        if func is np.broadcast_to and isinstance(args[0], Factored) and args[1] == self.shape:
            return args[0]
        return func(*_plain(list(args)), **{k: _plain(v) for k, v in kwargs.items()})


def constant(value: Any, like: Any) -> Any:
    """Return a column like another one, or of a grid, with the same value for every config."""
    if isinstance(like, (Grid, Factored)):
        return Factored(like if isinstance(like, Grid) else like.grid, (), np.asarray(value))
    return np.full(len(like), value)


def _apply(function: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Return a function of columns by element, by combinations while these are fewer."""
    factored = [x for x in inputs if isinstance(x, Factored)]
    grid = factored[0].grid
    axes = tuple(sorted({axis for x in factored for axis in x.axes}))
    others = (x for x in inputs if not isinstance(x, Factored))
    are_scalars = all(np.ndim(x) == 0 for x in others)
    if not are_scalars or 2 * grid.combinations(axes) > len(grid):
        return function(*(_plain(x) for x in inputs))
    found = function(*(_spread(x, axes) if isinstance(x, Factored) else x for x in inputs))
    if isinstance(found, tuple):  # of a function with several results, like divmod
        return tuple(Factored(grid, axes, x) for x in found)
    return Factored(grid, axes, found)


def _spread(column: Factored, axes: tuple[int, ...]) -> NDArray[Any]:
    """Return the values with a dimension for each of ``axes``."""
    sizes = [column.grid.sizes[axis] if axis in column.axes else 1 for axis in axes]
    return column.values.reshape(sizes)


def _plain(value: Any) -> Any:
    """Return a value with plain columns in place of factored ones."""
    if isinstance(value, Factored):
        return value.column
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(x) for x in value)
    return value
