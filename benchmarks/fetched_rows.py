"""Products of few rows whose next rows of weights are fetched to L2, or to L1, beside torch.

    python -m benchmarks.fetched_rows [--json FILE] [--rounds 9] [--match REGEX]

Rows of the library's `gemm` (weights read in place) and of experts, weights as (N, K) and (K, N).
"Before" fetches to L1, which the rows in use fill already, the more so where another process runs
on the same core. One thread of the CPU, its time, medians, taken by turns in one process. Every
result is compared with float64's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.nn.functional import linear

from benchmarks.against_torch import Case, before_and_now, one_thread, options, write
from tilecore import kernels
from tilecore.ir.nodes import PrimFunc
from tilecore.lowering.cpu import prefetch
from tilecore.lowering.cpu.gemm import few_rows

SHAPES = ((4096, 4096), (4096, 1024), (1024, 1024), (1024, 4096))  # N, K
EXPERTS = ((8, 512, 1024, 1024), (128, 1024, 768, 1024))  # their number, rows of all, N, K


def to_l1() -> AbstractContextManager[Any]:
    """Enter code that fetches to L1."""
    instead = SimpleNamespace(fetch=prefetch.fetch, L2=prefetch.L1)
    return mock.patch.object(few_rows, "prefetch", instead)


def program(kernel: str, fields: dict[str, Any], knobs: dict[str, Any]) -> PrimFunc:
    """Return a program of the library."""
    definition = kernels.get(kernel)
    return definition.program(
        definition.parse_problem(fields), {**definition.default_config(), **knobs}
    )


def rows(dtype: str, turned: bool) -> Iterator[Case]:
    """Yield products of few rows, weights as (N, K) where they are turned."""
    kind = getattr(torch, dtype)
    for n, k in SHAPES:
        for m in (1, 4, 16, 32, 64) if turned else (1, 4, 8):
            x = torch.randn(m, k).to(kind)
            w = torch.randn((n, k) if turned else (k, n)).to(kind)
            given = {"m": m, "n": n, "k": k, "transpose_b": turned, "dtype": dtype}
            blocks = {"block_M": 64, "block_N": 128 if turned else n, "block_K": k}
            func = program("gemm", {**given, "out_dtype": dtype}, {**blocks, "pack_b": "none"})
            seen = w.T if turned else w
            layout = "(N, K)" if turned else "(K, N)"
            yield Case(
                f"{dtype} {m}x{n}x{k} {layout}", dtype, func, [x, w],
                x.double() @ seen.double(), lambda x=x, w=seen: linear(x, w.T), kind,
            )  # fmt: skip


def experts(dtype: str) -> Iterator[Case]:
    """Yield products of groups of random sizes, weights as (N, K)."""
    kind = getattr(torch, dtype)
    for count, m, n, k in EXPERTS:
        x, w = torch.randn(m, k).to(kind), torch.randn(count, n, k).to(kind)
        ends = torch.randint(count, (m,)).bincount(minlength=count).cumsum(0)
        bounds = torch.cat([torch.zeros(1), ends]).int()
        pieces = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), w, strict=True))
        given = {"experts": count, "m": m, "n": n, "k": k, "transpose_b": True, "dtype": dtype}
        func = program(
            "grouped_gemm", {**given, "out_dtype": dtype}, {"block_M": 14, "block_N": 128}
        )

        def rival(x: torch.Tensor = x, pieces: Any = pieces) -> torch.Tensor:
            return torch.cat([linear(x[i:j], one) for i, j, one in pieces])

        exact = torch.cat([x[i:j].double() @ one.double().T for i, j, one in pieces])
        label = f"{dtype} {m} rows of {count} experts, {n}x{k}"
        yield Case(label, dtype, func, [x, w, bounds], exact, rival, kind)


def main() -> None:
    """Measure every case and print it."""
    given = options(__doc__).parse_args()
    one_thread()
    torch.manual_seed(0)
    cases = (
        case
        for dtype in ("float32", "bfloat16")
        for found in (rows(dtype, True), rows(dtype, False), experts(dtype))
        for case in found
    )
    write(before_and_now(cases, given, to_l1, 46), given.json)


if __name__ == "__main__":
    main()
