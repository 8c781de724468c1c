"""Packing of weights (N, K) into panels alone: bytes of weights per second, by width of the panels.

    python benchmarks/packing.py [--rounds 9] [--target avx2] [--block 192 512]

A product of one row reads every panel once, so that its time is that of packing and of one pass
over panels in cache. One thread, on thread CPU time; widths are interleaved, medians are printed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilecore import kernels, runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile

SHAPES = ((4096, 4096), (1024, 4096), (4096, 11008), (4096, 1000))
WIDTHS = (1, 2, 3, 4)  # vectors per panel
SAMPLE_BYTES = 512 << 20  # packed per sample: tens of milliseconds


def packed(
    shape: tuple[int, int], width: int, args: argparse.Namespace, store: ArtifactStore
) -> Callable[..., Any]:
    """Return the product of one row with weights that are packed block by block."""
    definition = kernels.get("gemm")
    problem = definition.parse_problem({"m": 1, "n": shape[0], "k": shape[1], "transpose_b": True})
    block_n, block_k = args.block
    blocks = {"block_M": 1, "block_N": block_n, "block_K": block_k}
    program = definition.program(problem, {**definition.default_config(), **blocks})
    knobs = {"micro_n": width, "pack_b": "block"}
    return runtime.load(compile(program, args.target, knobs, store))


def sample(kernel: Callable[..., Any], tensors: Sequence[Any], calls: int) -> float:
    """Return the seconds of one call."""
    start = time.thread_time()
    for _ in range(calls):
        kernel(*tensors)
    return (time.thread_time() - start) / calls


def main() -> None:
    """Measure and print one line per shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--block", type=int, nargs=2, default=(192, 512), metavar=("N", "K"))
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        store = ArtifactStore(Path(folder))
        for n, k in SHAPES:
            a, b = rng.random((1, k), np.float32), rng.random((n, k), np.float32)
            out, wanted = np.zeros((1, n), np.float32), a.astype(np.float64) @ b.T
            made = {w: packed((n, k), w, args, store) for w in WIDTHS}
            times: dict[int, list[float]] = {w: [] for w in WIDTHS}
            for kernel in made.values():
                kernel(a, b, out)
                np.testing.assert_allclose(out, wanted, rtol=1e-4)
            for _ in range(args.rounds):
                for width, kernel in made.items():
                    times[width].append(sample(kernel, (a, b, out), SAMPLE_BYTES // b.nbytes))
            rates = {w: b.nbytes / statistics.median(t) / 1e9 for w, t in times.items()}
            found = ", ".join(f"{w}: {rate:.1f}" for w, rate in rates.items())
            print(f"{n} x {k}: GB/s by vectors per panel {found}", flush=True)


if __name__ == "__main__":
    main()
