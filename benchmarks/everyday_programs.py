"""Programs as users write them, on a CPU beside torch: one thread, medians, taken by turns.

    python -m benchmarks.everyday_programs [--json FILE] [--rounds 7] [--match REGEX]

Weights of 4 bits with zero points, depthwise convolutions, histograms, the gradients of a layer
norm, pooling, look-ups, rotations, sums that run on. Nothing is tuned; every result is compared
with torch's, in float64 where floats are computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import tilecore
import tilecore.language as T
from benchmarks.against_torch import one_thread, options, timed, write
from tilecore.ir.nodes import PrimFunc

FLOAT = "float32"


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A program, its inputs, what torch does with them, and the exact outputs.

    ``zeroed``: the program adds to its outputs, which are cleared before every call.
    """

    label: str
    program: PrimFunc
    inputs: list[torch.Tensor]
    rival: Callable[[], Any]
    exact: list[torch.Tensor]
    zeroed: bool = False
    outputs: list[torch.Tensor] = field(default_factory=list)


# --- weights of 4 bits ----------------------------------------------------------------------------


def int4_rows(m: int, n: int, k: int, group: int, block_m: int, dtype: str = FLOAT) -> PrimFunc:
    """Return A @ W.T, two weights of a row of W to a byte, a scale and a zero point per group."""
    block_n, block_k = 64, 128

    @T.prim_func
    def main(
        A: T.Tensor((m, k), dtype),  # type: ignore[valid-type]
        W: T.Tensor((n, k // 2), "uint8"),  # type: ignore[valid-type]
        S: T.Tensor((n, k // group), FLOAT),  # type: ignore[valid-type]
        Z: T.Tensor((n, k // group), FLOAT),  # type: ignore[valid-type]
        C: T.Tensor((m, n), FLOAT),  # type: ignore[valid-type]
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
        A: T.Tensor((m, k), FLOAT),  # type: ignore[valid-type]
        W: T.Tensor((k // 8, n), "int32"),  # type: ignore[valid-type]
        S: T.Tensor((k // group, n), FLOAT),  # type: ignore[valid-type]
        Z: T.Tensor((k // group, n // 8), "int32"),  # type: ignore[valid-type]
        C: T.Tensor((m, n), FLOAT),  # type: ignore[valid-type]
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


def int4_cases() -> Iterator[Case]:
    """Yield products with weights of 4 bits; torch has them in float32, or in its own packing."""
    n, k = 4096, 4096
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    codes = torch.randint(0, 16, (n, k), dtype=torch.int32)
    packed = (codes[:, ::2] | (codes[:, 1::2] << 4)).to(torch.uint8)
    words = (codes.T.reshape(k // 8, 8, n) << shifts[None, :, None]).sum(1, dtype=torch.int32)
    for m, block_m, group in ((1, 1, 128), (1, 1, 32), (16, 16, 128), (64, 64, 128)):
        scales, zeros = torch.rand(n, k // group) / 8, torch.randint(0, 16, (n, k // group)).float()
        wide = [x.repeat_interleave(group, 1) for x in (scales, zeros)]
        weights, a = (codes - wide[1]) * wide[0], torch.randn(m, k)
        points = zeros.T.int().reshape(k // group, n // 8, 8) << shifts
        exact = [a.double() @ weights.double().T]
        own = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 2)
        pairs = torch.stack((scales, (8 - zeros) * scales), 2).transpose(0, 1).contiguous()
        given = [a, packed, scales, zeros]
        label = f"group {group}, M={m}"

        def dense(a: Any = a, weights: Any = weights) -> Any:
            return a @ weights.T

        rows = int4_rows(m, n, k, group, block_m)
        yield Case(f"int4 rows, {label}, dense", rows, given, dense, exact)
        halves = int4_rows(m, n, k, group, block_m, "bfloat16")
        given = [a.bfloat16(), packed, scales, zeros]
        ours = [given[0].double() @ weights.bfloat16().double().T]

        rounded, pairs = weights.bfloat16(), pairs.bfloat16()

        def dense16(a: Any = given[0], weights: Any = rounded) -> Any:
            return a @ weights.T

        def int4(a: Any = given[0], own: Any = own, group: int = group, pairs: Any = pairs) -> Any:
            return torch.ops.aten._weight_int4pack_mm_for_cpu(a, own, group, pairs)

        yield Case(f"int4 rows, bfloat16, {label}, dense", halves, given, dense16, ours)
        yield Case(f"int4 rows, bfloat16, {label}, torch's int4", halves, given, int4, ours)
        given = [a, words, scales.T.contiguous(), points.sum(2, dtype=torch.int32)]
        columns = int4_words(m, n, k, group, block_m)
        yield Case(f"int4 words, {label}, dense", columns, given, dense, exact)


# --- depthwise convolution ------------------------------------------------------------------------


def depthwise_nhwc(n: int, h: int, w: int, c: int, stride: int, block_w: int = 8) -> PrimFunc:
    """Return a depthwise 3 x 3 convolution with channels last, a row's pixels in blocks."""
    oh, ow = (h - 1) // stride + 1, (w - 1) // stride + 1

    @T.prim_func
    def main(
        X: T.Tensor((n, h, w, c), FLOAT),  # type: ignore[valid-type]
        F: T.Tensor((3, 3, c), FLOAT),  # type: ignore[valid-type]
        Y: T.Tensor((n, oh, ow, c), FLOAT),  # type: ignore[valid-type]
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
        X: T.Tensor((n, c, h, w), FLOAT),  # type: ignore[valid-type]
        F: T.Tensor((c, 3, 3), FLOAT),  # type: ignore[valid-type]
        Y: T.Tensor((n, c, oh, ow), FLOAT),  # type: ignore[valid-type]
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


def depthwise_cases() -> Iterator[Case]:
    """Yield convolutions as in MobileNets."""
    conv = torch.nn.functional.conv2d
    for c, size, stride in ((144, 56, 1), (144, 56, 2), (384, 14, 1), (32, 112, 1), (64, 75, 2)):
        x, f = torch.randn(1, c, size, size), torch.randn(c, 1, 3, 3)
        exact = conv(x.double(), f.double(), stride=stride, padding=1, groups=c)
        last = x.permute(0, 2, 3, 1).contiguous()

        def rival(x: Any = x, f: Any = f, s: int = stride, c: int = c) -> Any:
            return conv(x, f, stride=s, padding=1, groups=c)

        x_last = x.contiguous(memory_format=torch.channels_last)
        f_last = f.contiguous(memory_format=torch.channels_last)
        yield Case(
            f"depthwise NHWC {size}x{size}x{c}, stride {stride}",
            depthwise_nhwc(1, size, size, c, stride),
            [last, f[:, 0].permute(1, 2, 0).contiguous()],
            lambda x=x_last, f=f_last, r=rival: r(x, f),
            [exact.permute(0, 2, 3, 1)],
        )
        yield Case(
            f"depthwise NCHW {c}x{size}x{size}, stride {stride}",
            depthwise_nchw(1, c, size, size, stride),
            [x, f[:, 0].contiguous()],
            rival,
            [exact],
        )


# --- histograms -----------------------------------------------------------------------------------


def histogram(n: int, bins: int, block: int, shared: bool) -> PrimFunc:
    """Return how often numbers occur, counted in a table per block or in the result itself."""

    @T.prim_func
    def main(X: T.Tensor((n,), "int32"), H: T.Tensor((bins,), "int32")) -> None:  # type: ignore[valid-type]
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


def histogram_cases() -> Iterator[Case]:
    """Yield histograms of integers."""
    n = 1 << 20
    for bins in (64, 256, 4096):
        x = torch.randint(0, bins, (n,), dtype=torch.int32)
        exact = [torch.bincount(x, minlength=bins)]
        for shared in (True, False):
            yield Case(
                f"histogram, {bins} bins, {'shared' if shared else 'global'}",
                histogram(n, bins, 8192, shared),
                [x],
                lambda x=x, b=bins: torch.bincount(x, minlength=b),
                exact,
                True,
            )


# --- the gradients of a layer norm ----------------------------------------------------------------


def layer_norm_gradients(m: int, n: int, rows: int) -> PrimFunc:
    """Return dx, dgamma and dbeta of rows in blocks."""

    @T.prim_func
    def main(
        DY: T.Tensor((m, n), FLOAT),  # type: ignore[valid-type]
        X: T.Tensor((m, n), FLOAT),  # type: ignore[valid-type]
        G: T.Tensor((n,), FLOAT),  # type: ignore[valid-type]
        Mean: T.Tensor((m,), FLOAT),  # type: ignore[valid-type]
        Rstd: T.Tensor((m,), FLOAT),  # type: ignore[valid-type]
        DX: T.Tensor((m, n), FLOAT),  # type: ignore[valid-type]
        DG: T.Tensor((n,), FLOAT),  # type: ignore[valid-type]
        DB: T.Tensor((n,), FLOAT),  # type: ignore[valid-type]
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


def layer_norm_cases() -> Iterator[Case]:
    """Yield the gradients of layer norms."""
    for m, n, rows in ((4096, 768, 16), (4096, 768, 4), (2048, 4096, 8), (2048, 1000, 16)):
        x, dy, g, b = torch.randn(m, n), torch.randn(m, n), torch.rand(n), torch.randn(n)
        mean, rstd = x.mean(1), (x.var(1, unbiased=False) + 1e-5).rsqrt()

        def gradients(x: Any, dy: Any, g: Any, mean: Any, rstd: Any, b: Any = b, n: int = n) -> Any:
            return torch.ops.aten.native_layer_norm_backward(
                dy, x, [n], mean[:, None], rstd[:, None], g, b, [True, True, True]
            )

        given = [x, dy, g, mean, rstd]
        exact = list(gradients(*(t.double() for t in given), b=b.double()))
        yield Case(
            f"layer norm gradients {m}x{n}, blocks of {rows}",
            layer_norm_gradients(m, n, rows),
            [dy, x, g, mean, rstd],
            lambda given=given, f=gradients: f(*given),
            exact,
            True,
        )


# --- others ---------------------------------------------------------------------------------------


def max_pool(n: int, c: int, h: int, w: int, block_h: int = 8) -> PrimFunc:
    """Return the largest of 3 x 3 pixels, stride 2, of planes."""
    oh, ow = (h - 1) // 2 + 1, (w - 1) // 2 + 1

    @T.prim_func
    def main(X: T.Tensor((n, c, h, w), FLOAT), Y: T.Tensor((n, c, oh, ow), FLOAT)) -> None:  # type: ignore[valid-type]
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
        At: T.Tensor((tokens,), "int32"),  # type: ignore[valid-type]
        E: T.Tensor((words, n), FLOAT),  # type: ignore[valid-type]
        Y: T.Tensor((tokens, n), FLOAT),  # type: ignore[valid-type]
    ) -> None:
        with T.Kernel(T.ceildiv(tokens, rows), threads=128) as bx:
            for i, j in T.Parallel(rows, n):
                Y[bx * rows + i, j] = E[At[bx * rows + i], j]

    return main


def rotary_halves(tokens: int, heads: int, d: int) -> PrimFunc:
    """Return rotated heads, pairs half a head apart."""

    @T.prim_func
    def main(
        X: T.Tensor((tokens, heads, d), FLOAT),  # type: ignore[valid-type]
        C: T.Tensor((tokens, d // 2), FLOAT),  # type: ignore[valid-type]
        S: T.Tensor((tokens, d // 2), FLOAT),  # type: ignore[valid-type]
        Y: T.Tensor((tokens, heads, d), FLOAT),  # type: ignore[valid-type]
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
        X: T.Tensor((tokens, heads, d), FLOAT),  # type: ignore[valid-type]
        C: T.Tensor((tokens, d // 2), FLOAT),  # type: ignore[valid-type]
        S: T.Tensor((tokens, d // 2), FLOAT),  # type: ignore[valid-type]
        Y: T.Tensor((tokens, heads, d), FLOAT),  # type: ignore[valid-type]
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
        X: T.Tensor((n, groups, per, size), FLOAT),  # type: ignore[valid-type]
        W: T.Tensor((groups, per), FLOAT),  # type: ignore[valid-type]
        B: T.Tensor((groups, per), FLOAT),  # type: ignore[valid-type]
        Y: T.Tensor((n, groups, per, size), FLOAT),  # type: ignore[valid-type]
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
    def main(X: T.Tensor((m, n), FLOAT), Y: T.Tensor((m, n), FLOAT)) -> None:  # type: ignore[valid-type]
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
        X: T.Tensor((m, n), FLOAT),  # type: ignore[valid-type]
        B: T.Tensor((n,), FLOAT),  # type: ignore[valid-type]
        Y: T.Tensor((m, n), FLOAT),  # type: ignore[valid-type]
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
    def main(X: T.Tensor((m, n), FLOAT), Y: T.Tensor((m,), "int32")) -> None:  # type: ignore[valid-type]
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
    def main(X: T.Tensor((m, n), FLOAT), Y: T.Tensor((n, m), FLOAT)) -> None:  # type: ignore[valid-type]
        with T.Kernel(T.ceildiv(n, columns), T.ceildiv(m, rows), threads=128) as (bx, by):
            for i, j in T.Parallel(rows, columns):
                Y[bx * columns + j, by * rows + i] = X[by * rows + i, bx * columns + j]

    return main


def upsampled(n: int, c: int, h: int, w: int) -> PrimFunc:
    """Return planes of twice the size, each pixel four times."""

    @T.prim_func
    def main(X: T.Tensor((n, c, h, w), FLOAT), Y: T.Tensor((n, c, 2 * h, 2 * w), FLOAT)) -> None:  # type: ignore[valid-type]
        with T.Kernel(c, n, threads=128) as (b, a):
            for i, j in T.Parallel(2 * h, 2 * w):
                Y[a, b, i, j] = X[a, b, i // 2, j // 2]

    return main


def other_cases() -> Iterator[Case]:
    """Yield other everyday programs."""
    f = torch.nn.functional
    x = torch.randn(1, 64, 112, 112)
    yield Case(
        "max pool 64x112x112",
        max_pool(1, 64, 112, 112),
        [x],
        lambda x=x: f.max_pool2d(x, 3, 2, 1),
        [f.max_pool2d(x, 3, 2, 1)],
    )
    table, at = torch.randn(32000, 1024), torch.randint(0, 32000, (2048,), dtype=torch.int32)
    yield Case(
        "embedding 2048x1024",
        embedding(2048, 32000, 1024, 8),
        [at, table],
        lambda t=table, a=at: f.embedding(a, t),
        [table[at]],
    )
    x = torch.randn(512, 32, 128)
    c, s = torch.rand(512, 64), torch.rand(512, 64)

    def halves(x: Any, c: Any, s: Any) -> Any:
        c, s = (torch.cat((t, t), 1)[:, None] for t in (c, s))
        return x * c + torch.cat((-x[..., 64:], x[..., :64]), -1) * s

    yield Case(
        "rotary halves 512x32x128",
        rotary_halves(512, 32, 128),
        [x, c, s],
        lambda a=(x, c, s): halves(*a),
        [halves(x, c, s)],
    )

    def pairs(x: Any, c: Any, s: Any) -> Any:
        a, b = x[..., ::2], x[..., 1::2]
        c, s = c[:, None], s[:, None]
        return torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)

    yield Case(
        "rotary pairs 512x32x128",
        rotary_pairs(512, 32, 128),
        [x, c, s],
        lambda a=(x, c, s): pairs(*a),
        [pairs(x, c, s)],
    )
    x, w, b = torch.randn(4, 256, 28 * 28), torch.randn(256), torch.randn(256)
    yield Case(
        "group norm 4x256x28x28",
        group_norm(4, 256, 784, 32),
        [x.view(4, 32, 8, 784), w.view(32, 8), b.view(32, 8)],
        lambda x=x, w=w, b=b: f.group_norm(x, 32, w, b),
        [f.group_norm(x.double(), 32, w.double(), b.double()).view(4, 32, 8, 784)],
    )
    x = torch.randn(1024, 2048)
    yield Case(
        "running sums 1024x2048",
        running_sums(1024, 2048, 4),
        [x],
        lambda x=x: torch.cumsum(x, 1),
        [torch.cumsum(x.double(), 1)],
    )
    for n in (4096, 3001):
        x, b = torch.randn(1024, n), torch.randn(n)
        yield Case(
            f"bias and gelu 1024x{n}",
            gelu(1024, n, 16, 256),
            [x, b],
            lambda x=x, b=b: f.gelu(x + b),
            [f.gelu((x + b).double())],
        )
    x = torch.randn(1024, 4096)
    yield Case(
        "argmax 1024x4096",
        argmax(1024, 4096, 4),
        [x],
        lambda x=x: torch.argmax(x, 1),
        [torch.argmax(x, 1)],
    )
    for m in (2048, 2000):
        x = torch.randn(m, m)
        yield Case(
            f"transposed stores {m}x{m}",
            transposed(m, m, 64, 64),
            [x],
            lambda x=x: x.T.contiguous(),
            [x.T],
        )
    x = torch.randn(1, 64, 56, 56)
    yield Case(
        "nearest upsampling 64x56x56",
        upsampled(1, 64, 56, 56),
        [x],
        lambda x=x: f.interpolate(x, scale_factor=2),
        [f.interpolate(x, scale_factor=2)],
    )


def cases() -> Iterator[Case]:
    """Yield all cases."""
    yield from int4_cases()
    yield from depthwise_cases()
    yield from histogram_cases()
    yield from layer_norm_cases()
    yield from other_cases()


def main() -> None:
    """Time every program and its rival, print, write."""
    args = options(__doc__).parse_args()
    one_thread()
    torch.manual_seed(0)
    found = []
    for case in cases():
        if not re.search(args.match, case.label):
            continue
        kernel = tilecore.compile(case.program)
        types = [p.dtype for p in case.program.params][len(case.inputs) :]
        outs = [
            torch.zeros(e.shape, dtype=getattr(torch, str(t)))
            for e, t in zip(case.exact, types, strict=True)
        ]

        def ours(kernel: Any = kernel, case: Case = case, outs: Any = outs) -> None:
            if case.zeroed:
                for out in outs[-2:]:
                    out.zero_()
            kernel(*case.inputs, *outs)

        ours()
        for out, exact in zip(outs, case.exact, strict=True):
            error = (out.double() - exact.double()).abs().max() / exact.double().abs().max()
            assert error.item() < 1e-4, (case.label, error)
        found.append(timed(case.label, {"ours": ours, "torch": case.rival}, args.rounds, 45))
    write(found, args.json)


if __name__ == "__main__":
    main()
