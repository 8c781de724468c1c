"""Measure worker: artifacts in, checked times or failures out; holds the device while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recommender.workload import Workload
from workers.device_lock import device_lock
from workers.host import candidate_memory_bytes
from workers.measure_bench import MeasureBench, wrong_result
from workers.outcome import Compiled, Failure, Timed, run_failure
from workers.sandbox import Returned, Sandbox, Zygote
from workers.toolbox import Toolbox

MEMORY_BYTES = 32 << 30
CONFIRM_TIMEOUT_S = 60.0  # rounds stop after 30 s; neighbours can stretch that
PREPARE_TIMEOUT_S = 600.0  # our own code: random inputs and a float64 reference


def measure_zygote(toolbox: Toolbox, cores: int) -> Zygote:
    """Return the owner of a process with the runtime and torch imported.

    TVM_THREAD_POOL_SPIN_COUNT=0: its workers sleep between calls, so that the rival's threads find
    the cores free and the other way round (research/cpu-lowering.md section 6).
    """
    environment = {
        "TVM_THREAD_POOL_SPIN_COUNT": "0",
        "TVM_NUM_THREADS": str(cores),
        "OMP_NUM_THREADS": str(cores),
        "MKL_NUM_THREADS": str(cores),
        "OPENBLAS_NUM_THREADS": str(cores),
    }
    return Zygote(
        "measure worker",
        toolbox.run_modules,
        environment=environment,
        memory_bytes=candidate_memory_bytes(MEMORY_BYTES),
    )


class MeasureWorker:
    """Measures candidates one call at a time, exclusively on its device."""

    def __init__(
        self,
        zygote: Zygote,
        toolbox: Toolbox,
        *,
        cores: int,
        timeout_s: float,
        lock: Path,
        bench: Callable[..., Any] = MeasureBench,
    ) -> None:
        self._sandbox = Sandbox(zygote, bench, toolbox, cores)
        self._timeout_s = timeout_s
        self._lock = lock

    def screen(self, workload: Workload, compiled: Compiled) -> Timed | Failure:
        """Check one candidate and time it by the SCREEN protocol.

        Raises:
            WorkerError: the worker failed, not the candidate (WK7xx).
        """
        with device_lock(self._lock):
            failure = self._prepare(workload)
            if failure is not None:
                return failure
            outcome = self._sandbox.call(
                "screen", workload, compiled.path, timeout_s=self._timeout_s
            )
        if isinstance(outcome, Returned):
            result: Timed | Failure = outcome.value
            return result
        return run_failure(outcome, "run")

    def confirm(self, workload: Workload, batch: Sequence[Compiled]) -> list[Timed | Failure]:
        """Check candidates and time them by the CONFIRM protocol, interleaved with the rival.

        Returns one result per candidate, in order. A candidate that takes the child down does not
        spoil the others: they are timed again without it.
        """
        with device_lock(self._lock):
            results: dict[int, Timed | Failure] = {}
            errors: dict[int, float] = {}
            for i, compiled in enumerate(batch):
                checked = self._check(workload, compiled)
                if isinstance(checked, Failure):
                    results[i] = checked
                else:
                    errors[i] = checked
            good = list(errors)
            for i, timed in zip(good, self._time(workload, [batch[i] for i in good]), strict=True):
                results[i] = _with_error(timed, errors[i])
            return [results[i] for i in range(len(batch))]

    def recover(self) -> None:
        """Nothing to wait for: the next call starts what it needs."""

    def kill(self) -> None:
        """End the child process at once, from any thread."""
        self._sandbox.kill()

    def close(self) -> None:
        """End the child process; not while a call is in progress."""
        self._sandbox.close()

    def _prepare(self, workload: Workload, step: str = "prepare") -> Failure | None:
        outcome = self._sandbox.call(step, workload, timeout_s=PREPARE_TIMEOUT_S)
        return None if isinstance(outcome, Returned) else run_failure(outcome, "inputs")

    def _check(self, workload: Workload, compiled: Compiled) -> Failure | float:
        failure = self._prepare(workload)
        if failure is not None:
            return failure
        outcome = self._sandbox.call("check", workload, compiled.path, timeout_s=self._timeout_s)
        if not isinstance(outcome, Returned):
            return run_failure(outcome, "check")
        report = outcome.value
        return float(report.max_error) if report.passed else wrong_result(report)

    def _time(self, workload: Workload, batch: Sequence[Compiled]) -> list[Timed | Failure]:
        if not batch:
            return []
        failure = self._prepare(workload, "prepare_rival")
        if failure is not None:
            return [failure] * len(batch)
        paths = [compiled.path for compiled in batch]
        limit_s = CONFIRM_TIMEOUT_S + self._timeout_s * len(paths)
        outcome = self._sandbox.call("confirm", workload, paths, timeout_s=limit_s)
        if isinstance(outcome, Returned):
            results: list[Timed | Failure] = outcome.value
            return results
        if len(batch) == 1:
            return [run_failure(outcome, "run")]
        return [self._time(workload, [compiled])[0] for compiled in batch]


def _with_error(result: Timed | Failure, max_error: float) -> Timed | Failure:
    if isinstance(result, Failure):
        return result
    return Timed(
        times_s=result.times_s,
        reference_times_s=result.reference_times_s,
        max_error=max_error,
        metrics=result.metrics,
    )
