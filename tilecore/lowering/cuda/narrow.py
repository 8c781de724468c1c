"""Narrow floats: from the bits in memory to float32 and back, rounded to nearest even.

Results are those of torch, as on CPUs (``lowering/cpu/functions/float8.py`` has the formats).
"""

from __future__ import annotations

import functools

from tilecore.lowering.cpu.functions.float8 import E8M0, FORMATS, Format
from tilecore.lowering.cuda.instructions.base import Instruction

# What CUDA's conversion to bfloat16 computes, for the emulator.
ROUND_BFLOAT16 = """unsigned bits = __float_as_uint(x);
return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;"""
INFINITY, NAN = "__uint_as_float(0x7f800000u)", "__uint_as_float(0x7fc00000u)"

# By way of float16: float8_e5m2 is its upper byte; float8_e4m3fn has the same order of bits, and an
# exponent that is less by 8, which a product mends exactly. sm_89 has an instruction for it (PTX
# ISA 9.0, section 9.7.9.22, cvt). Directives without a blank choose between a GPU and the emulator.
FROM_E5M2 = "return __half2float(__ushort_as_half((unsigned short)(bits << 8)));"
FROM_E4M3 = f"""unsigned m = bits & 127u;
unsigned short half_bits = (unsigned short)(m << 7 | (bits & 128u) << 8);
float value = __half2float(__ushort_as_half(half_bits)) * 256.0f;
return m == 127u ? {NAN} : value;"""
FROM_E4M3_SM_89 = f"""# if __CUDA_ARCH__ >= 890
unsigned pair;
asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)bits));
return __half2float(__ushort_as_half((unsigned short)pair));
# else
{FROM_E4M3}
# endif"""
HALVES = {
    "float8_e4m3fn": (FROM_E4M3_SM_89, FROM_E4M3), "float8_e5m2": (FROM_E5M2, FROM_E5M2)
}  # fmt: skip


@functools.cache
def widen(dtype: str) -> Instruction:
    """Return ``float32 (uint32 bits)``: the value of bits of ``dtype``, exactly."""
    if dtype in HALVES:
        body, emulated = HALVES[dtype]
        return Instruction(
            f"tc_widen_{dtype}", "unsigned bits", body, emulated, returns="float32",
            headers=("cuda_fp16.h",),
        )  # fmt: skip
    if dtype == "bfloat16":
        body = "return __uint_as_float(bits << 16);"
    elif dtype == E8M0:
        body = f"if (bits == 255u) return {NAN};\n"
        body += "return __uint_as_float(bits ? bits << 23 : 0x00400000u);"
    else:
        body = _widened(FORMATS[dtype])
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
    body = _power() if dtype == E8M0 else _rounded(FORMATS[dtype])
    return Instruction(f"tc_narrow_{dtype}", "float x", body, returns="uint32")


@functools.cache
def upper_half() -> Instruction:
    """Return ``uint32 (float32 x)``: the bits of x as bfloat16, which holds it exactly."""
    return Instruction(
        "tc_upper_half", "float x", "return __float_as_uint(x) >> 16;", returns="uint32"
    )


def _widened(form: Format) -> str:
    """Return C text that decodes ``bits``."""
    lines = [
        f"unsigned m = bits & {(1 << form.sign) - 1}u;",
        f"float value = m < {1 << form.mantissa}u "
        f"? (float)m * {_exact(2.0 ** (1 - form.bias - form.mantissa))} "
        f": __uint_as_float((m << {23 - form.mantissa}) + {(127 - form.bias) << 23}u);",
    ]
    if form.has_negative_zero and form.has_nan:
        last = form.largest
        if form.infinity is not None:
            last = form.infinity
            lines.append(f"if (m == {last}u) value = {INFINITY};")
        lines.append(f"if (m > {last}u) value = {NAN};")
    elif form.has_nan:
        lines.append(f"if (bits == {form.nan}u) return {NAN};")
    sign = f"(bits & {1 << form.sign}u) << {31 - form.sign}"
    lines.append(f"return __uint_as_float(__float_as_uint(value) | {sign});")
    return "\n".join(lines)


def _rounded(form: Format) -> str:
    """Return C text that rounds ``x``; what is small is rounded by adding a power of two to it."""
    shift = 23 - form.mantissa
    anchor = _exact(2.0 ** (24 - form.bias - form.mantissa))
    lines = [
        "unsigned bits = __float_as_uint(x), m = bits & 0x7fffffffu;",
        f"unsigned r = m - {(127 - form.bias) << 23}u;",
        f"unsigned normal = (r + {(1 << (shift - 1)) - 1}u + (r >> {shift} & 1u)) >> {shift};",
        f"float aligned = __uint_as_float(m) + {anchor};",
        f"unsigned small = __float_as_uint(aligned) - __float_as_uint({anchor});",
        f"unsigned code = m < {(128 - form.bias) << 23}u ? small : normal;",
        f"if (code > {form.largest}u) code = {form.overflow}u;",
        f"unsigned sign = bits >> {31 - form.sign} & {1 << form.sign}u;",
    ]
    is_nan = "m > 0x7f800000u"
    if not form.has_nan:
        lines.append(f"return {is_nan} ? {form.nan}u : code | sign;")
    elif form.has_negative_zero:
        lines.append(f"return ({is_nan} ? {form.nan}u : code) | sign;")
    else:
        lines += [f"if ({is_nan}) code = {form.nan}u;", "return code ? code | sign : 0u;"]
    return "\n".join(lines)


def _power() -> str:
    """Return C text of the exponent of the nearest power of two; ties go to the larger one."""
    return """unsigned bits = __float_as_uint(x), e = bits >> 23 & 255u, f = bits & 0x7fffffu;
unsigned least = e ? 0x400000u : 0x400001u;
return e == 255u ? e : e + (f >= least ? 1u : 0u);"""


def _exact(value: float) -> str:
    """Return a literal of a power of two."""
    return f"{value!r}f" if "e" in repr(value) or "." in repr(value) else f"{value!r}.0f"
