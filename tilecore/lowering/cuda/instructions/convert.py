"""Conversions of several elements at once, and of numbers to those that tensor cores read."""

from __future__ import annotations

import functools

from tilecore.errors import UnsupportedOnTarget
from tilecore.lowering.cuda.instructions.base import Instruction, asm

PACKERS = {
    "float16": ("__floats2half2_rn", "half2", "cuda_fp16.h", "sm_70"),
    "bfloat16": ("__floats2bfloat162_rn", "nv_bfloat162", "cuda_bf16.h", "sm_80"),
}


def _packer(dtype: str) -> tuple[str, str, str, str]:
    """Return (function, type of the pair, header, oldest architecture)."""
    if dtype not in PACKERS:
        raise UnsupportedOnTarget(
            what=f"a conversion from float32 to {dtype}", target="cuda",
            reason="expected float16 or bfloat16",
        )  # fmt: skip
    return PACKERS[dtype]


@functools.cache
def pack(dtype: str) -> Instruction:
    """Return ``uint32 (float low, float high)``: both as float16 or bfloat16, rounded to even."""
    function, ctype, header, arch = _packer(dtype)
    return Instruction(
        f"tc_pack_{dtype}", "float low, float high",
        f"{ctype} pair = {function}(low, high);\nreturn *(unsigned*)&pair;", returns="uint32",
        headers=(header,), arch=arch,
    )  # fmt: skip


@functools.cache
def narrow_pair(dtype: str) -> Instruction:
    """Return ``(void* pair, float low, float high)``: both, rounded to even, side by side."""
    function, ctype, header, arch = _packer(dtype)
    return Instruction(
        f"tc_narrow_pair_{dtype}", "void* pair, float low, float high",
        f"*({ctype}*)pair = {function}(low, high);", headers=(header,), arch=arch,
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
def exact(dtype: str) -> Instruction:
    """Return ``float (uint32 bits)``: the float16 or float32 that has these bits."""
    if dtype == "float32":
        return Instruction(
            "tc_exact_float32", "unsigned bits", "return __uint_as_float(bits);", returns=dtype
        )
    return Instruction(
        "tc_exact_float16", "unsigned bits", "return __ushort_as_half((unsigned short)bits);",
        returns=dtype, headers=("cuda_fp16.h",),
    )  # fmt: skip


@functools.cache
def extend_int16() -> Instruction:
    """Return ``int (int value)``: its lower 16 bits as a signed number."""
    text = asm("prmt.b32 %0, %1, 0, 0x9910;", ['"=r"(extended)'], ['"r"(value)'], is_volatile=False,
               touches_memory=False)  # fmt: skip
    return Instruction(
        "tc_extend_int16", "int value", f"int extended;\n{text}\nreturn extended;",
        "return (short)value;", "int32",
    )  # fmt: skip


@functools.cache
def extend_nibbles() -> Instruction:
    """Return ``(void* d, const void* s)``: four bytes that hold int4 as int8."""
    body = """unsigned x = *(const unsigned*)s;
*(unsigned*)d = x + (x & 0x08080808u) * 30u;"""  # 8 * 30 = 0xf0: the upper half of a negative one
    return Instruction("tc_extend_nibbles", "void* d, const void* s", body)


@functools.cache
def pack_halves() -> Instruction:
    """Return ``(void* d, uint32 word)``: two registers of 16 bits are set to those of a word."""
    return Instruction("tc_pack_halves", "void* d, unsigned word", "*(unsigned*)d = word;")
