"""CPU time of one recommendation, worked out in this process: what a question costs a core.

    OMP_NUM_THREADS=1 python benchmarks/answer_time.py [--count 150] [--hardware NAME] [--json FILE]

Fills an SQLite file in a temporary folder as ``service_load.py`` does and asks
``answering.work_out_undoubted`` for GEMM (float32, k 1024, ``top_k`` 5), every question once:

- eight records: eight different configs were confirmed for the question.
- one record: one config was.
- cold, near records: nothing was measured for it; all its neighbours have one record.
- cold: the database is empty.

Prints median and 99th percentile of the time of this thread's processor (``time.thread_time``) and
of the wall, in milliseconds. HTTP and the way to an answering process are not in them. Where the
kernel counts them (``perf_event_paranoid`` up to 2, x86-64), also the median of the instructions
of an answer, in millions: other guests of a shared machine do not change these.

``kernel_answers.py`` asks about every kernel, and compares what is answered with another version.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import struct
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from service_load import FIRST_ROW, apart, fill

from db.snapshot import Snapshot
from db.store import SqlStore
from tuner_service.answers.answering import work_out_undoubted
from tuner_service.schemas import RecommendationRequest
from tuner_service.settings import load_settings
from tuner_service.wiring import open_store

ONE, EIGHT, UNMEASURED = 512, 640, 768  # n of the questions with one record, eight and none
FIRST = 20  # questions that load what all need
PERF_EVENT_OPEN = 298  # number of the system call on x86-64 (asm/unistd_64.h)
HARDWARE, INSTRUCTIONS, USER_ONLY = 0, 1, 0b11 << 5  # linux/perf_event.h: exclude_kernel, _hv


class Instructions:
    """Counts the instructions of this thread, in user mode."""

    def __init__(self) -> None:
        event = bytearray(112)
        struct.pack_into("=IIQQQQQ", event, 0, HARDWARE, 112, INSTRUCTIONS, 0, 0, 0, USER_ONLY)
        given = (ctypes.c_char * 112).from_buffer(event)
        is_here = platform.machine() == "x86_64"
        libc = ctypes.CDLL(None)
        self._file = libc.syscall(PERF_EVENT_OPEN, given, 0, -1, -1, 0) if is_here else -1

    def __call__(self) -> float:
        """Return how many there were so far; nan where nobody counts."""
        if self._file < 0:
            return float("nan")
        return float(struct.unpack("=Q", os.read(self._file, 8))[0])


def ask(store: SqlStore, rows: Sequence[int], n: int, hardware: str | None) -> dict[str, float]:
    """Return what the times of answers were, in ms."""
    known, executed = Snapshot(store), Instructions()
    cpu_s, wall_s, counted = [], [], []
    for m in rows:
        request = RecommendationRequest(
            kernel="gemm", problem={"m": m, "n": n, "k": 1024}, hardware=hardware, top_k=5
        )
        before, cpu, wall = executed(), time.thread_time(), time.perf_counter()
        answer = work_out_undoubted(known, request)
        cpu_s.append(time.thread_time() - cpu)
        wall_s.append(time.perf_counter() - wall)
        counted.append(executed() - before)
        assert answer is not None
    cpu_ms, wall_ms = (1e3 * np.array(found[FIRST:]) for found in (cpu_s, wall_s))
    return {
        "cpu_p50_ms": float(np.median(cpu_ms)), "cpu_p99_ms": float(np.quantile(cpu_ms, 0.99)),
        "wall_p50_ms": float(np.median(wall_ms)), "wall_p99_ms": float(np.quantile(wall_ms, 0.99)),
        "instructions_m": float(np.median(counted[FIRST:])) / 1e6,
    }  # fmt: skip


def store_in(folder: str, hardware: str | None) -> None:
    """Store what questions find in the database of a folder."""
    store = open_store(load_settings(data_dir=folder))
    fill(store, 4000, n=ONE, hardware=hardware)
    fill(store, 1000, n=EIGHT, each=8, hardware=hardware)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=150, help="questions of each kind")
    parser.add_argument("--hardware", help="a device instead of this host")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    count = FIRST + given.count
    rng = np.random.default_rng(2026)
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as empty:
        apart(store_in, folder, given.hardware)
        store = open_store(load_settings(data_dir=folder))
        for kind, (where, n, among) in {
            "eight records": (store, EIGHT, 1000),
            "one record": (store, ONE, 4000),
            "cold, near records": (store, UNMEASURED, 4000),
            "cold": (open_store(load_settings(data_dir=empty)), UNMEASURED, 4000),
        }.items():
            rows = FIRST_ROW + rng.permutation(among)[:count]
            found[kind] = ask(where, rows.tolist(), n, given.hardware)
            print(f"{kind:20} " + ", ".join(f"{k} {v:.2f}" for k, v in found[kind].items()))
    if given.json is not None:
        document: dict[str, Any] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"), "count": given.count,
            "hardware": given.hardware or "host", "load": os.getloadavg()[0],
            "versions": {"python": platform.python_version(), "numpy": np.__version__},
            "results": found,
        }  # fmt: skip
        given.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
