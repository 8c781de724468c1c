"""Wide accesses: one thread moves up to 16 bytes at once."""

from __future__ import annotations

import functools

from tilecore.lowering.cuda.instructions.base import Instruction

WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "uint2", 16: "uint4"}


@functools.cache
def copy_bytes(size: int) -> Instruction:
    """Return ``(void* dst, const void* src)``: a copy of ``size`` bytes, both aligned to it."""
    word = WORDS[size]
    return Instruction(
        f"tc_copy_{size}", "void* dst, const void* src",
        f"*({word}*)dst = *(const {word}*)src;",
    )  # fmt: skip
