"""Build a tile program for an H100 on a machine without a GPU, and check it on the emulator."""

import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore.emulator import ALL_SCHEDULES


def matmul(M, N, K, block_M, block_N, block_K, num_stages, threads):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), "float16")
            B_shared = T.alloc_shared((block_K, block_N), "float16")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            T.use_swizzle(panel_size=8)
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[k * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


kernel = tilelang.compile(matmul(4096, 4096, 4096, 128, 256, 64, 3, 256), target="h100")
print(kernel.explain())
print("resources:", kernel.artifact.manifest.resources)

# The same program at a size that an emulator can run, in four orders of what a GPU does not order:
# all must give one result.
small = tilelang.compile(matmul(192, 256, 256, 128, 256, 64, 3, 256), target="h100")
torch.manual_seed(0)
a = torch.randn(192, 256, dtype=torch.float16)
b = torch.randn(256, 256, dtype=torch.float16)
c = torch.zeros(192, 256, dtype=torch.float16)
small.emulated(ALL_SCHEDULES)(a, b, c)
error = (c.double() - a.double() @ b.double()).abs().max()
print(f"emulated under {len(ALL_SCHEDULES)} schedules: largest error {error:.4f}")
