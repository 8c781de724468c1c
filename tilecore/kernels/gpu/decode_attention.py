"""Attention of few queries and long caches on GPUs: blocks share the keys, products are matrices.

The queries of a head of K and V are the rows of a product, filled up to what an instruction takes:
reading the cache takes the time, not multiplying. A second launch combines what blocks have found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tilecore.language as T
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels import attention
from tilecore.kernels.definition import NUM_STAGES, THREADS, GpuVariant, Knob, Problem
from tilecore.kernels.softmax_steps import LOG2_E, alloc_rows, start_softmax, take_scores

COMBINERS = 128  # threads of a block of the second launch


@T.macro
def _combine(parts: Any, tops: Any, totals: Any, O: Any) -> None:
    """Add up the parts of all splits, each relative to its own largest score."""
    B, HK, splits, R, D = parts.shape
    SQ = O.shape[2]
    with T.Kernel(R, HK, B, threads=COMBINERS) as (r, by, bz):
        top = T.alloc_fragment((1, splits), "float32")
        total = T.alloc_fragment((1, splits), "float32")
        shares = T.alloc_shared((splits,), "float32")
        largest, whole = alloc_rows(1, 2)
        out = T.alloc_fragment((D,), "float32")
        for i, x in T.Parallel(1, splits):
            top[i, x] = tops[bz, by, x, r]
            total[i, x] = totals[bz, by, x, r]
        T.reduce_max(top, largest, dim=1)
        for i, x in T.Parallel(1, splits):
            top[i, x] = T.exp2(top[i, x] - largest[i])
            total[i, x] = total[i, x] * top[i, x]
        T.reduce_sum(total, whole, dim=1)
        for i, x in T.Parallel(1, splits):
            shares[x] = top[i, x] / whole[i]
        T.clear(out)
        for x in T.serial(splits):
            for d in T.Parallel(D):
                out[d] += parts[bz, by, x, r, d] * shares[x]
        for d in T.Parallel(D):
            O[bz, by * (R // SQ) + r // SQ, r % SQ, d] = out[d]


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    B, H, HK, SQ, SK, D = attention.sizes(problem)
    dtype, causal = problem["dtype"], bool(problem["causal"])
    splits, block_M, block_N = knobs["splits"], knobs["block_M"], knobs["block_N"]
    G, R = H // HK, H // HK * SQ  # heads and queries that share a head of K and V
    scale = LOG2_E / D**0.5

    @T.prim_func
    def decode_attention(
        Q: T.Tensor((B, H, SQ, D), dtype),
        K: T.Tensor((B, HK, SK, D), dtype),
        V: T.Tensor((B, HK, SK, D), dtype),
        O: T.Tensor((B, H, SQ, D), dtype),
    ) -> None:
        parts = T.alloc_global((B, HK, splits, R, D), "float32")
        tops = T.alloc_global((B, HK, splits, R), "float32")
        totals = T.alloc_global((B, HK, splits, R), "float32")
        steps = T.ceildiv(SK, splits * block_N)
        blocks = T.ceildiv(R, block_M)
        with T.Kernel(splits, blocks * HK, B, threads=knobs["threads"]) as (bx, by, bz):
            q = T.alloc_shared((block_M, D), dtype)
            k = T.alloc_shared((block_N, D), dtype)
            v = T.alloc_shared((block_N, D), dtype)
            scores = T.alloc_fragment((block_M, block_N), "float32")
            weights = T.alloc_shared((block_M, block_N), dtype)
            out = T.alloc_fragment((block_M, D), "float32")
            largest, top, shrink, part, total = alloc_rows(block_M, 5)
            head, row = by // blocks, by % blocks * block_M
            for r, d in T.Parallel(block_M, D):
                q[r, d] = T.if_then_else(
                    row + r < R, Q[bz, head * G + (row + r) // SQ, (row + r) % SQ, d], 0.0
                )
            T.clear(out)
            start_softmax(largest, top, total, scale)
            for step in T.Pipelined(steps, num_stages=knobs["num_stages"]):
                first = (bx * steps + step) * block_N
                T.copy(K[bz, head, first, 0], k)
                T.copy(V[bz, head, first, 0], v)
                T.clear(scores)
                T.gemm(q, k, scores, transpose_B=True)
                if first + block_N > (SK - SQ + 1 if causal else SK):  # keys that some row misses
                    for r, n in T.Parallel(block_M, block_N):
                        hidden = first + n >= SK
                        if causal:
                            hidden = T.Or(hidden, first + n > (row + r) % SQ + SK - SQ)
                        scores[r, n] = T.if_then_else(hidden, -T.infinity("float32"), scores[r, n])
                take_scores(scores, largest, top, shrink, part, total, scale)
                T.copy(scores, weights)
                for r, d in T.Parallel(block_M, D):
                    out[r, d] *= shrink[r]
                T.gemm(weights, v, out)
            for r, d in T.Parallel(block_M, D):
                if row + r < R:
                    parts[bz, head, bx, row + r, d] = out[r, d]
            for r in T.Parallel(block_M):
                if row + r < R:
                    tops[bz, head, bx, row + r] = top[r]
                    totals[bz, head, bx, row + r] = total[r]
        _combine(parts, tops, totals, O)

    return decode_attention


DECODE_ATTENTION_ON_GPU = GpuVariant(
    knobs=(
        Knob("splits", 8, {"cuda": (1, 2, 4, 8, 16, 32, 64)}, doc="blocks that share a head"),
        Knob("block_M", 16, {"cuda": (16, 32, 64, 128)}, doc="queries of a head of K per block"),
        Knob("block_N", 64, {"cuda": (32, 64, 128, 256)}, doc="keys per step"),
        Knob("num_stages", 2, {"cuda": (1, 2, 3, 4)}, doc=NUM_STAGES.doc),
        THREADS,
    ),
    program=_program,
    numbers=attention.numbers,
)
