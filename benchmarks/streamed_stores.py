"""Outputs written past the caches beside ordinary stores, by size, alone and read again.

    python -m benchmarks.streamed_stores [--threads 1 2] [--rounds 9] [--json FILE]

Scaling, adding and a softmax of rows of 1,024 numbers, outputs of 8 to 64 MiB: the kernel alone,
with one output or a new one per call, and with a sum of its output by torch after it, which finds
in the caches what was left there. Medians, taken by turns in one process; "total" is the size of
all tensors of the kernel, by which tilecore/inference/cpu/streams.py decides ("chosen"). Both
results are compared with float64's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import tilecore.language as T
from benchmarks.against_torch import Row, write
from benchmarks.cpu import interleaved
from tilecore import runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.inference.cpu import streams
from tilecore.ir.nodes import PrimFunc

N = 1024
SIZES_MIB = (8, 12, 16, 24, 32, 64)
Program = Callable[[int], PrimFunc]


def scale(m: int, dtype: str) -> PrimFunc:
    """Return Y = 2 X, from ``dtype`` to float32."""

    @T.prim_func
    def scale(X: T.Tensor((m, N), dtype), Y: T.Tensor((m, N), "float32")) -> None:
        with T.Kernel(T.ceildiv(m, 16)) as b:
            for i, j in T.Parallel(16, N):
                Y[b * 16 + i, j] = T.cast(X[b * 16 + i, j], "float32") * 2.0

    return scale


def add(m: int) -> PrimFunc:
    """Return Z = X + Y."""

    @T.prim_func
    def add(
        X: T.Tensor((m, N), "float32"),
        Y: T.Tensor((m, N), "float32"),
        Z: T.Tensor((m, N), "float32"),
    ) -> None:
        with T.Kernel(T.ceildiv(m, 16)) as b:
            for i, j in T.Parallel(16, N):
                Z[b * 16 + i, j] = X[b * 16 + i, j] + Y[b * 16 + i, j]

    return add


def softmax(m: int) -> PrimFunc:
    """Return the softmax of each row."""

    @T.prim_func
    def softmax(X: T.Tensor((m, N), "float32"), Y: T.Tensor((m, N), "float32")) -> None:
        with T.Kernel(T.ceildiv(m, 4)) as b:
            x = T.alloc_fragment((4, N), "float32")
            most = T.alloc_fragment((4,), "float32")
            total = T.alloc_fragment((4,), "float32")
            T.copy(X[b * 4, 0], x)
            T.reduce_max(x, most, dim=1)
            for i, j in T.Parallel(4, N):
                x[i, j] = T.exp(x[i, j] - most[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(4, N):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, Y[b * 4, 0])

    return softmax


CASES: tuple[tuple[str, Program, str, int, Callable[..., torch.Tensor]], ...] = (
    ("scale", partial(scale, dtype="float32"), "float32", 1, lambda x: x * 2),
    ("scale", partial(scale, dtype="float16"), "float16", 1, lambda x: x * 2),
    ("add", add, "float32", 2, lambda x, y: x + y),
    ("softmax", softmax, "float32", 1, lambda x: x.softmax(1)),
)


def measured(size: int, index: int, threads: int, rounds: int) -> Row:
    """Return the times of a case with an output of ``size`` MiB; print them."""
    name, program, dtype, count, exact = CASES[index]
    m = size * (1 << 20) // (4 * N)
    func = program(m)
    inputs = [torch.randn(m, N).to(getattr(torch, dtype)) for _ in range(count)]
    expected = exact(*(x.double() for x in inputs))
    chosen = "past" if streams.streamed_tensors(func) else "ordinary"
    calls: dict[str, Callable[[], Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, least in (("past", 0), ("ordinary", 1 << 60)):
            with mock.patch.object(streams, "MOST_CACHED_BYTES", least):
                artifact = compile(func, "llvm", store=ArtifactStore(Path(folder) / kind))
            kernel, out = runtime.load(artifact), torch.empty(m, N)
            call = partial(kernel, *inputs, out)
            call()
            torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)

            def with_sum(call: Callable[[], Any] = call, out: torch.Tensor = out) -> None:
                call()
                out.sum()

            def anew(kernel: Callable[..., Any] = kernel) -> None:
                kernel(*inputs, torch.empty(m, N))

            calls |= {kind: call, f"{kind}, read": with_sum, f"{kind}, new": anew}
        times = interleaved(calls, threads, rounds)
    us = {kind: round(1e6 * statistics.median(own)) for kind, own in times.items()}
    total = sum(x.numel() * x.element_size() for x in inputs) / (1 << 20) + size
    row = {"case": f"{name} {dtype}", "output_mib": size, "total_mib": total, "threads": threads,
           "chosen": chosen, "us": us}  # fmt: skip
    ways = ("", ", new", ", read")
    alone, new, read = (us[f"ordinary{way}"] / us[f"past{way}"] for way in ways)
    print(f"| {row['case']} | {size} | {total:.0f} | {threads} | {us['ordinary']} | {us['past']} "
          f"| {alone:.2f} | {new:.2f} | {read:.2f} | {chosen} |", flush=True)  # fmt: skip
    return row


def main() -> None:
    """Measure every case and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print("| case | output MiB | total MiB | threads | ordinary us | past the caches us "
          "| ordinary / past | new outputs | with a sum after | chosen |")  # fmt: skip
    print("|---" * 10 + "|")
    rows = [
        measured(size, index, threads, args.rounds)
        for threads in args.threads
        for index in range(len(CASES))
        for size in SIZES_MIB
    ]
    write(rows, args.json)


if __name__ == "__main__":
    main()
