"""Tune a kernel of your own, in any language: you measure, tilecore says what to try next.

    python examples/tune_your_own_kernel.py [URL]

The kernel here is a blocked transpose in NumPy; yours may be CUDA, Triton or C++. Start the script
several times at once: no configuration is measured twice, and a start after the last one knows the
answer. With the URL of a service (`tilecore serve`) several machines share the study; where it
needs a key, set TILECORE_KEY. What this uses is REST: docs/rest.md has it for other languages.
"""

import sys
import time

import numpy as np

from tilecore.errors import TileError
from tuner_service.study import Study

N = 2048


def transpose(a, out, rows, columns, order):
    """Write the transpose of ``a`` into ``out``, block by block."""
    starts = [(i, j) for i in range(0, N, rows) for j in range(0, N, columns)]
    if order == "columns first":
        starts.sort(key=lambda start: start[::-1])
    for i, j in starts:
        out[j : j + columns, i : i + rows] = a[i : i + rows, j : j + columns].T


def measure(config):
    """Return the times of a configuration in seconds; what is raised is why it has none."""
    a = np.random.default_rng().random((N, N), np.float32)
    out = np.full((N, N), np.nan, np.float32)
    transpose(a, out, **config)
    if not np.array_equal(out, a.T):
        raise ValueError("wrong result")
    times_s = []
    for _ in range(5):
        began = time.perf_counter()
        transpose(a, out, **config)
        times_s.append(time.perf_counter() - began)
    print(config, f"{np.median(times_s) * 1e6:.0f} us")
    return times_s


def main():
    study = Study(
        "blocked transpose",
        {
            "rows": [8, 16, 32, 64, 128, 256, 512],
            "columns": [8, 16, 32, 64, 128, 256, 512],
            "order": ["rows first", "columns first"],
        },
        conditions=["rows * columns * 4 * 2 <= 1024 * 1024", "rows * columns >= 512"],
        default={"rows": 64, "columns": 64, "order": "rows first"},
        problem={"n": N},
        max_trials=30,
        key=f"transpose-{N}",  # one study of all processes that say this
        service=sys.argv[1] if len(sys.argv) > 1 else None,
    )
    best = study.optimize(measure)
    print("best:", dict(best.config), f"{best.time_s * 1e6:.0f} us")


if __name__ == "__main__":
    try:
        main()
    except TileError as error:
        sys.exit(str(error))
