"""Tensor cores by warpgroups of 128 threads (sm_90a): wgmma and its matrix descriptors.

The accumulator is a local array of a thread: with ``w = warp % 4``, ``g = lane // 4`` and
``c = lane % 4``, element ``i`` is at row ``16 * w + g + 8 * (i // 2 % 2)``, column
``8 * (i // 4) + 2 * c + i % 2``. A in registers has the layout of mma's A, 16 rows per warp.
Source: PTX ISA 9.0, section 9.7.15 (Asynchronous warpgroup level matrix instructions).
"""

from __future__ import annotations

import functools

from tilecore.errors import UnsupportedOnTarget
from tilecore.lowering.cuda.instructions.base import (
    Instruction,
    asm,
    elements,
    registers,
    shared,
)
from tilecore.lowering.cuda.instructions.matrix import OPERAND_BITS, PTX_NAMES

SWIZZLES = {128: 1, 64: 2, 32: 3, 0: 0}  # bytes -> the descriptor's number
# Operand types that may be mixed -> accumulator types.
FAMILIES = (
    (("float16",), ("float32", "float16")),
    (("bfloat16",), ("float32",)),
    (("tfloat32",), ("float32",)),
    (("float8_e4m3fn", "float8_e5m2"), ("float32", "float16")),
    (("int8", "uint8"), ("int32",)),
)
ARCH = "sm_90a"


def _unsupported(what: str, reason: str) -> UnsupportedOnTarget:
    return UnsupportedOnTarget(what=what, target="cuda", reason=reason)


def accumulator_registers(n: int, c: str) -> int:
    """Return how many registers of a thread hold an accumulator of 64 x n elements."""
    return n // 4 if c == "float16" else n // 2


def k_extent(dtype: str) -> int:
    """Return the products that one instruction sums up: 32 bytes of operand."""
    return 256 // OPERAND_BITS[dtype]


@functools.cache
def wgmma(
    n: int, a: str, b: str, c: str = "float32", *, a_in_registers: bool = False,
    a_major: str = "k", b_major: str = "k",
) -> Instruction:  # fmt: skip
    """Return ``(void* d, a, uint64 b, int accumulates)``: d (64 x n) = a * b (+ d).

    ``a`` is a descriptor (uint64), or ``const void*`` where ``a_in_registers``. The product is not
    complete before ``wgmma_wait``; ``d`` and register operands may not be touched until then.

    Args:
        n: columns, a multiple of 8 up to 256 (int8: of 16 from 32 on).
        a: operand type ("tfloat32": float32 numbers of which 19 bits count).
        b: operand type.
        c: type of the sums.
        a_in_registers: ``a`` lies in four 32-bit registers of each thread.
        a_major: "k" or "m": the axis along which A is contiguous in shared memory.
        b_major: "k" or "n"; only 16-bit types take "m" and "n".

    Raises:
        UnsupportedOnTarget: there is no such instruction (TC302).
    """
    _check(n, a, b, c, a_major, b_major)
    count = accumulator_registers(n, c)
    constraint, ctype = ("f", "float") if c == "float32" else ("r", "unsigned")
    a_count = 4 if a_in_registers else 1
    operand = registers(count, 4) if a_in_registers else f"%{count}"
    flags = ["1", "1"] if c != "int32" else []
    if OPERAND_BITS[a] == 16:
        flags += [] if a_in_registers else [str(int(a_major == "m"))]
        flags += [str(int(b_major == "n"))]
    shape = f"m64n{n}k{k_extent(a)}"
    form = f"wgmma.mma_async.sync.aligned.{shape}.{PTX_NAMES[c]}.{PTX_NAMES[a]}.{PTX_NAMES[b]}"
    tail = "".join(f", {f}" for f in flags)
    at = count + a_count
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, %{at + 1}, 0; "
        f"{form} {registers(0, count)}, {operand}, %{at}, p{tail}; }}"
    )
    inputs = elements("r", "x", 4) if a_in_registers else ['"l"(a)']
    inputs += ['"l"(b)', '"r"(accumulates)']
    body = [f"{ctype}* z = ({ctype}*)d;"]
    if a_in_registers:
        body.append("const unsigned* x = (const unsigned*)a;")
    outputs = elements(f"+{constraint}", "z", count)
    body.append(asm(text, outputs, inputs, touches_memory=False))
    tags = ", ".join(f"emu::{PTX_NAMES[t]}" for t in (a, b, c))
    majors = ", ".join(str(m != "k").lower() for m in (a_major, b_major))
    kind = "rs" if a_in_registers else "ss"
    a_parameter = "const void* a" if a_in_registers else "unsigned long long a"
    return Instruction(
        f"tc_wgmma_{kind}_{shape}_{PTX_NAMES[c]}_{PTX_NAMES[a]}_{PTX_NAMES[b]}_{a_major}{b_major}",
        f"void* d, {a_parameter}, unsigned long long b, int accumulates", "\n".join(body),
        f"emu::wgmma_{kind}<{n}, {tags}>(d, a, b, accumulates, {majors});", arch=ARCH,
    )  # fmt: skip


def _check(n: int, a: str, b: str, c: str, a_major: str, b_major: str) -> None:
    what = f"wgmma m64n{n} of {a} x {b} into {c}"
    if not any(a in operands and b in operands and c in sums for operands, sums in FAMILIES):
        raise _unsupported(what, "no such combination of types")
    is_integer = c == "int32"
    if not 8 <= n <= 256 or n % 8 or (is_integer and n > 32 and n % 16):
        raise _unsupported(what, "expected n = 8, 16, ... 256 (int8: 8, 16, 24, 32, 48, ... 256)")
    if (a_major not in "km" or b_major not in "kn") or (
        (a_major, b_major) != ("k", "k") and OPERAND_BITS[a] != 16
    ):
        raise _unsupported(what, "expected K-major operands (16-bit types: or M- and N-major)")


@functools.cache
def descriptor(swizzle: int, leading_bytes: int, stride_bytes: int) -> Instruction:
    """Return ``uint64 (const void* tile)``: the descriptor of a matrix in shared memory.

    Advance along K by adding ``bytes >> 4``. The compiler makes one where it is asked for: it would
    move the descriptors of all instructions before a loop, and spill them.

    Args:
        swizzle: 128, 64 or 32 bytes, or 0; tiles begin at a multiple of 8 of its rows.
        leading_bytes: swizzled and K-major: not used; M- or N-major: from one atom of ``swizzle``
            bytes to the next along M or N. Not swizzled: between core matrices along K.
        stride_bytes: from 8 rows to the next 8 (K-major: along M or N; else along K).
    """
    if swizzle not in SWIZZLES:
        raise _unsupported(f"a swizzle of {swizzle} bytes", "expected 0, 32, 64 or 128")
    for size in (leading_bytes, stride_bytes):
        if size % 16 or not 0 <= size < 1 << 18:
            raise _unsupported(
                f"a descriptor with a step of {size} bytes", "expected a multiple of 16 below 2^18"
            )
    bits = SWIZZLES[swizzle] << 62 | (stride_bytes >> 4) << 32 | (leading_bytes >> 4) << 16
    address = f"(unsigned long long)(({shared('tile')} & 0x3ffff) >> 4)"
    hold = asm("", ['"+l"(made)'], touches_memory=False)
    return Instruction(
        f"tc_descriptor_{swizzle}_{leading_bytes}_{stride_bytes}", "const void* tile",
        f"unsigned long long made = {bits:#x}ull | {address};\n{hold}\nreturn made;",
        f"return {bits:#x}ull | emu::descriptor_address(tile);", "uint64", ARCH,
    )  # fmt: skip


@functools.cache
def wgmma_fence() -> Instruction:
    """Return ``()``: registers written before are seen by the wgmma that follow."""
    return Instruction(
        "tc_wgmma_fence", "", asm("wgmma.fence.sync.aligned;"), "emu::wgmma_fence();", arch=ARCH
    )


@functools.cache
def wgmma_commit() -> Instruction:
    """Return ``()``: the wgmma since the last commit become a group."""
    return Instruction(
        "tc_wgmma_commit", "", asm("wgmma.commit_group.sync.aligned;"), "emu::wgmma_commit();",
        arch=ARCH,
    )  # fmt: skip


@functools.cache
def wgmma_wait(pending: int) -> Instruction:
    """Return ``()``: wait for all but the last ``pending`` (0 to 7) groups of the warpgroup."""
    return Instruction(
        f"tc_wgmma_wait_{pending}", "", asm(f"wgmma.wait_group.sync.aligned {pending};"),
        f"emu::wgmma_wait({pending});", arch=ARCH,
    )  # fmt: skip


@functools.cache
def wgmma_keep(count: int, dtype: str = "float32") -> Instruction:
    """Return ``(void* d)``: the compiler may not move accesses to ``d`` past this point.

    Stands before the first wgmma of a group and after the wait, on its ``count`` registers.
    """
    constraint, ctype = ("f", "float") if dtype == "float32" else ("r", "unsigned")
    keep = asm("", [f'"+{constraint}"(z[i])'], ())
    body = f"{ctype}* z = ({ctype}*)d;\n#pragma unroll\nfor (int i = 0; i < {count}; ++i) {keep}"
    return Instruction(f"tc_wgmma_keep_{count}_{constraint}", "void* d", body, ";", arch=ARCH)


@functools.cache
def set_registers(count: int, grows: bool) -> Instruction:
    """Return ``()``: the warps of this warpgroup get ``count`` registers per thread (24..256)."""
    if count % 8 or not 24 <= count <= 256:
        raise _unsupported(f"setmaxnreg {count}", "expected a multiple of 8 from 24 to 256")
    way = "inc" if grows else "dec"
    return Instruction(
        f"tc_registers_{way}_{count}", "", asm(f"setmaxnreg.{way}.sync.aligned.u32 {count};"),
        f"emu::set_registers({count}, {str(grows).lower()});", arch=ARCH,
    )  # fmt: skip
