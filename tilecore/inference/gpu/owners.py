"""Which thread owns what: layouts that programs give their fragments, and elements that several
points of a nest update in turn, which therefore belong to one thread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from tilecore.inference.gpu.distribution import Distribution, from_owners
from tilecore.inference.gpu.loops import Points
from tilecore.inference.gpu.places import points as points_of_threads
from tilecore.ir.arithmetic.collisions import Place, place_of, updated_places
from tilecore.ir.expr import const
from tilecore.ir.fragment import Fragment
from tilecore.ir.nodes import Annotate, Buffer, KernelLaunch, Parallel
from tilecore.ir.visitor import walk

NOTHING: Mapping[Parallel, frozenset[Buffer]] = MappingProxyType({})
MEMORY = ("shared", "global")


def annotated(launch: KernelLaunch, threads: int) -> dict[Buffer, Distribution]:
    """Return how fragments are spread that the program says the owners of, where it can be had."""
    found: dict[Buffer, Distribution] = {}
    for stmt in walk(launch):
        if not isinstance(stmt, Annotate) or stmt.key != "layout":
            continue
        for buffer, layout in stmt.value.items():
            if isinstance(layout, Fragment) and layout.shape == buffer.static_shape:
                spread = from_owners(layout.coordinate_tables[0], threads)
                if spread is not None:
                    found[buffer] = spread
    return found


Left = Mapping[Parallel, frozenset[Buffer]]  # variables whose last value is read behind a nest


def places_in_turn(points: Points, left: Left = NOTHING) -> list[tuple[Buffer, Place]]:
    """Return the elements that more than one point of a nest updates.

    Those of memory where that is certain, or where data says which they are (passes.looked_up has
    made what it could atomic); what is indexed by symbols is taken to be as the program means it.
    """
    nest = points.nest
    if nest is None or nest is not points.stmt:
        return []
    found = []
    for buffer, place in updated_places(nest):
        is_memory = buffer.scope in MEMORY
        if is_memory and not place.is_looked_up and _is_unknown(place, points.shape):
            continue
        if place.may_collide(points.shape):
            found.append((buffer, place))
    for variable in left.get(nest, frozenset()) - {b for b, _ in found}:
        place = place_of(nest, (const(0),))  # the last point that sets it has the last word
        if place.may_collide(points.shape):
            found.append((variable, place))
    return found


def _is_unknown(place: Place, shape: tuple[int, ...]) -> bool:
    return place.table([np.zeros(1, np.int64) for _ in shape]) is None


def runs_of(points: Points, tiles: frozenset[Buffer], left: Left = NOTHING) -> list[int]:
    """Return for each loop how many of its consecutive points one thread must have.

    The extent of the loop where they may not be spread over threads at all.
    """
    runs = [1] * len(points.shape)
    for buffer, place in places_in_turn(points, left):
        if buffer in tiles or buffer.scope in MEMORY:
            for loop, extent in enumerate(points.shape):
                run = place.apart.get(loop, extent)
                runs[loop] = min(extent, math.lcm(runs[loop], run))
    return runs


def divided(
    points: Points, distribution: Distribution, tiles: frozenset[Buffer], left: Left = NOTHING
) -> tuple[Buffer, int] | None:
    """Return a tile whose elements points of several threads would update, and such a loop."""
    for buffer, place in places_in_turn(points, left):
        if buffer in tiles or buffer.scope in MEMORY:
            loop = _divided_loop(place, points, distribution)
            if loop is not None and not _has_one_owner(place, distribution):
                return buffer, loop
    return None


def _divided_loop(place: Place, points: Points, distribution: Distribution) -> int | None:
    """Return a loop of which threads share out points that may have one element."""
    for loop, extent in enumerate(points.shape):
        run = place.apart.get(loop, extent)
        if any(d.in_thread and weight % run for d, weight in distribution.weights(loop)):
            return loop
    return None


def _has_one_owner(place: Place, distribution: Distribution) -> bool:
    """Return whether all points of an element are those of one thread and its copies."""
    values, exists = points_of_threads(distribution)
    table = place.table(values)
    if table is None:
        return False
    shape = (distribution.threads, distribution.slots)
    rows = np.stack([np.broadcast_to(t, shape)[exists] for t in table], axis=1)
    owners = np.broadcast_to(distribution.copy_mask[:, None], shape)[exists]
    elements = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
    first = np.full(int(elements.max()) + 1, -1, np.int64)
    first[elements] = owners
    return bool(np.array_equal(first[elements], owners))


def keeps_all_copies(distribution: Distribution, held: Distribution) -> bool:
    """Return whether all threads that hold a stored element run its point, not only some."""
    return _copies(distribution) == _copies(held)


def _copies(distribution: Distribution) -> int:
    return math.prod(d.extent for d in distribution.copies)
