"""Barriers and asynchronous primitives without roles: their synchronous meaning, their faults."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilecore as tilelang
import tilecore.language as T
from tilecore import interpreter
from tilecore.errors import AssertionFailed, ScopeError, TypeMismatch, UnknownPrimitive
from tilecore.ir.nodes import PrimFunc

RunBoth = Callable[..., list[np.ndarray]]
RNG = np.random.default_rng(0)


@pytest.mark.few(1)
@pytest.mark.parametrize("asks", [False, True])
def test_a_product_in_tensor_memory_waits_for_its_barrier(run_both: RunBoth, asks: bool) -> None:
    m, n, k = 50, 40, 70

    @T.prim_func
    def matmul(
        A: T.Tensor((m, k), "float32"),
        B: T.Tensor((n, k), "float32"),
        C: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 32), threads=64, cluster_dims=1) as (bx, by):
            A_shared = T.alloc_shared((32, 16), "float32")
            B_shared = T.alloc_shared((32, 16), "float32")
            C_tmem = T.alloc_tmem([32, 32], "float32")
            C_local = T.alloc_fragment((32, 32), "float32")
            loaded = T.alloc_barrier(64)
            done = T.alloc_barrier(1)
            if asks:
                T.evaluate(T.get_thread_binding())
            T.disable_warp_group_reg_alloc()
            T.pdl_sync()
            for ko in T.serial(T.ceildiv(k, 16)):
                T.tma_copy(A[by * 32, ko * 16], A_shared, barrier=loaded)
                T.async_copy(B[bx * 32, ko * 16], B_shared)
                T.ptx_commit_group()
                T.ptx_wait_group(0)
                T.barrier_arrive(loaded)
                T.barrier_wait(loaded, ko % 2)
                T.tcgen05_gemm(
                    A_shared, B_shared, C_tmem, transpose_B=True, mbar=done, clear_accum=ko == 0
                )
                T.mbarrier_wait_parity(done, ko & 1)
            T.copy(C_tmem, C_local)
            T.copy(C_local, C[by * 32, bx * 32])
            T.tma_store_wait()

    a = RNG.standard_normal((m, k)).astype(np.float32)
    b = RNG.standard_normal((n, k)).astype(np.float32)
    (c,) = run_both(matmul, [a, b], [np.zeros((m, n), np.float32)])
    np.testing.assert_allclose(c, a @ b.T, rtol=1e-4, atol=1e-4)


def test_threads_copy_a_few_elements_each(run_both: RunBoth) -> None:
    @T.prim_func
    def gather(
        X: T.Tensor((20, 24), "float32"),
        Rows: T.Tensor((32,), "int32"),
        Y: T.Tensor((32, 24), "float32"),
    ):
        with T.Kernel(1, threads=96):
            tx = T.get_thread_binding()
            rows = T.alloc_shared((32, 24), "float32")
            ready = T.alloc_barrier([96, 3])
            row, part = tx // 3, tx % 3 * 8
            T.ptx_cp_async(
                T.access_ptr(rows[row, part], "w", 8),
                T.access_ptr(X[Rows[row], part], "r", 8),
                8,
                predicate=Rows[row] != 7,
            )
            T.cp_async_barrier_noinc(ready[0])
            if part == 0 and row < 3:
                T.mbarrier_arrive(ready[1])
            T.mbarrier_wait_parity(ready[0], 0)
            T.mbarrier_wait_parity(ready[1], 0)
            T.copy(rows, Y)

    x = RNG.standard_normal((20, 24)).astype(np.float32)
    index = RNG.integers(0, 24, 32).astype(np.int32)  # 20 to 23 lie outside
    index[3] = 7
    (y,) = run_both(gather, [x, index], [np.zeros((32, 24), np.float32)])
    wanted = np.where((index < 20)[:, None], x[np.minimum(index, 19)], 0)
    np.testing.assert_array_equal(y, np.where((index == 7)[:, None], 0, wanted))


def test_threads_copy_by_addresses_as_tvm_says_them(run_both: RunBoth) -> None:
    @T.prim_func
    def main(X: T.Tensor((5, 16), "float16"), Y: T.Tensor((8, 16), "float16")):
        with T.Kernel(1, threads=32):
            rows = T.alloc_shared((8, 16), "float16")
            for i, j in T.Parallel(8, 2):
                T.ptx_cp_async(
                    T.tvm_access_ptr(T.type_annotation("float16"), rows.data, i * 16 + j * 8, 8, 2),
                    T.tvm_access_ptr(T.type_annotation("float16"), X.data, i * 16 + j * 8, 8, 1),
                    8,
                    predicate=T.And(i < 5, j * 8 < 16),
                )
            T.ptx_commit_group()
            T.ptx_wait_group(0)
            T.copy(rows, Y)

    x = RNG.standard_normal((5, 16)).astype(np.float16)
    want = np.concatenate([x, np.zeros((3, 16))])
    (y,) = run_both(main, [x], [np.zeros((8, 16), np.float16)])
    np.testing.assert_array_equal(y, want)


def test_an_address_has_the_type_of_its_buffer() -> None:
    for data, message in (("X", "expected the type of `X`, float16"), (3, "as in A.data")):
        with pytest.raises(TypeMismatch, match=message):

            @T.prim_func
            def main(X: T.Tensor((8,), "float16")):
                with T.Kernel(1):
                    memory = X.data if data == "X" else data  # noqa: B023
                    T.tvm_access_ptr(T.type_annotation("int8"), memory, 0, 8, 1)


@pytest.mark.parametrize("asks", [False, True])
def test_a_wait_that_nothing_ends_is_named(asks: bool) -> None:
    @T.prim_func
    def hang(Y: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=4):
            late = T.alloc_barrier(4)
            if asks:
                T.evaluate(T.get_thread_binding())
            T.mbarrier_wait_parity(late, 1)  # the phase before the first one is over
            T.mbarrier_wait_parity(late, 0)
            T.clear(Y)

    y = np.zeros(4, np.float32)
    with pytest.raises(ScopeError, match=r"deadlock: .* `late`") as error:
        interpreter.run(hang, y)
    assert error.value.span.line == hang.span.line + 7
    with pytest.raises(AssertionFailed, match=r"deadlock: .* `late`"):
        tilelang.compile(hang, target="llvm")(y)


def test_blocks_of_a_cluster_know_their_rank(run_both: RunBoth) -> None:
    @T.prim_func
    def rank(Y: T.Tensor((6, 4), "int32")):
        with T.ClusterKernel(6, 4, cluster_dims=(2, 4), threads=32) as (bx, by):
            Y[bx, by] = T.block_rank_in_cluster()

    (y,) = run_both(rank, [], [np.zeros((6, 4), np.int32)])
    x, z = np.indices((6, 4))
    np.testing.assert_array_equal(y, x % 2 + 2 * (z % 4))


@pytest.mark.parametrize("what", ["arrive", "sync", "copy", "gemm", "multicast"])
def test_what_reaches_into_another_block_is_refused(what: str) -> None:
    def trace() -> PrimFunc:
        @T.prim_func
        def reach(X: T.Tensor((16, 16), "float32")):
            with T.Kernel(2, threads=32, cluster_dims=2):
                tile = T.alloc_shared((16, 16), "float32")
                half = T.alloc_shared((16, 8), "float32")
                far = T.alloc_cluster_barrier(64)
                if what == "arrive":
                    T.mbarrier_arrive(far, 0)
                elif what == "sync":
                    T.cluster_sync()
                elif what == "copy":
                    T.copy_cluster(X, tile, dst_block=1)
                elif what == "gemm":
                    T.fill(tile, 0)
                    T.fill(half, 0)
                    T.tcgen05_gemm(tile, half, tile, use_2cta=True)
                else:
                    T.tma_copy(X, tile, barrier=far, cluster_mask=3)

        return reach

    for run in (lambda f: tilelang.compile(f, target="llvm"), interpreter.run):
        with pytest.raises(UnknownPrimitive, match="other blocks of a cluster"):
            run(trace())


def test_a_cluster_of_one_block_is_no_cluster(run_both: RunBoth) -> None:
    @T.prim_func
    def alone(X: T.Tensor((16,), "float32"), Y: T.Tensor((16,), "float32")):
        with T.ClusterKernel(1, threads=32, cluster_dims=1):
            tile = T.alloc_shared((16,), "float32")
            far = T.alloc_cluster_barrier(1)
            T.copy_cluster(X, tile, dst_block=0, remote_barrier=far)
            T.mbarrier_wait_parity(far, 0)
            T.cluster_sync()
            T.copy(tile, Y)

    x = RNG.standard_normal(16).astype(np.float32)
    np.testing.assert_array_equal(run_both(alone, [x], [np.zeros_like(x)])[0], x)


def test_wrong_uses_are_named() -> None:
    with pytest.raises(TypeMismatch, match="number of arrivals"):

        @T.prim_func
        def no_count(Y: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                T.alloc_barrier(0)

    with pytest.raises(TypeMismatch, match=r"a barrier of T.alloc_barrier for T.barrier_arrive"):

        @T.prim_func
        def no_barrier(Y: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                T.barrier_arrive(Y)

    with pytest.raises(TypeMismatch, match=r"keywords of T.tma_copy"):

        @T.prim_func
        def unknown_word(Y: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                T.tma_copy(Y, T.alloc_shared((4,), "float32"), colour=1)

    with pytest.raises(UnknownPrimitive, match="instruction or descriptor of NVIDIA GPUs"):
        T.ptx_ldmatrix  # noqa: B018

    @T.prim_func
    def in_parallel(Y: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=4):
            bar = T.alloc_barrier(4)
            for i in T.Parallel(4):
                T.barrier_arrive(bar)
                Y[i] = 0.0

    with pytest.raises(ScopeError, match=r"`bar` is used inside T.Parallel"):
        tilelang.compile(in_parallel, target="llvm")


def test_blocks_wait_for_each_other(run_both: RunBoth) -> None:
    @T.prim_func
    def total(X: T.Tensor((3, 20), "float32"), Y: T.Tensor((3,), "float32")):
        with T.Kernel(3, threads=32) as b:
            part = T.alloc_fragment((20,), "float32")
            sums = T.alloc_fragment((1,), "float32")
            work = T.alloc_global((3,), "float32")
            other = (b + 1) % 3
            T.copy(X[b, :], part)
            T.reduce_sum(part, sums)
            T.copy(sums, work[b : b + 1])
            T.sync_grid()
            for i in T.Parallel(1):
                sums[i] = work[0] + work[1] + work[2]
            Y[other] = sums[0]

    x = RNG.standard_normal((3, 20)).astype(np.float32)
    (y,) = run_both(total, [x], [np.zeros(3, np.float32)])
    np.testing.assert_allclose(y, np.full(3, x.sum()), rtol=1e-4)


def test_what_does_not_survive_a_wait_of_the_grid() -> None:
    with pytest.raises(ScopeError, match=r"`sums` would have to keep its value across T.sync_grid"):

        @T.prim_func
        def keeps(Y: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                sums = T.alloc_reducer((4,), "float32", "sum")
                T.clear(sums)
                T.sync_grid()
                T.finalize_reducer(sums)
                T.copy(sums, Y)

    with pytest.raises(ScopeError, match=r"`first` would have to keep its value"):

        @T.prim_func
        def binds_in_a_nest(Y: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                for i in T.Parallel(4):
                    first = Y[3 - i]
                    T.sync_grid()
                    Y[i] = first

    with pytest.raises(ScopeError, match=r"`own` would have to keep its value"):

        @T.prim_func
        def has_its_own(Y: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                for i in T.Parallel(4):
                    own = T.alloc_local((2,), "float32")
                    own[0] = Y[3 - i]
                    T.sync_grid()
                    Y[i] = own[0]

    with pytest.raises(ScopeError, match=r"`first` would have to keep its value"):

        @T.prim_func
        def binds(Y: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                first = Y[0]
                Y[1] = 1.0
                T.sync_grid()
                Y[2] = first

    with pytest.raises(ScopeError, match=r"T.sync_grid stands inside a loop"):

        @T.prim_func
        def loops(Y: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                for _i in T.serial(4):
                    T.sync_grid()

    with pytest.raises(ScopeError, match=r"T.sync_grid stands inside a loop"):

        @T.prim_func
        def loops_deeper(Y: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                for i in T.serial(4):
                    for _j in T.Parallel(4):
                        T.sync_grid()
                    Y[i] = 1.0
