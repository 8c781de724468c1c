"""GEMM on this CPU: default, recommended and tuned config beside torch.matmul in one process.

    python benchmarks/gemm_cpu.py [--candidates 40] [--rounds 15] [--shapes 512x512x512,...]
                                  [--dtype float32]
                                  [--out benchmarks/results/NAME.json]

``--dtype bfloat16`` sums up in float32 and rounds at the end, ``int8`` gives int32 (beside
torch._int_mm, which has no preallocated output).

The machine's peaks are measured first: the recommendation is what the analytic model says with
them, no candidate measured. For each shape its best candidates and random ones are screened on
thread CPU time; per number of threads the finalists run interleaved, which chooses the tuned
config; then default, recommended, tuned and torch are timed afresh and interleaved, outputs
preallocated for all: 1 thread on thread CPU time, all threads on wall time with a pause before each
sample so that no pool spins into another's sample. Ratios are medians over rounds of torch / ours
taken in the same round; above 1 we are faster. Rates are medians and, since neighbours of a shared
machine only ever slow a sample down, those of the best quarter. Every config is checked against
float64 first.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recommender.analytic import estimate
from recommender.hardware import HardwareProfile
from recommender.space import SearchSpace
from tilecore import kernels, runtime
from tilecore.artifact import ArtifactStore, compiler_versions
from tilecore.compiler import compile
from tilecore.tile_config import TileConfig
from workers.correctness import tolerance
from workers.host import detect
from workers.peaks import measure

SHAPES = "512x512x512,1024x1024x1024,2048x2048x2048,1000x1000x1000,64x4096x4096,4096x64x4096"
GEMM = kernels.get("gemm")
FIELDS = {  # the fields of a problem beside its shape
    "float32": {},
    "bfloat16": {"dtype": "bfloat16", "out_dtype": "bfloat16"},
    "int8": {"dtype": "int8", "accum_dtype": "int32", "out_dtype": "int32"},
}
Call = Callable[[], Any]


class Case:
    """One shape: operands, reference, and kernels by config."""

    def __init__(
        self, shape: tuple[int, int, int], dtype: str, host: HardwareProfile, store: ArtifactStore
    ) -> None:
        self.shape, self.store = shape, store
        self.problem = GEMM.parse_problem({**dict(zip("mnk", shape, strict=True)), **FIELDS[dtype]})
        arrays = GEMM.inputs(self.problem, np.random.default_rng(0))
        self.expected = GEMM.reference(self.problem, arrays)[0]
        kind, out = (getattr(torch, str(self.problem[f])) for f in ("dtype", "out_dtype"))
        self.inputs = [torch.from_numpy(a.astype(np.float32)).to(kind) for a in arrays]
        self.output = torch.empty(shape[0], shape[1], dtype=out)
        self.rival_output = torch.empty_like(self.output)
        self.space = SearchSpace.build(GEMM, self.problem, host)

    def recommended(self, threads: int) -> TileConfig:
        """Return the analytic model's first choice."""
        return self.space.config(int(np.argmin(estimate(self.space, threads=threads).time_s)))

    def kernel(self, config: TileConfig) -> Call:
        """Return the checked kernel of a config."""
        program = GEMM.program(self.problem, dict(config))
        loaded = runtime.load(compile(program, "llvm", dict(config), self.store))
        self.output.fill_(float("nan") if self.output.is_floating_point() else -1)
        loaded(*self.inputs, self.output)
        types = (str(self.problem[f]) for f in ("out_dtype", "accum_dtype"))
        rtol, atol = tolerance(*types, self.shape[2])
        found = self.output.double().numpy()
        np.testing.assert_allclose(found, self.expected, rtol=rtol, atol=atol)
        return partial(loaded.unchecked, *self.inputs, self.output)

    def rival(self) -> Call:
        """Return torch.mm into a preallocated output; of bytes torch._int_mm."""
        if self.problem["dtype"] == "int8":
            return partial(torch._int_mm, *self.inputs)
        return partial(torch.mm, *self.inputs, out=self.rival_output)


def sample(call: Call, threads: int, min_s: float = 4e-3) -> float:
    """Return seconds per call of one sample."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    if threads > 1:
        time.sleep(0.02)
        call()
    call()
    begin = clock()
    call()
    once = clock() - begin
    repeats = max(0, int(min_s / max(once, 1e-6)))
    if repeats < 2:
        return once
    begin = clock()
    for _ in range(repeats):
        call()
    return (clock() - begin) / repeats


def interleaved(calls: dict[str, Call], threads: int, rounds: int) -> dict[str, list[float]]:
    """Return the samples of every call, taken round by round."""
    torch.set_num_threads(threads)
    runtime.set_num_threads(threads)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(sample(call, threads))
    return times


def finalists(case: Case, count: int, rounds: int, seed: int) -> list[TileConfig]:
    """Return the best eight screened candidates: two thirds predicted, one third random."""
    rng = np.random.default_rng(seed)
    order = np.argsort(estimate(case.space, threads=1).time_s)
    rows = [*order[: count * 2 // 3], *rng.permutation(order[: len(order) // 4])[: count // 3]]
    configs = {str(c): c for c in (case.space.config(int(r)) for r in rows)}
    calls = {name: case.kernel(config) for name, config in configs.items()}
    screened = interleaved(calls, 1, rounds)
    return [configs[name] for name in by_time(screened)[:8]]


def by_time(times: dict[str, list[float]]) -> list[str]:
    """Return the names, fastest first, by the lower quartile: what disturbs only slows down."""
    return sorted(times, key=lambda name: np.quantile(times[name], 0.25))


def ratio(times: dict[str, list[float]], numerator: str, denominator: str) -> float:
    """Return the median over rounds of one time divided by another."""
    pairs = zip(times[numerator], times[denominator], strict=True)
    return statistics.median(a / b for a, b in pairs)


def run_shape(
    shape: tuple[int, int, int], host: HardwareProfile, args: argparse.Namespace
) -> dict[str, Any]:
    """Measure one shape; return its row."""
    with tempfile.TemporaryDirectory() as folder:
        case = Case(shape, args.dtype, host, ArtifactStore(Path(folder)))
        row: dict[str, Any] = {"shape": "x".join(map(str, shape))}
        flop = GEMM.work_flop(case.problem)
        best = finalists(case, args.candidates, 5, args.seed)
        for threads in args.threads:
            trial = interleaved({str(c): case.kernel(c) for c in best}, threads, args.rounds)
            configs = {
                "default": GEMM.default_config(),
                "recommended": case.recommended(threads),
                "tuned": next(c for c in best if str(c) == by_time(trial)[0]),
            }
            calls = {"torch": case.rival()} | {n: case.kernel(c) for n, c in configs.items()}
            times = interleaved(calls, threads, 2 * args.rounds)
            row[f"{threads}T"] = {
                "configs": {name: str(config) for name, config in configs.items()},
                "gflops": {n: flop / statistics.median(t) / 1e9 for n, t in times.items()},
                "gflops_best_quarter": {
                    n: flop / float(np.quantile(t, 0.25)) / 1e9 for n, t in times.items()
                },
                "tuned_vs_torch": ratio(times, "torch", "tuned"),
                "tuned_vs_default": ratio(times, "default", "tuned"),
                "recommended_of_tuned": ratio(times, "tuned", "recommended"),
            }
    return row


def geomean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.fmean(math.log(v) for v in values))


def show(row: dict[str, Any], threads: list[int]) -> None:
    """Print one row."""
    for t in threads:
        r = row[f"{t}T"]
        rates = "  ".join(f"{n} {g:7.1f}" for n, g in r["gflops"].items())
        print(
            f"{row['shape']:>16} {t}T  GFLOP/s: {rates}  | tuned/torch {r['tuned_vs_torch']:.2f}x  "
            f"tuned/default {r['tuned_vs_default']:.2f}x  "
            f"recommended/tuned {r['recommended_of_tuned']:.2f}",
            flush=True,
        )
        print(f"{'':>16}     tuned: {r['configs']['tuned']}", flush=True)


def summarise(rows: list[dict[str, Any]], threads: list[int]) -> dict[str, dict[str, float]]:
    """Return the means over the shapes, per number of threads."""
    summary = {}
    for t in threads:
        results = [row[f"{t}T"] for row in rows]
        summary[f"{t}T"] = {
            "tuned_vs_torch_geomean": geomean([r["tuned_vs_torch"] for r in results]),
            "tuned_vs_torch_worst": min(r["tuned_vs_torch"] for r in results),
            "tuned_vs_default_geomean": geomean([r["tuned_vs_default"] for r in results]),
            "recommended_of_tuned_mean": statistics.fmean(
                min(1.0, r["recommended_of_tuned"]) for r in results
            ),
        }
    return summary


def main() -> None:
    """Measure all shapes and print the summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--dtype", default="float32", choices=sorted(FIELDS))
    parser.add_argument("--candidates", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, nargs="*", default=None)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    host = measure(detect())
    args.threads = args.threads or sorted({1, host.cores})
    rows = []
    for text in args.shapes.split(","):
        m, n, k = (int(x) for x in text.split("x"))
        rows.append(run_shape((m, n, k), host, args))
        show(rows[-1], args.threads)
        if args.out is not None:  # after every shape: a run that is cut off leaves what it has
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(record(rows, host, args), indent=1) + "\n")
    for name, values in summarise(rows, args.threads).items():
        print(name, {key: round(value, 3) for key, value in values.items()})


def record(
    rows: list[dict[str, Any]], host: HardwareProfile, args: argparse.Namespace
) -> dict[str, Any]:
    """Return the document to keep."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python benchmarks/gemm_cpu.py --dtype {args.dtype} "
        f"--candidates {args.candidates} --rounds {args.rounds} --seed {args.seed}",
        "machine": {
            "name": host.name, "arch": host.arch, "cores": host.cores,
            "peak_gflops_per_core": host.peak_flop_per_s["float32"] / 1e9,
        },
        "versions": {
            "python": platform.python_version(), "torch": torch.__version__,
            "numpy": np.__version__, **compiler_versions(),
        },
        "summary": summarise(rows, args.threads),
        "rows": rows,
    }  # fmt: skip


if __name__ == "__main__":
    main()
