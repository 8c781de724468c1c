"""Eight-bit floats: bytes in memory, computed in float32, rounded to nearest even.

Results are those of torch: what is too large becomes the largest number (e4m3fn), infinity (e5m2)
or NaN (the others); the ``fnuz`` types have one zero and keep NaN in its negative; ``e8m0fnu``
holds powers of two only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx as tir

from tilecore.lowering.cpu.tir import broadcast, vector_type


@dataclass(frozen=True, slots=True)
class Format:
    """Layout of a type with a sign bit.

    Attributes:
        mantissa: bits of the fraction.
        bias: of the exponent.
        largest: code of the largest finite magnitude.
        overflow: code (without sign) of a magnitude that is too large.
        nan: code of NaN.
        infinity: code of infinity, where there is one.
        has_negative_zero: whether the sign of zero and NaN is kept.
    """

    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    infinity: int | None = None
    has_negative_zero: bool = True


FORMATS = {
    "float8_e4m3fn": Format(3, 7, 0x7E, 0x7E, 0x7F),
    "float8_e5m2": Format(2, 15, 0x7B, 0x7C, 0x7F, infinity=0x7C),
    "float8_e4m3fnuz": Format(3, 8, 0x7F, 0x80, 0x80, has_negative_zero=False),
    "float8_e5m2fnuz": Format(2, 16, 0x7F, 0x80, 0x80, has_negative_zero=False),
}
E8M0 = "float8_e8m0fnu"
NAMES = (*FORMATS, E8M0)


class _Bits:
    """Arithmetic on uint32 lanes."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes

    def number(self, value: int) -> Any:
        return broadcast(tir.IntImm("uint32", value), self.lanes)

    def real(self, value: float) -> Any:
        return broadcast(tir.FloatImm("float32", value), self.lanes)

    def masked(self, value: Any, mask: int) -> Any:
        return tir.bitwise_and(value, self.number(mask))

    def left(self, value: Any, count: int) -> Any:
        return tir.shift_left(value, self.number(count))

    def right(self, value: Any, count: int) -> Any:
        return tir.shift_right(value, self.number(count))

    def as_float(self, value: Any) -> Any:
        return tir.reinterpret(vector_type("float32", self.lanes), value)

    def of_float(self, value: Any) -> Any:
        return tir.reinterpret(vector_type("uint32", self.lanes), value)

    def cast(self, value: Any, dtype: str) -> Any:
        return tir.Cast(vector_type(dtype, self.lanes), value)


def from_float8(value: Any, dtype: str, lanes: int) -> Any:
    """Return bytes as float32 values."""
    bits = _Bits(lanes)
    code = bits.cast(value, "uint32")
    nan = bits.number(0x7FC00000)
    if dtype == E8M0:
        is_smallest = tir.EQ(code, bits.number(0))
        power = tir.Select(is_smallest, bits.number(0x00400000), bits.left(code, 23))
        return bits.as_float(tir.Select(tir.EQ(code, bits.number(0xFF)), nan, power))
    form = FORMATS[dtype]
    magnitude = bits.masked(code, 0x7F)
    normal = bits.left(magnitude, 23 - form.mantissa) + bits.number((127 - form.bias) << 23)
    step = bits.real(2.0 ** (1 - form.bias - form.mantissa))
    small = bits.of_float(bits.cast(magnitude, "float32") * step)
    is_small = tir.LT(magnitude, bits.number(1 << form.mantissa))
    found = tir.Select(is_small, small, normal)
    if form.has_negative_zero:
        last = form.largest
        if form.infinity is not None:
            last = form.infinity
            is_infinite = tir.EQ(magnitude, bits.number(last))
            found = tir.Select(is_infinite, bits.number(0x7F800000), found)
        found = tir.Select(tir.GT(magnitude, bits.number(last)), nan, found)
    else:
        found = tir.Select(tir.EQ(code, bits.number(form.nan)), nan, found)
    return bits.as_float(tir.bitwise_or(found, bits.left(bits.masked(code, 0x80), 24)))


def to_float8(value: Any, dtype: str, lanes: int) -> Any:
    """Return float32 values as bytes."""
    bits = _Bits(lanes)
    source = bits.of_float(value)
    if dtype == E8M0:
        return _to_power(bits, source)
    form = FORMATS[dtype]
    magnitude = bits.masked(source, 0x7FFFFFFF)
    shift = 23 - form.mantissa
    rebased = magnitude - bits.number((127 - form.bias) << 23)
    odd = bits.masked(bits.right(rebased, shift), 1)
    normal = bits.right(rebased + bits.number((1 << (shift - 1)) - 1) + odd, shift)
    # Adding this power of two leaves the fraction in units of the smallest result, rounded.
    anchor = 2.0 ** (24 - form.bias - form.mantissa)
    aligned = bits.of_float(bits.as_float(magnitude) + bits.real(anchor))
    small = aligned - bits.of_float(bits.real(anchor))
    is_small = tir.LT(magnitude, bits.number((128 - form.bias) << 23))
    code = tir.Select(is_small, small, normal)
    code = tir.Select(tir.GT(code, bits.number(form.largest)), bits.number(form.overflow), code)
    is_nan = tir.GT(magnitude, bits.number(0x7F800000))
    code = tir.Select(is_nan, bits.number(form.nan), code)
    sign = bits.masked(bits.right(source, 24), 0x80)
    signed = tir.bitwise_or(code, sign)
    if not form.has_negative_zero:
        signed = tir.Select(tir.EQ(code, bits.number(0)), code, signed)
    return bits.cast(signed, "uint8")


def _to_power(bits: _Bits, source: Any) -> Any:
    """Return the exponent of the nearest power of two; ties go to the larger one."""
    exponent = bits.masked(bits.right(source, 23), 0xFF)
    fraction = bits.masked(source, 0x7FFFFF)
    half = bits.number(0x400000)
    is_subnormal = tir.EQ(exponent, bits.number(0))
    above = tir.Select(is_subnormal, tir.GT(fraction, half), tir.GE(fraction, half))
    is_finite = tir.LT(exponent, bits.number(0xFF))
    step = tir.Select(tir.And(above, is_finite), bits.number(1), bits.number(0))
    return bits.cast(exponent + step, "uint8")


__all__ = ["E8M0", "FORMATS", "NAMES", "Format", "from_float8", "to_float8"]
