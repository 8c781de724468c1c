"""Wavefronts of AMD GPUs: shuffles, votes and matrix instructions of 64 lanes.

The text is HIP's, which the emulator has; machine code comes from the functions of the same names
in tilecore/codegen/amdgcn/library.py.
"""

from __future__ import annotations

import functools

from tilecore.errors import UnsupportedOnTarget
from tilecore.lowering.cuda.instructions.base import C_TYPES, Instruction

SHUFFLES = {"xor": "__shfl_xor", "down": "__shfl_down", "up": "__shfl_up", "idx": "__shfl"}
VOTES = {"any": "int32", "all": "int32", "ballot": "uint32"}
# What a mask of a program's 32 lanes is of the wavefront, of which they are a half.
HALF = "emu::u64 lanes = (emu::u64)mask << (emu::lane() & 32);"
WIDTHS = (2, 4, 8, 16, 32, 64)
# Element type -> the emulator's name of it.
ELEMENTS = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "int8": "s8",
    "int32": "s32", "float8_e4m3fnuz": "e4m3z", "float8_e5m2fnuz": "e5m2z", "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}  # fmt: skip


@functools.cache
def shuffle(kind: str, dtype: str, width: int = 64) -> Instruction:
    """Return ``dtype (dtype value, int lane)``: another lane's value; all lanes of the wave call.

    Args:
        kind: "xor", "down", "up" or "idx": how ``lane`` names the other lane.
        dtype: type of the value, 16, 32 or 64 bits wide.
        width: lanes of a group (a power of two); lanes outside do not take part.
    """
    if kind not in SHUFFLES or width not in WIDTHS:
        raise UnsupportedOnTarget(
            what=f"shuffle {kind} of width {width}", target="rocm",
            reason=f"expected {', '.join(SHUFFLES)}; width {', '.join(map(str, WIDTHS))}",
        )  # fmt: skip
    return Instruction(
        f"tc_wave_shuffle_{kind}_{dtype}_{width}", f"{C_TYPES[dtype]} value, int lane",
        f"return {SHUFFLES[kind]}(value, lane, {width});", returns=dtype,
    )  # fmt: skip


@functools.cache
def shuffle_masked(kind: str, dtype: str, width: int = 32) -> Instruction:
    """Return ``dtype (uint32 mask, dtype value, int lane)``: as ``shuffle``, of lanes in ``mask``.

    The device has no masks: lanes that are there take part, those that are not give 0.

    Args:
        kind: "xor", "down", "up" or "idx".
        dtype: type of the value.
        width: lanes of a group, at most 32.
    """
    plain = shuffle(kind, dtype, width)
    return Instruction(
        f"tc_wave_masked_{kind}_{dtype}_{width}", f"unsigned mask, {plain.parameters}",
        f"{HALF}\nreturn {SHUFFLES[kind]}_sync(lanes, value, lane, {width});", returns=dtype,
    )  # fmt: skip


@functools.cache
def vote(kind: str, *, is_masked: bool = True) -> Instruction:
    """Return ``([uint32 mask,] int condition)``: a vote of the lanes of a half of the wave.

    Args:
        kind: "any" or "all" (1 or 0), or "ballot" (a bit for each lane).
        is_masked: whether a mask says which lanes vote.
    """
    no = "!" if kind == "all" else ""
    made = {"any": "votes != 0", "all": "votes == 0", "ballot": "votes >> (emu::lane() & 32)"}
    name, parameters, text = f"tc_wave_{kind}_masked", "unsigned mask, int condition", HALF
    if not is_masked:
        name, parameters = f"tc_wave_{kind}", "int condition"
        text = f"unsigned mask = 0xffffffffu;\n{HALF}"
    return Instruction(
        name, parameters,
        f'{text}\nemu::u64 votes = emu::ballot("vote.{kind}", lanes, {no}condition);\n'
        f"return {made[kind]};", returns=VOTES[kind],
    )  # fmt: skip


@functools.cache
def schedule_fence() -> Instruction:
    """Return ``()``: the compiler moves no instruction from one side to the other."""
    return Instruction("tc_schedule_fence", "", ";")


@functools.cache
def mfma(k: int, a: str, b: str, accumulator: str, *, flushes: bool = False) -> Instruction:
    """Return ``(void* d, const void* a, const void* b)``: d += a b, 16 x 16 sums of ``k`` products.

    With r = lane % 16, q = lane / 16, p = k / 4: a holds A[r, p q + e], b holds B[p q + e, r] and
    d holds D[4 q + e, r], of float64 D[4 e + q, r].

    Args:
        k: products of a sum.
        a: type of A.
        b: type of B; only 8-bit floats mix.
        accumulator: type of D.
        flushes: whether subnormal 16-bit floats count as zero, and subnormal sums become it.
    """
    types = ", ".join(f"emu::{ELEMENTS[dtype]}" for dtype in (a, b, accumulator))
    rounding = ", true" if flushes and a in ("float16", "bfloat16") else ""
    return Instruction(
        f"tc_mfma_16x16x{k}_{a if a == b else f'{a}_{b}'}", "void* d, const void* a, const void* b",
        f"emu::mfma<{k}, {types}{rounding}>(d, a, b);",
    )  # fmt: skip
