"""Programs without T.Kernel, axes bound by TVM's names, and T.thread_return."""

import numpy as np
import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore.errors import ScopeError, TypeMismatch, UnsupportedSyntax

rng = np.random.default_rng(0)


def test_a_program_without_a_kernel_is_one_block(run_both):
    n = 1003

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        doubled = T.alloc_fragment((n,), "float32")
        kept = T.alloc_global((n,), "float32")
        for i in T.Parallel(n):
            doubled[i] = A[i] * 2.0
        T.copy(doubled, kept)
        largest = T.alloc_var("float32", -T.infinity("float32"))
        for i in range(n):
            if kept[i] > largest:
                largest = kept[i]
        for i in T.Parallel(n):
            B[i] = kept[n - 1 - i] - largest

    a = rng.standard_normal(n, np.float32)
    run_both(main, [a], [np.zeros(n, np.float32)], [2 * a[::-1] - 2 * a.max()])


def test_eager_functions_need_no_kernel_either():
    @tilelang.jit
    def add(A, B):
        n = T.const("n")
        A: T.Tensor((n,), "float32")
        B: T.Tensor((n,), "float32")
        C = T.empty((n,), "float32")
        for i in T.serial(n):
            C[i] = A[i] + B[i]
        return C

    a, b = torch.randn(37), torch.randn(37)
    torch.testing.assert_close(add(a, b), a + b)


def test_a_statement_beside_a_kernel_is_refused():
    with pytest.raises(ScopeError, match=r"a store stands outside T\.Kernel"):

        @T.prim_func
        def before(A: T.Tensor((4,), "float32")):
            A[0] = 1.0
            with T.Kernel(1):
                T.clear(A)

    with pytest.raises(ScopeError, match=r"`tile` \(fragment\) is allocated outside T\.Kernel"):

        @T.prim_func
        def after(A: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                T.clear(A)
            tile = T.alloc_fragment((4,), "float32")
            T.copy(tile, A)

    with pytest.raises(ScopeError, match=r"T\.launch_thread\('threadIdx.x'\) stands outside"):

        @T.prim_func
        def bound(A: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                T.clear(A)
            T.launch_thread("threadIdx.x", 4)


@pytest.mark.exhaustive
def test_axes_bound_by_name_are_the_launch(run_both):
    n = 1000

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        bx = T.launch_thread("blockIdx.x", 8)
        tx = T.launch_thread("threadIdx.x", 32)
        ty = T.launch_thread("threadIdx.y", 4)
        shared = T.alloc_shared((128,), "float32")
        shared[ty * 32 + tx] = A[bx * 128 + ty * 32 + tx]
        T.sync_threads()
        B[bx * 128 + ty * 32 + tx] = shared[127 - ty * 32 - tx]

    a = rng.standard_normal(n, np.float32)
    padded = np.concatenate([a, np.zeros(24, np.float32)])
    expected = padded.reshape(8, 128)[:, ::-1].reshape(-1)[:n]
    run_both(main, [a], [np.zeros(n, np.float32)], [expected])

    @T.prim_func
    def loops(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        for bx in T.thread_binding(8, thread="blockIdx.x"):
            for tx in T.thread_binding(0, 128, thread="threadIdx.x"):
                B[bx * 128 + tx] = A[bx * 128 + tx] + tx

    expected = a + np.arange(n) % 128
    run_both(loops, [a], [np.zeros(n, np.float32)], [expected])


def test_axes_inside_a_kernel_are_those_it_has(run_both):
    @T.prim_func
    def main(A: T.Tensor((64,), "int32")):
        with T.Kernel(2, threads=32):
            bx = T.launch_thread("blockIdx.x", 2)
            A[bx * 32 + T.launch_thread("threadIdx.x", 32)] = bx

    run_both(main, [], [np.full(64, -1, np.int32)], [np.arange(64) // 32])
    with pytest.raises(TypeMismatch, match=r"the extent 32 of threadIdx\.x, found 64"):

        @T.prim_func
        def other(A: T.Tensor((64,), "int32")):
            with T.Kernel(1, threads=32):
                A[T.launch_thread("threadIdx.x", 64)] = 1

    with pytest.raises(TypeMismatch, match=r"blockIdx or threadIdx with \.x, \.y or \.z"):

        @T.prim_func
        def unknown(A: T.Tensor((64,), "int32")):
            A[T.launch_thread("vthread", 64)] = 1


def test_threads_return_early(run_both):
    @T.prim_func
    def main(X: T.Tensor((4, 40), "int32"), Y: T.Tensor((4, 40), "int32")):
        with T.Kernel(4, threads=40) as b:
            t = T.get_thread_binding()
            Y[b, t] = -1
            if t >= 30:
                T.thread_return()
            for i in range(8):
                for j in range(5):
                    if X[b, i * 5 + j] == t:
                        Y[b, t] = i * 5 + j
                        T.thread_return()
            Y[b, t] = -2

    x = np.stack([rng.permutation(60)[:40] for _ in range(4)]).astype(np.int32)
    expected = np.full((4, 40), -1)
    for b in range(4):
        for t in range(30):
            found = np.flatnonzero(x[b] == t)
            expected[b, t] = found[0] if len(found) else -2
    run_both(main, [x], [np.zeros((4, 40), np.int32)], [expected])


def test_a_block_without_thread_index_returns_as_one(run_both):
    @T.prim_func
    def main(lengths: T.Tensor((5,), "int32"), Y: T.Tensor((5, 16), "float32")):
        with T.Kernel(5) as b:
            tile = T.alloc_fragment((16,), "float32")
            T.fill(tile, 1.0)
            if lengths[b] == 0:
                T.thread_return()
            T.copy(tile, Y[b, :])

    lengths = np.array([1, 0, 3, 0, 2], np.int32)
    expected = np.repeat((lengths > 0)[:, None], 16, 1).astype(np.float32)
    run_both(main, [lengths], [np.zeros((5, 16), np.float32)], [expected])


def test_thread_return_stands_outside_parallel():
    with pytest.raises(UnsupportedSyntax, match=r"T\.thread_return outside T\.Parallel"):

        @T.prim_func
        def main(A: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                for i in T.Parallel(4):
                    if A[i] > 0:
                        T.thread_return()
