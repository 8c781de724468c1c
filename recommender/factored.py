"""Columns that know which knobs they depend on: formulas at the cost of few combinations.

A space of tens of thousands of configs is spanned by a handful of values per knob, and most
quantities of a model (blocks, panels, bytes of a tile) depend on two or three knobs. A
:class:`Factored` array holds one value per combination of *these* and takes part in NumPy's
functions like the column it stands for; once a result depends on so many knobs that combinations
are no fewer than configs, it is a plain column.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from recommender.straight_line import Noted

Axes = tuple[int, ...]
KEPT_GRIDS = 4  # of the same knobs; some megabytes each
_SCALARS = {int, float, bool, str, np.float64, np.int64, np.bool_, np.str_}


class Span:
    """What all grids over the same knobs share: how their axes combine, worked out once.

    Attributes:
        sizes: number of values along every axis.
        total: number of points.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes, self.total = sizes, math.prod(sizes)
        self._joints: dict[tuple[Axes, ...], Joint] = {}
        self._places: dict[Axes, NDArray[np.unsignedinteger]] = {}
        self._grids: deque[Grid] = deque(maxlen=KEPT_GRIDS)
        self._by_masks: WeakValueDictionary[object, Grid] = WeakValueDictionary()

    def joint(self, all_axes: tuple[Axes, ...]) -> Joint:
        """Return how values along several sets of axes are brought together."""
        found = self._joints.get(all_axes)
        if found is None:
            axes = tuple(sorted({axis for own in all_axes for axis in own}))
            shapes = tuple(
                tuple(self.sizes[axis] if axis in own else 1 for axis in axes) for own in all_axes
            )
            found = Joint(axes, shapes, math.prod(self.sizes[axis] for axis in axes))
            self._joints[all_axes] = found
        return found

    def places(self, axes: Axes) -> NDArray[np.unsignedinteger]:
        """Return for every point the flat index of its combination along ``axes``."""
        found = self._places.get(axes)
        if found is None:
            points = np.arange(math.prod(self.sizes[axis] for axis in axes))
            kept = points.astype(np.min_scalar_type(len(points))).reshape(
                [size if axis in axes else 1 for axis, size in enumerate(self.sizes)]
            )
            found = self._places[axes] = np.broadcast_to(kept, self.sizes).ravel()
        return found

    def kept(self, masks: Sequence[Factored]) -> Grid:
        """Return the grid of the points where all masks hold."""
        key = tuple((mask.axes, mask.values.tobytes()) for mask in masks)
        found = self._by_masks.get(key)
        if found is None:
            found = self._by_masks[key] = self.grid(kept_codes(self.sizes, masks))
        return found

    def grid(self, codes: NDArray[np.intp]) -> Grid:
        """Return the grid of some points; many shapes of a kernel have the same legal configs."""
        for known in tuple(self._grids):
            if np.array_equal(known.codes, codes):
                return known
        found = Grid(self.sizes, codes)
        self._grids.append(found)
        return found


@dataclass(frozen=True, slots=True)
class Joint:
    """Where several sets of axes meet: all their axes, the shape of each, and how many points."""

    axes: Axes
    shapes: tuple[tuple[int, ...], ...]
    combinations: int


span = lru_cache(maxsize=16)(Span)  # tables of bytes: up to a megabyte each


class Grid:
    """Knobs as axes, and the configs: some of the points.

    Attributes:
        sizes: number of values along every axis.
    """

    def __init__(self, sizes: Sequence[int], codes: NDArray[np.intp] | None = None) -> None:
        """Args: sizes: as above. codes: flat index of every config over these; None: all points."""
        self.sizes = tuple(sizes)
        self.span = span(self.sizes)
        self._codes = codes
        self.few = len(self) // 2  # combinations up to which it pays to compute with these
        self._places: dict[Axes, NDArray[np.intp]] = {}

    def __len__(self) -> int:
        return self.span.total if self._codes is None else len(self._codes)

    @property
    def codes(self) -> NDArray[np.intp]:
        """Flat index of every config over ``sizes``."""
        if self._codes is None:
            self._codes = np.arange(self.span.total)
        return self._codes

    def columns(self, choices: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Return the column of every knob, whose values are given in the order of the axes."""
        return {
            knob: Factored(self, (axis,), values) if len(values) > 1 else constant(values[0], self)
            for axis, (knob, values) in enumerate(choices.items())
        }

    def places(self, axes: Axes) -> NDArray[np.intp]:
        """Return for every config the flat index of its combination along ``axes``."""
        found = self._places.get(axes)
        if found is None:
            found = self._places[axes] = self.places_of(slice(None), axes)
        return found

    def places_of(self, index: Any, axes: Axes) -> NDArray[np.intp]:
        """Return the same for some of the configs."""
        return np.asarray(self.span.places(axes).take(self.codes[index]), dtype=np.intp)


class Factored(NDArrayOperatorsMixin):
    """A column of a grid's configs, held by combinations of the knobs that it depends on.

    Attributes:
        axes: of the grid, ascending.
        values: one dimension per axis.
    """

    __slots__ = ("_column", "axes", "grid", "values")

    def __init__(self, grid: Grid, axes: Axes, values: NDArray[Any]) -> None:
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
                self._column = self.values.ravel().take(self.grid.places(self.axes))
            else:
                self._column = np.full(self.shape, self.values)
        return self._column

    def astype(self, dtype: Any) -> Factored:
        """Return the column with elements of another type."""
        return Factored(self.grid, self.axes, self.values.astype(dtype))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.column, dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "__call__" and not options:
            return _apply(ufunc, inputs)
        if any(isinstance(x, Factored) for x in options.get("out", ())):
            del options["out"]  # columns are not changed: x += y names a new one
        if method == "__call__" and "out" not in options:
            return _apply(partial(ufunc, **options) if options else ufunc, inputs)
        return getattr(ufunc, method)(*(_plain(x) for x in inputs), **options)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        if func is np.where and len(args) == 3:
            return _apply(np.where, args)
        if func is np.broadcast_to and isinstance(args[0], Factored) and args[1] == self.shape:
            return args[0]
        return func(*_plain(list(args)), **{k: _plain(v) for k, v in kwargs.items()})


def may_hold(mask: Any) -> bool:
    """Return whether a condition may hold for a config; False only where it holds for none."""
    if type(mask) is Noted:
        return True
    return bool(np.count_nonzero(mask.values if type(mask) is Factored else mask))


def constant(value: Any, like: Any) -> Any:
    """Return a column like another one, or of a grid, with the same value for every config."""
    if isinstance(like, (Grid, Factored)):
        return Factored(like if isinstance(like, Grid) else like.grid, (), np.asarray(value))
    if type(value) is Noted:
        return value
    return np.full(len(like), value)


def _apply(function: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Return a function of columns by element, by combinations while these are fewer."""
    grid, all_axes = None, []
    for x in inputs:
        if type(x) is Factored:
            grid = x.grid
            all_axes.append(x.axes)
        elif type(x) not in _SCALARS and np.ndim(x):
            return function(*[_plain(x) for x in inputs])
    assert grid is not None
    joint = grid.span.joint(tuple(all_axes))
    if joint.combinations > grid.few:
        return function(*[_plain(x) for x in inputs])
    shapes = iter(joint.shapes)
    found = function(
        *[x.values.reshape(next(shapes)) if type(x) is Factored else x for x in inputs]
    )
    if isinstance(found, tuple):  # of a function with several results, like divmod
        return tuple(Factored(grid, joint.axes, x) for x in found)
    return Factored(grid, joint.axes, found)


def _operator(ufunc: np.ufunc) -> Callable[[Any, Any], Any]:
    """Return what ``_apply`` does of a column and a number or another column, with less ado."""

    def operate(self: Factored, other: Any) -> Any:
        grid, values, kind = self.grid, self.values, type(other)
        if kind is Factored and self.axes != other.axes:
            joint = grid.span.joint((self.axes, other.axes))
            if joint.combinations > grid.few:
                return ufunc(self.column, other.column)
            own, others = joint.shapes
            found = ufunc(values.reshape(own), other.values.reshape(others))
            return Factored(grid, joint.axes, found)
        if values.size <= grid.few:
            if kind is Factored:
                return Factored(grid, self.axes, ufunc(values, other.values))
            if kind in _SCALARS:
                return Factored(grid, self.axes, ufunc(values, other))
        return _apply(ufunc, (self, other))

    return operate


def _reflected(ufunc: np.ufunc) -> Callable[[Any, Any], Any]:
    return lambda self, other: _apply(ufunc, (other, self))


# What NDArrayOperatorsMixin does, without the way through NumPy's dispatch: it takes as long as
# the arithmetic on few combinations.
for _name, _ufunc in {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide,
    "floordiv": np.floor_divide, "mod": np.remainder, "and": np.bitwise_and, "or": np.bitwise_or,
}.items():  # fmt: skip
    setattr(Factored, f"__{_name}__", _operator(_ufunc))
    setattr(Factored, f"__r{_name}__", _reflected(_ufunc))
for _name, _ufunc in {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
}.items():  # fmt: skip
    setattr(Factored, f"__{_name}__", _operator(_ufunc))


def kept_codes(sizes: Sequence[int], masks: Sequence[Factored]) -> NDArray[np.intp]:
    """Return the flat indices of the points over ``sizes`` where all masks hold, ascending.

    Axes are joined one by one, and each mask drops points as soon as its axes are there, so that
    hardly more points are looked at than are kept.
    """
    codes = np.zeros(1, dtype=np.intp)
    waiting = _joined([mask for mask in masks if not np.all(mask.values)])
    if () in waiting:
        return codes[:0]
    places: dict[Axes, NDArray[np.intp]] = {}  # of points among the combinations of a mask's axes
    for axis, size in enumerate(sizes):
        if size == 1:
            continue
        here, count = np.arange(size), len(codes)
        codes = _extended(codes, here)
        for axes in waiting:
            if axis in axes:
                places[axes] = (
                    _extended(places[axes], here) if axes in places else np.tile(here, count)
                )
            elif axes in places:
                places[axes] = places[axes].repeat(size)
        for axes in [axes for axes in waiting if axes[-1] == axis]:
            rows = np.flatnonzero(waiting.pop(axes).take(places.pop(axes)))
            codes = codes[rows]
            places = {others: own[rows] for others, own in places.items()}
    return codes


def _joined(masks: Sequence[Factored]) -> dict[Axes, NDArray[np.bool_]]:
    """Return fewer masks that say the same, by axes: joined where these end alike."""
    found: dict[Axes, Any] = {}
    for mask in sorted(masks, key=lambda m: -len(m.axes)):
        same = (
            axes for axes in found if axes[-1:] == mask.axes[-1:] and set(mask.axes) <= set(axes)
        )
        axes = next(same, mask.axes)
        found[axes] = found[axes] & mask if axes in found else mask
    return {axes: mask.values.ravel() for axes, mask in found.items()}


def _extended(places: NDArray[np.intp], here: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return flat indices with one axis more, whose places are ``here``."""
    found: NDArray[np.intp] = (places[:, None] * len(here) + here).ravel()
    return found


def _plain(value: Any) -> Any:
    """Return a value with plain columns in place of factored ones."""
    if isinstance(value, Factored):
        return value.column
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(x) for x in value)
    return value
