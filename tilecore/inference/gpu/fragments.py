"""Who holds what: the distributions of fragments, from the instructions and loops that use them.

What products fix comes first; loops take the distribution of a fragment that they index by their
variables and hand it on to the others; what is left is spread so that neighbours are accessed
together. A fragment whose uses cannot all be served is kept in shared memory instead: slower,
never wrong, and `explain` says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilecore.errors import UnsupportedOnTarget
from tilecore.inference.gpu.accesses.matrix_moves import matrix_move
from tilecore.inference.gpu.accesses.neighbours import course_in_memory
from tilecore.inference.gpu.accesses.widths import (
    lanes_of,
    most_neighbours,
    wide_accesses,
    widest,
    width,
)
from tilecore.inference.gpu.distribution import Digit, Distribution, by_slot, coarser, spread
from tilecore.inference.gpu.loops import Access, Points, axes_of
from tilecore.inference.gpu.owners import (
    MEMORY,
    Left,
    divided,
    keeps_all_copies,
    places_in_turn,
    runs_of,
)
from tilecore.inference.gpu.places import slots_of
from tilecore.inference.gpu.plan import GemmPlan, NestPlan
from tilecore.ir.nodes import Buffer, Reduce, Scan, Stmt
from tilecore.ir.visitor import distinct


@dataclass(slots=True)
class Fragments:
    """The distributions found so far, and what is known to be kept in shared memory."""

    threads: int
    warp: int = 32  # threads that shuffles reach
    matrix_moves: frozenset[str] = frozenset()  # of a warp: "load", "store"
    held: dict[Buffer, Distribution] = field(default_factory=dict)
    shared: dict[Buffer, str] = field(default_factory=dict)  # with the reason
    folded: dict[Buffer, set[int]] = field(default_factory=dict)  # axes along which it is reduced

    asked: Mapping[Buffer, Distribution] = field(default_factory=dict)  # by the program
    refused: set[Buffer] = field(default_factory=set)  # of those, what cannot be served

    spread: frozenset[Buffer] = frozenset()  # what is not the same in, or private to, each thread

    variables: frozenset[Buffer] = frozenset()  # of each thread, in a program of none

    left: Left = field(default_factory=dict)  # variables that nests leave a value in

    kin: Mapping[Buffer, frozenset[Buffer]] = field(default_factory=dict)  # of one memory
    clash: tuple[Buffer, str] | None = None  # what cannot be held as it is seen, and why

    @property
    def updated(self) -> frozenset[Buffer]:
        """What the points of a nest may update in turn, shared tiles aside."""
        return self.spread | self.variables

    def hold(self, buffer: Buffer, distribution: Distribution) -> None:
        """Give a fragment, and those that see its memory in another shape, a distribution."""
        self.held[buffer] = distribution
        for other in self.kin.get(buffer, ()):
            shape = other.static_shape
            assert shape is not None
            found = distribution.reshaped(shape)
            if found is None or self.held.setdefault(other, found) != found:
                self.clash = self.clash or (buffer, f"`{other.name}` is spread in another way")

    def keep_in_memory(self, buffer: Buffer, reason: str) -> None:
        """Keep a fragment, and those that see its memory in another shape, in shared memory."""
        for one in (buffer, *self.kin.get(buffer, ())):
            self.shared.setdefault(one, reason)

    def is_register(self, buffer: Buffer) -> bool:
        """Return whether a buffer is a fragment that threads hold."""
        return buffer in self.spread and buffer not in self.shared


def distribute(
    statements: Sequence[Points],
    gemms: Iterable[GemmPlan],
    fragments: Fragments,
    moved: Sequence[tuple[Buffer, Distribution]] = (),
) -> dict[Stmt, NestPlan]:
    """Fill ``fragments`` and return how each statement runs.

    ``moved``: fragments that tensor memory is copied to or from, with how they must be spread. A
    fragment that does not fit is added to ``fragments.shared`` and all begins anew.
    """
    fixed = list(gemms)
    fragments.folded = _folded_axes(statements)
    while True:
        fragments.held.clear()
        fragments.clash = None
        in_shared = frozenset(fragments.shared)
        statements = [replace(points, in_shared=in_shared) for points in statements]
        refused = _settle(statements, fixed, fragments, moved)
        if refused is None:
            plans = {}
            for points in statements:
                distribution = _distribution(points, fragments)
                refused = _divided(points, distribution, fragments)
                refused = refused or _misfit(points, distribution, fragments)
                if refused is not None:
                    break
                plans[points.stmt] = nest_plan(points, distribution, fragments)
            else:
                return plans
        buffer, reason = refused
        if buffer in fragments.asked and buffer not in fragments.refused:
            fragments.refused.add(buffer)  # better another layout than shared memory
        else:
            fragments.keep_in_memory(buffer, reason)


def _folded_axes(statements: Sequence[Points]) -> dict[Buffer, set[int]]:
    """Return the axes along which each fragment is folded."""
    found: dict[Buffer, set[int]] = {}
    for points in statements:
        for access in points.accesses:
            loops = _loops_of(access, points) if points.folded else None
            axes = {a for a, p in (loops or {}).items() if p in points.folded}
            if axes and access.buffer.scope in ("fragment", "local"):
                found.setdefault(access.buffer, set()).update(axes)
    return found


def _settle(
    statements: Sequence[Points],
    gemms: Sequence[GemmPlan],
    fragments: Fragments,
    moved: Sequence[tuple[Buffer, Distribution]],
) -> tuple[Buffer, str] | None:
    """Give every fragment a distribution; return one that instructions want in two ways."""
    fixed = list(moved)
    for plan in gemms:
        fixed += [(plan.stmt.c.buffer, plan.c)] if plan.keeps_c else []
        for region, operand in ((plan.stmt.a, plan.a), (plan.stmt.b, plan.b)):
            if operand.source == "registers":
                fixed.append((region.buffer, operand.distribution))
    for buffer, distribution in fixed:
        if not fragments.is_register(buffer):
            continue
        if fragments.held.get(buffer, distribution) != distribution:
            return buffer, "two instructions hold it differently"
        fragments.hold(buffer, distribution)
    for buffer, distribution in fragments.asked.items():
        is_open = fragments.is_register(buffer) and buffer not in fragments.refused
        if is_open and buffer not in fragments.held:
            fragments.hold(buffer, distribution)
    while True:
        _propagate(statements, fragments)
        open_ones = [p for p in statements if _unknown(p, fragments)]
        if not open_ones or fragments.clash is not None:
            return fragments.clash
        first = max(open_ones, key=lambda p: (math.prod(p.shape), most_neighbours(p)))
        before = len(fragments.held)
        _hand_on(first, _distribution(first, fragments), fragments)
        if len(fragments.held) == before:  # no use by loop variables: rows of its own
            buffer = _unknown(first, fragments)[0]
            shape = buffer.static_shape
            assert shape is not None
            fragments.hold(buffer, spread(shape, fragments.threads))


def _propagate(statements: Sequence[Points], fragments: Fragments) -> None:
    """Hand on what is known: first where it says how all loops run, which leaves nothing open."""
    while True:
        before = len(fragments.held)
        for is_whole in (True, False):
            for points in statements:
                guides = _guides(points, fragments) if _unknown(points, fragments) else []
                if guides and (not is_whole or len(guides[0][1]) == len(points.shape)):
                    _hand_on(points, _distribution(points, fragments), fragments)
                    if not is_whole and len(fragments.held) > before:
                        break
            if len(fragments.held) > before:
                break
        if len(fragments.held) == before:
            return


def _unknown(points: Points, fragments: Fragments) -> list[Buffer]:
    return [
        a.buffer
        for a in points.accesses
        if fragments.is_register(a.buffer) and a.buffer not in fragments.held
    ]


def _loops_of(access: Access, points: Points) -> dict[int, int] | None:
    """Return the loop that each axis of a fragment is indexed by (plus a constant), or None.

    Axes that no loop indexes are left out.
    """
    found = axes_of(access, points)
    if found is None or any(part > 1 for _, part in found.values()):
        return None
    return {axis: loop for axis, (loop, _) in found.items()}


def _guides(points: Points, fragments: Fragments) -> list[tuple[Access, dict[int, int]]]:
    """Return the accesses to known fragments that say how the loops run, the fullest first."""
    found = []
    for access in points.accesses:
        if access.buffer in fragments.held:
            loops = _loops_of(access, points)
            if loops:
                found.append((access, loops))
    return sorted(found, key=lambda pair: -math.prod(points.shape[p] for p in pair[1].values()))


def _distribution(points: Points, fragments: Fragments) -> Distribution:
    """Return how the points of a statement run, given the fragments that are known."""
    guides = _guides(points, fragments)
    if not guides or (
        isinstance(points.stmt, Scan) and not _fits_scan(points, guides[0], fragments)
    ):
        return _free(points, fragments)
    access, loops = guides[0]
    held = fragments.held[access.buffer]
    axes: list[tuple[Digit, ...]] = [()] * len(points.shape)
    for axis, loop in loops.items():
        axes[loop] = _counting(held.axes[axis], points.shape[loop])
    rest = [p for p in range(len(points.shape)) if p not in loops.values()]
    order = max((d.stride * d.extent for d in held.digits(in_thread=False)), default=1)
    in_turn = any(run > 1 for run in runs_of(points, fragments.updated, fragments.left))
    pool = [] if in_turn else list(_without(held, set(loops)).copies)
    for loop in reversed(rest):
        digits: list[Digit] = []
        extent = points.shape[loop]
        while pool and extent > 1:
            digit = pool.pop(0)
            count = math.gcd(digit.extent, extent)
            if count > 1:
                digits.append(Digit(count, digit.stride, in_thread=True))
                extent //= count
            if count < digit.extent:
                pool.insert(0, Digit(digit.extent // count, digit.stride * count, in_thread=True))
                break
        digits.append(by_slot(extent, order))
        order *= extent
        axes[loop] = tuple(reversed(digits))
    return Distribution(points.shape, tuple(axes), fragments.threads).compact()


def _counting(digits: tuple[Digit, ...], extent: int) -> tuple[Digit, ...]:
    """Return the digits of an axis as far as a loop over a part of it counts: slots beyond go."""
    covered = math.prod(d.extent for d in digits)
    while digits and not digits[0].in_thread:
        covered //= digits[0].extent
        needed = -(-extent // covered)
        if needed > 1:
            return (replace(digits[0], extent=needed), *digits[1:])
        digits = digits[1:]
    return digits


def _fits_scan(points: Points, guide: tuple[Access, dict[int, int]], fragments: Fragments) -> bool:
    """Return whether a thread holds whole rows of a fragment that is scanned."""
    access, loops = guide
    axes = fragments.held[access.buffer].axes
    return not any(d.in_thread for a, p in loops.items() if p in points.folded for d in axes[a])


def _without(held: Distribution, used: set[int]) -> Distribution:
    return held.without(a for a in range(len(held.shape)) if a not in used)


def _free(points: Points, fragments: Fragments) -> Distribution:
    """Return a distribution that reads and writes memory in wide, neighbouring accesses."""
    threads = fragments.threads
    if not points.shape:
        return Distribution((), (), threads)
    counts = [  # elements that come side by side
        sum(
            _elements(access, points)
            for access in points.accesses
            if course_in_memory(access, points, p) is not None
        )
        for p in range(len(points.shape))
    ]
    last = len(points.shape) - 1
    lane = max(range(len(counts)), key=lambda p: (counts[p], p))
    lane = last if points.asked_width or not counts[lane] else lane
    order = [p for p in range(len(points.shape)) if p != lane] + [lane]
    shape = [points.shape[p] for p in order]
    most = _most_threads(points, fragments)
    limits = None if most is None else [most[p] for p in order]
    lanes = lanes_of(points, lane, min(threads, fragments.warp))
    lanes = math.gcd(lanes, points.asked_width) if points.asked_width else lanes
    runs = runs_of(points, fragments.updated, fragments.left)
    found = spread(shape, threads, lanes, limits, [runs[p] for p in order])
    axes = [found.axes[order.index(p)] for p in range(len(order))]
    return Distribution(points.shape, tuple(axes), threads)


def _elements(access: Access, points: Points) -> int:
    """Return how many elements the points access at most: of a row fewer than of a matrix."""
    parts = {part for index in access.place for part in distinct(index)}
    return math.prod(n for p, n in enumerate(points.shape) if points.names[p] in parts)


def _most_threads(points: Points, fragments: Fragments) -> list[int] | None:
    """Return how many threads each loop may be spread over; None: as many as there are.

    What is folded stays within a warp, where rows are enough for all warps; what is scanned stays
    within a thread.
    """
    threads, folded = fragments.threads, set(points.folded)
    for access in points.accesses:
        loops = _loops_of(access, points) or {}
        folded |= {p for a, p in loops.items() if a in fragments.folded.get(access.buffer, ())}
    if not folded:
        return None
    rows = math.prod(n for p, n in enumerate(points.shape) if p not in folded)
    if rows * fragments.warp < threads and not isinstance(points.stmt, Scan):
        return None
    most = 1 if isinstance(points.stmt, Scan) else fragments.warp
    return [most if p in folded else threads for p in range(len(points.shape))]


def _hand_on(points: Points, distribution: Distribution, fragments: Fragments) -> None:
    """Give the unknown fragments of a statement the distribution of its loops."""
    for access in points.accesses:
        buffer = access.buffer
        if not fragments.is_register(buffer) or buffer in fragments.held:
            continue
        loops = axes_of(access, points)
        shape = buffer.static_shape
        if loops is None or shape is None:
            continue
        wanted = {a: coarser(distribution.axes[p], c) for a, (p, c) in loops.items()}
        if None in wanted.values():
            continue
        if isinstance(points.stmt, Reduce) and access.is_store:
            pass  # threads along a folded axis all learn the result
        axes: list[tuple[Digit, ...]] = []
        slots = max((d.stride * d.extent for d in distribution.digits(in_thread=False)), default=1)
        for axis, extent in enumerate(shape):
            digits = wanted.get(axis) or ()
            covered = math.prod(d.extent for d in digits)
            if covered < extent:  # loops over a part: the others are further slots
                more = -(-extent // covered)
                digits = (by_slot(more, slots), *digits)
                slots *= more
            axes.append(digits)
        found = Distribution(shape, tuple(axes), fragments.threads).compact()
        fragments.hold(buffer, found)


def _misfit(
    points: Points, distribution: Distribution, fragments: Fragments
) -> tuple[Buffer, str] | None:
    """Return a fragment that the threads running the points do not hold, and why."""
    for access in points.accesses:
        if access.buffer not in fragments.held:
            continue
        held = fragments.held[access.buffer]
        where = distribution
        if isinstance(points.stmt, Reduce) and access.is_store:
            where = distribution.without(points.folded)
            names = tuple(n for p, n in enumerate(points.names) if p not in points.folded)
        else:
            names = points.names
        line = points.stmt.span.line
        if slots_of(where, names, access.indices, held) is None:
            return access.buffer, f"line {line} needs elements that other threads hold"
        is_private = access.buffer.scope == "local"  # what a thread has for its own points
        if access.is_store and not (is_private or keeps_all_copies(where, held)):
            return access.buffer, f"line {line} sets elements that other threads hold, too"
    return None


def _divided(
    points: Points, distribution: Distribution, fragments: Fragments
) -> tuple[Buffer, str] | None:
    """Return a fragment that divides among threads what one of them must update in turn."""
    found = divided(points, distribution, fragments.updated, fragments.left)
    if found is None:
        beside = _stored_beside(points, distribution, fragments)
        return beside or _read_beside(points, distribution, fragments)
    buffer, loop = found
    reason = f"line {points.stmt.span.line} updates elements of {buffer.name} in turn"
    for access, loops in _guides(points, fragments):
        if access.buffer is not buffer or loop in loops.values():
            return access.buffer, reason
    raise UnsupportedOnTarget(
        what=f"a parallel loop whose iterations update the same elements of `{buffer.name}`",
        target="gpu", reason="several threads would update them at once",
        span=points.stmt.span, hint="use T.alloc_reducer, T.reduce_sum or T.serial",
    )  # fmt: skip


def _stored_beside(
    points: Points, distribution: Distribution, fragments: Fragments
) -> tuple[Buffer, str] | None:
    """Return a fragment set in copies where one thread alone updates shared memory in turn."""
    in_memory = [b for b, _ in places_in_turn(points) if b not in fragments.held and not b.is_var]
    if not in_memory or not distribution.copies:
        return None
    left = fragments.left.get(points.nest, frozenset()) if points.nest is not None else frozenset()
    if left:
        name = min(b.name for b in left)
        raise UnsupportedOnTarget(
            what=f"a parallel loop that updates elements of `{in_memory[0].name}` in turn and "
            f"leaves a value in `{name}`",
            target="gpu", reason="one thread alone runs it; others would not learn the value",
            span=points.stmt.span,
            hint=f"use T.serial, or set `{name}` in a loop of its own",
        )  # fmt: skip
    reason = f"line {points.stmt.span.line} updates elements of {in_memory[0].name} in turn"
    return _set_in_copies(points, fragments, reason)


def _set_in_copies(points: Points, fragments: Fragments, reason: str) -> tuple[Buffer, str] | None:
    """Return a fragment that points set, of which threads hold copies."""
    stored = (a.buffer for a in points.accesses if a.is_store)
    return next(((b, reason) for b in stored if b in fragments.held), None)


def _read_beside(
    points: Points, distribution: Distribution, fragments: Fragments
) -> tuple[Buffer, str] | None:
    """Return a fragment set in copies by points that read what they write to memory.

    One of the threads that run such a point writes, and the others would read at any time.
    """
    if not distribution.copies:
        return None
    memory = [a for a in points.accesses if a.buffer.scope in MEMORY]
    read = {a.buffer.root for a in memory if not a.is_store}
    written = next((a.buffer for a in memory if a.is_store and a.buffer.root in read), None)
    if written is None:
        return None
    reason = f"line {points.stmt.span.line} reads elements of {written.name} that it writes"
    return _set_in_copies(points, fragments, reason)


def nest_plan(points: Points, distribution: Distribution, fragments: Fragments) -> NestPlan:
    """Return the plan of a statement: how many neighbours of which loop move at once."""
    best = NestPlan(points, distribution)
    if points.folded:
        return best
    matrices = matrix_move(points, distribution, fragments.matrix_moves, width)
    if matrices is not None:
        return replace(best, matrices=matrices)
    for loop, digits in enumerate(distribution.axes):
        is_own = digits and not digits[-1].in_thread and digits[-1].stride == 1
        most = digits[-1].extent if is_own else 1
        lanes = widest(points, loop, most)
        while lanes > 1 and points.shape[loop] % lanes:
            lanes //= 2
        wide = wide_accesses(points, loop, lanes)
        if wide and (lanes > best.lanes or not best.wide):
            best = NestPlan(points, distribution, lanes, wide)
    return best
