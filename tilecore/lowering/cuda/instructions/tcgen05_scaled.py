"""Products of elements and factors with tensor memory (sm_100a): tcgen05.mma with .block_scale.

The factors lie in tensor memory, four to a word of 32 bits, the first along K lowest: row ``r`` of
A or column ``r`` of B has its word in lane ``r % 32`` of column ``r // 32`` behind the first, and
the same in lanes 32, 64 and 96 further: each quarter of the lanes multiplies by its own. tcgen05.cp
brings them there: 32 rows of 16 bytes in shared memory, to four columns of all four quarters.

An instruction takes one, two or all four factors of a word, from a byte on that its descriptor
names. That it may follow the copy at once, from the same thread, says PTX (9.7.16.6.2, pipelined
instructions). That a copy may also follow a product that reads what it writes over does not stand
there: CUTLASS (sm100_blockscaled_mma_warpspecialized.hpp), DeepGEMM and TileLang all do so, in one
thread and without a wait.

Sources: PTX ISA 9.0, sections 9.7.16.10.7 (block scaling) and 9.7.16.4 (descriptors); CUTLASS,
mma_sm100_desc.hpp (``InstrDescriptorBlockScaled``), mma_sm100_umma.hpp (``SM100_MMA_MXF8F6F4_SS``,
``SM100_MMA_MXF4_SS``), mma_traits_sm100_frag.hpp (``tmem_sf_frg``); TileLang a35008a, tcgen_05.h
(``make_sf_smem_desc``).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tilecore.errors import UnsupportedOnTarget
from tilecore.lowering.cuda.instructions.base import Instruction, asm
from tilecore.lowering.cuda.instructions.matrix import PTX_NAMES
from tilecore.lowering.cuda.instructions.tcgen05 import ARCH, PAIR_STEP, ROWS

COPY_STEP = 128  # bytes of 8 rows of 16, which is what a copy's descriptor steps by


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of tcgen05.mma with factors.

    Attributes:
        kind: its name in PTX.
        count: factors along K that an instruction takes.
        factor: what they are called, and their number in the descriptor.
        types: the elements, with their numbers in the descriptor.
    """

    kind: str
    count: int
    factor: tuple[str, int]
    types: dict[str, int]


FLOAT8, FLOAT4 = {"float8_e4m3fn": 0, "float8_e5m2": 1}, {"float4_e2m1fn": 1}
# Type of the factors, whether elements have 4 bits -> the form.
FORMS = {
    ("float8_e8m0fnu", False): Form("mxf8f6f4", 1, ("ue8m0", 1), FLOAT8),
    ("float8_e8m0fnu", True): Form("mxf4", 2, ("ue8m0", 1), FLOAT4),
    ("float8_e4m3fn", True): Form("mxf4nvf4", 4, ("ue4m3", 0), FLOAT4),
}


def _form(a: str, b: str, factors: str) -> Form:
    form = FORMS.get((factors, a in FLOAT4))
    if form is None or not {a, b} <= set(form.types):
        raise UnsupportedOnTarget(
            what=f"tcgen05.mma of {a} x {b} with factors of {factors}", target="cuda",
            reason="expected MXFP8, MXFP4 or NVFP4",
        )  # fmt: skip
    return form


def _check(n: int, form: Form, majors: tuple[str, str], *, pair: bool) -> None:
    step = PAIR_STEP if pair else 16
    what = f"tcgen05.mma {ROWS * (1 + pair)} x {n} of kind::{form.kind}"
    if not step <= n <= 256 or n % step:
        raise UnsupportedOnTarget(
            what=what, target="cuda", reason=f"expected n = {step}, {2 * step}, ... 256",
        )  # fmt: skip
    if form.types is FLOAT4 and majors != ("k", "k"):
        raise UnsupportedOnTarget(what=what, target="cuda", reason="expected K-major operands")


@functools.cache
def tensor_mma_scaled(
    n: int, a: str, b: str, factors: str, *, a_major: str = "k", b_major: str = "k",
    pair: bool = False,
) -> Instruction:  # fmt: skip
    """Return ``(uint32 d, uint64 a, uint64 b, uint32 fa, uint32 fb, int i, int j, int adds)``.

    d (128 x n, float32) = (a fa) * (b fb) (+ d, where ``adds``). ``a`` and ``b`` are descriptors of
    32 bytes along K, ``fa`` and ``fb`` addresses of factors, ``i`` and ``j`` the bytes of their
    words from which on the instruction takes them. Else as ``tensor_mma``; of a pair each block has
    128 rows of A, of the sums and of ``fa``, half of the columns of B, and ``fb`` of all of them.

    Args:
        n: columns, a multiple of 16 up to 256.
        a: element type of A; of float4_e2m1fn a byte holds two, the first in its low half.
        b: element type of B.
        factors: their type: float8_e8m0fnu, or float8_e4m3fn, none negative.
        a_major: "k" or "m": the axis along which A is contiguous.
        b_major: "k" or "n".
        pair: of two blocks.

    Raises:
        UnsupportedOnTarget: there is no such instruction (TC302).
    """
    form = _form(a, b, factors)
    _check(n, form, (a_major, b_major), pair=pair)
    rows = ROWS * (1 + pair)
    turned = (a_major != "k", b_major != "k")
    bits = form.types[a] << 7 | form.types[b] << 10 | turned[0] << 15 | turned[1] << 16
    bits |= (n >> 3) << 17 | form.factor[1] << 23 | (rows >> 4) << 24
    text = (
        "{ .reg .pred p; setp.ne.b32 p, %6, 0; "
        f"tcgen05.mma.cta_group::{1 + pair}.kind::{form.kind}.block_scale.scale_vec::{form.count}X "
        "[%0], %1, %2, %3, [%4], [%5], p; }"
    )
    chosen = f'"r"({bits:#x}u | (unsigned)i << 29 | (unsigned)j << 4)'
    operands = ['"r"(d)', '"l"(a)', '"l"(b)', chosen, '"r"(fa)', '"r"(fb)', '"r"(adds)']
    names = [PTX_NAMES[a], PTX_NAMES[b], form.factor[0]]
    tags = ", ".join(f"emu::{name}" for name in names)
    flags = ", ".join(str(t).lower() for t in turned)
    return Instruction(
        f"tc_tensor_mma_scaled_{'pair_' * pair}n{n}_{'_'.join(names)}_{a_major}{b_major}",
        "unsigned d, unsigned long long a, unsigned long long b, unsigned fa, unsigned fb, int i, "
        "int j, int adds", asm(text, (), operands),
        f"emu::tensor_mma_scaled<{rows}, {n}, {tags}, {form.count}>(d, a, b, {{fa, i}}, {{fb, j}}, "
        f"adds, {flags}, {str(pair).lower()});", arch=ARCH,
    )  # fmt: skip


@functools.cache
def tensor_copy(pair: bool = False) -> Instruction:
    """Return ``(uint32 d, uint64 s)``: 512 bytes to four columns of each quarter of the lanes.

    ``s`` is a descriptor, without swizzle, of 32 rows of 16 bytes. Later products of the thread
    read what it brought; it is complete when the barrier of a later ``tensor_commit`` is. ``pair``:
    in each of two blocks, from and to the same places of its own memory.
    """
    text = f"tcgen05.cp.cta_group::{1 + pair}.32x128b.warpx4 [%0], %1;"
    return Instruction(
        f"tc_tensor_copy{'_pair' * pair}", "unsigned d, unsigned long long s",
        asm(text, (), ['"r"(d)', '"l"(s)']), f"emu::tensor_copy(d, s, {str(pair).lower()});",
        arch=ARCH,
    )  # fmt: skip
