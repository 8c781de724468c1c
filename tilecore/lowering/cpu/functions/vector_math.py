"""Functions of float32 vectors: range reduction and a polynomial; which function a call means.

LLVM has no vector code for these: TVM's would call libm once per lane. Errors stay within 2 units
in the last place of the exact value (3 for log1p, log2 and log10, 3.5 for sigmoid); subnormal
results, infinities, signed zeros and NaN are those of libm. Tails computed lane by lane use the
same code: a value does not depend on its place.

The coefficients of exp2 are those of Cephes. The others are weighted least-squares fits,
reweighted towards the least maximum (Lawson), of relative error below 1e-8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from typing import Any

from tvm import tirx as tir

from tilecore.lowering.cpu.functions import (
    avx512,
    vector_angles,
    vector_math_avx512,
    vector_math_float64,
    vector_parts,
)
from tilecore.lowering.cpu.functions.vector_math_avx512 import LOG_2
from tilecore.lowering.cpu.functions.vector_parts import FORMATS, called, name_of
from tilecore.lowering.llvm_text import LANES, LlvmFunction, declarations
from tilecore.lowering.tir import vector_type

ROUND = FORMATS["float32"].round
# exp(r) = 1 + r + r^2 * EXP(r) for |r| <= log(2) / 2
EXP = (1.3814598474e-3, 8.3687168874e-3, 4.1668388049e-2, 1.6666520632e-1, 4.9999993448e-1)
EXP2 = (
    1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2,
    0.2402264791363012, 0.6931472028550421,
)  # fmt: skip

# log(1 + r) = r - r^2/2 + r^3 * LOG(r) for 3/4 <= 1 + r < 3/2
LOG = (
    3.7672463218e-02, -9.1161418923e-02, 1.1700653692e-01, -1.2727785088e-01, 1.4276240285e-01,
    -1.6655296308e-01, 1.9999604796e-01, -2.5000165274e-01, 3.3333339862e-01,
)  # fmt: skip

# tanh(x) = x + x^3 * TANH(x^2) for |x| < 0.625
TANH = (-5.7049783742e-03, 2.0639078741e-02, -5.3739712157e-02, 1.3331442158e-01, -3.3333281940e-01)
TANH_SMALL, TANH_FULL = 0.625, 10.0  # from the second on it is 1

# erf(x) = x + x * ERF(x^2) for |x| < 0.93; 1 - exp(-ERF_TAIL(|x|)) beyond
ERF = (
    8.3167726333e-05, -8.1300120137e-04, 5.1999066072e-03, -2.6858941482e-02, 1.1283687188e-01,
    -3.7612633188e-01, 1.2837916658e-01,
)  # fmt: skip
ERF_TAIL = (
    2.1278762253e-05, -4.3657499035e-04, 4.1812411848e-03, -2.5146078979e-02, 1.0832107130e-01,
    6.3330987618e-01, 1.1295331488e+00, -1.7845234194e-04,
)  # fmt: skip
ERF_SMALL, ERF_FULL = 0.93, 4.0

WHOLE: tuple[int, ...] = (4, 8, 16)  # lanes of a register: fewer run in one, more in several

OF_EXP = ("sigmoid", "tanh", "erf")  # without AVX-512 these call exp; of float64 always


def definitions(calls: Iterable[tuple[str, str]], isa: str) -> dict[str, str]:
    """Return the functions that calls (name, type of the elements) need, text by name."""
    given, found = set(calls), dict[str, str]()
    narrow = {name for name, dtype in given if dtype != "float64"}  # all computed in float32
    for dtype, names in (("float32", narrow), ("float64", {n for n, d in given if d == "float64"})):
        found |= _definitions(names, dtype, isa)
    return found


def _definitions(calls: Set[str], dtype: str, isa: str) -> dict[str, str]:
    needed = [name for name in FUNCTIONS if name in calls]
    has_own = isa == "avx512" and dtype == "float32"
    if not has_own and "exp" not in needed and any(name in OF_EXP for name in needed):
        needed.append("exp")
    if "log1p" in needed and "log" not in needed:
        needed.append("log")
    has_angles = any(name in vector_angles.NAMES for name in needed)
    found = {
        name_of(function, dtype, lanes): _text(function, dtype, lanes, isa)
        for function in needed
        for lanes in LANES
    }
    if needed:
        found |= declarations("fma", dtype, 3) | declarations("sqrt", dtype, 1)
    if has_angles:
        found |= vector_angles.definitions(dtype)
    return {**avx512.declarations(), **found} if needed and has_own else found


def call(function: str, value: Any, dtype: str, lanes: int) -> Any:
    """Return ``function`` of float32 or float64 values; the module must define the function."""
    assert lanes in LANES
    return tir.call_pure_extern(vector_type(dtype, lanes), name_of(function, dtype, lanes), value)


def _text(function: str, dtype: str, lanes: int, isa: str) -> str:
    """Return the definition: by instructions for vectors of a register's size, else by those."""
    f = LlvmFunction(lanes, dtype)
    bodies, whole = _BODIES, WHOLE
    if dtype == "float64":
        bodies, whole = vector_math_float64.BODIES, vector_math_float64.WHOLE
    elif isa == "avx512":
        bodies, whole = {**_BODIES, **vector_math_avx512.BODIES}, vector_math_avx512.WHOLE
    if function in vector_angles.NAMES:
        whole = vector_angles.WHOLE[dtype]
    if lanes in whole:
        result = bodies[function](f)
    elif lanes < min(whole):
        wide = f.resized("%x", lanes, min(whole))
        result = f.resized(called(f, function, wide, min(whole)), min(whole), lanes)
    else:
        half = lanes // 2
        low, high = (called(f, function, f.part("%x", i, half), half) for i in (0, 1))
        result = f.joined(low, high, half)
    return f.text(name_of(function, dtype, lanes), f.element, f.element, result)


# --- exp ------------------------------------------------------------------------------------------


def _exp(f: LlvmFunction, base: float = math.e) -> str:
    factor, high = math.log(base), LOG_2[base]
    x = vector_parts.clamped(f, -104.0 / factor, 89.0 / factor)
    rounded = f.fma(x, f.real(factor / math.log(2)), f.real(ROUND))
    whole = f.on_floats("fsub", rounded, f.real(ROUND))
    rest = f.fma(whole, f.real(-high), x)
    rest = f.fma(whole, f.real(high - math.log(2) / factor), rest)
    if base != math.e:
        rest = f.on_floats("fmul", rest, f.real(factor))
    tail = f.fma(f.short_polynomial(EXP, rest), f.on_floats("fmul", rest, rest), rest)
    return vector_parts.scaled(f, tail, rounded)


def _exp2(f: LlvmFunction) -> str:
    x = vector_parts.clamped(f, -151.0, 129.0)
    rounded = f.on_floats("fadd", x, f.real(ROUND))
    whole = f.on_floats("fsub", rounded, f.real(ROUND))
    rest = f.on_floats("fsub", x, whole)
    return vector_parts.scaled(
        f, f.on_floats("fmul", f.short_polynomial(EXP2, rest), rest), rounded
    )


# --- logarithms -----------------------------------------------------------------------------------


def _logarithm(f: LlvmFunction, base: float, high: float) -> str:
    """Return the logarithm of x = m * 2**n, 3/4 <= m < 3/2.

    ``high`` are the first bits of the logarithm of 2, so few that multiples are exact.
    """
    mantissa, power = vector_parts.mantissa_power(f)
    r = f.on_floats("fsub", mantissa, f.real(1.0))
    squared = f.on_floats("fmul", r, r)
    tail = f.on_floats("fmul", f.on_floats("fmul", squared, r), f.short_polynomial(LOG, r))
    tail = f.fma(squared, f.real(-0.5), tail)
    low = math.log(2) / math.log(base) - high
    if base == math.e:
        tail = f.fma(power, f.real(low), tail)
        found = f.on_floats("fadd", tail, r)
    else:
        # (r + tail) * factor with the factor in two parts, the larger terms last
        factor = 1 / math.log(base)
        first = round(factor * 256) / 256
        found = f.on_floats("fmul", f.on_floats("fadd", r, tail), f.real(factor - first))
        found = f.fma(tail, f.real(first), found)
        found = f.fma(power, f.real(low), found) if low else found
        found = f.fma(r, f.real(first), found)
    found = f.fma(power, f.real(high), found)
    return vector_parts.outside_logarithm(f, found)


# --- tanh and erf ---------------------------------------------------------------------------------


def _tanh(f: LlvmFunction) -> str:
    size = vector_parts.size_below(f, TANH_FULL)
    doubled = called(f, "exp", f.on_floats("fadd", size, size), f.lanes)
    below = f.on_floats("fadd", doubled, f.real(1.0))
    quotient = f.on_floats("fdiv", f.real(2.0), below)
    squared = f.on_floats("fmul", size, size)
    cubed = f.on_floats("fmul", squared, size)
    small = f.fma(f.short_polynomial(TANH, squared), cubed, size)
    return vector_parts.odd(f, size, TANH_SMALL, small, f.on_floats("fsub", f.real(1.0), quotient))


def _erf(f: LlvmFunction) -> str:
    size = vector_parts.size_below(f, ERF_FULL)
    negated = f.on_floats("fsub", f.real(0.0), f.short_polynomial(ERF_TAIL, size))
    tail = called(f, "exp", negated, f.lanes)
    squared = f.on_floats("fmul", size, size)
    small = f.fma(f.short_polynomial(ERF, squared), size, size)
    return vector_parts.odd(f, size, ERF_SMALL, small, f.on_floats("fsub", f.real(1.0), tail))


_BODIES: Mapping[str, Callable[[LlvmFunction], str]] = {
    "exp": _exp,
    "exp2": _exp2,
    "exp10": partial(_exp, base=10.0),
    "log": partial(_logarithm, base=math.e, high=0.693145751953125),
    "log2": partial(_logarithm, base=2.0, high=1.0),
    "log10": partial(_logarithm, base=10.0, high=0.30078125),
    "log1p": vector_parts.log1p,
    "sin": partial(vector_angles.of_quadrants, name="sin"),
    "cos": partial(vector_angles.of_quadrants, name="cos"),
    "rsqrt": vector_parts.rsqrt,
    "sigmoid": vector_parts.sigmoid,
    "tanh": _tanh,
    "erf": _erf,
}
FUNCTIONS = tuple(_BODIES)
