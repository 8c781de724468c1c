"""Triton's attention for gpu_peers.py: forward, backward, decode, MLA decode, linear attention.

After Triton's tutorial (forward, backward), the two stages of grouped decode attention as vLLM and
SGLang ship it, and the fused and the two-kernel chunk scans of flash-linear-attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from gpu_peers_launch import Launch, Launches

LOG2_E = 1.4426950408889634
# Queries and keys of a block, warps, stages.
ATTENTION = (
    (128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3),
    (128, 128, 4, 3),
)  # fmt: skip
# Keys of a block of the first kernel and queries of a step; queries and keys of the second; warps,
# stages.
BACKWARD = (
    (128, 32, 128, 32, 4, 3), (128, 64, 128, 64, 8, 2), (64, 64, 64, 64, 4, 3),
    (128, 64, 128, 64, 8, 3), (64, 32, 64, 32, 4, 3),
)  # fmt: skip
# Heads of a block, keys of a step, splits where batches alone fill the device, warps, stages.
MLA = (
    (16, 32, 4, 4, 2), (16, 64, 4, 4, 2), (32, 32, 4, 4, 2), (64, 32, 2, 8, 2), (64, 64, 2, 8, 1),
    (64, 16, 2, 8, 3), (16, 32, 8, 8, 2),
)  # fmt: skip
DECODE = ((16, 64, 8, 4, 2), (16, 128, 8, 4, 2), (16, 32, 16, 4, 3), (16, 64, 16, 4, 3))
# Chunk, columns of V, warps, stages.
FUSED = ((64, 32, 4, 2), (64, 64, 4, 3), (64, 128, 8, 2), (64, 64, 4, 2), (128, 64, 8, 2))
# Chunk, columns of V of the scan and of the output, warps, stages.
TWO_KERNELS = (
    (64, 64, 64, 4, 3), (64, 32, 128, 4, 2), (128, 64, 64, 8, 2), (64, 64, 128, 8, 2),
)  # fmt: skip


# --- forward -------------------------------------------------------------------------------------


@triton.jit
def _attend(
    total, best, summed, q, K, V, base, rows, first, last, scale, S, D: tl.constexpr,
    BN: tl.constexpr, MASKED: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    across = tl.arange(0, D)
    for n in range(first, last, BN):
        columns = n + tl.arange(0, BN)
        k = tl.load(K + base + columns[None, :] * D + across[:, None])
        scores = tl.dot(q, k)
        if MASKED:
            scores = tl.where(rows[:, None] >= columns[None, :], scores, float("-inf"))
        highest = tl.maximum(best, tl.max(scores, 1) * scale)
        weights = tl.exp2(scores * scale - highest[:, None])
        shrink = tl.exp2(best - highest)
        summed = summed * shrink + tl.sum(weights, 1)
        total = total * shrink[:, None]
        v = tl.load(V + base + columns[:, None] * D + across[None, :])
        total = tl.dot(weights.to(tl.float16 if HALF else tl.bfloat16), v, total)
        best = highest
    return total, best, summed


@triton.jit
def _attention(
    Q, K, V, Out, scale, H, HK, S, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    block, place = tl.program_id(0), tl.program_id(1)
    base = place.to(tl.int64) * S * D
    keys = (place // H * HK + place % H // (H // HK)).to(tl.int64) * S * D
    rows, across = block * BM + tl.arange(0, BM), tl.arange(0, D)
    q = tl.load(Q + base + rows[:, None] * D + across[None, :])
    total = tl.zeros((BM, D), tl.float32)
    best = tl.full((BM,), float("-inf"), tl.float32)
    summed = tl.zeros((BM,), tl.float32)
    full = block * BM if CAUSAL else S
    total, best, summed = _attend(
        total, best, summed, q, K, V, keys, rows, 0, full, scale, S, D, BN, False, HALF
    )
    if CAUSAL:
        total, best, summed = _attend(
            total, best, summed, q, K, V, keys, rows, full, full + BM, scale, S, D, BN, True, HALF
        )
    total = total / summed[:, None]
    found = total.to(tl.float16 if HALF else tl.bfloat16)
    tl.store(Out + base + rows[:, None] * D + across[None, :], found)


def forward(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Launches:
    """Yield attention of (batch, heads, rows, dim); rows divide by the blocks."""
    q, k, v = inputs
    B, H, S, D = q.shape
    for config in ATTENTION:
        BM, BN, warps, stages = config
        arguments = (
            q, k, v, outs[0], LOG2_E / math.sqrt(D), H, k.shape[1], S, D, BM, BN,
            bool(problem["causal"]), q.dtype == torch.float16,
        )  # fmt: skip
        grid = (triton.cdiv(S, BM), B * H)
        yield str(config), [Launch(_attention, grid, arguments, warps, stages)]


# --- backward ------------------------------------------------------------------------------------


@triton.jit
def _row_products(Out, Slope, Delta, D: tl.constexpr, BM: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    at = rows[:, None] * D + tl.arange(0, D)[None, :]
    products = tl.load(Out + at).to(tl.float32) * tl.load(Slope + at).to(tl.float32)
    tl.store(Delta + rows, tl.sum(products, 1))


@triton.jit
def _key_steps(
    dk, dv, k, v, Q, Slope, LSE, Delta, columns, first, last, scale, D: tl.constexpr,
    BM: tl.constexpr, MASKED: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    across = tl.arange(0, D)
    for m in range(first, last, BM):
        rows = m + tl.arange(0, BM)
        q = tl.load(Q + rows[:, None] * D + across[None, :])
        slope = tl.load(Slope + rows[:, None] * D + across[None, :])
        weights = tl.exp2(tl.dot(k, q.T) * scale - tl.load(LSE + rows)[None, :] * 1.44269504)
        if MASKED:
            weights = tl.where(rows[None, :] >= columns[:, None], weights, 0.0)
        narrow = weights.to(tl.float16 if HALF else tl.bfloat16)
        dv = tl.dot(narrow, slope, dv)
        slopes = weights * (tl.dot(v, slope.T) - tl.load(Delta + rows)[None, :])
        dk = tl.dot(slopes.to(tl.float16 if HALF else tl.bfloat16), q, dk)
    return dk, dv


@triton.jit
def _keys(
    Q, K, V, Slope, LSE, Delta, dK, dV, scale, factor, S, D: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, CAUSAL: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    block, place = tl.program_id(0), tl.program_id(1).to(tl.int64)
    base = place * S * D
    columns, across = block * BN + tl.arange(0, BN), tl.arange(0, D)
    at = columns[:, None] * D + across[None, :]
    k, v = tl.load(K + base + at), tl.load(V + base + at)
    dk, dv = tl.zeros((BN, D), tl.float32), tl.zeros((BN, D), tl.float32)
    Q += base
    Slope += base
    LSE += place * S
    Delta += place * S
    first = 0
    if CAUSAL:
        first = block * BN + BN
        dk, dv = _key_steps(
            dk, dv, k, v, Q, Slope, LSE, Delta, columns, block * BN, first, scale, D, BM, True, HALF
        )
    dk, dv = _key_steps(
        dk, dv, k, v, Q, Slope, LSE, Delta, columns, first, S, scale, D, BM, False, HALF
    )
    tl.store(dK + base + at, (dk * factor).to(tl.float16 if HALF else tl.bfloat16))
    tl.store(dV + base + at, dv.to(tl.float16 if HALF else tl.bfloat16))


@triton.jit
def _query_steps(
    dq, q, slope, lse, delta, K, V, rows, first, last, scale, D: tl.constexpr, BN: tl.constexpr,
    MASKED: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    across = tl.arange(0, D)
    for n in range(first, last, BN):
        columns = n + tl.arange(0, BN)
        k = tl.load(K + columns[:, None] * D + across[None, :])
        v = tl.load(V + columns[:, None] * D + across[None, :])
        weights = tl.exp2(tl.dot(q, k.T) * scale - lse[:, None])
        if MASKED:
            weights = tl.where(rows[:, None] >= columns[None, :], weights, 0.0)
        slopes = weights * (tl.dot(slope, v.T) - delta[:, None])
        dq = tl.dot(slopes.to(tl.float16 if HALF else tl.bfloat16), k, dq)
    return dq


@triton.jit
def _queries(
    Q, K, V, Slope, LSE, Delta, dQ, scale, factor, S, D: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, CAUSAL: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    block, place = tl.program_id(0), tl.program_id(1).to(tl.int64)
    base = place * S * D
    rows, across = block * BM + tl.arange(0, BM), tl.arange(0, D)
    at = rows[:, None] * D + across[None, :]
    q, slope = tl.load(Q + base + at), tl.load(Slope + base + at)
    lse, delta = tl.load(LSE + place * S + rows) * 1.44269504, tl.load(Delta + place * S + rows)
    dq = tl.zeros((BM, D), tl.float32)
    full = block * BM if CAUSAL else S
    dq = _query_steps(
        dq, q, slope, lse, delta, K + base, V + base, rows, 0, full, scale, D, BN, False, HALF
    )
    if CAUSAL:
        dq = _query_steps(
            dq, q, slope, lse, delta, K + base, V + base, rows, full, full + BM, scale, D, BN, True,
            HALF,
        )  # fmt: skip
    tl.store(dQ + base + at, (dq * factor).to(tl.float16 if HALF else tl.bfloat16))


def backward(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Launches:
    """Yield gradients where each head has keys of its own; rows divide by the blocks."""
    q, k, v, out, lse, slope = inputs
    dq, dk, dv = outs
    B, H, S, D = q.shape
    if k.shape[1] != H:
        return
    delta = torch.empty_like(lse)
    factor, options = 1 / math.sqrt(D), (bool(problem["causal"]), q.dtype == torch.float16)
    given = (q, k, v, slope, lse, delta)
    for config in BACKWARD:
        own, step, rows, columns, warps, stages = config
        scales = (LOG2_E * factor, factor, S, D)
        before = Launch(_row_products, (B * H * S // 64,), (out, slope, delta, D, 64), 4)
        keys = (*given, dk, dv, *scales, step, own, *options)
        queries = (*given, dq, *scales, rows, columns, *options)
        yield str(config), [
            before, Launch(_keys, (S // own, B * H), keys, warps, stages),
            Launch(_queries, (S // rows, B * H), queries, warps, stages),
        ]  # fmt: skip


# --- decode --------------------------------------------------------------------------------------


@triton.jit
def _decode(
    Q, Q_pe, K, K_pe, V, Parts, LSE, scale, S, SPAN, HK, H, SPLITS: tl.constexpr, G: tl.constexpr,
    D: tl.constexpr, PE: tl.constexpr, BH: tl.constexpr, BN: tl.constexpr, IS_LATENT: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    batch, place, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    blocks: tl.constexpr = (G + BH - 1) // BH
    kv_head, row = place // blocks, place % blocks * BH + tl.arange(0, BH)
    heads, across = kv_head * G + row, tl.arange(0, D)
    inside = row < G
    q = tl.load(
        Q + (batch * H + heads)[:, None] * D + across[None, :], mask=inside[:, None], other=0.0
    )
    if PE > 0:
        more = tl.arange(0, PE)
        q_pe = tl.load(
            Q_pe + (batch * H + heads)[:, None] * PE + more[None, :], mask=inside[:, None],
            other=0.0,
        )  # fmt: skip
    keys = (batch * HK + kv_head) * S
    total = tl.zeros((BH, D), tl.float32)
    best = tl.full((BH,), float("-inf"), tl.float32)
    summed = tl.zeros((BH,), tl.float32)
    last = tl.minimum(split * SPAN + SPAN, S)
    for n in range(split * SPAN, last, BN):
        columns = n + tl.arange(0, BN)
        seen = columns < last
        k = tl.load(
            K + (keys + columns)[None, :] * D + across[:, None], mask=seen[None, :], other=0.0
        )
        scores = tl.dot(q, k)
        if PE > 0:
            k_pe = tl.load(
                K_pe + (keys + columns)[None, :] * PE + more[:, None], mask=seen[None, :], other=0.0
            )
            scores = tl.dot(q_pe, k_pe, scores)
        scores = tl.where(seen[None, :], scores * scale, float("-inf"))
        highest = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - highest[:, None])
        shrink = tl.exp2(best - highest)
        summed = summed * shrink + tl.sum(weights, 1)
        if IS_LATENT:
            v = tl.trans(k)
        else:
            v = tl.load(
                V + (keys + columns)[:, None] * D + across[None, :], mask=seen[:, None], other=0.0
            )
        narrow = weights.to(tl.float16 if HALF else tl.bfloat16)
        total = tl.dot(narrow, v, total * shrink[:, None])
        best = highest
    at = (batch * H + heads) * SPLITS + split
    summed = tl.where(summed > 0.0, summed, 1.0)  # of a split without keys
    found = total / summed[:, None]
    tl.store(Parts + at[:, None] * D + across[None, :], found, mask=inside[:, None])
    tl.store(LSE + at, best + tl.log2(summed), mask=inside)


@triton.jit
def _combine(Parts, LSE, Out, SPLITS: tl.constexpr, D: tl.constexpr):
    head, across = tl.program_id(0).to(tl.int64), tl.arange(0, D)
    splits = tl.arange(0, SPLITS)
    lse = tl.load(LSE + head * SPLITS + splits)
    shares = tl.exp2(lse - tl.max(lse, 0))
    at = (head * SPLITS + splits)[:, None] * D + across[None, :]
    total = tl.sum(tl.load(Parts + at) * shares[:, None], 0) / tl.sum(shares, 0)
    tl.store(Out + head * D + across, total.to(Out.dtype.element_ty))


def _decodes(
    q: Any, q_pe: Any, k: Any, k_pe: Any, v: Any, out: Any, sizes: tuple[int, ...], scale: float,
    configs: Sequence[tuple[int, ...]],
) -> Launches:  # fmt: skip
    """Yield both stages; sizes: batch, heads, heads of K, keys, dim, more dims of scores."""
    B, H, HK, S, D, PE = sizes
    for config in configs:
        BH, BN, splits, warps, stages = config
        parts = torch.empty((B, H, splits, D), dtype=torch.float32, device=q.device)
        lse = torch.empty((B, H, splits), dtype=torch.float32, device=q.device)
        group, span = H // HK, triton.cdiv(S, splits * BN) * BN
        arguments = (
            q, q_pe, k, k_pe, v, parts, lse, scale * LOG2_E, S, span, HK, H, splits, group, D, PE,
            BH, BN, PE > 0, q.dtype == torch.float16,
        )  # fmt: skip
        grid = (B, HK * triton.cdiv(group, BH), splits)
        yield (
            str(config),
            [
                Launch(_decode, grid, arguments, warps, stages),
                Launch(_combine, (B * H,), (parts, lse, out, splits, D), 4),
            ],
        )


def mla(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Launches:
    """Yield DeepSeek's decode: one latent per key, which is key and value."""
    q, q_pe, kv, k_pe = inputs
    (B, H, D), PE, S = q.shape, q_pe.shape[2], kv.shape[1]
    more = 1 if B >= 64 else 4  # splits, where a batch alone does not fill the device
    configs = [(h, n, splits * more, *rest) for h, n, splits, *rest in MLA]
    sizes, scale = (B, H, 1, S, D, PE), (D + PE) ** -0.5
    yield from _decodes(q, q_pe, kv, k_pe, kv, outs[0], sizes, scale, configs)


def decode(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Launches:
    """Yield attention of one query over a cache."""
    q, k, v = inputs
    B, H, SQ, D = q.shape
    if SQ != 1:
        return
    more = 1 if B >= 8 else 4
    configs = [(h, n, splits * more, *rest) for h, n, splits, *rest in DECODE]
    sizes = (B, H, k.shape[1], k.shape[2], D, 0)
    yield from _decodes(q, q, k, k, v, outs[0], sizes, D**-0.5, configs)


# --- linear attention ----------------------------------------------------------------------------


@triton.jit
def _fused(
    Q, K, V, Out, S, D: tl.constexpr, DV: tl.constexpr, BC: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    block, place = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows, across, columns = tl.arange(0, BC), tl.arange(0, D), block * BV + tl.arange(0, BV)
    keys, values = place * S * D, place * S * DV
    state = tl.zeros((D, BV), tl.float32)
    for first in range(0, S, BC):
        q = tl.load(Q + keys + (first + rows)[:, None] * D + across[None, :])
        k = tl.load(K + keys + (first + rows)[None, :] * D + across[:, None])
        at = values + (first + rows)[:, None] * DV + columns[None, :]
        v = tl.load(V + at)
        scores = tl.dot(q, k)
        scores = tl.where(rows[:, None] >= rows[None, :], scores, 0.0)
        out = tl.dot(q, state.to(V.dtype.element_ty))
        out = tl.dot(scores.to(V.dtype.element_ty), v, out)
        state = tl.dot(k, v, state)
        tl.store(Out + at, out.to(V.dtype.element_ty))


@triton.jit
def _states(
    K, V, States, S, D: tl.constexpr, DV: tl.constexpr, BC: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    block, place = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows, across, columns = tl.arange(0, BC), tl.arange(0, D), block * BV + tl.arange(0, BV)
    state = tl.zeros((D, BV), tl.float32)
    for chunk in range(0, S // BC):
        at = ((place * (S // BC) + chunk) * D + across)[:, None] * DV + columns[None, :]
        tl.store(States + at, state.to(V.dtype.element_ty))
        keys = place * S + chunk * BC + rows
        k = tl.load(K + keys[None, :] * D + across[:, None])
        v = tl.load(V + keys[:, None] * DV + columns[None, :])
        state = tl.dot(k, v, state)


@triton.jit
def _outputs(
    Q, K, V, States, Out, S, D: tl.constexpr, DV: tl.constexpr, BC: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    block, chunk, place = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    rows, across, columns = tl.arange(0, BC), tl.arange(0, D), block * BV + tl.arange(0, BV)
    keys = place * S + chunk * BC + rows
    q = tl.load(Q + keys[:, None] * D + across[None, :])
    k = tl.load(K + keys[None, :] * D + across[:, None])
    v = tl.load(V + keys[:, None] * DV + columns[None, :])
    at = ((place * (S // BC) + chunk) * D + across)[:, None] * DV + columns[None, :]
    state = tl.load(States + at)
    scores = tl.dot(q, k)
    scores = tl.where(rows[:, None] >= rows[None, :], scores, 0.0)
    out = tl.dot(scores.to(V.dtype.element_ty), v, tl.dot(q, state))
    tl.store(Out + keys[:, None] * DV + columns[None, :], out.to(V.dtype.element_ty))


def linear(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Launches:
    """Yield causal linear attention: the state with its block, or kept for each chunk."""
    q, k, v = inputs
    (B, H, S, D), DV = q.shape, v.shape[3]
    for config in FUSED:
        BC, BV, warps, stages = config
        if BV > DV or S % BC:
            continue
        arguments: tuple[Any, ...] = (q, k, v, outs[0], S, D, DV, BC, BV)
        yield f"fused {config}", [Launch(_fused, (DV // BV, B * H), arguments, warps, stages)]
    for choice in TWO_KERNELS:
        BC, scanned, BV, warps, stages = choice
        if max(scanned, BV) > DV or S % BC:
            continue
        states = torch.empty((B, H, S // BC, D, DV), dtype=q.dtype, device=q.device)
        scan = (k, v, states, S, D, DV, BC, scanned)
        output = (q, k, v, states, outs[0], S, D, DV, BC, BV)
        yield (
            f"two kernels {choice}",
            [
                Launch(_states, (DV // scanned, B * H), scan, warps, stages),
                Launch(_outputs, (DV // BV, S // BC, B * H), output, warps, stages),
            ],
        )
