"""DeviceBench: MeasureBench for a GPU, or the emulator in its place; lives in a child process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from recommender.workload import Workload
from workers import device_timing as timing
from workers.correctness import CheckReport
from workers.device_toolbox import DeviceToolbox
from workers.measure_bench import RIVAL, unstable, wrong_result
from workers.outcome import Failure, Timed
from workers.problem import Call, Problem
from workers.statistics import StoppingRule, relative_interval
from workers.turn import Turn


class DeviceBench:
    """Checks and times kernels of one workload after the other.

    Every method ends with the device idle: what goes wrong on it is the candidate's that ran.
    """

    def __init__(self, toolbox: DeviceToolbox, cores: int) -> None:
        _ = cores
        self._toolbox = toolbox
        self._workload: Workload | None = None
        self._problem: Problem | None = None
        self._timer: timing.DeviceTimer | None = None
        self._rival: Call | None = None
        self._checked = 0  # kernels that ran on the present inputs

    def prepare(self, workload: Workload) -> None:
        """Make inputs and reference of a workload, unless they are those of the last one."""
        if self._problem is None or self._workload != workload:
            self._problem = self._rival = self._timer = None  # release the memory first
            self._timer = self._toolbox.timer(workload)
            self._problem, self._workload = self._toolbox.problem(workload), workload
            self._checked = 0

    def prepare_rival(self, workload: Workload) -> None:
        """Make the rival's call, if there is one."""
        problem = self._of(workload)
        if self._rival is None:
            self._rival = problem.rival()

    def check(self, workload: Workload, path: str) -> float | Failure:
        """Compare one candidate with the reference; return its error.

        One that fails is tried again on new inputs: those before may have suffered from others.
        """
        report = self._checked_call(workload, path)[1]
        return report.max_error if report.passed else wrong_result(report)

    def screen(self, workload: Workload, path: str) -> Timed | Failure:
        """Check a candidate, then time it."""
        call, report = self._checked_call(workload, path)
        if not report.passed:
            return wrong_result(report)
        timer = self._timer
        assert timer is not None
        start = time.monotonic()
        times_s = timing.screen(timer.sampler(call), timer.screening)
        timer.synchronize()
        metrics = {**timer.metrics(), "timing_s": round(time.monotonic() - start, 6)}
        result = _timed(times_s, (), metrics, timer.screening)
        if isinstance(result, Failure):
            return result
        return Timed(times_s=result.times_s, max_error=report.max_error, metrics=result.metrics)

    def confirm(
        self, workload: Workload, paths: Sequence[str], turn: Turn
    ) -> list[Timed | Failure]:
        """Time checked candidates and the rival in turn."""
        problem = self._of(workload)
        self.prepare_rival(workload)
        timer = self._timer
        assert timer is not None
        calls = {}
        for path in paths:
            turn.begin(path)
            calls[path] = problem.bind(Path(path))
        if self._rival is not None:
            calls[RIVAL] = self._rival
        start = time.monotonic()
        samplers = {}
        for name, call in calls.items():
            turn.begin(name)
            samplers[name] = timer.sampler(call)
        times = timing.interleave(samplers, timer.confirming, begin=turn.begin)
        timer.synchronize()
        metrics = {
            **timer.metrics(),
            "has_rival": float(RIVAL in times),
            "timing_s": round(time.monotonic() - start, 6),
        }
        return [_timed(times[p], times.get(RIVAL, ()), metrics, timer.confirming) for p in paths]

    def _checked_call(self, workload: Workload, path: str) -> tuple[Call, CheckReport]:
        problem = self._of(workload)
        call = problem.bind(Path(path))
        report = problem.check(call)
        if not report.passed and self._checked:
            self._problem = None
            problem = self._of(workload)
            call = problem.bind(Path(path))
            report = problem.check(call)
        self._checked += 1
        if not report.passed:
            self._problem = None
        return call, report

    def _of(self, workload: Workload) -> Problem:
        self.prepare(workload)
        assert self._problem is not None
        return self._problem


def _timed(
    times_s: tuple[float, ...], reference: tuple[float, ...], metrics: dict[str, float],
    rule: StoppingRule,
) -> Timed | Failure:  # fmt: skip
    if rule.is_unstable(times_s):
        return unstable(times_s)
    interval = relative_interval(times_s)
    return Timed(
        times_s=times_s,
        reference_times_s=reference,
        metrics={**metrics, "relative_interval": interval if np.isfinite(interval) else 0.0},
    )
