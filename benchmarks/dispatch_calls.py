"""What a Dispatcher adds to a call: against its own kernels, called directly.

    python benchmarks/dispatch_calls.py

A small float32 GEMM (N = K = 256) whose table knows M = 1 and 512: M = 1 has a kernel of its own,
M = 77 the dynamic one of its config. Medians over 60 interleaved rounds of 300 calls with all three
tensors, thread CPU time of one thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tilecore
from recommender.dispatch.table import table_of_times
from recommender.shapes import ShapeSet
from tilecore import runtime
from tilecore.tile_config import TileConfig

ROUNDS, CALLS = 60, 300
CONFIG = TileConfig.of(
    block_M=16, block_N=128, block_K=256, num_stages=1, threads=128, micro_m=8, micro_n=2,
    pack_a="none", pack_b="auto",
)  # fmt: skip


def sample(call: Callable[..., Any], tensors: tuple[Any, ...]) -> float:
    """Return seconds per call."""
    begin = time.thread_time()
    for _ in range(CALLS):
        call(*tensors)
    return (time.thread_time() - begin) / CALLS


def main() -> None:
    """Measure and print."""
    runtime.set_num_threads(1)
    torch.set_num_threads(1)
    shapes = ShapeSet.of(("m",), {(1,): 1.0, (512,): 1.0})
    problem = {"n": 256, "k": 256, "dtype": "float32"}
    table = table_of_times("gemm", shapes, [CONFIG], np.ones((2, 1)), problem=problem)
    dispatcher = tilecore.Dispatcher(table)
    for m in (1, 77):
        tensors = torch.randn(m, 256), torch.randn(256, 256), torch.empty(m, 256)
        dispatcher(*tensors)
        calls = {"kernel": dispatcher.kernel_for(m), "dispatcher": dispatcher}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                times[name].append(sample(call, tensors))
        added = statistics.median(
            b - a for a, b in zip(times["kernel"], times["dispatcher"], strict=True)
        )
        shown = ", ".join(f"{n} {statistics.median(t) * 1e6:.2f} us" for n, t in times.items())
        print(f"M = {m}: {shown}; {added * 1e6:+.2f} us per call")


if __name__ == "__main__":
    main()
