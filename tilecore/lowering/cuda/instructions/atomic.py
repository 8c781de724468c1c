"""Atomic updates of global and shared memory, and loads with a memory order."""

from __future__ import annotations

import functools

from tilecore.errors import UnsupportedOnTarget
from tilecore.lowering.cuda.instructions.base import (
    C_TYPES,
    Instruction,
    asm,
    elements,
    registers,
)
from tilecore.lowering.cuda.instructions.warp import HEADERS

FUNCTIONS = {
    "add": "atomicAdd", "min": "atomicMin", "max": "atomicMax", "and": "atomicAnd",
    "or": "atomicOr", "xor": "atomicXor", "exchange": "atomicExch", "inc": "atomicInc",
    "dec": "atomicDec",
}  # fmt: skip
# What CUDA's functions take; int64 goes as unsigned long long where only that is there.
NATIVE = {
    "add": ("int32", "uint32", "uint64", "float32", "float64", "float16", "bfloat16"),
    "min": ("int32", "uint32", "int64", "uint64"), "max": ("int32", "uint32", "int64", "uint64"),
    "and": ("int32", "uint32", "uint64"), "or": ("int32", "uint32", "uint64"),
    "xor": ("int32", "uint32", "uint64"), "exchange": ("int32", "uint32", "uint64", "float32"),
    "inc": ("uint32",), "dec": ("uint32",),
}  # fmt: skip
NARROW = {"int8": "signed char", "uint8": "unsigned char", "int16": "short",
          "uint16": "unsigned short"}  # fmt: skip
WORDS = {16: "unsigned short", 32: "unsigned", 64: "unsigned long long"}
BITS = {"int32": 32, "uint32": 32, "float32": 32, "int64": 64, "uint64": 64, "float64": 64,
        "float16": 16, "bfloat16": 16}  # fmt: skip
COMBINED = {
    "add": "old + value", "min": "value < old ? value : old", "max": "old < value ? value : old",
    "and": "old & value", "or": "old | value", "xor": "old ^ value", "exchange": "value",
}  # fmt: skip
# What a word of neighbours is to C, and to PTX.
PAIRS = {"float32": ("float", "{vector}.f32"), "float16": ("half2", ".noftz{vector}.f16x2"),
         "bfloat16": ("nv_bfloat162", ".noftz{vector}.bf16x2")}  # fmt: skip
ORDERED = {"int32": "s32", "uint32": "u32", "int64": "s64", "uint64": "u64", "float32": "f32",
           "float64": "f64"}  # fmt: skip


@functools.cache
def atomic(op: str, dtype: str) -> Instruction:
    """Return ``dtype (void* address, dtype value)``: the old value of ``*address op= value``.

    Types that no instruction updates go through compare-and-swap.

    Args:
        op: add, min, max, and, or, xor, exchange; of uint32 also inc and dec.
        dtype: 16, 32 or 64 bits wide.
    """
    if op not in FUNCTIONS or dtype not in BITS or (op in ("inc", "dec") and dtype != "uint32"):
        raise UnsupportedOnTarget(
            what=f"atomic {op} of {dtype}", target="cuda",
            reason=f"expected {', '.join(COMBINED)} of {', '.join(BITS)}",
        )  # fmt: skip
    if op in ("and", "or", "xor") and "float" in dtype:
        raise UnsupportedOnTarget(
            what=f"atomic {op} of {dtype}", target="cuda", reason="expected an integer type"
        )
    ctype = C_TYPES[dtype]
    body = f"return {FUNCTIONS[op]}(({ctype}*)address, value);"
    if dtype == "int64" and dtype not in NATIVE[op]:
        word = WORDS[64]
        body = f"return ({ctype}){FUNCTIONS[op]}(({word}*)address, ({word})value);"
    elif dtype not in NATIVE[op]:
        body = _compare_and_swap(op, dtype)
    return Instruction(
        f"tc_atomic_{op}_{dtype}", f"void* address, {ctype} value", body, returns=dtype,
        headers=HEADERS.get(dtype, ()), arch="sm_80" if dtype == "bfloat16" else "sm_70",
    )  # fmt: skip


def _compare_and_swap(op: str, dtype: str) -> str:
    ctype, word = C_TYPES[dtype], WORDS[BITS[dtype]]
    return (
        f"{word}* word = ({word}*)address;\n{word} seen = *(volatile {word}*)word, expected;\n"
        f"do {{\n  expected = seen;\n  {ctype} old = *({ctype}*)&expected;\n"
        f"  {ctype} made = {COMBINED[op]};\n"
        f"  seen = atomicCAS(word, expected, *({word}*)&made);\n"
        f"}} while (seen != expected);\nreturn *({ctype}*)&seen;"
    )


@functools.cache
def add_neighbours(dtype: str, count: int) -> Instruction:
    """Return ``(void* address, const void* values)``: adds to elements of a tensor side by side.

    Each addition is one for itself (PTX ISA 9.0, section 9.7.13.7, red: vectors on sm_90). Both
    are aligned to all that is added.

    Args:
        dtype: float32, float16 or bfloat16.
        count: elements, of 16 bytes at most: 2 or 4; of 16 bits also 8.
    """
    if count * BITS.get(dtype, 128) not in (32, 64, 128) or count < 2 or dtype not in PAIRS:
        raise UnsupportedOnTarget(
            what=f"an atomic addition to {count} of {dtype}", target="cuda",
            reason=f"expected up to 16 bytes of {', '.join(PAIRS)}",
        )  # fmt: skip
    words, kind = count * BITS[dtype] // 32, "f" if dtype == "float32" else "r"
    vector = f".v{words}" if words > 1 else ""
    text = f"red.relaxed.gpu.global.add{PAIRS[dtype][1].format(vector=vector)} [%0], "
    text += f"{registers(1, words) if words > 1 else '%1'};"
    word = "float" if dtype == "float32" else "unsigned"
    address = '"l"((unsigned long long)__cvta_generic_to_global(address))'
    added = asm(text, [], [address, *elements(kind, "value", words)])
    part, add = PAIRS[dtype][0], "old[i] + value[i]" if kind == "f" else "__hadd2(old[i], value[i])"
    return Instruction(
        f"tc_atomic_add{count}_{dtype}", "void* address, const void* values",
        f"const {word}* value = (const {word}*)values;\n{added}",
        f"struct alignas({4 * words}) Parts {{ {part} part[{words}]; }};\n"
        f"const {part}* value = (const {part}*)values;\n"
        "emu::update((Parts*)address, [&](Parts all) {\n"
        f"  {part}* old = all.part;\n  for (int i = 0; i < {words}; ++i) old[i] = {add};\n"
        "  return all;\n});",
        arch="sm_90" if words > 1 or dtype == "bfloat16" else "sm_70",
    )  # fmt: skip


@functools.cache
def atomic_narrow(op: str, dtype: str) -> Instruction:
    """Return ``int (void* address, int value)``: as ``atomic``, of integers of 8 or 16 bits.

    By compare-and-swap of the aligned 16 bits that hold the element (sm_70).
    """
    if op not in COMBINED or dtype not in NARROW:
        raise UnsupportedOnTarget(
            what=f"atomic {op} of {dtype}", target="cuda",
            reason=f"expected {', '.join(COMBINED)} of {', '.join(NARROW)}",
        )  # fmt: skip
    ctype, bits = NARROW[dtype], 8 if dtype.endswith("8") else 16
    body = f"""unsigned long long byte = (unsigned long long)address;
unsigned short* word = (unsigned short*)(byte & ~1ull);
unsigned shift = {"(unsigned)(byte & 1ull) * 8u" if bits == 8 else "0"};
unsigned mask = {(1 << bits) - 1:#x}u << shift;
unsigned short seen = *(volatile unsigned short*)word, expected;
{ctype} old;
do {{
  expected = seen;
  old = ({ctype})((unsigned)expected >> shift);
  int made = {COMBINED[op]};
  unsigned short desired = (unsigned short)((expected & ~mask) | ((unsigned)made << shift & mask));
  seen = atomicCAS(word, expected, desired);
}} while (seen != expected);
return old;"""
    return Instruction(f"tc_atomic_{op}_{dtype}", "void* address, int value", body, returns="int32")


@functools.cache
def load_ordered(dtype: str) -> Instruction:
    """Return ``dtype (const void* address)``: a load that what follows in the thread comes after.

    ``dtype``: 32 or 64 bits wide.
    """
    name, ctype = ORDERED[dtype], C_TYPES[dtype]
    result = f'"={_constraint(dtype)}"(value)'
    text = asm(f"ld.acquire.gpu.{name} %0, [%1];", [result], ['"l"(address)'])
    return Instruction(
        f"tc_load_acquire_gpu_{dtype}", "const void* address",
        f"{ctype} value;\n{text}\nreturn value;",
        f"return emu::load_ordered<{ctype}>(address);", dtype,
    )  # fmt: skip


def _constraint(dtype: str) -> str:
    if "float" in dtype:
        return "f" if dtype == "float32" else "d"
    return "r" if BITS[dtype] == 32 else "l"
