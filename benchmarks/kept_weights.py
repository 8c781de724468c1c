"""Weights packed once (JITKernel.keep) beside packing in every call, and beside torch.

    python -m benchmarks.kept_weights [--rounds 15] [--threads 1 2] [--out FILE]

All compute A (m, k) @ W (k, n) with the config recommended on a machine that measured nothing,
interleaved in one process. Rivals: torch.mm with a given output, and oneDNN's linear layer with a
weight reordered ahead (torch.ops.mkldnn), as torch's freezing of models makes it; it allocates its
output. 1 thread on thread CPU time, more on wall time (benchmarks/cpu.py). Results are checked
against float64.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpu import interleaved, profile, ratio
from recommender.hardware import HardwareProfile
from recommender.predict import forecast, shipped
from recommender.space import SearchSpace
from tilecore import kernels
from tilecore.artifact import compiler_versions
from tilecore.compiler import compile
from tilecore.kernel import JITKernel

SHAPES = [
    *((m, 4096, 4096) for m in (1, 4, 16, 64)),
    (256, 4096, 1024), (512, 512, 512), (1024, 1024, 1024),
]  # fmt: skip
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}  # of the largest element


def calls_of(
    shape: tuple[int, int, int], dtype: str, host: HardwareProfile, threads: int
) -> dict[str, Callable[[], Any]]:
    """Return the checked calls of one row, by name."""
    definition, kind = kernels.get("gemm"), getattr(torch, dtype)
    sizes = dict(zip("mnk", shape, strict=True))
    problem = definition.parse_problem({**sizes, "dtype": dtype, "out_dtype": dtype})
    space = SearchSpace.build(definition, problem, host)
    learned = shipped("gemm", host, dtype)
    config = dict(space.config(int(forecast(space, threads, learned).rows[0])))
    func = definition.program(problem, config)
    kernel = JITKernel(func, compile(func, "llvm", config))
    a, w = (torch.randn(s).to(kind) for s in ((shape[0], shape[2]), (shape[2], shape[1])))
    outputs = [torch.empty(shape[0], shape[1], dtype=kind) for _ in range(3)]
    kept = kernel.keep(B=w)
    reordered = torch.ops.mkldnn._reorder_linear_weight(w.T.contiguous(), shape[0])

    def onednn() -> Any:
        return torch.ops.mkldnn._linear_pointwise(a, reordered, None, "none", [], "")

    calls = {
        "packing": lambda: kernel(a, w, outputs[0]),
        "kept": lambda: kept(a, outputs[1]),
        "torch": lambda: torch.mm(a, w, out=outputs[2]),
        "onednn": onednn,
    }
    expected = a.double() @ w.double()
    for call in calls.values():
        call()
    for name, found in (("packing", outputs[0]), ("kept", outputs[1]), ("onednn", onednn())):
        error = ((found.double() - expected).abs().max() / expected.abs().max()).item()
        if not error <= TOLERANCE[dtype]:
            raise SystemExit(f"{name} {dtype} {shape}: error {error}")
    return calls


def main() -> None:
    """Measure every row and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    host, rows = profile("llvm"), []
    print("| product | threads | kept us | packing / kept | torch / kept | onednn / kept |")
    print("|---|---|---|---|---|---|")
    for dtype in TOLERANCE:
        for shape in SHAPES:
            for threads in args.threads:
                times = interleaved(calls_of(shape, dtype, host, threads), threads, args.rounds)
                ratios = {n: ratio(times, n, "kept") for n in ("packing", "torch", "onednn")}
                us = statistics.median(times["kept"]) * 1e6
                name = f"{dtype} {'x'.join(map(str, shape))}"
                rows.append({"product": name, "threads": threads, "kept_us": us, **ratios})
                shown = " | ".join(f"{r:.2f}" for r in ratios.values() if r is not None)
                print(f"| {name} | {threads} | {us:.0f} | {shown} |", flush=True)
    if args.out is not None:
        versions = {"torch": torch.__version__, **compiler_versions()}
        args.out.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
