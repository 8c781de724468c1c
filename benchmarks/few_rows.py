"""Products of few rows as GPU programs have them, on a CPU, before and now, beside torch.

    python -m benchmarks.few_rows [--json FILE] [--rounds 7] [--match REGEX] [--dtypes float32]

TileLang's quickstart (blocks of 128 x 128 x 32; nothing tuned) with a dynamic number of rows, one
kernel for all of them, and with a known one, weights as (N, K) and as (K, N). "Before" is what the
passes leave without passes/few_rows.py. One thread of the CPU, its time, medians, taken by turns in
one process. Every result is compared with float64's.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import tilecore.language as T
from benchmarks.against_torch import one_thread, options, timed, write
from tilecore import runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.ir.nodes import PrimFunc
from tilecore.passes import few_rows

N = K = 4096
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
BLOCK = (128, 128, 32)


def product(m: Any, dtype: str, *, transposed: bool) -> PrimFunc:
    """Return a GEMM of ``m`` rows, a number or a dimension."""
    bm, bn, bk = BLOCK
    tile, shape = ((bn, bk), (N, K)) if transposed else ((bk, bn), (K, N))

    @T.prim_func
    def main(
        A: T.Tensor((m, K), dtype),
        B: T.Tensor(shape, dtype),
        C: T.Tensor((m, N), dtype),
    ) -> None:
        with T.Kernel(T.ceildiv(N, bn), T.ceildiv(m, bm), threads=128) as (bx, by):
            a = T.alloc_shared((bm, bk), dtype)
            b = T.alloc_shared(tile, dtype)
            c = T.alloc_fragment((bm, bn), "float32")
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(K, bk), num_stages=3):
                T.copy(A[by * bm, ko * bk], a)
                if transposed:
                    T.copy(B[bx * bn, ko * bk], b)
                else:
                    T.copy(B[ko * bk, bx * bn], b)
                T.gemm(a, b, c, transpose_B=transposed)
            T.copy(c, C[by * bm, bx * bn])

    return main


Cases = Iterator[tuple[str, str, bool, int, dict[str, Callable[..., Any]]]]


def cases(dtypes: Sequence[str], match: str, folder: Path) -> Cases:
    """Yield label, element type, whether b is transposed, rows and the kernels of every row."""
    for dtype in dtypes:
        for transposed in (True, False):
            for kind in ("dynamic", "known"):
                name = f"{dtype}, {'(N, K)' if transposed else '(K, N)'}, {kind}"
                if not re.search(match, name):
                    continue
                for rows in ROWS:
                    if kind == "known" or rows == ROWS[0]:
                        m = rows if kind == "known" else T.dynamic("m")
                        program = product(m, dtype, transposed=transposed)
                        kernels = {
                            "ours": kernel_of(program, folder / "now", few_rows.ON_THEIR_OWN),
                            "before": kernel_of(program, folder / "before", ()),
                        }
                    yield f"{name}, {rows} rows", dtype, transposed, rows, kernels


def kernel_of(program: PrimFunc, folder: Path, choices: tuple[str, ...]) -> Any:
    """Return the kernel where these values of ``pack_b`` leave the pass its way."""
    kept, few_rows.ON_THEIR_OWN = few_rows.ON_THEIR_OWN, choices
    try:
        return runtime.load(compile(program, store=ArtifactStore(folder)))
    finally:
        few_rows.ON_THEIR_OWN = kept


def main() -> None:
    """Time every program both ways and its rival, print, write."""
    parser = options(__doc__)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    args = parser.parse_args()
    one_thread()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for label, dtype, transposed, rows, kernels in cases(
            args.dtypes.split(","), args.match, Path(folder)
        ):
            kind = getattr(torch, dtype)
            a, b = torch.randn(rows, K).to(kind), torch.randn(N, K).to(kind)
            outputs = {
                name: torch.empty(rows, N, dtype=kind) for name in ("ours", "before", "torch")
            }
            given = b if transposed else b.T.contiguous()
            right = given.T if transposed else given
            calls = {name: partial(k, a, given, outputs[name]) for name, k in kernels.items()}
            calls["torch"] = partial(torch.mm, a, right, out=outputs["torch"])
            exact = a.double() @ b.double().T
            for name, call in calls.items():
                call()
                error = ((outputs[name].double() - exact).abs().max() / exact.abs().max()).item()
                assert error < (1e-5 if dtype == "float32" else 2e-2), (label, name, error)
            found.append(timed(label, calls, args.rounds, 36))
    write(found, args.json)


if __name__ == "__main__":
    main()
