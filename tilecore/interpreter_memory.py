"""Memory and variables of one run of a program in NumPy: tensors, tiles, views, addresses."""

from __future__ import annotations

import math
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilecore.errors import ArgumentError, ScopeError, ShapeMismatch
from tilecore.ir import nodes
from tilecore.ir.analysis import output_positions, written_buffers
from tilecore.ir.dims import solve
from tilecore.ir.expr import Expr, Load, Var
from tilecore.ir.fold import reducer_update
from tilecore.ir.indexing import format_shape
from tilecore.ir.nodes import Buffer, PrimFunc, Region
from tilecore.ir.values.conversion import convert
from tilecore.ir.values.evaluate import Evaluator, Mask, Value
from tilecore.ir.values.fold_values import updated_value
from tilecore.ir.values.packed import (
    PackedArray,
    as_array,
    at_address,
    bytes_of,
    empty_packed,
    measures,
    memory_of,
)
from tilecore.ir.visitor import roots_of, walk_expr

Array = Any  # a NumPy array, or a PackedArray
UNDEFINED_INT = 0x55  # every byte of an undefined integer tile


class Memory:
    """What the parameters, tiles and variables of a program hold."""

    def __init__(self, func: PrimFunc) -> None:
        self.func = func
        self.memory: MutableMapping[int, Array] = {}
        self.outside: dict[int, Value] = {}  # what loads outside a tensor give, where not 0
        self.evaluate = Evaluator(load=self.load)

    # --- arguments ------------------------------------------------------------------------

    def bind(self, arguments: Sequence[Any]) -> list[Buffer]:
        """Give the parameters their values; return the outputs."""
        params = self.func.params
        positions = output_positions(self.func)
        if len(arguments) == len(params):
            given = list(range(len(params)))
            written = {id(b) for b in written_buffers(self.func.body)}
            returned = [i for i, p in enumerate(params) if id(p) in written or i in positions]
        else:
            given = [i for i in range(len(params)) if i not in positions]
            returned = list(positions)
        if len(arguments) != len(given):
            raise ArgumentError(
                position=len(arguments),
                name=self.func.name,
                expected=f"{len(given)} arguments (or {len(params)} with the outputs)",
                found=len(arguments),
            )
        self._bind_dimensions(zip(given, arguments, strict=True))
        for position, argument in zip(given, arguments, strict=True):
            self._bind_one(position, argument)
        for position in returned:
            buffer = params[position]
            if isinstance(buffer, Buffer) and id(buffer) not in self.memory:
                self.memory[id(buffer)] = self.undefined(buffer)
        return [p for i, p in enumerate(params) if i in returned and isinstance(p, Buffer)]

    def _bind_dimensions(self, arguments: Iterable[tuple[int, Any]]) -> None:
        """Give scalar parameters and dimensions their values."""
        found: list[tuple[Expr, int]] = []
        absent: list[Var] = []
        for position, argument in arguments:
            param = self.func.params[position]
            if isinstance(param, Var):
                self.evaluate.set(param, argument)
                continue
            if argument is None:
                absent += [v for e in param.shape for v in walk_expr(e) if isinstance(v, Var)]
                continue
            shape, steps = measures(np.asarray(argument), param.dtype)
            found += zip(param.shape, shape, strict=False)
            found += zip(param.strides or (), steps, strict=False)
        for is_alone in (True, False):
            for extent, actual in found:
                solved = solve(extent)
                if solved is None or (is_alone and not isinstance(extent, Var)):
                    continue
                if id(solved.symbol) not in self.evaluate.values:
                    self.evaluate.set(solved.symbol, (actual - solved.rest) // solved.factor)
        for symbol in absent:
            self.evaluate.values.setdefault(id(symbol), 0)

    def _bind_one(self, position: int, argument: Any) -> None:
        param = self.func.params[position]
        if isinstance(param, Var):
            return
        if argument is None and param not in roots_of(self.func.body):
            return  # a tensor that is not used may be absent
        array = np.asarray(argument)

        def fail(expected: object, found: object) -> ArgumentError:
            return ArgumentError(position=position, name=param.name, expected=expected, found=found)

        found = as_array(array, param.dtype)
        if found is None:
            raise fail(param.dtype.storage, array.dtype)
        if found.ndim != param.ndim:
            raise fail(f"shape {format_shape(param.shape)}", f"shape {found.shape}")
        for extent, actual in zip(param.shape, found.shape, strict=True):
            if int(self.evaluate(extent)) != actual:
                raise fail(f"shape {format_shape(param.shape)}", f"shape {found.shape}")
        self.memory[id(param)] = found

    def undefined(self, buffer: Buffer) -> Array:
        """Return a new array with contents that show when they are used."""
        shape = tuple(int(self.evaluate(e)) for e in buffer.shape)
        if buffer.dtype.is_packed:
            return empty_packed(shape, buffer.dtype, UNDEFINED_INT)
        if buffer.dtype.is_float:
            return np.full(shape, np.nan, np.float32).astype(buffer.dtype.numpy)
        pattern = np.full(buffer.dtype.itemsize, UNDEFINED_INT, np.uint8)
        if buffer.dtype == "bool":
            return np.ones(shape, np.bool_)
        return np.full(shape, pattern.view(buffer.dtype.numpy)[0])

    def view(self, buffer: Buffer, base: Array) -> Array:
        """Return the memory of a tile or tensor with another shape or element type."""
        shape = tuple(int(self.evaluate(e)) for e in buffer.shape)
        flat = memory_of(base).reshape(-1)
        if buffer.dtype.is_packed:
            return PackedArray(flat.view(np.uint8).reshape(*shape[:-1], -1), buffer.dtype, shape)
        return flat.view(buffer.dtype.numpy).reshape(shape)

    def at_address(self, buffer: Buffer, address: int) -> Array:
        """Return the memory at an address as an array."""
        shape = [int(self.evaluate(e)) for e in buffer.shape]
        steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        if buffer.strides is not None:
            steps = [int(self.evaluate(e)) for e in buffer.strides]
        if buffer.dtype.is_packed:
            memory = at_address(address, *bytes_of(shape, steps), np.dtype(np.uint8))
            return PackedArray(memory, buffer.dtype, tuple(shape))
        return at_address(address, shape, steps, buffer.dtype.numpy)

    # --- memory ---------------------------------------------------------------------------

    def array(self, buffer: Buffer) -> Array:
        """Return the contents of ``buffer``."""
        if id(buffer) not in self.memory:
            raise ScopeError(message=f"`{buffer.name}` does not exist here")
        return self.memory[id(buffer)]

    def locate(
        self, buffer: Buffer, indices: Sequence[Value], mask: Mask
    ) -> tuple[tuple[Any, ...], Any]:
        """Return (indices clipped into the buffer, which of them were inside)."""
        array = self.array(buffer)
        inside: Any = True
        clipped = []
        for axis, (index, extent) in enumerate(zip(indices, array.shape, strict=True)):
            if _is_within(index, extent):
                clipped.append(index)
                continue
            good = np.logical_and(np.greater_equal(index, 0), np.less(index, extent))
            if buffer.scope != "global" and np.any(np.logical_and(mask, np.logical_not(good))):
                bad = np.asarray(index)[...].ravel()
                worst = bad[np.argmax(np.abs(bad - extent / 2))]
                raise ShapeMismatch(
                    what=f"index of `{buffer.name}`, axis {axis}",
                    expected=f"0 to {extent - 1}",
                    found=int(worst),
                )
            inside = np.logical_and(inside, good)
            clipped.append(np.clip(index, 0, extent - 1))
        return tuple(clipped), inside

    def load(self, expr: Load, indices: tuple[Value, ...], mask: Mask) -> Value:
        """Return elements; 0 (or what it is padded with) outside a global tensor."""
        array = self.array(expr.buffer)
        if 0 in array.shape:
            return self._pad(expr.buffer)[()]
        place, inside = self.locate(expr.buffer, indices, mask)
        if inside is True:
            return array[place]
        return np.where(inside, array[place], self._pad(expr.buffer))[()]

    def _pad(self, buffer: Buffer) -> Array:
        return np.asarray(self.outside.get(id(buffer), 0)).astype(buffer.dtype.numpy)

    def store(self, stmt: nodes.Store, mask: Mask) -> None:
        """Write elements where ``mask`` holds; skipped outside a global tensor."""
        update = reducer_update(stmt)
        if update is not None:
            self.update(update[0], stmt, update[1], mask)
            return
        indices = tuple(self.evaluate(i, mask) for i in stmt.indices)
        value = convert(self.evaluate(stmt.value, mask), stmt.buffer.dtype.numpy)
        array = self.array(stmt.buffer)
        if 0 in array.shape:
            return
        place, inside = self.locate(stmt.buffer, indices, mask)
        active = np.logical_and(mask, inside)
        if not any(np.ndim(x) for x in (*place, value, active)):
            if active:
                array[place] = value
            return
        *full, value, active = np.broadcast_arrays(*place, value, active)
        if not full:  # a tensor without axes
            array[()] = value if active else array[()]
        elif active.all():  # in this order: of equal places the last one counts
            array[tuple(p.ravel() for p in full)] = value.ravel()
        else:
            array[tuple(p[active] for p in full)] = value[active]

    def update(self, op: str, stmt: nodes.Atomic | nodes.Store, expr: Expr, mask: Mask) -> Value:
        """Update elements one after the other; return what the last one held before."""
        indices = tuple(self.evaluate(i, mask) for i in stmt.indices)
        array = self.array(stmt.buffer)
        value = convert(self.evaluate(expr, mask), array.dtype)
        place, inside = self.locate(stmt.buffer, indices, mask)
        *full, value, active = np.broadcast_arrays(*place, value, np.logical_and(mask, inside))
        old = np.zeros((), array.dtype)[()]
        for lane in zip(*(p[active] for p in full), value[active], strict=True):
            old = array[lane[:-1]]
            array[lane[:-1]] = updated_value(op, old, lane[-1])
        return old

    def read(self, region: Region) -> Array:
        """Return a copy of a region without its axes of size 1; padded outside a tensor."""
        offsets, shape = self._box(region)
        array = self.array(region.buffer)
        part = self._part(region, offsets, shape)
        if part is not None and part.is_whole:
            found = array[part.place].copy()
        elif part is not None:
            found = np.full(shape, self._pad(region.buffer))
            found[part.of_region] = array[part.place]
        else:
            found = self._pad(region.buffer)
            if 0 not in array.shape:
                place, inside = self.locate(region.buffer, _grids(offsets, shape), True)
                found = np.where(inside, array[place], found)
        return np.broadcast_to(found, shape).reshape([n for n in shape if n != 1])

    def write(self, region: Region, value: Array) -> None:
        """Set a region; skipped outside a global tensor."""
        offsets, shape = self._box(region)
        array = self.array(region.buffer)
        if 0 in array.shape:
            return
        wide = np.broadcast_to(value, [n for n in shape if n != 1]).reshape(shape)
        part = self._part(region, offsets, shape)
        if part is not None:
            array[part.place] = convert(wide[part.of_region], array.dtype)
            return
        place, inside = self.locate(region.buffer, _grids(offsets, shape), True)
        *full, active = np.broadcast_arrays(*place, np.broadcast_to(inside, shape))
        array[tuple(p[active] for p in full)] = convert(wide, array.dtype)[active]

    def _box(self, region: Region) -> tuple[list[int], list[int]]:
        """Return first elements and extents."""
        offsets = [int(self.evaluate(o)) for o in region.offsets]
        return offsets, [int(self.evaluate(e)) for e in region.extents]

    def _part(self, region: Region, offsets: list[int], shape: list[int]) -> _Part | None:
        """Return what of a region exists; None where its elements are looked at one by one.

        Those are packed ones, and a tile's of which some do not exist, which is an error.
        """
        array = self.array(region.buffer)
        if isinstance(array, PackedArray) or len(offsets) != array.ndim:
            return None
        place, of_region = [], []
        for first, count, extent in zip(offsets, shape, array.shape, strict=True):
            start, stop = max(first, 0), max(min(first + count, extent), 0)
            place.append(slice(start, max(start, stop)))
            of_region.append(slice(start - first, max(start, stop) - first))
        is_whole = all(p.stop - p.start == n for p, n in zip(place, shape, strict=True))
        if not is_whole and region.buffer.scope != "global":
            return None
        return _Part(tuple(place), tuple(of_region), is_whole)


class _Part(NamedTuple):
    """What of a region exists, as slices of its buffer and of the region."""

    place: tuple[slice, ...]
    of_region: tuple[slice, ...]
    is_whole: bool


def _is_within(index: Value, extent: int) -> bool:
    """Return whether all elements of an index are known to lie in an axis."""
    if np.ndim(index) == 0:
        return not isinstance(index, np.bool_) and bool(0 <= index < extent)
    if index.dtype == np.bool_ or not index.size:
        return False
    return bool(index.min() >= 0 and index.max() < extent)


def _grids(offsets: Sequence[int], shape: Sequence[int]) -> list[Array]:
    """Return the indices of a box along each axis, which broadcast against each other."""
    grids = []
    for axis, (offset, extent) in enumerate(zip(offsets, shape, strict=True)):
        ones = [1] * len(shape)
        ones[axis] = extent
        grids.append((offset + np.arange(extent)).reshape(ones))
    return grids
