"""Products of few rows with weights as (K, N) in joined blocks, before and now, beside torch.

    python -m benchmarks.wide_blocks [--json FILE] [--rounds 7] [--match REGEX]

The quickstart of benchmarks.few_rows and the token of benchmarks.padded_rows, whose blocks take 128
columns. "Before" is what the passes leave without passes/wide_blocks.py. One thread of the CPU, its
time, medians, taken by turns in one process. Every result is compared with float64's.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import tilecore.language as T
from benchmarks.against_torch import one_thread, options, timed, write
from benchmarks.few_rows import K, N, product
from benchmarks.padded_rows import token
from tilecore import runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.ir.nodes import PrimFunc
from tilecore.passes import wide_blocks

ROWS = (1, 2, 4, 8)
TOKENS = ((2048, 4096), (4096, 2048), (4096, 14336))
DTYPES = ("float32", "bfloat16")
Case = tuple[str, str, PrimFunc, torch.Tensor, torch.Tensor, Callable[[], Any]]


def cases() -> Iterator[Case]:
    """Yield label, element type, program, both inputs, and torch's call."""
    for dtype in DTYPES:
        kind = getattr(torch, dtype)
        weights = torch.randn(K, N).to(kind)
        for known in ("dynamic", "known"):
            for rows in ROWS:
                a = torch.randn(rows, K).to(kind)
                m = T.dynamic("m") if known == "dynamic" else rows
                program = product(m, dtype, transposed=False)
                # torch has no fast path for (K, N) in 16 bits: it gets the rows that it likes.
                other = weights if dtype == "float32" else weights.T.contiguous().T
                rival = partial(torch.mm, a, other, out=torch.empty(rows, N, dtype=kind))
                yield f"{dtype}, {known}, {rows} rows", dtype, program, a, weights, rival
        for k, n in TOKENS:
            x, w = torch.randn(k), torch.randn(k, n).to(kind)
            rival = partial(torch.mv, w.T, x.to(kind))
            yield f"{dtype} token, ({k}, {n}) weights", dtype, token(k, n, dtype), x, w, rival


def main() -> None:
    """Time every program both ways and its rival, print, write."""
    args = options(__doc__).parse_args()
    one_thread()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for label, dtype, program, a, b, rival in cases():
            if not re.search(args.match, label):
                continue
            kernels = {"ours": compile(program, store=ArtifactStore(Path(folder) / "now"))}
            with mock.patch.object(wide_blocks, "widened", return_value=None):
                store = ArtifactStore(Path(folder) / "before")
                kernels["before"] = compile(program, store=store)
            exact = a.to(b.dtype).double() @ b.double()
            calls: dict[str, Callable[[], Any]] = {"torch": rival}
            for name, kernel in kernels.items():
                out = torch.empty(exact.shape, dtype=torch.float32 if a.ndim == 1 else b.dtype)
                calls[name] = partial(runtime.load(kernel), a, b, out)
                calls[name]()
                error = ((out.double() - exact).abs().max() / exact.abs().max()).item()
                assert error < (1e-5 if dtype == "float32" else 2e-2), (label, name, error)
            found.append(timed(label, calls, args.rounds, 38))
    write(found, args.json)


if __name__ == "__main__":
    main()
