"""Correctness: candidate outputs against the float64 reference, before any time counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilecore.ir.dtype import DType

Array = np.ndarray[Any, Any]
GUARD_BYTES = 4096  # before and after each output
GUARD_VALUE = 0xA5
ALIGNMENT = 64

# Slack over the expected rounding error. A sum of K products of unit-variance inputs, added one
# after the other, has a rounding error of about u*K/2.4 (random walk of the partial sums); its
# maximum over a million elements measured 2.0e-4 at K=1024 in float32 = 3.3 u*K. A missing or
# doubled term is an error of about 1.
SUM_SLACK = 8.0
ROUND_SLACK = 2.0


def unit_roundoff(dtype: str) -> float:
    """Return the largest relative error of rounding to ``dtype`` (0 for integers)."""
    name = DType(dtype)
    if not name.is_float:
        return 0.0
    return float(ml_dtypes.finfo(name.numpy).eps) / 2


def tolerance(
    dtype: str, accum_dtype: str, reduction_length: int, rounded_dtype: str | None = None
) -> tuple[float, float]:
    """Return (rtol, atol): the one tolerance table of the project.

    A result passes where ``|found - expected| <= atol + rtol * |expected|``, for inputs of unit
    variance that are exact in their own type.

    Args:
        dtype: element type of the output (rounded once).
        accum_dtype: element type of the sums.
        reduction_length: terms of the longest sum (1: elementwise).
        rounded_dtype: element type that terms are rounded to on the way (None: they are not).
    """
    rtol = ROUND_SLACK * max(unit_roundoff(dtype), unit_roundoff(accum_dtype))
    atol = SUM_SLACK * unit_roundoff(accum_dtype) * max(1, reduction_length)
    if rounded_dtype is not None:
        atol += ROUND_SLACK * unit_roundoff(rounded_dtype)
    return rtol, atol


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What comparing one candidate's outputs found.

    ``max_error`` is the largest error relative to its tolerance: <= 1 passes; inf where an element
    was not written or a guard was. ``detail`` says what is wrong ('' if nothing).
    """

    max_error: float
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the candidate computes the right result."""
        return not self.detail


def compare(
    found: Array, expected: Array, rtol: float, atol: float, name: str = "output"
) -> CheckReport:
    """Compare an output with its float64 (ints: exact) expectation."""
    values = found.astype(np.float64)
    wanted = expected.astype(np.float64)
    error = np.abs(values - wanted)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = error / (atol + rtol * np.abs(wanted))
    relative = np.where(error == 0, 0.0, relative)
    relative = np.where(np.isnan(relative), np.inf, relative)
    wrong = relative > 1
    if not wrong.any():
        return CheckReport(float(relative.max(initial=0.0)))
    place = np.unravel_index(int(np.argmax(relative)), relative.shape)
    unwritten = int(np.isnan(values).sum())
    detail = (
        f"{name}[{', '.join(str(int(i)) for i in place)}]: expected {wanted[place]:.6g} within "
        f"{atol + rtol * abs(wanted[place]):.2g}, found {values[place]:.6g}; "
        f"{int(wrong.sum())} of {wrong.size} elements wrong"
    )
    if unwritten:
        detail += f", {unwritten} never written or NaN"
    return CheckReport(float(relative.max()), detail)


def judged(
    outputs: Iterable[tuple[CheckReport, bool]], touched: Iterable[int], seed: int
) -> CheckReport:
    """Return what is to be said of a run that may have touched all its arguments.

    Args:
        outputs: how each compares, and whether its guard zones are intact.
        touched: numbers of inputs that are not what they were.
        seed: of the inputs.
    """
    worst = CheckReport(0.0)
    for i, (report, is_intact) in enumerate(outputs):
        if report.max_error > worst.max_error or not report.passed:
            worst = report
        if not is_intact:
            worst = CheckReport(np.inf, f"output {i}: written beyond its ends")
    for i in touched:
        worst = CheckReport(np.inf, f"input {i} was written to")
    if worst.passed:
        return worst
    return CheckReport(worst.max_error, f"{worst.detail} (input seed {seed})")


@dataclass(frozen=True, slots=True)
class GuardedOutput:
    """An aligned output array between two guard zones that a correct kernel leaves alone."""

    array: Array
    memory: Array  # the bytes: guard, array, guard

    @classmethod
    def allocate(cls, shape: Sequence[int], dtype: str) -> GuardedOutput:
        """Return a guarded, aligned array; call ``poison`` before use."""
        kind = DType(dtype).numpy
        size = int(np.prod(shape)) * kind.itemsize
        raw = np.full(size + 2 * GUARD_BYTES + ALIGNMENT, GUARD_VALUE, np.uint8)
        start = (-(raw.ctypes.data + GUARD_BYTES)) % ALIGNMENT
        memory = raw[start : start + size + 2 * GUARD_BYTES]
        array = memory[GUARD_BYTES : GUARD_BYTES + size].view(kind).reshape(tuple(shape))
        return cls(array, memory)

    def poison(self) -> None:
        """Fill with NaN (integers: the most negative value), so that unwritten elements show.

        The guard zones are renewed: a candidate before may have written there.
        """
        self.memory[:GUARD_BYTES] = GUARD_VALUE
        self.memory[-GUARD_BYTES:] = GUARD_VALUE
        if DType(self.array.dtype.name).is_float:
            self.array.fill(np.nan)
        else:
            self.array.fill(np.iinfo(self.array.dtype).min)

    @property
    def is_intact(self) -> bool:
        """Whether the guard zones are untouched."""
        before, after = self.memory[:GUARD_BYTES], self.memory[-GUARD_BYTES:]
        return bool((before == GUARD_VALUE).all() and (after == GUARD_VALUE).all())


def aligned_copy(array: Array) -> Array:
    """Return a copy that starts at a multiple of 64 bytes."""
    raw = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = (-raw.ctypes.data) % ALIGNMENT
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
