"""Floats of 8 and 4 bits: codes in memory, computed in float32, rounded to nearest even.

Results are those of torch: what is too large becomes the largest number (e4m3fn), infinity (e5m2)
or NaN (the others); the ``fnuz`` types have one zero and keep NaN in its negative; ``e8m0fnu``
holds powers of two only; ``float4_e2m1fn`` has neither NaN, which becomes 6, nor infinities.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tvm import tirx as tir

from tilecore.lowering.llvm_text import LANES, LlvmFunction
from tilecore.lowering.tir import vector_type


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
        sign: the bit that holds the sign.
        has_nan: whether there is a code of NaN; else NaN becomes ``nan``, without a sign.
    """

    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    infinity: int | None = None
    has_negative_zero: bool = True
    sign: int = 7
    has_nan: bool = True


FORMATS = {
    "float8_e4m3fn": Format(3, 7, 0x7E, 0x7E, 0x7F),
    "float8_e5m2": Format(2, 15, 0x7B, 0x7C, 0x7F, infinity=0x7C),
    "float8_e4m3fnuz": Format(3, 8, 0x7F, 0x80, 0x80, has_negative_zero=False),
    "float8_e5m2fnuz": Format(2, 16, 0x7F, 0x80, 0x80, has_negative_zero=False),
    "float4_e2m1fn": Format(1, 1, 0x7, 0x7, 0x7, sign=3, has_nan=False),
}
AS_HALF = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2")  # float16 holds their values / 2^n
E8M0 = "float8_e8m0fnu"
NAMES = (*FORMATS, E8M0)


def definitions(dtypes: Iterable[str]) -> dict[str, str]:
    """Return LLVM functions, text by name, that convert values of the float8 types in ``dtypes``.

    As functions an operand is written once; spelled out in TIR it stood in a dozen places, and
    a kernel took LLVM more than a minute.
    """
    found = {}
    for dtype in sorted(set(dtypes) & set(NAMES)):
        for lanes in LANES:
            found[_name("from", dtype, lanes)] = _from_text(dtype, lanes)
            found[_name("to", dtype, lanes)] = _to_text(dtype, lanes)
    return found


def from_float8(value: Any, dtype: str, lanes: int) -> Any:
    """Return bytes as float32 values."""
    return _call("from", value, dtype, lanes, "float32")


def to_float8(value: Any, dtype: str, lanes: int) -> Any:
    """Return float32 values as bytes."""
    return _call("to", value, dtype, lanes, "uint8")


def _call(way: str, value: Any, dtype: str, lanes: int, result: str) -> Any:
    assert lanes in LANES
    return tir.call_pure_extern(vector_type(result, lanes), _name(way, dtype, lanes), value)


def _name(way: str, dtype: str, lanes: int) -> str:
    return f"tilecore_{way}_{dtype}_x{lanes}"


def _from_text(dtype: str, lanes: int) -> str:
    f = LlvmFunction(lanes)
    if dtype in AS_HALF:
        return f.text(_name("from", dtype, lanes), "i8", "float", _by_half(f, FORMATS[dtype]))
    code = f.change("zext", "%x", "i8", "i32")
    nan = f.number(0x7FC00000)
    if dtype == E8M0:
        power = f.select(f.compare("eq", code, 0), f.number(0x00400000), f.left(code, 23))
        found = f.select(f.compare("eq", code, 0xFF), nan, power)
        return f.text(_name("from", dtype, lanes), "i8", "float", f.as_float(found))
    form = FORMATS[dtype]
    magnitude = f.masked(code, (1 << form.sign) - 1)
    normal = f.plus(f.left(magnitude, 23 - form.mantissa), (127 - form.bias) << 23)
    step = f.real(2.0 ** (1 - form.bias - form.mantissa))
    scaled = f.on_floats("fmul", f.change("uitofp", magnitude, "i32", "float"), step)
    is_small = f.compare("ult", magnitude, 1 << form.mantissa)
    found = f.select(is_small, f.of_float(scaled), normal)
    if form.has_nan:
        found = f.select(f.compare("eq", code, form.nan), nan, found)
    signed = f.on_ints("or", found, f.left(f.masked(code, 1 << form.sign), 31 - form.sign))
    return f.text(_name("from", dtype, lanes), "i8", "float", f.as_float(signed))


def _by_half(f: LlvmFunction, form: Format) -> str:
    """Return the float by way of float16, which the processor widens, subnormal or not."""
    shift = 10 - form.mantissa
    bits = ((1 << form.sign) - 1) << shift
    wide = f.change("sext", "%x", "i8", "i16")
    half = f.line(f"shl {f.kind('i16')} {wide}, {f.constant('i16', str(shift))}")
    if form.infinity is None:  # the sign comes down to where float16 has it
        mask = f.constant("i16", str((bits | 0x8000) - 0x10000))
        half = f.line(f"and {f.kind('i16')} {half}, {mask}")
        code = f.line(f"shl {f.kind('i16')} {wide}, {f.constant('i16', '8')}")
        if form.has_negative_zero:
            code = f.line(f"and {f.kind('i16')} {code}, {f.constant('i16', '32512')}")
        nan = form.nan << 8
        wanted = f.constant("i16", str(nan - 0x10000 if nan > 0x7FFF else nan))
        is_nan = f.line(f"icmp eq {f.kind('i16')} {code}, {wanted}")
        quiet = f.select(is_nan, f.constant("i16", "32256"), f.constant("i16", "0"), "i16")
        half = f.line(f"or {f.kind('i16')} {half}, {quiet}")
    value = f.change("fpext", f.change("bitcast", half, "i16", "half"), "half", "float")
    scale = 2.0 ** (15 - form.bias)
    return value if scale == 1.0 else f.on_floats("fmul", value, f.real(scale))


def _to_text(dtype: str, lanes: int) -> str:
    f = LlvmFunction(lanes)
    source = f.of_float("%x")
    code = _power(f, source) if dtype == E8M0 else _rounded(f, source, FORMATS[dtype])
    byte = f.change("trunc", code, "i32", "i8")
    return f.text(_name("to", dtype, lanes), "float", "i8", byte)


def _rounded(f: LlvmFunction, source: str, form: Format) -> str:
    """Return the code of the nearest number, the even one of two."""
    magnitude = f.masked(source, 0x7FFFFFFF)
    shift = 23 - form.mantissa
    rebased = f.plus(magnitude, -((127 - form.bias) << 23))
    odd = f.masked(f.right(rebased, shift), 1)
    biased = f.on_ints("add", f.plus(rebased, (1 << (shift - 1)) - 1), odd)
    normal = f.right(biased, shift)
    # Adding this power of two leaves the fraction in units of the smallest result, rounded.
    anchor = 2.0 ** (24 - form.bias - form.mantissa)
    aligned = f.on_floats("fadd", f.as_float(magnitude), f.real(anchor))
    small = f.on_ints("sub", f.of_float(aligned), f.of_float(f.real(anchor)))
    is_small = f.compare("ult", magnitude, (128 - form.bias) << 23)
    code = f.select(is_small, small, normal)
    is_large = f.compare("ugt", code, form.largest)
    code = f.select(is_large, f.number(form.overflow), code)
    is_nan = f.compare("ugt", magnitude, 0x7F800000)
    if form.has_nan:
        code = f.select(is_nan, f.number(form.nan), code)
    sign = f.masked(f.right(source, 31 - form.sign), 1 << form.sign)
    signed = f.on_ints("or", code, sign)
    if not form.has_nan:
        return f.select(is_nan, f.number(form.nan), signed)
    if form.has_negative_zero:
        return signed
    return f.select(f.compare("eq", code, 0), code, signed)


def _power(f: LlvmFunction, source: str) -> str:
    """Return the exponent of the nearest power of two; ties go to the larger one."""
    exponent = f.masked(f.right(source, 23), 0xFF)
    fraction = f.masked(source, 0x7FFFFF)
    # Of a subnormal, which has no leading one, a half alone is not enough.
    least = f.select(f.compare("eq", exponent, 0), f.number(0x400001), f.number(0x400000))
    above = f.on_ints("icmp uge", fraction, least)
    step = f.select(above, f.number(1), f.number(0))
    step = f.select(f.compare("eq", exponent, 0xFF), f.number(0), step)
    return f.on_ints("add", exponent, step)


__all__ = ["E8M0", "FORMATS", "NAMES", "Format", "definitions", "from_float8", "to_float8"]
