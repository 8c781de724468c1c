"""Parallel nests that only move elements, read along one axis and stored along another one.

Square blocks are loaded by rows, transposed by shuffles and stored by columns. In vectors along the
last axis alone, every element would be loaded by itself.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.storage import Storage
from tilecore.ir.arithmetic.bounds import linear
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Load, binary, const, int_value
from tilecore.ir.nodes import Parallel, Store
from tilecore.ir.visitor import flat
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.nests.nest import NestLowering
from tilecore.lowering.cpu.place import store_values
from tilecore.lowering.cpu.scalar import convert, from_memory, kept
from tilecore.lowering.cpu.shuffles import transpose
from tilecore.lowering.tir import add, mul

ROW_BYTES = 16  # of a block: shuffles across halves of wider registers take longer


@dataclass(frozen=True, slots=True)
class _Move:
    """What a nest moves: blocks of ``size`` x ``size``, stored in vectors of ``lanes``.

    ``read`` is the axis along which neighbours are read, the last axis that along which they are
    stored; ``apart`` tells how far elements lie apart along the other axis of each.
    """

    store: Store
    load: Load
    read: int
    size: int
    lanes: int
    apart: tuple[int, int]  # of what is loaded along the last axis, of what is stored along `read`


def _move(nest: Parallel, accessor: Accessor) -> _Move | None:
    """Return what a nest moves across, None: it does something else."""
    (store, *more), extents = flat([nest.body]), [int_value(e) for e in nest.extents]
    if more or not isinstance(store, Store) or not isinstance(store.value, Load):
        return None
    load, last = store.value, nest.loop_vars[-1]
    if len(extents) < 2 or None in extents:
        return None
    if not _is_plain(accessor, load.buffer) or not _is_plain(accessor, store.buffer):
        return None
    there = accessor.stride_of(load.buffer, load.indices, last)
    if accessor.stride_of(store.buffer, store.indices, last) != 1 or there in (None, 0, 1):
        return None
    for axis, var in enumerate(nest.loop_vars[:-1]):
        here = accessor.stride_of(store.buffer, store.indices, var)
        if accessor.stride_of(load.buffer, load.indices, var) != 1 or here in (None, 0):
            continue
        size, lanes = _block(accessor, load, extents[axis] or 0, extents[-1] or 0)
        if size > 1:
            return _Move(store, load, axis, size, lanes, (there or 0, here or 0))
    return None


def _is_plain(accessor: Accessor, buffer: Any) -> bool:
    place = accessor.places.get(buffer)
    if place is None or place.memory is None or DType(place.storage.dtype).bits < 8:
        return False
    is_rows = not isinstance(place.storage, Storage) or place.storage.kind == "rows"
    return is_rows and not place.is_own and place.pairs is None


def _block(accessor: Accessor, load: Load, along: int, across: int) -> tuple[int, int]:
    """Return the rows of a block and the lanes of what is stored; 1, 1: there are no blocks."""
    most = ROW_BYTES // DType(accessor.places[load.buffer].storage.dtype).itemsize
    for size in (16, 8, 4, 2):
        if size > most or along % size or across % size:
            continue
        lanes = max(size, accessor.register_lanes)
        return size, lanes if across % lanes == 0 else size
    return 1, 1


def _by_stores(nest: Parallel, accessor: Accessor) -> Parallel:
    """Return a nest whose last axis is that along which neighbours are stored.

    A nest may run through its axes in any order.
    """
    (store, *more) = flat([nest.body])
    if more or not isinstance(store, Store) or not _is_plain(accessor, store.buffer):
        return nest
    for axis, var in enumerate(nest.loop_vars[:-1]):
        if accessor.stride_of(store.buffer, store.indices, var) == 1:
            order = [i for i in range(len(nest.loop_vars)) if i != axis] + [axis]
            names, extents = nest.loop_vars, nest.extents
            return replace(
                nest,
                loop_vars=tuple(names[i] for i in order),
                extents=tuple(extents[i] for i in order),
            )
    return nest


def transposes(nest: Parallel, accessor: Accessor) -> bool:
    """Return whether a nest moves elements across in blocks."""
    return _move(_by_stores(nest, accessor), accessor) is not None


class TransposedLowering(NestLowering):
    """Emits one nest by blocks; as other nests where it leaves a tensor."""

    def emit(self, nest: Parallel) -> None:
        """Emit loops over blocks, the others outside."""
        given, nest = nest, _by_stores(nest, self.accessor)
        move = _move(nest, self.accessor)
        assert move is not None
        accessor, extents = self.accessor, [int_value(e) or 0 for e in nest.extents]
        steps = [1] * len(extents)
        steps[move.read], steps[-1] = move.size, move.lanes
        for var, extent in zip(nest.loop_vars, extents, strict=True):
            accessor.ranges[var], accessor.tops[var] = (0, extent - 1), const(extent)
        cond = self._all_inside(nest, move)
        if cond is None:
            self._loops(nest, move, steps)
        elif cond is not False:
            before = {x.buffer: accessor.places[x.buffer] for x in (move.load, move.store)}
            with self.builder.when(cond):
                for buffer, place in before.items():
                    accessor.places[buffer] = replace(place, guarded=False)
                self._loops(nest, move, steps)
                accessor.places.update(before)
        for var in nest.loop_vars:
            for known in (accessor.values, accessor.ranges, accessor.tops):
                known.pop(var, None)
        if cond is False:
            super().emit(given)
        elif cond is not None:
            with self.builder.otherwise():
                super().emit(given)

    def _loops(self, nest: Parallel, move: _Move, steps: list[int]) -> None:
        with ExitStack() as loops:
            for var, extent, step in zip(nest.loop_vars, nest.extents, steps, strict=True):
                number = loops.enter_context(self.builder.loop((int_value(extent) or 0) // step))
                self.accessor.assign(var, mul(number, step))
            self._blocks(move)

    def _all_inside(self, nest: Parallel, move: _Move) -> Any:
        """Return the condition that no element is outside of its tensor.

        None: none is; False: that is not known of the first and the last one.
        """
        accessor, cond = self.accessor, None
        sizes = {v: int_value(e) or 0 for v, e in zip(nest.loop_vars, nest.extents, strict=True)}
        for access in (move.load, move.store):
            place = accessor.places[access.buffer]
            for index, extent in accessor.open_ends(place, place.indices(access.indices)):
                form = linear(index)
                factors = {} if form is None else {v: form.coefficient(v) for v in sizes}
                if form is None or min(factors.values()) < 0:
                    return False
                for var in sizes:
                    accessor.assign(var, 0)
                reach = sum(f * (sizes[v] - 1) for v, f in factors.items())
                last = binary("add", index, reach)
                one = accessor.inside(index, extent, accessor.scope(), last)
                cond = one if cond is None else tir.And(cond, one)
        return cond

    def _blocks(self, move: _Move) -> None:
        """Emit the blocks whose columns one vector each holds when they are stored."""
        accessor, builder, size = self.accessor, self.builder, move.size
        source, target = (accessor.places[x.buffer] for x in (move.load, move.store))
        first, _ = accessor.offset(source, source.indices(move.load.indices))
        first = builder.bind(first)
        blocks = []
        for block in range(0, move.lanes, size):
            places = (add(first, (block + i) * move.apart[0]) for i in range(size))
            rows = [builder.bind(builder.load(source.memory, place, size)) for place in places]
            blocks.append(transpose(builder, rows, size))
        goal, _ = accessor.offset(target, target.indices(move.store.indices))
        goal = builder.bind(goal)
        stored, lanes = source.storage.dtype, move.lanes
        for number, parts in enumerate(zip(*blocks, strict=True)):
            raw = parts[0] if len(parts) == 1 else tir.Shuffle(list(parts), _all(lanes))
            value = convert(from_memory(raw, stored, lanes), stored, move.load.dtype, lanes)
            result = kept(
                value, move.load.dtype, move.store.buffer.dtype, target.storage.dtype, lanes
            )
            store_values(builder, target, result, add(goal, number * move.apart[1]), lanes)


def _all(lanes: int) -> list[Any]:
    return [tir.IntImm("int32", i) for i in range(lanes)]
