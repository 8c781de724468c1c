"""Products of 4-bit floats and their factors by one instruction (sm_120a), against float64."""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tests.tilecore.test_gemm_blockscaled import in_chunks, packed
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda
from tilecore.codegen.order_proof import ENOUGH, order_programs
from tilecore.emulator import ALL_SCHEDULES, LATE
from tilecore.gpu_compiler import passes_for
from tilecore.inference.gpu.accesses.banks import bank_uses
from tilecore.inference.gpu.options import GpuOptions
from tilecore.interpreter import run
from tilecore.ir.nodes import Gemm
from tilecore.ir.visitor import walk
from tilecore.ordering import check as check_order
from tilecore.ordering import without
from tilecore.ordering.check import acts
from tilecore.passes.pipeline import run_passes
from tilecore.target import parse_target

CHUNKS = "blockscaled_chunk_kmajor"
KIND, E4M3, E8M0 = "float4_e2m1fn", "float8_e4m3fn", "float8_e8m0fnu"
INSTRUCTION = "kind::mxf4nvf4.block_scale.scale_vec::4X"


def product(
    size, block, layout="rowmajor", threads=128, stages=2, *, kind=KIND, share=16, factors=E4M3,
    more=(),
):  # fmt: skip
    """Return a program.

    ``more``: "read" (elements of A one by one), "elsewhere" (C in shared memory), "nests" (factors
    are copied by nests).
    """
    (M, N, K), (bM, bN, bK) = size, block
    kinds = kind if isinstance(kind, tuple) else (kind, kind)
    words, steps = -(-bK // share // 4), K // bK
    rows = [-(-n // b) * b for n, b in ((M, bM), (N, bN))]  # factors of whole tiles

    @T.prim_func
    def main(
        A: T.Tensor((M, K), kinds[0]),
        B: T.Tensor((N, K), kinds[1]),
        SFA: T.Tensor((steps, rows[0], words), "uint32"),
        SFB: T.Tensor((steps, rows[1], words), "uint32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM), threads=threads) as (bx, by):
            a, b = T.alloc_shared((bM, bK), kinds[0]), T.alloc_shared((bN, bK), kinds[1])
            sfa = T.alloc_shared((bM, words), "uint32")
            sfb = T.alloc_shared((bN, words), "uint32")
            if "elsewhere" in more:
                c = T.alloc_shared((bM, bN), "float32")
            else:
                c = T.alloc_fragment((bM, bN), "float32")
            T.clear(c)
            for k in T.Pipelined(steps, num_stages=stages):
                T.copy(A[by * bM, k * bK], a)
                T.copy(B[bx * bN, k * bK], b)
                if "nests" in more:
                    for i, j in T.Parallel(bM, words):
                        sfa[i, j] = SFA[k, by * bM + i, j]
                    for i, j in T.Parallel(bN, words):
                        sfb[i, j] = SFB[k, bx * bN + i, j]
                else:
                    T.copy(SFA[k, by * bM, 0], sfa)
                    T.copy(SFB[k, bx * bN, 0], sfb)
                T.mma_gemm_blockscaled(
                    a, b, c, sfa, sfb, transpose_B=True, clear_accum=k == 0, k_start=k * bK,
                    sf_a_granularity_k=share, sf_b_granularity_k=share, sf_layout=layout,
                    sf_dtype=factors,
                )  # fmt: skip
                if "read" in more:
                    for i in T.Parallel(bM):
                        if k < 0:
                            sfa[i, 0] = T.cast(a[i, 0], "uint32")
            T.copy(c, C[by * bM, bx * bN])

    return main


def operands(rng, size, block, layout="rowmajor", kind=KIND, share=16, factors=E4M3):
    """Return (arguments but for C, A times its factors, B times its factors)."""
    (M, N, K), (bM, bN, bK) = size, block
    kinds = kind if isinstance(kind, tuple) else (kind, kind)
    given, words, scaled = [], [], []
    for rows, height, name in ((M, bM, kinds[0]), (N, bN, kinds[1])):
        if name == KIND:
            codes = rng.integers(0, 16, (rows, K)).astype(np.uint8)
            given.append(codes[:, ::2] | codes[:, 1::2] << 4)
            values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
        else:
            given.append(rng.normal(size=(rows, K)).astype(getattr(ml_dtypes, name)))
            values = given[-1].astype(np.float64)
        low, high = (0, 0x7F) if factors == E4M3 else (117, 137)
        count = -(-bK // share // 4) * 4  # of a row of a tile: the last word may have less
        padded = -(-rows // height) * height
        bits = rng.integers(low, high, (padded, K // bK, count)).astype(np.uint8)
        scales = bits.view(getattr(ml_dtypes, factors)).astype(np.float64)[..., : bK // share]
        found = packed(bits.reshape(padded, -1)).reshape(padded, K // bK, -1).transpose(1, 0, 2)
        order = in_chunks if layout == CHUNKS else np.ascontiguousarray
        words.append(np.stack([order(np.ascontiguousarray(t)) for t in found]))
        scaled.append(values * np.repeat(scales.reshape(padded, -1)[:rows], share, axis=1))
    return [*given, *words], *scaled


def check(func, size, block, layout="rowmajor", schedules=(LATE,), **kinds):
    """Run a program on the emulator and compare; return the plans of its launch and product."""
    given, a, b = operands(np.random.default_rng(0), size, block, layout, **kinds)
    c = np.full(size[:2], 77, np.float32)
    plan = run_emulated(func, "rtx5090", [*given, c], schedules)
    bound = np.abs(a) @ np.abs(b).T  # sums are rounded once an instruction
    assert (np.abs(c - a @ b.T) <= 2.0**-23 * (size[2] // 32 + 1) * bound).all()
    (launch,) = plan.launches.values()
    (found,) = launch.gemms.values()
    return launch, found


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("size", "block", "threads", "layout"),
    [
        ((200, 136, 512), (128, 128, 256), 128, CHUNKS),  # ragged rows and columns
        ((96, 72, 192), (48, 24, 64), 32, "rowmajor"),  # 3 tiles, where a word is enough for 2, 4
        ((64, 104, 256), (64, 104, 128), 64, None),  # 13 tiles of B
        ((128, 256, 256), (128, 256, 128), 256, CHUNKS),
        ((16, 8, 64), (16, 8, 64), 32, "rowmajor"),  # one instruction
    ],
)
def test_sums_are_those_of_float64(size, block, threads, layout):
    func = product(size, block, layout, threads)
    launch, found = check(func, size, block, layout, ALL_SCHEDULES)
    assert found.kind == "scaled"
    assert found.a.source == found.b.source == "ldmatrix"
    assert not launch.notes
    assert "mma.m16n8k64 of float4_e2m1fn with factors" in launch.explain()
    tiles = [layout for b, layout in launch.shared.items() if str(b.dtype) == "uint8"]
    assert len(tiles) == 2
    for tile in tiles:  # two elements to a byte, chunks of 16 bytes in different banks
        assert tile.shape[1] == block[2] // 2
        assert tile.swizzle_bytes == min(128, block[2] // 2)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kind", "block", "layout"),
    [
        (KIND, (128, 128, 256), CHUNKS),  # MXFP4: two instructions for each word
        (KIND, (48, 24, 192), "rowmajor"),  # the last word has half of its factors
        (E4M3, (128, 128, 128), CHUNKS),  # MXFP8: four
        ((E4M3, "float8_e5m2"), (48, 24, 96), "rowmajor"),  # three
        (("float8_e5m2", "float8_e5m2"), (16, 8, 256), "rowmajor"),
    ],
)
def test_factors_that_are_powers_of_two(kind, block, layout):
    size, kinds = (100, 56, 2 * block[2]), {"kind": kind, "share": 32, "factors": E8M0}
    func = product(size, block, layout, 32 if block[0] < 64 else 128, **kinds)
    _, found = check(func, size, block, layout, ALL_SCHEDULES, **kinds)
    assert found.kind == "scaled"
    assert found.a.source == found.b.source == "ldmatrix"
    _, _, source = lowered(func, "rtx5090")
    form, count = ("mxf4", 2) if kind == KIND else ("mxf8f6f4", 1)
    assert f"kind::{form}.block_scale.scale_vec::{count}X" in source.text


def test_sums_in_shared_memory_and_steps_of_one_tile():
    size, block = (96, 64, 256), (96, 64, 128)
    for stages in (1, 3):
        func = product(size, block, stages=stages, more=("elsewhere",))
        assert check(func, size, block)[1].kind == "scaled"


def test_factors_that_nests_copy_run_ahead():
    size, block = (128, 128, 512), (128, 128, 256)
    func = product(size, block, CHUNKS, more=("nests",))
    launch, found = check(func, size, block, CHUNKS, ALL_SCHEDULES)
    assert found.kind == "scaled"
    (pipeline,) = launch.pipelines.values()
    assert len(pipeline.copies) == len(pipeline.boxes) == 4


@pytest.mark.few(1)
@pytest.mark.parametrize("block", [(128, 128, 256), (48, 24, 64)])
def test_the_proof_of_order_knows_what_is_read(block):
    """Whatever orders in the loop is missed: by boxes of four tiles, and by copies of threads."""
    size = (2 * block[0], block[1], 4 * block[2])
    func = product(size, block, threads=128 if block[0] == 128 else 32)
    (kernel,) = order_programs(lowered(func, "rtx5090", is_ordered=False)[1])
    assert not check_order(kernel, ENOUGH)
    inside = acts(kernel, inside_loops=True)
    assert all(check_order(without(kernel, act), ENOUGH) for act in inside)
    assert {kernel.sites[a.site].text for a in inside} >= (
        {"barrier_wait", "barrier_expect", "barrier_arrive"}
        if block[0] == 128
        else {"cp_async_commit", "sync_threads"}
    )


@pytest.mark.parametrize(
    ("layout", "words", "ways"), [("rowmajor", 4, 4), ("rowmajor", 1, 1), (CHUNKS, 4, 4)]
)
def test_conflicts_of_factors_are_told(layout, words, ways):
    """Operands meet none; words of rows 8 further on lie in the same banks where a row has 4."""
    block = (128, 128, 64 * words)
    plan, _, _ = lowered(product((128, 128, 512), block, layout), "rtx5090", is_ordered=False)
    (launch,) = plan.launches.values()
    uses = {u.buffer.name: u.ways for u in bank_uses(launch) if isinstance(u.stmt, Gemm)}
    assert uses == {"shared": 1, "sfa": ways, "sfb": ways}


def test_the_machine_code():
    """One OMMA for each 16 x 8 x 64 of a step, four words of factors for 32 of them, no spills."""
    func = product((512, 512, 1024), (128, 128, 256), CHUNKS)
    _, _, source = lowered(func, "rtx5090")
    assert INSTRUCTION in source.text
    cubin = compile_cuda(source.text, source.arch)
    (found,) = read_features(cubin.data, source.arch).values()
    assert found.opcodes["OMMA"] == 8 * 4 * 4  # of a warp: 64 x 64 x 256
    assert found.opcodes["LDSM"] == 8 * 4
    assert found.opcodes["LDS"] <= 4 * 4
    assert "HMMA" not in found.opcodes
    assert (found.local_accesses, cubin.spills) == (0, 0)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kind": "float8_e5m2"}, "x float8_e5m2 with factors of float8_e4m3fn for 16 elements"),
        ({"kind": E4M3, "factors": E8M0}, "with factors of float8_e8m0fnu for 16 elements each"),
        ({"share": 32}, "with factors of float8_e4m3fn for 32 elements each"),
        ({"block": (128, 60, 128)}, "not a multiple of 16x8x64"),
        ({"threads": 48}, "48 threads are no whole warps"),
        ({"more": ("read",)}, "is used by Store as elements of 4 bits"),
    ],
)
def test_other_products_multiply_in_bfloat16(options, reason):
    kept = {"size": (128, 120, 256), "block": (128, 40, 128)} | options
    plan, _, source = lowered(product(**kept), "rtx5090")
    assert reason in plan.explain()
    assert INSTRUCTION not in source.text


@pytest.mark.parametrize("target", ["h100", "sm_80", "mi300x"])
def test_other_targets_multiply_in_bfloat16(target):
    from tilecore.gpu_compiler import plan_gpu

    func, plan = plan_gpu(product((128, 128, 256), (128, 128, 128)), parse_target(target))
    assert not any(isinstance(s, Gemm) and s.factors for s in walk(func.body))
    assert "factors" not in plan.explain()


def test_bytes_mean_what_pairs_of_elements_do():
    """The oracle runs the program before and after the pass."""
    size, block = (40, 24, 128), (48, 24, 64)
    func = product(size, block)
    target = parse_target("rtx5090")
    passed = run_passes(func, None, passes_for(target, GpuOptions())[:1])
    (gemm,) = (s for s in walk(passed.body) if isinstance(s, Gemm))
    assert gemm.pairs_of == KIND
    given, a, b = operands(np.random.default_rng(1), size, block)
    outputs = [np.zeros(size[:2], np.float32) for _ in range(2)]
    for program, c in zip((func, passed), outputs, strict=True):
        run(program, *given, c)
    np.testing.assert_array_equal(*outputs)
    np.testing.assert_allclose(outputs[0], a @ b.T, rtol=1e-5, atol=1e-2)
