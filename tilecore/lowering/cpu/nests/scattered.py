"""Stores of nests whose lanes lie anywhere: values and places in vectors, then lane by lane.

It pays where the values take long to compute: the functions of one lane take as long as those of
all.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import nullcontext
from typing import Any

from tilecore.inference.cpu.storage import Storage
from tilecore.ir.arithmetic.bounds import mentions, variables
from tilecore.ir.arithmetic.lane_offsets import Offsets, lane_offsets
from tilecore.ir.arithmetic.polynomial import structural_key
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Call, Expr, Load, Var, cast
from tilecore.ir.nodes import Parallel, Store
from tilecore.ir.visitor import expressions, walk, walk_expr
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.functions.vector_math import FUNCTIONS
from tilecore.lowering.cpu.place import raw_of
from tilecore.lowering.cpu.scalar import Scope, kept, lower, memory_type
from tilecore.lowering.llvm_text import REALS
from tilecore.lowering.tir import add, index, typed


def may_scatter(
    accessor: Accessor, nest: Parallel, store: Store, var: Var, lanes: int, names: Set[Var]
) -> bool:
    """Return whether lanes of a store may lie anywhere, and are worth it.

    Lanes that may meet must not read what others store: ``bins[index[i]] += x[i]``.

    ``names``: what is bound to a value per lane.
    """
    place = accessor.places.get(store.buffer)
    if place is None or place.memory is None or place.is_own or place.pairs is not None:
        return False
    if DType(place.storage.dtype).is_packed or place.stream_bytes:
        return False
    apart = known_offsets(accessor, store, var, lanes, names)
    may_meet = apart is None or len(set(apart)) < lanes
    if may_meet and any(_may_read(load, store, {var, *names}) for load in _loads(nest)):
        return False
    if apart is None:
        is_rows = isinstance(place.storage, Storage) and place.storage.kind == "rows"
        if not is_rows or accessor.open_ends(place, place.indices(store.indices)):
            return False
    return any(
        isinstance(n, Call) and n.name in FUNCTIONS and n.dtype in REALS and mentions(n, var)
        for n in _nodes(nest)
    )


def _nodes(nest: Parallel) -> Iterator[Expr]:
    return (n for s in walk(nest.body) for e in expressions(s) for n in walk_expr(e))


def _loads(nest: Parallel) -> Iterator[Load]:
    return (n for n in _nodes(nest) if isinstance(n, Load))


def _may_read(load: Load, store: Store, varying: Set[Var]) -> bool:
    """Return whether a load may read what a store writes, in another lane too.

    It does not where an axis has different indices that all lanes have alike: another row.
    """
    if load.buffer is not store.buffer:
        return load.buffer.root is store.buffer.root
    return not any(
        structural_key(a) != structural_key(b) and not (variables(a) | variables(b)) & varying
        for a, b in zip(load.indices, store.indices, strict=True)
    )


def known_offsets(
    accessor: Accessor, store: Store, var: Var, lanes: int, names: Set[Var]
) -> Offsets | None:
    """Return how far from the first lane's element those of the lanes lie, and each index of them.

    Then one test for all lanes says whether they are inside of a tensor.
    """
    at = accessor.places[store.buffer].indices(store.indices)
    if any(variables(i) & names or lane_offsets(i, var, lanes) is None for i in at):
        return None
    return accessor.offsets_of(store.buffer, store.indices, var, lanes)


def stores_apart(accessor: Accessor, store: Store, scope: Scope) -> bool:
    """Return whether the lanes of a store do not lie side by side."""
    if scope.vector is None:
        return False
    if accessor.stride_of(store.buffer, store.indices, scope.vector) == 1:
        return False
    apart = accessor.offsets_of(store.buffer, store.indices, scope.vector, scope.lanes)
    return apart != tuple(range(scope.lanes))


def emit(accessor: Accessor, store: Store, value: Any, scope: Scope) -> None:
    """Emit the store of a value per lane, each where it belongs.

    Vectors that may leave a tensor have been tested; what is the same in all lanes has not.
    """
    builder, place, lanes = accessor.builder, accessor.places[store.buffer], scope.lanes
    stored, at = place.storage.dtype, place.indices(store.indices)
    result = kept(value, store.value.dtype, store.buffer.dtype, stored, lanes)
    uniform = [p for p in accessor.open_ends(place, at) if not scope.is_vector(p[0])]
    cond = accessor.guard(uniform, accessor.of_places())
    with nullcontext() if cond is None else builder.when(cond):
        values = builder.alloc(lanes, memory_type(stored), "values")
        builder.store(values, raw_of(builder, place, result, lanes), 0, lanes)
        for lane, goal in enumerate(_places(accessor, store, scope)):
            builder.store(place.memory, builder.load(values, index(lane)), goal)


def _places(accessor: Accessor, store: Store, scope: Scope) -> list[Any]:
    """Return the offset of each lane's element."""
    builder, place, lanes = accessor.builder, accessor.places[store.buffer], scope.lanes
    assert scope.vector is not None
    apart = known_offsets(accessor, store, scope.vector, lanes, scope.vector_lets)
    if apart is not None:
        first = accessor.offset(place, place.indices(store.indices), of_vector=True)[0]
        first = builder.bind(first)
        return [add(first, distance) for distance in apart]
    at = _offset(accessor, store)
    offsets = lower(at, accessor.of_places(scope))
    if not scope.is_vector(at):
        offsets = typed(offsets, "int32")
    places = builder.alloc(lanes, "int32", "places")
    builder.store(places, offsets, 0, lanes)
    return [add(place.base, builder.load(places, index(lane))) for lane in range(lanes)]


def _offset(accessor: Accessor, store: Store) -> Expr:
    place = accessor.places[store.buffer]
    indices = [cast(i, "int32") for i in place.indices(store.indices)]
    return cast(place.storage.offset(indices), "int32")
