"""Pipelines that a program writes itself: roles of warps, its own barriers, copies by the TMA."""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tests.tilecore.cuda.tile_programs import attention
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda
from tilecore.emulator import ALL_SCHEDULES
from tilecore.errors import EmulationError, TypeMismatch
from tilecore.ir.visitor import walk

pytestmark = pytest.mark.few(1)  # a case takes long


def specialized_gemm(M, N, K, parts=1, producer=1):
    """A producer and a consumer warpgroup, two stages; each tile comes in ``parts`` of columns."""
    BM, BN, BK, S = 128, 64, 128, 2
    width = BK // parts

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=256) as (bx, by):
            A_s = T.alloc_shared((S, BM, BK), "float16")
            B_s = T.alloc_shared((S, BK, BN), "float16")
            C_l = T.alloc_fragment((BM, BN), "float32")
            full = T.alloc_barrier([128] * S)
            empty = T.alloc_barrier([128] * S)
            tx = T.get_thread_binding()
            if tx // 128 == producer:
                T.set_max_nreg(40, 0)
                for k in T.serial(T.ceildiv(K, BK)):
                    T.mbarrier_wait_parity(empty[k % S], (k // S + 1) % 2)
                    for part in T.unroll(parts):
                        T.tma_copy(
                            A[by * BM : (by + 1) * BM, k * BK + part * width : k * BK
                              + (part + 1) * width],
                            A_s[k % S, :, part * width : (part + 1) * width],
                            barrier=full[k % S],
                        )  # fmt: skip
                    T.tma_copy(B[k * BK, bx * BN], B_s[k % S, :, :], barrier=full[k % S])
                    T.mbarrier_arrive(full[k % S])
            else:
                T.set_max_nreg(232, 1)
                T.clear(C_l)
                for k in T.serial(T.ceildiv(K, BK)):
                    T.mbarrier_wait_parity(full[k % S], k // S % 2)
                    T.gemm(A_s[k % S, :, :], B_s[k % S, :, :], C_l)
                    T.mbarrier_arrive(empty[k % S])
                T.copy(C_l, C[by * BM, bx * BN])

    return main


def arguments(M, N, K):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((M, K), dtype=np.float32).astype(np.float16)
    b = rng.standard_normal((K, N), dtype=np.float32).astype(np.float16)
    return a, b, np.full((M, N), 77, np.float32)


def check(found, a, b):
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize(("parts", "producer"), [(1, 1), (2, 0)])
def test_a_producer_asks_the_tensor_memory_accelerator(parts, producer):
    M, N, K = 200, 72, 400
    func = specialized_gemm(M, N, K, parts, producer)
    a, b, c = arguments(M, N, K)
    plan = run_emulated(func, "h100", [a, b, c], ALL_SCHEDULES)
    check(c, a, b)
    (launch,) = plan.launches.values()
    assert len(launch.loads) == 2
    assert {g.kind for g in launch.gemms.values()} == {"wgmma"}
    assert "loaded by TMA on barriers of the program: A_s, B_s" in launch.explain()


def test_its_machine_code_has_boxes_and_hands_registers_over():
    _, _, source = lowered(specialized_gemm(1024, 1024, 1024), "h100")
    cubin = compile_cuda(source.text, source.arch)
    (features,) = read_features(cubin.data, source.arch).values()
    assert features.opcodes["UTMALDG"] > 0
    assert features.opcodes["HGMMA"] > 0
    assert "setmaxnreg' ignored" not in cubin.log
    assert cubin.spills == 0
    assert "tc_registers_inc_232" in source.text


@pytest.mark.exhaustive
def test_without_such_an_accelerator_the_threads_copy():
    M, N, K = 200, 72, 400
    a, b, c = arguments(M, N, K)
    plan = run_emulated(specialized_gemm(M, N, K), "sm_80", [a, b, c], ALL_SCHEDULES)
    check(c, a, b)
    (launch,) = plan.launches.values()
    assert not launch.loads
    assert "sm_80 has no setmaxnreg" in launch.explain()


@pytest.mark.parametrize(
    ("call", "number"),
    [("tc_barrier_wait(", 0), ("tc_barrier_wait(", 1), ("tc_barrier_expect_only(", 0)],
)
def test_what_orders_copies_and_products_is_needed(call, number):
    """Without the wait for a free tile, for a full one, or the word of how much will come."""
    func = specialized_gemm(128, 64, 512)
    _, _, source = lowered(func, "h100")
    kernel = source.emulated.rpartition('extern "C"')[2]
    lines = [line.strip() for line in kernel.splitlines() if line.strip().startswith(call)]
    with pytest.raises(EmulationError):
        run_emulated(func, "h100", [*arguments(128, 64, 512)], ALL_SCHEDULES, without=lines[number])


def test_a_tile_without_swizzle_comes_in_boxes_too():
    """Rows of a stage of a plain tile, which the threads read one element at a time."""
    rows, columns = 40, 48

    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), B: T.Tensor((rows, columns), "float32")):
        with T.Kernel(T.ceildiv(rows, 32), threads=128) as bx:
            tile = T.alloc_shared((2, 32, columns), "float32")
            ready = T.alloc_barrier([128, 128])
            for s in T.unroll(2):
                T.tma_copy(A[bx * 32 + s * 4, 0], tile[s, :, :], barrier=ready[s])
                T.mbarrier_arrive(ready[s])
            for s in T.unroll(2):
                T.mbarrier_wait_parity(ready[s], 0)
            for i, j in T.Parallel(32, columns):
                if bx * 32 + i < rows:
                    B[bx * 32 + i, j] = tile[0, i, j] + tile[1, i, j]

    a = np.random.default_rng(1).standard_normal((rows, columns), dtype=np.float32)
    b = np.zeros_like(a)
    plan = run_emulated(main, "h100", [a, b], ALL_SCHEDULES)
    (launch,) = plan.launches.values()
    assert len(launch.loads) == 1
    below = np.concatenate([a[4:], np.zeros((4, columns), np.float32)])
    below[28:32] = a[32:36]
    np.testing.assert_array_equal(b, a + below)


def test_registers_that_are_not_there_stay_where_they_are():
    @T.prim_func
    def main(A: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=384):
            tx = T.get_thread_binding()
            if tx < 256:
                T.set_max_nreg(240, 1)
                A[tx] = 1.0

    plan, _, source = lowered(main, "h100")
    assert "tc_registers" not in source.text
    assert "648 for a thread of each warpgroup are asked for, 504 are there" in plan.explain()


def test_registers_are_multiples_of_8():
    with pytest.raises(TypeMismatch, match="multiple of 8 from 24 to 256"):

        @T.prim_func
        def main(A: T.Tensor((1,), "float32")):
            with T.Kernel(1, threads=128):
                T.set_max_nreg(100, 1)
                A[0] = 1.0


def updating(op, dtype, rows, columns):
    """Blocks that update one tensor by tiles of 48 x 64, in shared memory."""

    @T.prim_func
    def main(A: T.Tensor((3, rows, columns), dtype), B: T.Tensor((rows, columns), dtype)):
        with T.Kernel(T.ceildiv(columns, 64), T.ceildiv(rows, 48), 3, threads=128) as (bx, by, bz):
            tile = T.alloc_shared((48, 64), dtype)
            T.copy(A[bz, by * 48, bx * 64], tile)
            for i, j in T.Parallel(48, 64):
                tile[i, j] = tile[i, j] * T.cast(2, dtype)
            if op == "add":
                T.atomic_add(B[by * 48, bx * 64], tile, use_tma=True)
            else:
                T.atomic_max(B[by * 48, bx * 64], tile)

    return main


@pytest.mark.parametrize(
    ("op", "dtype", "target"),
    [
        ("add", "float32", "h100"),
        ("add", "float16", "h100"),
        ("add", "bfloat16", "h100"),
        ("add", "int32", "h100"),
        ("max", "int32", "h100"),
        ("add", "float32", "sm_80"),
    ],
)
def test_a_tensor_is_updated_by_whole_tiles(op, dtype, target):
    rows, columns = 60, 104
    rng = np.random.default_rng(4)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    a, b = (rng.integers(-20, 20, s).astype(kind) for s in ((3, rows, columns), (rows, columns)))
    before = b.astype(np.float64)
    plan = run_emulated(updating(op, dtype, rows, columns), target, [a, b], ALL_SCHEDULES)
    doubled = 2 * a.astype(np.float64)
    expected = before + doubled.sum(0) if op == "add" else np.maximum(before, doubled.max(0))
    np.testing.assert_array_equal(b.astype(np.float64), expected)
    (launch,) = plan.launches.values()
    assert len(launch.updates) == (target == "h100")


def test_updates_by_tiles_are_instructions_of_the_accelerator():
    _, _, source = lowered(updating("add", "float32", 1024, 1024), "h100")
    cubin = compile_cuda(source.text, source.arch)
    (features,) = read_features(cubin.data, source.arch).values()
    assert features.opcodes["UTMAREDG"] > 0
    assert "tc_atomic_add" not in source.text


def test_a_tensor_that_is_read_too_is_updated_by_threads():
    """What the accelerator adds is under way while the block goes on."""

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float32")
            T.copy(A, tile)
            T.atomic_add(B, tile)
            for i, j in T.Parallel(64, 64):
                A[i, j] = B[i, j]

    plan, _, source = lowered(main, "h100")
    (launch,) = plan.launches.values()
    assert not launch.updates
    assert "tc_atomic_add4_float32" in source.text


def test_what_a_loop_only_reads_is_waited_for_before_it():
    """Queries lie in shared memory before the loop begins: no barrier in each of its turns."""
    func = attention(1, 1024, 2, 64, (128, 64), 2, 256, "float16", False)
    plan, _, _ = lowered(func, "h100")
    (launch,) = plan.launches.values()
    (loop,) = launch.pipelines
    assert loop in launch.barriers
    assert not [s for s in walk(loop.body) if s in launch.barriers]


def test_a_loop_of_one_stage_is_fed_by_the_accelerator_too():
    B, S, H, D = 1, 256, 1, 64
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((B, S, H, D)).astype(np.float16) for _ in range(3))
    out = np.zeros_like(q)
    func = attention(B, S, H, D, (64, 64), 1, 128, "float16", False)
    plan = run_emulated(func, "h100", [q, k, v, out], ALL_SCHEDULES)
    (launch,) = plan.launches.values()
    (pipeline,) = launch.pipelines.values()
    assert pipeline.stages == 1
    assert len(pipeline.boxes) == 2
    left, right, values = (x.astype(np.float64)[0, :, 0] for x in (q, k, v))
    weights = np.exp(left @ right.T / D**0.5)
    expected = weights @ values / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(out[0, :, 0], expected, atol=2e-3)
