"""Approximate functions of the special function units, and arithmetic that rounds as asked."""

from __future__ import annotations

import functools

from tilecore.errors import UnsupportedOnTarget
from tilecore.ir.expr import ROUNDED
from tilecore.lowering.cuda.instructions.base import Instruction, asm

# Name -> PTX, C++ text of the same, first architecture. Errors: PTX ISA 9.0, section 9.7.3.
APPROXIMATE = {
    "exp2": ("ex2.approx.ftz.f32", "exp2f(x)", "sm_70"),
    "log2": ("lg2.approx.ftz.f32", "log2f(x)", "sm_70"),
    "reciprocal": ("rcp.approx.ftz.f32", "1.0f / x", "sm_70"),
    "rsqrt": ("rsqrt.approx.ftz.f32", "1.0f / sqrtf(x)", "sm_70"),
    "sqrt": ("sqrt.approx.ftz.f32", "sqrtf(x)", "sm_70"),
    "sin": ("sin.approx.ftz.f32", "sinf(x)", "sm_70"),
    "cos": ("cos.approx.ftz.f32", "cosf(x)", "sm_70"),
    "tanh": ("tanh.approx.f32", "tanhf(x)", "sm_75"),
}
PAIRS = {"float16": ("half2", "cuda_fp16.h", "sm_70"),
         "bfloat16": ("nv_bfloat162", "cuda_bf16.h", "sm_80")}  # fmt: skip


@functools.cache
def approximate(function: str) -> Instruction:
    """Return ``float (float x)``: exp2, log2, reciprocal, rsqrt, sqrt, sin, cos or tanh."""
    if function not in APPROXIMATE:
        raise UnsupportedOnTarget(
            what=f"approximate {function}", target="cuda",
            reason=f"expected {', '.join(APPROXIMATE)}",
        )  # fmt: skip
    ptx, emulated, arch = APPROXIMATE[function]
    text = asm(f"{ptx} %0, %1;", ['"=f"(y)'], ['"f"(x)'], is_volatile=False, touches_memory=False)
    return Instruction(
        f"tc_{function}", "float x", f"float y;\n{text}\nreturn y;", f"return {emulated};",
        "float32", arch,
    )  # fmt: skip


@functools.cache
def rounded(name: str, dtype: str) -> Instruction:
    """Return a function of ROUNDED ("add_rz") of float32 or float64; "_rn" is to nearest."""
    op, mode = name.split("_")
    ctype, letter = ("float", "f") if dtype == "float32" else ("double", "d")
    function = f"__{letter}{op}_{mode}"
    if op == "fma":
        function = f"__fma{'f' if dtype == 'float32' else ''}_{mode}"
    names = "abc"[: ROUNDED[name]]
    given = ", ".join(names)
    return Instruction(
        f"tc_rounded_{op}_{mode}_{dtype}", ", ".join(f"{ctype} {n}" for n in names),
        f"return {function}({given});", f"return emu::rounded_{op}(emu::{mode}, {given});", dtype,
    )  # fmt: skip


@functools.cache
def fma_halves(dtype: str) -> Instruction:
    """Return ``uint32 (uint32 a, uint32 b, uint32 c)``: a * b + c of two numbers at once."""
    pair, header, arch = PAIRS[dtype]
    values = ", ".join(f"*({pair}*)&{n}" for n in "abc")
    return Instruction(
        f"tc_fma2_{dtype}", "unsigned a, unsigned b, unsigned c",
        f"{pair} made = __hfma2({values});\nreturn *(unsigned*)&made;", returns="uint32",
        headers=(header,), arch=arch,
    )  # fmt: skip


@functools.cache
def masked_or() -> Instruction:
    """Return ``uint32 (uint32 x, uint32 mask, uint32 bits)``: ``x & mask | bits``.

    One instruction, which ptxas makes of two operations only if no more than one of their constants
    is a literal. Source: PTX ISA 9.0, section 9.7.8.6, lop3: the table of (a & b) | c is 0xea.
    """
    text = asm(
        "lop3.b32 %0, %1, %2, %3, 0xea;", ['"=r"(y)'], ['"r"(x)', '"r"(mask)', '"r"(bits)'],
        is_volatile=False, touches_memory=False,
    )  # fmt: skip
    return Instruction(
        "tc_masked_or", "unsigned x, unsigned mask, unsigned bits",
        f"unsigned y;\n{text}\nreturn y;", "return (x & mask) | bits;", "uint32",
    )  # fmt: skip
