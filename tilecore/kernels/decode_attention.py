"""Attention of the last queries of each sequence: bound by reading the cache of keys and values.

Few queries of a head of K and V: sums of products where the cache lies. A block may walk several
segments of the keys in turn, each a stream of its own: on some machines one stream alone does not
use the memory's bandwidth, on others what counts is that its sums fit into registers. Many queries:
matrix products of tiles of the cache. Long caches of few heads are split over blocks; a second
launch combines their parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tilecore.language as T
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels import attention
from tilecore.kernels.definition import KernelDefinition, Knob, Problem
from tilecore.kernels.gpu.decode_attention import DECODE_ATTENTION_ON_GPU
from tilecore.kernels.softmax_steps import LOG2_E, alloc_rows, start_softmax, take_scores

MANY = 4  # queries of a head of K and V from which on matrix products pay


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    _, H, HK, SQ, _, _ = attention.sizes(problem)
    chosen = _by_products if H // HK * SQ >= MANY else _by_sums
    return chosen(problem, knobs)


@T.macro
def _is_hidden(key: Any, place: Any, segment: Any, query: Any, problem: Problem) -> Any:
    """Return whether a key lies beyond the segment or the cache, or is later than the query."""
    hidden = T.Or(place >= segment, key >= problem["seq_kv"])
    if problem["causal"]:
        hidden = T.Or(hidden, key > query + problem["seq_kv"] - problem["seq_q"])
    return hidden


@T.macro
def _combine(parts: Any, tops: Any, totals: Any, O: Any) -> None:
    """Add up the parts of all splits, each relative to its own largest score."""
    B, HK, splits, R, D = parts.shape
    SQ = O.shape[2]
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
            O[bz, by * (R // SQ) + r // SQ, r % SQ, d] = out[r, d] / whole[r]


def _by_sums(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    B, H, HK, SQ, SK, D = attention.sizes(problem)
    dtype, splits, streams = problem["dtype"], knobs["splits"], knobs["streams"]
    G, R = H // HK, H // HK * SQ  # heads and queries that share a head of K and V
    rows = knobs["block_N"] // streams  # of each stream in a step
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
        segment = T.ceildiv(SK, splits * streams)
        with T.Kernel(splits, HK, B) as (bx, by, bz):
            q = T.alloc_fragment((R, D), "float32")
            products = T.alloc_fragment((R, streams * rows, D), "float32")
            scores = T.alloc_fragment((R, streams * rows), "float32")
            sums = T.alloc_fragment((streams, R, D), "float32")
            out = T.alloc_fragment((R, D), "float32")
            largest, top, shrink, part, total = alloc_rows(R, 5)
            for r, d in T.Parallel(R, D):
                q[r, d] = Q[bz, by * G + r // SQ, r % SQ, d]
            T.clear(sums)
            start_softmax(largest, top, total, scale)
            for step in T.serial(T.ceildiv(segment, rows)):
                first = bx * streams * segment + step * rows
                for r, i, d in T.Parallel(R, rows * streams, D):  # in the sum's order: one nest
                    key = first + i % streams * segment + i // streams
                    products[r, i, d] = q[r, d] * K[bz, by, key, d]
                T.reduce_sum(products, scores, dim=2)
                for r, n, s in T.Parallel(R, rows, streams):
                    key = first + s * segment + n
                    if _is_hidden(key, step * rows + n, segment, r % SQ, problem):
                        scores[r, n * streams + s] = -T.infinity("float32")
                take_scores(scores, largest, top, shrink, part, total, scale)
                for s, r, d in T.Parallel(streams, R, D):
                    sums[s, r, d] *= shrink[r]
                for n in T.serial(rows):
                    for s, r, d in T.Parallel(streams, R, D):
                        value = V[bz, by, first + s * segment + n, d]
                        sums[s, r, d] += scores[r, n * streams + s] * value
            T.reduce_sum(sums, out, dim=0)
            T.copy(out, parts[bz, by, bx, 0, 0])
            T.copy(top, tops[bz, by, bx, 0])
            T.copy(total, totals[bz, by, bx, 0])
        _combine(parts, tops, totals, O)

    return decode_attention


def _by_products(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    B, H, HK, SQ, SK, D = attention.sizes(problem)
    dtype, splits, block_N = problem["dtype"], knobs["splits"], knobs["block_N"]
    G, R = H // HK, H // HK * SQ  # heads and queries that share a head of K and V
    is_narrow = dtype != "float32"
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
        segment = T.ceildiv(SK, splits)
        with T.Kernel(splits, HK, B) as (bx, by, bz):
            q = T.alloc_shared((R, D), dtype)
            k = T.alloc_shared((block_N, D), dtype)
            v = T.alloc_shared((block_N, D), dtype)
            scores = T.alloc_fragment((R, block_N), "float32")
            weights = T.alloc_fragment((R, block_N), dtype) if is_narrow else scores
            out = T.alloc_fragment((R, D), "float32")
            largest, top, shrink, part, total = alloc_rows(R, 5)
            for r, d in T.Parallel(R, D):
                q[r, d] = Q[bz, by * G + r // SQ, r % SQ, d]
            T.clear(out)
            start_softmax(largest, top, total, scale)
            for step in T.serial(T.ceildiv(segment, block_N)):
                first = bx * segment + step * block_N
                T.copy(K[bz, by, first, 0], k)
                T.copy(V[bz, by, first, 0], v)
                T.clear(scores)
                T.gemm(q, k, scores, transpose_B=True)
                for r, n in T.Parallel(R, block_N):
                    if _is_hidden(first + n, step * block_N + n, segment, r % SQ, problem):
                        scores[r, n] = -T.infinity("float32")
                take_scores(scores, largest, top, shrink, part, total, scale)
                if is_narrow:
                    T.copy(scores, weights)
                for r, d in T.Parallel(R, D):
                    out[r, d] *= shrink[r]
                T.gemm(weights, v, out)
            T.copy(out, parts[bz, by, bx, 0, 0])
            T.copy(top, tops[bz, by, bx, 0])
            T.copy(total, totals[bz, by, bx, 0])
        _combine(parts, tops, totals, O)

    return decode_attention


DECODE_ATTENTION = KernelDefinition(
    name="decode_attention",
    doc="O[b, h, q, d] = softmax(Q K^T / sqrt(d)) V for few queries and a long cache",
    fields=attention.FIELDS,
    knobs=(
        Knob("splits", 1, {"cpu": (1, 2, 4, 8)}, doc="blocks that share a head's keys"),
        Knob("streams", 1, {"cpu": (1, 4)}, doc="segments read in turn by few queries"),
        Knob("block_N", 64, {"cpu": (32, 64, 128)}, doc="keys per step"),
    ),
    program=_program,
    inputs=attention.inputs,
    reference=attention.reference,
    rival=attention.rival,
    work_flop=attention.work_flop,
    traffic_bytes=attention.traffic_bytes,
    reduction_length=lambda problem: 16,  # weights sum to 1: an average
    rounded_dtype=lambda problem: str(problem["dtype"]),  # weights
    numbers=lambda problem: (*attention.numbers(problem), "seq_q"),  # how many share a head
    check=attention.check,
    gpu=DECODE_ATTENTION_ON_GPU,
)
