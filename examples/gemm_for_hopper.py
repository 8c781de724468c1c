"""Build a tile program for an H100 on a machine without a GPU, and check it on the emulator."""

import numpy as np
import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore.emulator import ALL_SCHEDULES, EmulatedDriver
from tilecore.gpu_compiler import lower_gpu
from tilecore.runtime import CudaKernel
from tilecore.target import parse_gpu_target


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

# The same program at a size that an emulator can run: four orders of what happens at once.
small = matmul(192, 256, 256, 128, 256, 64, 3, 256)
_, _, source = lower_gpu(small, parse_gpu_target("h100"))
artifact = tilelang.compile(small, target="h100").artifact
rng = np.random.default_rng(0)
a = rng.standard_normal((192, 256)).astype(np.float16)
b = rng.standard_normal((256, 256)).astype(np.float16)
for schedule in ALL_SCHEDULES:
    c = torch.zeros(192, 256, dtype=torch.float16)
    run = CudaKernel(artifact, EmulatedDriver(source, schedule))
    run(torch.from_numpy(a), torch.from_numpy(b), c)
    error = np.abs(c.numpy().astype(np.float64) - a.astype(np.float64) @ b.astype(np.float64)).max()
    print(f"emulated, {schedule}: largest error {error:.4f}")
