"""What torch's calls and ours cost each other when they alternate without a pause.

    python benchmarks/thread_pools.py [--size 512] [--rounds 200] [--out FILE.json]

GEMM float32 on all cores: torch.mm alone, ours alone, and in turn. ``cost`` is the median time in
turn divided by the median alone. ``shared``: kernels run on torch's threads, as they do where torch
is; ``sleeping``: on TVM's, whose workers sleep at once between calls, as without torch;
``spinning``: TVM's default. Each is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SPIN = "TVM_THREAD_POOL_SPIN_COUNT"
TVM_DEFAULT = "300000"


def seconds(calls: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Return the median wall time of each call, the calls made in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, found in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
    return [statistics.median(t) for t in times]


def measured(size: int, rounds: int, *, is_shared: bool) -> dict[str, float]:
    """Return times in microseconds and costs, in this process."""
    import torch

    from tilecore import kernels
    from tilecore.compiler import compile
    from tilecore.runtime import load, share_threads

    share_threads(is_shared)
    gemm = kernels.get("gemm")
    problem = gemm.parse_problem({"m": size, "n": size, "k": size})
    kernel = load(compile(gemm.program(problem, dict(gemm.default_config()))))
    a, b, c, d = (torch.randn(size, size) for _ in range(4))

    def ours() -> None:
        kernel(a, b, c)

    def rival() -> None:
        torch.mm(a, b, out=d)

    seconds([ours, rival], 20)
    (alone,), (torch_alone,) = seconds([ours], rounds), seconds([rival], rounds)
    together, torch_together = seconds([ours, rival], rounds)
    torch.testing.assert_close(c, d, rtol=1e-3, atol=1e-3)
    return {
        "ours_us": alone * 1e6,
        "torch_us": torch_alone * 1e6,
        "ours_cost": together / alone,
        "torch_cost": torch_together / torch_alone,
    }


def main() -> None:
    """Measure both settings and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--here", action="store_true", help="measure in this process only")
    parser.add_argument("--shared", action="store_true", help="there, on torch's threads")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.here:
        print(json.dumps(measured(args.size, args.rounds, is_shared=args.shared)))
        return
    found: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    for name, count in (("shared", "0"), ("sleeping", "0"), ("spinning", TVM_DEFAULT)):
        command = [sys.executable, __file__, "--here", "--size", str(args.size)]
        command += ["--shared"] if name == "shared" else []
        done = subprocess.run(
            [*command, "--rounds", str(args.rounds)],
            env={**os.environ, SPIN: count}, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        found[name] = json.loads(done.stdout)
        print(name, {key: round(value, 2) for key, value in found[name].items()})
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
