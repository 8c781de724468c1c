"""Functions of float64 vectors: range reduction and a polynomial.

Errors stay within 2.6 units in the last place of the exact value (1.5 but for tanh, sigmoid and
log10); subnormal results, infinities, signed zeros and NaN are those of libm.

The coefficients are fits of least maximal error (Remez), of relative error below 2^-56.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from tilecore.lowering.cpu.functions import vector_angles, vector_parts
from tilecore.lowering.cpu.functions.vector_parts import FORMATS, called, with_sign
from tilecore.lowering.llvm_text import LlvmFunction

WHOLE = (2, 4, 8)  # lanes of a register
ROUND = FORMATS["float64"].round

# exp(r) = 1 + r + r^2 * EXP(r) for |r| <= log(2) / 2
EXP = (
    2.499916971291272e-08, 2.763023837417672e-07, 2.7557589400622235e-06, 2.4801493135998638e-05,
    0.00019841269502971057, 0.001388888894358296, 0.008333333333496194, 0.04166666666653039,
    0.1666666666666641, 0.5000000000000011,
)  # fmt: skip
# log(2) by the logarithm of the base: the first bits, so few that multiples are exact, and the rest
LOG_2 = {
    math.e: (0.6931471805598903, 5.497923018708371e-14), 2.0: (1.0, 0.0),
    10.0: (0.30102999566395283, 2.8363394551044964e-14),
}  # fmt: skip

# log(1 + r) = r - s * (r - LOG(s^2) * s^2) with s = r / (2 + r), for 3/4 <= 1 + r < 3/2
LOG = (
    0.13840688909485527, 0.13173949607207908, 0.15391090912497424, 0.18181666526178877,
    0.22222224285499523, 0.2857142855592627, 0.4000000000005627, 0.666666666666666,
)  # fmt: skip

TANH_FULL = 20.0  # from here on it is 1

# erf(x) = x + x * ERF(x^2) for |x| < 1; 1 - exp(-ERF_TAIL(|x|)) beyond
ERF = (
    -7.779109536406086e-10, 1.3710802012778954e-08, -1.6206276240023498e-07, 1.6447127238882299e-06,
    -1.4924712004825395e-05, 0.00012055293564755278, -0.0008548325929041063, 0.0052239776061160995,
    -0.02686617064311167, 0.1128379167094419, -0.3761263890318352, 0.12837916709551256,
)  # fmt: skip
ERF_TAIL = (
    4.929024149310879e-12, -2.0451355528610946e-10, 3.934603834506296e-09, -4.642709186992015e-08,
    3.7333812485663375e-07, -2.1358921099047144e-06, 8.66814886231826e-06, -2.282598376668326e-05,
    2.0276273321467784e-05, 0.00013502951807109253, -0.0007706077037392096, 0.0019158961627849661,
    -0.00041057957808017, -0.01899021624995381, 0.10270346065431489, 0.6366436198589149,
    1.1283740914477511, 5.026308250552918e-07,
)  # fmt: skip
ERF_SMALL, ERF_FULL = 1.0, 5.95

# sin(r) = r + r^3 * SIN(r^2), cos(r) = 1 - r^2/2 + r^4 * COS(r^2) for |r| <= pi / 4
SIN = (
    1.589680899707531e-10, -2.505075838463182e-08, 2.7557313693908095e-06, -0.00019841269829814337,
    0.008333333333322424, -0.16666666666666632,
)  # fmt: skip
COS = (
    -1.1358521224974293e-11, 2.087570059141786e-09, -2.755731417787998e-07, 2.4801587288848743e-05,
    -0.0013888888888873056, 0.041666666666666595,
)  # fmt: skip
QUARTER = (math.pi / 2, 6.123233995736766e-17, -1.4973849048591698e-33)  # turn, in three parts
NEAREST = 1.5 * 2.0**52  # adding it leaves the nearest integer in the low bits


def _exp(f: LlvmFunction, base: float) -> str:
    factor, (high, low) = math.log(base), LOG_2[base]
    x = vector_parts.clamped(f, -746.0 / factor, 710.0 / factor)
    rounded = f.fma(x, f.real(factor / math.log(2)), f.real(ROUND))
    whole = f.on_floats("fsub", rounded, f.real(ROUND))
    rest = f.fma(whole, f.real(-high), x)
    rest = f.fma(whole, f.real(-low), rest) if low else rest
    if base != math.e:
        rest = f.on_floats("fmul", rest, f.real(factor))
    return vector_parts.scaled(f, _less_1(f, rest), rounded)


def _less_1(f: LlvmFunction, r: str) -> str:
    """Return exp(r) - 1 for ``|r| <= log(2) / 2``."""
    return f.fma(f.short_polynomial(EXP, r), f.on_floats("fmul", r, r), r)


def _logarithm(f: LlvmFunction, base: float) -> str:
    mantissa, power = vector_parts.mantissa_power(f)
    r = f.on_floats("fsub", mantissa, f.real(1.0))
    s = f.on_floats("fdiv", r, f.on_floats("fadd", r, f.real(2.0)))
    squared = f.on_floats("fmul", s, s)
    most = f.on_floats("fmul", f.short_polynomial(LOG, squared), squared)
    half = f.on_floats("fmul", f.on_floats("fmul", r, f.real(0.5)), r)
    rest = f.on_floats("fmul", s, f.on_floats("fadd", half, most))  # log(1 + r) = r - half + rest
    high, low = LOG_2[base]
    if base == math.e:
        rest = f.fma(power, f.real(low), rest)
        found = f.on_floats("fsub", r, f.on_floats("fsub", half, rest))
    else:
        # (r + rest) * factor with the factor in two parts, the larger terms last
        factor = 1 / math.log(base)
        first = round(factor * 2**20) / 2**20
        rest = f.on_floats("fsub", rest, half)
        found = f.on_floats("fmul", f.on_floats("fadd", r, rest), f.real(factor - first))
        found = f.fma(rest, f.real(first), found)
        found = f.fma(power, f.real(low), found) if low else found
        found = f.fma(r, f.real(first), found)
    found = f.fma(power, f.real(high), found)
    return vector_parts.outside_logarithm(f, found)


def _tanh(f: LlvmFunction) -> str:
    """Return e / (e + 2) with e = exp(2 * |x|) - 1."""
    size = vector_parts.size_below(f, TANH_FULL)
    doubled = f.on_floats("fadd", size, size)
    rounded = f.fma(doubled, f.real(1 / math.log(2)), f.real(NEAREST))
    whole = f.on_floats("fsub", rounded, f.real(NEAREST))
    high, low = LOG_2[math.e]
    rest = f.fma(whole, f.real(-low), f.fma(whole, f.real(-high), doubled))
    bits = f.plus(f.of_float(rounded), FORMATS["float64"].bias)
    power = f.as_float(f.left(bits, FORMATS["float64"].fraction))
    e = f.fma(_less_1(f, rest), power, f.on_floats("fsub", power, f.real(1.0)))
    return with_sign(f, f.on_floats("fdiv", e, f.on_floats("fadd", e, f.real(2.0))))


def _erf(f: LlvmFunction) -> str:
    size = vector_parts.size_below(f, ERF_FULL)
    negated = f.on_floats("fsub", f.real(0.0), f.short_polynomial(ERF_TAIL, size))
    tail = called(f, "exp", negated, f.lanes)
    squared = f.on_floats("fmul", size, size)
    small = f.fma(f.short_polynomial(ERF, squared), size, size)
    return vector_parts.odd(f, size, ERF_SMALL, small, f.on_floats("fsub", f.real(1.0), tail))


def _of_quadrants(f: LlvmFunction, name: str) -> str:
    """Return sin or cos of ``%x``."""
    f.label("near")
    size = f.as_float(f.masked(f.of_float("%x"), ~FORMATS["float64"].sign))
    rounded = f.fma(size, f.real(1 / QUARTER[0]), f.real(NEAREST))
    turns = f.on_floats("fsub", rounded, f.real(NEAREST))
    first = f.fma(turns, f.real(-QUARTER[0]), size)  # exact
    second = f.on_floats("fmul", turns, f.real(QUARTER[1]))
    rest = f.on_floats("fsub", first, second)
    lost = f.on_floats("fsub", f.on_floats("fsub", first, rest), second)
    negative = f.line(f"fneg {f.kind(f.element)} {second}")
    lost = f.on_floats("fsub", lost, f.fma(turns, f.real(QUARTER[1]), negative))
    rest = f.on_floats("fadd", rest, f.fma(turns, f.real(-QUARTER[2]), lost))
    squared = f.on_floats("fmul", rest, rest)
    cubed = f.on_floats("fmul", squared, rest)
    sine = f.fma(f.short_polynomial(SIN, squared), cubed, rest)
    cosine = f.on_floats("fmul", f.short_polynomial(COS, squared), squared)
    cosine = f.fma(f.on_floats("fsub", cosine, f.real(0.5)), squared, f.real(1.0))
    return vector_angles.chosen(f, name, size, f.of_float(rounded), sine, cosine)


BODIES: Mapping[str, Callable[[LlvmFunction], str]] = MappingProxyType({
    "exp": partial(_exp, base=math.e),
    "exp2": partial(_exp, base=2.0),
    "exp10": partial(_exp, base=10.0),
    "log": partial(_logarithm, base=math.e),
    "log2": partial(_logarithm, base=2.0),
    "log10": partial(_logarithm, base=10.0),
    "log1p": vector_parts.log1p,
    "sin": partial(_of_quadrants, name="sin"),
    "cos": partial(_of_quadrants, name="cos"),
    "rsqrt": vector_parts.rsqrt,
    "sigmoid": vector_parts.sigmoid,
    "tanh": _tanh,
    "erf": _erf,
})  # fmt: skip
