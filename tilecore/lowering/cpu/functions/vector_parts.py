"""What functions of float32 and of float64 vectors have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilecore.lowering.llvm_text import LlvmFunction, intrinsic


@dataclass(frozen=True, slots=True)
class Format:
    """How the numbers of a type are made.

    Attributes:
        bits: of a number.
        fraction: of them, behind the point.
        bias: of exponents.
        half_power: a power of 2 that is applied in two steps has this one as the second.
    """

    bits: int
    fraction: int
    bias: int
    half_power: int

    @property
    def sign(self) -> int:
        """The bit of the sign, as a negative integer."""
        return -(1 << (self.bits - 1))

    @property
    def round(self) -> float:
        """What leaves the nearest integer, plus twice the bias, in the low bits of a sum."""
        return 1.5 * 2.0**self.fraction + 2 * self.bias

    @property
    def least_bits(self) -> int:
        """The bits of 3/4."""
        return ((self.bias - 1) << self.fraction) + (1 << (self.fraction - 1))


FORMATS = {"float32": Format(32, 23, 127, 64), "float64": Format(64, 52, 1023, 512)}


def name_of(function: str, dtype: str, lanes: int) -> str:
    """Return the name of a function of ``lanes`` values."""
    return f"tilecore_{function}_{dtype}_x{lanes}"


def called(f: LlvmFunction, function: str, value: str, lanes: int) -> str:
    """Return what another function gives for some of the values."""
    kind = f"<{lanes} x {f.element}>"
    return f.line(f"call {kind} @{name_of(function, f.dtype, lanes)}({kind} {value})")


def clamped(f: LlvmFunction, low: float, high: float) -> str:
    """Return the argument between two bounds; NaN stays."""
    is_low = f.compare_floats("olt", "%x", f.real(low))
    raised = f.select(is_low, f.real(low), "%x", f.element)
    above = f.compare_floats("ogt", raised, f.real(high))
    return f.select(above, f.real(high), raised, f.element)


def scaled(f: LlvmFunction, value: str, rounded: str) -> str:
    """Return ``(1 + value) * 2**n`` for an n of the sign of x.

    The low bits of ``rounded`` hold n and twice the bias.
    The power is applied in two steps, of which the second is 2**64 or 2**-64 (of float64: 512), so
    that neither factor leaves the range: the bits of 2**n less those of it make the first.
    """
    form = FORMATS[f.dtype]
    is_negative = f.compare("slt", f.of_float("%x"), 0)
    ends = (f.real(2.0**-form.half_power), f.real(2.0**form.half_power))
    second = f.select(is_negative, *ends, f.element)
    first = f.on_ints("sub", f.left(f.of_float(rounded), form.fraction), f.of_float(second))
    power = f.as_float(first)
    return f.on_floats("fmul", f.fma(value, power, power), second)


def mantissa_power(f: LlvmFunction) -> tuple[str, str]:
    """Return m and n (as a float) with x = m * 2**n, 3/4 <= m < 3/2, for positive finite x."""
    form = FORMATS[f.dtype]
    is_tiny = f.compare_floats("olt", "%x", f.real(2.0 ** (1 - form.bias)))
    raised = f.on_floats("fmul", "%x", f.real(2.0**form.fraction))
    x = f.select(is_tiny, raised, "%x", f.element)
    bits = f.plus(f.of_float(x), -form.least_bits)
    mantissa = f.as_float(f.plus(f.masked(bits, (1 << form.fraction) - 1), form.least_bits))
    exponent = f.on_ints("ashr", bits, f.number(form.fraction))
    if f.integer != "i32":  # the conversion that all vectors have
        exponent = f.change("trunc", exponent, f.integer, "i32")
    power = f.change("sitofp", exponent, "i32", f.element)
    lower = f.on_floats("fsub", power, f.real(float(form.fraction)))
    return mantissa, f.select(is_tiny, lower, power, f.element)


def outside_logarithm(f: LlvmFunction, found: str) -> str:
    """Return -inf at 0, NaN below, and the argument itself where it is inf or NaN."""
    is_ordered = f.compare_floats("olt", "%x", f.real(math.inf))
    found = f.select(is_ordered, found, "%x", f.element)
    is_zero = f.compare_floats("oeq", "%x", f.real(0.0))
    found = f.select(is_zero, f.real(-math.inf), found, f.element)
    is_negative = f.compare_floats("olt", "%x", f.real(0.0))
    return f.select(is_negative, f.real(math.nan), found, f.element)


def log1p(f: LlvmFunction) -> str:
    """Return log(u) + c / u for the float u next to 1 + x, with c = 1 + x - u."""
    form = FORMATS[f.dtype]
    near = f.on_floats("fadd", "%x", f.real(1.0))
    logarithm = called(f, "log", near, f.lanes)
    lost = f.on_floats("fsub", "%x", f.on_floats("fsub", near, f.real(1.0)))
    found = f.on_floats("fadd", logarithm, f.on_floats("fdiv", lost, near))
    size = f.as_float(f.masked(f.of_float("%x"), ~form.sign))
    is_tiny = f.compare_floats("olt", size, f.real(2.0 ** -(form.fraction + 2)))
    found = f.select(is_tiny, "%x", found, f.element)
    is_plain = f.both(
        f.compare_floats("ogt", "%x", f.real(-1.0)), f.compare_floats("olt", "%x", f.real(math.inf))
    )
    return f.select(is_plain, found, logarithm, f.element)


def rsqrt(f: LlvmFunction) -> str:
    """Return one by the root of x."""
    kind = f.kind(f.element)
    root = f.line(f"call {kind} @{intrinsic('sqrt', f.dtype, f.lanes)}({kind} %x)")
    return f.on_floats("fdiv", f.real(1.0), root)


def sigmoid(f: LlvmFunction) -> str:
    """Return 1 / (1 + exp(-x))."""
    negative = f.as_float(f.on_ints("or", f.of_float("%x"), f.number(FORMATS[f.dtype].sign)))
    power = called(f, "exp", negative, f.lanes)  # of -|x|: no more than 1
    below = f.compare_floats("olt", "%x", f.real(0.0))
    share = f.select(below, power, f.real(1.0), f.element)
    return f.on_floats("fdiv", share, f.on_floats("fadd", power, f.real(1.0)))


def size_below(f: LlvmFunction, limit: float) -> str:
    """Return ``|x|``, at most ``limit``; NaN stays."""
    size = f.as_float(f.masked(f.of_float("%x"), ~FORMATS[f.dtype].sign))
    is_above = f.compare_floats("ogt", size, f.real(limit))
    return f.select(is_above, f.real(limit), size, f.element)


def odd(f: LlvmFunction, size: str, limit: float, small: str, large: str) -> str:
    """Return ``small`` where ``size = |x|`` is below ``limit``, else ``large``; with x's sign."""
    found = f.select(f.compare_floats("olt", size, f.real(limit)), small, large, f.element)
    return with_sign(f, found)


def with_sign(f: LlvmFunction, value: str) -> str:
    """Return a magnitude with x's sign."""
    sign = f.masked(f.of_float("%x"), FORMATS[f.dtype].sign)
    return f.as_float(f.on_ints("or", f.of_float(value), sign))
