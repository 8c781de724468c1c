"""Measure worker: artifacts in, checked times or failures out; holds the device while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recommender.workload import Workload
from tilecore.errors import ToolchainMissing
from workers.device_lock import device_lock
from workers.errors import WorkerLost
from workers.host import MEASURED_BYTES, candidate_memory_bytes
from workers.measure_bench import MeasureBench, wrong_result
from workers.outcome import Compiled, Failure, Timed, describe, run_failure
from workers.portable_problem import ORACLE_S
from workers.sandbox import Outcome, Raised, Returned, Sandbox, TimedOut, Zygote
from workers.toolbox import Toolbox

CONFIRM_TIMEOUT_S = 60.0  # rounds stop after 30 s; neighbours can stretch that
RENEWED_AFTER = 1024  # candidates of a device's process: what they loaded stays in it
TOO_LARGE = "OutOfMemoryError"  # torch's, of inputs that a device has no room for
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
        memory_bytes=candidate_memory_bytes(MEASURED_BYTES),
    )


class MeasureWorker:
    """Measures candidates one call at a time, exclusively on its device.

    Args:
        zygote: forks the candidates' processes.
        toolbox: what they run.
        cores: of the machine, or multiprocessors of the device.
        timeout_s: of a candidate.
        lock: of the device.
        bench: what checks and times in their processes.
        is_tainted_by_errors: whether a process whose candidate failed is worth nothing any more: an
            error of a CUDA device stays in the process that caused it.
    """

    def __init__(
        self,
        zygote: Zygote,
        toolbox: Toolbox,
        *,
        cores: int,
        timeout_s: float,
        lock: Path,
        bench: Callable[..., Any] = MeasureBench,
        is_tainted_by_errors: bool = False,
    ) -> None:
        self._sandbox = Sandbox(zygote, bench, toolbox, cores)
        self._timeout_s = timeout_s
        self._lock = lock
        self._is_tainted_by_errors = is_tainted_by_errors
        self._served = 0  # candidates that this process has run

    def screen(self, workload: Workload, compiled: Compiled) -> Timed | Failure:
        """Check one candidate and time it by the SCREEN protocol.

        Raises:
            WorkerError: the worker failed, not the candidate (WK7xx).
        """
        with device_lock(self._lock):
            outcome = self._of_candidate(workload, "screen", compiled.path)
        if isinstance(outcome, Failure):
            return outcome
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
        # what somebody sent runs in here, too: to say what candidates must compute
        limit_s = PREPARE_TIMEOUT_S if workload.source is None else 2 * self._timeout_s + ORACLE_S
        is_new = not self._served
        outcome = self._call(step, workload, timeout_s=limit_s)
        if is_new and self._is_tainted_by_errors:
            _complain_of_device(outcome)
        return None if isinstance(outcome, Returned) else run_failure(outcome, "inputs")

    def _of_candidate(
        self, workload: Workload, method: str, argument: Any, *, step: str = "prepare",
        timeout_s: float | None = None,
    ) -> Outcome | Failure:  # fmt: skip
        """Run candidates in a process that has their inputs; a Failure is one of the inputs.

        Where errors taint the process, what failed in a process that others had used before is run
        again in a new one: the fault may be theirs.
        """
        if self._is_tainted_by_errors and self._served >= RENEWED_AFTER:
            self._sandbox.close()
            self._served = 0
        while True:
            was_used = self._served > 0
            outcome: Outcome | Failure | None = self._prepare(workload, step)
            if outcome is None:
                self._served += 1
                limit_s = self._timeout_s if timeout_s is None else timeout_s
                outcome = self._call(method, workload, argument, timeout_s=limit_s)
                if self._is_tainted_by_errors and _lacks_toolchain(outcome):
                    raise WorkerLost(worker="the device", reason=describe(outcome))
            is_clear = isinstance(outcome, Returned | TimedOut)
            if is_clear or not (was_used and self._is_tainted_by_errors):
                return outcome

    def _call(self, method: str, *args: Any, timeout_s: float) -> Outcome:
        outcome = self._sandbox.call(method, *args, timeout_s=timeout_s)
        if not isinstance(outcome, Returned):
            if self._is_tainted_by_errors:
                self._sandbox.close()
            self._served = 0
        return outcome

    def _check(self, workload: Workload, compiled: Compiled) -> Failure | float:
        outcome = self._of_candidate(workload, "check", compiled.path)
        if isinstance(outcome, Failure):
            return outcome
        if not isinstance(outcome, Returned):
            return run_failure(outcome, "check")
        report = outcome.value
        return float(report.max_error) if report.passed else wrong_result(report)

    def _time(self, workload: Workload, batch: Sequence[Compiled]) -> list[Timed | Failure]:
        if not batch:
            return []
        paths = [compiled.path for compiled in batch]
        limit_s = CONFIRM_TIMEOUT_S + self._timeout_s * len(paths)
        outcome = self._of_candidate(
            workload, "confirm", paths, step="prepare_rival", timeout_s=limit_s
        )
        if isinstance(outcome, Failure):
            return [outcome] * len(batch)
        if isinstance(outcome, Returned):
            results: list[Timed | Failure] = outcome.value
            return results
        if len(batch) == 1:
            return [run_failure(outcome, "run")]
        return [self._time(workload, [compiled])[0] for compiled in batch]


def _complain_of_device(outcome: Outcome) -> None:
    """Raise WorkerLost where a new process cannot use the device: no candidate is to blame (WK701).

    What is too large for it, or is no legal problem, is the workload's fault.
    """
    if not isinstance(outcome, Raised):
        return
    if _lacks_toolchain(outcome) or (not outcome.code and outcome.kind != TOO_LARGE):
        raise WorkerLost(worker="the device", reason=describe(outcome))


def _lacks_toolchain(outcome: Outcome) -> bool:
    return isinstance(outcome, Raised) and outcome.code == ToolchainMissing.code


def _with_error(result: Timed | Failure, max_error: float) -> Timed | Failure:
    if isinstance(result, Failure):
        return result
    return Timed(
        times_s=result.times_s,
        reference_times_s=result.reference_times_s,
        max_error=max_error,
        metrics=result.metrics,
    )
