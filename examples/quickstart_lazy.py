"""A GEMM in TileLang's lazy style: a function returns the program, tilelang.compile builds it."""

import torch

import tilecore as tilelang
import tilecore.language as T


def matmul(M, N, K, block_M, block_N, block_K, dtype="float32", accum_dtype="float"):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((K, N), dtype),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_K, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)

            T.use_swizzle(panel_size=10, enable=True)
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                T.copy(B[ko * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


def run(M=1024, N=1024, K=1024):
    program = matmul(M, N, K, block_M=128, block_N=128, block_K=256)
    kernel = tilelang.compile(program, out_idx=[2], target="llvm")

    a = torch.randn(M, K, device="cpu", dtype=torch.float32)
    b = torch.randn(K, N, device="cpu", dtype=torch.float32)
    c = kernel(a, b)

    torch.testing.assert_close(c, a @ b, rtol=1e-3, atol=1e-3)
    print("Kernel output matches PyTorch.")
    print(f"Latency: {kernel.get_profiler().do_bench():.3f} ms")


if __name__ == "__main__":
    run()
