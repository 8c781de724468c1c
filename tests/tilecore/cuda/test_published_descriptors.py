"""Descriptors of matrices in shared memory against literal values of CUTLASS and the PTX manual.

Sources: what cute's make_gmma_desc, make_umma_desc and make_instr_desc of CUTLASS 7107b055 give for
these layouts, printed by a host program (addresses are 0); examples of canonical layouts in PTX ISA
9.1, section 9.7.15.5.1.2.1.3. Nothing here is computed by tilecore's own rules.
"""

import re

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered
from tests.tilecore.cuda.test_block_pairs import together
from tests.tilecore.cuda.text_kernels import run
from tilecore.lowering.cuda import instructions as I

# (type, A is M-major, B is N-major, N, K of the tile) -> descriptors of A and of B, for sm_90a and
# sm_100a: Layout_{K,MN}_SW*_Atom tiled along K first.
TILES = [
    ("float16", False, False, 128, 64,
     0x4000004000010000, 0x4000004000010000, 0x4000404000010000, 0x4000404000010000),
    ("float16", False, False, 128, 32,
     0x8000002000010000, 0x8000002000010000, 0x8000402000010000, 0x8000402000010000),
    ("float16", False, False, 128, 16,
     0xC000001000010000, 0xC000001000010000, 0xC000401000010000, 0xC000401000010000),
    ("float8_e4m3fn", False, False, 128, 128,
     0x4000004000010000, 0x4000004000010000, 0x4000404000010000, 0x4000404000010000),
    ("float32", False, False, 128, 32,
     0x4000004000010000, 0x4000004000010000, 0x4000404000010000, 0x4000404000010000),
    ("float16", True, True, 256, 64,
     0x4000004002000000, 0x4000004002000000, 0x4000404002000000, 0x4000404002000000),
    ("float16", False, True, 128, 32,
     0x8000002000010000, 0x4000004001000000, 0x8000402000010000, 0x4000404001000000),
    ("float16", False, True, 96, 64,
     0x4000004000010000, 0x8000002001000000, 0x4000404000010000, 0x8000402001000000),
    ("float16", False, True, 48, 64,
     0x4000004000010000, 0xC000001000800000, 0x4000404000010000, 0xC000401000800000),
]  # fmt: skip


def product(dtype, a_major, b_major, n, k, m=128):
    """Return a product of tiles; threads of one warpgroup."""
    a_shape, b_shape = ((k, m) if a_major else (m, k)), ((k, n) if b_major else (n, k))

    @T.prim_func
    def main(
        A: T.Tensor(a_shape, dtype), B: T.Tensor(b_shape, dtype), C: T.Tensor((m, n), "float32")
    ):
        with T.Kernel(1, threads=128):
            A_s = T.alloc_shared(a_shape, dtype)
            B_s = T.alloc_shared(b_shape, dtype)
            C_l = T.alloc_fragment((m, n), "float32")
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.clear(C_l)
            T.gemm(A_s, B_s, C_l, transpose_A=a_major, transpose_B=not b_major)
            T.copy(C_l, C)

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["h100", "b200"])
@pytest.mark.parametrize(("dtype", "a_major", "b_major", "n", "k", "a9", "b9", "a10", "b10"), TILES)
def test_descriptors_of_tiles(dtype, a_major, b_major, n, k, a9, b9, a10, b10, target):
    plan, _, source = lowered(product(dtype, a_major, b_major, n, k), target)
    ((gemm,),) = [launch.gemms.values() for launch in plan.launches.values()]
    assert gemm.kind == {"h100": "wgmma", "b200": "tcgen05"}[target]
    found = re.findall(r"(?:made = |return )(0x[0-9a-f]{12,})ull", source.text)
    expected = {a9, b9} if target == "h100" else {a10, b10}
    assert {int(bits, 16) for bits in found} == expected


def test_descriptors_of_tiles_of_8_bits_that_are_contiguous_along_m_and_n():
    """tcgen05 takes them, wgmma does not; cute's make_umma_desc of Layout_MN_SW128_Atom."""
    func = product("float8_e4m3fn", True, True, 256, 64, m=256)
    plan, _, source = lowered(func, "b200")
    ((gemm,),) = [launch.gemms.values() for launch in plan.launches.values()]
    assert gemm.kind == "tcgen05"
    assert {int(bits, 16) for bits in re.findall(r"return (0x[0-9a-f]{12,})ull", source.text)} == {
        0x4000404002000000
    }


# Of A and of B per instruction, in units of 16 bytes: 32 bytes of a row along K (DeepGEMM:
# advance_umma_desc_lo), else 16 rows of a panel of 128 or 64 bytes.
STEPS = [
    (False, False, 128, 64, {2}), (True, True, 256, 64, {128}), (False, True, 128, 64, {2, 128}),
    (False, True, 96, 64, {2, 64}),
]  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["h100", "b200"])
@pytest.mark.parametrize(("a_major", "b_major", "n", "k", "steps"), STEPS)
def test_how_descriptors_go_on_along_k(a_major, b_major, n, k, steps, target):
    _, _, source = lowered(product("float16", a_major, b_major, n, k), target)
    calls = [t for t in source.text.splitlines() if re.search(r"^ +tc_(wgmma|tensor_mma)_ss_", t)]
    assert calls
    for call in calls:
        assert {int(step) for step in re.findall(r"\(i\d+ \* (\d+)\)", call)} == steps


def test_who_holds_the_sums_of_a_warpgroup():
    """Element i of thread t of a 64 x 32 product (cute: CLayout_64xN<32>)."""
    plan, _, _ = lowered(product("float16", False, False, 32, 64, m=64), "h100")
    ((gemm,),) = [launch.gemms.values() for launch in plan.launches.values()]
    known = {
        (0, 0): (0, 0), (0, 3): (8, 1), (1, 4): (0, 10), (37, 0): (17, 2), (37, 2): (25, 2),
        (37, 5): (17, 11), (127, 15): (63, 31), (127, 12): (55, 30),
    }  # fmt: skip
    for owner, place in known.items():
        assert tuple(map(int, gemm.c.owner(place))) == owner


# --- the manual's examples of canonical layouts, in elements: how a (MN, K) matrix of B lies -----
EXAMPLES = {
    "K-major, no swizzle, tf32": (
        "tfloat32", "k", 16, 0, 16, 8, (((8, 4), (2, 32)), ((4, 1), (2, 64)))),
    "K-major, 32 B, tf32": (
        "tfloat32", "k", 16, 32, 1, 16, (((8, 8), (2, 64)), ((4, 1), (2, 4)))),
    "MN-major, 32 B, bf16": (
        "bfloat16", "n", 32, 32, 16, 32, (((8, 1), (2, 8), (2, 128)), ((8, 16), (2, 256)))),
    "MN-major, 64 B, bf16": (
        "bfloat16", "n", 64, 64, 32, 64, (((8, 1), (4, 8), (2, 256)), ((8, 32), (2, 512)))),
}  # fmt: skip
MASKS = {0: 0, 32: 1, 64: 3, 128: 7}  # Swizzle<1|2|3,4,3>: bits 4 to 6 ^= bits 7 to 9 of a byte


def offset(index, digits):
    total = 0
    for extent, stride in digits:
        total += index % extent * stride
        index //= extent
    return total


@pytest.mark.few(1)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_emulator_reads_canonical_layouts(name):
    dtype, major, n, swizzle, leading, stride, (across, along) = EXAMPLES[name]
    kind = np.float32 if dtype == "tfloat32" else ml_dtypes.bfloat16
    size, k = np.dtype(kind).itemsize, 32 // np.dtype(kind).itemsize
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-4, 5, s).astype(kind) for s in ((64, k), (n, k)))
    memory = np.zeros(8192, np.uint8)
    for x in range(n):
        for y in range(k):
            at = (offset(x, across) + offset(y, along)) * size
            at ^= (at >> 7 & MASKS[swizzle]) << 4
            memory[at : at + size] = b[x, y : y + 1].view(np.uint8)
    registers = np.zeros((128, 16 // size), kind)
    each = 4 // size
    for t in range(128):
        for i in range(16 // size):
            row = 16 * (t // 32) + t % 32 // 4 + 8 * (i // each % 2)
            column = each * (t % 4) + i % each + 4 * each * (i // each // 2)
            registers[t, i] = a[row, column]
    bits = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle] << 62 | stride << 32 | leading << 16
    wgmma = I.wgmma(n, dtype, dtype, a_in_registers=True, b_major=major)
    used = [wgmma, I.wgmma_fence(), I.wgmma_commit(), I.wgmma_wait(0), I.fence_async()]
    d = np.zeros((128, n // 2), np.float32)
    body = f"""
      for (int i = threadIdx.x; i < 8192; i += 128) smem[i] = memory[i];
      tc_fence_async(); __syncthreads();
      float acc[{n // 2}];
      tc_wgmma_fence();
      uint64_t at = (__cvta_generic_to_shared(smem) & 0x3ffff) >> 4;
      {wgmma.name}(acc, registers + threadIdx.x * 16, at | {bits:#x}ull, 0);
      tc_wgmma_commit(); tc_wgmma_wait_0();
      for (int i = 0; i < {n // 2}; ++i) d[threadIdx.x * {n // 2} + i] = acc[i];"""
    arguments = {"memory": memory, "registers": registers.view(np.uint8), "d": d}
    run(body, arguments, used, threads=128, shared_bytes=8192)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    for t in range(128):
        for i in range(n // 2):
            row = 16 * (t // 32) + t % 32 // 4 + 8 * (i // 2 % 2)
            assert d[t, i] == expected[row, i // 4 * 8 + t % 4 * 2 + i % 2]


# (M, N, A, B, sums, A is M-major, B is N-major) -> tcgen05's 32-bit instruction descriptor.
INSTRUCTIONS = [
    (128, 256, "float16", "float16", "float32", False, False, 0x08400010),
    (128, 128, "float16", "float16", "float32", False, True, 0x08210010),
    (64, 256, "bfloat16", "bfloat16", "float32", True, True, 0x04418490),
    (128, 64, "tfloat32", "tfloat32", "float32", False, False, 0x08100910),
    (128, 96, "float8_e4m3fn", "float8_e5m2", "float32", False, False, 0x08180410),
    (128, 32, "int8", "uint8", "int32", False, False, 0x080800A0),
    (128, 16, "float16", "float16", "float16", False, False, 0x08040000),
]  # fmt: skip


# The same for two blocks of a cluster, whose rows M counts together (cta_group::2).
PAIRS = [
    (256, 256, "float16", "float16", "float32", False, False, 0x10400010),
    (256, 64, "float16", "float16", "float32", False, True, 0x10110010),
    (128, 96, "bfloat16", "bfloat16", "float32", True, True, 0x08198490),
    (256, 32, "tfloat32", "tfloat32", "float32", False, False, 0x10080910),
    (256, 128, "float8_e4m3fn", "float8_e5m2", "float32", False, False, 0x10200410),
    (128, 32, "int8", "uint8", "int32", False, False, 0x080800A0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("pair", "m", "n", "a", "b", "c", "m_major", "n_major", "bits"),
    [*((False, *row) for row in INSTRUCTIONS), *((True, *row) for row in PAIRS)],
)
def test_instruction_descriptors_of_tcgen05(pair, m, n, a, b, c, m_major, n_major, bits):
    majors = {"a_major": "m" if m_major else "k", "b_major": "n" if n_major else "k"}
    text = I.tensor_mma(n, a, b, c, m=m, pair=pair, **majors).cuda
    (found,) = re.findall(r'"r"\((0x[0-9a-f]+)u\)', text)
    assert int(found, 16) == bits
    assert f"cta_group::{2 if pair else 1}.kind" in text


# (of two blocks, N, A, B, factors, A is M-major, B is N-major) -> the same with factors, the first.
SCALED = [
    (True, 256, "float8_e4m3fn", "float8_e4m3fn", "float8_e8m0fnu", False, True, 0x10C10000),
    (False, 128, "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", False, False, 0x08A00400),
    (False, 256, "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", True, True, 0x08C18080),
    (False, 256, "float4_e2m1fn", "float4_e2m1fn", "float8_e8m0fnu", False, False, 0x08C00480),
    (False, 64, "float4_e2m1fn", "float4_e2m1fn", "float8_e4m3fn", False, False, 0x08100480),
]  # fmt: skip


@pytest.mark.parametrize(("pair", "n", "a", "b", "factors", "m_major", "n_major", "bits"), SCALED)
def test_instruction_descriptors_with_factors(pair, n, a, b, factors, m_major, n_major, bits):
    """CUTLASS's ``InstrDescriptorBlockScaled``: a_sf_id from bit 29 on, b_sf_id from bit 4 on."""
    majors = {"a_major": "m" if m_major else "k", "b_major": "n" if n_major else "k"}
    text = I.tensor_mma_scaled(n, a, b, factors, pair=pair, **majors).cuda
    assert f'"r"({bits:#x}u | (unsigned)i << 29 | (unsigned)j << 4)' in text


def test_words_are_described_as_tilelang_describes_them():
    """``make_sf_smem_desc`` of its tcgen_05.h: no swizzle, 128 bytes from 8 rows to the next."""
    assert f"return {8 << 32 | 1 << 46:#x}ull" in I.tensor_descriptor(0, 0, 128).cuda


@pytest.mark.parametrize(
    ("rows", "places"),
    [  # (row, column) of a block's sums of 64 columns -> (lane, column) of tensor memory
        (64, {(0, 0): (0, 0), (5, 3): (5, 3), (63, 31): (63, 31), (0, 32): (64, 0),
              (17, 40): (81, 8), (63, 63): (127, 31)}),
        (128, {(0, 0): (0, 0), (63, 31): (63, 31), (127, 32): (127, 32)}),
    ],
)  # fmt: skip
def test_where_sums_of_two_blocks_lie(rows, places):
    """What cute's ``tmem_frg_2sm<float>`` gives; thread t of a warpgroup reads lane t."""
    plan, _, _ = lowered(together(2 * rows, 64, 32, rows), "b200")
    (launch,) = plan.launches.values()
    (copy,) = launch.transfers.values()
    for place, there in places.items():
        assert tuple(map(int, copy.spread.owner(place))) == there
    assert launch.tensor_columns == (32 if rows == 64 else 64)
