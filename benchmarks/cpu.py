"""The library's kernels on this CPU beside torch: default, recommended and tuned config.

    python -m benchmarks.cpu [--match REGEX] [--candidates 24] [--rounds 9] [--threads 1 2]
                             [--target avx2] [--compile] [--out benchmarks/results/NAME.json]

``--match`` selects rows by their label ("gemm float32 512"). ``recommended`` is the first choice on
a machine with this one's measured peaks that has measured nothing else (of what ships: winners and
models; else of the analytic model). ``tuned`` is found per number of threads as a tuning run finds
it: recommendation and default, the model's best candidates and random ones of its best quarter are
screened on thread CPU time, scaled to all threads by the model, and the finalists run interleaved,
recommendation and default among them. Default, recommended, tuned and
torch are then timed afresh and interleaved in this process: 1 thread on thread CPU time, more on
wall time with a pause and a warm call before each sample, so that no pool spins into another's
sample. Outputs are preallocated for both where torch can (``note`` says where it cannot). Ratios
are medians over rounds of torch / ours taken in the same round: above 1 we are faster. Every config
is checked against float64 before it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from recommender.analytic import estimate
from recommender.hardware import HardwareProfile
from recommender.recommend import recommend
from recommender.screening import SpaceCandidates
from recommender.space import SearchSpace
from recommender.workload import Workload
from tests.recommender.support import MemoryStore
from tilecore import kernels, runtime
from tilecore.artifact import ArtifactStore, compiler_versions
from tilecore.compiler import compile
from tilecore.target import parse_target
from tilecore.tile_config import TileConfig
from workers.host import detect
from workers.peaks import measure
from workers.problem import KernelProblem
from workers.toolbox import bind

Call = Callable[[], Any]
Name = TypeVar("Name")
FINALISTS = 6
SAMPLE_S = 4e-3  # a sample repeats shorter calls for so long
PAUSE_S = 0.02

CUBES = [(n, n, n) for n in (512, 768, 1024, 1536, 2048, 1000)]
THIN = [
    (4096, 64, 4096), (64, 4096, 4096), (4096, 4096, 64), (8192, 128, 1024), (1024, 4096, 1024),
    (256, 4096, 1024),
]  # fmt: skip
TYPES: dict[str, dict[str, str]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16", "out_dtype": "bfloat16"},
    "int8": {"dtype": "int8", "accum_dtype": "int32", "out_dtype": "int32"},
}
HEADS = {"batch": 1, "heads": 8, "kv_heads": 8, "seq_q": 1024, "seq_kv": 1024}
ALLOCATES = "torch's call allocates its output"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    label: str
    kernel: str
    problem: Mapping[str, Any]
    note: str = ""


def rows() -> Iterator[Row]:
    """Yield every row, in the order of the table."""
    yield from products()
    yield from attentions()
    for name in ("softmax", "rms_norm", "layer_norm"):
        for m, n in ((512, 1024), (4096, 1024), (4096, 4096)):
            note = ALLOCATES if name == "rms_norm" else ""
            yield Row(f"{name} float32 {m}x{n}", name, {"m": m, "n": n}, note)
    yield from elements()


def products() -> Iterator[Row]:
    """Yield the rows of matrix products."""
    for name, fields in TYPES.items():
        for m, n, k in [*CUBES, *THIN]:
            problem = {"m": m, "n": n, "k": k, **fields}
            note = ALLOCATES if name == "int8" else ""
            yield Row(f"gemm {name} {m}x{n}x{k}", "gemm", problem, note)
    wide = {"n": 4096, "k": 4096}
    for name in ("float32", "bfloat16"):
        for m in (1, 4, 16):
            for transposed in (True, False):
                label = f"gemv {name} M={m}, weights {'(N, K)' if transposed else '(K, N)'}"
                problem = {"m": m, **wide, **TYPES[name], "transpose_b": transposed}
                yield Row(label, "gemm", problem)
    for shape in ((16, 4096, 4096), (32, 4096, 4096), (16, 11008, 4096)):
        problem = {**dict(zip("mnk", shape, strict=True)), "transpose_b": True}
        label = f"few rows float32 {'x'.join(map(str, shape))}, weights (N, K)"
        yield Row(label, "gemm", problem)
    for m in (1, 4, 16, 64, 256):
        yield Row(f"int4 bfloat16 M={m}", "dequant_gemm", {"m": m, **wide})
    for m in (16, 1024):
        problem = {"m": m, "n": 4096, "k": 1024, "out_dtype": "bfloat16"}
        yield Row(f"scaled int8 {m}x4096x1024", "scaled_gemm", problem, ALLOCATES)
    layer = {"m": 1024, "n": 4096, "k": 1024, "transpose_b": True}
    for activation in ("relu", "gelu", "gelu_tanh", "silu"):
        problem = {**layer, "activation": activation}
        yield Row(f"epilogue float32 {activation}", "gemm_epilogue", problem, ALLOCATES)
    for name in ("float32", "bfloat16"):
        shape = {"batch": 16, "m": 256, "n": 256, "k": 256, **TYPES[name]}
        yield Row(f"batched {name} 16 x 256x256x256", "batched_gemm", shape)
        shape = {"m": 64, "n": 64, "k": 16384, **TYPES[name]}
        yield Row(f"split-k {name} 64x64x16384", "split_k_gemm", shape)
    experts = {"experts": 8, "m": 512, "n": 1024, "k": 1024}
    image = {"batch": 1, "height": 56, "width": 56, "channels": 64, "filters": 64, "padding": 1}
    for name in ("float32", "bfloat16"):
        kind = TYPES[name]
        yield Row(f"experts {name} 8", "grouped_gemm", {**experts, **kind, "transpose_b": True})
        few = {**experts, "m": 16, "n": 2048, "transpose_b": True}
        yield Row(f"experts {name} 8, 16 rows", "grouped_gemm", {**few, **kind})
        yield Row(f"conv2d {name} 56x56x64 3x3", "conv2d", {**image, **kind}, ALLOCATES)


def attentions() -> Iterator[Row]:
    """Yield the rows of attention."""
    for dtype in ("float32", "bfloat16"):
        for dim in (64, 128):
            for causal in (False, True):
                label = f"attention {dtype} d{dim}{' causal' if causal else ''}"
                problem = {**HEADS, "dim": dim, "causal": causal, "dtype": dtype}
                yield Row(label, "attention", problem, ALLOCATES)
        for batch, kv_heads in ((1, 32), (4, 8)):
            problem = {
                "batch": batch, "heads": 32, "kv_heads": kv_heads, "seq_q": 1, "seq_kv": 2048,
                "dim": 128, "dtype": dtype,
            }  # fmt: skip
            label = f"decode {dtype} B{batch} {kv_heads} heads of 32"
            yield Row(label, "decode_attention", problem, ALLOCATES)
    for dim in (64, 128):
        shape = {"batch": 1, "heads": 8, "seq_len": 2048, "dim": dim, "dim_v": dim}
        yield Row(f"linear float32 d{dim}", "linear_attention", shape, ALLOCATES)
    for causal in (False, True):
        label = f"backward float32 d64{' causal' if causal else ''}"
        problem = {**HEADS, "dim": 64, "causal": causal}
        yield Row(label, "attention_backward", problem, ALLOCATES)


def elements() -> Iterator[Row]:
    """Yield the rows of elementwise chains and reductions."""
    for dtype in ("float32", "bfloat16"):
        for m, n in ((64, 11008), (1024, 11008)):
            problem = {"m": m, "n": n, "dtype": dtype}
            yield Row(f"swiglu {dtype} {m}x{n}", "elementwise", problem)
    added = {"m": 4096, "n": 4096, "combine": "add", "activation": "relu"}
    yield Row("add, relu float32 4096x4096", "elementwise", added)
    for axis in ("n", "m"):
        for op in ("sum", "max"):
            problem = {"m": 4096, "n": 4096, "op": op, "axis": axis}
            yield Row(f"{op} along {axis} float32 4096x4096", "reduction", problem)
    for m, n in ((8, 1 << 20), (1, 1 << 16)):
        yield Row(f"sum along n float32 {m}x{n}", "reduction", {"m": m, "n": n})


class Case:
    """A row with its inputs, expectation, space and compiled kernels."""

    def __init__(self, row: Row, host: HardwareProfile, target: str, store: ArtifactStore) -> None:
        self.row, self.host, self.target, self.store = row, host, target, store
        self.definition = kernels.get(row.kernel)
        self.problem = self.definition.parse_problem(row.problem)
        workload = Workload.of(row.kernel, self.problem, 1)
        self.data = KernelProblem.fresh(workload, self.definition, bind)
        self.space = SearchSpace.build(self.definition, self.problem, host)
        self.rival = self.data.rival()
        self._kernels: dict[TileConfig, Call] = {}

    def kernel(self, config: TileConfig) -> Call:
        """Return the checked kernel of a config."""
        if config not in self._kernels:
            program = self.definition.program(self.problem, dict(config))
            artifact = compile(program, self.target, dict(config), self.store)
            call = self.data.bind(artifact.path)
            report = self.data.check(call)
            if not report.passed:
                raise SystemExit(f"{self.row.label}: {config}: {report.detail}")
            self._kernels[config] = call
        return self._kernels[config]

    def ranked(self, threads: int) -> list[int]:
        """Return the candidates, best first by the analytic model."""
        times = estimate(self.space, threads=threads).time_s
        return [int(row) for row in np.argsort(times, kind="stable")]

    def recommended(self, threads: int) -> TileConfig:
        """Return what a machine that measured nothing recommends."""
        workload = Workload.of(self.definition.name, self.problem, threads)
        return recommend(workload, self.definition, self.host, MemoryStore(), top_k=1)[0].config

    def finalists(
        self, first: Sequence[TileConfig], candidates: int, seed: int, threads: int
    ) -> list[TileConfig]:
        """Return ``first``, the default and the most promising of the screened candidates."""
        order = self.ranked(threads)
        chosen = order[: candidates * 2 // 3]
        quarter = order[len(chosen) : max(candidates, len(order) // 4)]
        rest = np.random.default_rng(seed).permutation(quarter)
        chosen += [int(row) for row in rest[: candidates - len(chosen)]]
        calls = {c: self.kernel(c) for c in map(self.space.config, chosen)}
        scale = SpaceCandidates(self.space, threads, MemoryStore()).scale
        times = {c: [t * scale(c) for t in ts] for c, ts in interleaved(calls, 1, 3).items()}
        default = self.definition.default_config()
        return list(dict.fromkeys([*first, default, *by_time(times)[:FINALISTS]]))


def sample(call: Call, threads: int) -> float:
    """Return seconds per call of one sample."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    if threads > 1:
        time.sleep(PAUSE_S)
        call()
    call()
    begin = clock()
    call()
    once = clock() - begin
    repeats = int(SAMPLE_S / max(once, 1e-6))
    if repeats < 2:
        return once
    begin = clock()
    for _ in range(repeats):
        call()
    return (clock() - begin) / repeats


def interleaved(calls: Mapping[Name, Call], threads: int, rounds: int) -> dict[Name, list[float]]:
    """Return the samples of every call, taken round by round."""
    torch.set_num_threads(threads)
    runtime.set_num_threads(threads)
    times: dict[Name, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(sample(call, threads))
    return times


def by_time(times: Mapping[Name, list[float]]) -> list[Name]:
    """Return the names, fastest first by the median."""
    return sorted(times, key=lambda name: statistics.median(times[name]))


def compared(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one row."""
    found: dict[str, Any] = {
        "label": case.row.label, "kernel": case.row.kernel, "problem": dict(case.problem),
        "note": case.row.note,
    }  # fmt: skip
    for threads in args.threads:
        recommended = case.recommended(threads)
        finalists = case.finalists([recommended], args.candidates, args.seed, threads)
        trial = interleaved({c: case.kernel(c) for c in finalists}, threads, args.rounds // 2 + 1)
        configs = {
            "default": case.definition.default_config(),
            "recommended": recommended,
            "tuned": by_time(trial)[0],
        }
        calls = {name: case.kernel(config) for name, config in configs.items()}
        if case.rival is not None:
            calls["torch"] = case.rival
            if args.compile:
                calls["compiled"] = torch.compile(case.rival)
        times = interleaved(calls, threads, args.rounds)
        found[f"{threads}T"] = {
            "configs": {name: str(config) for name, config in configs.items()},
            "us": {name: statistics.median(t) * 1e6 for name, t in times.items()},
            "of_peak": of_peak(case, statistics.median(times["tuned"]), threads),
            "tuned_vs_torch": ratio(times, "torch", "tuned"),
            "tuned_vs_compiled": ratio(times, "compiled", "tuned"),
            "tuned_vs_default": ratio(times, "default", "tuned"),
            "recommended_of_tuned": ratio(times, "tuned", "recommended"),
        }
    return found


def of_peak(case: Case, seconds: float, threads: int) -> dict[str, float]:
    """Return the fractions of this machine's measured rates that a time stands for."""
    host, dtype = case.host, str(case.problem["dtype"])
    peak = host.peak_flop_per_s.get(dtype, 0.0) * threads
    bandwidth = host.core_bandwidth_bytes_per_s if threads == 1 else host.bandwidth_bytes_per_s
    rates = {"bandwidth": case.definition.traffic_bytes(case.problem) / seconds / bandwidth}
    if peak:
        rates["flop"] = case.definition.work_flop(case.problem) / seconds / peak
    return rates


def ratio(times: Mapping[str, Sequence[float]], numerator: str, denominator: str) -> float | None:
    """Return the median over rounds of one time divided by another; None without one of them."""
    if numerator not in times:
        return None
    pairs = zip(times[numerator], times[denominator], strict=True)
    return statistics.median(a / b for a, b in pairs)


def show(found: Mapping[str, Any], threads: Sequence[int]) -> None:
    """Print one row."""
    for t in threads:
        r = found[f"{t}T"]
        times = "  ".join(f"{name} {us:9.1f}" for name, us in r["us"].items())
        against = "no rival" if r["tuned_vs_torch"] is None else f"{r['tuned_vs_torch']:.2f}x torch"
        share = max(r["of_peak"], key=lambda name: r["of_peak"][name])
        print(
            f"{found['label']:34} {t}T us: {times}  | tuned {against}, "
            f"{r['tuned_vs_default']:.2f}x default, recommended {r['recommended_of_tuned']:.2f} of "
            f"tuned, {r['of_peak'][share]:.0%} of peak {share}; {r['configs']['tuned']}",
            flush=True,
        )


def summary(found: Sequence[Mapping[str, Any]], threads: Sequence[int]) -> dict[str, Any]:
    """Return geometric mean and worst of the ratios to torch, per group and number of threads."""
    means: dict[str, Any] = {}
    groups = dict.fromkeys(" ".join(row["label"].split()[:2]) for row in found)
    for group in groups:
        for t in threads:
            results = [r[f"{t}T"] for r in found if r["label"].startswith(group)]
            against = [r["tuned_vs_torch"] for r in results if r["tuned_vs_torch"] is not None]
            means[f"{group} {t}T"] = {
                "tuned_vs_torch": statistics.geometric_mean(against) if against else None,
                "worst": min(against, default=None),
                "recommended_of_tuned": statistics.fmean(
                    min(1.0, r["recommended_of_tuned"]) for r in results
                ),
            }
    return means


def record(
    found: Sequence[Mapping[str, Any]], host: HardwareProfile, args: argparse.Namespace
) -> dict[str, Any]:
    """Return the document to keep."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python -m benchmarks.cpu --match '{args.match}' --target {args.target} "
        f"--candidates {args.candidates} --rounds {args.rounds} --seed {args.seed}",
        "machine": {
            "name": host.name, "arch": host.arch, "cores": host.cores,
            "peak_gflops_per_core": {d: f / 1e9 for d, f in host.peak_flop_per_s.items()},
            "gb_per_s_per_core": host.core_bandwidth_bytes_per_s / 1e9,
            "gb_per_s": host.bandwidth_bytes_per_s / 1e9,
            "load_average": os.getloadavg(),
        },
        "versions": {
            "python": platform.python_version(), "torch": torch.__version__,
            "numpy": np.__version__, **compiler_versions(),
        },
        "summary": summary(found, args.threads),
        "rows": list(found),
    }  # fmt: skip


def profile(name: str) -> HardwareProfile:
    """Return this machine's measured profile, with no more than the target's instructions."""
    host, target = measure(detect()), parse_target(name)
    if name == "llvm":
        return host
    return replace(
        host,
        arch=f"x86-64-{target.isa}",
        vector_bytes=target.vector_bytes,
        vector_registers=target.vector_registers,
        features=tuple(sorted(target.features)),
    )


def main() -> None:
    """Measure the rows asked for and print them, then the means."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--match", default="")
    parser.add_argument("--candidates", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, nargs="*", default=None)
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--compile", action="store_true", help="time torch.compile as well")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    host = profile(args.target)
    args.threads = args.threads or sorted({1, host.cores})
    found: list[dict[str, Any]] = []
    for row in rows():
        if not re.search(args.match, row.label):
            continue
        with tempfile.TemporaryDirectory() as folder:
            case = Case(row, host, args.target, ArtifactStore(Path(folder)))
            found.append(compared(case, args))
        show(found[-1], args.threads)
        if args.out is not None:  # after every row: a run that is cut off leaves what it has
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(record(found, host, args), indent=1) + "\n")
    for name, values in summary(found, args.threads).items():
        print(name, {key: value and round(value, 3) for key, value in values.items()})


if __name__ == "__main__":
    main()
