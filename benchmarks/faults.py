"""The fault corpus: bad candidates among good ones, with the real workers of this machine.

    python benchmarks/faults.py [--each 20] [--good 200] [--seed 0] [--json FILE]

Each fault of tests/workers/fault_toolbox.py (segfaults, aborts, exits, hangs in C and in Python,
memory exhaustion, wrong, missing and stray results, exceptions that cannot be pickled; in the
compiler and in the kernel) --each times, in random order among --good candidates that busy-wait
for a known time. Good ones must all be measured, and be measured right; each bad one must get the
status of its fault, with its cause. The throughput with faults is compared with that of the good
ones alone in the same run; a hang costs its time limit of 2 s, which is told apart. Memory is used
up to the limit, which takes long: these come --greedy times each, with 120 s, in a pool of their
own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.workers

from recommender.measurement import Measurement, MeasureStatus
from recommender.ports import MeasureRequest
from tests.workers.fault_toolbox import HARDWARE, FaultToolbox
from tests.workers.measurer_contract import FAULTS, screen
from workers.pool import LocalPool, wait_for_all

MORE = [
    ("spin", MeasureStatus.RUN_TIMEOUT, "killed after"),
    ("memory", MeasureStatus.LAUNCH_ERROR, "out of memory"),
    ("compile-memory", MeasureStatus.COMPILE_ERROR, "out of memory"),
    ("compile-exit", MeasureStatus.COMPILE_ERROR, "exited with code 3"),
    ("compile-abort", MeasureStatus.COMPILE_ERROR, "free(): invalid pointer"),
]
GREEDY = ("memory", "compile-memory")
GREEDY_LIMIT_S = 120.0
SLOW = ("hang", "spin", "compile-hang")
LIMIT_S, LOWEST_US, HIGHEST_US = 2.0, 300, 900
MISTIMED = 0.25  # off by more than this share of the time


def good(number: int) -> MeasureRequest:
    """Return a candidate that takes a time of its own."""
    delay_us = LOWEST_US + (HIGHEST_US - LOWEST_US) * (number % 97) // 97
    return screen(f"good {number}", delay_us=delay_us)


def delay_s(request: MeasureRequest) -> float:
    """Return the time that a good candidate takes."""
    return int(request.config["delay_us"]) * 1e-6


@contextmanager
def pool_of(limit_s: float) -> Iterator[LocalPool]:
    """Yield the workers of this machine, warm."""
    with tempfile.TemporaryDirectory() as folder:
        pool = LocalPool(
            HARDWARE, artifact_dir=Path(folder), toolbox=FaultToolbox(),
            compile_timeout_s=limit_s, run_timeout_s=limit_s,
        )  # fmt: skip
        try:
            wait_for_all(pool, [good(10**6)], 600)
            yield pool
        finally:
            pool.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--greedy", type=int, default=3)
    parser.add_argument("--good", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    faults = {name: (status, cause) for name, status, cause in [*FAULTS, *MORE]}
    times = {name: given.greedy if name in GREEDY else given.each for name in faults}
    bad = [screen(f"{name} {i}", name, delay_us=i) for name in faults for i in range(times[name])]
    alone = [good(i) for i in range(given.good)]
    mixed = [good(given.good + i) for i in range(given.good)] + bad
    mixed = [mixed[i] for i in np.random.default_rng(given.seed).permutation(len(mixed))]
    greedy = [r for r in mixed if r.token.rsplit(" ", 1)[0] in GREEDY]
    mixed = [r for r in mixed if r not in greedy]
    with pool_of(LIMIT_S) as pool:
        began = time.perf_counter()
        found = wait_for_all(pool, alone, 3600)
        alone_s = time.perf_counter() - began
        began = time.perf_counter()
        found |= wait_for_all(pool, mixed, 3600)
        mixed_s = time.perf_counter() - began
    with pool_of(GREEDY_LIMIT_S) as pool:
        found |= wait_for_all(pool, greedy, 3600)
    fine = alone + [r for r in mixed if r.token.startswith("good")]
    lost = Counter(found[r.token].status.value for r in fine)
    lost.pop("OK", None)
    off = [_error(r, found[r.token]) for r in fine if found[r.token].status is MeasureStatus.OK]
    wrong = [
        f"{r.token}: {found[r.token].status.value} ({found[r.token].detail[:80]})"
        for r in bad
        if not _is_attributed(found[r.token], *faults[r.token.rsplit(" ", 1)[0]])
    ]
    waits_s = LIMIT_S * given.each * sum(name in faults for name in SLOW)
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "cores": os.cpu_count(),
        "load_after": os.getloadavg()[0], "faults": len(faults), "each": given.each,
        "greedy": given.greedy,
        "good": len(fine), "good_lost": sum(lost.values()), "good_lost_as": dict(lost),
        "good_mistimed": sum(abs(e) > MISTIMED for e in off),
        "good_error_median": float(np.median(np.abs(off))), "good_error_worst": float(max(off)),
        "bad": len(bad), "bad_not_attributed": wrong,
        "alone_per_s": len(alone) / alone_s, "alone_s": alone_s, "mixed_s": mixed_s,
        "limits_waited_for_s": waits_s,
        "mixed_per_s": len(mixed) / mixed_s,
    }  # fmt: skip
    print(json.dumps(report, indent=1))
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


def _error(request: MeasureRequest, found: Measurement) -> float:
    assert found.time_s is not None
    return found.time_s / delay_s(request) - 1.0


def _is_attributed(found: Measurement, status: MeasureStatus, cause: str) -> bool:
    return found.status is status and cause in found.detail


if __name__ == "__main__":
    main()
