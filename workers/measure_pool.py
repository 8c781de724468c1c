"""MeasurePool: many compilers, one exclusive meter, results as they finish.

The scheduling is the same for every executor: :class:`workers.pool.LocalPool` runs it with
processes of this machine, :class:`workers.ray_pool.RayPool` with actors of a cluster. One thread
per lane; each lane's process does the work, so the threads only wait.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol as TypingProtocol
from typing import Self

from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol, Toolchain
from recommender.ports import MeasureRequest
from recommender.workload import Workload
from tilecore.tile_config import TileConfig
from workers.errors import WorkerError
from workers.gate import Gate
from workers.outcome import Compiled, Failure, Timed
from workers.toolbox import Toolbox
from workers.toolchain import current_toolchain

LOG = logging.getLogger(__name__)
BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
JOIN_TIMEOUT_S = 5.0


class Compiler(TypingProtocol):
    """One compile lane."""

    def compile(self, workload: Workload, config: TileConfig) -> Compiled | Failure:
        """Return the artifact or why there is none; raises WorkerError when itself at fault."""
        ...

    def kill(self) -> None:
        """End its process at once, from any thread."""
        ...

    def close(self) -> None:
        """End its process; called by the lane's own thread when it ends."""
        ...


class Meter(TypingProtocol):
    """The one measuring lane of a device."""

    def screen(self, workload: Workload, compiled: Compiled) -> Timed | Failure:
        """Check and time one candidate; raises WorkerError when itself at fault."""
        ...

    def confirm(self, workload: Workload, batch: Sequence[Compiled]) -> list[Timed | Failure]:
        """Check and time candidates interleaved; raises WorkerError when itself at fault."""
        ...

    def kill(self) -> None:
        """End its process at once, from any thread."""
        ...

    def close(self) -> None:
        """End its process; called by the lane's own thread when it ends."""
        ...


@dataclass(eq=False, slots=True)
class _Job:
    request: MeasureRequest
    batch: _Batch
    compiled: Compiled | None = None


@dataclass(eq=False, slots=True)
class _Batch:
    """Requests of one submit call that are for the same workload and protocol."""

    jobs: list[_Job] = field(default_factory=list)
    waiting: int = 0  # not compiled yet
    screened: dict[str, Timed | Failure] = field(default_factory=dict)  # by artifact digest


class MeasurePool:
    """Implements recommender.ports.Measurer over compilers and a meter."""

    def __init__(
        self,
        hardware: HardwareProfile,
        *,
        compilers: Sequence[Compiler],
        meter: Meter,
        toolbox: Toolbox,
        name: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.hardware = hardware
        self._toolbox = toolbox
        self._toolchain: Toolchain = current_toolchain()
        self._compilers = compilers
        self._meter = meter
        self._name = name
        self._now = now
        self._to_compile: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._to_measure: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[MeasureRequest, Measurement]] = queue.SimpleQueue()
        self._digests: dict[Workload, str] = {}
        self._lock = threading.Lock()
        self._gate = Gate()
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._compile_lane, args=(compiler,), daemon=True)
            for compiler in compilers
        ]
        self._threads.append(threading.Thread(target=self._measure_lane, daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def devices(self) -> int:
        """How many devices measure side by side just now."""
        return 1

    def submit(self, requests: Sequence[MeasureRequest]) -> None:
        """Queue candidates; returns at once."""
        batches: dict[tuple[Workload, Protocol], _Batch] = {}
        jobs = []
        for request in requests:
            batch = batches.setdefault((request.workload, request.protocol), _Batch())
            batch.jobs.append(_Job(request, batch))
            batch.waiting += 1
            jobs.append(batch.jobs[-1])
        for job in jobs:
            self._to_compile.put(job)

    def collect(self, timeout_s: float) -> list[tuple[MeasureRequest, Measurement]]:
        """Return what has finished, waiting up to ``timeout_s`` for the first result."""
        results: list[tuple[MeasureRequest, Measurement]] = []
        try:
            results.append(self._done.get(timeout=max(0.0, timeout_s)))
            while True:
                results.append(self._done.get_nowait())
        except queue.Empty:
            return results

    def close(self) -> None:
        """Stop all processes; what is queued or running has no result any more."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._gate.open()
        for compiler in self._compilers:
            compiler.kill()
            self._to_compile.put(None)
        self._meter.kill()
        self._to_measure.put(None)
        for thread in self._threads:
            thread.join(JOIN_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- compile lanes ------------------------------------------------------------------------

    def _compile_lane(self, compiler: Compiler) -> None:
        losses = 0
        while (job := self._to_compile.get()) is not None and not self._stopped.is_set():
            request = job.request
            try:
                with self._gate.passing():
                    outcome = compiler.compile(request.workload, request.config)
                losses = 0
            except Exception as error:  # noqa: BLE001  thread border: a lane must not die
                outcome = self._lost(error)
                losses += 1
            self._compiled(job, outcome)
            self._back_off(losses)
        compiler.close()

    def _compiled(self, job: _Job, outcome: Compiled | Failure) -> None:
        if isinstance(outcome, Failure):
            self._report(job, outcome)
        else:
            job.compiled = outcome
        with self._lock:
            job.batch.waiting -= 1
            is_last = job.batch.waiting == 0
        if job.request.protocol is Protocol.SCREEN:
            if job.compiled is not None:
                self._to_measure.put([job])
        elif is_last:
            ready = [j for j in job.batch.jobs if j.compiled is not None]
            if ready:
                self._to_measure.put(ready)

    # --- the measure lane ---------------------------------------------------------------------

    def _measure_lane(self) -> None:
        losses = 0
        while (jobs := self._to_measure.get()) is not None and not self._stopped.is_set():
            try:
                outcomes = self._measure(jobs)
                losses = 0
            except Exception as error:  # noqa: BLE001  thread border: a lane must not die
                outcomes = [self._lost(error)] * len(jobs)
                losses += 1
            for job, outcome in zip(jobs, outcomes, strict=True):
                self._report(job, outcome)
            self._back_off(losses)
        self._meter.close()

    def _measure(self, jobs: Sequence[_Job]) -> list[Timed | Failure]:
        """Measure jobs of one workload and protocol; equal code is measured once."""
        request, batch = jobs[0].request, jobs[0].batch
        distinct = {job.compiled.digest: job.compiled for job in jobs if job.compiled is not None}
        if request.protocol is Protocol.SCREEN:
            found = batch.screened
            for digest, compiled in distinct.items():
                if digest not in found:
                    found[digest] = self._meter.screen(request.workload, compiled)
        else:
            with self._gate.closed():  # all cores for the candidates: no compiling meanwhile
                timed = self._meter.confirm(request.workload, list(distinct.values()))
            found = dict(zip(distinct, timed, strict=True))
        return [found[job.compiled.digest] for job in jobs if job.compiled is not None]

    # --- results ------------------------------------------------------------------------------

    def _report(self, job: _Job, outcome: Timed | Failure) -> None:
        if not self._stopped.is_set():
            self._done.put((job.request, self._measurement(job, outcome)))

    def _measurement(self, job: _Job, outcome: Timed | Failure) -> Measurement:
        request, compiled = job.request, job.compiled
        is_screen = request.protocol is Protocol.SCREEN
        failure = outcome if isinstance(outcome, Failure) else None
        timed = outcome if isinstance(outcome, Timed) else None
        metrics = dict(compiled.metrics) if compiled else {}
        return Measurement(
            workload=request.workload,
            config=request.config,
            hardware=self.hardware,
            toolchain=self._toolchain,
            program_digest=self._program_digest(request.workload),
            protocol=request.protocol,
            threads=1 if is_screen else request.workload.threads or self.hardware.cores,
            status=failure.status if failure else MeasureStatus.OK,
            times_s=timed.times_s if timed else (),
            reference_times_s=timed.reference_times_s if timed else (),
            detail=failure.detail if failure else "",
            compile_s=compiled.compile_s if compiled else failure.compile_s if failure else None,
            max_error=outcome.max_error,
            worker=self._name,
            measured_at=self._now(),
            metrics={**metrics, **timed.metrics} if timed else metrics,
        )

    def _program_digest(self, workload: Workload) -> str:
        """Return the program's digest, '' where it cannot be traced (then nothing runs)."""
        if workload not in self._digests:
            try:
                digest = self._toolbox.program_digest(workload)
            except Exception as error:  # noqa: BLE001  user programs may raise anything
                LOG.warning("no program digest for %s: %s", workload, error)
                digest = ""
            self._digests[workload] = digest
        return self._digests[workload]

    def _lost(self, error: Exception) -> Failure:
        if not isinstance(error, WorkerError) and not self._stopped.is_set():
            LOG.error("a lane of %s failed", self._name, exc_info=error)
        detail = f"{type(error).__name__}: {error}"
        return Failure(status=MeasureStatus.WORKER_LOST, detail=detail)

    def _back_off(self, losses: int) -> None:
        """Wait after infrastructure failures, longer each time: a sick lane must do no harm."""
        if losses:
            self._stopped.wait(min(MAX_BACKOFF_S, BACKOFF_S * 2 ** (losses - 1)))
