"""Programs as users write them: those of ``everyday_programs.py``."""

from __future__ import annotations

import tilecore.language as T
from tilecore.ir.nodes import PrimFunc

FLOAT = "float32"


# --- weights of 4 bits ----------------------------------------------------------------------------


def int4_rows(m: int, n: int, k: int, group: int, block_m: int, dtype: str = FLOAT) -> PrimFunc:
    """Return A @ W.T, two weights of a row of W to a byte, a scale and a zero point per group."""
    block_n, block_k = 64, 128

    @T.prim_func
    def main(
        A: T.Tensor((m, k), dtype),
        W: T.Tensor((n, k // 2), "uint8"),
        S: T.Tensor((n, k // group), FLOAT),
        Z: T.Tensor((n, k // group), FLOAT),
        C: T.Tensor((m, n), FLOAT),
    ) -> None:
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=128) as (bx, by):
            a = T.alloc_shared((block_m, block_k), dtype)
            w = T.alloc_shared((block_n, block_k // 2), "uint8")
            b = T.alloc_shared((block_n, block_k), dtype)
            c = T.alloc_fragment((block_m, block_n), FLOAT)
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(k, block_k), num_stages=2):
                T.copy(A[by * block_m, ko * block_k], a)
                T.copy(W[bx * block_n, ko * block_k // 2], w)
                for i, j in T.Parallel(block_n, block_k):
                    code = (w[i, j // 2] >> T.cast((j % 2) * 4, "uint8")) & T.cast(15, "uint8")
                    b[i, j] = (
                        T.cast(code, FLOAT) - Z[bx * block_n + i, (ko * block_k + j) // group]
                    ) * S[bx * block_n + i, (ko * block_k + j) // group]
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * block_m, bx * block_n])

    return main


def int4_words(m: int, n: int, k: int, group: int, block_m: int) -> PrimFunc:
    """Return A @ W, eight weights of a column of W to a word, as zero points (GPTQ)."""
    block_n, block_k = 64, 128

    @T.prim_func
    def main(
        A: T.Tensor((m, k), FLOAT),
        W: T.Tensor((k // 8, n), "int32"),
        S: T.Tensor((k // group, n), FLOAT),
        Z: T.Tensor((k // group, n // 8), "int32"),
        C: T.Tensor((m, n), FLOAT),
    ) -> None:
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=128) as (bx, by):
            a = T.alloc_shared((block_m, block_k), FLOAT)
            b = T.alloc_shared((block_k, block_n), FLOAT)
            c = T.alloc_fragment((block_m, block_n), FLOAT)
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(k, block_k), num_stages=2):
                T.copy(A[by * block_m, ko * block_k], a)
                for i, j in T.Parallel(block_k, block_n):
                    at = ko * block_k + i
                    code = (W[at // 8, bx * block_n + j] >> ((at % 8) * 4)) & 15
                    zero = (Z[at // group, (bx * block_n + j) // 8] >> ((j % 8) * 4)) & 15
                    b[i, j] = T.cast(code - zero, FLOAT) * S[at // group, bx * block_n + j]
                T.gemm(a, b, c)
            T.copy(c, C[by * block_m, bx * block_n])

    return main


# --- depthwise convolution ------------------------------------------------------------------------


def depthwise_nhwc(n: int, h: int, w: int, c: int, stride: int, block_w: int = 8) -> PrimFunc:
    """Return a depthwise 3 x 3 convolution with channels last, a row's pixels in blocks."""
    oh, ow = (h - 1) // stride + 1, (w - 1) // stride + 1

    @T.prim_func
    def main(
        X: T.Tensor((n, h, w, c), FLOAT),
        F: T.Tensor((3, 3, c), FLOAT),
        Y: T.Tensor((n, oh, ow, c), FLOAT),
    ) -> None:
        with T.Kernel(T.ceildiv(ow, block_w), oh, n, threads=128) as (bx, by, bz):
            acc = T.alloc_fragment((block_w, c), FLOAT)
            T.clear(acc)
            for r, s in T.grid(3, 3):
                for i, j in T.Parallel(block_w, c):
                    y = by * stride + r - 1
                    x = (bx * block_w + i) * stride + s - 1
                    acc[i, j] += (
                        T.if_then_else(y >= 0 and y < h and x >= 0 and x < w, X[bz, y, x, j], 0.0)
                        * F[r, s, j]
                    )
            for i, j in T.Parallel(block_w, c):
                if bx * block_w + i < ow:
                    Y[bz, by, bx * block_w + i, j] = acc[i, j]

    return main


def depthwise_nchw(n: int, c: int, h: int, w: int, stride: int, block_h: int = 8) -> PrimFunc:
    """Return a depthwise 3 x 3 convolution of planes, some rows of one to a block."""
    oh, ow = (h - 1) // stride + 1, (w - 1) // stride + 1

    @T.prim_func
    def main(
        X: T.Tensor((n, c, h, w), FLOAT),
        F: T.Tensor((c, 3, 3), FLOAT),
        Y: T.Tensor((n, c, oh, ow), FLOAT),
    ) -> None:
        with T.Kernel(T.ceildiv(oh, block_h), c, n, threads=128) as (bx, by, bz):
            acc = T.alloc_fragment((block_h, ow), FLOAT)
            T.clear(acc)
            for r, s in T.grid(3, 3):
                for i, j in T.Parallel(block_h, ow):
                    y = (bx * block_h + i) * stride + r - 1
                    x = j * stride + s - 1
                    acc[i, j] += (
                        T.if_then_else(y >= 0 and y < h and x >= 0 and x < w, X[bz, by, y, x], 0.0)
                        * F[by, r, s]
                    )
            T.copy(acc, Y[bz, by, bx * block_h, 0])

    return main


# --- histograms -----------------------------------------------------------------------------------


def histogram(n: int, bins: int, block: int, shared: bool) -> PrimFunc:
    """Return how often numbers occur, counted in a table per block or in the result itself."""

    @T.prim_func
    def main(X: T.Tensor((n,), "int32"), H: T.Tensor((bins,), "int32")) -> None:
        with T.Kernel(T.ceildiv(n, block), threads=128) as bx:
            if shared:
                table = T.alloc_shared((bins,), "int32")
                T.clear(table)
                for i in T.Parallel(block):
                    if bx * block + i < n:
                        T.atomic_add(table[X[bx * block + i]], 1)
                for i in T.Parallel(bins):
                    T.atomic_add(H[i], table[i])
            else:
                for i in T.Parallel(block):
                    if bx * block + i < n:
                        T.atomic_add(H[X[bx * block + i]], 1)

    return main


# --- the gradients of a layer norm ----------------------------------------------------------------


def layer_norm_gradients(m: int, n: int, rows: int) -> PrimFunc:
    """Return dx, dgamma and dbeta of rows in blocks."""

    @T.prim_func
    def main(
        DY: T.Tensor((m, n), FLOAT),
        X: T.Tensor((m, n), FLOAT),
        G: T.Tensor((n,), FLOAT),
        Mean: T.Tensor((m,), FLOAT),
        Rstd: T.Tensor((m,), FLOAT),
        DX: T.Tensor((m, n), FLOAT),
        DG: T.Tensor((n,), FLOAT),
        DB: T.Tensor((n,), FLOAT),
    ) -> None:
        with T.Kernel(T.ceildiv(m, rows), threads=128) as bx:
            x = T.alloc_fragment((rows, n), FLOAT)
            dy = T.alloc_fragment((rows, n), FLOAT)
            xhat = T.alloc_fragment((rows, n), FLOAT)
            wdy = T.alloc_fragment((rows, n), FLOAT)
            product = T.alloc_fragment((rows, n), FLOAT)
            c1 = T.alloc_fragment((rows,), FLOAT)
            c2 = T.alloc_fragment((rows,), FLOAT)
            dg = T.alloc_fragment((n,), FLOAT)
            db = T.alloc_fragment((n,), FLOAT)
            T.copy(X[bx * rows, 0], x)
            T.copy(DY[bx * rows, 0], dy)
            for i, j in T.Parallel(rows, n):
                xhat[i, j] = (x[i, j] - Mean[bx * rows + i]) * Rstd[bx * rows + i]
                wdy[i, j] = dy[i, j] * G[j]
                product[i, j] = wdy[i, j] * xhat[i, j]
            T.reduce_sum(product, c1, dim=1)
            T.reduce_sum(wdy, c2, dim=1)
            for i, j in T.Parallel(rows, n):
                DX[bx * rows + i, j] = (wdy[i, j] - (c2[i] + xhat[i, j] * c1[i]) / n) * Rstd[
                    bx * rows + i
                ]
            for i, j in T.Parallel(rows, n):
                product[i, j] = dy[i, j] * xhat[i, j]
            T.reduce_sum(product, dg, dim=0)
            T.reduce_sum(dy, db, dim=0)
            for j in T.Parallel(n):
                T.atomic_add(DG[j], dg[j])
                T.atomic_add(DB[j], db[j])

    return main


# --- others ---------------------------------------------------------------------------------------


def max_pool(n: int, c: int, h: int, w: int, block_h: int = 8) -> PrimFunc:
    """Return the largest of 3 x 3 pixels, stride 2, of planes."""
    oh, ow = (h - 1) // 2 + 1, (w - 1) // 2 + 1

    @T.prim_func
    def main(X: T.Tensor((n, c, h, w), FLOAT), Y: T.Tensor((n, c, oh, ow), FLOAT)) -> None:
        with T.Kernel(T.ceildiv(oh, block_h), c, n, threads=128) as (bx, by, bz):
            best = T.alloc_fragment((block_h, ow), FLOAT)
            T.fill(best, -T.infinity(FLOAT))
            for r, s in T.grid(3, 3):
                for i, j in T.Parallel(block_h, ow):
                    y = (bx * block_h + i) * 2 + r - 1
                    x = j * 2 + s - 1
                    best[i, j] = T.max(
                        best[i, j],
                        T.if_then_else(
                            y >= 0 and y < h and x >= 0 and x < w,
                            X[bz, by, y, x],
                            -T.infinity(FLOAT),
                        ),
                    )
            T.copy(best, Y[bz, by, bx * block_h, 0])

    return main


def embedding(tokens: int, words: int, n: int, rows: int) -> PrimFunc:
    """Return rows of a table."""

    @T.prim_func
    def main(
        At: T.Tensor((tokens,), "int32"),
        E: T.Tensor((words, n), FLOAT),
        Y: T.Tensor((tokens, n), FLOAT),
    ) -> None:
        with T.Kernel(T.ceildiv(tokens, rows), threads=128) as bx:
            for i, j in T.Parallel(rows, n):
                Y[bx * rows + i, j] = E[At[bx * rows + i], j]

    return main


def rotary_halves(tokens: int, heads: int, d: int) -> PrimFunc:
    """Return rotated heads, pairs half a head apart."""

    @T.prim_func
    def main(
        X: T.Tensor((tokens, heads, d), FLOAT),
        C: T.Tensor((tokens, d // 2), FLOAT),
        S: T.Tensor((tokens, d // 2), FLOAT),
        Y: T.Tensor((tokens, heads, d), FLOAT),
    ) -> None:
        with T.Kernel(tokens, threads=128) as t:
            for h, j in T.Parallel(heads, d):
                other = T.if_then_else(
                    j < d // 2, -X[t, h, (j + d // 2) % d], X[t, h, (j + d // 2) % d]
                )
                Y[t, h, j] = X[t, h, j] * C[t, j % (d // 2)] + other * S[t, j % (d // 2)]

    return main


def rotary_pairs(tokens: int, heads: int, d: int) -> PrimFunc:
    """Return rotated heads, pairs of neighbours."""

    @T.prim_func
    def main(
        X: T.Tensor((tokens, heads, d), FLOAT),
        C: T.Tensor((tokens, d // 2), FLOAT),
        S: T.Tensor((tokens, d // 2), FLOAT),
        Y: T.Tensor((tokens, heads, d), FLOAT),
    ) -> None:
        with T.Kernel(tokens, threads=128) as t:
            for h, j in T.Parallel(heads, d // 2):
                Y[t, h, 2 * j] = X[t, h, 2 * j] * C[t, j] - X[t, h, 2 * j + 1] * S[t, j]
                Y[t, h, 2 * j + 1] = X[t, h, 2 * j + 1] * C[t, j] + X[t, h, 2 * j] * S[t, j]

    return main


def group_norm(n: int, c: int, size: int, groups: int) -> PrimFunc:
    """Return groups of channels with mean 0 and variance 1, scaled by channel."""
    per = c // groups

    @T.prim_func
    def main(
        X: T.Tensor((n, groups, per, size), FLOAT),
        W: T.Tensor((groups, per), FLOAT),
        B: T.Tensor((groups, per), FLOAT),
        Y: T.Tensor((n, groups, per, size), FLOAT),
    ) -> None:
        with T.Kernel(groups, n, threads=128) as (g, b):
            x = T.alloc_fragment((per, size), FLOAT)
            square = T.alloc_fragment((per, size), FLOAT)
            row = T.alloc_fragment((per,), FLOAT)
            rows = T.alloc_fragment((per,), FLOAT)
            mean = T.alloc_fragment((1,), FLOAT)
            var = T.alloc_fragment((1,), FLOAT)
            T.copy(X[b, g, 0, 0], x)
            T.reduce_sum(x, row, dim=1)
            T.reduce_sum(row, mean, dim=0)
            for i, j in T.Parallel(per, size):
                square[i, j] = (x[i, j] - mean[0] / (per * size)) * (
                    x[i, j] - mean[0] / (per * size)
                )
            T.reduce_sum(square, rows, dim=1)
            T.reduce_sum(rows, var, dim=0)
            for i, j in T.Parallel(per, size):
                Y[b, g, i, j] = (x[i, j] - mean[0] / (per * size)) * T.rsqrt(
                    var[0] / (per * size) + 1e-5
                ) * W[g, i] + B[g, i]

    return main


def running_sums(m: int, n: int, rows: int) -> PrimFunc:
    """Return sums along rows up to each element."""

    @T.prim_func
    def main(X: T.Tensor((m, n), FLOAT), Y: T.Tensor((m, n), FLOAT)) -> None:
        with T.Kernel(T.ceildiv(m, rows), threads=128) as bx:
            x = T.alloc_shared((rows, n), FLOAT)
            T.copy(X[bx * rows, 0], x)
            T.cumsum(x, dim=1)
            T.copy(x, Y[bx * rows, 0])

    return main


def gelu(m: int, n: int, rows: int, columns: int) -> PrimFunc:
    """Return gelu(X + B)."""

    @T.prim_func
    def main(
        X: T.Tensor((m, n), FLOAT),
        B: T.Tensor((n,), FLOAT),
        Y: T.Tensor((m, n), FLOAT),
    ) -> None:
        with T.Kernel(T.ceildiv(n, columns), T.ceildiv(m, rows), threads=128) as (bx, by):
            x = T.alloc_fragment((rows, columns), FLOAT)
            T.copy(X[by * rows, bx * columns], x)
            for i, j in T.Parallel(rows, columns):
                v = x[i, j] + B[bx * columns + j]
                x[i, j] = 0.5 * v * (1.0 + T.erf(v * 0.7071067811865476))
            T.copy(x, Y[by * rows, bx * columns])

    return main


def argmax(m: int, n: int, rows: int) -> PrimFunc:
    """Return the place of the largest element of every row."""

    @T.prim_func
    def main(X: T.Tensor((m, n), FLOAT), Y: T.Tensor((m,), "int32")) -> None:
        with T.Kernel(T.ceildiv(m, rows), threads=128) as bx:
            x = T.alloc_fragment((rows, n), FLOAT)
            best = T.alloc_fragment((rows,), FLOAT)
            places = T.alloc_fragment((rows, n), "int32")
            place = T.alloc_fragment((rows,), "int32")
            T.copy(X[bx * rows, 0], x)
            T.reduce_max(x, best, dim=1)
            for i, j in T.Parallel(rows, n):
                places[i, j] = T.if_then_else(x[i, j] == best[i], j, n)
            T.reduce_min(places, place, dim=1)
            T.copy(place, Y[bx * rows])

    return main


def transposed(m: int, n: int, rows: int, columns: int) -> PrimFunc:
    """Return X.T, written as one store per element."""

    @T.prim_func
    def main(X: T.Tensor((m, n), FLOAT), Y: T.Tensor((n, m), FLOAT)) -> None:
        with T.Kernel(T.ceildiv(n, columns), T.ceildiv(m, rows), threads=128) as (bx, by):
            for i, j in T.Parallel(rows, columns):
                Y[bx * columns + j, by * rows + i] = X[by * rows + i, bx * columns + j]

    return main


def upsampled(n: int, c: int, h: int, w: int) -> PrimFunc:
    """Return planes of twice the size, each pixel four times."""

    @T.prim_func
    def main(X: T.Tensor((n, c, h, w), FLOAT), Y: T.Tensor((n, c, 2 * h, 2 * w), FLOAT)) -> None:
        with T.Kernel(c, n, threads=128) as (b, a):
            for i, j in T.Parallel(2 * h, 2 * w):
                Y[a, b, i, j] = X[a, b, i // 2, j // 2]

    return main
