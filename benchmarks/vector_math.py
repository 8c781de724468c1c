"""Elementwise functions of float32 beside torch, on one thread, interleaved in one process.

    python benchmarks/vector_math.py [--size 1048576] [--rounds 21] [--out FILE.json]

Both write preallocated outputs. Times are medians of thread CPU time; the ratio is the median over
rounds of torch / ours taken in the same round: above 1 we are faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore.artifact import compiler_versions
from tilecore.runtime import set_num_threads
from workers.host import detect

BLOCK = 4096
Call = Callable[[], Any]


def gelu(x: Any) -> Any:
    """Return GELU by the error function."""
    return 0.5 * x * (1.0 + T.erf(x * 0.7071067811865476))


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[..., Any]]] = {
    "exp": (T.exp, torch.exp),
    "exp2": (T.exp2, torch.exp2),
    "log": (T.log, torch.log),
    "log2": (T.log2, torch.log2),
    "log1p": (T.log1p, torch.log1p),
    "sin": (T.sin, torch.sin),
    "cos": (T.cos, torch.cos),
    "tanh": (T.tanh, torch.tanh),
    "erf": (T.erf, torch.erf),
    "sigmoid": (T.sigmoid, torch.sigmoid),
    "rsqrt": (T.rsqrt, torch.rsqrt),
    "gelu": (gelu, lambda x, out: torch.ops.aten.gelu.out(x, out=out)),
}


def kernel(function: Callable[[Any], Any], size: int) -> tilelang.JITKernel:
    """Return the compiled elementwise kernel."""

    @T.prim_func
    def main(X: T.Tensor((size,), "float32"), Y: T.Tensor((size,), "float32")):
        with T.Kernel(T.ceildiv(size, BLOCK)) as b:
            for i in T.Parallel(BLOCK):
                Y[b * BLOCK + i] = function(X[b * BLOCK + i])

    return tilelang.compile(main)


def seconds(call: Call) -> float:
    """Return the CPU time of this thread that one call takes."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def row(name: str, size: int, rounds: int) -> dict[str, Any]:
    """Return the comparison of one function."""
    ours, rival = FUNCTIONS[name]
    x = torch.rand(size) * 3 + 0.01
    y, z = torch.empty(size), torch.empty(size)
    compiled = kernel(ours, size)
    calls: tuple[Call, Call] = (lambda: compiled(x, y), lambda: rival(x, out=z))
    for call in calls:
        call()
    torch.testing.assert_close(y, z, rtol=1e-6, atol=1e-6)
    times = [[seconds(call) for call in calls] for _ in range(rounds)]
    mine, theirs = (statistics.median(t[i] for t in times) for i in (0, 1))
    return {
        "function": name,
        "ours_ns": mine / size * 1e9,
        "torch_ns": theirs / size * 1e9,
        "ratio": statistics.median(t[1] / t[0] for t in times),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1 << 20)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    set_num_threads(1)
    torch.set_num_threads(1)
    print(f"{'':8} {'ours ns':>8} {'torch ns':>9} {'torch/ours':>11}")
    rows = []
    for name in FUNCTIONS:
        rows.append(row(name, args.size, args.rounds))
        r = rows[-1]
        print(f"{name:8} {r['ours_ns']:8.3f} {r['torch_ns']:9.3f} {r['ratio']:10.2f}x")
    if args.out is not None:
        found = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "size": args.size,
            "machine": detect().name,
            "versions": {**compiler_versions(), "torch": torch.__version__},
            "rows": rows,
        }
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
