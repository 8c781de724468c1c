"""The fault corpus: bad candidates among good ones, with the real workers of this machine.

    python -m benchmarks.faults [--parts local ray killed sticky] [--each 20] [--json FILE]

Each fault of tests/workers/fault_toolbox.py (segfaults, aborts, exits, hangs in C and in Python,
memory exhaustion, output without end, processes left behind, a killed worker, wrong, missing and
stray results, exceptions that cannot be pickled, a process spoilt for those that come next; in the
compiler and in the kernel) --each times, in random order among --good candidates that busy-wait for
a known time. Good ones must all be measured, and be measured right; each bad one must get the
status of its fault, with its cause. The throughput with faults is compared with that of the good
ones alone in the same run; a hang costs its time limit of 2 s, which is told apart. Memory is
filled up to the limit, which takes long: these come --greedy times each, one by one, with 120 s, in
a pool of their own.

Parts: ``local``, the corpus on the workers of this machine; ``ray``, the same on a local Ray
cluster of two nodes, whose attributions must be equal; ``killed``, actors on Ray that are killed
with SIGKILL while good candidates are measured, which the coordinator's rule (six tries, later and
later) gives back; ``sticky``, devices on Ray whose faults stay in the process that caused them.
Parts that were not asked for are kept as they are in FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.workers

from recommender.hardware import load_profile
from recommender.measurement import Measurement, MeasureStatus
from recommender.ports import MeasureRequest
from tests.workers.emulated_faults import StickyDevice
from tests.workers.fault_toolbox import HARDWARE, FaultToolbox
from tests.workers.measurer_contract import FAULTS, orphans, screen
from tests.workers.ray_nodes import node_beside
from tuner_service.coordinator.run_driver import Limits
from workers.measure_pool import MeasurePool
from workers.pool import LocalPool, wait_for_all

MORE = [
    ("spin", MeasureStatus.RUN_TIMEOUT, "killed after"),
    ("memory", MeasureStatus.LAUNCH_ERROR, "out of memory"),
    ("compile-memory", MeasureStatus.COMPILE_ERROR, "out of memory"),
    ("compile-exit", MeasureStatus.COMPILE_ERROR, "exited with code 3"),
    ("compile-abort", MeasureStatus.COMPILE_ERROR, "free(): invalid pointer"),
]
STICKY = [
    ("guilty", MeasureStatus.LAUNCH_ERROR, "illegal memory access"),
    ("poison", MeasureStatus.OK, ""),
]
CORPUS = {name: (status, cause) for name, status, cause in [*FAULTS, *MORE, *STICKY]}
GREEDY = ("memory", "compile-memory")
GREEDY_LIMIT_S = 120.0
SLOW = ("hang", "spin", "compile-hang")
LIMIT_S, LOWEST_US, HIGHEST_US = 2.0, 300, 900
MISTIMED = 0.25  # off by more than this share of the time
WAIT_S = 3600.0
KILL_EVERY_S = 2.0

MakePool = Callable[[Path, float], MeasurePool]
Found = Mapping[str, Measurement]


def good(number: int) -> MeasureRequest:
    """Return a candidate that takes a time of its own."""
    delay_us = LOWEST_US + (HIGHEST_US - LOWEST_US) * (number % 97) // 97
    return screen(f"good {number}", delay_us=delay_us)


def delay_s(request: MeasureRequest) -> float:
    """Return the time that a good candidate takes."""
    return int(request.config["delay_us"]) * 1e-6


def bad(faults: Sequence[str], each: int) -> list[MeasureRequest]:
    """Return candidates of each fault, no two alike."""
    return [
        screen(f"{name} {i}", name, delay_us=LOWEST_US + i) for name in faults for i in range(each)
    ]


@contextmanager
def warm(make: MakePool, limit_s: float) -> Iterator[MeasurePool]:
    """Yield workers that have started."""
    with tempfile.TemporaryDirectory() as folder, make(Path(folder), limit_s) as pool:
        wait_for_all(pool, [good(10**6 + i) for i in range(8)], WAIT_S)
        yield pool


def local_pool(folder: Path, limit_s: float) -> MeasurePool:
    """Return the workers of this machine without Ray."""
    return LocalPool(
        HARDWARE, artifact_dir=folder, toolbox=FaultToolbox(),
        compile_timeout_s=limit_s, run_timeout_s=limit_s,
    )  # fmt: skip


class RayPools:
    """Makes pools on the cluster that this process is in, each newer than the one before."""

    def __init__(self) -> None:
        self._epoch = 0

    def __call__(self, folder: Path, limit_s: float, **options: Any) -> MeasurePool:
        """Return the workers of all nodes."""
        from workers.ray_pool import RayPool

        self._epoch += 1
        return RayPool(
            options.pop("hardware", HARDWARE), artifact_dir=folder, epoch=self._epoch,
            toolbox=FaultToolbox(), compile_timeout_s=limit_s, run_timeout_s=limit_s, **options,
        )  # fmt: skip


def corpus(make: MakePool, given: argparse.Namespace) -> dict[str, Any]:
    """Return what became of good candidates alone, of all mixed, and of those that eat memory."""
    faults = [name for name, _, _ in [*FAULTS, *MORE] if name not in GREEDY]
    alone = [good(i) for i in range(given.good)]
    others = [good(given.good + i) for i in range(given.good)]
    mixed = shuffled([*others, *bad(faults, given.each)], given.seed)
    with warm(make, LIMIT_S) as pool:
        found, alone_s = timed(pool, alone)
        rest, mixed_s = timed(pool, mixed)
        found |= rest
    with warm(make, GREEDY_LIMIT_S) as pool:
        for request in bad(GREEDY, given.greedy):  # one by one: the memory is shared
            found |= wait_for_all(pool, [request], WAIT_S)
    return judged(found, [*alone, *others]) | {
        "alone_per_s": len(alone) / alone_s, "alone_s": alone_s, "mixed_s": mixed_s,
        "limits_waited_for_s": LIMIT_S * given.each * sum(name in faults for name in SLOW),
        "mixed_per_s": len(mixed) / mixed_s,
        "attributed": attributions(found),
    }  # fmt: skip


def killed_actors(make: MakePool, given: argparse.Namespace) -> dict[str, Any]:
    """Return what became of good candidates while actors are killed, tried again as runs do."""
    wanted = [good(i) for i in range(given.good)]
    with warm(make, LIMIT_S) as pool, killing(given.each, given.seed) as killed:
        found: dict[str, Measurement] = {}
        losses, most, goes = 0, 0, 0
        while len(killed) < given.each or goes == 0:
            goes += 1
            left = wanted
            for attempt in range(1, Limits().max_attempts + 1):
                now = wait_for_all(pool, left, WAIT_S)
                found |= now
                left = [r for r in left if now[r.token].status is MeasureStatus.WORKER_LOST]
                losses += len(left)
                if not left:
                    break
                time.sleep(Limits().delay_s(attempt))
            most = max(most, len(left))
    return judged(found, wanted) | {
        "killed": dict(Counter(killed)), "rounds_of_good": goes, "tried_again": losses,
        "lost_for_good": most,
    }  # fmt: skip


@contextmanager
def killing(times: int, seed: int) -> Iterator[list[str]]:
    """Kill actors of this process's cluster at random; yields the roles of the killed so far."""
    rng, killed, stop = np.random.default_rng(seed), [], threading.Event()

    def kill() -> None:
        while len(killed) < times and not stop.wait(float(rng.uniform(0.0, KILL_EVERY_S))):
            actors = [
                (p, title)
                for p in psutil.Process().children(recursive=True)
                for title in ("MeasureActor", "CompileActor")
                if title in _command(p)
            ]
            if actors:
                process, title = actors[rng.integers(len(actors))]
                process.kill()
                killed.append(title)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def sticky(make: RayPools, given: argparse.Namespace) -> dict[str, Any]:
    """Return what became of candidates of devices whose faults stay in their process."""
    device = load_profile("emulated a100")
    fine = [good(i) for i in range(given.good)]
    names = [name for name, _, _ in STICKY]
    mixed = shuffled([*fine, *bad(names, given.each)], given.seed)
    with (
        node_beside(device, devices=2, cpus=1),
        warm(lambda f, s: make(f, s, hardware=device, bench=StickyDevice), 60.0) as pool,
    ):
        found = wait_for_all(pool, mixed, WAIT_S)
    report = judged(found, fine)
    return {k: v for k, v in report.items() if "error" not in k and k != "good_mistimed"}


def shuffled(requests: Sequence[MeasureRequest], seed: int) -> list[MeasureRequest]:
    """Return them in random order."""
    return [requests[i] for i in np.random.default_rng(seed).permutation(len(requests))]


def timed(pool: MeasurePool, requests: Sequence[MeasureRequest]) -> tuple[dict[str, Any], float]:
    """Return measurements by token, and the seconds they took together."""
    began = time.perf_counter()
    return wait_for_all(pool, requests, WAIT_S), time.perf_counter() - began


def judged(found: Found, fine: Sequence[MeasureRequest]) -> dict[str, Any]:
    """Return how many good candidates were lost or mistimed, and which bad ones misjudged."""
    lost = Counter(found[r.token].status.value for r in fine)
    lost.pop("OK", None)
    off = [_error(r, found[r.token]) for r in fine if found[r.token].status is MeasureStatus.OK]
    wrong = [
        f"{token}: {m.status.value} ({m.detail[:80]})"
        for token, m in found.items()
        if (fault := token.rsplit(" ", 1)[0]) in CORPUS and not _is_attributed(m, *CORPUS[fault])
    ]
    return {
        "good": len(fine), "good_lost": sum(lost.values()), "good_lost_as": dict(lost),
        "good_mistimed": sum(abs(e) > MISTIMED for e in off),
        "good_error_median": float(np.median(np.abs(off))), "good_error_worst": float(max(off)),
        "bad": sum(not token.startswith("good") for token in found), "bad_not_attributed": wrong,
        "processes_left": len(orphans()),
    }  # fmt: skip


def attributions(found: Found) -> dict[str, dict[str, int]]:
    """Return by fault how often which status and cause was given; numbers in causes are #."""
    told: dict[str, Counter[str]] = {}
    for token, m in found.items():
        fault = token.rsplit(" ", 1)[0]
        if fault in CORPUS:
            cause = re.sub(r"-?\d[\d.e+-]*", "#", f"{m.status.value}: {m.detail}")
            told.setdefault(fault, Counter())[cause] += 1
    return {fault: dict(sorted(told[fault].items())) for fault in sorted(told)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=["local"])
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--greedy", type=int, default=3)
    parser.add_argument("--good", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    report: dict[str, Any] = {}
    if given.json and given.json.exists():
        report = json.loads(given.json.read_text())
    if "local" in given.parts:
        report["local"] = measured(PARTS["local"], local_pool, given)
    if rest := [part for part in given.parts if part != "local"]:
        with ray_of_two_nodes() as pools:
            report |= {part: measured(PARTS[part], pools, given) for part in rest}
    if {"local", "ray"} <= report.keys():
        one, two = report["local"]["attributed"], report["ray"]["attributed"]
        report["attributed_differently"] = [f for f in one if set(one[f]) != set(two[f])]
    print(json.dumps(report, indent=1))
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


PARTS: dict[str, Callable[[Any, argparse.Namespace], dict[str, Any]]] = {
    "local": corpus, "ray": corpus, "killed": killed_actors, "sticky": sticky,
}  # fmt: skip


def measured(
    part: Callable[[Any, argparse.Namespace], dict[str, Any]], make: Any, given: argparse.Namespace
) -> dict[str, Any]:
    """Return a part's report with when and how it was measured."""
    before = os.getloadavg()[0]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "cores": os.cpu_count(),
        "load_before": before, "each": given.each, "greedy": given.greedy,
        **part(make, given), "load_after": os.getloadavg()[0],
    }  # fmt: skip


@contextmanager
def ray_of_two_nodes() -> Iterator[RayPools]:
    """Yield what makes pools on a cluster of two nodes of this machine."""
    from workers.ray_cluster import leave, start_local

    with ExitStack() as stack:
        start_local(HARDWARE)
        stack.callback(leave)
        stack.enter_context(node_beside(HARDWARE, devices=1, cpus=HARDWARE.cores))
        yield RayPools()


def _error(request: MeasureRequest, found: Measurement) -> float:
    assert found.time_s is not None
    return found.time_s / delay_s(request) - 1.0


def _is_attributed(found: Measurement, status: MeasureStatus, cause: str) -> bool:
    return found.status is status and cause in found.detail


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


if __name__ == "__main__":
    main()
