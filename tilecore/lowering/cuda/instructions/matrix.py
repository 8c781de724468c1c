"""Tensor cores by warps: ldmatrix, stmatrix and mma.sync.

Fragments are local arrays of a thread, 4-byte aligned, passed by pointer: 32-bit registers for all
types but float64. For m16n8kK, with ``g = lane // 4``, ``c = lane % 4`` and ``e`` elements per
register, register ``r`` of A holds row ``g + 8 * (r % 2)``, columns ``e * c + 4 * e * (r // 2)``
on; register ``r`` of B holds column ``g``, rows ``e * c + 4 * e * r`` on; elements ``i`` of C and D
are at row ``g + 8 * (i // 2)``, column ``2 * c + i % 2``.
Source: PTX ISA 9.0, section 9.7.14.5 (Matrix multiply-accumulate using mma instruction).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from tilecore.errors import UnsupportedOnTarget
from tilecore.lowering.cuda.instructions.base import (
    Instruction,
    asm,
    elements,
    registers,
    shared,
)

PTX_NAMES = {
    "float16": "f16", "bfloat16": "bf16", "tfloat32": "tf32", "float32": "f32", "float64": "f64",
    "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "int8": "s8", "uint8": "u8", "int4": "s4",
    "uint4": "u4", "int32": "s32", "float4_e2m1fn": "e2m1",
}  # fmt: skip
OPERAND_BITS = {
    "float16": 16, "bfloat16": 16, "tfloat32": 32, "float64": 64, "float8_e4m3fn": 8,
    "float8_e5m2": 8, "int8": 8, "uint8": 8, "int4": 4, "uint4": 4,
}  # fmt: skip
# Operand types that may be mixed -> accumulator types; shape -> first architecture.
# Source: PTX ISA 9.0, table "Matrix shapes" and the target notes of mma.
FAMILIES: tuple[tuple[tuple[str, ...], tuple[str, ...], dict[str, str]], ...] = (
    (("float16",), ("float32", "float16"),
     {"m8n8k4": "sm_70", "m16n8k8": "sm_75", "m16n8k16": "sm_80"}),
    (("bfloat16",), ("float32",), {"m16n8k8": "sm_80", "m16n8k16": "sm_80"}),
    (("tfloat32",), ("float32",), {"m16n8k4": "sm_80", "m16n8k8": "sm_80"}),
    (("float64",), ("float64",),
     {"m8n8k4": "sm_80", "m16n8k4": "sm_90", "m16n8k8": "sm_90", "m16n8k16": "sm_90"}),
    (("int8", "uint8"), ("int32",),
     {"m8n8k16": "sm_75", "m16n8k16": "sm_80", "m16n8k32": "sm_80"}),
    (("int4", "uint4"), ("int32",),
     {"m8n8k32": "sm_75", "m16n8k32": "sm_80", "m16n8k64": "sm_80"}),
    (("float8_e4m3fn", "float8_e5m2"), ("float32", "float16"), {"m16n8k32": "sm_89"}),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MmaShape:
    """Extents of one instruction and the 32-bit registers (float64: elements) of a thread."""

    m: int
    n: int
    k: int
    a_registers: int
    b_registers: int
    c_registers: int
    arch: str


@functools.cache
def mma_shape(shape: str, a: str, b: str, c: str) -> MmaShape:
    """Return the extents and registers of an mma instruction.

    Raises:
        UnsupportedOnTarget: there is no such instruction (TC302).
    """
    for operands, sums, shapes in FAMILIES:
        if a in operands and b in operands and c in sums and shape in shapes:
            m, n, k = map(int, re.findall(r"\d+", shape))
            bits = 64 if a == "float64" else 32
            share = 8 if shape == "m8n8k4" and a == "float16" else 32  # lanes that share one mma
            a_count, b_count = (e * k * OPERAND_BITS[a] // (share * bits) for e in (m, n))
            c_count = m * n // share // (2 if c == "float16" else 1)
            return MmaShape(m, n, k, a_count, b_count, c_count, shapes[shape])
    known = ", ".join(
        f"{s} of {'/'.join(o)}" for o, _, shapes in FAMILIES for s in shapes if a in o
    )
    raise UnsupportedOnTarget(
        what=f"mma {shape} of {a} x {b} into {c}", target="cuda",
        reason=f"expected {known}" if known else f"no tensor core takes {a}",
    )  # fmt: skip


@functools.cache
def mma(
    shape: str, a: str, b: str, c: str, a_layout: str = "row", b_layout: str = "col"
) -> Instruction:
    """Return ``(void* d, const void* a, const void* b)``: d += a * b.

    Args:
        shape: "m16n8k16", ... (see FAMILIES).
        a: operand type; "tfloat32" are float32 numbers of which 19 bits count.
        b: operand type.
        c: type of the sums.
        a_layout: "row"; m8n8k4 of float16 takes "col" too.
        b_layout: "col"; m8n8k4 of float16 takes "row" too.

    Raises:
        UnsupportedOnTarget: there is no such instruction (TC302).
    """
    s = mma_shape(shape, a, b, c)
    is_quad = shape == "m8n8k4" and a == "float16"
    if (a_layout, b_layout) != ("row", "col") and not is_quad:
        raise UnsupportedOnTarget(
            what=f"mma {shape}.{a_layout}.{b_layout}", target="cuda", reason="expected row.col"
        )
    in_constraint = "d" if a == "float64" else "r"
    out_constraint = {"float32": "f", "float64": "d"}.get(c, "r")
    types = {"d": "double", "f": "float", "r": "unsigned"}
    d_regs = registers(0, s.c_registers)
    a_regs = registers(s.c_registers, s.a_registers)
    b_regs = registers(s.c_registers + s.a_registers, s.b_registers)
    names = [PTX_NAMES[t] for t in (c, a, b, c)]
    form = f"mma.sync.aligned.{shape}.{a_layout}.{b_layout}.{'.'.join(names)}"
    text = f"{form} {d_regs}, {a_regs}, {b_regs}, {d_regs};"
    inputs = elements(in_constraint, "x", s.a_registers)
    inputs += elements(in_constraint, "y", s.b_registers)
    body = [
        f"{types[out_constraint]}* z = ({types[out_constraint]}*)d;",
        f"const {types[in_constraint]}* x = (const {types[in_constraint]}*)a;",
        f"const {types[in_constraint]}* y = (const {types[in_constraint]}*)b;",
        asm(text, elements(f"+{out_constraint}", "z", s.c_registers), inputs, touches_memory=False),
    ]
    tags = ", ".join(f"emu::{PTX_NAMES[t]}" for t in (a, b, c))
    emulated = f"emu::mma<{s.m}, {s.n}, {s.k}, {tags}>(d, a, b);"
    if is_quad:
        flags = ", ".join(str(x).lower() for x in (a_layout == "row", b_layout == "col"))
        emulated = f"emu::mma_quad<emu::{PTX_NAMES[c]}>(d, a, b, {flags});"
    layouts = "" if (a_layout, b_layout) == ("row", "col") else f"_{a_layout}_{b_layout}"
    return Instruction(
        f"tc_mma_{shape}_{names[0]}_{names[1]}_{names[2]}{layouts}",
        "void* d, const void* a, const void* b", "\n".join(body), emulated, arch=s.arch,
    )  # fmt: skip


# Type of factors and whether elements have 4 bits -> shape, kind, how many factors along K an
# instruction takes, what they are called. Source: PTX ISA 9.0, section 9.7.14.5.14.
SCALED: dict[tuple[str, bool], tuple[str, str, int, str]] = {
    ("float8_e4m3fn", True): ("m16n8k64", "mxf4nvf4", 4, "ue4m3"),
    ("float8_e8m0fnu", True): ("m16n8k64", "mxf4", 2, "ue8m0"),
    ("float8_e8m0fnu", False): ("m16n8k32", "mxf8f6f4", 1, "ue8m0"),
}


@functools.cache
def mma_scaled(
    a: str, b: str, factors: str, a_selector: int, b_selector: int, first: int = 0
) -> Instruction:
    """Return ``(void* d, const void* a, const void* b, uint32 a_factors, uint32 b_factors)``.

    ``d += (a fa) * (b fb)``. Of elements of float4_e2m1fn the first of two is in the low half of a
    byte. A lane's word holds four factors along K of a row of A, the first one lowest, of which the
    instruction takes as many as it has (``SCALED``) from byte ``first`` on, none negative. With
    g = lane / 4 and q = lane % 4, those of row g + 8 h come from the lane of q = 2 ``a_selector`` +
    h, those of column g of B from that of q = ``b_selector``.

    Source: PTX ISA 9.0, section 9.7.14.5.14; CUTLASS, mma_traits_sm120.hpp (SFALayout, SFBLayout).

    Raises:
        UnsupportedOnTarget: there is no such instruction (TC302).
    """
    names = [PTX_NAMES.get(t, "") for t in (a, b)]
    is_narrow = names == ["e2m1", "e2m1"]
    found = SCALED.get((factors, is_narrow))
    if found is None or not (is_narrow or set(names) <= {"e4m3", "e5m2"}):
        raise UnsupportedOnTarget(
            what=f"mma of {a} x {b} with factors of {factors}", target="cuda",
            reason="expected NVFP4, MXFP4 or MXFP8",
        )  # fmt: skip
    shape, kind, count, named = found
    is_known = a_selector in (0, 1) and b_selector in (0, 1, 2, 3)
    if not is_known or first not in range(0, 4, count):
        raise UnsupportedOnTarget(
            what=f"selectors {a_selector}, {b_selector} and byte {first} of factors", target="cuda",
            reason=f"expected 0 or 1 of A, 0 to 3 of B, a multiple of {count} below 4",
        )  # fmt: skip
    form = f"mma.sync.aligned.{shape}.row.col.kind::{kind}.block_scale.scale_vec::{count}X"
    sums, lanes = registers(0, 4), [f"{{{first}, {s}}}" for s in (a_selector, b_selector)]
    text = f"{form}.f32.{names[0]}.{names[1]}.f32.{named} {sums}, {registers(4, 4)}, "
    text += f"{registers(8, 2)}, {sums}, %10, {lanes[0]}, %11, {lanes[1]};"
    inputs = [*elements("r", "x", 4), *elements("r", "y", 2), '"r"(a_factors)', '"r"(b_factors)']
    body = [
        "float* z = (float*)d;", "const unsigned* x = (const unsigned*)a;",
        "const unsigned* y = (const unsigned*)b;",
        asm(text, elements("+f", "z", 4), inputs, touches_memory=False),
    ]  # fmt: skip
    k = shape.partition("k")[2]
    types = ", ".join(f"emu::{name}" for name in (*names, named))
    chosen = f"{count}, {first}, {a_selector}, {b_selector}"
    return Instruction(
        f"tc_mma_scaled_{shape}_{'_'.join(names)}_{named}_{first}_{a_selector}_{b_selector}",
        "void* d, const void* a, const void* b, unsigned a_factors, unsigned b_factors",
        "\n".join(body),
        f"emu::mma_scaled<16, 8, {k}, {types}, {chosen}>(d, a, b, a_factors, b_factors);",
        arch="sm_120a",
    )  # fmt: skip


@functools.cache
def ldmatrix(count: int, transposed: bool = False) -> Instruction:
    """Return ``(void* d, const void* row)``: ``count`` (1, 2, 4) 8x8 matrices of 16-bit elements.

    Lane ``8 * i + r`` passes the address of row ``r`` of matrix ``i``, a multiple of 16 bytes in
    shared memory. Register ``i`` of ``d`` gets elements ``2 * (lane % 4)`` and the next of row
    ``lane // 4`` (of column, where ``transposed``) of matrix ``i``.
    """
    _check_count("ldmatrix", count)
    form = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    text = f"{form} {registers(0, count)}, [%{count}];"
    outputs = elements("=r", "z", count)
    body = f"unsigned* z = (unsigned*)d;\n{asm(text, outputs, [_row()])}"
    return Instruction(
        f"tc_ldmatrix_x{count}{'_trans' if transposed else ''}", "void* d, const void* row", body,
        f"emu::ldmatrix(d, row, {count}, {str(transposed).lower()});", arch="sm_75",
    )  # fmt: skip


@functools.cache
def stmatrix(count: int, transposed: bool = False) -> Instruction:
    """Return ``(void* row, const void* s)``: the reverse of ``ldmatrix`` (sm_90)."""
    _check_count("stmatrix", count)
    form = f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    text = f"{form} [%0], {registers(1, count)};"
    body = "const unsigned* z = (const unsigned*)s;\n"
    body += asm(text, (), [_row(), *elements("r", "z", count)])
    return Instruction(
        f"tc_stmatrix_x{count}{'_trans' if transposed else ''}", "void* row, const void* s", body,
        f"emu::stmatrix(row, s, {count}, {str(transposed).lower()});", arch="sm_90",
    )  # fmt: skip


def _row() -> str:
    return f'"r"({shared("row")})'


def _check_count(name: str, count: int) -> None:
    if count not in (1, 2, 4):
        raise UnsupportedOnTarget(
            what=f"{name} of {count} matrices", target="cuda", reason="expected 1, 2 or 4"
        )
