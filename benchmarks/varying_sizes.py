"""Calls whose sizes vary: what ``@tilecore.compute`` costs until it runs, and how fast it is then.

    python -m benchmarks.varying_sizes [--match REGEX] [--calls 60] [--threads 1] [--json FILE]

A fresh function of each kind is called with sizes drawn at random, or with a cache that grows by a
token per call: first "in all" is the time of all calls together, compiling included: kernels of
symbols (the default), kernels for every set of sizes (dynamic=False), torch.compile, torch. Then,
for some of the sizes, "calls" are timed in turns: kernels of symbols beside those for the sizes
alone, and torch. Every result is checked against the function in float64.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import tilecore
from benchmarks.cpu import interleaved
from tilecore import runtime
from tilecore.artifact import compiler_versions

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from compute import block, weights

Function = Callable[..., Any]
TOLERANCE = 2e-5  # of the largest element
STEADY, ROUNDS = 4, 9  # sizes that are timed call by call


@dataclass(frozen=True)
class Case:
    """A function, and its arguments for a size."""

    function: Function
    arguments: Callable[[int], tuple[Any, ...]]
    sizes: Callable[[random.Random, int], list[int]]


def drawn(least: int, most: int) -> Callable[[random.Random, int], list[int]]:
    """Return sizes drawn at random."""
    return lambda rng, count: [rng.randint(least, most) for _ in range(count)]


def growing(first: int) -> Callable[[random.Random, int], list[int]]:
    """Return sizes that grow by one."""
    return lambda rng, count: list(range(first, first + count))


def cases() -> dict[str, Case]:
    """Return what is measured by name."""
    r = torch.randn
    w, b, model = r(512, 1024) / 23, r(1024), weights(512, 1376)
    cache = [r(1, 8, 4096, 64) for _ in range(2)]
    return {
        "block, prompts of 16 to 512": Case(
            block.function, lambda n: (r(1, n, 512), model), drawn(16, 512)
        ),
        "linear + gelu, 1 to 128 rows": Case(
            lambda x, w, b: F.gelu(x @ w + b), lambda n: (r(n, 512), w, b), drawn(1, 128)
        ),
        "attention by hand, 64 to 768 keys": Case(
            lambda q, k, v, m: (q @ k.mT * 0.125 + m).softmax(-1) @ v,
            lambda n: (r(8, 128, 64), r(8, n, 64), r(8, n, 64), r(n)), drawn(64, 768),
        ),
        "a token and its cache, from 1000": Case(
            F.scaled_dot_product_attention,
            lambda n: (r(1, 8, 1, 64), cache[0][:, :, :n], cache[1][:, :, :n]), growing(1000),
        ),
        "softmax of rows of 200 to 5000": Case(
            lambda x: x.softmax(-1), lambda n: (r(256, n),), drawn(200, 5000)
        ),
    }  # fmt: skip


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double()
    return {k: _widened(v) for k, v in value.items()} if isinstance(value, dict) else value


def in_all(case: Case, sizes: list[int]) -> Iterator[tuple[str, float, float]]:
    """Yield who, seconds of all calls, and the largest error."""
    for who in ("symbols", "own", "compiled", "eager"):
        made: Function = {
            "symbols": lambda: tilecore.compute(case.function),
            "own": lambda: tilecore.compute(case.function, dynamic=False),
            "compiled": lambda: torch.compile(case.function),
            "eager": lambda: case.function,
        }[who]()
        took, worst = 0.0, 0.0
        for n in sizes:
            args = case.arguments(n)
            start = time.perf_counter()
            got = made(*args)
            took += time.perf_counter() - start
            exact = case.function(*map(_widened, args))
            worst = max(worst, ((got.double() - exact).abs().max() / exact.abs().max()).item())
        if worst > TOLERANCE:
            raise SystemExit(f"{who} is off by {worst:.2g} of the largest element")
        yield who, took, worst


def steady(case: Case, sizes: list[int], threads: int) -> dict[int, dict[str, float]]:
    """Return the microseconds of calls by size."""
    symbols = tilecore.compute(case.function)
    own = tilecore.compute(case.function, dynamic=False)
    for n in sizes:
        symbols(*case.arguments(n))
    found = {}
    for n in sizes[2 : 2 + STEADY]:
        args = case.arguments(n)
        symbols(*args), own(*args)
        assert not symbols.plan(*args).is_own
        calls = {
            "symbols": lambda args=args: symbols(*args), "own": lambda args=args: own(*args),
            "eager": lambda args=args: case.function(*args),
        }  # fmt: skip
        times = interleaved(calls, threads, ROUNDS)
        found[n] = {who: statistics.median(t) * 1e6 for who, t in times.items()}
    return found


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--match", default="")
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    with torch.no_grad():
        for name, case in cases().items():
            if not re.search(options.match, name):
                continue
            sizes = case.sizes(random.Random(7), options.calls)
            row: dict[str, Any] = {"name": name, "sizes": sizes, "s": {}, "error": {}}
            for who, took, worst in in_all(case, sizes):
                row["s"][who], row["error"][who] = took, worst
            print(f"{name}: {len(set(sizes))} sizes, {len(sizes)} calls, s in all: "
                  + ", ".join(f"{w} {t:.2f}" for w, t in row["s"].items()), flush=True)  # fmt: skip
            row["us"] = steady(case, sizes, options.threads)
            for n, us in row["us"].items():
                print(f"  {n}: {us['symbols']:.0f} us; own kernels take "
                      f"{us['own'] / us['symbols']:.2f}, torch {us['eager'] / us['symbols']:.2f}",
                      flush=True)  # fmt: skip
            rows.append(row)
    if options.json:
        record = {
            "threads": runtime.num_threads(), "torch": torch.__version__,
            "compiler": compiler_versions(), "rows": rows,
        }  # fmt: skip
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
