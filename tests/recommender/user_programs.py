"""Programs as users write them: knobs are parameters, nothing is registered anywhere."""

import math

import tilecore as tilelang
import tilecore.language as T
from tilecore.kernels.softmax_steps import LOG2_E, alloc_rows, raise_top, start_softmax, weigh


@tilelang.jit(out_idx=-1)
def matmul(
    M, N, K, block_M=128, block_N=128, block_K=32, num_stages=3, threads=128, dtype="float16"
):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_K, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                T.copy(B[ko * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


@tilelang.jit
def eager_matmul(A, B, block_M: int = 64, block_N: int = 64, block_K: int = 32):
    M, N, K = T.const("M, N, K")
    A: T.Tensor[[M, K], "float16"]
    B: T.Tensor[[K, N], "float16"]
    C = T.empty([M, N], "float16")
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), "float16")
        B_shared = T.alloc_shared((block_K, block_N), "float16")
        C_local = T.alloc_fragment((block_M, block_N), "float32")
        T.clear(C_local)
        for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
            T.copy(A[by * block_M, ko * block_K], A_shared)
            T.copy(B[ko * block_K, bx * block_N], B_shared)
            T.gemm(A_shared, B_shared, C_local)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@tilelang.jit(out_idx=-1)
def attention(
    B, H, S, D, block_M, block_N, num_stages=1, threads=128, dtype="float16", divides=True
):
    scale = LOG2_E / math.sqrt(D)

    @T.prim_func
    def main(
        Q: T.Tensor((B, H, S, D), dtype),
        K: T.Tensor((B, H, S, D), dtype),
        V: T.Tensor((B, H, S, D), dtype),
        Out: T.Tensor((B, H, S, D), dtype),
    ):
        with T.Kernel(T.ceildiv(S, block_M), H, B, threads=threads) as (bx, by, bz):
            q = T.alloc_shared((block_M, D), dtype)
            k = T.alloc_shared((block_N, D), dtype)
            v = T.alloc_shared((block_N, D), dtype)
            scores = T.alloc_fragment((block_M, block_N), "float32")
            weights = T.alloc_fragment((block_M, block_N), dtype)
            out = T.alloc_fragment((block_M, D), "float32")
            largest, top, shrink, part, total = alloc_rows(block_M, 5)
            T.copy(Q[bz, by, bx * block_M, 0], q)
            T.clear(out)
            start_softmax(largest, top, total, scale)
            for step in T.Pipelined(T.ceildiv(S, block_N), num_stages=num_stages):
                T.copy(K[bz, by, step * block_N, 0], k)
                T.copy(V[bz, by, step * block_N, 0], v)
                T.clear(scores)
                T.gemm(q, k, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                if (step + 1) * block_N > S:
                    for i, j in T.Parallel(block_M, block_N):
                        hidden = step * block_N + j >= S
                        scores[i, j] = T.if_then_else(hidden, -T.infinity("float32"), scores[i, j])
                raise_top(scores, largest, top, shrink, scale)
                for i, j in T.Parallel(block_M, D):
                    out[i, j] *= shrink[i]
                weigh(scores, top, shrink, part, total, scale)
                T.copy(scores, weights)
                T.gemm(weights, v, out, policy=T.GemmWarpPolicy.FullRow)
            if divides:
                for i, j in T.Parallel(block_M, D):
                    out[i, j] /= total[i]
            else:
                for i in T.Parallel(block_M):
                    total[i] = 1 / total[i]
                for i, j in T.Parallel(block_M, D):
                    out[i, j] *= total[i]
            T.copy(out, Out[bz, by, bx * block_M, 0])

    return main


def scaled(N, factor, block_N):
    """A plain function of a memory-bound program."""

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), threads=128) as bx:
            tile = T.alloc_fragment((block_N,), "float32")
            T.copy(A[bx * block_N], tile)
            for i in T.Parallel(block_N):
                tile[i] *= factor
            T.copy(tile, B[bx * block_N])

    return main


def _product(M, N, K, block_M, block_N, block_K, threads, staged):
    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N))):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), "float16")
            B_shared = T.alloc_shared((block_K, block_N), "float16")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            C_shared = T.alloc_shared((block_M, block_N), "float32") if staged else None
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                T.copy(B[ko * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            if staged:
                T.copy(C_local, C_shared)
                T.copy(C_shared, C[by * block_M, bx * block_N])
            else:
                T.copy(C_local, C[by * block_M, bx * block_N])

    return main


@tilelang.jit(out_idx=-1)
def branching(M, N, K, block_M=128, block_N=64, block_K=32, threads=128):
    """Python asks for block_M (in the function) and wants block_K to divide K."""
    assert K % block_K == 0, "block_K divides K"
    return _product(M, N, K, block_M, block_N, block_K, threads, staged=block_M <= 64)


@tilelang.jit
def branching_inside(M, N, block_M=64, block_N=64):
    """An `if` of the kernel that depends on a knob alone chooses the program, it is no branch."""

    @T.prim_func
    def main(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            tile = T.alloc_fragment((block_M, block_N), "float32")
            T.copy(A[by * block_M, bx * block_N], tile)
            if block_N > 64:
                for i, j in T.Parallel(block_M, block_N):
                    tile[i, j] = T.exp(tile[i, j])
            T.copy(tile, B[by * block_M, bx * block_N])

    return main


@tilelang.jit
def dynamic(N, block_M=64):
    M = T.dynamic("M")

    @T.prim_func
    def main(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(M, block_M), threads=128) as bx:
            tile = T.alloc_fragment((block_M, N), "float32")
            T.copy(A[bx * block_M, 0], tile)
            T.copy(tile, B[bx * block_M, 0])

    return main


@tilelang.jit
def faulty(N, block_N=64):
    """A program of which no config works."""

    @T.prim_func
    def main(A: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), threads=128):
            T.alloc_fragment((block_N, missing), "float32")

    return main


def sequence(M, N, K, is_data, block_M=64, block_N=64, block_K=32):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float32"),
        B: T.Tensor((K, N), "float32"),
        Length: T.Tensor((1,), "int32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), "float32")
            B_shared = T.alloc_shared((block_K, block_N), "float32")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(Length[0] if is_data else K, block_K), num_stages=2):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                T.copy(B[ko * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


def repeated(M, block_M=64):
    @T.prim_func
    def main(Count: T.Tensor((1,), "int32"), X: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, block_M), threads=128) as bx:
            tile = T.alloc_fragment((block_M,), "float32")
            T.copy(X[bx * block_M], tile)
            for _ in T.serial(Count[0]):
                for i in T.Parallel(block_M):
                    tile[i] = tile[i] * 0.5
            T.copy(tile, X[bx * block_M])

    return main
