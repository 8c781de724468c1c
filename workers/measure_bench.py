"""MeasureBench: lives in the measuring child process; checks candidates, then times them."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recommender.measurement import MeasureStatus
from recommender.workload import Workload
from tilecore.kernels.definition import KernelDefinition
from workers import timing
from workers.correctness import (
    Array,
    CheckReport,
    GuardedOutput,
    aligned_copy,
    compare,
    tolerance,
)
from workers.outcome import Failure, Timed
from workers.statistics import CONFIRMING, SCREENING, relative_interval
from workers.toolbox import Call, Toolbox

RIVAL = "rival"


@dataclass(slots=True)
class Problem:
    """Inputs, expectation and guarded outputs of one workload."""

    workload: Workload
    definition: KernelDefinition
    seed: int
    inputs: list[Array]
    pristine: list[Array]  # what the inputs must still be after a run
    expected: list[Array]
    outputs: list[GuardedOutput]
    rtol: float
    atol: float

    @classmethod
    def fresh(cls, workload: Workload, definition: KernelDefinition) -> Problem:
        """Return new random inputs with their float64 expectation."""
        seed = int(np.random.SeedSequence().generate_state(1)[0])
        problem = dict(workload.problem)
        given = list(definition.inputs(problem, np.random.default_rng(seed)))
        expected = list(definition.reference(problem, given))
        out_dtype = str(problem.get("out_dtype", problem.get("dtype", "float32")))
        accum_dtype = str(problem.get("accum_dtype", out_dtype))
        rtol, atol = tolerance(out_dtype, accum_dtype, definition.reduction_length(problem))
        outputs = [GuardedOutput.allocate(x.shape, out_dtype) for x in expected]
        inputs = [aligned_copy(x) for x in given]
        return cls(workload, definition, seed, inputs, given, expected, outputs, rtol, atol)

    @property
    def arguments(self) -> list[Array]:
        """Inputs, then outputs."""
        return [*self.inputs, *(out.array for out in self.outputs)]

    def check(self, call: Call) -> CheckReport:
        """Run a kernel once on poisoned outputs and compare everything it may have touched."""
        for out in self.outputs:
            out.poison()
        call()
        worst = CheckReport(0.0)
        for i, (out, wanted) in enumerate(zip(self.outputs, self.expected, strict=True)):
            report = compare(out.array, wanted, self.rtol, self.atol, f"output {i}")
            if report.max_error > worst.max_error or not report.passed:
                worst = report
            if not out.is_intact:
                worst = CheckReport(np.inf, f"output {i}: written beyond its ends")
        for i, (now, before) in enumerate(zip(self.inputs, self.pristine, strict=True)):
            if now.tobytes() != before.tobytes():
                np.copyto(now, before)
                worst = CheckReport(np.inf, f"input {i} was written to")
        if worst.passed:
            return worst
        return CheckReport(worst.max_error, f"{worst.detail} (input seed {self.seed})")


class MeasureBench:
    """Checks and times kernels of one workload after the other."""

    def __init__(self, toolbox: Toolbox, cores: int) -> None:
        self._toolbox = toolbox
        self._cores = cores
        self._problem: Problem | None = None
        self._rival: Callable[[], Any] | None = None

    def prepare(self, workload: Workload) -> None:
        """Make inputs and reference of a workload, unless they are those of the last one."""
        if self._problem is None or self._problem.workload != workload:
            self._problem = self._rival = None  # release the memory first
            self._problem = Problem.fresh(workload, self._toolbox.definition(workload.kernel))

    def prepare_rival(self, workload: Workload) -> None:
        """Make the rival's call; without torch or its operator there is none."""
        problem = self._of(workload)
        if self._rival is None:
            with contextlib.suppress(ImportError):  # torch is optional
                self._rival = problem.definition.rival(dict(workload.problem), problem.pristine)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(workload.threads or self._cores)

    def check(self, workload: Workload, path: str) -> CheckReport:
        """Compare one candidate, run with all threads, with the reference."""
        return self._of(workload).check(self._bind(workload, path))

    def screen(self, workload: Workload, path: str) -> Timed | Failure:
        """Check a candidate, then time it on one thread's CPU time."""
        call = self._bind(workload, path)
        report = self._of(workload).check(call)
        if not report.passed:
            return wrong_result(report)
        self._toolbox.set_threads(1)
        observed = _Observation.start()
        times_s = timing.screen(call, SCREENING)
        metrics = observed.metrics(self._cores)
        if SCREENING.is_unstable(times_s):
            return _unstable(times_s)
        interval = relative_interval(times_s)
        metrics["relative_interval"] = interval if np.isfinite(interval) else 0.0
        return Timed(times_s=times_s, max_error=report.max_error, metrics=metrics)

    def confirm(self, workload: Workload, paths: Sequence[str]) -> list[Timed | Failure]:
        """Time checked candidates and the rival in turn, wall clock, with all threads."""
        participants = {path: self._bind(workload, path) for path in paths}
        self.prepare_rival(workload)
        if self._rival is not None:
            participants[RIVAL] = self._rival
        observed = _Observation.start()
        times = timing.interleave(participants, CONFIRMING)
        metrics = {**observed.metrics(self._cores), "has_rival": float(RIVAL in times)}
        reference = times.get(RIVAL, ())
        return [_confirmed(times[p], reference, metrics) for p in paths]

    def _bind(self, workload: Workload, path: str) -> Call:
        """Return the candidate's call, with all threads that the workload asks for."""
        self._toolbox.set_threads(workload.threads or self._cores)
        return self._toolbox.bind(Path(path), self._of(workload).arguments)

    def _of(self, workload: Workload) -> Problem:
        self.prepare(workload)
        assert self._problem is not None
        return self._problem


def wrong_result(report: CheckReport) -> Failure:
    """Return the failure of a candidate that computes something else."""
    error = report.max_error if np.isfinite(report.max_error) else None
    return Failure(status=MeasureStatus.WRONG_RESULT, detail=report.detail, max_error=error)


def _confirmed(
    times_s: tuple[float, ...], reference: tuple[float, ...], metrics: dict[str, float]
) -> Timed | Failure:
    if CONFIRMING.is_unstable(times_s):
        return _unstable(times_s)
    interval = relative_interval(times_s)
    return Timed(
        times_s=times_s,
        reference_times_s=reference,
        metrics={**metrics, "relative_interval": interval if np.isfinite(interval) else 0.0},
    )


def _unstable(times_s: Sequence[float]) -> Failure:
    shown = ", ".join(f"{t * 1e6:.1f}" for t in times_s)
    return Failure(
        status=MeasureStatus.UNSTABLE,
        detail=f"the median of {len(times_s)} samples is uncertain by "
        f"{relative_interval(times_s):.0%}: {shown} us",
    )


@dataclass(frozen=True, slots=True)
class _Observation:
    """Machine load over a stretch of time."""

    ticks: tuple[float, float]
    wall_s: float
    used_s: float

    @classmethod
    def start(cls) -> _Observation:
        return cls(timing.processor_times(), time.monotonic(), time.process_time())

    def metrics(self, cores: int) -> dict[str, float]:
        wall_s = time.monotonic() - self.wall_s
        used_s = time.process_time() - self.used_s
        after = timing.processor_times()
        load = timing.load_metrics(self.ticks, after, used_s, os.cpu_count() or cores, wall_s)
        return {**load, "load_average": os.getloadavg()[0], "timing_s": round(wall_s, 6)}
