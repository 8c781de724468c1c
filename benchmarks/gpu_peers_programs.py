"""Programs of gpu_peers.py that the library has not: MLA decode, products of dynamic sizes."""

from __future__ import annotations

from typing import Any

import tilecore.language as T
from tilecore.ir.nodes import PrimFunc

COLUMNS = T.GemmWarpPolicy.FullCol  # warps share the rows: own columns of scores and sums
LOG2_E = 1.4426950408889634


@T.macro
def combine(parts: Any, lse: Any, out: Any, is_chained: bool = False) -> None:
    """Add up the parts of all splits by their shares of the sum of weights."""
    batch, splits, heads, dim = parts.shape
    with T.Kernel(heads, batch, threads=128) as (by, bz):
        if is_chained:
            T.pdl_sync()
        total = T.alloc_fragment((dim,), "float32")
        top, whole, share = (T.alloc_var("float32") for _ in range(3))
        T.clear(total)
        top = -1e30
        for x in T.serial(splits):
            top = T.max(top, lse[bz, x, by])
        whole = 0.0
        for x in T.serial(splits):
            whole = whole + T.exp2(lse[bz, x, by] - top)
        for x in T.serial(splits):
            share = T.exp2(lse[bz, x, by] - top) / whole
            for d in T.Parallel(dim):
                total[d] += parts[bz, x, by, d] * share
        T.copy(total, out[bz, by, 0])


def mla_decode(
    batch: int, heads: int, seq: int, dim: int, pe: int, dtype: str, *, splits: int,
    block_H: int, block_N: int, num_stages: int, threads: int, through_shared: bool,
) -> PrimFunc:  # fmt: skip
    """Return DeepSeek's decode: all heads of a query over one latent per key, key and value."""
    scale, steps, BH, BN = LOG2_E / (dim + pe) ** 0.5, seq // (splits * block_N), block_H, block_N

    @T.prim_func
    def mla_decode(
        Q: T.Tensor((batch, heads, dim), dtype),
        Q_pe: T.Tensor((batch, heads, pe), dtype),
        KV: T.Tensor((batch, seq, dim), dtype),
        K_pe: T.Tensor((batch, seq, pe), dtype),
        Out: T.Tensor((batch, heads, dim), dtype),
    ) -> None:
        parts = T.alloc_global((batch, splits, heads, dim), "float32")
        lse = T.alloc_global((batch, splits, heads), "float32")
        with T.Kernel(heads // BH, splits, batch, threads=threads) as (bx, by, bz):
            q, q_pe = T.alloc_shared((BH, dim), dtype), T.alloc_shared((BH, pe), dtype)
            kv, k_pe = T.alloc_shared((BN, dim), dtype), T.alloc_shared((BN, pe), dtype)
            scores, out = (T.alloc_fragment((BH, n), "float32") for n in (BN, dim))
            narrow = T.alloc_shared((BH, BN), dtype)
            weights = narrow if through_shared else T.alloc_fragment((BH, BN), dtype)
            top, before, shrink, part, total = (
                T.alloc_fragment((BH,), "float32") for _ in range(5)
            )
            T.copy(Q[bz, bx * BH, 0], q)
            T.copy(Q_pe[bz, bx * BH, 0], q_pe)
            T.clear(out)
            T.clear(total)
            T.fill(top, -1e30)
            for k in T.Pipelined(steps, num_stages=num_stages):
                T.copy(KV[bz, (by * steps + k) * BN, 0], kv)
                T.copy(K_pe[bz, (by * steps + k) * BN, 0], k_pe)
                T.gemm(q, kv, scores, transpose_B=True, policy=COLUMNS, clear_accum=True)
                T.gemm(q_pe, k_pe, scores, transpose_B=True, policy=COLUMNS)
                T.copy(top, before)
                T.reduce_max(scores, top, dim=1, clear=False)
                for i in T.Parallel(BH):
                    shrink[i] = T.exp2((before[i] - top[i]) * scale)
                for i, j in T.Parallel(BH, BN):
                    scores[i, j] = T.exp2(scores[i, j] * scale - top[i] * scale)
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(BH):
                    total[i] = total[i] * shrink[i] + part[i]
                T.copy(scores, narrow)
                if not through_shared:
                    T.copy(narrow, weights)
                for i, d in T.Parallel(BH, dim):
                    out[i, d] *= shrink[i]
                T.gemm(weights, kv, out, policy=COLUMNS)
            for i, d in T.Parallel(BH, dim):
                out[i, d] /= total[i]
            if splits == 1:
                T.copy(out, Out[bz, bx * BH, 0])
            else:
                for i in T.Parallel(BH):
                    total[i] = T.log2(total[i]) + top[i] * scale
                T.copy(out, parts[bz, by, bx * BH, 0])
                T.copy(total, lse[bz, by, bx * BH])
        if splits > 1:
            combine(parts, lse, Out)

    return mla_decode


def gemm(
    m: Any, n: Any, k: Any, dtype: str, *, block_M: int, block_N: int, block_K: int,
    num_stages: int, threads: int,
) -> PrimFunc:  # fmt: skip
    """Return A @ B; sizes may be symbols."""

    @T.prim_func
    def gemm(
        A: T.Tensor((m, k), dtype),
        B: T.Tensor((k, n), dtype),
        C: T.Tensor((m, n), dtype),
    ) -> None:
        with T.Kernel(T.ceildiv(n, block_N), T.ceildiv(m, block_M), threads=threads) as (bx, by):
            a = T.alloc_shared((block_M, block_K), dtype)
            b = T.alloc_shared((block_K, block_N), dtype)
            c = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(c)
            for step in T.Pipelined(T.ceildiv(k, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, step * block_K], a)
                T.copy(B[step * block_K, bx * block_N], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * block_M, bx * block_N])

    return gemm
