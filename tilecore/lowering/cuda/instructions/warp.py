"""Warps: lane and warp numbers, shuffles, votes, election, reductions."""

from __future__ import annotations

import functools

from tilecore.errors import UnsupportedOnTarget
from tilecore.lowering.cuda.instructions.base import C_TYPES, Instruction, asm

FULL = "0xffffffffu"
SHUFFLES = {"xor": "__shfl_xor_sync", "down": "__shfl_down_sync", "up": "__shfl_up_sync",
            "idx": "__shfl_sync"}  # fmt: skip
VOTES = {"any": "int32", "all": "int32", "ballot": "uint32"}
HEADERS = {
    "float16": ("cuda_fp16.h",), "bfloat16": ("cuda_bf16.h",),
    "float8_e4m3fn": ("cuda_fp8.h",), "float8_e5m2": ("cuda_fp8.h",),
}  # fmt: skip


@functools.cache
def shuffle(kind: str, dtype: str, width: int = 32) -> Instruction:
    """Return ``dtype (dtype value, int lane)``: another lane's value; all lanes of the warp call.

    Args:
        kind: "xor", "down", "up" or "idx": how ``lane`` names the other lane.
        dtype: type of the value, at least 16 bits wide.
        width: lanes of a group (a power of two); lanes outside do not take part.
    """
    if kind not in SHUFFLES or width not in (2, 4, 8, 16, 32):
        raise UnsupportedOnTarget(
            what=f"shuffle {kind} of width {width}", target="cuda",
            reason=f"expected {', '.join(SHUFFLES)}; width 2, 4, 8, 16 or 32",
        )  # fmt: skip
    return Instruction(
        f"tc_shuffle_{kind}_{dtype}_{width}", f"{C_TYPES[dtype]} value, int lane",
        f"return {SHUFFLES[kind]}({FULL}, value, lane, {width});", returns=dtype,
        headers=HEADERS.get(dtype, ()),
    )  # fmt: skip


@functools.cache
def shuffle_masked(kind: str, dtype: str, width: int = 32) -> Instruction:
    """Return ``dtype (uint32 mask, dtype value, int lane)``: a shuffle of the lanes in ``mask``."""
    return Instruction(
        f"tc_shuffle_masked_{kind}_{dtype}_{width}",
        f"unsigned mask, {C_TYPES[dtype]} value, int lane",
        f"return {SHUFFLES[kind]}(mask, value, lane, {width});", returns=dtype,
        headers=HEADERS.get(dtype, ()),
    )  # fmt: skip


@functools.cache
def vote(kind: str) -> Instruction:
    """Return ``int (int condition)`` for "any" and "all", a mask of lanes for "ballot"."""
    return Instruction(
        f"tc_{kind}", "int condition", f"return __{kind}_sync({FULL}, condition);",
        returns=VOTES[kind],
    )  # fmt: skip


@functools.cache
def vote_masked(kind: str) -> Instruction:
    """Return ``(uint32 mask, int condition)``: a vote of the lanes in ``mask``."""
    return Instruction(
        f"tc_{kind}_masked", "unsigned mask, int condition",
        f"return __{kind}_sync(mask, condition);", returns=VOTES[kind],
    )  # fmt: skip


@functools.cache
def elect() -> Instruction:
    """Return ``int ()``: 1 in one lane of the warp, 0 in the others; all lanes call (sm_90)."""
    text = "{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 %0, 1, 0, p; }"
    return Instruction(
        "tc_elect", "", "int chosen;\n" + asm(text, ['"=r"(chosen)']) + "\nreturn chosen;",
        "return emu::elect();", "int32", "sm_90",
    )  # fmt: skip


@functools.cache
def warp_index(axis_text: str = "threadIdx.x") -> Instruction:
    """Return ``int ()``: the warp's number, known by the compiler to be the same in all lanes."""
    return Instruction(
        "tc_warp_index" if axis_text == "threadIdx.x" else "tc_warp_index_flat", "",
        f"return __shfl_sync({FULL}, (int)({axis_text}) / 32, 0);", returns="int32",
    )  # fmt: skip


@functools.cache
def assume_below() -> Instruction:
    """Return ``(int value, int limit)``: tell the compiler that 0 <= value < limit.

    Divisions of a thread index by powers of two then are one shift, not four instructions.
    """
    return Instruction(
        "tc_assume_below", "int value, int limit",
        "__builtin_assume(value >= 0 && value < limit);", ";",
    )  # fmt: skip


@functools.cache
def clock() -> Instruction:
    """Return ``int64 ()``: cycles of the multiprocessor's clock."""
    return Instruction("tc_clock", "", "return clock64();", returns="int64")
