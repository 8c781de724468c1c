"""TileLang's side of gpu_peers.py: its examples' programs, by type, layout and mask."""

from collections.abc import Iterator, Mapping
from typing import Any

import tilelang.language as T


def gemm(M: int, N: int, K: int, dtype: str, BM: int, BN: int, BK: int, stages: int, threads: int):
    """Return TileLang's example of a product, with the panels of its autotuned one."""

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((BM, BK), dtype)
            B_shared = T.alloc_shared((BK, BN), dtype)
            C_local = T.alloc_fragment((BM, BN), "float32")
            C_shared = T.alloc_shared((BM, BN), dtype)
            T.use_swizzle(panel_size=10)
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=stages):
                T.copy(A[by * BM, k * BK], A_shared)
                T.copy(B[k * BK, bx * BN], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C_shared)
            T.copy(C_shared, C[by * BM, bx * BN])

    return main


def attention(
    B: int, H: int, HK: int, S: int, D: int, is_causal: bool, BM: int, BN: int, stages: int,
    threads: int,
) -> Any:  # fmt: skip
    """Return TileLang's example of a flash attention forward of (batch, heads, rows, dim)."""
    scale = (1.0 / D) ** 0.5 * 1.44269504
    dtype, shape, keys = "float16", (B, H, S, D), (B, HK, S, D)
    group = H // HK

    @T.prim_func
    def main(
        Q: T.Tensor(shape, dtype), K: T.Tensor(keys, dtype), V: T.Tensor(keys, dtype),
        Output: T.Tensor(shape, dtype),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(S, BM), H, B, threads=threads) as (bx, by, bz):
            Q_shared = T.alloc_shared([BM, D], dtype)
            K_shared = T.alloc_shared([BN, D], dtype)
            V_shared = T.alloc_shared([BN, D], dtype)
            O_shared = T.alloc_shared([BM, D], dtype)
            acc_s = T.alloc_fragment([BM, BN], "float32")
            acc_s_cast = T.alloc_fragment([BM, BN], dtype)
            acc_o = T.alloc_fragment([BM, D], "float32")
            scores_max = T.alloc_fragment([BM], "float32")
            scores_max_prev = T.alloc_fragment([BM], "float32")
            scores_scale = T.alloc_fragment([BM], "float32")
            scores_sum = T.alloc_fragment([BM], "float32")
            logsum = T.alloc_fragment([BM], "float32")
            T.copy(Q[bz, by, bx * BM : (bx + 1) * BM, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity("float32"))
            steps = T.ceildiv((bx + 1) * BM, BN) if is_causal else T.ceildiv(S, BN)
            for k in T.Pipelined(steps, num_stages=stages):
                T.copy(K[bz, by // group, k * BN : (k + 1) * BN, :], K_shared)
                if is_causal:
                    for i, j in T.Parallel(BM, BN):
                        acc_s[i, j] = T.if_then_else(
                            bx * BM + i >= k * BN + j, 0, -T.infinity("float32")
                        )
                else:
                    T.clear(acc_s)
                T.gemm(Q_shared, K_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(scores_max, scores_max_prev)
                T.fill(scores_max, -T.infinity("float32"))
                T.reduce_max(acc_s, scores_max, dim=1, clear=False)
                for i in T.Parallel(BM):
                    scores_max[i] = T.max(scores_max[i], scores_max_prev[i])
                for i in T.Parallel(BM):
                    scores_scale[i] = T.exp2(scores_max_prev[i] * scale - scores_max[i] * scale)
                for i, j in T.Parallel(BM, BN):
                    acc_s[i, j] = T.exp2(acc_s[i, j] * scale - scores_max[i] * scale)
                T.reduce_sum(acc_s, scores_sum, dim=1)
                for i in T.Parallel(BM):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
                T.copy(acc_s, acc_s_cast)
                for i, j in T.Parallel(BM, D):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(V[bz, by // group, k * BN : (k + 1) * BN, :], V_shared)
                T.gemm(acc_s_cast, V_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(BM, D):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, O_shared)
            T.copy(O_shared, Output[bz, by, bx * BM : (bx + 1) * BM, :])

    return main


def programs(kernel: str, problem: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (config, program) of the examples for a workload: configs for Hopper."""
    sizes: list[int] = []
    if kernel in ("gemm", "dynamic_gemm"):
        sizes = [int(problem[name]) for name in "mnk"]
        for tile in ((128, 256, 64, 3, 256), (128, 256, 64, 4, 256), (256, 128, 64, 3, 256)):
            yield str(tile), gemm(*sizes, str(problem["dtype"]), *tile)
    elif kernel == "attention" and problem["dtype"] == "float16":
        sizes = [int(problem[name]) for name in ("batch", "heads", "kv_heads", "seq_q", "dim")]
        for blocks in ((128, 128, 2, 256), (128, 128, 1, 256), (128, 64, 2, 256)):
            yield str(blocks), attention(*sizes, bool(problem["causal"]), *blocks)
