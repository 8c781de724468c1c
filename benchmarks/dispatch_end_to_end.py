"""A dispatch table made by measuring, then run: against per-shape tuning, one config, torch.

    python -m benchmarks.dispatch_end_to_end FOLDER [--dtype bfloat16] [--threads 1] [--trials 24]
        [--rounds 15] [--out benchmarks/results/NAME.json]

``tilecore dispatch gemm --tune`` tunes a GEMM (N = K = 1024) at the sizes of M in SAMPLED and
cross-measures; the sizes in HELD_OUT are tuned by themselves and no table knows them. Then every
size is timed in this process, interleaved: the Dispatcher as it comes ("table"), with one dynamic
kernel per config ("dynamic"), the config that was tuned for this very size ("own"), the one config
that is best for all sampled sizes ("one config"), the default config, and torch.matmul. Outputs are
preallocated. One thread is timed by its CPU time. Losses are medians over rounds of a time over
that of "own" in the same round. FOLDER keeps the database: a second run measures again without
tuning. Wants the machine for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import tilecore
from benchmarks.cpu import interleaved
from db.store import SqlStore
from tilecore import kernels
from tilecore.artifact import compiler_versions
from tilecore.ir.analysis import output_positions
from tilecore.kernel import JITKernel
from tilecore.tile_config import TileConfig
from tuner_service import questions, wiring
from tuner_service.cli.app import run_cli
from tuner_service.settings import load_settings

SAMPLED = (1, 2, 4, 8, 16, 17, 32, 33, 64, 65, 128, 129, 256, 512)
HELD_OUT = (3, 12, 24, 48, 100, 200, 400)
N = K = 1024
NAMES = ("table", "dynamic", "one config", "default", "torch")


def tilecore_cli(*arguments: str) -> None:
    """Run a command of the command line."""
    status = run_cli(list(arguments))
    if status:
        raise SystemExit(status)


def winner(store: SqlStore, m: int, args: argparse.Namespace) -> TileConfig:
    """Return the config that was tuned for a size."""
    problem = {"m": m, "n": N, "k": K, "dtype": args.dtype, "out_dtype": args.dtype}
    question = questions.understand(store, "gemm", problem, threads=args.threads)
    best = store.best(
        question.workload, question.hardware.key, question.program_digest, question.toolchain.key
    )
    assert best is not None
    return best.config


def kernel(m: int, config: TileConfig, dtype: str) -> JITKernel:
    """Return the kernel of a config for just this size."""
    definition = kernels.get("gemm")
    fields = {"m": m, "n": N, "k": K, "dtype": dtype, "out_dtype": dtype}
    func = definition.program(definition.parse_problem(fields), dict(config))
    outputs = list(output_positions(func))
    lowering = {k: v for k, v in config.items() if k.startswith(("micro", "pack"))}
    return tilecore.compile(func, out_idx=outputs, config=lowering)


def tune(folder: Path, args: argparse.Namespace) -> tuple[Path, Path]:
    """Tune and return the files of the table and of the table of one config."""
    table, one = folder / "table.json", folder / "one.json"
    sizes = ",".join(map(str, SAMPLED))
    common = ["dispatch", "gemm", "--m", sizes, "--n", str(N), "--k", str(K), "--dtype", args.dtype,
              "--set", f"out_dtype={args.dtype}", "--threads", str(args.threads)]  # fmt: skip
    if not table.exists():
        tilecore_cli(*common, "--tune", "--trials", str(args.trials), "--output", str(table))
        lines = (
            f"gemm m={m} n={N} k={K} dtype={args.dtype} out_dtype={args.dtype} "
            f"threads={args.threads}" for m in HELD_OUT
        )  # fmt: skip
        (folder / "held_out.txt").write_text("\n".join(lines) + "\n")
        tilecore_cli(
            "tune", "--file", str(folder / "held_out.txt"), "--trials", str(args.trials)
        )  # fmt: skip
    tilecore_cli(*common, "--max-configs", "1", "--output", str(one))
    return table, one


def calls_of(
    m: int, own: TileConfig, made: Mapping[str, tilecore.Dispatcher], dtype: str
) -> dict[str, Callable[[], Any]]:
    """Return every way to compute the product of ``m`` rows, each checked against float64."""
    kind = getattr(torch, dtype)
    a, b = torch.randn(m, K).to(kind), (torch.randn(K, N) / K**0.5).to(kind)
    out = torch.empty(m, N, dtype=kind)
    expected = a.double() @ b.double()
    ways: dict[str, Callable[..., Any]] = {
        **made, "own": kernel(m, own, dtype),
        "default": kernel(m, kernels.get("gemm").default_config(), dtype),
    }  # fmt: skip
    calls: dict[str, Callable[[], Any]] = {
        name: (lambda way=way: way(a, b, out)) for name, way in ways.items()
    }
    calls["torch"] = lambda: torch.matmul(a, b, out=out)
    tolerance = 1e-4 if dtype == "float32" else 3e-2
    for name, call in calls.items():
        out.fill_(float("nan"))
        call()
        torch.testing.assert_close(
            out.double(), expected, rtol=tolerance, atol=tolerance, msg=f"{name} at m={m}"
        )
    return calls


def main() -> None:
    """Tune where that was not done, measure, print and store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder = args.folder / f"{args.dtype}_{args.threads}"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TILECORE_DATA_DIR"] = str(folder)
    table, one = tune(folder, args)
    made = {
        "table": tilecore.Dispatcher(table),
        "dynamic": tilecore.Dispatcher(table, shapes="dynamic"),
        "one config": tilecore.Dispatcher(one, shapes="static"),
    }
    store = wiring.open_store(load_settings())
    found: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "dtype": args.dtype,
        "threads": args.threads, "trials": args.trials, "rounds": args.rounds,
        "machine": wiring.detected_host().name, "load_average": os.getloadavg(),
        "versions": {"torch": torch.__version__, **compiler_versions()},
        "configs": len(made["table"].table.configs), "ranges": len(made["table"].table.ranges),
        "promised_worst_loss": made["table"].table.worst_loss, "sizes": {},
    }  # fmt: skip
    print(
        f"{made['table']}\n| M | known | own µs | table | dynamic | one config | default | torch |"
    )
    print("|" + "---|" * 8)
    for m in sorted({*SAMPLED, *HELD_OUT}):
        calls = calls_of(m, winner(store, m, args), made, args.dtype)
        times = interleaved(calls, args.threads, args.rounds)
        own = times.pop("own")
        ratios = {
            name: statistics.median(a / b for a, b in zip(taken, own, strict=True)) - 1.0
            for name, taken in times.items()
        }
        us = statistics.median(own) * 1e6
        found["sizes"][m] = {
            "sampled": m in SAMPLED, "own_us": us, "loss": ratios,
            "config": str(made["table"].config_for(m)),
        }  # fmt: skip
        known = "sampled" if m in SAMPLED else "held out"
        print(
            f"| {m} | {known} | {us:.1f} |", *(f"{r:+.1%} |" for r in ratios.values()), flush=True
        )
    for kind in (True, False):
        rows = [r["loss"] for r in found["sizes"].values() if r["sampled"] is kind]
        for name in rows[0]:
            lost = [r[name] for r in rows]
            where = "sampled" if kind else "held out"
            print(f"{where}: {name}: mean {statistics.fmean(lost):+.1%}, worst {max(lost):+.1%}")
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
