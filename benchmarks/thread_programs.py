"""Programs written per thread, on a CPU: in groups, one thread after the other, beside torch.

    python -m benchmarks.thread_programs [--json FILE] [--rounds 7] [--match REGEX]

Products of a matrix and a vector in the ways that GPUs have them (a row per thread through shared
memory, parts of rows by elements and by vectors of 16 bytes, added up atomically or by the threads
of a warp), a norm by warps, elements; nothing tuned. "Before" is what the pass vectorize_threads
leaves as it is where groups never pay. One thread of the CPU, its time, medians, taken by turns in
one process. Every result is compared with torch's.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
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
from tilecore.passes.threads import vectorize_threads

Call = Callable[[], Any]
N = K = 2048


def by_rows(dtype: str, rows: int, step: int) -> PrimFunc:
    """Return a GEMV with a row per thread, staged in shared memory."""

    @T.prim_func
    def main(
        A: T.Tensor((K,), dtype),
        B: T.Tensor((N, K), dtype),
        C: T.Tensor((N,), dtype),
    ) -> None:
        with T.Kernel(T.ceildiv(N, rows), threads=rows) as b:
            t = T.get_thread_binding()
            part = T.alloc_shared((step,), dtype)
            tile = T.alloc_shared((rows, step), dtype)
            total = T.alloc_var("float32", init=0.0)
            for s in T.serial(K // step):
                for k in T.serial(step):
                    part[k] = A[s * step + k]
                    tile[t, k] = B[b * rows + t, s * step + k]
                for k in T.serial(step):
                    total += T.cast(part[k], "float32") * T.cast(tile[t, k], "float32")
            C[b * rows + t] = total

    return main


def by_parts(dtype: str, rows: int, threads: int, width: int, *, atomic: bool) -> PrimFunc:
    """Return a GEMV whose threads add up parts of rows, ``width`` neighbours at once."""

    @T.prim_func
    def main(
        A: T.Tensor((K,), dtype),
        B: T.Tensor((N, K), dtype),
        C: T.Tensor((N,), dtype),
    ) -> None:
        with T.Kernel(T.ceildiv(N, rows), threads=(threads, rows)) as b:
            tk = T.get_thread_binding(0)
            tn = T.get_thread_binding(1)
            x = T.alloc_local((width,), dtype)
            y = T.alloc_local((width,), dtype)
            own = T.alloc_local((1,), "float32")
            sums = T.alloc_shared((rows,), "float32")
            if tk == 0:
                sums[tn] = 0
            own[0] = 0
            for s in T.serial(K // (threads * width)):
                for k in T.vectorized(width):
                    x[k] = A[(s * threads + tk) * width + k]
                    y[k] = B[b * rows + tn, (s * threads + tk) * width + k]
                for k in T.serial(width):
                    own[0] += T.cast(x[k], "float32") * T.cast(y[k], "float32")
            if atomic:
                T.atomic_add(sums[tn], own[0])
                C[b * rows + tn] = sums[tn]
            else:
                whole = T.warp_reduce_sum(own[0])
                if tk == 0:
                    C[b * rows + tn] = whole

    return main


def normalized(rows: int) -> PrimFunc:
    """Return an RMS norm with a warp per row."""

    @T.prim_func
    def main(X: T.Tensor((N, K), "float32"), Y: T.Tensor((N, K), "float32")) -> None:
        with T.Kernel(N // rows, threads=(32, rows)) as b:
            lane = T.get_thread_binding(0)
            row = T.get_thread_binding(1)
            own = T.alloc_var("float32", init=0.0)
            for s in T.serial(K // 32):
                own += X[b * rows + row, s * 32 + lane] * X[b * rows + row, s * 32 + lane]
            scale = T.rsqrt(T.warp_reduce_sum(own) / K + 1e-6)
            for s in T.serial(K // 32):
                Y[b * rows + row, s * 32 + lane] = X[b * rows + row, s * 32 + lane] * scale

    return main


def elements() -> PrimFunc:
    """Return X * 2 + Y, four neighbours by each thread."""

    @T.prim_func
    def main(
        X: T.Tensor((N * K,), "float32"), Y: T.Tensor((N * K,), "float32"),
        Z: T.Tensor((N * K,), "float32"),
    ) -> None:  # fmt: skip
        with T.Kernel(N * K // 1024, threads=256) as b:
            t = T.get_thread_binding()
            for k in T.vectorized(4):
                Z[b * 1024 + t * 4 + k] = X[b * 1024 + t * 4 + k] * 2 + Y[b * 1024 + t * 4 + k]

    return main


def cases() -> Iterator[tuple[str, PrimFunc, list[Any], Any, Callable[..., Any]]]:
    """Yield label, program, inputs, output and torch's call of every row."""
    for dtype in ("float16", "float32"):
        kind, width = getattr(torch, dtype), 16 // getattr(torch, dtype).itemsize
        given = [torch.randn(K).to(kind), torch.randn(N, K).to(kind)]
        programs = {
            "a row per thread": by_rows(dtype, 128, 128),
            "elements, atomics": by_parts(dtype, 32, 32, 1, atomic=True),
            "vectors, atomics": by_parts(dtype, 2, 32, width, atomic=True),
            "vectors, warps": by_parts(dtype, 2, 32, width, atomic=False),
        }
        for name, program in programs.items():
            out = torch.empty(N, dtype=kind)

            def product(a: Any, b: Any, out: Any) -> None:
                torch.mv(b, a, out=out)

            yield f"GEMV {dtype}, {name}", program, given, out, product
    x, y = torch.randn(N, K), torch.randn(N * K)

    def norm(x: Any, out: Any) -> None:
        out.copy_(torch.nn.functional.rms_norm(x, (K,), eps=1e-6))

    yield "RMS norm, a warp per row", normalized(4), [x], torch.empty(N, K), norm
    given = [x.reshape(-1), y]
    yield (
        "X * 2 + Y",
        elements(),
        given,
        torch.empty(N * K),
        lambda x, y, out: torch.add(y, x, alpha=2, out=out),
    )


def main() -> None:
    """Time every program both ways and its rival, print, write."""
    args = options(__doc__).parse_args()
    one_thread()
    found = []
    for label, program, inputs, out, rival in cases():
        if not re.search(args.match, label):
            continue
        calls: dict[str, Call] = {}
        outputs = {name: torch.empty_like(out) for name in ("ours", "before", "torch")}
        with tempfile.TemporaryDirectory() as folder:
            for name, worth_it in (("ours", vectorize_threads.WORTH_IT), ("before", 0.0)):
                kept, vectorize_threads.WORTH_IT = vectorize_threads.WORTH_IT, worth_it
                kernel = runtime.load(compile(program, store=ArtifactStore(Path(folder, name))))
                vectorize_threads.WORTH_IT = kept
                calls[name] = partial(kernel, *inputs, outputs[name])
            calls["torch"] = partial(rival, *inputs, outputs["torch"])
            for call in calls.values():
                call()
            for name in ("ours", "before"):
                torch.testing.assert_close(outputs[name], outputs["torch"], rtol=2e-2, atol=0.1)
            found.append(timed(label, calls, args.rounds, 36))
    write(found, args.json)


if __name__ == "__main__":
    main()
