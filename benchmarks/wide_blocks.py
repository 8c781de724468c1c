"""Products of few rows with weights as (K, N) in joined blocks, before and now, beside torch.

    python -m benchmarks.wide_blocks [--json FILE] [--rounds 7] [--match REGEX]

The quickstart of benchmarks.few_rows and the token of benchmarks.padded_rows, whose blocks take 128
columns. "Before" is what the passes leave without passes/wide_blocks.py. One thread of the CPU, its
time, medians, taken by turns in one process. Every result is compared with float64's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from unittest import mock

import torch

import tilecore.language as T
from benchmarks.against_torch import Case, before_and_now, one_thread, options, write
from benchmarks.few_rows import K, N, product
from benchmarks.padded_rows import token_case
from tilecore.passes import wide_blocks

ROWS = (1, 2, 4, 8)
TOKENS = ((2048, 4096), (4096, 2048), (4096, 14336))
DTYPES = ("float32", "bfloat16")


def cases() -> Iterator[Case]:
    """Yield products of few rows, by known and dynamic numbers, and tokens."""
    for dtype in DTYPES:
        kind = getattr(torch, dtype)
        weights = torch.randn(K, N).to(kind)
        # torch has no fast path for (K, N) in 16 bits: it gets the rows that it likes.
        other = weights if dtype == "float32" else weights.T.contiguous().T
        for known in ("dynamic", "known"):
            for rows in ROWS:
                a = torch.randn(rows, K).to(kind)
                m = T.dynamic("m") if known == "dynamic" else rows
                yield Case(
                    f"{dtype}, {known}, {rows} rows", dtype, product(m, dtype, transposed=False),
                    [a, weights], a.double() @ weights.double(),
                    partial(torch.mm, a, other, out=torch.empty(rows, N, dtype=kind)), kind,
                )  # fmt: skip
        yield from (token_case(k, n, dtype) for k, n in TOKENS)


def main() -> None:
    """Time every program both ways and its rival, print, write."""
    args = options(__doc__).parse_args()
    one_thread()
    without = partial(mock.patch.object, wide_blocks, "widened", return_value=None)
    write(before_and_now(cases(), args, without, 38), args.json)


if __name__ == "__main__":
    main()
