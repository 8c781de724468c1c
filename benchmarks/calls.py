"""What a call of a kernel costs beside its work: fixed and dynamic sizes, with and without outputs.

    python benchmarks/calls.py [--json FILE]

Kernels of 8 x 64 elements. "fixed": X (8, 64) by W (64); "dynamic": the rows are; "strided": the
distance of rows, too, and a number in place of W. "outputs given" is a call with all parameters,
"made" one that leaves the output out, "machine code" the kernel with arguments that were accepted
before; torch.mul with and without ``out`` is for comparison. Thread CPU time, least and median of
interleaved rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore.artifact import compiler_versions

ROUNDS, CALLS = 41, 400
ROWS, COLUMNS = 8, 64
torch.set_num_threads(1)


def by_row(rows: Any) -> Any:
    """Return a program that multiplies rows by a vector."""

    @T.prim_func
    def scale(
        X: T.Tensor((rows, COLUMNS), "float32"),
        W: T.Tensor((COLUMNS,), "float32"),
        Y: T.Tensor((rows, COLUMNS), "float32"),
    ) -> None:
        with T.Kernel(rows) as i:
            for j in T.Parallel(COLUMNS):
                Y[i, j] = X[i, j] * W[j]

    return scale


def by_number() -> Any:
    """Return a program that multiplies strided rows by a number."""
    rows, step = T.dynamic("rows"), T.dynamic("step")

    @T.prim_func
    def scale(
        X: T.StridedTensor((rows, COLUMNS), (step, 1), "float32"),
        factor: T.float32,
        Y: T.Tensor((rows, COLUMNS), "float32"),
    ) -> None:
        with T.Kernel(rows) as i:
            for j in T.Parallel(COLUMNS):
                Y[i, j] = X[i, j] * factor

    return scale


def calls() -> dict[str, Callable[[], Any]]:
    """Return what is timed."""
    x, w, y = torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS), torch.empty(ROWS, COLUMNS)
    part = torch.randn(ROWS, 2 * COLUMNS)[:, :COLUMNS]
    found: dict[str, Callable[[], Any]] = {}
    for name, program, inputs in (
        ("fixed", by_row(ROWS), (x, w)),
        ("dynamic", by_row(T.dynamic("rows")), (x, w)),
        ("strided", by_number(), (part, 2.0)),
    ):
        kernel: Any = tilelang.compile(program, out_idx=-1, target="llvm")
        found[f"{name}, outputs given"] = lambda k=kernel, i=inputs: k(*i, y)
        found[f"{name}, outputs made"] = lambda k=kernel, i=inputs: k(*i)
        found[f"{name}, machine code"] = lambda k=kernel, i=inputs: k.loaded.unchecked(*i, y)
    return found | {
        "torch.mul, out given": lambda: torch.mul(x, w, out=y),
        "torch.mul, out made": lambda: torch.mul(x, w),
    }


def sample(call: Callable[[], Any]) -> float:
    """Return microseconds per call."""
    begin = time.thread_time()
    for _ in range(CALLS):
        call()
    return (time.thread_time() - begin) / CALLS * 1e6


def main() -> None:
    """Time the calls and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    timed = calls()
    times: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(ROUNDS):
        for name, call in timed.items():
            times[name].append(sample(call))
    rows = {n: {"median": statistics.median(t), "least": min(t)} for n, t in times.items()}
    for name, row in rows.items():
        print(f"{name:<24} median {row['median']:7.2f} us   least {row['least']:7.2f} us")
    if arguments.json is not None:
        versions = {**compiler_versions(), "torch": torch.__version__}
        arguments.json.write_text(json.dumps({"versions": versions, "us": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
