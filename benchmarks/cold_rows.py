"""One row times weights that no cache holds, beside torch: one kernel, as recommended, on the CPU.

    python benchmarks/cold_rows.py [--dtype bfloat16] [--layout kn] [--threads 1]

Weights are (N, K), or (K, N) with ``--layout kn``. Torch and the kernel take turns on copies of
them that fill 256 MiB together; medians of 80 calls each of the wall's time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch

import tilecore

SHAPES = ((512, 1024), (1024, 1024), (2816, 1024), (1024, 2816), (8192, 1024), (4096, 4096))
TOTAL_BYTES, CALLS = 1 << 28, 80
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def timed(product: Product, x: torch.Tensor, w: torch.Tensor) -> float:
    start = time.perf_counter()
    product(x, w)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--layout", choices=("nk", "kn"), default="nk")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    product: Product = torch.nn.functional.linear if arguments.layout == "nk" else torch.matmul
    print("| N | K | torch, us | ours, us | torch / ours | ours, GB/s | largest error |")
    print("|---|---|---|---|---|---|---|")
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        os.environ["TILECORE_DATA_DIR"] = folder
        for n, k in SHAPES:
            shape = (n, k) if arguments.layout == "nk" else (k, n)
            count = max(2, TOTAL_BYTES // (n * k * dtype.itemsize))
            x, *ws = ((torch.randn(s) / k**0.25).to(dtype) for s in ((1, k), *[shape] * count))
            kernel = tilecore.compute(product).plan(x, ws[0]).stages[0].kernel.run
            wanted = product(x.double(), ws[0].double())
            error = float((kernel(x, ws[0]).double() - wanted).abs().max() / wanted.abs().max())
            theirs, ours = [], []
            for i in range(CALLS):
                theirs.append(timed(product, x, ws[2 * i % count]))
                ours.append(timed(kernel, x, ws[(2 * i + 1) % count]))
            a, b = (statistics.median(times) * 1e6 for times in (theirs, ours))
            speed = n * k * dtype.itemsize / b / 1e3
            cells = f"{a:.0f} | {b:.0f} | {a / b:.2f} | {speed:.1f} | {error:.1e}"
            print(f"| {n} | {k} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
