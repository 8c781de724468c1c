"""Estimates and limits of a few configs: straight-line code beside the same formulas on columns.

    python benchmarks/few_configs.py [--rounds 200] [--json FILE]

Both ways by turns, of five configs of a space: ``estimate_each`` and ``can_run`` as answers ask
them, against ``estimate`` of their columns with all limits on these. Beside them what the first
answer about a kernel on a device takes longer: noting the formulas down and compiling the text.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from recommender.analytic import estimate, estimate_each
from recommender.hardware import load_profile
from recommender.space import SearchSpace
from tilecore.kernels import KERNELS

HEADS = {"batch": 1, "heads": 8, "kv_heads": 8, "dim": 128, "seq_q": 1000, "seq_kv": 1000}
CASES: tuple[tuple[str, str, dict[str, Any]], ...] = tuple(
    (device, kernel, {**problem, "dtype": dtype})
    for device, dtype in (
        ("x86-64-avx512", "float32"), ("h100-sxm", "float16"), ("mi300x", "float16"),
    )
    for kernel, problem in (
        ("gemm", {"m": 1000, "n": 4096, "k": 1024}), ("attention", HEADS),
        ("softmax", {"rows": 1000, "columns": 4096}),
    )
)  # fmt: skip
CONFIGS = 5


def times_us(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median microseconds of calls that take turns."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            found[name].append(1e6 * (time.perf_counter() - began))
    return {name: median(times) for name, times in found.items()}


def case(device: str, kernel: str, problem: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Return what a case takes both ways."""
    hardware = load_profile(device)
    definition = KERNELS[kernel].on(hardware.kind)
    space = SearchSpace.build(definition, definition.parse_problem(problem), hardware)
    configs = [space.config(i * len(space) // CONFIGS) for i in range(CONFIGS)]
    hard = [limit for limit in space.limits if limit.is_hard]

    def of_columns() -> list[object]:
        found = estimate(space, space.table(configs))
        return [found.at(i) for i in range(CONFIGS)]

    def limits_of_columns() -> list[bool]:
        columns = space.table(configs)
        return [bool(np.all(limit.holds(columns))) for limit in hard]

    of_columns()
    began = time.perf_counter()
    estimate_each(space, configs)
    space.can_run(configs)
    first_us = 1e6 * (time.perf_counter() - began)
    ways = {
        "estimates": lambda: estimate_each(space, configs), "of columns": of_columns,
        "limits": lambda: space.can_run(configs), "limits of columns": limits_of_columns,
    }  # fmt: skip
    return {"device": device, "kernel": kernel, "first": first_us, **times_us(ways, rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    print("us of five configs: estimates (of columns), limits (of columns), first time")
    for device, kernel, problem in CASES:
        rows.append(row := case(device, kernel, problem, given.rounds))
        print(
            f"{device:14} {kernel:10} {row['estimates']:5.0f} ({row['of columns']:5.0f})"
            f" {row['limits']:5.0f} ({row['limits of columns']:5.0f}) {row['first']:7.0f}"
        )
    if given.json is not None:
        found = {"python": platform.python_version(), "numpy": np.__version__, "rows": rows}
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
