"""Programs that pad rows for tensor cores, on a CPU, before and now, beside torch.

    python -m benchmarks.padded_rows [--json FILE] [--rounds 7] [--match REGEX]

Decoding with grouped heads as in TileLang's examples/flash_decoding (the heads of a group are the
first of 64 rows) and a token's product with weights as in TileFoundry's models (the first of 16).
"Before" is what the passes leave without passes/live_rows.py. One thread of the CPU, its time,
medians, taken by turns in one process. Every result is compared with float64's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from unittest import mock

import torch

import tilecore.language as T
from benchmarks.against_torch import Case, before_and_now, one_thread, options, write
from tilecore.ir.nodes import PrimFunc
from tilecore.passes import live_rows

HEADS, GROUPS, DIM, PADDED_HEADS, KEYS_AT_ONCE = 32, 8, 128, 64, 64
PADDED_TOKEN, COLUMNS, DEPTH = 16, 128, 128
LOG2E = 1.44269504


def decoding(batch: int, keys: int, dtype: str) -> PrimFunc:
    """Return attention of one token each, whose heads are the first rows of their tiles."""
    rows, block, live = PADDED_HEADS, KEYS_AT_ONCE, HEADS // GROUPS
    scale = DIM**-0.5 * LOG2E

    @T.prim_func
    def main(
        Q: T.Tensor((batch, HEADS, DIM), dtype),
        K: T.Tensor((batch, keys, GROUPS, DIM), dtype),
        V: T.Tensor((batch, keys, GROUPS, DIM), dtype),
        Out: T.Tensor((batch, HEADS, DIM), dtype),
    ) -> None:
        with T.Kernel(batch, GROUPS, threads=128) as (b, g):
            q = T.alloc_shared((rows, DIM), dtype)
            k = T.alloc_shared((block, DIM), dtype)
            v = T.alloc_shared((block, DIM), dtype)
            out = T.alloc_shared((live, DIM), dtype)
            s = T.alloc_fragment((rows, block), "float32")
            weights = T.alloc_fragment((rows, block), dtype)
            o = T.alloc_fragment((rows, DIM), "float32")
            top = T.alloc_fragment((rows,), "float32")
            before = T.alloc_fragment((rows,), "float32")
            shrink = T.alloc_fragment((rows,), "float32")
            part = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            T.copy(Q[b, g * live : g * live + rows, :], q)
            T.clear(o)
            T.clear(total)
            T.fill(top, -T.infinity("float32"))
            for step in T.Pipelined(T.ceildiv(keys, block), num_stages=2):
                T.copy(K[b, step * block : (step + 1) * block, g, :], k)
                T.clear(s)
                T.gemm(q, k, s, transpose_B=True)
                T.copy(top, before)
                T.reduce_max(s, top, dim=1, clear=False)
                for i in T.Parallel(rows):
                    shrink[i] = T.exp2(before[i] * scale - top[i] * scale)
                for i, j in T.Parallel(rows, block):
                    s[i, j] = T.exp2(s[i, j] * scale - top[i] * scale)
                T.reduce_sum(s, part, dim=1)
                for i in T.Parallel(rows):
                    total[i] = total[i] * shrink[i] + part[i]
                T.copy(s, weights)
                for i, j in T.Parallel(rows, DIM):
                    o[i, j] *= shrink[i]
                T.copy(V[b, step * block : (step + 1) * block, g, :], v)
                T.gemm(weights, v, o)
            for i, j in T.Parallel(rows, DIM):
                o[i, j] /= total[i]
            T.copy(o[:live, :], out)
            T.copy(out, Out[b, g * live : (g + 1) * live, :])

    return main


def token(k: int, n: int, dtype: str) -> PrimFunc:
    """Return ``y = x @ w``, x the first row of a tile that is not filled further."""

    @T.prim_func
    def main(
        X: T.Tensor((k,), "float32"),
        W: T.Tensor((k, n), dtype),
        Y: T.Tensor((n,), "float32"),
    ) -> None:
        with T.Kernel(n // COLUMNS, threads=128) as block:
            x = T.alloc_shared((PADDED_TOKEN, k), dtype)
            w = T.alloc_shared((DEPTH, COLUMNS), dtype)
            acc = T.alloc_fragment((PADDED_TOKEN, COLUMNS), "float32")
            out = T.alloc_shared((PADDED_TOKEN, COLUMNS), "float32")
            for j in T.Parallel(k):
                x[0, j] = T.cast(X[j], dtype)
            T.clear(acc)
            for ko in T.Pipelined(k // DEPTH, num_stages=3):
                T.copy(W[ko * DEPTH : (ko + 1) * DEPTH, block * COLUMNS : (block + 1) * COLUMNS], w)
                T.gemm(x[:, ko * DEPTH : (ko + 1) * DEPTH], w, acc)
            T.copy(acc, out)
            for j in T.Parallel(COLUMNS):
                Y[block * COLUMNS + j] = out[0, j]

    return main


def token_case(k_size: int, n: int, dtype: str) -> Case:
    """Return a token's product with weights of a type."""
    kind = getattr(torch, dtype)
    x, w = torch.randn(k_size).to(kind), torch.randn(k_size, n).to(kind)
    return Case(
        f"{dtype} token, ({k_size}, {n}) weights", dtype, token(k_size, n, dtype), [x.float(), w],
        x.double() @ w.double(), partial(torch.mv, w.T, x), torch.float32,
    )  # fmt: skip


def decoding_case(batch: int, keys: int, dtype: str) -> Case:
    """Return attention of one query per sequence."""
    kind = getattr(torch, dtype)
    q = torch.randn(batch, HEADS, DIM).to(kind)
    k, v = (torch.randn(batch, keys, GROUPS, DIM).to(kind) for _ in range(2))
    given = [q[:, :, None], k.transpose(1, 2), v.transpose(1, 2)]
    attention = partial(torch.nn.functional.scaled_dot_product_attention, enable_gqa=True)
    exact = attention(*(x.double() for x in given))[:, :, 0]
    return Case(
        f"{dtype} decoding, {batch} x {keys} keys", dtype, decoding(batch, keys, dtype),
        [q, k, v], exact, partial(attention, *given), kind,
    )  # fmt: skip


def cases() -> Iterator[Case]:
    """Yield decoding, and tokens."""
    for dtype in ("float16", "bfloat16", "float32"):
        for batch, keys in ((1, 8192), (8, 1024)):
            yield decoding_case(batch, keys, dtype)
    for dtype in ("bfloat16", "float32"):
        for k_size, n in ((2048, 4096), (4096, 2048)):
            yield token_case(k_size, n, dtype)


def main() -> None:
    """Time every program both ways and its rival, print, write."""
    args = options(__doc__).parse_args()
    one_thread()
    without = partial(mock.patch.object, live_rows, "cut", lambda launch, _: launch)
    write(before_and_now(cases(), args, without, 38), args.json)


if __name__ == "__main__":
    main()
