"""Tensors without elements, in known and in dynamic shapes."""

import numpy as np
import pytest
import torch

import tilecore as tilelang
import tilecore.language as T


def product(M, N, K, dtype="float32"):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32)) as (bx, by):
            a, b = T.alloc_shared((32, 16), dtype), T.alloc_shared((16, 32), dtype)
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 16), num_stages=2):
                T.copy(A[by * 32, k * 16], a)
                T.copy(B[k * 16, bx * 32], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 32, bx * 32])

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", [(40, 50, 0), (0, 50, 20), (40, 0, 20), (0, 0, 0)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_products_of_nothing(run_both, shape, dtype):
    M, N, K = shape
    a, b = np.ones((M, K), dtype), np.ones((K, N), dtype)
    run_both(product(M, N, K, dtype), [a, b], [np.full((M, N), 7, dtype)], [np.zeros((M, N))])


def test_dynamic_shapes_may_be_empty(run_both):
    M, N, K = (T.dynamic(n) for n in "MNK")
    func = product(M, N, K)
    for m, n, k in ((40, 50, 0), (0, 50, 20), (33, 0, 0)):
        a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
        run_both(func, [a, b], [np.full((m, n), 7, np.float32)], [np.zeros((m, n))])


def test_strides_of_nothing_mean_nothing(run_both):
    """NumPy calls them 0, whatever the array is a part of."""
    m, n = T.dynamic("m"), T.dynamic("n")

    @T.prim_func
    def main(A: T.StridedTensor((m, n), (n + 16, 1), "float32"), B: T.Tensor((m, n), "float32")):
        with T.Kernel(T.ceildiv(m, 8)) as b:
            for i, j in T.Parallel(8, 64):
                if b * 8 + i < m and j < n:
                    B[b * 8 + i, j] = A[b * 8 + i, j] + 1.0

    for rows in (0, 9):
        a = np.ones((rows, 56), np.float32)[:, :40]
        run_both(main, [a], [np.zeros((rows, 40), np.float32)], [a + 1])


def test_loads_outside_an_empty_tensor_are_0(run_both):
    @T.prim_func
    def main(A: T.Tensor((0, 8), "int32"), B: T.Tensor((4, 8), "int32")):
        with T.Kernel(1):
            tile = T.alloc_fragment((4, 8), "int32")
            T.copy(A[0, 0], tile)
            for i, j in T.Parallel(4, 8):
                A[i, j] = 5
                B[i, j] = tile[i, j] + A[i, j]

    run_both(main, [np.zeros((0, 8), np.int32)], [np.full((4, 8), 7, np.int32)], [np.zeros((4, 8))])


def test_eager_functions_take_empty_tensors():
    @tilelang.jit
    def double(A):
        n = T.const("n")
        A: T.Tensor((n, 4), "float32")
        B = T.empty((n, 4), "float32")
        with T.Kernel(T.ceildiv(n, 8)) as b:
            for i, j in T.Parallel(8, 4):
                B[b * 8 + i, j] = A[b * 8 + i, j] * 2
        return B

    for n in (0, 5):
        a = torch.randn(n, 4)
        torch.testing.assert_close(double(a), 2 * a)
