"""Conversions of several elements at once, and the decoding of narrow integers."""

from __future__ import annotations

import functools

from tilecore.errors import UnsupportedOnTarget
from tilecore.lowering.cuda.instructions.base import Instruction, asm

PACKERS = {
    "float16": ("__floats2half2_rn", "half2", "cuda_fp16.h", "sm_70"),
    "bfloat16": ("__floats2bfloat162_rn", "nv_bfloat162", "cuda_bf16.h", "sm_80"),
}
FLOAT8 = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
# Of float16 and bfloat16: the bits of a number whose last mantissa bit counts 1, and that number.
BYTES = ("0x7170", "0x7372")  # of __byte_perm: bytes 0 and 1, 2 and 3, below the magic number's
MAGIC = {"float16": (0x6400, 1024), "bfloat16": (0x4300, 128)}


def _no_conversion(source: str, dtype: str, expected: str) -> UnsupportedOnTarget:
    return UnsupportedOnTarget(
        what=f"a conversion from {source} to {dtype}", target="cuda", reason=f"expected {expected}"
    )


@functools.cache
def pack(dtype: str) -> Instruction:
    """Return ``uint32 (float low, float high)``: both as float16 or bfloat16, rounded to even."""
    if dtype not in PACKERS:
        raise _no_conversion("float32", dtype, "float16 or bfloat16")
    function, ctype, header, arch = PACKERS[dtype]
    return Instruction(
        f"tc_pack_{dtype}", "float low, float high",
        f"{ctype} pair = {function}(low, high);\nreturn *(unsigned*)&pair;", returns="uint32",
        headers=(header,), arch=arch,
    )  # fmt: skip


@functools.cache
def pack_float8(dtype: str) -> Instruction:
    """Return ``uint32 (float a, float b, float c, float d)``: four 8-bit floats, saturated."""
    if dtype not in FLOAT8:
        raise _no_conversion("float32", dtype, " or ".join(FLOAT8))
    form = f"cvt.rn.satfinite.{FLOAT8[dtype]}x2.f32 %0, %2, %1;"
    low, high = (
        asm(form, [f'"=h"({n})'], [f'"f"({x})', f'"f"({y})'], is_volatile=False,
            touches_memory=False)
        for n, x, y in (("low", "a", "b"), ("high", "c", "d"))
    )  # fmt: skip
    return Instruction(
        f"tc_pack_{FLOAT8[dtype]}", "float a, float b, float c, float d",
        f"unsigned short low, high;\n{low}\n{high}\nreturn low | (unsigned)high << 16;",
        f"return emu::pack_float8<emu::{FLOAT8[dtype]}>(a, b, c, d);", "uint32", "sm_89",
    )  # fmt: skip


@functools.cache
def unpack_float8(dtype: str) -> Instruction:
    """Return ``(void* halves, uint32 packed)``: four 8-bit floats as float16."""
    if dtype not in FLOAT8:
        raise _no_conversion(dtype, "float16", " or ".join(FLOAT8))
    form = f"cvt.rn.f16x2.{FLOAT8[dtype]}x2 %0, %1;"
    steps = "\n".join(
        asm(form, [f'"=r"(z[{i}])'], [f'"h"((unsigned short)(packed >> {16 * i}))'],
            is_volatile=False, touches_memory=False)
        for i in range(2)
    )  # fmt: skip
    return Instruction(
        f"tc_unpack_{FLOAT8[dtype]}", "void* halves, unsigned packed",
        f"unsigned* z = (unsigned*)halves;\n{steps}",
        f"emu::unpack_float8<emu::{FLOAT8[dtype]}>(halves, packed);", arch="sm_89",
    )  # fmt: skip


@functools.cache
def round_tfloat32() -> Instruction:
    """Return ``float (float value)``: the nearest number that tensor cores read (ties away)."""
    text = asm("cvt.rna.tf32.f32 %0, %1;", ['"=r"(bits)'], ['"f"(value)'], is_volatile=False,
               touches_memory=False)  # fmt: skip
    return Instruction(
        "tc_round_tf32", "float value",
        f"unsigned bits;\n{text}\nreturn __uint_as_float(bits);",
        "return emu::round_tf32(value);", "float32", "sm_80",
    )  # fmt: skip


@functools.cache
def extend_nibbles() -> Instruction:
    """Return ``(void* d, const void* s)``: four bytes that hold int4 as int8."""
    body = """unsigned x = *(const unsigned*)s;
*(unsigned*)d = x + (x & 0x08080808u) * 30u;"""  # 8 * 30 = 0xf0: the upper half of a negative one
    return Instruction("tc_extend_nibbles", "void* d, const void* s", body)


@functools.cache
def decode_int4(dtype: str, signed: bool, interleaved: bool = False) -> Instruction:
    """Return ``(void* out, uint32 packed)``: eight 4-bit integers as float16 or bfloat16.

    Element ``i`` lies in bits ``4 * i`` on; where ``interleaved``, in the order 0 2 4 6 1 3 5 7,
    which takes half the instructions.
    """
    magic, one = _magic(dtype, "int4")
    zero, flip = (one + 8, 0x00080008) if signed else (one, 0)
    pairs = []
    for i in range(4):
        word = f"(packed >> {4 * i})" if interleaved else f"(packed >> {8 * i} & 0xffu)"
        spread = word if interleaved else f"({word} | {word} << 12)"
        bits = f"({spread} & 0x000f000fu)" + (f" ^ {flip:#010x}u" if flip else "")
        pairs.append(f"z[{i}] = ({bits}) | {magic | magic << 16:#x}u;")
    return _shifted(f"tc_decode_{'' if signed else 'u'}int4_{dtype}{'_interleaved' * interleaved}",
                    dtype, pairs, zero)  # fmt: skip


@functools.cache
def decode_int8(dtype: str, signed: bool) -> Instruction:
    """Return ``(void* out, uint32 packed)``: four 8-bit integers as float16."""
    if dtype != "float16":
        raise _no_conversion("int8", dtype, "float16")
    magic, one = MAGIC[dtype]
    zero, word = (one + 128, "(packed ^ 0x80808080u)") if signed else (one, "packed")
    bits = f"{magic | magic << 16:#x}u"
    pairs = [f"z[{i}] = __byte_perm({word}, {bits}, {choice});" for i, choice in enumerate(BYTES)]
    return _shifted(f"tc_decode_{'' if signed else 'u'}int8_{dtype}", dtype, pairs, zero)


def _magic(dtype: str, source: str) -> tuple[int, int]:
    if dtype not in MAGIC:
        raise _no_conversion(source, dtype, "float16 or bfloat16")
    return MAGIC[dtype]


def _shifted(name: str, dtype: str, pairs: list[str], zero: int) -> Instruction:
    """Return the function that runs ``pairs`` and then takes ``zero`` off every element."""
    _, pair, header, arch = PACKERS[dtype]
    make = "__float2half2_rn" if dtype == "float16" else "__float2bfloat162_rn"
    steps = [
        f"(({pair}*)out)[{i}] = __hsub2((({pair}*)out)[{i}], zero);" for i in range(len(pairs))
    ]
    body = ["unsigned* z = (unsigned*)out;", *pairs, f"{pair} zero = {make}({zero}.0f);", *steps]
    return Instruction(
        name, "void* out, unsigned packed", "\n".join(body), headers=(header,), arch=arch
    )
