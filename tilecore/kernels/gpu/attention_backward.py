"""Gradients of attention on GPUs: a block owns some keys and walks over the queries that see them.

Scores lie transposed, (keys, queries), so that weights and slopes are operands of the next products
where they are. Blocks add their parts of the gradient of Q up in a float32 workspace, by whole
tiles; the order of these sums, and so their last bits, differ from run to run. Products run on
while threads compute (sm_90): that of dV while they compute slopes, that of dK while they hand
their part of dQ over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tilecore.language as T
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels import attention
from tilecore.kernels.definition import NUM_STAGES, THREADS, GpuVariant, Knob, Problem, extent
from tilecore.kernels.softmax_steps import LOG2_E

ROWS = T.GemmWarpPolicy.FullRow  # warps own keys: weights and slopes stay with them
AROUND, THREADS_AROUND = 32, 128  # rows of a block of the launches before and after, its threads
MOST_KEPT = 64  # columns of keys and values that registers hold beside the sums
WIDTH, HALF = 32, 16  # columns of a row of all banks, and of half of it


def _place(i: Any, d: Any, D: int) -> Any:
    """Return where column d, of D, of row i lies in the workspace of dQ.

    In odd rows the 16 columns of a half and those of the other one of 32 change places: the rows
    that a warp writes at a time, 8 bytes a lane, lie in banks of their own.
    """
    if D % WIDTH:
        return d
    return d // WIDTH * WIDTH + (d // HALF + i) % 2 * HALF + d % HALF


@T.macro
def _prepare(O: Any, dO: Any, LSE: Any, delta: Any, lse: Any, dq: Any) -> None:
    """Set delta to the sum of O * dO of each row, lse to LSE in powers of 2, and dq to 0."""
    B, H, SQ, D = O.shape
    with T.Kernel(T.ceildiv(SQ, AROUND), H, B, threads=THREADS_AROUND) as (bx, by, bz):
        products = T.alloc_fragment((AROUND, D), "float32")
        sums = T.alloc_fragment((AROUND,), "float32")
        for i, d in T.Parallel(AROUND, D):
            row = bx * AROUND + i
            products[i, d] = T.cast(O[bz, by, row, d], "float32") * dO[bz, by, row, d]
            dq[bz, by, row, d] = 0.0
        T.reduce_sum(products, sums, dim=1)
        T.copy(sums, delta[bz, by, bx * AROUND])
        for i in T.Parallel(AROUND):
            lse[bz, by, bx * AROUND + i] = LSE[bz, by, bx * AROUND + i] * LOG2_E


@T.macro
def _finish(dq: Any, dQ: Any, scale: float) -> None:
    """Write the sums of all blocks as the gradient of Q."""
    B, H, SQ, D = dQ.shape
    with T.Kernel(T.ceildiv(SQ, AROUND), H, B, threads=THREADS_AROUND) as (bx, by, bz):
        for i, d in T.Parallel(AROUND, D):
            dQ[bz, by, bx * AROUND + i, d] = dq[bz, by, bx * AROUND + i, _place(i, d, D)] * scale


@T.macro
def _kept(tile: Any) -> Any:
    """Return a tile in registers, where products that all have it read no shared memory."""
    kept = T.alloc_fragment(tile.shape, tile.dtype)
    T.copy(tile, kept)
    return kept


@T.macro
def _weigh(weights: Any, lse: Any, scale: float, column: Any, row: Any, problem: Problem) -> None:
    """Turn scores, (keys from ``column``, queries from ``row``), into weights."""
    SQ, SK, causal = extent(problem, "seq_q"), extent(problem, "seq_kv"), bool(problem["causal"])
    keys, queries = weights.shape
    for j, i in T.Parallel(keys, queries):
        weights[j, i] = T.exp2(weights[j, i] * (scale * LOG2_E) - lse[i])
    seen = T.min(SK, row + SK - SQ + 1) if causal else SK  # by the first query
    if column + keys > seen:
        for j, i in T.Parallel(keys, queries):
            hidden = column + j >= SK
            if causal:
                hidden = T.Or(hidden, column + j > row + i + SK - SQ)
            weights[j, i] = T.if_then_else(hidden, 0.0, weights[j, i])


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    B, H, HK, SQ, SK, D = attention.sizes(problem)
    dtype, causal = str(problem["dtype"]), bool(problem["causal"])
    block_M, block_N, stages = knobs["block_M"], knobs["block_N"], knobs["num_stages"]
    queries, keys = (B, H, SQ, D), (B, HK, SK, D)
    G, scale = H // HK, 1 / math.sqrt(D)

    @T.prim_func
    def attention_backward(
        Q: T.Tensor(queries, dtype),
        K: T.Tensor(keys, dtype),
        V: T.Tensor(keys, dtype),
        O: T.Tensor(queries, dtype),
        LSE: T.Tensor((B, H, SQ), "float32"),
        dO: T.Tensor(queries, dtype),
        dQ: T.Tensor(queries, dtype),
        dK: T.Tensor(keys, dtype),
        dV: T.Tensor(keys, dtype),
    ) -> None:
        delta, lse_of_2 = (T.alloc_global((B, H, SQ), "float32") for _ in range(2))
        dq = T.alloc_global(queries, "float32")
        _prepare(O, dO, LSE, delta, lse_of_2, dq)
        with T.Kernel(T.ceildiv(SK, block_N), HK, B, threads=knobs["threads"]) as (bx, by, bz):
            k, v = (T.alloc_shared((block_N, D), dtype) for _ in range(2))
            q, do = (T.alloc_shared((block_M, D), dtype) for _ in range(2))
            lse, sums = (T.alloc_shared((block_M,), "float32") for _ in range(2))
            ds = T.alloc_shared((block_N, block_M), dtype)
            weights, slopes = (T.alloc_fragment((block_N, block_M), "float32") for _ in range(2))
            w, s = (T.alloc_fragment((block_N, block_M), dtype) for _ in range(2))
            dk, dv = (T.alloc_fragment((block_N, D), "float32") for _ in range(2))
            part = T.alloc_fragment((block_M, D), "float32")
            T.copy(K[bz, by, bx * block_N, 0], k)
            T.copy(V[bz, by, bx * block_N, 0], v)
            keys_kept = _kept(k) if D <= MOST_KEPT else k
            values_kept = _kept(v) if D <= MOST_KEPT else v
            T.clear(dk)
            T.clear(dv)
            first = T.max(bx * block_N - SK + SQ, 0) // block_M if causal else 0
            for g in T.serial(G):
                for x in T.Pipelined(T.ceildiv(SQ, block_M) - first, num_stages=stages):
                    head, row = by * G + g, (first + x) * block_M
                    T.copy(Q[bz, head, row, 0], q)
                    T.copy(dO[bz, head, row, 0], do)
                    T.copy(lse_of_2[bz, head, row], lse)
                    T.copy(delta[bz, head, row], sums)
                    T.gemm(keys_kept, q, weights, transpose_B=True, policy=ROWS, clear_accum=True)
                    T.gemm(values_kept, do, slopes, transpose_B=True, policy=ROWS, clear_accum=True)
                    _weigh(weights, lse, scale, bx * block_N, row, problem)
                    T.copy(weights, w)
                    T.wgmma_gemm(w, do, dv, policy=ROWS)
                    for j, i in T.Parallel(block_N, block_M):
                        slopes[j, i] = weights[j, i] * (slopes[j, i] - sums[i])
                    T.copy(slopes, s)
                    T.copy(s, ds)
                    T.wgmma_gemm(ds, k, part, transpose_A=True, clear_accum=True)
                    T.wgmma_gemm(s, q, dk, policy=ROWS)
                    for i, d in T.Parallel(block_M, D):
                        T.atomic_add(dq[bz, head, row + i, _place(i, d, D)], part[i, d])
            for j, d in T.Parallel(block_N, D):
                dk[j, d] *= scale
            T.copy(dk, dK[bz, by, bx * block_N, 0])
            T.copy(dv, dV[bz, by, bx * block_N, 0])
        _finish(dq, dQ, scale)

    return attention_backward


ATTENTION_BACKWARD_ON_GPU = GpuVariant(
    knobs=(
        Knob("block_M", 64, {"cuda": (16, 32, 64, 128)}, doc="queries per step"),
        Knob("block_N", 64, {"cuda": (64, 128)}, doc="keys per block"),
        Knob("num_stages", 2, {"cuda": (1, 2)}, doc=NUM_STAGES.doc),
        THREADS,
    ),
    program=_program,
    numbers=attention.numbers,
)
