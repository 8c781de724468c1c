"""How many neighbouring elements one access may move, from its alignment in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tilecore.inference.gpu.loops import Access, Points, divisor, is_contiguous
from tilecore.inference.gpu.plan import CHUNK_BYTES
from tilecore.ir.bounds import linear, step_of
from tilecore.ir.expr import Binary, Expr, Unary, Var, binary, int_value
from tilecore.ir.nodes import Buffer

MAX_LANES = 16
MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def most_neighbours(points: Points) -> int:
    """Return how many neighbours the widest access of a statement may move."""
    return max((lanes_of(points, loop, 1) for loop in range(len(points.shape))), default=1)


def lanes_of(points: Points, loop: int, threads: int) -> int:
    """Return how many neighbours along ``loop`` a thread has, so that ``threads`` have some."""
    widths = {
        n: width(access, points, loop)
        for n, access in enumerate(points.accesses)
        if is_contiguous(access, points.names[loop])
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
    alike = (_lanes_alike(cond, points, loop) for cond, _ in access.under)
    return math.gcd(alignment(access, points, loop), chunk(access), *alike)


def _lanes_alike(cond: Expr, points: Points, loop: int) -> int:
    """Return a power of two: for so many neighbours, from a multiple of it on, ``cond`` is alike.

    That is where a comparison changes its outcome at a multiple of it.
    """
    name, lets = points.names[loop], points.context.lets
    if step_of(cond, name) == 0:
        return MAX_LANES
    if isinstance(cond, Unary) and cond.op == "not":
        return _lanes_alike(cond.a, points, loop)
    if not isinstance(cond, Binary):
        return 1
    if cond.op in ("and", "or"):
        return math.gcd(*(_lanes_alike(part, points, loop) for part in (cond.a, cond.b)))
    op, moving, fixed = cond.op, cond.a, cond.b
    if step_of(moving, name) == 0:
        op, moving, fixed = MIRRORED.get(op, ""), fixed, moving
    rest = _without_name(moving, {name})
    if (step_of(moving, name), step_of(fixed, name)) != (1, 0) or rest is None:
        return 1
    if op in ("le", "gt"):  # less than one more
        fixed = binary("add", fixed, 1)
    elif op not in ("lt", "ge"):
        return 1
    return math.gcd(divisor(rest, lets), divisor(fixed, lets), MAX_LANES)


def chunk(access: Access) -> int:
    """Return the elements of the widest access of one thread."""
    return CHUNK_BYTES // access.buffer.dtype.itemsize


def alignment(access: Access, points: Points, loop: int) -> int:
    """Return a power of two that divides the offset of every access at lane 0 (elements).

    The other loops and the lanes before a multiple of the result count as multiples of it.
    """
    buffer, lets = access.buffer, points.context.lets
    inner = {points.names[loop]}
    found = int_value(buffer.shape[-1]) or 1  # an access lies inside a row, or outside of it
    for axis, index in enumerate(access.indices):
        step = _stride(buffer, axis)
        rest = _without_name(index, inner) if axis == len(access.indices) - 1 else index
        if rest is None:
            return 1
        found = math.gcd(found, divisor(rest, lets) * step)
    return math.gcd(found, MAX_LANES)


def _without_name(index: Expr, names: set[Var]) -> Expr | None:
    form = linear(index)
    if form is None:
        return None
    return replace(
        form, coefficients={v: c for v, c in form.coefficients.items() if v not in names}
    ).to_expr()


def _stride(buffer: Buffer, axis: int) -> int:
    """Return a number that divides the elements from index to index of an axis."""
    if buffer.strides is not None:
        return int_value(buffer.strides[axis]) or 1
    step = 1
    for extent in buffer.shape[axis + 1 :]:
        step *= int_value(extent) or 1
    return step


def widest(points: Points, widths: Mapping[int, int]) -> int:
    """Return the lanes of the widest access, of tensors where there are any."""
    tensors = [w for n, w in widths.items() if points.accesses[n].buffer.scope == "global"]
    return max(tensors or widths.values(), default=1)
