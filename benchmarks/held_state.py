"""What calls of a computation cost for looking at what its function holds.

    python benchmarks/held_state.py [--layers 4,32]

For layers of torch's transformer encoder: how many entries are looked at, microseconds per call for
that, and milliseconds to find them once. No kernel is compiled.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import timeit

import torch

from tilecore.computing.reading.held import Held, Taken

TURNS = 15


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", default="4,32", help="of the encoder, joined by commas (4,32)")
    counts = [int(n) for n in parser.parse_args().layers.split(",")]
    rows = [("x * 2 + 1", lambda x: x * 2 + 1)]
    for count in counts:
        layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        rows.append((f"{count} layers", torch.nn.TransformerEncoder(layer, count).eval()))
    sys.stdout.write("| function | modules | entries | us per call | ms to find them |\n")
    sys.stdout.write("|---|---|---|---|---|\n")
    for name, function in rows:
        began = time.perf_counter()
        held = Held(function, Taken())
        found_s = time.perf_counter() - began
        number = 2000 if held.count < 100 else 100
        times = [timeit.timeit(held.holds, number=number) / number for _ in range(TURNS)]
        modules = len(list(function.modules())) if isinstance(function, torch.nn.Module) else 0
        sys.stdout.write(
            f"| {name} | {modules} | {held.count} | {statistics.median(times) * 1e6:.1f} | "
            f"{found_s * 1e3:.1f} |\n"
        )


if __name__ == "__main__":
    main()
