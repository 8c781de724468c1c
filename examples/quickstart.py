"""TileLang's quickstart, a GEMM with ReLU in the eager style, on a CPU.

The only line that differs from the program for TileLang is the import.
"""

import torch

import tilecore as tilelang
import tilecore.language as T


@tilelang.jit
def matmul_relu(
    A,
    B,
    block_M: int = 64,
    block_N: int = 64,
    block_K: int = 64,
    dtype: T.dtype = T.float16,
    accum_dtype: T.dtype = T.float32,
):
    # Compile-time dimensions, read off the tensors of the call.
    M, N, K = T.const("M, N, K")

    # Inputs.
    A: T.Tensor[[M, K], dtype]
    B: T.Tensor[[K, N], dtype]

    # The output, allocated by the call and returned.
    C = T.empty([M, N], dtype)

    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), dtype)
        B_shared = T.alloc_shared((block_K, block_N), dtype)
        C_local = T.alloc_fragment((block_M, block_N), accum_dtype)

        T.clear(C_local)
        for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
            T.copy(A[by * block_M, ko * block_K], A_shared)
            T.copy(B[ko * block_K, bx * block_N], B_shared)
            T.gemm(A_shared, B_shared, C_local)

        for i, j in T.Parallel(block_M, block_N):
            C_local[i, j] = T.max(C_local[i, j], 0)

        T.copy(C_local, C[by * block_M, bx * block_N])

    return C


def main():
    M = N = K = 1024
    a = torch.randn(M, K, device="cpu", dtype=torch.float16)
    b = torch.randn(K, N, device="cpu", dtype=torch.float16)

    c = matmul_relu(a, b)

    expected = torch.relu(a.float() @ b.float())
    torch.testing.assert_close(c.float(), expected, rtol=1e-2, atol=1e-2)
    print("Kernel output matches PyTorch.")

    kernel = matmul_relu.compile(M=M, N=N, K=K)
    latency = kernel.get_profiler(tensor_supply_type=tilelang.TensorSupplyType.Normal).do_bench()
    print(f"Latency: {latency:.3f} ms")


if __name__ == "__main__":
    main()
