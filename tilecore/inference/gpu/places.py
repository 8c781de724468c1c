"""Where a nest finds the elements of a fragment: in which slot of the thread that runs a point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilecore.errors import ScopeError
from tilecore.inference.gpu.distribution import Digit, Distribution, Table
from tilecore.ir.arithmetic.bounds import Linear, linear
from tilecore.ir.expr import Expr, Load, Var
from tilecore.ir.values.evaluate import Evaluator
from tilecore.ir.visitor import walk_expr


@dataclass(frozen=True, slots=True)
class Slots:
    """The slot of a fragment's element for each slot of the nest that accesses it.

    Attributes:
        base: the slot at slot 0 of the nest.
        steps: slots from one value of a digit of the nest to the next, by the digit's stride.
        table: the slot for every slot of the nest, where it is no sum of steps.
        outer: what outer loops add, as (index expression, weight, extent, stride) of digits.
    """

    base: int
    steps: Mapping[int, int]
    table: tuple[int, ...] | None = None
    outer: tuple[tuple[Expr, int, int, int], ...] = ()


def points(nest: Distribution, step: int = 1) -> tuple[list[Table], Table]:
    """Return (index along each axis, whether the point exists), both by thread and slot.

    ``step``: of every so many slots.
    """
    thread = np.arange(nest.threads)[:, None]
    slot = np.arange(0, nest.slots, step)[None, :]
    indices, exists = [], np.ones((nest.threads, slot.size), bool)
    for axis, extent in enumerate(nest.shape):
        by_thread, by_slot = np.zeros_like(thread), np.zeros_like(slot)
        for digit, weight in nest.weights(axis):
            if digit.in_thread:
                by_thread = by_thread + thread // digit.stride % digit.extent * weight
            else:
                by_slot = by_slot + slot // digit.stride % digit.extent * weight
        index = by_thread + by_slot
        if nest.is_padded(axis):
            exists &= index < extent
        indices.append(index)
    return indices, exists


def slots_of(
    nest: Distribution, names: Sequence[Var], indices: Sequence[Expr], fragment: Distribution
) -> Slots | None:
    """Return where the threads of ``nest`` find ``fragment[indices]``; None: in other threads.

    Args:
        nest: how the points of the loops are spread.
        names: the loop variables.
        indices: the index of the fragment, in terms of these and of outer variables.
        fragment: how the fragment is spread.
    """
    values, exists = points(nest)
    evaluator = Evaluator(dict(zip(names, values, strict=True)))
    inner = set(names)
    found: list[Table] = []
    outer: list[tuple[Expr, int, int, int]] = []
    for axis, index in enumerate(indices):
        nodes = list(walk_expr(index))
        if any((isinstance(n, Var) and n not in inner) or isinstance(n, Load) for n in nodes):
            if any(n in inner for n in nodes):
                mixed = _mixed(index, inner, fragment.weights(axis))
                if mixed is None:
                    return None
                more, within, step = mixed
                taken = np.broadcast_to(np.asarray(evaluator(within), np.int64), exists.shape)
                if np.any(exists & ((taken < 0) | (taken >= step))):
                    return None
                outer += more
                found.append(taken)
                continue
            if any(d.in_thread for d in fragment.axes[axis]):
                return None
            outer += [(index, w, d.extent, d.stride) for d, w in fragment.weights(axis)]
            found.append(np.zeros((nest.threads, nest.slots), np.int64))
            continue
        try:
            found.append(np.asarray(evaluator(index), np.int64))
        except ScopeError:
            return None
    shape = (nest.threads, nest.slots)
    owner, slot = (np.broadcast_to(t, shape) for t in fragment.owner(found))
    held = np.broadcast_to(fragment.copy_mask[:, None], shape)
    if not np.array_equal(owner[exists], held[exists]):
        return None
    return _regular(nest, np.where(exists, slot, -1), tuple(outer))


def _mixed(
    index: Expr, inner: set[Var], weights: Sequence[tuple[Digit, int]]
) -> tuple[list[tuple[Expr, int, int, int]], Expr, int] | None:
    """Return what an index says of the digits of an axis that loops of and around a nest count.

    It is a multiple of a step that all points have alike, and less than a step that they add.

    Returns:
        The digits that all have alike (``Slots.outer``), what points add, and the step; None: it is
        no such sum, or all would have to know a thread.
    """
    form = linear(index)
    if form is None:
        return None
    own = {v: c for v, c in form.coefficients.items() if v in inner}
    alike = {v: c for v, c in form.coefficients.items() if v not in inner}
    step = math.gcd(*alike.values())
    whole = Linear(alike, form.constant // step * step).to_expr()
    outer = []
    for digit, weight in weights:
        end = weight * digit.extent
        if end <= step and step % end == 0:
            continue  # points decide it
        cut = max(1, step // weight)
        if digit.in_thread or weight * cut % step or digit.extent % cut:
            return None
        outer.append((whole, weight * cut, digit.extent // cut, digit.stride * cut))
    return outer, Linear(own, form.constant % step).to_expr(), step


def _regular(
    nest: Distribution, slot: Table, outer: tuple[tuple[Expr, int, int, int], ...]
) -> Slots | None:
    """Return a table (thread, slot) of slots (-1: any) as sums of steps, if threads agree."""
    most = slot.max(axis=0)
    if np.any((slot != most[None, :]) & (slot >= 0)):
        return None
    known = most >= 0
    numbers = np.arange(nest.slots)
    base, steps = int(most[0]), {}
    for digit in nest.digits(in_thread=False):
        steps[digit.stride] = int(most[digit.stride]) - base
    guess = base + sum(
        numbers // d.stride % d.extent * steps[d.stride] for d in nest.digits(in_thread=False)
    )
    if known[0] and np.array_equal(np.broadcast_to(guess, most.shape)[known], most[known]):
        return Slots(base, steps, None, outer)
    return Slots(0, {}, tuple(int(s) for s in np.maximum(most, 0)), outer)


def extents(shape: Sequence[int]) -> int:
    """Return the number of points of a box."""
    return math.prod(shape)
