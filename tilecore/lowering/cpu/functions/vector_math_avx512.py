"""Functions of float32 vectors as AVX-512 computes them best.

It looks up tables of 32 entries in registers. exp: 2**n times an entry for the five bits below,
times a short polynomial. log: by five bits of the mantissa m an r with m * r next to 1, and log(r).
tanh and erf: the exponent and two bits of the mantissa choose one of 32 intervals, each with a
polynomial about its centre. rsqrt and sigmoid: Newton's method on an estimate of 14 bits. Errors
and special values are those that vector_math states.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from tilecore.lowering.cpu.functions import avx512, vector_parts
from tilecore.lowering.llvm_text import LlvmFunction

ROUND = 1.5 * 2.0**18  # adding it leaves the nearest multiple of 1/32 in the low bits
LEAST, MOST = -104.0, 89.0  # exp is 0 below and infinite above

# The first bits of the logarithm of 2 by base; the rest must not be negative (infinity - infinity)
LOG_2 = {math.e: 0.693145751953125, 10.0: 0.30102539062500}

EXP2_ABOVE = (  # for 0 <= x <= 1
    2.1612914861179888e-4, 1.2467845808714628e-3, 9.675451554358006e-3, 5.5485282093286514e-2,
    0.2402293086051941, 0.6931470632553101,
)  # fmt: skip

WHOLE: tuple[int, ...] = (avx512.TABLE // 2,)  # lanes that a table is looked up for
DEGREE = 5
FIRST = 2.0**-4
SECOND = 5 / 4 * FIRST  # where the second interval begins: four of them per power of 2
INDEX_SHIFT = 21  # leaves the exponent and two bits


def _exp(f: LlvmFunction, value: str = "%x", base: float = math.e) -> str:
    factor = math.log(base)
    least, most = LEAST / factor, MOST / factor
    is_low = f.compare_floats("olt", value, f.real(least))
    raised = f.select(is_low, f.real(least), value, "float")
    above = f.compare_floats("ogt", raised, f.real(most))
    x = f.select(above, f.real(most), raised, "float")
    rounded = f.fma(x, f.real(factor / math.log(2)), f.real(ROUND))
    power = f.on_floats("fsub", rounded, f.real(ROUND))
    high = LOG_2[base]
    rest = f.fma(power, f.real(-high), x)
    rest = f.fma(power, f.real(high - math.log(2) / factor), rest)
    if base != math.e:
        rest = f.on_floats("fmul", rest, f.real(factor))
    tail = f.fma(rest, f.real(1 / 6), f.real(0.5))
    less_one = f.fma(f.on_floats("fmul", rest, rest), tail, rest)
    entry = avx512.look_up(f, f.of_float(rounded), [2 ** (i / 32) for i in range(32)])
    return avx512.scale(f, f.fma(entry, less_one, entry), power)


def _exp2(f: LlvmFunction) -> str:
    rest = avx512.fraction(f, "%x")
    return avx512.scale(f, f.polynomial((*EXP2_ABOVE, 1.0), rest), "%x")


def _odd(f: LlvmFunction, function: Callable[[float], float], limit: float) -> str:
    """Return an odd function that is constant from ``limit`` on."""
    size = vector_parts.size_below(f, limit)
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
    return vector_parts.with_sign(f, f.fma(value, rest, constant))


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


def _logarithm(f: LlvmFunction, base: float) -> str:
    """Return the logarithm of x = m * 2**n, 3/4 <= m < 3/2.

    The entries for m next to 1 are 1 and 0: there the result is as exact as log(1 + m - 1).
    """
    factor = 1 / math.log(base)
    mantissa, power = avx512.mantissa_power(f)
    index = f.right(f.of_float(mantissa), 18)
    middles = [1 + (i + 0.5) / 32 if i < 16 else (1 + (i + 0.5) / 32) / 2 for i in range(32)]
    inverses = [1.0 if i in (0, 31) else round(256 / m) / 256 for i, m in enumerate(middles)]
    r = f.fma(mantissa, avx512.look_up(f, index, inverses), f.real(-1.0))
    entry = avx512.look_up(f, index, [-math.log(v) * factor for v in inverses])
    squared = f.on_floats("fmul", r, r)
    tail = f.fma(r, f.real(factor / 5), f.real(-factor / 4))
    tail = f.fma(tail, r, f.real(factor / 3))
    tail = f.fma(tail, r, f.real(-factor / 2))
    high = LOG_2.get(base, 1.0)
    first = round(factor * 256) / 256  # r * factor in two parts
    rest = f.on_floats("fmul", r, f.real(factor - first))
    if base != 2.0:
        rest = f.fma(power, f.real(math.log(2) * factor - high), rest)
    rest = f.fma(r, f.real(first), f.fma(tail, squared, rest))
    return f.on_floats("fadd", f.fma(power, f.real(high), entry), rest)


def _rsqrt(f: LlvmFunction) -> str:
    estimate = avx512.estimate(f, "rsqrt14", "%x")
    product = f.on_floats("fmul", "%x", estimate)
    negated = f.line(f"fneg {f.kind('float')} {product}")
    error = f.fma(negated, estimate, f.real(1.0))
    half = f.on_floats("fmul", estimate, f.real(0.5))
    found = f.fma(half, error, estimate)
    is_finite = f.compare_floats("ord", error, error)  # not for 0, infinity, NaN and negatives
    return f.select(is_finite, found, estimate, "float")


def _sigmoid(f: LlvmFunction) -> str:
    negative = f.as_float(f.on_ints("or", f.of_float("%x"), f.number(-(1 << 31))))
    power = _exp(f, negative)  # of -|x|: no more than 1
    inverse = avx512.reciprocal(f, f.on_floats("fadd", power, f.real(1.0)))
    below = f.compare_floats("olt", "%x", f.real(0.0))
    return f.select(below, f.on_floats("fmul", power, inverse), inverse, "float")


BODIES: dict[str, Callable[[LlvmFunction], str]] = {
    "exp": _exp,
    "exp10": partial(_exp, base=10.0),
    "exp2": _exp2,
    "tanh": partial(_odd, function=math.tanh, limit=10.0),
    "erf": partial(_odd, function=math.erf, limit=4.0),
    "log": partial(_logarithm, base=math.e),
    "log2": partial(_logarithm, base=2.0),
    "log10": partial(_logarithm, base=10.0),
    "rsqrt": _rsqrt,
    "sigmoid": _sigmoid,
}
