"""Measure worker: artifacts in, checked times or failures out; holds the device while it runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recommender.measurement import MeasureStatus
from recommender.workload import Workload
from tilecore.errors import ToolchainMissing
from workers.device_lock import device_lock
from workers.errors import WorkerLost
from workers.host import MEASURED_BYTES, candidate_memory_bytes
from workers.measure_bench import MeasureBench
from workers.outcome import Compiled, Failure, Timed, describe, run_failure
from workers.portable_problem import ORACLE_S
from workers.sandbox import Outcome, Raised, Returned, Sandbox, TimedOut, Zygote
from workers.toolbox import Toolbox
from workers.turn import Turn

CONFIRM_TIMEOUT_S = 60.0  # rounds stop after 30 s; neighbours can stretch that
RENEWED_AFTER = 1024  # candidates of a process: what they loaded stays in it
MOST_LEFT_OUT = 3  # of a confirmation, before its candidates are timed one by one
TOO_LARGE = "OutOfMemoryError"  # torch's, of inputs that a device has no room for
PREPARE_TIMEOUT_S = 600.0  # our own code: random inputs and a float64 reference


def measure_zygote(toolbox: Toolbox, cores: int) -> Zygote:
    """Return the owner of a process with the runtime and torch imported.

    TVM_THREAD_POOL_SPIN_COUNT=0: its workers sleep between calls, so that the rival's threads find
    the cores free and the other way round (``tilecore/runtime/library.py`` has by how much).
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

    Candidates share a process until something goes wrong in it. Then it is discarded; and since the
    fault may be another's that came before, what failed in a process that others had used is run
    again, once, in a new one with new inputs: that verdict counts. (What hung is not: it would cost
    its time limit twice.)

    Args:
        zygote: forks the candidates' processes.
        toolbox: what they run.
        cores: of the machine, or multiprocessors of the device.
        timeout_s: of a candidate.
        lock: of the device.
        bench: what checks and times in their processes.
        is_device: whether candidates run on a device, which may itself be at fault, and whose
            memory is its own: its bench then knows how to check again what computed wrong results.
            Candidates of a CPU write where the bench keeps what it compares with.
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
        is_device: bool = False,
    ) -> None:
        self._sandbox = Sandbox(zygote, bench, toolbox, cores)
        self._timeout_s = timeout_s
        self._lock = lock
        self._is_device = is_device
        self._served = 0  # candidates that this process has run

    def screen(self, workload: Workload, compiled: Compiled) -> Timed | Failure:
        """Check one candidate and time it by the SCREEN protocol.

        Raises:
            WorkerError: the worker failed, not the candidate (WK7xx).
        """
        with device_lock(self._lock):
            found: Timed | Failure = self._of_candidate(workload, "screen", compiled.path, "run")
            return found

    def confirm(self, workload: Workload, batch: Sequence[Compiled]) -> list[Timed | Failure]:
        """Check candidates and time them by the CONFIRM protocol, interleaved with the rival.

        Returns one result per candidate, in order. A candidate that takes the child down does not
        spoil the others: they are timed again, in turn, without it.
        """
        failed: dict[str, Timed | Failure] = {}
        errors: dict[str, float] = {}
        with device_lock(self._lock):
            for compiled in batch:
                error = self._of_candidate(workload, "check", compiled.path, "check")
                if isinstance(error, Failure):
                    failed[compiled.path] = error
                else:
                    errors[compiled.path] = error
            results = {**failed, **self._time(workload, errors)}
        return [results[compiled.path] for compiled in batch]

    def recover(self) -> None:
        """Nothing to wait for: the next call starts what it needs."""

    def kill(self) -> None:
        """End the child process at once, from any thread."""
        self._sandbox.kill()

    def close(self) -> None:
        """End the child process; not while a call is in progress."""
        self._sandbox.close()

    def _of_candidate(self, workload: Workload, method: str, path: str, phase: str) -> Any:
        """Return what a call of one candidate returned, or its Failure."""
        while True:
            refused = self._prepare(workload)
            if refused is not None:
                return refused
            was_used = self._served > 0
            self._served += 1
            outcome = self._call(method, workload, path, timeout_s=self._timeout_s)
            if was_used and self._is_fault(outcome) and not isinstance(outcome, TimedOut):
                continue
            return outcome.value if isinstance(outcome, Returned) else run_failure(outcome, phase)

    def _time(
        self, workload: Workload, errors: Mapping[str, float]
    ) -> Mapping[str, Timed | Failure]:
        """Return times of checked candidates, taken in turn, or their failures, by path.

        The one whose turn it was when the process died or hung is left out, and the others are
        timed again in turn. Those left out, or all where there is nobody or too many to name, come
        last: each in a process of its own, at another moment (metric ``is_apart``).
        """
        found: dict[str, Timed | Failure] = {}
        together, apart = list(errors), list[str]()
        while together:
            results, culprit = self._take_turns(workload, together)
            if culprit is None:
                found.update(zip(together, results, strict=True))
                break
            is_known = culprit in together and len(apart) < MOST_LEFT_OUT
            left_out = {culprit} if is_known else set(together)
            apart += [path for path in together if path in left_out]
            together = [path for path in together if path not in left_out]
        for path in apart:
            self._discard()
            [found[path]], _ = self._take_turns(workload, [path])
        return {path: _with(found[path], errors[path], path in apart) for path in errors}

    def _take_turns(
        self, workload: Workload, paths: Sequence[str]
    ) -> tuple[list[Timed | Failure], str | None]:
        """Return times of candidates taken in turn, and None.

        Where the process did not get through: a failure for each, and whose turn it was.
        """
        refused = self._prepare(workload, "prepare_rival")
        if refused is not None:
            return [refused] * len(paths), None
        self._served += len(paths)
        limit_s = CONFIRM_TIMEOUT_S + self._timeout_s * len(paths)
        with tempfile.NamedTemporaryFile(prefix="tilecore-turn-") as file:
            turn = Turn(Path(file.name))
            outcome = self._call("confirm", workload, paths, turn, timeout_s=limit_s)
            if isinstance(outcome, Returned):
                return outcome.value, None
            return [run_failure(outcome, "run")] * len(paths), turn.whose()

    def _prepare(self, workload: Workload, step: str = "prepare") -> Failure | None:
        """Make the inputs, unless the process has them; return why there are none."""
        if self._served >= RENEWED_AFTER:
            self._discard()
        was_used = self._served > 0
        # what somebody sent runs in here, too: to say what candidates must compute
        limit_s = PREPARE_TIMEOUT_S if workload.source is None else 2 * self._timeout_s + ORACLE_S
        outcome = self._call(step, workload, timeout_s=limit_s)
        if was_used and not isinstance(outcome, Returned):
            outcome = self._call(step, workload, timeout_s=limit_s)
        if isinstance(outcome, Returned):
            return None
        if self._is_device:
            _complain_of_device(outcome)
        return run_failure(outcome, "inputs")

    def _call(self, method: str, *args: Any, timeout_s: float) -> Outcome:
        """Return what became of a call; a process in which something went wrong is discarded."""
        outcome = self._sandbox.call(method, *args, timeout_s=timeout_s)
        if self._is_fault(outcome):
            self._discard()
        if self._is_device and _lacks_toolchain(outcome):
            raise WorkerLost(worker="the device", reason=describe(outcome))
        return outcome

    def _is_fault(self, outcome: Outcome) -> bool:
        """Return whether nothing in the process can be trusted any more."""
        if not isinstance(outcome, Returned):
            return True
        found = outcome.value
        is_wrong = isinstance(found, Failure) and found.status is MeasureStatus.WRONG_RESULT
        return is_wrong and not self._is_device

    def _discard(self) -> None:
        self._sandbox.close()
        self._served = 0


def _complain_of_device(outcome: Outcome) -> None:
    """Raise WorkerLost where a new process cannot use the device: no candidate is to blame (WK701).

    What is too large for it, or is no legal problem, is the workload's fault.
    """
    if not isinstance(outcome, Raised):
        return
    if not outcome.code and outcome.kind != TOO_LARGE:
        raise WorkerLost(worker="the device", reason=describe(outcome))


def _lacks_toolchain(outcome: Outcome) -> bool:
    return isinstance(outcome, Raised) and outcome.code == ToolchainMissing.code


def _with(result: Timed | Failure, max_error: float, is_apart: bool) -> Timed | Failure:
    if isinstance(result, Failure):
        return result
    metrics = {**result.metrics, "is_apart": float(is_apart)}
    return replace(result, max_error=max_error, metrics=metrics)
