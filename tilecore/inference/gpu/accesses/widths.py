"""How many neighbouring elements one access may move, from its alignment in memory.

Accesses that interleave move together: of ``x[i, 2 * j]`` and ``x[i, 2 * j + 1]`` each one takes
every other element, both take them all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from tilecore.inference.gpu.accesses.neighbours import (
    MAX_LANES,
    Course,
    course_in_memory,
    lanes_alike,
    start,
)
from tilecore.inference.gpu.loops import Access, Points, divisor
from tilecore.inference.gpu.plan import CHUNK_BYTES, WideAccess
from tilecore.ir.arithmetic.polynomial import is_equal
from tilecore.ir.nodes import Buffer

MOST_BYTES = 128  # of an array in which a thread keeps what it moves at once: 32 registers


@dataclass(frozen=True, slots=True)
class _Group:
    """Accesses of the same elements, or of the same groups of ``course.step`` elements."""

    first: Access
    course: Course
    parts: dict[int, int] = field(default_factory=dict)  # by access: which element of the group


def most_neighbours(points: Points) -> int:
    """Return how many neighbours the widest access of a statement may move."""
    return max((lanes_of(points, loop, 1) for loop in range(len(points.shape))), default=1)


def lanes_of(points: Points, loop: int, threads: int) -> int:
    """Return how many neighbours along ``loop`` a thread has, so that ``threads`` have some."""
    lanes = widest(points, loop)
    while lanes > 1 and (points.shape[loop] % lanes or math.prod(points.shape) // lanes < threads):
        lanes //= 2
    return lanes


def widest(points: Points, loop: int, most: int = MAX_LANES) -> int:
    """Return the lanes of the widest access, of tensors where there are any; at most ``most``."""
    widths: dict[bool, list[int]] = {True: [], False: []}
    for access in points.accesses:
        if course_in_memory(access, points, loop) is not None:
            widths[access.buffer.scope == "global"].append(1)
    for group in _groups(points, loop):
        widths[group.first.buffer.scope == "global"].append(_wanted(group, points, loop))
    return max((math.gcd(w, most) for w in widths[True] or widths[False]), default=1)


def _wanted(group: _Group, points: Points, loop: int) -> int:
    """Return the lanes whose elements fill the widest access of one thread."""
    course, first = group.course, group.first
    if course.step == 1:
        return max(width(points.accesses[n], points, loop) for n in group.parts)
    if not _is_whole(group, points):
        return 1
    most = chunk(first, points)
    together = math.gcd(_alignment(first.buffer, course, points, loop), most, MAX_LANES)
    alike = (_alike(points.accesses[n], course, points, loop) for n in group.parts)
    return math.gcd(together // math.gcd(together, course.step), *alike)


def wide_accesses(points: Points, loop: int, lanes: int) -> tuple[WideAccess, ...]:
    """Return what moves at once where a thread has ``lanes`` neighbours along ``loop``."""
    found = []
    groups = _groups(points, loop, lanes)
    for group in groups:
        course, buffer = group.course, group.first.buffer
        elements, aligned = lanes * course.step, _alignment(buffer, course, points, loop)
        per_move = math.gcd(elements, chunk(group.first, points), aligned)
        is_small = elements * buffer.dtype.itemsize <= MOST_BYTES
        if per_move == 1 or not is_small:
            continue
        in_place = _is_in_place(group, groups, points)
        if not _is_whole(group, points) or (_is_mixed(group, points) and not in_place):
            continue
        parts, in_rows = tuple(group.parts.items()), aligned % elements == 0
        asked = (_asked_alike(points.accesses[n], points, loop) for n in group.parts)
        found.append(
            WideAccess(
                parts, course.step, course.axis, course.place, per_move, in_rows, in_place,
                for_all=min(asked) < lanes,
            )
        )  # fmt: skip
    return tuple(found)


def _groups(points: Points, loop: int, lanes: int = 1) -> list[_Group]:
    """Return the accesses of memory that may be wide, of which ``lanes`` points do the same."""
    found: list[_Group] = []
    for n, access in enumerate(points.accesses):
        course = course_in_memory(access, points, loop)
        if course is None or not access.always or not chunk(access, points):
            continue
        if course.step > 1 and access.buffer.dtype.is_packed:
            continue
        if _alike(access, course, points, loop) < lanes:
            continue
        group = next((g for g in found if _is_same(g, access, course)), None)
        if group is None:
            group = _Group(access, course)
            found.append(group)
        group.parts[n] = course.which
    return found


def _is_same(group: _Group, access: Access, course: Course) -> bool:
    first, other = group.first, group.course
    if (first.buffer, first.is_store) != (access.buffer, access.is_store):
        return False
    if first.is_added != access.is_added:
        return False
    return (course.step, course.axis) == (other.step, other.axis) and all(
        a is b or is_equal(a, b) for a, b in zip(course.place, other.place, strict=True)
    )


def _is_whole(group: _Group, points: Points) -> bool:
    """Return whether all elements of a group are asked for, and stored under the same conditions.

    An element may be stored more than once: in both branches of a condition, say.
    """
    under: dict[int, set[tuple[tuple[int, bool], ...]]] = {}
    for n, which in group.parts.items():
        conds = points.accesses[n].under
        under.setdefault(which, set()).add(tuple((id(c.written), c.holds) for c in conds))
    if under.keys() != set(range(group.course.step)):
        return False
    if group.first.is_added and len(group.parts) > group.course.step:
        return False
    return not group.first.is_store or all(u == under[0] for u in under.values())


def _is_mixed(group: _Group, points: Points) -> bool:
    """Return whether a point reads what it has written, or writes it elsewhere too."""
    root = group.first.buffer.root
    same = [n for n, a in enumerate(points.accesses) if a.buffer.root is root]
    stores = [n for n in same if points.accesses[n].is_store]
    if not stores:
        return False
    if any(n > stores[0] for n in same if n not in stores):
        return True
    return group.first.is_store and stores != list(group.parts)


def _is_in_place(group: _Group, groups: list[_Group], points: Points) -> bool:
    """Return whether points read what they have written, at the same place of a shared tile."""
    buffer = group.first.buffer
    if buffer.scope != "shared" and buffer not in points.in_shared:
        return False
    same = [n for n, a in enumerate(points.accesses) if a.buffer.root is buffer.root]
    stores = [n for n in same if points.accesses[n].is_store]
    if not stores or stores[0] > max(set(same) - set(stores), default=-1):
        return False
    own = [g for g in groups if g.first.buffer is buffer]
    if len(own) != 2 or sorted(n for g in own for n in g.parts) != same:
        return False
    one, other = own
    alike = replace(other.first, is_store=one.first.is_store)
    is_one_place = _is_same(one, alike, other.course)
    return is_one_place and all(_is_whole(g, points) for g in own)


def width(access: Access, points: Points, loop: int) -> int:
    """Return how many elements side by side one wide access may move, from its alignment."""
    buffer = access.buffer
    if not access.always or not chunk(access, points):
        return 1
    course = course_in_memory(access, points, loop)
    if course is None or course.step > 1:
        return 1
    aligned = _alignment(buffer, course, points, loop)
    return math.gcd(aligned, chunk(access, points), _alike(access, course, points, loop))


def _alike(access: Access, course: Course, points: Points, loop: int) -> int:
    """Return how many neighbours lie as ``course`` says and are asked for by one condition."""
    return (
        course.lanes
        if access.is_free
        else math.gcd(course.lanes, _asked_alike(access, points, loop))
    )


def _asked_alike(access: Access, points: Points, loop: int) -> int:
    """Return how many neighbours ask for an access alike."""
    name, lets = points.names[loop], points.context.lets
    alike = (lanes_alike(cond.meaning, name, lets) for cond in access.under)
    return math.gcd(MAX_LANES, *alike)


def chunk(access: Access, points: Points) -> int:
    """Return the elements of the widest access of one thread: of a tensor, two to a byte.

    0: of updates, where each is one for itself.
    """
    buffer = access.buffer
    if access.is_added:
        most = points.added_bytes.get(str(buffer.dtype), 0) if buffer.scope == "global" else 0
        return most // buffer.dtype.itemsize
    is_halved = buffer.dtype.is_packed and buffer.scope == "global"
    return CHUNK_BYTES // buffer.dtype.itemsize * (2 if is_halved else 1)


def _alignment(buffer: Buffer, course: Course, points: Points, loop: int) -> int:
    """Return a number that divides the offset of every access at lane 0, and rows (elements).

    The other loops and the lanes before a multiple of the result count as multiples of it.
    """
    name, lets = points.names[loop], points.context.lets
    # An access lies inside a row, or outside of it.
    found = math.prod(divisor(extent, {}) or 1 for extent in buffer.shape[course.axis :])
    for axis, index in enumerate(course.place):
        found = math.gcd(found, start(index, name, lets) * _stride(buffer, axis))
    return found


def _stride(buffer: Buffer, axis: int) -> int:
    """Return a number that divides the elements from index to index of an axis."""
    if buffer.strides is not None:
        return divisor(buffer.strides[axis], {}) or 1
    return math.prod(divisor(extent, {}) or 1 for extent in buffer.shape[axis + 1 :])
