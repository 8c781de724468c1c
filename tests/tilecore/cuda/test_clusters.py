"""Clusters (sm_90): blocks that run together, on the emulator under four schedules each."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tests.tilecore.cuda.test_tile_programs import close, random
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda, load_nvrtc
from tilecore.emulator import ALL_SCHEDULES
from tilecore.errors import EmulationError, InvalidConfig, TypeMismatch, UnknownPrimitive

TARGETS = pytest.mark.parametrize("target", ["h100", "b200"])


def opcodes(func, target):
    _, _, source = lowered(func, target)
    cubin = compile_cuda(source.text, source.arch)
    (features,) = read_features(cubin.data, source.arch).values()
    return features.opcodes


@TARGETS
def test_blocks_know_their_rank_and_wait_for_each_other(target):
    @T.prim_func
    def main(Y: T.Tensor((4, 4), "int32")):
        with T.ClusterKernel(4, 4, threads=32, cluster_dims=(2, 4)) as (bx, by):
            T.cluster_arrive()
            T.cluster_wait()
            Y[bx, by] = T.block_rank_in_cluster()
            T.cluster_sync()

    y = np.zeros((4, 4), np.int32)
    run_emulated(main, target, [y], ALL_SCHEDULES)
    x, z = np.indices((4, 4))
    np.testing.assert_array_equal(y, x % 2 + 2 * (z % 4))
    _, _, source = lowered(main, target)
    assert source.entries[0].cluster == (2, 4, 1)


@pytest.mark.few(1)
@TARGETS
def test_all_blocks_arrive_at_the_barrier_of_one(target):
    @T.prim_func
    def main(X: T.Tensor((4, 64), "float32"), Y: T.Tensor((64,), "float32")):
        with T.ClusterKernel(4, threads=64, cluster_dims=4) as bx:
            mine = T.alloc_shared((64,), "float32")
            all_of_them = T.alloc_shared((4, 64), "float32")
            arrived = T.alloc_cluster_barrier([4 * 64])
            T.copy(X[bx, :], mine)
            T.copy_cluster(mine, all_of_them[bx, :], dst_block=0)
            T.mbarrier_arrive(arrived, 0)
            if T.block_rank_in_cluster() == 0:
                T.mbarrier_wait_parity(arrived, 0)
                for i in T.Parallel(64):
                    Y[i] = (
                        all_of_them[0, i] + all_of_them[1, i]
                        + all_of_them[2, i] + all_of_them[3, i]
                    )  # fmt: skip

    x, y = random(np.random.default_rng(0), (4, 64), "float32"), np.zeros(64, np.float32)
    run_emulated(main, target, [x, y], ALL_SCHEDULES)
    close(y, x.astype(np.float64).sum(0), "float32")
    kernel = lowered(main, target)[2].emulated.partition('extern "C" __global__')[2]
    arrival = next(t for t in kernel.splitlines() if "tc_barrier_arrive_remote" in t)
    with pytest.raises(EmulationError, match=r"deadlock|race"):
        run_emulated(main, target, [x, y], ALL_SCHEDULES, without=arrival.strip())


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("shape", "part", "dtype"),
    [((128,), (128,), "float32"), ((4, 64), (4, 31), "float32"), ((2, 4, 32), (2, 4, 16), "int8")],
)
def test_a_tile_is_copied_to_another_block_and_its_barrier_told(shape, part, dtype):
    slices = tuple(slice(0, n) for n in part)

    @T.prim_func
    def main(A: T.Tensor(part, dtype), B: T.Tensor(part, dtype)):
        with T.ClusterKernel(2, threads=128, cluster_dims=(2, 1, 1)) as pid:
            source = T.alloc_shared(shape, dtype)
            target = T.alloc_shared(shape, dtype)
            there = T.alloc_cluster_barrier([1])
            T.fill(source, 0)
            T.fill(target, 0)
            T.cluster_sync()
            if pid == 0:
                T.copy(A, source[slices])
                T.copy_cluster(source[slices], target[slices], dst_block=1,
                               remote_barrier=there[0])  # fmt: skip
            if pid == 1:
                T.mbarrier_wait_parity(there[0], 0)
                T.copy(target[slices], B)

    a = random(np.random.default_rng(1), part, dtype)
    b = np.zeros_like(a)
    run_emulated(main, "h100", [a, b], ALL_SCHEDULES)
    np.testing.assert_array_equal(b, a)


@pytest.mark.few(1)
@TARGETS
def test_one_thread_tells_another_block_of_what_all_have_sent(target):
    @T.prim_func
    def main(X: T.Tensor((2, 8, 64), "float32"), Y: T.Tensor((2, 8, 64), "float32")):
        with T.ClusterKernel(2, threads=64, cluster_dims=2) as bx:
            mine = T.alloc_shared((8, 64), "float32")
            other = T.alloc_shared((8, 64), "float32")
            arrived = T.alloc_cluster_barrier([1])
            tx = T.get_thread_binding()
            T.copy(X[bx, :, :], mine)
            T.copy_cluster(mine, other, dst_block=1 - bx)
            if tx == 5:
                T.mbarrier_arrive(arrived, 1 - bx)
            T.mbarrier_wait_parity(arrived, 0)
            T.copy(other, Y[bx, :, :])

    x = random(np.random.default_rng(12), (2, 8, 64), "float32")
    y = np.zeros_like(x)
    run_emulated(main, target, [x, y], ALL_SCHEDULES)
    np.testing.assert_array_equal(y, x[::-1])


def multicast(M, N, block, mask):
    BM, BN = block

    @T.prim_func
    def main(A: T.Tensor((M, N), "float16"), B: T.Tensor((M, N), "float16")):
        with T.ClusterKernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128,
                             cluster_dims=(4, 1, 1)) as (bx, by):  # fmt: skip
            tile = T.alloc_shared((BM, BN), "float16")
            T.copy_cluster(A[by * BM, bx * BN], tile, cluster_mask=mask)
            T.copy(tile, B[by * BM, bx * BN])

    return main


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("width", [256, 252])
@pytest.mark.parametrize("mask", [0b0011, 0b1110])
def test_one_block_loads_for_several(mask, width):
    """Of rows that are no multiple of 16 bytes each block reads what the first one would."""
    func = multicast(48, width, (32, 64), mask)
    a = random(np.random.default_rng(2), (48, width), "float16")
    b = np.zeros_like(a)
    plan = run_emulated(func, "h100", [a, b], ALL_SCHEDULES)
    first = (mask & -mask).bit_length() - 1
    for rank in range(4):
        source = first if mask >> rank & 1 else rank
        there = slice(64 * rank, min(width, 64 * rank + 64))
        expected = a[:, 64 * source : 64 * source + 64][:, : there.stop - there.start]
        padded = np.zeros((48, there.stop - there.start), np.float16)
        padded[:, : expected.shape[1]] = expected
        np.testing.assert_array_equal(b[:, there], padded)
    assert ("loaded by TMA for several blocks: tile" in plan.explain()) == (width == 256)


@pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")
@TARGETS
def test_the_machine_code_has_the_units_of_clusters(target):
    found = opcodes(multicast(48, 256, (32, 64), 3), target)
    assert {"UTMALDG", "UCGABAR_ARV", "UCGABAR_WAIT"} & found.keys()


def ring(M, N, K, stages):
    """Two blocks along N share the rows of A: each tile of it is loaded once, for both."""
    BM, BN, BK = 64, 64, 64

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.ClusterKernel(N // BN, M // BM, threads=256, cluster_dims=(2, 1)) as (bx, by):
            A_s = T.alloc_shared((stages, BM, BK), "float16")
            B_s = T.alloc_shared((stages, BN, BK), "float16")
            loaded = T.alloc_cluster_barrier([1] * stages)
            free = T.alloc_cluster_barrier([2 * 128] * stages)
            tx = T.get_thread_binding()
            if tx < 128:
                for k in T.serial(T.ceildiv(K, BK)):
                    T.mbarrier_wait_parity(free[k % stages], k // stages % 2 ^ 1)
                    T.tma_copy(A[by * BM, k * BK], A_s[k % stages, :, :],
                               barrier=loaded[k % stages], cluster_mask=3)  # fmt: skip
                    T.tma_copy(B[bx * BN, k * BK], B_s[k % stages, :, :],
                               barrier=loaded[k % stages])  # fmt: skip
                    if tx == 0:
                        T.mbarrier_arrive(loaded[k % stages])
            else:
                sums = T.alloc_fragment((BM, BN), "float32")
                T.clear(sums)
                for k in T.serial(T.ceildiv(K, BK)):
                    T.mbarrier_wait_parity(loaded[k % stages], k // stages % 2)
                    T.gemm(A_s[k % stages, :, :], B_s[k % stages, :, :], sums, transpose_B=True)
                    T.mbarrier_arrive(free[k % stages], 0)
                    T.mbarrier_arrive(free[k % stages], 1)
                T.copy(sums, C[by * BM, bx * BN])

    return main


@pytest.mark.exhaustive
def test_a_pipeline_whose_tiles_are_loaded_for_two_blocks():
    M, N, K = 128, 128, 320
    rng = np.random.default_rng(3)
    a, b = random(rng, (M, K), "float16"), random(rng, (N, K), "float16")
    c = np.zeros((M, N), np.float32)
    plan = run_emulated(ring(M, N, K, 2), "h100", [a, b, c], ALL_SCHEDULES)
    close(c, a.astype(np.float64) @ b.astype(np.float64).T, "float32")
    assert "loaded by TMA for several blocks: A_s" in plan.explain()


def clustered(M, N, K, block, cluster, stages, threads=128):
    BM, BN, BK = block

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.ClusterKernel(
            T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads, cluster_dims=cluster
        ) as (bx, by):
            A_s = T.alloc_shared((BM, BK), "float16")
            B_s = T.alloc_shared((BK, BN), "float16")
            sums = T.alloc_fragment((BM, BN), "float32")
            T.clear(sums)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=stages):
                T.copy(A[by * BM, k * BK], A_s)
                T.copy(B[k * BK, bx * BN], B_s)
                T.gemm(A_s, B_s, sums)
            T.copy(sums, C[by * BM, bx * BN])

    return main


@pytest.mark.few(1)
@pytest.mark.covering
@TARGETS
@pytest.mark.parametrize(
    ("cluster", "sent"), [((2, 1, 1), "A_s"), ((1, 2), "B_s"), ((2, 2), "A_s, B_s")]
)
def test_tiles_that_blocks_share_are_loaded_once(target, cluster, sent):
    """TileLang's test of clusters: the blocks of a row of the grid have the same tiles of A."""
    M, N, K = 200, 120, 200
    func = clustered(M, N, K, (128, 64, 64), cluster, 2)
    rng = np.random.default_rng(9)
    a, b = random(rng, (M, K), "float16"), random(rng, (K, N), "float16")
    c = np.zeros((M, N), np.float16)
    plan = run_emulated(func, target, [a, b, c], ALL_SCHEDULES)
    close(c, a.astype(np.float64) @ b.astype(np.float64), "float16")
    assert f"loaded by TMA for several blocks: {sent}" in plan.explain()
    text = lowered(func, target)[2].text
    assert text.count(".multicast::cluster [%0]") == 1


@pytest.mark.few(1)
@TARGETS
def test_a_block_waits_until_all_have_read_a_tile_that_they_share(target):
    func = clustered(128, 128, 512, (128, 64, 64), 2, 2)
    kernel = lowered(func, target)[2].emulated.partition('extern "C" __global__')[2]
    lines = [t.strip() for t in kernel.splitlines()]
    wait = next(t for t in lines if "tc_barrier_wait(" in t)
    at_the_end = [t for t in lines if "tc_barrier_wait_cluster(" in t]
    assert len(at_the_end) == (target == "b200")
    rng = np.random.default_rng(10)
    a, b = random(rng, (128, 512), "float16"), random(rng, (512, 128), "float16")
    c = np.zeros((128, 128), np.float16)
    with pytest.raises(EmulationError, match=r"race|more arrivals"):
        run_emulated(func, target, [a, b, c], ALL_SCHEDULES, without=wait)
    for last in at_the_end:  # products of the other block tell this one by themselves
        with pytest.raises(EmulationError, match=r"in another block is still in flight"):
            run_emulated(func, target, [a, b, c], ALL_SCHEDULES, without=last)


def test_what_is_different_in_each_block_is_not_shared():
    """Here how often a block loops follows from its place in the cluster."""

    @T.prim_func
    def main(X: T.Tensor((64, 256), "float16"), Y: T.Tensor((2, 64, 64), "float16")):
        with T.ClusterKernel(2, threads=128, cluster_dims=2) as bx:
            tile = T.alloc_shared((64, 64), "float16")
            sums = T.alloc_fragment((64, 64), "float16")
            T.clear(sums)
            for k in T.Pipelined(2 * bx + 2, num_stages=2):
                T.copy(X[0, k * 64], tile)
                for i, j in T.Parallel(64, 64):
                    sums[i, j] = T.max(sums[i, j], tile[i, j])
            T.copy(sums, Y[bx, :, :])

    x = random(np.random.default_rng(11), (64, 256), "float16")
    y = np.zeros((2, 64, 64), np.float16)
    plan = run_emulated(main, "h100", [x, y], ALL_SCHEDULES)
    parts = np.maximum(x.reshape(64, 4, 64).transpose(1, 0, 2), 0)
    np.testing.assert_array_equal(y, np.stack([parts[:2].max(0), parts.max(0)]))
    assert "for several blocks" not in plan.explain()


def test_programs_ask_for_the_extents_of_clusters():
    @T.prim_func
    def main(Y: T.Tensor((4, 4, 2), "int32")):
        with T.ClusterKernel(4, 4, threads=32, cluster_dims=2) as (bx, by):
            assert T.get_cluster_dims() == [2, 1, 1]
            assert (T.get_cluster_size(), T.get_cluster_extents()) == (2, [2, 4, 1])
            across, down = T.get_cluster_ids()
            Y[bx, by, 0] = across
            Y[bx, by, 1] = down

    y = np.zeros((4, 4, 2), np.int32)
    run_emulated(main, "h100", [y], ALL_SCHEDULES)
    x, z = np.indices((4, 4))
    np.testing.assert_array_equal(y, np.stack((x // 2, z), -1))


@pytest.mark.parametrize(
    "name", ["clc_try_cancel", "ptx_tcgen05_mma_ss", "alloc_tcgen05_smem_desc"]
)
def test_instructions_that_programs_cannot_name_say_what_to_write(name):
    with pytest.raises(UnknownPrimitive, match=r"T\.(gemm|PersistentTileScheduler)"):
        getattr(T, name)


def test_what_clusters_cannot_be_is_said():
    with pytest.raises(TypeMismatch, match="a mask of a cluster of 2 blocks"):

        @T.prim_func
        def masked(X: T.Tensor((16, 16), "float32")):
            with T.Kernel(2, threads=32, cluster_dims=2):
                tile = T.alloc_shared((16, 16), "float32")
                T.copy_cluster(X, tile, cluster_mask=4)

    def sync(blocks, cluster):
        @T.prim_func
        def main(Y: T.Tensor((blocks,), "int32")):
            with T.ClusterKernel(blocks, threads=32, cluster_dims=cluster) as bx:
                T.cluster_sync()
                Y[bx] = bx

        return main

    with pytest.raises(InvalidConfig, match="at most 8 blocks in a cluster"):
        lowered(sync(16, 16), "h100")
    with pytest.raises(InvalidConfig, match="the grid, which has 6 blocks"):
        lowered(sync(6, 4), "h100")
    with pytest.raises(UnknownPrimitive, match="other blocks of a cluster"):
        lowered(sync(4, 2), "a100")
