"""The library's kernels beside torch: default and tuned config, by the workers' own protocols.

    python benchmarks/library_cpu.py [--threads 1,2] [--match softmax] [--out FILE.json]

For each workload all configs of a small space (or a seeded sample of ``--candidates``) are checked
against float64 and screened; the fastest, the default and torch are then timed in turn, wall clock,
outputs preallocated for all where torch can (``rms_norm`` and attention of any kind cannot: their
times include an allocation). Numbers are medians; the ratio is torch / ours, above 1 we are faster.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.ports import MeasureRequest
from recommender.space import SearchSpace
from recommender.workload import Workload
from tilecore import kernels
from tilecore.artifact import compiler_versions
from tilecore.tile_config import TileConfig
from workers.host import detect
from workers.pool import LocalPool, wait_for_all

HEADS = {"batch": 1, "heads": 8, "kv_heads": 8, "seq_q": 1024, "seq_kv": 1024}
CACHE = {"batch": 1, "heads": 32, "seq_q": 1, "seq_kv": 2048, "dim": 128}
LINEAR = {"batch": 1, "heads": 8, "seq_len": 2048}
PROBLEMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("softmax", {"m": 512, "n": 1024}),
    ("softmax", {"m": 4096, "n": 1024}),
    ("softmax", {"m": 4096, "n": 4096}),
    ("rms_norm", {"m": 512, "n": 1024}),
    ("rms_norm", {"m": 4096, "n": 4096}),
    ("layer_norm", {"m": 512, "n": 1024}),
    ("layer_norm", {"m": 4096, "n": 4096}),
    ("attention", {**HEADS, "dim": 64}),
    ("attention", {**HEADS, "dim": 64, "causal": True}),
    ("attention", {**HEADS, "dim": 128}),
    ("attention", {**HEADS, "dim": 128, "causal": True}),
    ("attention", {**HEADS, "dim": 64, "dtype": "bfloat16"}),
    ("attention", {**HEADS, "dim": 64, "causal": True, "dtype": "bfloat16"}),
    ("attention", {**HEADS, "dim": 128, "dtype": "bfloat16"}),
    ("attention", {**HEADS, "dim": 128, "causal": True, "dtype": "bfloat16"}),
    ("decode_attention", {**CACHE, "kv_heads": 32}),
    ("decode_attention", {**CACHE, "kv_heads": 8}),
    ("decode_attention", {**CACHE, "kv_heads": 32, "dtype": "bfloat16"}),
    ("decode_attention", {**CACHE, "kv_heads": 8, "dtype": "bfloat16"}),
    ("attention_backward", {**HEADS, "dim": 64}),
    ("attention_backward", {**HEADS, "dim": 64, "causal": True}),
    ("attention_backward", {**HEADS, "dim": 64, "dtype": "bfloat16"}),
    ("linear_attention", {**LINEAR, "dim": 64, "dim_v": 64}),
    ("linear_attention", {**LINEAR, "dim": 128, "dim_v": 128}),
)
FINALISTS = 4
LIMIT_S = 1800.0


def measured(
    pool: LocalPool, workload: Workload, configs: list[TileConfig], protocol: Protocol
) -> dict[TileConfig, Measurement]:
    """Return the outcome of each config."""
    requests = [
        MeasureRequest(token=c.key, workload=workload, config=c, protocol=protocol) for c in configs
    ]
    found = wait_for_all(pool, requests, LIMIT_S)
    return {c: found[c.key] for c in configs}


def compared(pool: LocalPool, workload: Workload, candidates: int) -> dict[str, Any]:
    """Return times of default, tuned and torch for one workload."""
    definition = kernels.get(workload.kernel)
    default = definition.default_config()
    space = SearchSpace.build(definition, dict(workload.problem), pool.hardware)
    rows = random.Random(0).sample(range(len(space)), min(candidates, len(space)))
    configs = list(dict.fromkeys([default, *(space.config(row) for row in rows)]))
    screened = measured(pool, workload, configs, Protocol.SCREEN)
    good = {c: m for c, m in screened.items() if m.status is MeasureStatus.OK}
    fastest = sorted(good, key=lambda c: good[c].time_s or 0.0)[:FINALISTS]
    finalists = list(dict.fromkeys([default, *fastest]))
    timed = measured(pool, workload, finalists, Protocol.CONFIRM)
    times_s = {c: m.time_s for c, m in timed.items() if m.time_s is not None}
    best = min(times_s, key=lambda c: times_s[c])
    torch_s = timed[best].reference_time_s
    assert torch_s is not None, "the library's kernels have rivals"
    return {
        "kernel": workload.kernel,
        "problem": dict(workload.problem),
        "threads": workload.threads,
        "torch_us": torch_s * 1e6,
        "tuned_us": times_s[best] * 1e6,
        "default_us": None if default not in times_s else times_s[default] * 1e6,
        "ratio": torch_s / times_s[best],
        "config": dict(best.items_),
        "neighbour_busy": timed[best].metrics["neighbour_busy"],
    }


def main() -> None:
    """Print a line per workload and number of threads, and geometric means per kernel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--match", default="")
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    host = detect()
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalPool(host, artifact_dir=Path(folder)) as pool,
    ):
        for threads in map(int, args.threads.split(",")):
            for name, given in PROBLEMS:
                if args.match not in name:
                    continue
                problem = kernels.get(name).parse_problem(given)
                rows.append(compared(pool, Workload.of(name, problem, threads), args.candidates))
                r = rows[-1]
                shown = " ".join(f"{k}={v}" for k, v in given.items())
                print(
                    f"{name:10} {shown:62} {threads}T torch {r['torch_us']:9.1f} us  "
                    f"tuned {r['tuned_us']:9.1f} us  {r['ratio']:5.2f}x  "
                    f"neighbours {r['neighbour_busy']:.0%}",
                    flush=True,
                )
    for name in dict.fromkeys(r["kernel"] for r in rows):
        mean = statistics.geometric_mean(r["ratio"] for r in rows if r["kernel"] == name)
        print(f"{name}: geometric mean {mean:.2f}x torch")
    if args.out is not None:
        found = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": host.name,
            "cores": host.cores,
            "versions": {**compiler_versions(), "torch": torch.__version__},
            "rows": rows,
        }
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
