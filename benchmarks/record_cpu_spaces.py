"""Record tuned spaces of the library's kernels on this machine as T4 data, to learn and judge by.

    python -m benchmarks.record_cpu_spaces compile ARTIFACTS [--match REGEX] [--configs 150]
    python -m benchmarks.record_cpu_spaces measure ARTIFACTS FOLDER [--match REGEX] [--configs 150]

Of every workload the default config, the analytic model's first third, as many at random from its
best quarter and the rest at random from everything; a smaller space whole. ``compile`` fills
ARTIFACTS with both cores; ``measure`` wants the machine for itself: one thread, thread CPU time,
every config checked against float64 on fresh inputs, all configs of a workload interleaved in
rounds, those within half again of the best in more rounds. A workload that FOLDER has is not
measured again.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpu import ALLOCATES, TYPES, Call, Row, interleaved, profile
from db.exchange.t4 import t4_chunks
from db.records import MeasurementRecord
from recommender.analytic import estimate
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.space import SearchSpace
from recommender.workload import Workload
from tilecore import kernels
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.errors import TileError
from tilecore.tile_config import TileConfig
from workers.host import detect
from workers.problem import KernelProblem
from workers.toolbox import bind
from workers.toolchain import current_toolchain

ROUNDS, MORE_ROUNDS = 3, 6
PROMISING = 1.5  # times the best, up to which a config gets MORE_ROUNDS
F32_GEMMS = (
    "256x256x256 512x512x512 768x768x768 1000x1000x1000 1024x1024x1024 64x4096x4096 4096x64x4096 "
    "4096x4096x64 8192x128x1024 256x4096x1024 1024x4096x512 333x777x555 2000x300x700 32x2048x2048 "
    "128x1024x1024 1536x384x1536"
)
BF16_GEMMS = (
    "512x512x512 1024x1024x1024 64x4096x4096 4096x4096x64 1024x4096x1024 1000x1000x1000 "
    "256x4096x1024 333x777x555 4096x64x4096 8192x128x1024 768x768x768 1536x1536x1536"
)
INT8_GEMMS = "512x512x512 1024x1024x1024 1000x1000x1000 64x4096x4096 4096x64x4096 256x4096x1024"
EPILOGUES = (
    "512x512x512 1024x4096x1024 64x4096x1024 1000x1000x1000 256x1024x4096 2048x512x512 "
    "333x777x555 128x3072x768"
)
ATTENTIONS = "1024x1024x64 1024x1024x128 512x512x64 2048x2048x64 256x1024x128"
ROWS = "512x1024 4096x1024 4096x4096 333x777 16384x128 64x32768"


def rows() -> Iterator[Row]:
    """Yield the workloads."""
    products = {"float32": F32_GEMMS, "bfloat16": BF16_GEMMS, "int8": INT8_GEMMS}
    for dtype, shapes in products.items():
        for shape in shapes.split():
            m, n, k = map(int, shape.split("x"))
            problem = {"m": m, "n": n, "k": k, **TYPES[dtype]}
            yield Row(f"gemm {dtype} {shape}", "gemm", problem)
    for shape in EPILOGUES.split():
        m, n, k = map(int, shape.split("x"))
        problem = {"m": m, "n": n, "k": k, "transpose_b": True, "activation": "gelu_tanh"}
        yield Row(f"gemm_epilogue float32 {shape}", "gemm_epilogue", problem)
    for dtype in ("float32", "bfloat16"):
        for causal in (False, True):
            for shape in ATTENTIONS.split():
                q, kv, dim = map(int, shape.split("x"))
                problem = {
                    "batch": 1, "heads": 4, "kv_heads": 4, "seq_q": q, "seq_kv": kv, "dim": dim,
                    "causal": causal, "dtype": dtype,
                }  # fmt: skip
                label = f"attention {dtype} {shape}{' causal' if causal else ''}"
                yield Row(label, "attention", problem, ALLOCATES)
    for shape in ROWS.split():
        m, n = map(int, shape.split("x"))
        yield Row(f"softmax float32 {shape}", "softmax", {"m": m, "n": n})


@dataclass(frozen=True)
class Recording:
    """A workload whose space is recorded."""

    row: Row
    host: HardwareProfile
    configs_wanted: int

    @cached_property
    def definition(self) -> kernels.KernelDefinition:
        """The kernel."""
        return kernels.get(self.row.kernel)

    @cached_property
    def problem(self) -> dict[str, Any]:
        """Its canonical problem."""
        return self.definition.parse_problem(dict(self.row.problem))

    def configs(self) -> list[TileConfig]:
        """Return the configs to measure: chosen without this run's rates, so always the same."""
        space = SearchSpace.build(self.definition, self.problem, detect())
        order = [int(r) for r in np.argsort(estimate(space, threads=1).time_s, kind="stable")]
        rng, third = np.random.default_rng(0), self.configs_wanted // 3
        chosen = [space.config(r) for r in order[:third]]
        quarter = order[third : max(len(order) // 4, 2 * third)]
        chosen += [space.config(int(r)) for r in rng.permutation(quarter)[:third]]
        rest = (space.config(int(r)) for r in rng.permutation(order))
        found = dict.fromkeys([self.definition.default_config(), *chosen])
        for config in rest:
            if len(found) >= self.configs_wanted:
                break
            found[config] = None
        return list(found)

    def compile(self, config: TileConfig, store: ArtifactStore) -> Path:
        """Return the artifact of a config."""
        program = self.definition.program(self.problem, dict(config))
        return compile(program, "llvm", dict(config), store).path

    def measure(self, store: ArtifactStore) -> Iterator[Measurement]:
        """Yield what became of every config."""
        workload = Workload.of(self.row.kernel, self.problem, 1)
        data = KernelProblem.fresh(workload, self.definition, bind)
        fixed = {
            "workload": workload, "hardware": self.host, "toolchain": current_toolchain().on("cpu"),
            "program_digest": self.definition.program_digest(self.problem),
            "protocol": Protocol.SCREEN, "threads": 1, "worker": "record_cpu_spaces",
        }  # fmt: skip
        calls: dict[TileConfig, Call] = {}
        errors: dict[TileConfig, float] = {}
        for config in self.configs():
            now = datetime.now(UTC)
            try:
                call = data.bind(self.compile(config, store))
            except TileError as error:
                failed = MeasureStatus.COMPILE_ERROR
                yield Measurement(**fixed, config=config, status=failed, detail=str(error),
                                  measured_at=now)  # fmt: skip
                continue
            report = data.check(call)
            if report.passed:
                calls[config], errors[config] = call, report.max_error
            else:
                failed = MeasureStatus.WRONG_RESULT
                yield Measurement(**fixed, config=config, status=failed, detail=report.detail,
                                  max_error=report.max_error, measured_at=now)  # fmt: skip
        times = interleaved(calls, 1, ROUNDS)
        limit = PROMISING * min(statistics.median(t) for t in times.values())
        promising = {c: f for c, f in calls.items() if statistics.median(times[c]) <= limit}
        for config, more in interleaved(promising, 1, MORE_ROUNDS).items():
            times[config] += more
        for config, taken in times.items():
            yield Measurement(
                **fixed, config=config, status=MeasureStatus.OK, times_s=tuple(taken),
                max_error=errors[config], measured_at=datetime.now(UTC),
            )  # fmt: skip


def compile_all(recordings: list[Recording], artifacts: Path) -> None:
    """Compile every config of every workload, a process per core."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for recording in recordings:
            begin, configs = time.perf_counter(), recording.configs()
            jobs = [pool.submit(_compile, recording.row, config, artifacts) for config in configs]
            failed = [e for e in (job.exception() for job in jobs) if e is not None]
            print(f"{recording.row.label}: {len(configs)} configs, {len(failed)} failed, "
                  f"{time.perf_counter() - begin:.1f} s", *failed[:1], flush=True)  # fmt: skip


def _compile(row: Row, config: TileConfig, artifacts: Path) -> None:
    Recording(row, detect(), 0).compile(config, ArtifactStore(artifacts))


def measure_all(recordings: list[Recording], artifacts: Path, folder: Path) -> None:
    """Measure every workload that the folder lacks, a file each."""
    folder.mkdir(parents=True, exist_ok=True)
    store = ArtifactStore(artifacts)
    for recording in recordings:
        path = folder / f"{recording.row.label.replace(' ', '_')}.json.gz"
        if path.exists():
            continue
        begin = time.perf_counter()
        found = list(recording.measure(store))
        records = (MeasurementRecord(id=i, run=None, measurement=m) for i, m in enumerate(found))
        text = "".join(t4_chunks(records))
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
        good = [m.time_s for m in found if m.time_s is not None]
        rate = recording.definition.work_flop(recording.problem) / min(good) / 1e9
        print(f"{recording.row.label}: {len(good)} of {len(found)} good, best {rate:.1f} GFLOP/s, "
              f"{time.perf_counter() - begin:.1f} s", flush=True)  # fmt: skip


def main() -> None:
    """Compile or measure the workloads asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("step", choices=("compile", "measure"))
    parser.add_argument("artifacts", type=Path)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--match", default="")
    parser.add_argument("--configs", type=int, default=150)
    args = parser.parse_args()
    if args.step == "measure" and args.folder is None:
        parser.error("measure needs a FOLDER for the recordings")
    host = detect() if args.step == "compile" else profile("llvm")
    chosen = [row for row in rows() if re.search(args.match, row.label)]
    recordings = [Recording(row, host, args.configs) for row in chosen]
    if args.step == "compile":
        compile_all(recordings, args.artifacts)
    else:
        measure_all(recordings, args.artifacts, args.folder)


if __name__ == "__main__":
    main()
