"""Products summed up in tensor memory (tcgen05, sm_100a), of ordinary and of explicit programs.

Four schedules each: late and early delivery of copies and products, two random orders of threads.
"""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tests.tilecore.cuda.test_products import matrices, multiply, operands, tf32
from tests.tilecore.cuda.test_tile_programs import check_gemm, close, random
from tests.tilecore.cuda.tile_programs import attention, gemm
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda, load_nvrtc
from tilecore.emulator import ALL_SCHEDULES
from tilecore.errors import EmulationError

pytestmark = pytest.mark.few(1)  # a case takes long

needs_nvrtc = pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")


@pytest.mark.parametrize("trans", [(False, False), (False, True), (True, False), (True, True)])
def test_gemm_with_ragged_edges_and_all_transposes(trans):
    size, block = (200, 80, 200), (128, 64, 64)
    assert check_gemm("b200", size, block, 3, "float16", "float16", trans) == "tcgen05"


@pytest.mark.parametrize(
    ("block", "dtype", "out", "threads"),
    [
        ((64, 64, 64), "float16", "float16", 128),  # 64 rows: 16 of every 32 lanes
        ((64, 128, 64), "bfloat16", "float32", 256),
        ((256, 64, 64), "bfloat16", "bfloat16", 128),  # two groups of 128 rows
        ((128, 256, 64), "bfloat16", "bfloat16", 256),  # warpgroups share out columns
        ((128, 64, 64), "int8", "int32", 128),
        ((128, 64, 64), "float8_e4m3fn", "float32", 128),
        ((64, 64, 64), "float8_e5m2", "float32", 128),
        ((128, 64, 32), "float16", "float16", 128),
    ],
)
def test_gemm_element_types_and_tiles(block, dtype, out, threads):
    size = (block[0], block[1] + 32, 160)
    used = check_gemm("b200", size, block, 2, dtype, out, (False, True), threads)
    assert used == "tcgen05"


@needs_nvrtc
def test_sm103_has_all_of_it_but_products_of_integers():
    kinds = {}
    for dtype, sums in (("float16", "float32"), ("int8", "int32")):
        func = gemm(256, 128, 128, (128, 64, 64), 2, dtype, sums, sums, (False, True))
        plan, _, source = lowered(func, "sm_103")
        ((product,),) = (launch.gemms.values() for launch in plan.launches.values())
        kinds[dtype] = (product.kind, product.reason)
        assert compile_cuda(source.text, source.arch).spills == 0
    assert kinds == {
        "float16": ("tcgen05", ""),
        "int8": ("mma", "not tcgen05: sm_103a has no product of integers"),
    }


@pytest.mark.exhaustive
def test_float32_is_multiplied_as_tf32_unless_it_must_be_exact():
    size = (136, 72, 104)
    func = gemm(*size, (128, 64, 32), 2, "float32", "float32", trans=(False, True))
    a, b = operands(np.random.default_rng(12), size, "float32", (False, True))
    c, product = multiply(func, "b200", a, b, "float32", (False, True), ALL_SCHEDULES)
    assert "tcgen05.m128n64k8 of tf32 (operands cut" in product.explain()
    left, right = matrices(tf32(a, cut=True), tf32(b, cut=True), (False, True))
    assert np.all(np.abs(c - left @ right) <= 2.0**-20 * (np.abs(left) @ np.abs(right)))
    knobs = {"float32_products": "exact"}
    c, product = multiply(func, "b200", a, b, "float32", (False, True), knobs=knobs)
    assert product.kind == "fma"
    left, right = matrices(a, b, (False, True))
    assert np.all(np.abs(c - left @ right) <= 2.0**-20 * (np.abs(left) @ np.abs(right)))


@pytest.mark.parametrize(
    ("left", "right"), [("float8_e4m3fn", "float8_e5m2"), ("uint8", "int8"), ("uint8", "uint8")]
)
def test_operands_of_two_types_of_8_bits(left, right):
    M, N, K, out = 128, 64, 96, "int32" if "int8" in left else "float32"

    @T.prim_func
    def main(A: T.Tensor((M, K), left), B: T.Tensor((N, K), right), C: T.Tensor((M, N), out)):
        with T.Kernel(1, threads=128):
            A_s = T.alloc_shared((M, K), left)
            B_s = T.alloc_shared((N, K), right)
            sums = T.alloc_fragment((M, N), out)
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.gemm(A_s, B_s, sums, transpose_B=True, clear_accum=True)
            T.copy(sums, C)

    def values(shape, dtype):
        if dtype == "uint8":
            return rng.integers(0, 256, shape).astype(np.uint8)
        return random(rng, shape, dtype)

    rng = np.random.default_rng(13)
    a, b, c = values((M, K), left), values((N, K), right), np.zeros((M, N), out)
    plan = run_emulated(main, "b200", [a, b, c], ALL_SCHEDULES)
    close(c, a.astype(np.float64) @ b.astype(np.float64).T, out)
    (launch,) = plan.launches.values()
    assert [g.kind for g in launch.gemms.values()] == ["tcgen05"]


@pytest.mark.parametrize("stages", [0, 1, 4])
def test_gemm_of_fewer_steps_than_stages(stages):
    used = check_gemm("b200", (128, 64, 64), (128, 64, 32), stages, "float16", "float16")
    assert used == "tcgen05"


def test_gemm_without_boxes():
    """Rows of other than a multiple of 16 bytes: threads copy, all wait for each product."""
    used = check_gemm("b200", (131, 71, 101), (128, 64, 64), 3, "float16", "float16")
    assert used == "tcgen05"


@pytest.mark.parametrize("dtype", ["int8", "float8_e5m2"])
@pytest.mark.parametrize("trans", [(False, False), (True, True)])
def test_operands_of_8_bits_need_not_be_contiguous_along_k(dtype, trans):
    out = "int32" if dtype == "int8" else "float32"
    size = (136, 96, 80)
    assert check_gemm("b200", size, (128, 64, 32), 2, dtype, out, trans) == "tcgen05"


@pytest.mark.parametrize(
    ("block", "dtype", "trans", "reason"),
    [
        ((96, 64, 64), "float16", (False, True), "96 rows are neither 64 nor a multiple of 128"),
        ((64, 24, 64), "float16", (False, True), "no multiple of 16 columns"),
        ((128, 64, 32), "float32", (False, False), "32-bit elements that are not contiguous along"),
    ],
)
def test_what_does_not_suit_is_multiplied_by_warps_and_says_why(block, dtype, trans, reason):
    out = "int32" if dtype == "int8" else "float16"
    accum = "int32" if dtype == "int8" else "float32"
    func = gemm(256, 192, 128, block, 2, dtype, out, accum, trans)
    plan, _, _ = lowered(func, "b200")
    (line,) = (t for t in plan.explain().splitlines() if t.startswith("gemm"))
    assert "mma.m16n8" in line
    assert reason in line
    assert check_gemm("b200", (192, 48, 128), block, 2, dtype, out, trans) == "mma"


@pytest.mark.parametrize(
    ("block", "threads", "causal", "kinds"),
    [
        ((128, 64), 128, False, ["tcgen05", "tcgen05"]),
        ((128, 32), 256, True, ["tcgen05", "tcgen05"]),
        ((64, 64), 128, True, ["mma", "mma"]),
    ],
)
def test_flash_attention(block, threads, causal, kinds):
    """The weights are an operand in tensor memory, where there are 128 rows of them."""
    B, S, H, D = 1, 128, 1, 64
    rng = np.random.default_rng(1)
    q, k, v = (random(rng, (B, S, H, D), "float16") for _ in range(3))
    out = np.zeros((B, S, H, D), np.float16)
    func = attention(B, S, H, D, block, 2, threads, "float16", causal)
    plan = run_emulated(func, "b200", [q, k, v, out], ALL_SCHEDULES)
    Q, K, V = (x.astype(np.float64)[0, :, 0] for x in (q, k, v))
    scores = Q @ K.T / D**0.5
    scores = np.where(np.tri(S, dtype=bool), scores, -np.inf) if causal else scores
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    close(out[0, :, 0], weights @ V / weights.sum(-1, keepdims=True), "float16")
    (launch,) = plan.launches.values()
    assert [g.kind for g in launch.gemms.values()] == kinds
    assert ("A does not lie in shared memory" in plan.explain()) == (kinds == ["mma", "mma"])


@needs_nvrtc
def test_the_machine_code_of_attention_has_the_units_and_no_spills():
    func = attention(1, 4096, 8, 128, (128, 128), 2, 256, "bfloat16", True)
    _, _, source = lowered(func, "b200")
    cubin = compile_cuda(source.text, source.arch)
    (features,) = read_features(cubin.data, source.arch).values()
    assert cubin.spills == 0
    assert {"UTMALDG", "UTCMMA", "LDTM", "STTM"} <= features.opcodes.keys()


def test_weights_that_a_program_puts_into_tensor_memory_itself():
    """Two products of which the second reads the first's results, rounded, from tensor memory."""
    M, N, K = 128, 64, 64

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "bfloat16"),
        B: T.Tensor((K, K), "bfloat16"),
        V: T.Tensor((K, N), "bfloat16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=256):
            A_s = T.alloc_shared((M, K), "bfloat16")
            B_s = T.alloc_shared((K, K), "bfloat16")
            V_s = T.alloc_shared((K, N), "bfloat16")
            first = T.alloc_tmem((M, K), "float32")
            rounded = T.alloc_tmem((M, K), "bfloat16")
            second = T.alloc_tmem((M, N), "float32")
            done = T.alloc_barrier([1, 1])
            sums = T.alloc_fragment((M, K), "float32")
            small = T.alloc_fragment((M, K), "bfloat16")
            result = T.alloc_fragment((M, N), "float32")
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.copy(V, V_s)
            T.tcgen05_gemm(A_s, B_s, first, transpose_B=True, clear_accum=True, mbar=done[0])
            T.mbarrier_wait_parity(done[0], 0)
            T.copy(first, sums)
            for i, j in T.Parallel(M, K):
                small[i, j] = T.max(sums[i, j], 0.0)
            T.copy(small, rounded)
            T.tcgen05_gemm(rounded, V_s, second, clear_accum=True, mbar=done[1])
            T.mbarrier_wait_parity(done[1], 0)
            T.copy(second, result)
            T.copy(result, C)

    rng = np.random.default_rng(8)
    a, b, v = (random(rng, shape, "bfloat16") for shape in ((M, K), (K, K), (K, N)))
    c = np.zeros((M, N), np.float32)
    plan = run_emulated(main, "b200", [a, b, v, c], ALL_SCHEDULES)
    weights = np.maximum(a.astype(np.float64) @ b.astype(np.float64).T, 0)
    weights = weights.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    close(c, weights @ v.astype(np.float64), "float32")
    (launch,) = plan.launches.values()
    assert [g.a.source for g in launch.gemms.values()] == ["descriptor", "tensor memory"]
    assert sum(t.columns for t in launch.tensor_tiles.values()) == K + K // 2 + N


@needs_nvrtc
@pytest.mark.parametrize(("block", "threads"), [((128, 128, 64), 128), ((128, 256, 64), 128)])
def test_the_machine_code_of_a_gemm_has_the_units_and_no_spills(block, threads):
    func = gemm(4096, 4096, 4096, block, 4, "bfloat16", "bfloat16", threads=threads)
    _, _, source = lowered(func, "b200")
    cubin = compile_cuda(source.text, source.arch)
    (features,) = read_features(cubin.data, source.arch).values()
    assert cubin.spills == 0
    assert {"UTMALDG", "UTCMMA", "LDTM", "UTMASTG"} <= features.opcodes.keys()


def test_sums_that_begin_with_values_and_are_used_between_products():
    """The sums go into tensor memory and come back; two products follow each other."""
    M, N, K = 128, 64, 64

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        D: T.Tensor((M, N), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            A_s = T.alloc_shared((M, K), "float16")
            B_s = T.alloc_shared((K, N), "float16")
            sums = T.alloc_fragment((M, N), "float32")
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.copy(D, sums)
            for _ in T.serial(2):
                T.gemm(A_s, B_s, sums)
                T.gemm(A_s, B_s, sums)
                for i, j in T.Parallel(M, N):
                    sums[i, j] = T.max(sums[i, j], 0.0)
            T.copy(sums, C)

    rng = np.random.default_rng(2)
    a, b = random(rng, (M, K), "float16"), random(rng, (K, N), "float16")
    d, c = random(rng, (M, N), "float32"), np.zeros((M, N), np.float32)
    plan = run_emulated(main, "b200", [a, b, d, c], ALL_SCHEDULES)
    product = a.astype(np.float64) @ b.astype(np.float64)
    expected = np.maximum(np.maximum(d + 2 * product, 0) + 2 * product, 0)
    close(c, expected, "float32")
    assert {g.kind for launch in plan.launches.values() for g in launch.gemms.values()} == {
        "tcgen05"
    }


@pytest.mark.exhaustive
def test_a_loop_that_runs_again_and_a_length_known_at_run_time():
    """Blocks take several tiles each; phases of all barriers go on from tile to tile."""
    M, N, blocks = 256, 64, 1
    K = T.dynamic("K")

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(blocks, threads=128) as bx:
            A_s = T.alloc_shared((128, 64), "float16")
            B_s = T.alloc_shared((N, 64), "float16")
            sums = T.alloc_fragment((128, N), "float32")
            for tile in T.serial(M // 128 // blocks):
                T.clear(sums)
                for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                    T.copy(A[(bx + tile * blocks) * 128, k * 64], A_s)
                    T.copy(B[0, k * 64], B_s)
                    T.gemm(A_s, B_s, sums, transpose_B=True)
                T.copy(sums, C[(bx + tile * blocks) * 128, 0])

    rng = np.random.default_rng(3)
    for length in (192, 72):
        a, b = random(rng, (M, length), "float16"), random(rng, (N, length), "float16")
        c = np.zeros((M, N), np.float32)
        run_emulated(main, "b200", [a, b, c], ALL_SCHEDULES)
        close(c, a.astype(np.float64) @ b.astype(np.float64).T, "float32")


def explicit(M, N, K, block, stages, dtype, out, accum, threads):
    """examples/gemm_tcgen05/gemm_tcgen5mma.py of TileLang, in this project's words."""
    BM, BN, BK = block

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), out)):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
            A_s = T.alloc_shared((BM, BK), dtype)
            B_s = T.alloc_shared((BN, BK), dtype)
            sums = T.alloc_tmem([BM, BN], accum)
            done = T.alloc_barrier(1)
            result = T.alloc_fragment((BM, BN), accum)
            staged = T.alloc_shared((BM, BN), out)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=stages):
                T.copy(A[by * BM, k * BK], A_s)
                T.copy(B[bx * BN, k * BK], B_s)
                T.tcgen05_gemm(A_s, B_s, sums, transpose_B=True, mbar=done, clear_accum=(k == 0))
                T.mbarrier_wait_parity(done, k % 2)
            T.copy(sums, result)
            T.copy(result, staged)
            T.copy(staged, C[by * BM, bx * BN])

    return main


def run_explicit(func, M, N, K, dtype, out, **options):
    rng = np.random.default_rng(4)
    a, b = random(rng, (M, K), dtype), random(rng, (N, K), dtype)
    kind = {"bfloat16": ml_dtypes.bfloat16}.get(out, out)
    c = np.full((M, N), 77, kind)
    plan = run_emulated(func, "b200", [a, b, c], ALL_SCHEDULES, **options)
    close(c, a.astype(np.float64) @ b.astype(np.float64).T, out)
    (launch,) = plan.launches.values()
    return launch


@pytest.mark.parametrize(
    ("block", "stages", "dtype", "out", "accum"),
    [
        ((128, 128, 64), 2, "bfloat16", "bfloat16", "float32"),
        ((128, 64, 64), 0, "bfloat16", "bfloat16", "float32"),
        ((64, 128, 32), 2, "float8_e4m3fn", "float16", "float16"),
    ],
)
def test_products_that_tell_a_barrier(block, stages, dtype, out, accum):
    M, N, K = 2 * block[0] - 16, block[1] + 16, 3 * block[2]
    func = explicit(M, N, K, block, stages, dtype, out, accum, 256)
    launch = run_explicit(func, M, N, K, dtype, out)
    assert [t.columns for t in launch.tensor_tiles.values()] == [block[1]]


def roles(M, N, K, stages):
    """One warp copies, one multiplies, all take the sums out."""

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "bfloat16"),
        B: T.Tensor((N, K), "bfloat16"),
        C: T.Tensor((M, N), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(M, 128), T.ceildiv(N, 64), threads=128) as (bx, by):
            A_s = T.alloc_shared((stages, 128, 64), "bfloat16")
            B_s = T.alloc_shared((stages, 64, 64), "bfloat16")
            sums = T.alloc_tmem((128, 64), "float32")
            result = T.alloc_fragment((128, 64), "float32")
            rounded = T.alloc_fragment((128, 64), "bfloat16")
            loaded = T.alloc_barrier([32] * stages)
            consumed = T.alloc_barrier([1] * stages)
            full = T.alloc_barrier(1)
            tx = T.get_thread_binding()
            if tx < 32:
                for k in T.serial(T.ceildiv(K, 64)):
                    T.mbarrier_wait_parity(consumed[k % stages], k // stages % 2 ^ 1)
                    T.copy(A[bx * 128, k * 64], A_s[k % stages, :, :])
                    T.copy(B[by * 64, k * 64], B_s[k % stages, :, :])
                    T.mbarrier_arrive(loaded[k % stages])
            elif tx < 64:
                for k in T.serial(T.ceildiv(K, 64)):
                    T.mbarrier_wait_parity(loaded[k % stages], k // stages % 2)
                    T.tcgen05_gemm(
                        A_s[k % stages, :, :], B_s[k % stages, :, :], sums, transpose_B=True,
                        mbar=consumed[k % stages], clear_accum=(k == 0),
                    )  # fmt: skip
                T.tcgen05_mma_arrive(full)
            T.mbarrier_wait_parity(full, 0)
            T.copy(sums[:, 0:32], result[:, 0:32])
            T.copy(sums[:, 32:64], result[:, 32:64])
            T.copy(result, rounded)
            T.copy(rounded, C[bx * 128, by * 64])

    return main


def test_a_warp_that_copies_and_one_that_multiplies():
    M, N, K = 200, 96, 200
    launch = run_explicit(roles(M, N, K, 2), M, N, K, "bfloat16", "bfloat16")
    assert [g.is_async for g in launch.gemms.values()] == [True]


@pytest.mark.parametrize(
    ("shape", "start"),
    [
        ((128, 64, 256), "tc_tensor_wait_loads"),
        ((128, 64, 256), "tc_barrier_wait"),  # for a tile, by the thread that multiplies
        ((131, 71, 101), "tc_fence_async"),  # threads copy: what they wrote reaches the products
    ],
)
def test_what_the_compiler_places_is_needed(shape, start):
    """Without one kind of wait or fence the emulator finds a race or a wrong order."""
    M, N, K = shape
    func = gemm(M, N, K, (128, 64, 64), 2, "float16", "float16")
    _, _, source = lowered(func, "b200")
    kernel = source.emulated.partition('extern "C" __global__')[2]
    found = [t.strip() for t in kernel.splitlines() if t.strip().startswith(start)]
    removed = found[-2] if start == "tc_barrier_wait" else found[0]
    rng = np.random.default_rng(5)
    a, b = random(rng, (M, K), "float16"), random(rng, (K, N), "float16")
    c = np.zeros((M, N), np.float16)

    def run():
        run_emulated(func, "b200", [a, b, c], ALL_SCHEDULES, without=removed)
        close(c, a.astype(np.float64) @ b.astype(np.float64), "float16")

    with pytest.raises((EmulationError, AssertionError)):
        run()


def test_a_tile_that_threads_access_element_by_element_is_shared():
    @T.prim_func
    def main(
        A: T.Tensor((128, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((128, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            A_s = T.alloc_shared((128, 64), "float16")
            B_s = T.alloc_shared((64, 64), "float16")
            sums = T.alloc_tmem((128, 64), "float32")
            done = T.alloc_barrier(1)
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.gemm(A_s, B_s, sums, clear_accum=True, mbar=done)
            T.mbarrier_wait_parity(done, 0)
            for i, j in T.Parallel(128, 64):
                C[i, j] = sums[i, 63 - j]

    rng = np.random.default_rng(6)
    a, b = random(rng, (128, 64), "float16"), random(rng, (64, 64), "float16")
    c = np.zeros((128, 64), np.float32)
    plan = run_emulated(main, "b200", [a, b, c], ALL_SCHEDULES)
    close(c, (a.astype(np.float64) @ b.astype(np.float64))[:, ::-1], "float32")
    assert "sums: shared instead of tensor memory" in plan.explain()
    assert "elements are accessed one by one" in plan.explain()


def test_tiles_are_filled_and_read_back_in_parts():
    """A round trip through tensor memory, one matrix of several at a time."""
    shape = (2, 128, 32)

    @T.prim_func
    def main(X: T.Tensor(shape, "float32"), Y: T.Tensor(shape, "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_tmem(shape, "float32")
            there = T.alloc_fragment(shape[1:], "float32")
            back = T.alloc_fragment(shape[1:], "float32")
            for a in T.serial(2):
                T.copy(X[a, :, :], there)
                T.fill(tile[a, :, :], 1.0)
                T.copy(there[:, 8:24], tile[a, :, 8:24])
            for a in T.serial(2):
                T.copy(tile[a, :, :], back)
                T.copy(back, Y[a, :, :])

    rng = np.random.default_rng(7)
    x, y = random(rng, shape, "float32"), np.zeros(shape, np.float32)
    plan = run_emulated(main, "b200", [x, y], ALL_SCHEDULES)
    expected = np.ones_like(x)
    expected[:, :, 8:24] = x[:, :, 8:24]
    np.testing.assert_array_equal(y, expected)
    (launch,) = plan.launches.values()
    assert launch.tensor_columns == 64


def test_threads_have_cleared_sums_before_one_of_them_runs_a_loop_of_products():
    """Its length is the block's: no product knows that it is the first, so threads clear."""
    rows, depth = 64, 32

    @T.prim_func
    def main(
        A: T.Tensor((2 * rows, 2 * depth), "float16"), B: T.Tensor((2 * depth, rows), "float16"),
        C: T.Tensor((2 * rows, rows), "float32"),
    ):  # fmt: skip
        with T.Kernel(2, threads=128) as bx:
            A_s = T.alloc_shared((rows, depth), "float16")
            B_s = T.alloc_shared((depth, rows), "float16")
            sums = T.alloc_fragment((rows, rows), "float32")
            T.clear(sums)
            for k in T.Pipelined(bx + 1, num_stages=2):
                T.copy(A[bx * rows, k * depth], A_s)
                T.copy(B[k * depth, 0], B_s)
                T.gemm(A_s, B_s, sums)
            T.copy(sums, C[bx * rows, 0])

    rng = np.random.default_rng(8)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((128, 64), (64, 64)))
    c = np.zeros((128, 64), np.float32)
    run_emulated(main, "b200", [a, b, c], ALL_SCHEDULES)
    a[:rows, depth:] = 0
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


def test_of_warpgroups_that_hold_the_same_sums_one_stores_them():
    """Found by a random program: their stores to one place raced, though of equal values."""
    rows, depth, columns = 128, 64, 16

    @T.prim_func
    def main(
        A: T.Tensor((rows, depth), "float16"), B: T.Tensor((depth, columns), "float16"),
        C: T.Tensor((2, rows, columns), "float32"),
    ):  # fmt: skip
        with T.Kernel(2, threads=384) as bx:
            A_s = T.alloc_shared((rows, depth), "float16")
            B_s = T.alloc_shared((depth, columns), "float16")
            sums = T.alloc_fragment((rows, columns), "float32")
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.fill(sums, 1)
            for _ in T.serial(bx + 1):
                T.gemm(A_s, B_s, sums)
            T.copy(sums, C[bx, :, :])

    rng = np.random.default_rng(9)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((rows, depth), (depth, columns)))
    c = np.zeros((2, rows, columns), np.float32)
    run_emulated(main, "b200", [a, b, c], ALL_SCHEDULES)
    product = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(c, np.stack([1 + product, 1 + 2 * product]))


@pytest.mark.parametrize("sums", ["fragment", "tmem"])
def test_what_a_view_shows_in_another_shape_is_read_by_tensor_cores(sums):
    """Found by a random program: it ended in an error of TVM."""
    rows, depth, columns = 128, 64, 64

    @T.prim_func
    def main(
        A: T.Tensor((rows * depth,), "float16"), B: T.Tensor((depth, columns), "float16"),
        C: T.Tensor((rows, columns), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            A_s = T.alloc_shared((rows, depth), "float16")
            flat = T.reshape(A_s, (rows * depth,))
            B_s = T.alloc_shared((depth, columns), "float16")
            own = T.alloc_tmem if sums == "tmem" else T.alloc_fragment
            total = own((rows, columns), "float32")
            result = T.alloc_fragment((rows, columns), "float32")
            T.copy(A, flat)
            T.copy(B, B_s)
            T.gemm(A_s, B_s, total, clear_accum=True)
            T.copy(total, result)
            T.copy(result, C)

    rng = np.random.default_rng(10)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((rows, depth), (depth, columns)))
    c = np.zeros((rows, columns), np.float32)
    plan = run_emulated(main, "b200", [a.reshape(-1), b, c], ALL_SCHEDULES)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))
    assert "A from descriptor, B from descriptor" in plan.explain()


@pytest.mark.parametrize("between", ["nothing", "a mask before", "a mask behind", "a fill behind"])
@pytest.mark.parametrize("start", [0, 1])
def test_sums_that_every_turn_stores_go_on_from_turn_to_turn(start, between):
    """Found by a random program: a copy that alone reads sums took what they were before."""
    rows = 64

    @T.prim_func
    def main(A: T.Tensor((rows, rows), "float16"), Y: T.Tensor((4, rows, rows), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((rows, rows), "float16")
            sums = T.alloc_fragment((rows, rows), "float32")
            T.copy(A, a)
            T.fill(sums, start)
            for k in T.serial(4):
                T.gemm(a, a, sums)
                if between == "a mask before":
                    for i, j in T.Parallel(rows, rows):
                        if i < j:
                            sums[i, j] = 5
                T.copy(sums, Y[k, :, :])
                if between == "a mask behind":
                    for i, j in T.Parallel(rows, rows):
                        if i < j:
                            sums[i, j] = 5
                if between == "a fill behind":
                    T.fill(sums, 2)

    a = np.random.default_rng(11).integers(-2, 3, (rows, rows)).astype(np.float16)
    y = np.zeros((4, rows, rows), np.float32)
    plan = run_emulated(main, "b200", [a, y])
    product, total = a.astype(np.float32) @ a.astype(np.float32), np.full((rows, rows), start)
    mask = np.triu(np.ones((rows, rows), bool), 1)
    for found in y:
        total = total + product
        if between == "a mask before":
            total[mask] = 5
        np.testing.assert_array_equal(found, total)
        if between == "a mask behind":
            total[mask] = 5
        if between == "a fill behind":
            total = np.full((rows, rows), 2)
    (launch,) = plan.launches.values()
    assert {g.kind for g in launch.gemms.values()} == {"tcgen05"}


def test_what_is_written_over_sums_before_they_are_stored_counts():
    rows = 64

    @T.prim_func
    def main(A: T.Tensor((rows, rows), "float16"), C: T.Tensor((rows, rows), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((rows, rows), "float16")
            sums = T.alloc_fragment((rows, rows), "float32")
            T.copy(A, a)
            T.gemm(a, a, sums, clear_accum=True)
            for i, j in T.Parallel(rows, rows):
                if i < j:
                    sums[i, j] = -1
            T.copy(sums, C)

    a = np.random.default_rng(12).integers(-2, 3, (rows, rows)).astype(np.float16)
    c = np.zeros((rows, rows), np.float32)
    run_emulated(main, "b200", [a, c])
    product = a.astype(np.float32) @ a.astype(np.float32)
    np.testing.assert_array_equal(c, np.where(np.tri(rows, dtype=bool), product, -1))
