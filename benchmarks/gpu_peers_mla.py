"""MLA decode for gpu_peers.py by two warpgroups that share the keys as FlashMLA's do.

Each warpgroup multiplies all heads of a block with its own keys of a pair of blocks, so that its
softmax needs nothing of the other's but the largest score, and has half of the columns of the sums:
weights of its own keys are in its registers, those of the other's in shared memory. A tile of 64
keys comes in three parts, which are loaded again one by one as soon as nobody needs them. Schedule:
FlashMLA's (github.com/deepseek-ai/FlashMLA, docs/20250422-new-kernel-deep-dive.md), with one
running maximum for both blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu_peers_programs import LOG2_E, combine

import tilecore.language as T
from tilecore.ir.nodes import PrimFunc

WARP, WARPGROUP = 32, 128
ROWS = 64  # heads of a block, and keys of each of the two tiles
POSITION = 2  # which part of a tile is that of the positions, behind the halves of the latents


@dataclass(frozen=True)
class Tiles:
    """What the roles of a block share; barriers of part p of tile t are number 3 t + p."""

    q: Any  # (ROWS, dim)
    latents: Any  # (2, 2, ROWS, dim / 2)
    positions: Any  # (2, ROWS, pe)
    weights: Any  # (2, ROWS, ROWS)
    tops: Any  # (2, ROWS)
    q_ready: Any
    ready: Any
    free: Any


def mla_decode(
    batch: int, heads: int, seq: int, dim: int, pe: int, dtype: str, *, splits: int,
    is_chained: bool = False,
) -> PrimFunc:  # fmt: skip
    """Return DeepSeek's decode: all heads of a query over one latent per key, key and value.

    ``is_chained``: the second launch is on its way while the first one runs.
    """
    scale, half, steps = LOG2_E / (dim + pe) ** 0.5, dim // 2, seq // (splits * 2 * ROWS)

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
        with T.Kernel(heads // ROWS, splits, batch, threads=3 * WARPGROUP) as (bx, by, bz):
            if is_chained:
                T.pdl_trigger()
            thread = T.get_thread_binding()
            tiles = Tiles(
                q=T.alloc_shared((ROWS, dim), dtype),
                latents=T.alloc_shared((2, 2, ROWS, half), dtype),
                positions=T.alloc_shared((2, ROWS, pe), dtype),
                weights=T.alloc_shared((2, ROWS, ROWS), dtype),
                tops=T.alloc_shared((2, ROWS), "float32"),
                q_ready=T.alloc_barrier([1]),
                ready=T.alloc_barrier([1] * 6),
                free=T.alloc_barrier([WARPGROUP // WARP] * 6),
            )
            if thread < WARPGROUP:
                _multiply(0, tiles, (bx, by, bz), Q_pe, Out, parts, lse, steps, scale)
            elif thread < 2 * WARPGROUP:
                _multiply(1, tiles, (bx, by, bz), Q_pe, Out, parts, lse, steps, scale)
            else:
                T.set_max_nreg(24, 0)
                if thread == 2 * WARPGROUP:
                    _load(tiles, (bx, by, bz), Q, KV, K_pe, steps)
        if splits > 1:
            combine(parts, lse, Out, is_chained)

    return mla_decode


@T.macro
def _load(tiles: Tiles, place: tuple[Any, ...], Q: Any, KV: Any, K_pe: Any, steps: int) -> None:
    """Bring the queries, and all parts of tiles in the order in which they become free."""
    (bx, by, bz), half = place, tiles.latents.shape[3]
    T.tma_copy(Q[bz, bx * ROWS, 0], tiles.q, barrier=tiles.q_ready)
    T.mbarrier_arrive(tiles.q_ready)
    for k in T.serial(steps):
        for tile, part in ((0, 0), (1, 1), (0, POSITION), (1, POSITION), (0, 1), (1, 0)):
            row = ((by * steps + k) * 2 + tile) * ROWS
            T.mbarrier_wait_parity(tiles.free[3 * tile + part], (k & 1) ^ 1)
            ready = 3 * tile + part
            if part == POSITION:
                there = tiles.positions[tile, :, :]
                T.tma_copy(K_pe[bz, row, 0], there, barrier=tiles.ready[ready])
            else:
                there = tiles.latents[tile, part, :, :]
                T.tma_copy(KV[bz, row, part * half], there, barrier=tiles.ready[ready])
            T.mbarrier_arrive(tiles.ready[ready])


@T.macro
def _multiply(
    mine: int, tiles: Tiles, place: tuple[Any, ...], Q_pe: Any, Out: Any, parts: Any, lse: Any,
    steps: int, scale: float,
) -> None:  # fmt: skip
    """Sum up the columns of half ``mine``, with the scores of tile ``mine`` of each pair."""
    (bx, by, bz), other = place, 1 - mine
    half, dtype = tiles.latents.shape[3], tiles.q.dtype
    T.set_max_nreg(240, 1)
    thread = T.get_thread_binding()
    q_pe = T.alloc_fragment((ROWS, tiles.positions.shape[2]), dtype)
    scores = T.alloc_fragment((ROWS, ROWS), "float32")
    weights = T.alloc_fragment((ROWS, ROWS), dtype)
    out = T.alloc_fragment((ROWS, half), "float32")
    top, before, shrink, part, total = (T.alloc_fragment((ROWS,), "float32") for _ in range(5))
    T.copy(Q_pe[bz, bx * ROWS, 0], q_pe)
    T.clear(out)
    T.clear(total)
    T.fill(top, -1e30)
    T.mbarrier_wait_parity(tiles.q_ready, 0)
    for k in T.serial(steps):
        _scores(mine, mine, tiles, scores, k, True)
        T.mbarrier_wait_parity(tiles.ready[3 * mine + POSITION], k & 1)
        T.gemm(q_pe, tiles.positions[mine, :, :], scores, transpose_B=True)
        _scores(mine, other, tiles, scores, k, False)
        T.copy(top, before)
        T.reduce_max(scores, top, dim=1, clear=False)
        if thread % WARP == 0:
            T.mbarrier_arrive(tiles.free[3 * mine + POSITION])
        T.copy(top, tiles.tops[mine, :])
        T.sync_threads(1, 2 * WARPGROUP)
        _weigh(tiles.tops, other, scores, (top, before, shrink, part, total), scale)
        T.copy(scores, weights)
        T.copy(weights, tiles.weights[mine, :, :])
        for i, d in T.Parallel(ROWS, half):
            out[i, d] *= shrink[i]
        T.wgmma_gemm(weights, tiles.latents[mine, mine, :, :], out)
        T.sync_threads(2, 2 * WARPGROUP)
        T.wgmma_gemm(tiles.weights[other, :, :], tiles.latents[other, mine, :, :], out)
        T.wait_wgmma(1)
        if thread % WARP == 0:
            T.mbarrier_arrive(tiles.free[3 * mine + mine])
        T.wait_wgmma(0)
        if thread % WARP == 0:
            T.mbarrier_arrive(tiles.free[3 * other + mine])
    T.copy(total, tiles.tops[mine, :])
    T.sync_threads(1, 2 * WARPGROUP)
    _divide(tiles.tops, other, total, shrink, out)
    if parts.shape[1] == 1:
        T.copy(out, Out[bz, bx * ROWS, mine * half])
    else:
        for i in T.Parallel(ROWS):
            total[i] = T.log2(total[i]) + top[i] * scale
        T.copy(out, parts[bz, by, bx * ROWS, mine * half])
        if mine == 0:
            T.copy(total, lse[bz, by, bx * ROWS])


@T.macro
def _scores(tile: int, part: int, tiles: Tiles, scores: Any, k: Any, is_first: bool) -> None:
    """Add the products of one half of a tile's latents to the scores."""
    half = tiles.latents.shape[3]
    T.mbarrier_wait_parity(tiles.ready[3 * tile + part], k & 1)
    T.gemm(
        tiles.q[:, part * half : (part + 1) * half], tiles.latents[tile, part, :, :], scores,
        transpose_B=True, clear_accum=is_first,
    )  # fmt: skip


@T.macro
def _weigh(tops: Any, other: int, scores: Any, rows: tuple[Any, ...], scale: float) -> None:
    """Replace scores by their weights under the largest score of both tiles, and add these up."""
    top, before, shrink, part, total = rows
    for i in T.Parallel(ROWS):
        top[i] = T.max(top[i], tops[other, i])
    for i in T.Parallel(ROWS):
        shrink[i] = T.exp2((before[i] - top[i]) * scale)
    for i, j in T.Parallel(ROWS, ROWS):
        scores[i, j] = T.exp2(scores[i, j] * scale - top[i] * scale)
    T.reduce_sum(scores, part, dim=1)
    for i in T.Parallel(ROWS):
        total[i] = total[i] * shrink[i] + part[i]


@T.macro
def _divide(sums: Any, other: int, total: Any, inverse: Any, out: Any) -> None:
    """Divide by the sum of the weights of all tiles."""
    for i in T.Parallel(ROWS):
        total[i] += sums[other, i]
    for i in T.Parallel(ROWS):
        inverse[i] = 1 / total[i]
    for i, d in T.Parallel(ROWS, out.shape[1]):
        out[i, d] *= inverse[i]
