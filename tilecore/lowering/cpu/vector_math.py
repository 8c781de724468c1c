"""Functions of float32 vectors: range reduction and a polynomial.

LLVM has no vector code for these: TVM's would call libm once per lane. Errors stay within 2 units
in the last place of the exact value (3 for log1p, log2 and log10, 3.5 for sigmoid); subnormal
results, infinities, signed zeros and NaN are those of libm. Tails computed lane by lane use the
same code: a value does not depend on its place.

The coefficients of exp2 are those of Cephes. The others are weighted least-squares fits,
reweighted towards the least maximum (Lawson), of relative error below 1e-8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import tirx as tir

from tilecore.lowering.cpu import avx512, vector_angles, vector_math_avx512
from tilecore.lowering.cpu.llvm_text import FMA_DECLARATIONS, LANES, LlvmFunction
from tilecore.lowering.cpu.tir import vector_type
from tilecore.lowering.cpu.vector_math_avx512 import LOG_2

# 1.5 * 2^23 leaves the nearest integer in the low bits; with it twice the exponents' bias
ROUND = 12582912.0 + 2 * 127
HALF_POWER = 64
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
LEAST_BITS = 0x3F400000  # of 3/4
TINY, TINY_SCALE, TINY_POWER = 2.0**-126, 2.0**23, 23.0

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

SQRT_NAMES = {n: f"llvm.sqrt.v{n}f32" for n in (4, 8, 16)}
SQRT_DECLARATIONS = {
    name: f"declare <{n} x float> @{name}(<{n} x float>)" for n, name in SQRT_NAMES.items()
}
WHOLE: tuple[int, ...] = (4, 8, 16)  # lanes of a register: fewer run in one, more in several

OF_EXP = ("sigmoid", "tanh", "erf")  # without AVX-512 these call exp


def definitions(calls: set[str], isa: str) -> dict[str, str]:
    """Return the functions that calls of the tile IR need, text by name."""
    needed = [name for name in FUNCTIONS if name in calls]
    if isa != "avx512" and "exp" not in needed and any(name in OF_EXP for name in needed):
        needed.append("exp")
    if "log1p" in needed and "log" not in needed:
        needed.append("log")
    has_angles = any(name in vector_angles.NAMES for name in needed)
    found = {
        _name(function, lanes): _text(function, lanes, isa)
        for function in needed
        for lanes in LANES
    }
    if needed:
        found |= FMA_DECLARATIONS | SQRT_DECLARATIONS
    for lanes in vector_angles.WHOLE if has_angles else ():
        found |= vector_angles.declarations(lanes)
    return {**avx512.declarations(), **found} if needed and isa == "avx512" else found


def call(function: str, value: Any, lanes: int) -> Any:
    """Return ``function`` of float32 values; the function must be defined in the module."""
    assert lanes in LANES
    return tir.call_pure_extern(vector_type("float32", lanes), _name(function, lanes), value)


def _name(function: str, lanes: int) -> str:
    return f"tilecore_{function}_float32_x{lanes}"


def _text(function: str, lanes: int, isa: str) -> str:
    """Return the definition: by instructions for vectors of a register's size, else by those."""
    f = LlvmFunction(lanes)
    bodies, whole = _BODIES, WHOLE
    if isa == "avx512":
        bodies, whole = _BODIES | vector_math_avx512.BODIES, vector_math_avx512.WHOLE
    if function in vector_angles.NAMES:
        whole = vector_angles.WHOLE
    if lanes in whole:
        result = bodies[function](f)
    elif lanes < min(whole):
        wide = f.resized("%x", lanes, min(whole))
        result = f.resized(_called(f, function, wide, min(whole)), min(whole), lanes)
    else:
        half = lanes // 2
        low, high = (_called(f, function, f.part("%x", i, half), half) for i in (0, 1))
        result = f.joined(low, high, half)
    return f.text(_name(function, lanes), "float", "float", result)


def _called(f: LlvmFunction, function: str, value: str, lanes: int) -> str:
    kind = f"<{lanes} x float>"
    return f.line(f"call {kind} @{_name(function, lanes)}({kind} {value})")


# --- exp ------------------------------------------------------------------------------------------


def _exp(f: LlvmFunction, base: float = math.e) -> str:
    factor, high = math.log(base), LOG_2[base]
    x = _clamp(f, -104.0 / factor, 89.0 / factor)
    rounded = f.fma(x, f.real(factor / math.log(2)), f.real(ROUND))
    whole = f.on_floats("fsub", rounded, f.real(ROUND))
    rest = f.fma(whole, f.real(-high), x)
    rest = f.fma(whole, f.real(high - math.log(2) / factor), rest)
    if base != math.e:
        rest = f.on_floats("fmul", rest, f.real(factor))
    tail = f.fma(f.short_polynomial(EXP, rest), f.on_floats("fmul", rest, rest), rest)
    return _power(f, tail, rounded)


def _exp2(f: LlvmFunction) -> str:
    x = _clamp(f, -151.0, 129.0)
    rounded = f.on_floats("fadd", x, f.real(ROUND))
    whole = f.on_floats("fsub", rounded, f.real(ROUND))
    rest = f.on_floats("fsub", x, whole)
    return _power(f, f.on_floats("fmul", f.short_polynomial(EXP2, rest), rest), rounded)


def _clamp(f: LlvmFunction, low: float, high: float) -> str:
    """Return the argument between two bounds; NaN stays."""
    raised = f.select(f.compare_floats("olt", "%x", f.real(low)), f.real(low), "%x", "float")
    above = f.compare_floats("ogt", raised, f.real(high))
    return f.select(above, f.real(high), raised, "float")


def _power(f: LlvmFunction, value: str, rounded: str) -> str:
    """Return ``(1 + value) * 2**n`` for an n of the sign of x.

    The low bits of ``rounded`` hold n + 254.
    The power is applied in two steps, of which the second is 2**64 or 2**-64, so that neither
    factor leaves the range: the bits of 2**(n + 127) less those of it make the first.
    """
    is_negative = f.compare("slt", f.of_float("%x"), 0)
    ends = (f.real(2.0**-HALF_POWER), f.real(2.0**HALF_POWER))
    second = f.select(is_negative, *ends, "float")
    first = f.on_ints("sub", f.left(f.of_float(rounded), 23), f.of_float(second))
    power = f.as_float(first)
    return f.on_floats("fmul", f.fma(value, power, power), second)


# --- logarithms -----------------------------------------------------------------------------------


def _logarithm(f: LlvmFunction, base: float, high: float) -> str:
    """Return the logarithm of x = m * 2**n, 3/4 <= m < 3/2.

    ``high`` are the first bits of the logarithm of 2, so few that multiples are exact.
    """
    mantissa, power = _mantissa_power(f)
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
    return _outside_logarithm(f, found)


def _mantissa_power(f: LlvmFunction) -> tuple[str, str]:
    """Return m and n (as a float) with x = m * 2**n for positive finite x."""
    is_tiny = f.compare_floats("olt", "%x", f.real(TINY))
    scaled = f.on_floats("fmul", "%x", f.real(TINY_SCALE))
    x = f.select(is_tiny, scaled, "%x", "float")
    bits = f.plus(f.of_float(x), -LEAST_BITS)
    mantissa = f.as_float(f.plus(f.masked(bits, 0x7FFFFF), LEAST_BITS))
    power = f.change("sitofp", f.on_ints("ashr", bits, f.number(23)), "i32", "float")
    lower = f.on_floats("fsub", power, f.real(TINY_POWER))
    return mantissa, f.select(is_tiny, lower, power, "float")


def _outside_logarithm(f: LlvmFunction, found: str) -> str:
    """Return -inf at 0, NaN below, and the argument itself where it is inf or NaN."""
    is_ordered = f.compare_floats("olt", "%x", f.real(math.inf))
    found = f.select(is_ordered, found, "%x", "float")
    is_zero = f.compare_floats("oeq", "%x", f.real(0.0))
    found = f.select(is_zero, f.real(-math.inf), found, "float")
    is_negative = f.compare_floats("olt", "%x", f.real(0.0))
    return f.select(is_negative, f.real(math.nan), found, "float")


def _log1p(f: LlvmFunction) -> str:
    """Return log(u) + c / u for the float u next to 1 + x, with c = 1 + x - u."""
    near = f.on_floats("fadd", "%x", f.real(1.0))
    logarithm = _called(f, "log", near, f.lanes)
    lost = f.on_floats("fsub", "%x", f.on_floats("fsub", near, f.real(1.0)))
    found = f.on_floats("fadd", logarithm, f.on_floats("fdiv", lost, near))
    size = f.as_float(f.masked(f.of_float("%x"), 0x7FFFFFFF))
    found = f.select(f.compare_floats("olt", size, f.real(2.0**-25)), "%x", found, "float")
    is_plain = f.both(
        f.compare_floats("ogt", "%x", f.real(-1.0)), f.compare_floats("olt", "%x", f.real(math.inf))
    )
    return f.select(is_plain, found, logarithm, "float")


# --- tanh and erf ---------------------------------------------------------------------------------


def _tanh(f: LlvmFunction) -> str:
    size = _size(f, TANH_FULL)
    doubled = _called(f, "exp", f.on_floats("fadd", size, size), f.lanes)
    below = f.on_floats("fadd", doubled, f.real(1.0))
    quotient = f.on_floats("fdiv", f.real(2.0), below)
    squared = f.on_floats("fmul", size, size)
    cubed = f.on_floats("fmul", squared, size)
    small = f.fma(f.short_polynomial(TANH, squared), cubed, size)
    return _odd(f, size, TANH_SMALL, small, f.on_floats("fsub", f.real(1.0), quotient))


def _erf(f: LlvmFunction) -> str:
    size = _size(f, ERF_FULL)
    negated = f.on_floats("fsub", f.real(0.0), f.short_polynomial(ERF_TAIL, size))
    tail = _called(f, "exp", negated, f.lanes)
    squared = f.on_floats("fmul", size, size)
    small = f.fma(f.short_polynomial(ERF, squared), size, size)
    return _odd(f, size, ERF_SMALL, small, f.on_floats("fsub", f.real(1.0), tail))


# --- quotients ------------------------------------------------------------------------------------


def _rsqrt(f: LlvmFunction) -> str:
    kind = f.kind("float")
    root = f.line(f"call {kind} @{SQRT_NAMES[f.lanes]}({kind} %x)")
    return f.on_floats("fdiv", f.real(1.0), root)


def _sigmoid(f: LlvmFunction) -> str:
    negative = f.as_float(f.on_ints("or", f.of_float("%x"), f.number(-(1 << 31))))
    power = _called(f, "exp", negative, f.lanes)  # of -|x|: no more than 1
    below = f.compare_floats("olt", "%x", f.real(0.0))
    share = f.select(below, power, f.real(1.0), "float")
    return f.on_floats("fdiv", share, f.on_floats("fadd", power, f.real(1.0)))


def _size(f: LlvmFunction, limit: float) -> str:
    """Return ``|x|``, at most ``limit``; NaN stays."""
    size = f.as_float(f.masked(f.of_float("%x"), 0x7FFFFFFF))
    return f.select(f.compare_floats("ogt", size, f.real(limit)), f.real(limit), size, "float")


def _odd(f: LlvmFunction, size: str, limit: float, small: str, large: str) -> str:
    """Return ``small`` where ``size = |x|`` is below ``limit``, else ``large``; with x's sign."""
    found = f.select(f.compare_floats("olt", size, f.real(limit)), small, large, "float")
    sign = f.masked(f.of_float("%x"), -(1 << 31))
    return f.as_float(f.on_ints("or", f.of_float(found), sign))


_BODIES: dict[str, Callable[[LlvmFunction], str]] = {
    "exp": _exp,
    "exp2": _exp2,
    "exp10": partial(_exp, base=10.0),
    "log": partial(_logarithm, base=math.e, high=0.693145751953125),
    "log2": partial(_logarithm, base=2.0, high=1.0),
    "log10": partial(_logarithm, base=10.0, high=0.30078125),
    "log1p": _log1p,
    "sin": partial(vector_angles.of_quadrants, name="sin"),
    "cos": partial(vector_angles.of_quadrants, name="cos"),
    "rsqrt": _rsqrt,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "erf": _erf,
}
FUNCTIONS = tuple(_BODIES)
