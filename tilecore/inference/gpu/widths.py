"""How many neighbouring elements one access may move, from its alignment in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilecore.inference.gpu.loops import Access, Points, divisor
from tilecore.inference.gpu.neighbours import MAX_LANES, lanes_alike, lanes_in_memory, start
from tilecore.inference.gpu.plan import CHUNK_BYTES
from tilecore.ir.length import LONGEST, length
from tilecore.ir.nodes import Buffer


def most_neighbours(points: Points) -> int:
    """Return how many neighbours the widest access of a statement may move."""
    return max((lanes_of(points, loop, 1) for loop in range(len(points.shape))), default=1)


def lanes_of(points: Points, loop: int, threads: int) -> int:
    """Return how many neighbours along ``loop`` a thread has, so that ``threads`` have some."""
    widths = {
        n: width(access, points, loop)
        for n, access in enumerate(points.accesses)
        if lanes_in_memory(access, points, loop)
    }
    lanes = widest(points, widths)
    while lanes > 1 and (points.shape[loop] % lanes or math.prod(points.shape) // lanes < threads):
        lanes //= 2
    return lanes


def width(access: Access, points: Points, loop: int) -> int:
    """Return how many elements one wide access may move, from its alignment in memory."""
    buffer = access.buffer
    if not access.always or buffer.dtype.is_packed:
        return 1
    if any(length(index, {}) > LONGEST for index in access.place):
        return 1
    return math.gcd(alignment(access, points, loop), chunk(access), group(access, points, loop))


def group(access: Access, points: Points, loop: int) -> int:
    """Return how many neighbours lie side by side and are asked for by the same conditions."""
    name, lets = points.names[loop], points.context.lets
    alike = (lanes_alike(cond.meaning, name, lets) for cond in access.under)
    return math.gcd(lanes_in_memory(access, points, loop) or 1, *alike)


def chunk(access: Access) -> int:
    """Return the elements of the widest access of one thread."""
    return CHUNK_BYTES // access.buffer.dtype.itemsize


def alignment(access: Access, points: Points, loop: int) -> int:
    """Return a power of two that divides the offset of every access at lane 0 (elements).

    The other loops and the lanes before a multiple of the result count as multiples of it.
    """
    buffer, name, lets = access.buffer, points.names[loop], points.context.lets
    found = divisor(buffer.shape[-1], {}) or 1  # an access lies inside a row, or outside of it
    for axis, index in enumerate(access.place):
        found = math.gcd(found, start(index, name, lets) * _stride(buffer, axis))
    return math.gcd(found, MAX_LANES)


def _stride(buffer: Buffer, axis: int) -> int:
    """Return a number that divides the elements from index to index of an axis."""
    if buffer.strides is not None:
        return divisor(buffer.strides[axis], {}) or 1
    return math.prod(divisor(extent, {}) or 1 for extent in buffer.shape[axis + 1 :])


def widest(points: Points, widths: Mapping[int, int]) -> int:
    """Return the lanes of the widest access, of tensors where there are any."""
    tensors = [w for n, w in widths.items() if points.accesses[n].buffer.scope == "global"]
    return max(tensors or widths.values(), default=1)
