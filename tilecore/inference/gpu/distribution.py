"""Distributions: how the points of a box are spread over the threads of a block.

Every axis is written in mixed radix, most significant digit first; a digit counts either threads
or slots (places in the registers of one thread, or turns of its loop). The accumulators of
``mma.m16n8`` over a tile of 32 x 16, for example, are

    axis 0: 2 slots (stride 8), 2 slots (stride 2), 8 threads (stride 4)
    axis 1: 2 slots (stride 4), 4 threads (stride 1), 2 slots (stride 1)

Threads that no digit counts hold copies. So both directions are closed forms: the index of a slot
of a thread for code, and a table of owners for checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit of an axis: ``extent`` values, ``stride`` threads (or slots) apart."""

    extent: int
    stride: int
    in_thread: bool

    def __str__(self) -> str:
        return f"{self.extent} {'threads' if self.in_thread else 'slots'} by {self.stride}"


def by_thread(extent: int, stride: int) -> Digit:
    """Return a digit that counts threads."""
    return Digit(extent, stride, in_thread=True)


def by_slot(extent: int, stride: int) -> Digit:
    """Return a digit that counts slots."""
    return Digit(extent, stride, in_thread=False)


@dataclass(frozen=True)
class Distribution:
    """A box of ``shape`` spread over ``threads``.

    The digits of an axis may count further than its extent: those points do not exist.
    """

    shape: tuple[int, ...]
    axes: tuple[tuple[Digit, ...], ...]
    threads: int

    def __post_init__(self) -> None:
        kept = tuple(tuple(d for d in axis if d.extent > 1) for axis in self.axes)
        object.__setattr__(self, "axes", kept)
        for extent, axis in zip(self.shape, kept, strict=True):
            assert math.prod(d.extent for d in axis) >= extent
        used = sorted(self.digits(in_thread=True), key=lambda d: d.stride)
        ends = [0, *(d.stride * d.extent for d in used)]
        assert all(d.stride % max(1, end) == 0 for d, end in zip(used, ends, strict=False))
        assert ends[-1] == 0 or self.threads % ends[-1] == 0

    def digits(self, *, in_thread: bool) -> tuple[Digit, ...]:
        """The digits that count threads, or slots."""
        return tuple(d for axis in self.axes for d in axis if d.in_thread is in_thread)

    @cached_property
    def slots(self) -> int:
        """How many points a thread has, those that do not exist included."""
        return math.prod(d.extent for d in self.digits(in_thread=False))

    @cached_property
    def copies(self) -> tuple[Digit, ...]:
        """The digits of the thread number that no axis counts: threads with the same points."""
        found, stride = [], 1
        for digit in sorted(self.digits(in_thread=True), key=lambda d: d.stride):
            if digit.stride > stride:
                found.append(by_thread(digit.stride // stride, stride))
            stride = digit.stride * digit.extent
        if self.threads > stride:
            found.append(by_thread(self.threads // stride, stride))
        return tuple(found)

    def is_padded(self, axis: int) -> bool:
        """Whether the digits of ``axis`` count further than its extent."""
        return math.prod(d.extent for d in self.axes[axis]) > self.shape[axis]

    def weights(self, axis: int) -> tuple[tuple[Digit, int], ...]:
        """Each digit of ``axis`` with what it counts for in the index."""
        found, weight = [], 1
        for digit in reversed(self.axes[axis]):
            found.append((digit, weight))
            weight *= digit.extent
        return tuple(reversed(found))

    def split(self, axis: int, index: Table) -> tuple[Table, Table]:
        """Return (thread of the first copy, slot), as far as ``axis`` decides them."""
        thread, slot = np.zeros_like(index), np.zeros_like(index)
        for digit, weight in self.weights(axis):
            value = index // weight % digit.extent * digit.stride
            if digit.in_thread:
                thread = thread + value
            else:
                slot = slot + value
        return thread, slot

    def owner(self, indices: Sequence[Table]) -> tuple[Table, Table]:
        """Return (thread of the first copy, slot) of the points at ``indices``."""
        thread, slot = np.int64(0), np.int64(0)
        for axis, index in enumerate(indices):
            t, s = self.split(axis, np.asarray(index, np.int64))
            thread, slot = thread + t, slot + s  # type: ignore[assignment]
        return np.asarray(thread), np.asarray(slot)

    @cached_property
    def copy_mask(self) -> Table:
        """For each thread the number of the first thread with the same points."""
        thread = np.arange(self.threads)
        for digit in self.copies:
            thread = thread - thread // digit.stride % digit.extent * digit.stride
        return thread

    def without(self, dropped: Iterable[int]) -> Distribution:
        """Return the distribution of the other axes; threads of dropped ones hold copies."""
        gone = set(dropped)
        kept = [a for a in range(len(self.shape)) if a not in gone]
        return Distribution(
            tuple(self.shape[a] for a in kept), tuple(self.axes[a] for a in kept), self.threads
        ).compact()

    def compact(self) -> Distribution:
        """Return the same with slots numbered without gaps, in the same order."""
        order = sorted({d.stride for d in self.digits(in_thread=False)})
        extents = {d.stride: d.extent for d in self.digits(in_thread=False)}
        strides, step = {}, 1
        for stride in order:
            strides[stride] = step
            step *= extents[stride]
        axes = tuple(
            tuple(d if d.in_thread else by_slot(d.extent, strides[d.stride]) for d in axis)
            for axis in self.axes
        )
        return Distribution(self.shape, axes, self.threads)

    def reshaped(self, shape: Sequence[int]) -> Distribution | None:
        """Return the same points, counted along other axes; None: no digits count those."""
        if any(map(self.is_padded, range(len(self.shape)))):
            return None
        left, axes = [d for axis in self.axes for d in axis], []
        for extent in reversed(shape):
            axis: list[Digit] = []
            while extent > 1:
                digit = left.pop() if left else by_slot(1, 1)
                common = math.gcd(digit.extent, extent)
                if common == 1 or common not in (digit.extent, extent):
                    return None
                axis.append(replace(digit, extent=common))
                extent //= common
                if digit.extent > common:
                    rest = digit.extent // common
                    left.append(Digit(rest, digit.stride * common, digit.in_thread))
            axes.append(tuple(reversed(axis)))
        return None if left else Distribution(tuple(shape), tuple(reversed(axes)), self.threads)

    def describe(self) -> str:
        """Return the distribution in words."""
        parts = [
            f"axis {n}: {', '.join(map(str, axis)) or 'one point'}"
            for n, axis in enumerate(self.axes)
        ]
        copies = math.prod(d.extent for d in self.copies)
        return "; ".join(parts) + (f"; {copies} copies" if copies > 1 else "")


def from_owners(owners: Table, threads: int) -> Distribution | None:
    """Return the distribution in which ``owners`` has the first thread of each point.

    None: there is no such distribution of ``threads``.
    """
    axes, total, slot = [], np.zeros((), np.int64), 1
    for axis in reversed(range(owners.ndim)):
        along = owners[tuple(slice(None) if a == axis else 0 for a in range(owners.ndim))]
        total = total + along.reshape([-1 if a == axis else 1 for a in range(owners.ndim)])
        digits = _digits(along, slot)
        if digits is None:
            return None
        slot *= math.prod(d.extent for d in digits if not d.in_thread)
        axes.append(digits)
    counted = sorted((d for axis in axes for d in axis if d.in_thread), key=lambda d: d.stride)
    ends = [1, *(d.stride * d.extent for d in counted)]
    is_nested = all(d.stride % end == 0 for d, end in zip(counted, ends, strict=False))
    if not is_nested or threads % ends[-1] or not np.array_equal(total, owners):
        return None
    return Distribution(owners.shape, tuple(reversed(axes)), threads).compact()


def _digits(owners: Table, slot: int) -> tuple[Digit, ...] | None:
    """Return the digits of one axis, along which the first point belongs to thread 0."""
    found: list[Digit] = []
    while len(owners) > 1:
        step = int(owners[1])
        for count in range(len(owners), 1, -1):
            if len(owners) % count == 0 and np.array_equal(
                owners.reshape(-1, count), owners[::count, None] + np.arange(count) * step
            ):
                break
        else:
            return None
        if step < 0:
            return None
        found.append(by_thread(count, step) if step else by_slot(count, slot))
        slot *= 1 if step else count
        owners = owners[::count]
    return tuple(reversed(found)) if not owners[0] else None


def coarser(digits: Sequence[Digit], divisor: int) -> tuple[Digit, ...] | None:
    """Return the digits of ``index // divisor``, or None where they cannot be cut there."""
    kept, rest = list(digits), divisor
    while rest > 1 and kept:
        digit = kept.pop()
        common = math.gcd(digit.extent, rest)
        if common not in (digit.extent, rest):
            return None
        rest //= common
        if digit.extent > common:
            kept.append(Digit(digit.extent // common, digit.stride * common, digit.in_thread))
    return tuple(kept)


def spread(
    shape: Sequence[int],
    threads: int,
    vector: int = 1,
    most: Sequence[int] | None = None,
    runs: Sequence[int] | None = None,
) -> Distribution:
    """Return a distribution: along the last axis ``vector`` slots, then threads, then slots.

    Args:
        shape: the extents of the box.
        threads: of the block.
        vector: consecutive elements of a thread.
        most: for each axis how many threads it may be spread over; default: all.
        runs: for each axis how many consecutive elements must stay in one thread; default: 1.
    """
    axes: list[tuple[Digit, ...]] = []
    left, stride, slot = threads, 1, 1
    for axis in reversed(range(len(shape))):
        digits: list[Digit] = []
        rest = shape[axis]
        run = 1 if runs is None else runs[axis]
        if axis == len(shape) - 1:
            run = math.lcm(run, vector)
        if run > 1:
            digits.append(by_slot(run, slot))
            slot, rest = slot * run, -(-rest // run)
        allowed = left if most is None else math.gcd(left, most[axis])
        count = _threads_for(rest, allowed, math.prod(shape[:axis]))
        digits.append(by_thread(count, stride))
        stride, left = stride * count, left // count
        turns = -(-rest // count)
        digits.append(by_slot(turns, slot))
        slot *= turns
        axes.append(tuple(reversed(digits)))
    return Distribution(tuple(shape), tuple(reversed(axes)), threads)


def _threads_for(points: int, threads: int, others: int) -> int:
    """Return how many of ``threads`` (a divisor of them) share ``points`` of an axis.

    They have points of as many turns each; fewer turns, of which the last leaves some idle, where
    the ``others`` of the box give those no work that are left.
    """
    exact = math.gcd(points, threads)
    most = min(points, threads)
    full = next(d for d in range(1, threads + 1) if threads % d == 0 and d >= most)
    is_shared = exact * others >= threads or -(-points // exact) <= -(-points // full)
    return exact if 2 * exact >= most and is_shared else full
