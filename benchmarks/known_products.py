"""Products of users by the analytic model alone, and by what is known of the library's gemm too.

    python -m benchmarks.known_products [--rounds 11] [--threads 1 2] [--json FILE]

A matmul as users write it (tests/recommender/user_programs.py), in shapes of which none was
recorded but those named: both first recommendations and torch.matmul, interleaved, outputs given;
one thread by thread CPU time, several by wall time. Both results are checked against float64. The
database is empty: what is known is what ships.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpu import interleaved, profile, ratio
from recommender.hardware import HardwareProfile
from recommender.remembered import Known
from tests.recommender import user_programs as programs
from tests.recommender.support import MemoryStore
from tilecore import kernels
from tilecore.advice import question_of
from tilecore.artifact import compiler_versions
from tuner_service.advice import advise_for
from tuner_service.wiring import host_toolchain

SHAPES = (
    (512, 1024, 1024), (512, 1536, 512), (512, 1376, 512), (512, 512, 1376), (384, 3072, 768),
    (100, 768, 3072), (2048, 768, 768), (1500, 1500, 1500), (197, 3072, 768), (32, 4096, 4096),
    (3000, 128, 2000), (640, 640, 5120),
)  # fmt: skip
TOLERANCE = 1e-4  # of the largest element


def measured(
    shape: tuple[int, int, int], hardware: HardwareProfile, options: argparse.Namespace
) -> dict[str, Any]:
    """Return configs, times and ratios of one shape."""
    m, n, k = shape
    a, b, out = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
    exact, given = a.double() @ b.double(), {"M": m, "N": n, "K": k, "dtype": "float32"}
    known = Known(MemoryStore(), host_toolchain().on("cpu").key, kernels.get("gemm"))
    found: dict[str, Any] = {"shape": list(shape)}
    for threads in options.threads:
        question = question_of(
            programs.matmul, (), given, target=None, top_k=1, cores=threads
        )  # fmt: skip
        first = {
            "analytic": advise_for(question, hardware)[0],
            "known": advise_for(question, hardware, known=known)[0],
        }
        calls: dict[str, Callable[[], Any]] = {"torch": lambda: torch.mm(a, b, out=out)}
        for name, r in first.items():
            kernel = programs.matmul.compile(**given, **r.config, **r.lowering)
            error = ((kernel(a, b).double() - exact).abs().max() / exact.abs().max()).item()
            assert error < TOLERANCE, (shape, r, error)
            calls[name] = functools.partial(kernel, a, b, out)
        times = interleaved(calls, threads, options.rounds)
        found[f"{threads}T"] = {
            "configs": {k: f"{r.source}: {r.config} {r.lowering}" for k, r in first.items()},
            "us": {k: statistics.median(t) * 1e6 for k, t in times.items()},
            "known_of_analytic": ratio(times, "analytic", "known"),
            "known_of_torch": ratio(times, "torch", "known"),
        }
    return found


def main() -> None:
    """Measure all shapes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    hardware, rows = profile("llvm"), []
    for shape in SHAPES:
        rows.append(measured(shape, hardware, options))
        for t in options.threads:
            row = rows[-1][f"{t}T"]
            print(f"{shape} {t}T: known / analytic {row['known_of_analytic']:.2f}, of torch "
                  f"{row['known_of_torch']:.2f}; {row['configs']}", flush=True)  # fmt: skip
    for t in options.threads:
        for name in ("known_of_analytic", "known_of_torch"):
            found = [row[f"{t}T"][name] for row in rows]
            mean = math.exp(statistics.fmean(map(math.log, found)))
            print(f"{t}T {name}: geometric mean {mean:.3f}, least {min(found):.2f}")
    if options.json:
        versions = {"torch": torch.__version__, **compiler_versions()}
        options.json.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
