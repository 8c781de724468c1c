"""Recommendations for programs of users: how long they take, and whether the configs compile.

    python -m benchmarks.open_programs [--only TEXT] [--json FILE]

The programs are those of tests/recommender/user_programs.py. Evaluation is everything after the
trace: values, limits, estimates of all configs, ranking. Compiling is NVRTC, LLVM (AMD) or LLVM
(this machine); nothing runs on a GPU.
"""

import argparse
import json
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from recommender.hardware import HardwareProfile, load_profile
from tests.recommender import user_programs as programs
from tilecore import compiler
from tilecore.advice import question_of
from tilecore.artifact import ArtifactStore
from tilecore.errors import TileError
from tuner_service.advice import advise_for, compile_target
from tuner_service.wiring import detected_host, host_toolchain

REPEATS = 9
GEMM = {"M": 4096, "N": 4096, "K": 4096}
SIXTEENS = tuple(range(16, 257, 16))
WIDE = {
    "block_M": SIXTEENS, "block_N": SIXTEENS,
    "threads": (64, 96, 128, 160, 192, 224, 256, 384, 512),
}  # fmt: skip
CASES = {
    "gemm 4096x4096x4096 f16": (programs.matmul, GEMM),
    "gemm 1000x3000x777 f16": (programs.matmul, {"M": 1000, "N": 3000, "K": 777}),
    "gemm 16x8192x8192 f16": (programs.matmul, {"M": 16, "N": 8192, "K": 8192}),
    "eager gemm 4096x4096x4096 f16": (programs.eager_matmul, GEMM),
    "attention 4x16x2048x128 f16": (programs.attention, {"B": 4, "H": 16, "S": 2048, "D": 128}),
    "attention 1x8x1000x64 f16": (programs.attention, {"B": 1, "H": 8, "S": 1000, "D": 64}),
    "attention, wide space": (programs.attention, {"B": 4, "H": 16, "S": 2048, "D": 128}),
    "traced by values": (programs.branching, GEMM),
    "scale 16M f32": (programs.scaled, {"N": 1 << 24, "factor": 2.0}),
}
SPACES = {"attention, wide space": WIDE}
DEVICES = ("h100-sxm", "a100-40gb", "rtx-4090", "mi300x", "host")


def _profile(name: str) -> HardwareProfile:
    return detected_host() if name == "host" else load_profile(name)


def measure(case: str, device: str, top_k: int) -> dict[str, object]:
    """Return the timing of an answer and what became of its configs in the compiler."""
    program, given = CASES[case]
    hardware = _profile(device)
    question = question_of(program, (), given, target=device, top_k=top_k, space=SPACES.get(case))
    answers = [advise_for(question, hardware) for _ in range(REPEATS)]
    first = answers[0]
    evaluate_s = statistics.median(a.evaluate_s for a in answers)
    return {
        "program": case, "device": hardware.name, "enumerated": first.enumerated,
        "legal": first.legal, "traces": first.traces,
        "trace_ms": statistics.median(a.trace_s for a in answers) * 1e3,
        "first_evaluate_ms": first.evaluate_s * 1e3,  # divisions of warps not yet known
        "evaluate_ms": evaluate_s * 1e3,
        "evaluate_ms_per_10000": evaluate_s * 1e7 / first.enumerated,
        "check_ms": statistics.median(a.check_s for a in answers) * 1e3,
        "best": dict(first[0].config), "best_us": first[0].time_s * 1e6,
        "notes": list(first.notes), **_compiled(question, first, compile_target(hardware)),
    }  # fmt: skip


def _compiled(question, answer, target: str) -> dict[str, object]:
    done, spilled, failures = 0, 0, []
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for r in answer:
            func = question.trace(dict(r.config))
            try:
                built = compiler.compile(func, target, r.lowering, ArtifactStore(Path(folder)))
            except TileError as error:
                failures.append(f"{r.config}: {error.code} {error.message[:200]}")
                continue
            done += 1
            spilled += bool(built.manifest.resources.get("spill_bytes", 0))
    return {
        "configs": len(answer), "compiled": done, "with_spills": spilled, "failures": failures,
        "compile_s": time.perf_counter() - begin,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write figures here")
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--only", default="", help="programs whose name holds this text")
    options = parser.parse_args()
    rows = []
    for case in (c for c in CASES if options.only in c):
        for device in DEVICES:
            row = measure(case, device, options.top_k)
            rows.append(row)
            print(
                f"{case:32} {row['device']:28} {row['legal']:6} of {row['enumerated']:6} configs, "
                f"{row['traces']:3} trace(s) {row['trace_ms']:6.1f} ms, "
                f"evaluation {row['evaluate_ms']:6.1f} ms (first {row['first_evaluate_ms']:.1f}), "
                f"{row['evaluate_ms_per_10000']:5.1f} per 10,000, "
                f"check {row['check_ms']:6.1f} ms, "
                f"compiled {row['compiled']}/{row['configs']}, {row['with_spills']} spill",
                flush=True,
            )
            for failure in row["failures"]:
                print("   ", failure)
    large = [r["evaluate_ms_per_10000"] for r in rows if r["enumerated"] >= 10_000]
    print(f"spaces of at least 10,000 configs: {np.min(large):.1f} to {np.max(large):.1f} ms "
          f"per 10,000, {sum(r['compiled'] for r in rows)} of "
          f"{sum(r['configs'] for r in rows)} recommended configs compile")  # fmt: skip
    if options.json:
        if options.json.exists():  # rows of other programs stay
            kept = json.loads(options.json.read_text())["rows"]
            rows = [r for r in kept if r["program"] not in {n["program"] for n in rows}] + rows
        found = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "command": "python -m benchmarks.open_programs",
            "host": detected_host().name, "cores": detected_host().cores,
            "toolchain": str(host_toolchain()), "numpy": np.__version__,
            "repeats": REPEATS, "rows": rows,
        }  # fmt: skip
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
