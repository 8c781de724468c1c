"""Stores of nests whose lanes lie anywhere: values and places in vectors, then lane by lane.

It pays where the values take long to compute: the functions of one lane take as long as those of
all.
"""

from __future__ import annotations

from typing import Any

from tilecore.inference.storage import Storage
from tilecore.ir.bounds import mentions
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Call, Expr, Var, cast
from tilecore.ir.nodes import Parallel, Store
from tilecore.ir.visitor import expressions, walk, walk_expr
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.place import raw_of
from tilecore.lowering.cpu.scalar import Scope, kept, lower, memory_type
from tilecore.lowering.cpu.tir import add, index, typed
from tilecore.lowering.cpu.vector_math import FUNCTIONS


def may_scatter(accessor: Accessor, nest: Parallel, store: Store, var: Var) -> bool:
    """Return whether lanes of a store may lie anywhere, and are worth it."""
    place = accessor.places.get(store.buffer)
    if place is None or place.memory is None or place.is_own or place.pairs is not None:
        return False
    is_rows = isinstance(place.storage, Storage) and place.storage.kind == "rows"
    if not is_rows or DType(place.storage.dtype).is_packed or place.stream_bytes:
        return False
    if accessor.open_ends(place, place.indices(store.indices)):
        return False
    nodes = (n for s in walk(nest.body) for e in expressions(s) for n in walk_expr(e))
    return any(
        isinstance(n, Call) and n.name in FUNCTIONS and n.dtype == "float32" and mentions(n, var)
        for n in nodes
    )


def stores_apart(accessor: Accessor, store: Store, scope: Scope) -> bool:
    """Return whether the lanes of a store do not lie side by side."""
    if scope.vector is None:
        return False
    if accessor.stride_of(store.buffer, store.indices, scope.vector) == 1:
        return False
    apart = accessor.offsets_of(store.buffer, store.indices, scope.vector, scope.lanes)
    return apart != tuple(range(scope.lanes))


def emit(accessor: Accessor, store: Store, value: Any, scope: Scope) -> None:
    """Emit the store of a value per lane, each where it belongs."""
    builder, place, lanes = accessor.builder, accessor.places[store.buffer], scope.lanes
    stored = place.storage.dtype
    result = kept(value, store.value.dtype, store.buffer.dtype, stored, lanes)
    values = builder.alloc(lanes, memory_type(stored), "values")
    builder.store(values, raw_of(builder, place, result, lanes), 0, lanes)
    places = builder.alloc(lanes, "int32", "places")
    at = _offset(accessor, store)
    offsets = lower(at, accessor.of_places(scope))
    if not scope.is_vector(at):
        offsets = typed(offsets, "int32")
    builder.store(places, offsets, 0, lanes)
    for lane in range(lanes):
        goal = add(place.base, builder.load(places, index(lane)))
        builder.store(place.memory, builder.load(values, index(lane)), goal)


def _offset(accessor: Accessor, store: Store) -> Expr:
    place = accessor.places[store.buffer]
    indices = [cast(i, "int32") for i in place.indices(store.indices)]
    return cast(place.storage.offset(indices), "int32")
