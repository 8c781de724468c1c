"""What calls of NumPy, torch and ours cost each other when they alternate without a pause.

    python benchmarks/thread_pools.py [--rounds 20] [--out FILE.json]

Kernels run on torch's threads where they are called with tensors, on threads of their own where
they are called with arrays of NumPy. Each case is a chain of calls, made in turn; the times are
those of each call within its chain, by wall time: median, 90th percentile and mean. Chains
alternate every 20 turns in one process. The attention is causal: its blocks take unequal time.
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

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

import tilecore
from workers.host import detect

TURNS, PAUSE_S = 20, 0.01  # of a chain, before the next one: torch's threads spin for a while
Calls = dict[str, Callable[[], Any]]


@tilecore.compute
def bells(x):  # type: ignore[no-untyped-def]
    return np.exp(-x * x).sum(axis=1)


@tilecore.compute
def layer(x, w):  # type: ignore[no-untyped-def]
    return np.tanh(x @ w)


@tilecore.compute
def torch_bells(x):  # type: ignore[no-untyped-def]
    return torch.exp(-x * x).sum(1)


@tilecore.compute
def torch_layer(x, w):  # type: ignore[no-untyped-def]
    return torch.tanh(x @ w)


@tilecore.compute
def causal(q, k, v):  # type: ignore[no-untyped-def]
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def cases() -> dict[str, Calls]:
    """Return chains of calls by name."""
    wide, left, right = torch.randn(2048, 2048), torch.randn(512, 512), torch.randn(512, 512)
    q, k, v = (torch.randn(1, 1, 2048, 64) for _ in range(3))
    out, whole = torch.empty(512, 512), torch.empty(2048, 2048)
    a, b, c = wide.numpy(), left.numpy(), right.numpy()
    arrays: Calls = {"bells": lambda: bells(a), "layer": lambda: layer(b, c)}
    tensors: Calls = {
        "bells": lambda: torch_bells(wide), "layer": lambda: torch_layer(left, right),
    }  # fmt: skip
    product: Calls = {"numpy.matmul": lambda: b @ c}
    product_of_torch: Calls = {"torch.mm": lambda: torch.mm(left, right, out=out)}
    return {
        "arrays": arrays,
        "tensors": tensors,
        "a product of NumPy, arrays": product | arrays,
        "a product of NumPy, tensors": product | tensors,
        "a product of torch, arrays": product_of_torch | arrays,
        "a product of torch, tensors": product_of_torch | tensors,
        "exponentials of torch, tensors": {"torch.exp": lambda: torch.exp(wide, out=whole)}
        | tensors,
        "causal attention": {"attention": lambda: causal(q, k, v)},
    }


def measured(chains: dict[str, Calls], rounds: int) -> dict[str, dict[str, list[int]]]:
    """Return the median, 90th percentile and mean in us of each call of each chain."""
    times: dict[str, dict[str, list[float]]] = {
        name: {call: [] for call in calls} for name, calls in chains.items()
    }
    for _ in range(rounds):
        for name, calls in chains.items():
            time.sleep(PAUSE_S)
            for call in calls.values():
                call()
            for _ in range(TURNS):
                for place, call in calls.items():
                    start = time.perf_counter()
                    call()
                    times[name][place].append(1e6 * (time.perf_counter() - start))
    return {
        name: {call: summary(found) for call, found in calls.items()}
        for name, calls in times.items()
    }


def summary(times: list[float]) -> list[int]:
    """Return the median, 90th percentile and mean."""
    last = statistics.quantiles(times, n=10)[-1]
    return [round(t) for t in (statistics.median(times), last, statistics.fmean(times))]


def main() -> None:
    """Measure and print all chains."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = measured(cases(), args.rounds)
    print("us: median / 90th percentile / mean")
    for name, calls in found.items():
        print(f"{name:31}", *(f"{call} {'/'.join(map(str, t))}" for call, t in calls.items()))
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": detect().name,
        "us": found,
    }  # fmt: skip
    if args.out is not None:
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
