"""How expressions change from neighbour to neighbour: from one point of a loop to the next.

Neighbours come in groups that begin at multiples of a power of two. ``k // 64`` is alike in a group
of 16 and ``k % 64`` grows by one, as indices of convolutions do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilecore.inference.gpu.loops import Access, Points, divisor
from tilecore.inference.gpu.plan import CHUNK_BYTES
from tilecore.ir.arithmetic.bounds import linear, step_of
from tilecore.ir.arithmetic.length import LONGEST, length
from tilecore.ir.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Unary,
    Var,
    binary,
    const,
    int_value,
)
from tilecore.ir.nodes import Buffer
from tilecore.ir.visitor import expr_children, walk_expr

MAX_LANES = 16
MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
Growth = tuple[int | None, int]  # from one to the next (None: unknown), in what groups
UNKNOWN: Growth = (None, 1)


def growth(expr: Expr, name: Var, lets: Mapping[Var, Expr]) -> Growth:
    """Return by how much an expression grows with ``name`` within groups of neighbours."""
    step = step_of(expr, name)
    if step is not None:
        return step, MAX_LANES
    match expr:
        case Binary(op="floordiv" | "mod", a=a, b=Const(value=value)) if (
            expr.dtype.is_integer and int(value) > 0
        ):
            inner, lanes = growth(a, name, lets)
            if inner == 0:
                return 0, lanes
            if inner != 1:
                return UNKNOWN
            lanes = math.gcd(lanes, int(value), start(a, name, lets))
            return (0 if expr.op == "floordiv" else 1), lanes
        case Binary(op="add" | "sub", a=a, b=b):
            (one, lanes), (other, others) = growth(a, name, lets), growth(b, name, lets)
            if one is None or other is None:
                return UNKNOWN
            return (one + other if expr.op == "add" else one - other), math.gcd(lanes, others)
        case Binary(op="mul", a=a, b=b):
            factor, rest = (int_value(a), b) if int_value(a) is not None else (int_value(b), a)
            inner, lanes = growth(rest, name, lets)
            if factor is not None and inner is not None:
                return factor * inner, lanes
        case Cast(a=a) if a.dtype.is_integer and expr.dtype.is_integer and _is_wide(expr, a):
            return growth(a, name, lets)
        case _:
            pass
    parts = () if isinstance(expr, Call) else expr_children(expr)
    lanes = min((_alike(part, name, lets) for part in parts), default=1)
    return (0, lanes) if lanes > 1 else UNKNOWN


def _is_wide(expr: Cast, inner: Expr) -> bool:
    return min(expr.dtype.bits, inner.dtype.bits) >= 32


def _alike(expr: Expr, name: Var, lets: Mapping[Var, Expr]) -> int:
    step, lanes = growth(expr, name, lets)
    return lanes if step == 0 else 1


def start(expr: Expr, name: Var, lets: Mapping[Var, Expr]) -> int:
    """Return a number that divides an integer expression at the first of any group."""
    return divisor(expr, {**lets, name: const(0)})


def lanes_alike(cond: Expr, name: Var, lets: Mapping[Var, Expr]) -> int:
    """Return a power of two: groups of so many neighbours have a condition alike.

    A comparison that changes its outcome does so at a multiple of it.
    """
    alike = _alike(cond, name, lets)
    if alike > 1:
        return alike
    if isinstance(cond, Unary) and cond.op == "not":
        return lanes_alike(cond.a, name, lets)
    if not isinstance(cond, Binary):
        return 1
    if cond.op in ("and", "or"):
        return math.gcd(*(lanes_alike(part, name, lets) for part in (cond.a, cond.b)))
    op, moving, fixed = cond.op, cond.a, cond.b
    if growth(moving, name, lets)[0] == 0:
        op, moving, fixed = MIRRORED.get(op, ""), fixed, moving
    (step, lanes), (other, others) = growth(moving, name, lets), growth(fixed, name, lets)
    if (step, other) != (1, 0):
        return 1
    if op in ("le", "gt"):  # less than one more
        fixed = binary("add", fixed, 1)
    elif op not in ("lt", "ge"):
        return 1
    return math.gcd(lanes, others, start(moving, name, lets), start(fixed, name, lets))


def _loads(expr: Expr) -> Iterator[Load]:
    return (part for part in walk_expr(expr) if isinstance(part, Load))


def _stays(load: Load, stored: set[Buffer]) -> bool:
    """Return whether an element is in memory, or a variable, and the nest does not write there."""
    is_seen = load.buffer.scope in ("global", "shared") or load.buffer.is_var
    return is_seen and load.buffer.root not in stored


@dataclass(frozen=True, slots=True)
class Course:
    """Where an access goes from point to point of a loop.

    Attributes:
        lanes: points in a group whose elements lie ``step`` apart in memory.
        step: 1: they lie side by side. Else they are of groups of ``step`` elements, one of each.
        which: the element of its group.
        axis: the axis that counts the elements or, if the last one is a group, the groups.
        place: the indices of the first element of the group.
    """

    lanes: int
    step: int
    which: int
    axis: int
    place: tuple[Expr, ...]


def course_in_memory(access: Access, points: Points, loop: int) -> Course | None:
    """Return where an access of memory goes along ``loop``; None: nowhere that is near.

    A group is at most what one instruction moves.
    """
    buffer, place = access.buffer, access.place
    is_memory = buffer.scope in ("global", "shared") or buffer in points.in_shared
    if not is_memory or not place:
        return None
    if any(length(index, {}) > LONGEST for index in place):  # the rounds of a hash, written out
        return None
    if buffer.strides is not None and int_value(buffer.strides[-1]) != 1:
        return None
    stored = {a.buffer.root for a in points.accesses if a.is_store}
    if any(not _stays(load, stored) for index in place for load in _loads(index)):
        return None
    name, lets = points.names[loop], points.context.lets
    found = [growth(index, name, lets) for index in place]
    lanes = math.gcd(*(lanes for _, lanes in found))
    last, moving = len(place) - 1, [axis for axis, (step, _) in enumerate(found) if step != 0]
    if moving == [last] and found[last][0] == 1:
        return Course(lanes, 1, 0, last, place)
    most = CHUNK_BYTES // buffer.dtype.itemsize
    if moving == [last]:
        step, form = found[last][0] or 0, linear(place[last])
        if not 1 < step <= most or form is None or form.quotient(step) is None:
            return None
        which = form.constant % step
        first = place[last] if which == 0 else binary("sub", place[last], which)
        return Course(lanes, step, which, last, (*place[:last], first))
    if moving == [last - 1] and found[last - 1][0] == 1 and buffer.scope == "global":
        size, part = int_value(buffer.shape[last]) or 0, int_value(place[last])
        if buffer.strides is None and part is not None and 0 <= part < size and 1 < size <= most:
            return Course(lanes, size, part, last - 1, (*place[:last], const(0)))
    return None
