"""What the proof of order costs beside the rest of a compilation.

    python benchmarks/order_latency.py [--repeats 5]

For each program and GPU, medians in milliseconds of process CPU time: to lower the program and
generate its CUDA text, to read the TIR as events, and to check the last block of the grid (a
compilation with ``check_order`` does both for the first block, too).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from compile_latency import attention, quickstart

from tilecore.codegen.order_proof import ENOUGH, order_programs
from tilecore.gpu_compiler import lower_gpu
from tilecore.gpu_target import GpuTarget
from tilecore.ir.nodes import PrimFunc
from tilecore.ordering import judge
from tilecore.target import parse_target

CASES = (("gemm", quickstart, ("a100", "h100", "b200")), ("attention", attention, ("a100", "h100")))


def timed(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Return (median of the CPU time in milliseconds, the last result)."""
    times, found = [], None
    for _ in range(repeats):
        start = time.process_time_ns()
        found = work()
        times.append((time.process_time_ns() - start) / 1e6)
    return statistics.median(times), found


def measure(name: str, func: PrimFunc, target: str, repeats: int) -> str:
    """Return a line with the times of one program on one GPU."""
    device = parse_target(target)
    assert isinstance(device, GpuTarget)
    lowering, (_, program, _) = timed(lambda: lower_gpu(func, device), repeats)
    reading, kernels = timed(lambda: order_programs(program), repeats)
    checking, verdicts = timed(lambda: [judge(k, ENOUGH) for k in kernels], repeats)
    faults = sum(len(v.faults) + len(v.unread) for v in verdicts)
    return (
        f"{name:10} {target:5} lower and generate {lowering:6.1f} ms, read {reading:5.1f} ms, "
        f"check {checking:6.1f} ms, {faults} faults"
    )


def main() -> None:
    """Print a line per program and GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    for name, make, targets in CASES:
        func = make()
        for target in targets:
            print(measure(name, func, target, repeats))


if __name__ == "__main__":
    main()
