"""Tensor cores with tensor memory (sm_100a): tcgen05, for one block or two blocks of a cluster.

Tensor memory has 128 lanes of 512 columns of 32 bits; an address has the lane in its upper 16 bits.
A product of 128 rows has row ``m`` in lane ``m`` and element ``n`` in column ``n`` behind the
accumulator's first; one of 64 rows has row ``m`` in lane ``m % 16 + 32 * (m // 16)``. The warps of
a warpgroup read 32 lanes each.

A pair (cta_group::2) is the blocks of ranks ``2 i`` and ``2 i + 1`` of a cluster. Its product has
half the rows of A and of the sums, and half the columns of B, in each block, at the same places of
the memories of both; a thread of the first block issues it. Of 256 rows each block has 128, row
``m`` in lane ``m``; of 128 rows 64, with the second half of the columns in lanes 64 to 127 (data
path layouts A and B). All tcgen05 instructions of a kernel are for one block, or all for two.
Sources: PTX ISA 9.0, section 9.7.16 (TensorCore 5th Generation Family Instructions: 9.7.16.5 for
who issues what, 9.7.16.10.5 for the layouts); CUTLASS 7107b055, cute/arch/mma_sm100_umma.hpp
(``SM100_MMA_*_2x1SM_*``), tmem_allocator_sm100.hpp (``Allocator2Sm``) and
mma_traits_sm100_frag.hpp (``tmem_frg_2sm``).
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

ARCH = "sm_100a"
ROWS, COLUMNS = 128, 512
HALF_ROWS = 64
PAIR_STEP = 32  # columns of a pair's product are a multiple of (CUTLASS: of B of any type)
# Operand type -> kind of the instruction, the descriptor's number of the type.
KINDS = {
    "float16": ("f16", 0), "bfloat16": ("f16", 1), "tfloat32": ("tf32", 2),
    "float8_e4m3fn": ("f8f6f4", 0), "float8_e5m2": ("f8f6f4", 1), "uint8": ("i8", 0),
    "int8": ("i8", 1),
}  # fmt: skip
SUMS = {"float16": 0, "float32": 1, "int32": 2}
SWIZZLES = {0: 0, 128: 2, 64: 4, 32: 6}


def _unsupported(what: str, reason: str) -> UnsupportedOnTarget:
    return UnsupportedOnTarget(what=what, target="cuda", reason=reason)


def _columns(count: int) -> None:
    if count not in (32, 64, 128, 256, 512):
        raise _unsupported(f"{count} columns of tensor memory", "expected 32, 64, 128, 256 or 512")


def _group(pair: bool) -> tuple[str, str, str]:
    """Return (the qualifier, what names of device functions have, a C++ bool)."""
    return f"cta_group::{1 + pair}", "pair_" if pair else "", str(pair).lower()


@functools.cache
def tensor_allocate(columns: int, pair: bool = False) -> Instruction:
    """Return ``(void* address)``: one warp writes the address of ``columns`` to shared memory.

    The block allocates no more: others on the multiprocessor may begin to. ``pair``: a warp of the
    same number in each of the two blocks, which wait for each other and give the same place.
    """
    _columns(columns)
    group, word, is_pair = _group(pair)
    text = f"tcgen05.alloc.{group}.sync.aligned.shared::cta.b32 [%0], {columns};"
    release = asm(f"tcgen05.relinquish_alloc_permit.{group}.sync.aligned;")
    return Instruction(
        f"tc_tensor_allocate_{word}{columns}", "void* address",
        asm(text, (), [f'"r"({shared("address")})']) + f"\n{release}",
        f"emu::tensor_allocate(address, {columns}, {is_pair});", arch=ARCH,
    )  # fmt: skip


@functools.cache
def tensor_free(columns: int, pair: bool = False) -> Instruction:
    """Return ``(uint32 address)``: the warp that allocated them frees columns.

    ``pair``: a warp of each of the two blocks; no product of either uses them any more.
    """
    _columns(columns)
    group, word, is_pair = _group(pair)
    free = f"tcgen05.dealloc.{group}.sync.aligned.b32 %0, {columns};"
    return Instruction(
        f"tc_tensor_free_{word}{columns}", "unsigned address",
        asm(free, (), ['"r"(address)']),
        f"emu::tensor_free(address, {columns}, {is_pair});", arch=ARCH,
    )  # fmt: skip


@functools.cache
def tensor_descriptor(swizzle: int, leading_bytes: int, stride_bytes: int) -> Instruction:
    """Return ``uint64 (const void* tile)``: as ``descriptor``, of operands of tcgen05."""
    if swizzle not in SWIZZLES:
        raise _unsupported(f"a swizzle of {swizzle} bytes", "expected 0, 32, 64 or 128")
    for size in (leading_bytes, stride_bytes):
        if size % 16 or not 0 <= size < 1 << 18:
            raise _unsupported(
                f"a descriptor with a step of {size} bytes", "expected a multiple of 16 below 2^18"
            )
    version = 1 << 46
    bits = (
        SWIZZLES[swizzle] << 61 | version | (stride_bytes >> 4) << 32 | (leading_bytes >> 4) << 16
    )
    address = f"(unsigned long long)(({shared('tile')} & 0x3ffff) >> 4)"
    return Instruction(
        f"tc_tensor_descriptor_{swizzle}_{leading_bytes}_{stride_bytes}", "const void* tile",
        f"return {bits:#x}ull | {address};",
        f"return {bits:#x}ull | emu::descriptor_address(tile);", "uint64", ARCH,
    )  # fmt: skip


def _check_product(
    what: str, a: str, b: str, c: str, shape: tuple[int, int], majors: tuple[str, str],
    a_in_tensor_memory: bool, pair: bool,
) -> None:  # fmt: skip
    """Check that there is an instruction; see ``tensor_mma``."""
    if a not in KINDS or b not in KINDS or c not in SUMS or KINDS[a][0] != KINDS[b][0]:
        raise _unsupported(what, f"expected two types of one kind among {', '.join(KINDS)}")
    sums = {"f16": ("float16", "float32"), "f8f6f4": ("float16", "float32"), "i8": ("int32",)}
    fitting = sums.get(KINDS[a][0], ("float32",))
    if c not in fitting:
        raise _unsupported(what, f"expected sums of {' or '.join(fitting)}")
    (m, n), step = shape, PAIR_STEP if pair else 16
    half, whole = (ROWS, 2 * ROWS) if pair else (HALF_ROWS, ROWS)
    if m not in (half, whole):
        raise _unsupported(what, f"expected {half} or {whole} rows")
    if not step <= n <= 256 or n % step:
        raise _unsupported(what, f"expected n = {step}, {2 * step}, ... 256")
    transposed = (majors[0] != "k", majors[1] != "k")
    if a_in_tensor_memory and (transposed[0] or m != whole):
        raise _unsupported(
            what, f"expected {whole} rows, contiguous along K, of A in tensor memory"
        )
    if any(transposed) and OPERAND_BITS[a] > 16:
        raise _unsupported(what, "expected K-major operands (of 8 and 16 bits: or M- and N-major)")


@functools.cache
def tensor_mma(
    n: int, a: str, b: str, c: str = "float32", *, a_major: str = "k", b_major: str = "k",
    m: int = ROWS, a_in_tensor_memory: bool = False, pair: bool = False,
) -> Instruction:  # fmt: skip
    """Return ``(uint32 d, uint64 a, uint64 b, int accumulates)``: d (m x n) = a * b (+ d).

    ``a`` is a descriptor, or where ``a_in_tensor_memory`` an address (uint32). One thread calls it;
    products of a thread follow each other, and are complete when the barrier of a later
    ``tensor_commit`` is.

    Args:
        n: columns, a multiple of 16 up to 256; of a pair's of 32.
        a: operand type ("tfloat32": float32 numbers of which 19 bits count).
        b: operand type.
        c: type of the sums.
        a_major: "k" or "m": the axis along which A is contiguous.
        b_major: "k" or "n"; types of 32 bits take no "m" and "n" here.
        m: rows, 64 or 128; of a pair's 128 or 256.
        a_in_tensor_memory: row ``m`` of A is in lane ``m``, its elements along K are packed into
            columns of 32 bits, from the lowest bits on.
        pair: of two blocks; the descriptors and addresses are those of either's own part.

    Raises:
        UnsupportedOnTarget: there is no such instruction (TC302).
    """
    group, word, is_pair = _group(pair)
    what = f"tcgen05.mma {m} x {n} of {a} x {b} into {c}{' by two blocks' if pair else ''}"
    _check_product(what, a, b, c, (m, n), (a_major, b_major), a_in_tensor_memory, pair)
    transposed = (a_major != "k", b_major != "k")
    bits = SUMS[c] << 4 | KINDS[a][1] << 7 | KINDS[b][1] << 10 | transposed[0] << 15
    bits |= transposed[1] << 16 | (n >> 3) << 17 | (m >> 4) << 24
    left = "[%1]" if a_in_tensor_memory else "%1"
    text = (
        "{ .reg .pred p; setp.ne.b32 p, %4, 0; "
        f"tcgen05.mma.{group}.kind::{KINDS[a][0]} [%0], {left}, %2, %3, p; }}"
    )
    constraint, ctype = ("r", "unsigned") if a_in_tensor_memory else ("l", "unsigned long long")
    operands = ['"r"(d)', f'"{constraint}"(a)', '"l"(b)', f'"r"({bits:#x}u)', '"r"(accumulates)']
    tags = ", ".join(f"emu::{PTX_NAMES[t]}" for t in (a, b, c))
    majors = [str(t).lower() for t in transposed]
    form = "ts" if a_in_tensor_memory else "ss"
    flags = majors[1] if a_in_tensor_memory else ", ".join(majors)
    function = "tensor_mma_ts" if a_in_tensor_memory else "tensor_mma"
    types = f"{PTX_NAMES[c]}_{PTX_NAMES[a]}_{PTX_NAMES[b]}"
    return Instruction(
        f"tc_tensor_mma_{word}{form}_m{m}n{n}_{types}_{a_major}{b_major}",
        f"unsigned d, {ctype} a, unsigned long long b, int accumulates",
        asm(text, (), operands),
        f"emu::{function}<{m}, {n}, {tags}>(d, a, b, accumulates, {flags}, {is_pair});", arch=ARCH,
    )  # fmt: skip


@functools.cache
def tensor_commit(multicast: bool = False, pair: bool = False) -> Instruction:
    """Return ``(void* barrier[, int mask])``: an arrival when this thread's products are complete.

    ``multicast``: at the barrier at this place in each block of the cluster that the mask has.
    ``pair``: the products are those of two blocks.
    """
    group, word, is_pair = _group(pair)
    text = f"tcgen05.commit.{group}.mbarrier::arrive::one.shared::cluster"
    operands = [f'"r"({shared("barrier")})']
    if multicast:
        text += ".multicast::cluster"
        operands.append('"h"((unsigned short)mask)')
    text += f".b64 [%0]{', %1' if multicast else ''};"
    return Instruction(
        f"tc_tensor_commit{'_pair' if word else ''}{'_multicast' if multicast else ''}",
        f"void* barrier{', int mask' if multicast else ''}", asm(text, (), operands),
        f"emu::tensor_commit(barrier, {'mask' if multicast else '0'}, {is_pair});", arch=ARCH,
    )  # fmt: skip


def _move(shape: str, count: int) -> int:
    """Return the registers that one thread moves.

    Shapes (section 9.7.16.2.3): "32x32b" is ``count`` columns of the thread's lane; "16x256b" is
    ``8 * count`` columns of the first 16 of the warp's 32 lanes, spread as mma's m16n8 accumulators
    are.
    """
    known = {"32x32b": (1, 128), "16x256b": (4, 32)}
    if shape not in known:
        raise _unsupported(f"tcgen05.ld.{shape}", f"expected {' or '.join(known)}")
    registers_each, most = known[shape]
    if not 1 <= count <= most or count & (count - 1):
        raise _unsupported(
            f"tcgen05.ld.{shape} of {count} units", f"expected a power of two up to {most}"
        )
    return registers_each * count


@functools.cache
def tensor_load(count: int, shape: str = "32x32b") -> Instruction:
    """Return ``(void* d, uint32 address)``: the thread's part of some columns, after a wait.

    All lanes of a warp call it; the address has the first lane of the warp's quarter. The values
    are there after ``tensor_wait_loads``. ``shape``, ``count``: see ``_move``.
    """
    total = _move(shape, count)
    text = f"tcgen05.ld.sync.aligned.{shape}.x{count}.b32 {registers(0, total)}, [%{total}];"
    body = "unsigned* z = (unsigned*)d;\n"
    body += asm(text, elements("=r", "z", total), ['"r"(address)'])
    return Instruction(
        f"tc_tensor_load_{shape}_{count}", "void* d, unsigned address", body,
        f"emu::tensor_load(d, address, {count}, {str(shape != '32x32b').lower()});", arch=ARCH,
    )  # fmt: skip


@functools.cache
def tensor_store(count: int, shape: str = "32x32b") -> Instruction:
    """Return ``(uint32 address, const void* s)``: the reverse of ``tensor_load``."""
    total = _move(shape, count)
    text = f"tcgen05.st.sync.aligned.{shape}.x{count}.b32 [%0], {registers(1, total)};"
    body = "const unsigned* z = (const unsigned*)s;\n"
    body += asm(text, (), ['"r"(address)', *elements("r", "z", total)])
    return Instruction(
        f"tc_tensor_store_{shape}_{count}", "unsigned address, const void* s", body,
        f"emu::tensor_store(address, s, {count}, {str(shape != '32x32b').lower()});", arch=ARCH,
    )  # fmt: skip


@functools.cache
def tensor_keep(count: int, dtype: str = "float32") -> Instruction:
    """Return ``(void* d)``: the compiler may not move accesses to ``d`` past this point.

    Stands behind ``tensor_wait_loads``, on the ``count`` registers that were loaded.
    """
    constraint, ctype = ("f", "float") if dtype == "float32" else ("r", "unsigned")
    keep = asm("", [f'"+{constraint}"(z[i])'], ())
    body = f"{ctype}* z = ({ctype}*)d;\n#pragma unroll\nfor (int i = 0; i < {count}; ++i) {keep}"
    return Instruction(f"tc_tensor_keep_{count}_{constraint}", "void* d", body, ";", arch=ARCH)


@functools.cache
def tensor_wait_loads() -> Instruction:
    """Return ``()``: wait for this thread's loads from tensor memory."""
    return Instruction(
        "tc_tensor_wait_loads", "", asm("tcgen05.wait::ld.sync.aligned;"),
        "emu::tensor_wait(true);", arch=ARCH,
    )  # fmt: skip


@functools.cache
def tensor_wait_stores() -> Instruction:
    """Return ``()``: wait for this thread's stores to tensor memory."""
    return Instruction(
        "tc_tensor_wait_stores", "", asm("tcgen05.wait::st.sync.aligned;"),
        "emu::tensor_wait(false);", arch=ARCH,
    )  # fmt: skip


@functools.cache
def tensor_fence(before: bool) -> Instruction:
    """Return ``()``: orders tcgen05 operations with a barrier that stands behind (or before) it."""
    side = "before" if before else "after"
    return Instruction(
        f"tc_tensor_fence_{side}", "", asm(f"tcgen05.fence::{side}_thread_sync;"), ";", arch=ARCH
    )
