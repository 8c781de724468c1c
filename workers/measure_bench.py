"""MeasureBench: lives in the measuring child process; checks candidates, then times them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recommender.measurement import MeasureStatus
from recommender.workload import Workload
from workers import timing
from workers.correctness import CheckReport
from workers.outcome import Failure, Timed
from workers.problem import Call, Problem
from workers.quiet import QuietCores
from workers.statistics import CONFIRMING, SCREENING, relative_interval
from workers.toolbox import Toolbox
from workers.turn import Turn

RIVAL = "rival"


class MeasureBench:
    """Checks and times kernels of one workload after the other."""

    def __init__(self, toolbox: Toolbox, cores: int) -> None:
        self._toolbox = toolbox
        self._cores = cores
        self._quiet = QuietCores()
        self._workload: Workload | None = None
        self._problem: Problem | None = None
        self._rival: Call | None = None

    def prepare(self, workload: Workload) -> None:
        """Make inputs and reference of a workload, unless they are those of the last one."""
        if self._problem is None or self._workload != workload:
            self._problem = self._rival = None  # release the memory first
            self._problem, self._workload = self._toolbox.problem(workload), workload

    def prepare_rival(self, workload: Workload) -> None:
        """Make the rival's call, if there is one."""
        problem = self._of(workload)
        if self._rival is None:
            self._rival = problem.rival()
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(workload.threads or self._cores)

    def check(self, workload: Workload, path: str) -> float | Failure:
        """Compare one candidate, run with all threads, with the reference; return its error."""
        report = self._of(workload).check(self._bind(workload, path))
        return report.max_error if report.passed else wrong_result(report)

    def screen(self, workload: Workload, path: str) -> Timed | Failure:
        """Check a candidate, then time it on one thread's CPU time."""
        call = self._bind(workload, path)
        report = self._of(workload).check(call)
        if not report.passed:
            return wrong_result(report)
        self._toolbox.set_threads(1)
        observed = _Observation.start()
        with self._quiet.one():
            times_s = timing.screen(call, SCREENING)
        metrics = observed.metrics(self._cores)
        if SCREENING.is_unstable(times_s):
            return unstable(times_s)
        interval = relative_interval(times_s)
        metrics["relative_interval"] = interval if np.isfinite(interval) else 0.0
        return Timed(times_s=times_s, max_error=report.max_error, metrics=metrics)

    def confirm(
        self, workload: Workload, paths: Sequence[str], turn: Turn
    ) -> list[Timed | Failure]:
        """Time checked candidates and the rival in turn, wall clock, with all threads."""
        participants = {}
        for path in paths:
            turn.begin(path)
            participants[path] = self._bind(workload, path)
        turn.begin(RIVAL)
        self.prepare_rival(workload)
        if self._rival is not None:
            participants[RIVAL] = self._rival
        waited = self._quiet.wait()
        observed = _Observation.start()
        is_alone = (workload.threads or self._cores) == 1
        with self._quiet.one() if is_alone else nullcontext():
            times = timing.interleave(participants, CONFIRMING, begin=turn.begin)
        has_rival = {"has_rival": float(RIVAL in times)}
        metrics = {**observed.metrics(self._cores), **waited, **has_rival}
        reference = times.get(RIVAL, ())
        return [_confirmed(times[p], reference, metrics) for p in paths]

    def _bind(self, workload: Workload, path: str) -> Call:
        """Return the candidate's call, with all threads that the workload asks for."""
        self._toolbox.set_threads(workload.threads or self._cores)
        return self._of(workload).bind(Path(path))

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
        return unstable(times_s)
    interval = relative_interval(times_s)
    return Timed(
        times_s=times_s,
        reference_times_s=reference,
        metrics={**metrics, "relative_interval": interval if np.isfinite(interval) else 0.0},
    )


def unstable(times_s: Sequence[float]) -> Failure:
    """Return the failure of a candidate whose samples mean nothing."""
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
