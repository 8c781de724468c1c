"""Attention of the last queries of each sequence: bound by reading the cache of keys and values.

Few queries of a head of K and V: sums of products where the cache lies. A block walks several
segments of the keys in turn, each a stream of its own: one stream alone does not use the memory's
bandwidth. Many queries: matrix products of tiles of the cache. Long caches of few heads are split
over blocks; a second launch combines their parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tilecore.language as T
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels import attention
from tilecore.kernels.definition import KernelDefinition, Knob, Problem


MANY = 4  # queries of a head of K and V from which on matrix products pay


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    B, H, HK, SQ, SK, D = attention.sizes(problem)
    dtype, causal = problem["dtype"], bool(problem["causal"])
    splits, block_N = knobs["splits"], knobs["block_N"]
    G = H // HK
    R = G * SQ  # queries that share a head of K and V
    is_many, is_narrow = R >= MANY, dtype != "float32"
    streams = 1 if is_many else knobs["streams"]
    rows = block_N if is_many else block_N // streams  # of each stream in a step
    scale = attention.LOG2_E / D**0.5

    @T.prim_func
    def decode_attention(
        Q: T.Tensor((B, H, SQ, D), dtype),  # type: ignore[valid-type]
        K: T.Tensor((B, HK, SK, D), dtype),  # type: ignore[valid-type]
        V: T.Tensor((B, HK, SK, D), dtype),  # type: ignore[valid-type]
        O: T.Tensor((B, H, SQ, D), dtype),  # type: ignore[valid-type]  # noqa: E741
    ) -> None:
        parts = T.alloc_global((B, HK, splits, R, D), "float32")
        tops = T.alloc_global((B, HK, splits, R), "float32")
        totals = T.alloc_global((B, HK, splits, R), "float32")
        segment = T.ceildiv(SK, splits * streams)
        with T.Kernel(splits, HK, B) as (bx, by, bz):
            q = T.alloc_fragment((R, D), dtype if is_many else "float32")
            scores = T.alloc_fragment((R, streams * rows), "float32")
            out = T.alloc_fragment((R, D), "float32")
            largest = T.alloc_fragment((R,), "float32")
            top = T.alloc_fragment((R,), "float32")  # the largest score, scaled
            shrink = T.alloc_fragment((R,), "float32")
            part = T.alloc_fragment((R,), "float32")
            total = T.alloc_fragment((R,), "float32")
            if is_many:
                k = T.alloc_shared((rows, D), dtype)
                v = T.alloc_shared((rows, D), dtype)
                weights = scores
                if is_narrow:
                    weights = T.alloc_fragment((R, rows), dtype)
            else:
                products = T.alloc_fragment((R, streams * rows, D), "float32")
                sums = T.alloc_fragment((streams, R, D), "float32")
                T.clear(sums)
            for r, d in T.Parallel(R, D):
                q[r, d] = Q[bz, by * G + r // SQ, r % SQ, d]
            T.clear(out)
            T.clear(total)
            T.fill(largest, -1e30)  # finite: a row may see nothing yet
            T.fill(top, -1e30 * scale)
            for step in T.serial(T.ceildiv(segment, rows)):
                first = bx * streams * segment + step * rows
                if is_many:
                    T.copy(K[bz, by, first, 0], k)
                    T.copy(V[bz, by, first, 0], v)
                    T.clear(scores)
                    T.gemm(q, k, scores, transpose_B=True)
                else:
                    for n, s, r, d in T.Parallel(rows, streams, R, D):
                        key = first + s * segment + n
                        products[r, n * streams + s, d] = q[r, d] * K[bz, by, key, d]
                    T.reduce_sum(products, scores, dim=2)
                for r, n, s in T.Parallel(R, rows, streams):
                    key, place = first + s * segment + n, step * rows + n
                    hidden = T.Or(place >= segment, key >= SK)
                    if causal:
                        hidden = T.Or(hidden, key > r % SQ + SK - SQ)
                    if hidden:
                        scores[r, n * streams + s] = -T.infinity("float32")
                T.reduce_max(scores, largest, dim=1, clear=False)
                for r in T.Parallel(R):
                    shrink[r] = T.exp2(top[r] - largest[r] * scale)
                    top[r] = largest[r] * scale
                for r, j in T.Parallel(R, streams * rows):
                    scores[r, j] = T.exp2(scores[r, j] * scale - top[r])
                T.reduce_sum(scores, part, dim=1)
                for r in T.Parallel(R):
                    total[r] = total[r] * shrink[r] + part[r]
                if is_many:
                    if is_narrow:
                        T.copy(scores, weights)
                    for r, d in T.Parallel(R, D):
                        out[r, d] *= shrink[r]
                    T.gemm(weights, v, out)
                else:
                    for s, r, d in T.Parallel(streams, R, D):
                        sums[s, r, d] *= shrink[r]
                    for n in T.serial(rows):
                        for s, r, d in T.Parallel(streams, R, D):
                            weight = scores[r, n * streams + s]
                            sums[s, r, d] += weight * V[bz, by, first + s * segment + n, d]
            if not is_many:
                T.reduce_sum(sums, out, dim=0)
            T.copy(out, parts[bz, by, bx, 0, 0])
            T.copy(top, tops[bz, by, bx, 0])
            T.copy(total, totals[bz, by, bx, 0])
        with T.Kernel(HK, B) as (by, bz):
            top = T.alloc_fragment((splits, R), "float32")
            total = T.alloc_fragment((splits, R), "float32")
            largest = T.alloc_fragment((R,), "float32")
            whole = T.alloc_fragment((R,), "float32")
            out = T.alloc_fragment((R, D), "float32")
            T.copy(tops[bz, by, 0, 0], top)
            T.copy(totals[bz, by, 0, 0], total)
            T.reduce_max(top, largest, dim=0)
            for x, r in T.Parallel(splits, R):
                top[x, r] = T.exp2(top[x, r] - largest[r])
                total[x, r] = total[x, r] * top[x, r]
            T.reduce_sum(total, whole, dim=0)
            T.clear(out)
            for x in T.serial(splits):
                for r, d in T.Parallel(R, D):
                    out[r, d] += parts[bz, by, x, r, d] * top[x, r]
            for r, d in T.Parallel(R, D):
                O[bz, by * G + r // SQ, r % SQ, d] = out[r, d] / whole[r]

    return decode_attention


DECODE_ATTENTION = KernelDefinition(
    name="decode_attention",
    doc="O[b, h, q, d] = softmax(Q K^T / sqrt(d)) V for few queries and a long cache",
    fields=attention.FIELDS,
    knobs=(
        Knob("splits", 1, {"cpu": (1, 2, 4, 8)}, doc="blocks that share a head's keys"),
        Knob("streams", 8, {"cpu": (1, 4, 8, 16)}, doc="segments read in turn by few queries"),
        Knob("block_N", 64, {"cpu": (32, 64, 128)}, doc="keys per step"),
    ),
    program=_program,
    inputs=attention.inputs,
    reference=attention.reference,
    rival=attention.rival,
    work_flop=attention.work_flop,
    traffic_bytes=attention.traffic_bytes,
    reduction_length=lambda problem: 16,  # weights sum to 1: an average
)
