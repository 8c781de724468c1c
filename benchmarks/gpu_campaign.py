"""A campaign for a GPU that is lent for half an hour: 60 shapes of gemm and attention.

    python benchmarks/gpu_campaign.py plan                        # the workloads, seconds, sizes
    python benchmarks/gpu_campaign.py build FOLDER [--configs 300] [--target h200]
    python FOLDER/run.py --results $OUT/results.jsonl --time-limit 540    # on the device
    tilecore import results.jsonl

``build`` compiles, for an hour, candidates into packs of at most ``--limit-mib`` (what a call may
carry; the default folder ``.campaign/h200`` is ignored by git, as what is carried has to be). A
call on a lent machine is short: the next one goes on with ``--known`` and the results of those
before. Shapes are those of language models of 7 to 70 billion parameters (projections and MLPs, m
tokens at a time), square ones and odd ones; attention of prompts, causal or not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from db.migrate import open_database
from db.store import SqlStore
from recommender.campaign import choose
from recommender.hardware import HardwareProfile, load_profile
from recommender.workload import Workload
from tilecore import kernels
from tuner_service import packing
from tuner_service.settings import load_settings
from workers.device_timing import DEVICE_SCREENING, SAMPLE_S, calls_per_sample

Shape = tuple[str, dict[str, Any]]
# (n, k) of projections and MLPs; m is how many tokens go through at a time.
LAYERS = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (8192, 8192), (57344, 8192))
TOKENS = (16, 128, 2048, 8192)
SQUARES = (1024, 2048, 4096, 8192)
ODD = ((1000, 1000, 1000), (3000, 2000, 1024), (511, 4096, 4096), (4096, 4104, 2056))
ATTENTION = (  # batch, heads, kv_heads, seq, dim
    (1, 32, 8, 2048, 128), (1, 32, 8, 8192, 128), (4, 32, 32, 2048, 128), (1, 64, 8, 4096, 128),
    (8, 16, 16, 1024, 64), (2, 32, 8, 4096, 64), (1, 16, 16, 16384, 64), (16, 12, 12, 512, 64),
)  # fmt: skip
# What a candidate takes beside its samples: loading, checking, capturing, the way to the child.
# An assumption: nothing of it was measured on a device.
OVERHEAD_S = 0.03
WORKLOAD_S = 1.0  # inputs, reference, finalists


def shapes() -> Iterator[Shape]:
    """Yield the workloads of the campaign."""
    for n, k in LAYERS:
        for m in TOKENS:
            dtype = "bfloat16" if (n, k) in LAYERS[::2] else "float16"
            yield "gemm", gemm(m, n, k, dtype) | {"transpose_b": True}
    for size in SQUARES:
        for dtype in ("float16", "bfloat16"):
            yield "gemm", gemm(size, size, size, dtype)
    for index, (m, n, k) in enumerate(ODD):
        yield "gemm", gemm(m, n, k, ("float16", "bfloat16")[index % 2])
    for index, (batch, heads, kv_heads, seq, dim) in enumerate(ATTENTION):
        for causal in (False, True):
            for dtype in ("float16", "bfloat16") if index < 4 else ("bfloat16",):
                yield "attention", {
                    "batch": batch, "heads": heads, "kv_heads": kv_heads, "seq_q": seq,
                    "seq_kv": seq, "dim": dim, "causal": causal, "dtype": dtype,
                }  # fmt: skip


def gemm(m: int, n: int, k: int, dtype: str) -> dict[str, Any]:
    """Return the fields of a product."""
    return {"m": m, "n": n, "k": k, "dtype": dtype, "out_dtype": dtype}


def line(shape: Shape) -> str:
    """Return a workload as a line of a tuning file."""
    name, fields = shape
    return " ".join([name, *(f"{k}={str(v).lower()}" for k, v in fields.items())])


def seconds(shape: Shape, hardware: HardwareProfile, store: SqlStore, configs: int) -> float:
    """Return the time that a workload's candidates need by the analytic model."""
    name, fields = shape
    definition = kernels.get(name)
    problem = definition.parse_problem(fields)
    chosen = choose(Workload.of(name, problem), definition, hardware, store, configs)
    calls = calls_per_sample(
        hardware, definition.work_flop(problem), definition.traffic_bytes(problem)
    )
    samples = DEVICE_SCREENING.max_samples + 3  # warm calls
    timed = sum(samples * max(calls * c.predicted_s, SAMPLE_S) for c in chosen)
    return WORKLOAD_S + len(chosen) * OVERHEAD_S + timed


def plan(store: SqlStore, target: str, configs: int) -> None:
    """Print every workload with the seconds that it may need."""
    hardware, total_s = load_profile(target), 0.0
    for shape in shapes():
        needed_s = seconds(shape, hardware, store, configs)
        total_s += needed_s
        print(f"{needed_s:6.1f} s  {line(shape)}")
    count = len(list(shapes()))
    print(f"{count} workloads, {configs} configs each: {total_s / 60:.1f} min by the model")


def build(folder: Path, target: str, configs: int, limit_mib: int, only: Sequence[int]) -> None:
    """Write the packs."""
    settings = load_settings()
    folder.parent.mkdir(parents=True, exist_ok=True)
    chosen = [s for i, s in enumerate(shapes()) if not only or i in only]
    listed = folder.with_name(f"{folder.name}.txt")
    listed.write_text("".join(f"{line(s)}\n" for s in chosen))
    packing.pack(
        settings, folder, "", {}, listed, target=target, configs=configs, seed=0,
        limit_bytes=limit_mib << 20,
    )  # fmt: skip


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=("plan", "build"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path(".campaign/h200"))
    parser.add_argument("--target", default="h200")
    parser.add_argument("--configs", type=int, default=300)
    parser.add_argument("--limit-mib", type=int, default=40)
    parser.add_argument("--only", type=int, action="append", default=[], help="workload by number")
    args = parser.parse_args()
    if args.command == "build":
        build(args.folder, args.target, args.configs, args.limit_mib, args.only)
    else:
        settings = load_settings()
        plan(SqlStore(open_database(settings.url)), args.target, args.configs)


if __name__ == "__main__":
    main()
