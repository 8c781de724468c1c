"""Triton's side of gpu_peers.py: a product by tensor descriptors, and flash attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# Rows and columns of a block, a step along K, warps, stages.
GEMM = (
    (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (128, 128, 64, 4, 4), (128, 128, 64, 8, 4),
    (256, 128, 64, 8, 3), (64, 128, 64, 4, 4), (64, 64, 128, 4, 4), (16, 128, 128, 4, 4),
    (16, 64, 256, 4, 4),
)  # fmt: skip
# Queries and keys of a block, warps, stages.
ATTENTION = ((128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3))
GROUP = 8


@triton.jit
def _gemm(
    a_desc, b_desc, c_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = place // (GROUP * columns) * GROUP
    height = tl.minimum(rows - first, GROUP)
    m = first + place % (GROUP * columns) % height
    n = place % (GROUP * columns) // height
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = a_desc.load([m * BM, k * BK])
        b = b_desc.load([k * BK, n * BN])
        total = tl.dot(a, b, total)
    c_desc.store([m * BM, n * BN], total.to(tl.float16 if HALF else tl.bfloat16))


def gemm(a: Any, b: Any, out: Any, config: tuple[int, ...]) -> Callable[[], Any]:
    """Return a call of A @ B; both row-major."""
    BM, BN, BK, warps, stages = config
    (M, K), N = a.shape, b.shape[1]
    descriptors = [
        TensorDescriptor.from_tensor(t, list(box))
        for t, box in ((a, (BM, BK)), (b, (BK, BN)), (out, (BM, BN)))
    ]
    grid = (triton.cdiv(M, BM) * triton.cdiv(N, BN),)
    half = a.dtype == torch.float16

    def call() -> None:
        _gemm[grid](
            *descriptors, M, N, K, BM, BN, BK, GROUP, half, num_warps=warps, num_stages=stages
        )

    return call


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


def attention(
    q: Any, k: Any, v: Any, out: Any, is_causal: bool, config: tuple[int, ...]
) -> Callable[[], Any]:
    """Return a call of attention of (batch, heads, rows, dim); rows divide by the blocks."""
    BM, BN, warps, stages = config
    B, H, S, D = q.shape
    scale = 1.4426950408889634 / math.sqrt(D)
    half = q.dtype == torch.float16

    def call() -> None:
        _attention[(triton.cdiv(S, BM), B * H)](
            q, k, v, out, scale, H, k.shape[1], S, D, BM, BN, is_causal, half,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip

    return call
