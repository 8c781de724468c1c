"""Functions of float32 vectors by tables of 32 entries, which AVX-512 looks up in registers.

exp: 2**n times an entry for the five bits below, times a short polynomial. tanh and erf: the
exponent and two bits of the mantissa choose one of 32 intervals, each with a polynomial about its
centre. Errors stay within 2 units in the last place; NaN, infinities and signed zeros as in libm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from tilecore.lowering.cpu import avx512
from tilecore.lowering.cpu.llvm_text import LlvmFunction

LOG2_E = 1.44269504088896341
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # multiples of the first by 15 bits are exact
ROUND = 1.5 * 2.0**18  # adding it leaves the nearest multiple of 1/32 in the low bits
LEAST, MOST = -104.0, 89.0  # exp is 0 below and infinite above

DEGREE = 5
FIRST = 2.0**-4
SECOND = 5 / 4 * FIRST  # where the second interval begins: four of them per power of 2
INDEX_SHIFT = 21  # leaves the exponent and two bits


def _exp(f: LlvmFunction) -> str:
    raised = f.select(f.compare_floats("olt", "%x", f.real(LEAST)), f.real(LEAST), "%x", "float")
    above = f.compare_floats("ogt", raised, f.real(MOST))
    x = f.select(above, f.real(MOST), raised, "float")
    rounded = f.fma(x, f.real(LOG2_E), f.real(ROUND))
    power = f.on_floats("fsub", rounded, f.real(ROUND))
    rest = f.fma(power, f.real(-LN2_HIGH), x)
    rest = f.fma(power, f.real(-LN2_LOW), rest)
    factor = f.fma(rest, f.real(1 / 6), f.real(0.5))
    less_one = f.fma(f.on_floats("fmul", rest, rest), factor, rest)
    entry = avx512.look_up(f, f.of_float(rounded), [2 ** (i / 32) for i in range(32)])
    return avx512.scale(f, f.fma(entry, less_one, entry), power)


def _odd(f: LlvmFunction, function: Callable[[float], float], limit: float) -> str:
    """Return an odd function that is constant from ``limit`` on."""
    size = f.as_float(f.masked(f.of_float("%x"), 0x7FFFFFFF))
    size = f.select(f.compare_floats("ogt", size, f.real(limit)), f.real(limit), size, "float")
    is_first = f.compare_floats("olt", size, f.real(FIRST))
    raised = f.select(is_first, f.real(FIRST), size, "float")
    index = f.right(f.of_float(raised), INDEX_SHIFT)
    centres, coefficients = _intervals(function)
    rest = f.on_floats("fsub", size, avx512.look_up(f, index, centres))
    value = avx512.look_up(f, index, coefficients[-1])
    for table in reversed(coefficients[1:-1]):
        value = f.fma(value, rest, avx512.look_up(f, index, table))
    is_first = f.compare_floats("olt", size, f.real(SECOND))
    constant = f.select(is_first, size, avx512.look_up(f, index, coefficients[0]), "float")
    value = f.fma(value, rest, constant)
    sign = f.masked(f.of_float("%x"), -(1 << 31))
    return f.as_float(f.on_ints("or", f.of_float(value), sign))


def _intervals(function: Callable[[float], float]) -> tuple[list[float], list[list[float]]]:
    """Return the centres and coefficients (lowest first) of all intervals, in order of the index.

    The polynomials interpolate at Chebyshev nodes. That of the first interval is f(x) - x, without
    a constant, so that relative errors are small there too.
    """
    bounds = [FIRST * 2.0 ** (i // 4) * (1 + i % 4 / 4) for i in range(avx512.TABLE + 1)]
    angles = (2 * np.arange(DEGREE + 1) + 1) * np.pi / (2 * DEGREE + 2)
    places = (np.cos(angles) + 1) / 2
    x = places * bounds[1]
    slopes = np.array([function(v) / v - 1 for v in x])
    rows = [[0.0, 0.0, *np.polynomial.polynomial.polyfit(x, slopes, DEGREE - 1)]]
    for low, high in pairwise(bounds[1:]):
        centre = _centre(function, low, high)
        x = low + places * (high - low)
        values = np.array([function(v) for v in x])
        rows.append([centre, *np.polynomial.polynomial.polyfit(x - centre, values, DEGREE)])
    first = int(np.float32(FIRST).view(np.int32) >> INDEX_SHIFT) % avx512.TABLE
    rows = rows[-first:] + rows[:-first] if first else rows
    centres, *coefficients = ([float(v) for v in column] for column in zip(*rows, strict=True))
    return centres, coefficients


def _centre(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the number next to the middle, of some, where the function is nearly a float32."""
    near = [float(np.float32((low + high) / 2 + i * (high - low) / 1024)) for i in range(64)]
    return min(near, key=lambda v: abs(float(np.float32(function(v))) - function(v)))


BODIES: dict[str, Callable[[LlvmFunction], str]] = {
    "exp": _exp,
    "tanh": partial(_odd, function=math.tanh, limit=10.0),
    "erf": partial(_odd, function=math.erf, limit=4.0),
}
