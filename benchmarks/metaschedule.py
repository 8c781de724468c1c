"""GEMM float32 tuned by TVM's MetaSchedule and by tilecore, on one thread, and torch.

    python -m benchmarks.metaschedule [--size 1024] [--trials 64] [--candidates 24]
                                      [--out benchmarks/results/NAME.json]

Both tune without a measurement of this machine, one after the other; their wall times count
everything from the problem to the chosen kernel (compiling, checking, measuring). Then both kernels
and torch.mm are timed interleaved in this process, thread CPU time, outputs preallocated for all.
MetaSchedule needs its builder's time-out raised and its space generator named.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms

from benchmarks.cpu import Call, Case, Row, by_time, interleaved, profile, ratio
from tilecore.artifact import ArtifactStore, compiler_versions
from tilecore.target import parse_target

BUILD_TIMEOUT_S = 240


def build(module: Any, target: Any, _params: Any) -> Any:
    """Build a candidate of MetaSchedule."""
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    plain = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    return tvm.driver.build(plain, target=target)


def metaschedule(size: int, trials: int, folder: str) -> tuple[Any, float]:
    """Return the best module that MetaSchedule found, and the seconds it took."""
    a, b = (te.placeholder((size, size), name=name) for name in "AB")
    k = te.reduce_axis((0, size), name="k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    func = te.create_prim_func([a, b, c])
    mcpu = parse_target("llvm").mcpu
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})
    start = time.perf_counter()
    database = ms.tune_tir(
        func,
        target=target,
        work_dir=folder,
        max_trials_global=trials,
        num_trials_per_iter=32,
        num_tuning_cores=2,
        seed=0,
        builder=ms.builder.LocalBuilder(max_workers=2, timeout_sec=BUILD_TIMEOUT_S, f_build=build),
        space=ms.space_generator.PostOrderApply(
            sch_rules=ms.schedule_rule.ScheduleRule.create("llvm"),
            postprocs=ms.postproc.Postproc.create("llvm"),
            mutator_probs=ms.mutator.Mutator.create("llvm"),
        ),
        runner=ms.runner.LocalRunner(
            timeout_sec=60,
            evaluator_config=ms.runner.EvaluatorConfig(
                number=1, repeat=3, min_repeat_ms=50, enable_cpu_cache_flush=False
            ),
        ),
    )
    schedule = ms.tir_integration.compile_tir(database, func, target)
    module = tvm.compile(schedule.mod, target=target)
    return module, time.perf_counter() - start


def tilecore_tuned(case: Case, candidates: int) -> tuple[Call, str, float]:
    """Return our tuned kernel, its config, and the seconds from the problem on."""
    start = time.perf_counter()
    finalists = case.finalists([case.recommended(1)], candidates, 0, 1)
    best = by_time(interleaved({c: case.kernel(c) for c in finalists}, 1, 5))[0]
    return case.kernel(best), str(best), time.perf_counter() - start


def main() -> None:
    """Tune with both, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--candidates", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = "1"  # of its pool, here and where it measures
    host = profile("llvm")
    problem = {"m": args.size, "n": args.size, "k": args.size}
    with tempfile.TemporaryDirectory() as folder:
        case = Case(Row("gemm", "gemm", problem), host, "llvm", ArtifactStore(Path(folder)))
        ours, config, our_s = tilecore_tuned(case, args.candidates)
        module, their_s = metaschedule(args.size, args.trials, str(Path(folder) / "metaschedule"))
        arrays = [tvm.runtime.tensor(x) for x in case.data.inputs]
        out = tvm.runtime.tensor(np.zeros((args.size, args.size), np.float32))
        theirs = partial(module["main"], *arrays, out)
        theirs()
        np.testing.assert_allclose(out.numpy(), case.data.expected[0], rtol=1e-3, atol=1e-3)
        assert case.rival is not None
        calls = {"tilecore": ours, "metaschedule": theirs, "torch": case.rival}
        times = interleaved(calls, 1, args.rounds)
    flop = 2 * args.size**3
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python -m benchmarks.metaschedule --size {args.size} --trials {args.trials} "
        f"--candidates {args.candidates} --rounds {args.rounds}",
        "machine": host.name,
        "versions": {**compiler_versions(), "torch": torch.__version__},
        "gflops": {name: flop / statistics.median(t) / 1e9 for name, t in times.items()},
        "tilecore_vs_metaschedule": ratio(times, "metaschedule", "tilecore"),
        "tilecore_vs_torch": ratio(times, "torch", "tilecore"),
        "tuning_s": {"tilecore": our_s, "metaschedule": their_s},
        "config": config,
    }
    print(json.dumps(found, indent=1))
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
