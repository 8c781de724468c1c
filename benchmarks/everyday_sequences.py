"""Sequences, caches, sparse matrices and transforms as users write them."""

from __future__ import annotations

import math

import tilecore.language as T
from tilecore.ir.nodes import PrimFunc

FLOAT = "float32"
LEAST = -1e30


# --- attention ------------------------------------------------------------------------------------


def rotated_to_cache(tokens: int, heads: int, d: int, slots: int) -> PrimFunc:
    """Return rotated queries; write rotated keys, and values, to the slots of a cache."""

    @T.prim_func
    def main(
        Q: T.Tensor((tokens, heads, d), FLOAT),
        K: T.Tensor((tokens, heads, d), FLOAT),
        V: T.Tensor((tokens, heads, d), FLOAT),
        Cos: T.Tensor((tokens, d // 2), FLOAT),
        Sin: T.Tensor((tokens, d // 2), FLOAT),
        Slot: T.Tensor((tokens,), "int32"),
        QOut: T.Tensor((tokens, heads, d), FLOAT),
        KCache: T.Tensor((slots, heads, d), FLOAT),
        VCache: T.Tensor((slots, heads, d), FLOAT),
    ) -> None:
        with T.Kernel(tokens, threads=128) as t:
            slot = Slot[t]
            for h, j in T.Parallel(heads, d // 2):
                c = Cos[t, j]
                s = Sin[t, j]
                QOut[t, h, j] = Q[t, h, j] * c - Q[t, h, j + d // 2] * s
                QOut[t, h, j + d // 2] = Q[t, h, j + d // 2] * c + Q[t, h, j] * s
                KCache[slot, h, j] = K[t, h, j] * c - K[t, h, j + d // 2] * s
                KCache[slot, h, j + d // 2] = K[t, h, j + d // 2] * c + K[t, h, j] * s
            for h, j in T.Parallel(heads, d):
                VCache[slot, h, j] = V[t, h, j]

    return main


def paged_decode(
    batch: int, heads: int, groups: int, d: int, pages: int, size: int, most: int
) -> PrimFunc:
    """Return the attention of one query per head over keys in pages; ``groups`` share keys."""
    per = heads // groups
    scale = math.log2(math.e) / math.sqrt(d)

    @T.prim_func
    def main(
        Q: T.Tensor((batch, heads, d), FLOAT),
        K: T.Tensor((pages, size, groups, d), FLOAT),
        V: T.Tensor((pages, size, groups, d), FLOAT),
        Table: T.Tensor((batch, most), "int32"),
        Length: T.Tensor((batch,), "int32"),
        O: T.Tensor((batch, heads, d), FLOAT),  # noqa: E741
    ) -> None:
        with T.Kernel(groups, batch, threads=128) as (g, b):
            q = T.alloc_shared((per, d), FLOAT)
            k = T.alloc_shared((size, d), FLOAT)
            v = T.alloc_shared((size, d), FLOAT)
            s = T.alloc_fragment((per, size), FLOAT)
            o = T.alloc_fragment((per, d), FLOAT)
            most_s = T.alloc_fragment((per,), FLOAT)
            before = T.alloc_fragment((per,), FLOAT)
            part = T.alloc_fragment((per,), FLOAT)
            total = T.alloc_fragment((per,), FLOAT)
            T.copy(Q[b, g * per, 0], q)
            T.clear(o)
            T.clear(total)
            T.fill(most_s, LEAST)
            for p in T.Pipelined(T.ceildiv(Length[b], size), num_stages=2):
                T.copy(K[Table[b, p], :, g, :], k)
                T.copy(V[Table[b, p], :, g, :], v)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(per, size):
                    s[i, j] = T.if_then_else(p * size + j < Length[b], s[i, j] * scale, LEAST)
                T.copy(most_s, before)
                T.reduce_max(s, most_s, dim=1, clear=False)
                for i, j in T.Parallel(per, size):
                    s[i, j] = T.exp2(s[i, j] - most_s[i])
                T.reduce_sum(s, part, dim=1)
                for i in T.Parallel(per):
                    total[i] = total[i] * T.exp2(before[i] - most_s[i]) + part[i]
                for i, j in T.Parallel(per, d):
                    o[i, j] *= T.exp2(before[i] - most_s[i])
                T.gemm(s, v, o)
            for i, j in T.Parallel(per, d):
                O[b, g * per + i, j] = o[i, j] / total[i]

    return main


def sliding_window(heads: int, length: int, d: int, window: int, dtype: str = FLOAT) -> PrimFunc:
    """Return causal attention over the last ``window`` keys."""
    block = 64
    scale = math.log2(math.e) / math.sqrt(d)

    @T.prim_func
    def main(
        Q: T.Tensor((heads, length, d), dtype),
        K: T.Tensor((heads, length, d), dtype),
        V: T.Tensor((heads, length, d), dtype),
        O: T.Tensor((heads, length, d), dtype),  # noqa: E741
    ) -> None:
        with T.Kernel(T.ceildiv(length, block), heads, threads=128) as (bx, h):
            q = T.alloc_shared((block, d), dtype)
            k = T.alloc_shared((block, d), dtype)
            v = T.alloc_shared((block, d), dtype)
            s = T.alloc_fragment((block, block), FLOAT)
            p = T.alloc_fragment((block, block), dtype)
            o = T.alloc_fragment((block, d), FLOAT)
            most = T.alloc_fragment((block,), FLOAT)
            before = T.alloc_fragment((block,), FLOAT)
            part = T.alloc_fragment((block,), FLOAT)
            total = T.alloc_fragment((block,), FLOAT)
            T.copy(Q[h, bx * block, 0], q)
            T.clear(o)
            T.clear(total)
            T.fill(most, LEAST)
            first = T.max(0, (bx * block - window + 1) // block)
            for at in T.Pipelined(first, bx + 1, num_stages=2):
                T.copy(K[h, at * block, 0], k)
                for i, j in T.Parallel(block, block):
                    row = bx * block + i
                    column = at * block + j
                    s[i, j] = T.if_then_else(column <= row and column > row - window, 0.0, LEAST)
                T.gemm(q, k, s, transpose_B=True)
                T.copy(most, before)
                T.reduce_max(s, most, dim=1, clear=False)
                for i in T.Parallel(block):
                    before[i] = T.exp2((before[i] - most[i]) * scale)
                for i, j in T.Parallel(block, block):
                    s[i, j] = T.exp2((s[i, j] - most[i]) * scale)
                T.reduce_sum(s, part, dim=1)
                for i in T.Parallel(block):
                    total[i] = total[i] * before[i] + part[i]
                for i, j in T.Parallel(block, d):
                    o[i, j] *= before[i]
                T.copy(s, p)
                T.copy(V[h, at * block, 0], v)
                T.gemm(p, v, o)
            for i, j in T.Parallel(block, d):
                o[i, j] = o[i, j] / total[i]
            T.copy(o, O[h, bx * block, 0])

    return main


# --- recurrences ----------------------------------------------------------------------------------


def causal_convolution(batch: int, channels: int, length: int, width: int, block: int) -> PrimFunc:
    """Return silu of a causal convolution of each channel (mamba)."""

    @T.prim_func
    def main(
        X: T.Tensor((batch, channels, length), FLOAT),
        W: T.Tensor((channels, width), FLOAT),
        B: T.Tensor((channels,), FLOAT),
        Y: T.Tensor((batch, channels, length), FLOAT),
    ) -> None:
        with T.Kernel(T.ceildiv(length, block), channels, batch, threads=128) as (bx, c, b):
            acc = T.alloc_fragment((block,), FLOAT)
            for i in T.Parallel(block):
                acc[i] = B[c]
            for k in T.serial(width):
                for i in T.Parallel(block):
                    at = bx * block + i + k - (width - 1)
                    acc[i] += W[c, k] * T.if_then_else(at >= 0 and at < length, X[b, c, at], 0.0)
            for i in T.Parallel(block):
                if bx * block + i < length:
                    Y[b, c, bx * block + i] = acc[i] / (1.0 + T.exp(-acc[i]))

    return main


def selective_scan(batch: int, channels: int, length: int, states: int, block: int) -> PrimFunc:
    """Return the outputs of a selective scan (mamba), a block of channels at a time."""

    @T.prim_func
    def main(
        U: T.Tensor((batch, length, channels), FLOAT),
        Dt: T.Tensor((batch, length, channels), FLOAT),
        A: T.Tensor((channels, states), FLOAT),
        B: T.Tensor((batch, length, states), FLOAT),
        C: T.Tensor((batch, length, states), FLOAT),
        Y: T.Tensor((batch, length, channels), FLOAT),
    ) -> None:
        with T.Kernel(T.ceildiv(channels, block), batch, threads=128) as (bx, b):
            a = T.alloc_fragment((block, states), FLOAT)
            h = T.alloc_fragment((block, states), FLOAT)
            hc = T.alloc_fragment((block, states), FLOAT)
            y = T.alloc_fragment((block,), FLOAT)
            T.copy(A[bx * block, 0], a)
            T.clear(h)
            for t in T.serial(length):
                for i, j in T.Parallel(block, states):
                    h[i, j] = (
                        T.exp(Dt[b, t, bx * block + i] * a[i, j]) * h[i, j]
                        + Dt[b, t, bx * block + i] * U[b, t, bx * block + i] * B[b, t, j]
                    )
                for i, j in T.Parallel(block, states):
                    hc[i, j] = h[i, j] * C[b, t, j]
                T.reduce_sum(hc, y, dim=1)
                T.copy(y, Y[b, t, bx * block])

    return main


def gated_chunks(heads: int, length: int, d: int, chunk: int) -> PrimFunc:
    """Return gated linear attention, a decay per head and step, in chunks."""

    @T.prim_func
    def main(
        Q: T.Tensor((heads, length, d), FLOAT),
        K: T.Tensor((heads, length, d), FLOAT),
        V: T.Tensor((heads, length, d), FLOAT),
        G: T.Tensor((heads, length), FLOAT),
        O: T.Tensor((heads, length, d), FLOAT),  # noqa: E741
    ) -> None:
        with T.Kernel(heads, threads=128) as h:
            q = T.alloc_shared((chunk, d), FLOAT)
            k = T.alloc_shared((chunk, d), FLOAT)
            v = T.alloc_shared((chunk, d), FLOAT)
            g = T.alloc_shared((chunk,), FLOAT)
            s = T.alloc_fragment((chunk, chunk), FLOAT)
            o = T.alloc_fragment((chunk, d), FLOAT)
            state = T.alloc_fragment((d, d), FLOAT)
            T.clear(state)
            for c in T.serial(T.ceildiv(length, chunk)):
                T.copy(Q[h, c * chunk, 0], q)
                T.copy(K[h, c * chunk, 0], k)
                T.copy(V[h, c * chunk, 0], v)
                T.copy(G[h, c * chunk], g)
                T.cumsum(g, dim=0)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(chunk, chunk):
                    s[i, j] = T.if_then_else(i >= j, s[i, j] * T.exp(g[i] - g[j]), 0.0)
                T.gemm(q, state, o, clear_accum=True)
                for i, j in T.Parallel(chunk, d):
                    o[i, j] *= T.exp(g[i])
                T.gemm(s, v, o)
                for i, j in T.Parallel(chunk, d):
                    k[i, j] *= T.exp(g[chunk - 1] - g[i])
                for i, j in T.Parallel(d, d):
                    state[i, j] *= T.exp(g[chunk - 1])
                T.gemm(k, v, state, transpose_A=True)
                T.copy(o, O[h, c * chunk, 0])

    return main


def time_mix(heads: int, length: int, d: int) -> PrimFunc:
    """Return the recurrence of RWKV-6, a state of d x d per head, step by step."""

    @T.prim_func
    def main(
        R: T.Tensor((heads, length, d), FLOAT),
        K: T.Tensor((heads, length, d), FLOAT),
        V: T.Tensor((heads, length, d), FLOAT),
        W: T.Tensor((heads, length, d), FLOAT),
        U: T.Tensor((heads, d), FLOAT),
        O: T.Tensor((heads, length, d), FLOAT),  # noqa: E741
    ) -> None:
        with T.Kernel(heads, threads=128) as h:
            state = T.alloc_fragment((d, d), FLOAT)
            part = T.alloc_fragment((d, d), FLOAT)
            o = T.alloc_fragment((d,), FLOAT)
            T.clear(state)
            for t in T.serial(length):
                for i, j in T.Parallel(d, d):
                    part[i, j] = R[h, t, i] * (state[i, j] + U[h, i] * K[h, t, i] * V[h, t, j])
                T.reduce_sum(part, o, dim=0)
                for i, j in T.Parallel(d, d):
                    state[i, j] = state[i, j] * W[h, t, i] + K[h, t, i] * V[h, t, j]
                T.copy(o, O[h, t, 0])

    return main


# --- sparse and sorted ----------------------------------------------------------------------------


def segment_sums(segments: int, rows: int, n: int) -> PrimFunc:
    """Return the sums of the rows between neighbouring offsets."""

    @T.prim_func
    def main(
        X: T.Tensor((rows, n), FLOAT),
        First: T.Tensor((segments + 1,), "int32"),
        Y: T.Tensor((segments, n), FLOAT),
    ) -> None:
        with T.Kernel(segments, threads=128) as b:
            acc = T.alloc_fragment((n,), FLOAT)
            T.clear(acc)
            for r in T.serial(First[b], First[b + 1]):
                for j in T.Parallel(n):
                    acc[j] += X[r, j]
            T.copy(acc, Y[b, 0])

    return main


def compacted(m: int, n: int) -> PrimFunc:
    """Return the positive elements of every row, and how many there are."""

    @T.prim_func
    def main(
        X: T.Tensor((m, n), FLOAT),
        Y: T.Tensor((m, n), FLOAT),
        Count: T.Tensor((m,), "int32"),
    ) -> None:
        with T.Kernel(m, threads=128) as b:
            at = T.alloc_shared((n,), "int32")
            for j in T.Parallel(n):
                at[j] = T.if_then_else(X[b, j] > 0, 1, 0)
            T.cumsum(at, dim=0)
            for j in T.Parallel(n):
                if X[b, j] > 0:
                    Y[b, at[j] - 1] = X[b, j]
            Count[b] = at[n - 1]

    return main


def sparse_rows(rows: int, columns: int, count: int, warps: int) -> PrimFunc:
    """Return a product of a sparse matrix (CSR) and a vector, a warp per row."""

    @T.prim_func
    def main(
        First: T.Tensor((rows + 1,), "int32"),
        At: T.Tensor((count,), "int32"),
        A: T.Tensor((count,), FLOAT),
        X: T.Tensor((columns,), FLOAT),
        Y: T.Tensor((rows,), FLOAT),
    ) -> None:
        with T.Kernel(T.ceildiv(rows, warps), threads=(32, warps)) as b:
            lane = T.get_thread_binding(0)
            row = b * warps + T.get_thread_binding(1)
            own = T.alloc_var("float32", init=0.0)
            if row < rows:
                for s in T.serial(T.ceildiv(First[row + 1] - First[row], 32)):
                    at = First[row] + s * 32 + lane
                    if at < First[row + 1]:
                        own += A[at] * X[At[at]]
            whole = T.warp_reduce_sum(own)
            if lane == 0 and row < rows:
                Y[row] = whole

    return main


# --- transforms -----------------------------------------------------------------------------------


def fourier(batch: int, n: int) -> PrimFunc:
    """Return Fourier transforms of ``n`` complex numbers in shared memory (Stockham, radix 2)."""
    steps = n.bit_length() - 1

    @T.prim_func
    def main(
        X: T.Tensor((batch, n, 2), FLOAT),
        Y: T.Tensor((batch, n, 2), FLOAT),
    ) -> None:
        with T.Kernel(batch, threads=128) as b:
            re = T.alloc_shared((2, n), FLOAT)
            im = T.alloc_shared((2, n), FLOAT)
            for i in T.Parallel(n):
                re[0, i] = X[b, i, 0]
                im[0, i] = X[b, i, 1]
            for s in T.serial(steps):
                for i in T.Parallel(n // 2):
                    half = 1 << s
                    angle = T.cast(i % half, FLOAT) * (-math.pi) / T.cast(half, FLOAT)
                    wr = T.cos(angle)
                    wi = T.sin(angle)
                    ar = re[s % 2, i]
                    ai = im[s % 2, i]
                    br = re[s % 2, i + n // 2] * wr - im[s % 2, i + n // 2] * wi
                    bi = re[s % 2, i + n // 2] * wi + im[s % 2, i + n // 2] * wr
                    at = i // half * half * 2 + i % half
                    re[1 - s % 2, at] = ar + br
                    im[1 - s % 2, at] = ai + bi
                    re[1 - s % 2, at + half] = ar - br
                    im[1 - s % 2, at + half] = ai - bi
            for i in T.Parallel(n):
                Y[b, i, 0] = re[steps % 2, i]
                Y[b, i, 1] = im[steps % 2, i]

    return main


def cholesky(batch: int, n: int) -> PrimFunc:
    """Return the lower triangles whose products with their transposes are the given matrices."""

    @T.prim_func
    def main(
        A: T.Tensor((batch, n, n), FLOAT),
        L: T.Tensor((batch, n, n), FLOAT),
    ) -> None:
        with T.Kernel(batch, threads=128) as b:
            x = T.alloc_shared((n, n), FLOAT)
            T.copy(A[b, 0, 0], x)
            for k in T.serial(n):
                x[k, k] = T.sqrt(x[k, k])
                for i in T.Parallel(n):
                    if i > k:
                        x[i, k] = x[i, k] / x[k, k]
                for i, j in T.Parallel(n, n):
                    if i > k and j > k and j <= i:
                        x[i, j] -= x[i, k] * x[j, k]
            for i, j in T.Parallel(n, n):
                L[b, i, j] = T.if_then_else(j <= i, x[i, j], 0.0)

    return main
