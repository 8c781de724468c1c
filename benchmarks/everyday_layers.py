"""Layers of models as users write them: those of ``everyday_models.py``."""

from __future__ import annotations

import tilecore.language as T
from tilecore.ir.nodes import PrimFunc

FLOAT = "float32"
LEAST = -1e30  # below every logit


# --- rows of logits -------------------------------------------------------------------------------


def top_k(m: int, n: int, k: int, rows: int) -> PrimFunc:
    """Return the ``k`` largest elements of every row and their places, the largest first."""

    @T.prim_func
    def main(
        X: T.Tensor((m, n), FLOAT),
        V: T.Tensor((m, k), FLOAT),
        P: T.Tensor((m, k), "int32"),
    ) -> None:
        with T.Kernel(T.ceildiv(m, rows), threads=128) as bx:
            x = T.alloc_fragment((rows, n), FLOAT)
            places = T.alloc_fragment((rows, n), "int32")
            best = T.alloc_fragment((rows,), FLOAT)
            place = T.alloc_fragment((rows,), "int32")
            T.copy(X[bx * rows, 0], x)
            for t in T.serial(k):
                T.reduce_max(x, best, dim=1)
                for i, j in T.Parallel(rows, n):
                    places[i, j] = T.if_then_else(x[i, j] == best[i], j, n)
                T.reduce_min(places, place, dim=1)
                for i, j in T.Parallel(rows, n):
                    x[i, j] = T.if_then_else(j == place[i], LEAST, x[i, j])
                for i in T.Parallel(rows):
                    V[bx * rows + i, t] = best[i]
                    P[bx * rows + i, t] = place[i]

    return main


def gating(m: int, experts: int, k: int, rows: int) -> PrimFunc:
    """Return weights and numbers of the ``k`` experts of each token, and how often each is."""

    @T.prim_func
    def main(
        X: T.Tensor((m, experts), FLOAT),
        W: T.Tensor((m, k), FLOAT),
        E: T.Tensor((m, k), "int32"),
        Count: T.Tensor((experts,), "int32"),
    ) -> None:
        with T.Kernel(T.ceildiv(m, rows), threads=128) as bx:
            x = T.alloc_fragment((rows, experts), FLOAT)
            places = T.alloc_fragment((rows, experts), "int32")
            most = T.alloc_fragment((rows,), FLOAT)
            total = T.alloc_fragment((rows,), FLOAT)
            best = T.alloc_fragment((rows,), FLOAT)
            place = T.alloc_fragment((rows,), "int32")
            T.copy(X[bx * rows, 0], x)
            T.reduce_max(x, most, dim=1)
            for i, j in T.Parallel(rows, experts):
                x[i, j] = T.exp(x[i, j] - most[i])
            T.reduce_sum(x, total, dim=1)
            for t in T.serial(k):
                T.reduce_max(x, best, dim=1)
                for i, j in T.Parallel(rows, experts):
                    places[i, j] = T.if_then_else(x[i, j] == best[i], j, experts)
                T.reduce_min(places, place, dim=1)
                for i, j in T.Parallel(rows, experts):
                    x[i, j] = T.if_then_else(j == place[i], -1.0, x[i, j])
                for i in T.Parallel(rows):
                    W[bx * rows + i, t] = best[i] / total[i]
                    E[bx * rows + i, t] = place[i]
                    T.atomic_add(Count[place[i]], 1)

    return main


def permuted(tokens: int, n: int, k: int, rows: int) -> PrimFunc:
    """Return the rows of tokens in the order of their experts: ``Place`` says where each goes."""

    @T.prim_func
    def main(
        X: T.Tensor((tokens, n), FLOAT),
        Place: T.Tensor((tokens, k), "int32"),
        Y: T.Tensor((tokens * k, n), FLOAT),
    ) -> None:
        with T.Kernel(T.ceildiv(tokens, rows), threads=128) as bx:
            for i in T.serial(rows):
                for t in T.serial(k):
                    for j in T.Parallel(n):
                        Y[Place[bx * rows + i, t], j] = X[bx * rows + i, j]

    return main


def log_sum_exp(m: int, n: int, rows: int, columns: int) -> PrimFunc:
    """Return the logarithms of the sums of the exponentials of rows, in one pass over blocks."""

    @T.prim_func
    def main(X: T.Tensor((m, n), FLOAT), Y: T.Tensor((m,), FLOAT)) -> None:
        with T.Kernel(T.ceildiv(m, rows), threads=128) as bx:
            x = T.alloc_fragment((rows, columns), FLOAT)
            most = T.alloc_fragment((rows,), FLOAT)
            before = T.alloc_fragment((rows,), FLOAT)
            part = T.alloc_fragment((rows,), FLOAT)
            total = T.alloc_fragment((rows,), FLOAT)
            T.fill(most, LEAST)
            T.clear(total)
            for ko in T.Pipelined(T.ceildiv(n, columns), num_stages=2):
                for i, j in T.Parallel(rows, columns):
                    at = ko * columns + j
                    x[i, j] = T.if_then_else(at < n, X[bx * rows + i, at], LEAST)
                T.copy(most, before)
                T.reduce_max(x, most, dim=1, clear=False)
                for i, j in T.Parallel(rows, columns):
                    x[i, j] = T.exp(x[i, j] - most[i])
                T.reduce_sum(x, part, dim=1)
                for i in T.Parallel(rows):
                    total[i] = total[i] * T.exp(before[i] - most[i]) + part[i]
            for i in T.Parallel(rows):
                Y[bx * rows + i] = most[i] + T.log(total[i])

    return main


def cross_entropy(m: int, n: int, columns: int) -> PrimFunc:
    """Return the losses of rows of logits with labels, and the gradients of their sum."""

    @T.prim_func
    def main(
        X: T.Tensor((m, n), FLOAT),
        Label: T.Tensor((m,), "int32"),
        Loss: T.Tensor((m,), FLOAT),
        DX: T.Tensor((m, n), FLOAT),
    ) -> None:
        with T.Kernel(m, threads=128) as row:
            x = T.alloc_fragment((columns,), FLOAT)
            most = T.alloc_fragment((1,), FLOAT)
            before = T.alloc_fragment((1,), FLOAT)
            part = T.alloc_fragment((1,), FLOAT)
            total = T.alloc_fragment((1,), FLOAT)
            T.fill(most, LEAST)
            T.clear(total)
            for ko in T.serial(T.ceildiv(n, columns)):
                for j in T.Parallel(columns):
                    x[j] = T.if_then_else(ko * columns + j < n, X[row, ko * columns + j], LEAST)
                before[0] = most[0]
                T.reduce_max(x, most, dim=0, clear=False)
                for j in T.Parallel(columns):
                    x[j] = T.exp(x[j] - most[0])
                T.reduce_sum(x, part, dim=0)
                total[0] = total[0] * T.exp(before[0] - most[0]) + part[0]
            Loss[row] = most[0] + T.log(total[0]) - X[row, Label[row]]
            for ko in T.serial(T.ceildiv(n, columns)):
                for j in T.Parallel(columns):
                    if ko * columns + j < n:
                        DX[row, ko * columns + j] = T.exp(
                            X[row, ko * columns + j] - most[0]
                        ) / total[0] - T.if_then_else(ko * columns + j == Label[row], 1.0, 0.0)

    return main


# --- weights and activations of 8 bits ------------------------------------------------------------


def normalized_bytes(m: int, n: int, rows: int, dtype: str) -> PrimFunc:
    """Return RMS-normalised rows in ``dtype`` of 8 bits, each with its own scale."""
    most = 127.0 if dtype == "int8" else 448.0

    @T.prim_func
    def main(
        X: T.Tensor((m, n), FLOAT),
        W: T.Tensor((n,), FLOAT),
        Q: T.Tensor((m, n), dtype),
        S: T.Tensor((m,), FLOAT),
    ) -> None:
        with T.Kernel(T.ceildiv(m, rows), threads=128) as bx:
            x = T.alloc_fragment((rows, n), FLOAT)
            square = T.alloc_fragment((rows, n), FLOAT)
            total = T.alloc_fragment((rows,), FLOAT)
            largest = T.alloc_fragment((rows,), FLOAT)
            T.copy(X[bx * rows, 0], x)
            for i, j in T.Parallel(rows, n):
                square[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(square, total, dim=1)
            for i, j in T.Parallel(rows, n):
                x[i, j] = x[i, j] * T.rsqrt(total[i] / n + 1e-6) * W[j]
            T.reduce_absmax(x, largest, dim=1)
            for i in T.Parallel(rows):
                largest[i] = T.max(largest[i], 1e-10) / most
                S[bx * rows + i] = largest[i]
            for i, j in T.Parallel(rows, n):
                if dtype == "int8":
                    Q[bx * rows + i, j] = T.cast(T.round(x[i, j] / largest[i]), "int8")
                else:
                    Q[bx * rows + i, j] = T.cast(x[i, j] / largest[i], dtype)

    return main


def int8_columns(m: int, n: int, k: int, block_m: int) -> PrimFunc:
    """Return A @ W.T in bfloat16, W of 8 bits with a scale per row."""
    block_n, block_k = 64, 128

    @T.prim_func
    def main(
        A: T.Tensor((m, k), "bfloat16"),
        W: T.Tensor((n, k), "int8"),
        S: T.Tensor((n,), "bfloat16"),
        C: T.Tensor((m, n), "bfloat16"),
    ) -> None:
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=128) as (bx, by):
            a = T.alloc_shared((block_m, block_k), "bfloat16")
            w = T.alloc_shared((block_n, block_k), "int8")
            b = T.alloc_shared((block_n, block_k), "bfloat16")
            c = T.alloc_fragment((block_m, block_n), FLOAT)
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(k, block_k), num_stages=2):
                T.copy(A[by * block_m, ko * block_k], a)
                T.copy(W[bx * block_n, ko * block_k], w)
                T.copy(w, b)
                T.gemm(a, b, c, transpose_B=True)
            for i, j in T.Parallel(block_m, block_n):
                c[i, j] = c[i, j] * T.cast(S[bx * block_n + j], FLOAT)
            T.copy(c, C[by * block_m, bx * block_n])

    return main


# --- optimisers -----------------------------------------------------------------------------------


def adam(n: int, block: int) -> PrimFunc:
    """Update weights by a step of AdamW; ``Step`` holds the two corrections of the bias."""

    @T.prim_func
    def main(
        G: T.Tensor((n,), FLOAT),
        Step: T.Tensor((2,), FLOAT),
        W: T.Tensor((n,), FLOAT),
        M: T.Tensor((n,), FLOAT),
        V: T.Tensor((n,), FLOAT),
    ) -> None:
        with T.Kernel(T.ceildiv(n, block), threads=128) as bx:
            for i in T.Parallel(block):
                at = bx * block + i
                if at < n:
                    g = G[at]
                    mean = M[at] * 0.9 + g * 0.1
                    square = V[at] * 0.999 + g * g * 0.001
                    M[at] = mean
                    V[at] = square
                    W[at] = W[at] * (1.0 - 1e-3 * 0.01) - 1e-3 * (mean / Step[0]) / (
                        T.sqrt(square / Step[1]) + 1e-8
                    )

    return main


# --- planes ---------------------------------------------------------------------------------------


def convolved(n: int, c: int, h: int, w: int, f: int, stride: int) -> PrimFunc:
    """Return a 3 x 3 convolution, channels last, as a product with gathered pixels."""
    oh, ow = (h - 1) // stride + 1, (w - 1) // stride + 1
    block_m, block_n, block_k = 64, 64, 32
    pixels, depth = n * oh * ow, 9 * c

    @T.prim_func
    def main(
        X: T.Tensor((n, h, w, c), FLOAT),
        F: T.Tensor((depth, f), FLOAT),
        Y: T.Tensor((pixels, f), FLOAT),
    ) -> None:
        with T.Kernel(T.ceildiv(f, block_n), T.ceildiv(pixels, block_m), threads=128) as (bx, by):
            a = T.alloc_shared((block_m, block_k), FLOAT)
            b = T.alloc_shared((block_k, block_n), FLOAT)
            acc = T.alloc_fragment((block_m, block_n), FLOAT)
            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(depth, block_k), num_stages=2):
                for i, j in T.Parallel(block_m, block_k):
                    k = ko * block_k + j
                    pixel = by * block_m + i
                    y = pixel % (oh * ow) // ow * stride + k // (3 * c) - 1
                    x = pixel % ow * stride + k // c % 3 - 1
                    is_inside = y >= 0 and x >= 0 and y < h and x < w and pixel < pixels
                    a[i, j] = T.if_then_else(is_inside, X[pixel // (oh * ow), y, x, k % c], 0.0)
                T.copy(F[ko * block_k, bx * block_n], b)
                T.gemm(a, b, acc)
            T.copy(acc, Y[by * block_m, bx * block_n])

    return main


def bilinear(n: int, c: int, h: int, w: int) -> PrimFunc:
    """Return planes of twice the size, each pixel of four neighbours."""

    @T.prim_func
    def main(X: T.Tensor((n, c, h, w), FLOAT), Y: T.Tensor((n, c, 2 * h, 2 * w), FLOAT)) -> None:
        with T.Kernel(c, n, threads=128) as (b, a):
            for i, j in T.Parallel(2 * h, 2 * w):
                y = T.max((T.cast(i, FLOAT) + 0.5) * 0.5 - 0.5, 0.0)
                x = T.max((T.cast(j, FLOAT) + 0.5) * 0.5 - 0.5, 0.0)
                top = T.cast(y, "int32")
                left = T.cast(x, "int32")
                down = y - T.cast(top, FLOAT)
                right = x - T.cast(left, FLOAT)
                bottom = T.min(top + 1, h - 1)
                beside = T.min(left + 1, w - 1)
                Y[a, b, i, j] = (1.0 - down) * (
                    X[a, b, top, left] * (1.0 - right) + X[a, b, top, beside] * right
                ) + down * (X[a, b, bottom, left] * (1.0 - right) + X[a, b, bottom, beside] * right)

    return main


def small_products(count: int, size: int, each: int) -> PrimFunc:
    """Return the products of many small matrices."""

    @T.prim_func
    def main(
        A: T.Tensor((count, size, size), FLOAT),
        B: T.Tensor((count, size, size), FLOAT),
        C: T.Tensor((count, size, size), FLOAT),
    ) -> None:
        with T.Kernel(T.ceildiv(count, each), threads=128) as bx:
            a = T.alloc_shared((size, size), FLOAT)
            b = T.alloc_shared((size, size), FLOAT)
            c = T.alloc_fragment((size, size), FLOAT)
            for t in T.serial(each):
                T.copy(A[bx * each + t, 0, 0], a)
                T.copy(B[bx * each + t, 0, 0], b)
                T.gemm(a, b, c, clear_accum=True)
                T.copy(c, C[bx * each + t, 0, 0])

    return main
