"""Narrow floats: from the bits in memory to float32 and back, rounded to nearest even."""

from __future__ import annotations

import functools

from tilecore.lowering.cuda.instructions.base import Instruction

# What CUDA's conversion to bfloat16 computes, for the emulator.
ROUND_BFLOAT16 = """unsigned bits = __float_as_uint(x);
return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;"""
WIDEN_FLOAT8 = """int e = bits >> {mantissa} & {exponents}, m = bits & {mask};
float value = e ? __uint_as_float((unsigned)(e + {shift}) << 23 | (unsigned)m << {up})
                : (float)m * {smallest}f;
{special}
return bits & 0x80u ? -value : value;"""


@functools.cache
def widen(dtype: str) -> Instruction:
    """Return ``float32 (uint32 bits)``: the value of bits of ``dtype``, exactly."""
    if dtype == "bfloat16":
        body = "return __uint_as_float(bits << 16);"
    elif dtype == "float8_e4m3fn":
        body = WIDEN_FLOAT8.format(
            mantissa=3, exponents=15, mask=7, shift=120, up=20, smallest="0.001953125",
            special="if (e == 15 && m == 7) value = __uint_as_float(0x7fc00000u);",
        )  # fmt: skip
    else:
        body = WIDEN_FLOAT8.format(
            mantissa=2, exponents=31, mask=3, shift=112, up=21, smallest="0.0000152587890625",
            special="if (e == 31) value = __uint_as_float(m ? 0x7fc00000u : 0x7f800000u);",
        )  # fmt: skip
    return Instruction(f"tc_widen_{dtype}", "unsigned bits", body, returns="float32")


@functools.cache
def narrow(dtype: str) -> Instruction:
    """Return ``uint32 (float32 x)``: the bits of the nearest value of ``dtype``."""
    if dtype == "bfloat16":
        return Instruction(
            "tc_narrow_bfloat16", "float x",
            "nv_bfloat16 r = __float2bfloat16_rn(x);\nreturn *(unsigned short*)&r;",
            ROUND_BFLOAT16, returns="uint32", headers=("cuda_bf16.h",),
        )  # fmt: skip
    return Instruction(f"tc_narrow_{dtype}", "float x", _narrow_float8(dtype), returns="uint32")


def _narrow_float8(dtype: str) -> str:
    """Return C text that rounds by adding: the sum with a power of two drops what is too fine."""
    is_e4m3 = dtype == "float8_e4m3fn"
    mantissa, bias = (3, 7) if is_e4m3 else (2, 15)
    limit, nan = ("448.0f", "0x7fu") if is_e4m3 else ("61440.0f", "0x7eu")
    over = "0x7eu" if is_e4m3 else "0x7cu"
    lowest = 127 - bias + 1  # biased exponent of the smallest normal number
    return f"""unsigned bits = __float_as_uint(x), sign = bits >> 24 & 0x80u, e = bits >> 23 & 255u;
float a = __uint_as_float(bits & 0x7fffffffu);
if (x != x) return sign | {nan};
if (a >= {limit}) return sign | {over};
unsigned base = e < {lowest}u ? {lowest}u : e;
float unit = __uint_as_float((base + {23 - mantissa}u) << 23);
float rounded = (a + unit) - unit;
unsigned r = __float_as_uint(rounded), f = r >> 23 & 255u;
if (f < {lowest}u) return sign | (unsigned)(rounded * {float(2 ** (bias - 1 + mantissa))}f);
return sign | (f - {127 - bias}u) << {mantissa} | (r >> {23 - mantissa} & {2**mantissa - 1}u);"""
