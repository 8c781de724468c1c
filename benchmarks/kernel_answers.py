"""CPU time of recommendations for every kernel of the library, on CPUs and GPUs.

    OMP_NUM_THREADS=1 python benchmarks/kernel_answers.py [KERNEL ...] [--devices host,h100-sxm] \
        [--count 60] [--json FILE]

Each question is about another length of sequence, number of rows or images, as a service is asked
by programs of a model whose other sizes stay. Worked out in this process as answering processes do
(``answering.work_out_undoubted``, ``top_k`` 3), on an SQLite file in a temporary folder:

- cold: nothing was measured of the kernel.
- measured: three configs were confirmed for the question.

Prints median and 99th percentile of the time of this thread's processor, in milliseconds; HTTP and
the way to an answering process are not in them (``service_load.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from db.snapshot import Snapshot
from db.store import SqlStore
from recommender.errors import EmptySpace
from recommender.measurement import Measurement, MeasureStatus, Protocol
from tilecore import kernels
from tilecore.tile_config import TileConfig
from tuner_service.answering import work_out_undoubted
from tuner_service.questions import understand
from tuner_service.schemas import RecommendationRequest
from tuner_service.settings import load_settings
from tuner_service.wiring import open_store

FIRST = 10  # questions that load what all need
TOP_K = 3
HEADS = {"batch": 4, "heads": 32, "kv_heads": 8, "dim": 128}
LAYER = {"n": 4096, "k": 4096}
# Of each kernel the sizes that questions differ in, and those that stay.
PROBLEMS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "attention": (("seq_q", "seq_kv"), {**HEADS, "causal": True}),
    "attention_backward": (("seq_q", "seq_kv"), {**HEADS, "causal": True}),
    "batched_gemm": (("m",), {"batch": 16, "n": 1024, "k": 128}),
    "conv2d": (("batch",), {"height": 56, "width": 56, "channels": 64, "filters": 128}),
    "decode_attention": (("seq_kv",), {**HEADS, "seq_q": 1}),
    "dequant_gemm": (("m",), LAYER),
    "elementwise": (("m",), {"n": 4096}),
    "gemm": (("m",), LAYER),
    "gemm_epilogue": (("m",), LAYER),
    "grouped_gemm": (("m",), {"experts": 8, "n": 4096, "k": 1024}),
    "layer_norm": (("m",), {"n": 4096}),
    "linear_attention": (("seq_len",), {"batch": 4, "heads": 32, "dim": 128, "dim_v": 128}),
    "reduction": (("m",), {"n": 4096}),
    "rms_norm": (("m",), {"n": 4096}),
    "scaled_gemm": (("m",), LAYER),
    "softmax": (("m",), {"n": 4096}),
    "split_k_gemm": (("m",), {"n": 256, "k": 16384}),
}


def problem_of(name: str, size: int) -> dict[str, Any]:
    """Return a problem of a kernel, in 16-bit floats where the kernel has them."""
    varied, fixed = PROBLEMS[name]
    dtypes = next(f for f in kernels.get(name).fields if f.name == "dtype").choices
    dtype = {"dtype": "bfloat16"} if "bfloat16" in dtypes else {}
    return {**dtype, **fixed, **dict.fromkeys(varied, size)}


def ask(known: Snapshot, name: str, device: str | None, sizes: Sequence[int]) -> dict[str, float]:
    """Return the times of answers in ms, and how many were of what was measured."""
    times_s, measured = [], 0
    for size in sizes:
        request = RecommendationRequest(
            kernel=name, problem=problem_of(name, size), hardware=device, top_k=TOP_K
        )
        began = time.thread_time()
        answer = work_out_undoubted(known, request)
        times_s.append(time.thread_time() - began)
        assert answer is not None
        measured += answer.source == "measured"
    times_ms = 1e3 * np.array(times_s[FIRST:])
    return {
        "p50_ms": float(np.median(times_ms)), "p99_ms": float(np.quantile(times_ms, 0.99)),
        "measured": measured,
    }  # fmt: skip


def confirm(store: SqlStore, name: str, device: str | None, sizes: Sequence[int]) -> None:
    """Store measurements of the first choices for every size."""
    known, found = Snapshot(store), []
    for size in sizes:
        problem = problem_of(name, size)
        request = RecommendationRequest(kernel=name, problem=problem, hardware=device, top_k=TOP_K)
        answer = work_out_undoubted(known, request)
        assert answer is not None
        question = understand(store, name, problem, hardware=device)
        # Any program is the question's: its version would be remembered if it were found out here.
        found += [
            Measurement(
                workload=question.workload, config=TileConfig.of(told["config"]),
                hardware=question.hardware, toolchain=question.toolchain,
                program_digest=question.definition.program_digest(dict(question.workload.problem)),
                protocol=Protocol.CONFIRM, threads=question.hardware.cores,
                status=MeasureStatus.OK, times_s=(1e-3 + rank * 1e-5,) * 5,
                reference_times_s=(2e-3,) * 5, measured_at=datetime.now(UTC),
            )
            for rank, told in enumerate(json.loads(answer.body)["recommendations"])
            if question.definition is not None
        ]  # fmt: skip
    store.add_all(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="*", default=sorted(PROBLEMS), metavar="KERNEL")
    parser.add_argument("--devices", default="host,h100-sxm,mi300x")
    parser.add_argument("--count", type=int, default=60, help="questions of each kind")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for device in given.devices.split(","):
        hardware = None if device == "host" else device
        for name in given.kernels:
            sizes = np.random.default_rng(2026).permutation(np.arange(128, 4096))[:1000].tolist()
            cold, again = sizes[: FIRST + given.count], sizes[-FIRST - given.count :]
            with tempfile.TemporaryDirectory() as folder:
                store = open_store(load_settings(data_dir=folder))
                try:
                    found = ask(Snapshot(store), name, hardware, cold)
                except EmptySpace:
                    print(f"{device:10} {name:20} no legal config", flush=True)
                    continue
                confirm(store, name, hardware, again)
                hits = ask(Snapshot(store), name, hardware, again)
            assert found["measured"] == 0
            rows.append({"device": device, "kernel": name, "cold": found, "measured": hits})
            print(
                f"{device:10} {name:20} cold p50 {found['p50_ms']:6.2f} p99 {found['p99_ms']:6.2f},"
                f" measured p50 {hits['p50_ms']:6.2f} p99 {hits['p99_ms']:6.2f}"
                f" ({hits['measured']} of {len(again)})", flush=True,
            )  # fmt: skip
    if given.json is not None:
        document = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"), "load": os.getloadavg()[0],
            "versions": {"python": platform.python_version(), "numpy": np.__version__},
            "rows": rows,
        }  # fmt: skip
        given.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
