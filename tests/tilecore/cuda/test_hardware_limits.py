"""What a device would refuse, or wait for forever: found in an audit against NVIDIA's manuals."""

import numpy as np
import pytest
import torch

import tilecore
import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tests.tilecore.cuda.text_kernels import run
from tilecore.codegen.cuda import HEADER
from tilecore.codegen.nvrtc import compile_cuda, load_nvrtc
from tilecore.emulator import ALL_SCHEDULES, TensorMap
from tilecore.errors import EmulationError, LaunchFailed
from tilecore.lowering.cuda import instructions as I
from tilecore.runtime.cuda import check_grid


def trading(counts):
    """Three warpgroups; the last one gives registers away, the others ask for more."""

    @T.prim_func
    def main(A: T.Tensor((384,), "float32")):
        with T.Kernel(1, threads=384):
            tx = T.get_thread_binding()
            if tx < 128:
                T.set_max_nreg(counts[0], 1)
                A[tx] = 1.0
            elif tx < 256:
                T.set_max_nreg(counts[0], 1)
                A[tx] = 2.0
            else:
                T.set_max_nreg(counts[1], 0)
                A[tx] = 3.0

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize(("counts", "is_there"), [((240, 24), True), ((224, 64), False)])
def test_warpgroups_share_what_the_block_has_at_its_launch(counts, is_there):
    """384 threads begin with 168 registers each: 504 for one thread of each warpgroup, not 512."""
    plan, _, source = lowered(trading(counts), "h100")
    assert ("setmaxnreg.inc" in source.text) is is_there
    reason = "512 for a thread of each warpgroup are asked for, 504 are there"
    assert (reason in plan.explain()) is not is_there
    a = np.zeros(384, np.float32)
    run_emulated(trading(counts), "h100", [a], ALL_SCHEDULES)
    np.testing.assert_array_equal(a, np.repeat([1, 2, 3], 128))


def test_registers_that_nobody_gives_away_are_waited_for_forever():
    grow, shrink = I.set_registers(224, True), I.set_registers(64, False)
    body = f"if (threadIdx.x < 256) {grow.name}(); else {shrink.name}(); a[threadIdx.x] = 1;"
    with pytest.raises(EmulationError, match=r"setmaxnreg\.inc 224"):
        run(body, {"a": np.zeros(384, np.float32)}, [grow, shrink], threads=384)


def shifted(by):
    """Tiles stored ``by`` rows further up than they were read."""

    @T.prim_func
    def main(A: T.Tensor((96, 64), "float16"), B: T.Tensor((96, 64), "float16")):
        with T.Kernel(3, threads=128) as bx:
            tile = T.alloc_shared((32, 64), "float16")
            T.copy(A[bx * 32, 0], tile)
            T.copy(tile, B[bx * 32 - by, 0])

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("by", [0, 8])
def test_boxes_are_stored_at_places_that_are_not_negative(by):
    a = np.random.default_rng(0).standard_normal((96, 64)).astype(np.float16)
    b = np.zeros_like(a)
    plan = run_emulated(shifted(by), "h100", [a, b], ALL_SCHEDULES)
    (launch,) = plan.launches.values()
    assert len(launch.stores) == (by == 0)
    expected = np.zeros_like(a)
    expected[: 96 - by] = a[by:]
    np.testing.assert_array_equal(b, expected)


def test_a_box_that_begins_below_zero_is_not_stored():
    store = I.tma_store(1)
    body = f"""
      if (threadIdx.x == 0) {{
        tc_fence_async(); {store.name}((unsigned long long)&a, smem, -4);
        tc_bulk_commit(); tc_bulk_wait_0();
      }}"""
    arguments = {"a": TensorMap(np.zeros(64, np.float32), (32,))}
    used = [store, I.fence_async(), I.bulk_commit(), I.bulk_wait(0)]
    with pytest.raises(EmulationError, match="a TMA store: coordinate -4 is negative"):
        run(body, arguments, used, shared_bytes=1024)


def test_a_product_over_nothing_needs_no_tensor_maps():
    """No tensor map may have an extent of 0, nor the address of an empty tensor."""
    k = T.dynamic("k")

    @T.prim_func
    def main(
        A: T.Tensor((k, 64), "float16"), B: T.Tensor((k, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            A_s = T.alloc_shared((32, 64), "float16")
            B_s = T.alloc_shared((32, 64), "float16")
            C_l = T.alloc_fragment((64, 64), "float32")
            T.clear(C_l)
            for i in T.Pipelined(T.ceildiv(k, 32), num_stages=2):
                T.copy(A[i * 32, 0], A_s)
                T.copy(B[i * 32, 0], B_s)
                T.gemm(A_s, B_s, C_l, transpose_A=True)
            T.copy(C_l, C)

    kernel = tilecore.compile(main, target="h100").emulated()
    for size in (0, 40):
        a, b = torch.randn(size, 64).half(), torch.randn(size, 64).half()
        c = torch.full((64, 64), float("nan"))
        kernel(a, b, c)
        torch.testing.assert_close(c, a.float().T @ b.float(), atol=1e-2, rtol=1e-3)


@pytest.mark.few(1)
@pytest.mark.parametrize(("threads", "has_boxes"), [(48, False), (96, True), (1024, False)])
def test_a_warpgroup_that_issues_copies_has_warps_of_its_own(threads, has_boxes):
    """It comes behind whole warps, and a block has at most 1024 threads."""

    @T.prim_func
    def main(A: T.Tensor((256, 64), "float32"), B: T.Tensor((32, 64), "float32")):
        with T.Kernel(1, threads=threads):
            tile = T.alloc_shared((32, 64), "float32")
            total = T.alloc_fragment((32, 64), "float32")
            T.clear(total)
            for k in T.Pipelined(8, num_stages=2):
                T.copy(A[k * 32, 0], tile)
                for i, j in T.Parallel(32, 64):
                    total[i, j] += tile[i, j]
            T.copy(total, B)

    a = np.random.default_rng(0).integers(-9, 10, (256, 64)).astype(np.float32)
    b = np.full((32, 64), np.nan, np.float32)
    plan = run_emulated(main, "h100", [a, b], ALL_SCHEDULES)
    (launch,) = plan.launches.values()
    assert launch.has_producer is has_boxes
    np.testing.assert_array_equal(b, a.reshape(8, 32, 64).sum(0))


def test_a_grid_of_too_many_blocks_along_y():
    check_grid("main", (2**31 - 1, 65535, 65535))
    with pytest.raises(LaunchFailed, match=r"65535 along y and z, found 1 x 65536 x 1"):
        check_grid("main", (1, 65536, 1))


def test_a_block_fences_what_it_wrote_to_others():
    """The fence of shared::cta is about the own block's memory only (PTX ISA 9.1, 9.7.13.4)."""

    @T.prim_func
    def main(A: T.Tensor((2, 128, 64), "float16"), C: T.Tensor((2, 128, 128), "float32")):
        with T.ClusterKernel(2, threads=128, cluster_dims=2) as bx:
            mine = T.alloc_shared((128, 64), "float16")
            others = T.alloc_shared((128, 64), "float16")
            sums = T.alloc_fragment((128, 128), "float32")
            T.copy(A[bx, 0, 0], mine)
            T.copy_cluster(mine, others, dst_block=1 - bx)
            T.cluster_sync()
            T.gemm(mine, others, sums, transpose_B=True, clear_accum=True)
            T.copy(sums, C[bx, 0, 0])

    a = np.random.default_rng(0).integers(-3, 4, (2, 128, 64)).astype(np.float16)
    c = np.zeros((2, 128, 128), np.float32)
    plan = run_emulated(main, "h100", [a, c], ALL_SCHEDULES)
    ((gemm,),) = [launch.gemms.values() for launch in plan.launches.values()]
    assert gemm.kind == "wgmma"
    x = a.astype(np.float64)
    np.testing.assert_array_equal(c, np.stack([x[0] @ x[1].T, x[1] @ x[0].T]))
    text = lowered(main, "h100")[2].text
    assert "fence.proxy.async.shared::cluster;" in text
    assert "fence.proxy.async.shared::cta;" not in text


def test_the_chosen_lane_of_a_warp_need_not_be_the_first():
    """It tells the barrier of its bytes before thread 0 arrives there for all."""

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float32")
            ready = T.alloc_barrier([1])
            T.tma_copy(A[0, 0], tile, barrier=ready[0])
            if T.get_thread_binding() == 0:
                T.mbarrier_arrive(ready[0])
            T.mbarrier_wait_parity(ready[0], 0)
            for i, j in T.Parallel(64, 64):
                B[i, j] = tile[i, j]

    a = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    b = np.zeros_like(a)
    run_emulated(main, "h100", [a, b], ALL_SCHEDULES)
    np.testing.assert_array_equal(b, a)
    with pytest.raises(EmulationError, match=r"race|more arrivals"):
        run_emulated(main, "h100", [a, b], ALL_SCHEDULES, without="tc_converge_warp();")


def test_lanes_may_wait_for_different_barriers():
    """bra.uni would promise that all lanes of a warp leave the loop together."""
    for wait in (I.barrier_wait(), I.barrier_wait("sm_80"), I.barrier_wait(of_cluster=True)):
        assert "bra.uni" not in wait.cuda
        assert "bra DONE" in wait.cuda


def test_a_wait_for_a_parity_that_no_phase_has():
    used = [I.barrier_init(), I.barrier_wait(), I.fence_barrier_init()]
    body = """
      if (threadIdx.x == 0) { tc_barrier_init(smem, 1); tc_fence_barrier_init(); }
      __syncthreads();
      tc_barrier_wait(smem, 3); a[0] = 1;"""
    with pytest.raises(EmulationError, match="expected parity 0 or 1, found 3"):
        run(body, {"a": np.zeros(1, np.float32)}, used, shared_bytes=64)


@pytest.mark.few(1)
@pytest.mark.parametrize("writes", [False, True])
def test_what_the_launch_writes_itself_is_no_box(writes):
    """The accelerator would not see what threads wrote to the tensor."""

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float32")
            ready = T.alloc_barrier([128])
            if writes:
                for i, j in T.Parallel(64, 64):
                    A[i, j] = A[i, j] * 2.0
                T.sync_threads()
            T.tma_copy(A[0, 0], tile, barrier=ready[0])
            T.mbarrier_arrive(ready[0])
            T.mbarrier_wait_parity(ready[0], 0)
            for i, j in T.Parallel(64, 64):
                B[i, j] = tile[i, j] + 1.0

    a = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    b, expected = np.zeros_like(a), (2 * a if writes else a) + np.float32(1)
    plan = run_emulated(main, "h100", [a, b], ALL_SCHEDULES)
    (launch,) = plan.launches.values()
    assert len(launch.loads) == (not writes)
    np.testing.assert_array_equal(b, expected)


REGISTERS = [(384, 168), (512, 128), (640, 96)]


@pytest.mark.few(1)
@pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")
@pytest.mark.parametrize(("threads", "registers"), REGISTERS)
def test_the_assembler_gives_threads_as_many_registers(threads, registers):
    """What ptxas says a kernel of so many threads that trades registers begins with."""
    grow, shrink = I.set_registers(200, True), I.set_registers(24, False)
    text = (
        f'{HEADER}{grow.cuda}{shrink.cuda}extern "C" __global__ void '
        f"__launch_bounds__({threads}, 1) k(float* a) {{ if (threadIdx.x < 128) {grow.name}(); "
        f"else {shrink.name}(); a[threadIdx.x] = 1; }}"
    )
    assert compile_cuda(text, "sm_90a").registers == registers
    plan, _, _ = lowered(asking(threads), "h100")
    groups = threads // 128
    total, there = 248 + (groups - 1) * 240, groups * registers
    reason = f"{total} for a thread of each warpgroup are asked for, {there} are there"
    assert reason in plan.explain()


def asking(threads):
    @T.prim_func
    def main(A: T.Tensor((threads,), "float32")):
        with T.Kernel(1, threads=threads):
            tx = T.get_thread_binding()
            if tx < 128:
                T.set_max_nreg(248, 1)
                A[tx] = 1.0
            else:
                T.set_max_nreg(240, 1)
                A[tx] = 2.0

    return main
