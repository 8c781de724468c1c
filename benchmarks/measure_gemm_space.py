"""Times a sample of each GEMM space on this machine, for calibration and for judging predictions.

    python benchmarks/measure_gemm_space.py OUT.csv [--random 24] [--top 12] [--shapes MxNxK,...]

One thread, thread CPU time, all configs of a shape interleaved in rounds, lower quartile of the
rounds: on a virtual machine even CPU time jumps by a factor of 30 while the host takes the core
away. Rows are appended; configs that OUT.csv already has are not measured again.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

os.environ["TVM_NUM_THREADS"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from recommender.analytic import estimate
from recommender.space import SearchSpace
from tilecore import kernels
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.runtime.kernel import LoadedKernel
from tilecore.tile_config import TileConfig
from workers.host import detect

SHAPES = "512x512x512,1024x1024x1024,1000x1000x1000,64x4096x4096,4096x64x4096,2048x2048x2048"
KNOBS = ("block_M", "block_N", "block_K", "micro_m", "micro_n", "pack_a", "pack_b")
FIELDS = ("m", "n", "k", *KNOBS, "num_stages", "threads", "time_s")


def candidates(space: SearchSpace, n_random: int, n_top: int, seed: int) -> list[TileConfig]:
    rng = np.random.default_rng(seed)
    order = np.argsort(estimate(space, threads=1).time_s)
    # a third of the random part from the better tenth: that is where choices are made
    better = rng.permutation(order[: len(order) // 10])[: n_random // 3]
    rows = [*order[:n_top], *better, *rng.permutation(len(space))[: n_random - len(better)]]
    found = dict.fromkeys([space.definition.default_config(), *(space.config(r) for r in rows)])
    return list(found)


def cpu_time_s(call: Callable[[], None]) -> float:
    """One sample of at least 3 ms after a warm call."""
    begin = time.thread_time()
    call()
    once = time.thread_time() - begin
    repeats = max(1, int(3e-3 / max(1e-6, once)))
    begin = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - begin) / repeats


def measure(
    shape: tuple[int, int, int], args: argparse.Namespace, known: set[tuple]
) -> Iterator[dict]:
    definition = kernels.get("gemm")
    problem = definition.parse_problem(dict(zip("mnk", shape, strict=True)))
    space = SearchSpace.build(definition, problem, detect())
    inputs = definition.inputs(problem, np.random.default_rng(0))
    expected = definition.reference(problem, inputs)[0]
    output = np.empty((shape[0], shape[1]), np.float32)
    calls: dict[TileConfig, Callable[[], None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = ArtifactStore(Path(folder))
        for config in candidates(space, args.random, args.top, args.seed):
            if (*map(str, shape), *(str(config[k]) for k in KNOBS)) in known:
                continue
            program = definition.program(problem, dict(config))
            kernel = LoadedKernel(compile(program, "llvm", dict(config), store))
            output.fill(np.nan)
            kernel(*inputs, output)
            error = np.abs(output - expected).max()
            if error < 1e-2:
                calls[config] = partial(kernel, *inputs, output)
            else:
                print(f"WRONG {shape} {config}: error {error}")
        samples: dict[TileConfig, list[float]] = {config: [] for config in calls}
        for _ in range(args.rounds):
            for config, call in calls.items():
                samples[config].append(cpu_time_s(call))
    for config, times in samples.items():
        time_s = float(np.quantile(times, 0.25))
        rate = 2 * np.prod(shape) / time_s / 1e9
        spread = statistics.median(times) / time_s
        print(f"{shape} {rate:7.1f} GFLOP/s  (median {spread:.2f}x)  {config}", flush=True)
        yield {**dict(config), **dict(zip("mnk", shape, strict=True)), "time_s": time_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--random", type=int, default=24)
    parser.add_argument("--top", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shapes", default=SHAPES)
    args = parser.parse_args()
    known: set[tuple] = set()
    if args.out.exists():
        rows = list(csv.DictReader(args.out.open()))
        known = {tuple(r[k] for k in ("m", "n", "k", *KNOBS)) for r in rows}
    with args.out.open("a") as file:
        writer = csv.DictWriter(file, FIELDS)
        if not known:
            writer.writeheader()
        for text in args.shapes.split(","):
            m, n, k = (int(x) for x in text.split("x"))
            for row in measure((m, n, k), args, known):
                writer.writerow(row)
                file.flush()


if __name__ == "__main__":
    main()
