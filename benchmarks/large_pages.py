"""New outputs in large pages and in those that come, beside torch eager, by size.

    python -m benchmarks.large_pages [--threads 1 2] [--rounds 11] [--json FILE]

Functions of rows of 1,024 numbers of float32, a new output per call, which ``runtime/pages.py``
asks for in large pages from 32 MiB on ("large") or does not ("as they come"). Interleaved in one
process; one thread by thread CPU time, several by wall time; medians, and ratios to "large".
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import tilecore
from benchmarks.against_torch import Row, write
from benchmarks.cpu import interleaved
from tilecore.runtime import pages

N = 1024
SIZES_MIB = (24, 32, 64, 256)
CASES: dict[str, Callable[..., torch.Tensor]] = {
    "scale": lambda x: x * 2,
    "gelu": torch.nn.functional.gelu,
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, (N,)),
    "softmax": lambda x: x.softmax(-1),
}


def _not_asked(tensor: torch.Tensor) -> None:
    """Stand in for what asks; a mock would keep the tensor."""


def measured(name: str, size_mib: int, threads: int, rounds: int) -> Row:
    """Return the times of a function with an output of ``size_mib``; print them."""
    function, x = CASES[name], torch.randn(size_mib * (1 << 20) // (4 * N), N)
    computation = tilecore.compute(function, dynamic=False)
    torch.testing.assert_close(computation(x), function(x), rtol=1e-4, atol=1e-5)

    def as_they_come() -> Any:
        with mock.patch.object(pages, "ask_for_large", _not_asked):
            return computation(x)

    calls: dict[str, Callable[[], Any]] = {
        "large": lambda: computation(x), "as they come": as_they_come, "torch": lambda: function(x),
    }  # fmt: skip
    ms = {
        way: 1e3 * statistics.median(times)
        for way, times in interleaved(calls, threads, rounds).items()
    }
    others, shown = (ms[way] / ms["large"] for way in ("as they come", "torch")), ms["large"]
    first, second = others
    print(f"| {name} | {size_mib} | {threads} | {shown:.1f} | {first:.2f} | {second:.2f} |",
          flush=True)  # fmt: skip
    return {"case": name, "output_mib": size_mib, "threads": threads, "ms": ms}


def main() -> None:
    """Measure every function at every size and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    print("| function | output MiB | threads | ms | as they come / large | torch / large |")
    print("|---|---|---|---|---|---|")
    rows = [
        measured(name, size, threads, options.rounds)
        for threads in options.threads for size in SIZES_MIB for name in CASES
    ]  # fmt: skip
    write(rows, options.json)


if __name__ == "__main__":
    main()
