"""MeasurePool: many compilers, an exclusive meter per device, results as they finish.

The scheduling is the same for every executor: :class:`workers.pool.LocalPool` runs it with
processes of this machine, :class:`workers.ray_pool.RayPool` with actors of a cluster, whose nodes
come and go. One thread per lane; each lane's process does the work, so the threads only wait.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol as TypingProtocol
from typing import Self, TypeVar

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

J = TypeVar("J")
LOG = logging.getLogger(__name__)
BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
JOIN_TIMEOUT_S = 5.0
LOOK_S = 0.1  # how soon an idle lane sees that its node leaves


class Compiler(TypingProtocol):
    """One compile lane."""

    def compile(self, workload: Workload, config: TileConfig) -> Compiled | Failure:
        """Return the artifact or why there is none; raises WorkerError when itself at fault."""
        ...

    def recover(self) -> None:
        """Wait until it can work again after a WorkerError; raises one while it cannot."""
        ...

    def kill(self) -> None:
        """End its process at once, from any thread."""
        ...

    def close(self) -> None:
        """End its process; called by the lane's own thread when it ends."""
        ...


class Meter(TypingProtocol):
    """The measuring lane of a device."""

    def screen(self, workload: Workload, compiled: Compiled) -> Timed | Failure:
        """Check and time one candidate; raises WorkerError when itself at fault."""
        ...

    def confirm(self, workload: Workload, batch: Sequence[Compiled]) -> list[Timed | Failure]:
        """Check and time candidates interleaved; raises WorkerError when itself at fault."""
        ...

    def recover(self) -> None:
        """Wait until it can work again after a WorkerError; raises one while it cannot."""
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
    waits: bool = True  # no lane works on it


@dataclass(eq=False, slots=True)
class _Batch:
    """Requests of one submit call that are for the same workload and protocol."""

    jobs: list[_Job] = field(default_factory=list)
    waiting: int = 0  # not compiled yet
    screened: dict[str, Timed | Failure] = field(default_factory=dict)  # by artifact digest


@dataclass(eq=False, slots=True)
class _Node:
    """A machine with its lanes; nothing compiles on it while it confirms."""

    name: str
    compilers: Sequence[Compiler]
    meters: Sequence[Meter]
    gate: Gate
    owns_gate: bool
    driver: str
    leaves: threading.Event = field(default_factory=threading.Event)  # no new jobs
    threads: list[threading.Thread] = field(default_factory=list)


class MeasurePool:
    """Implements recommender.ports.Measurer over compilers and meters of nodes."""

    def __init__(
        self,
        hardware: HardwareProfile,
        *,
        toolbox: Toolbox,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.hardware = hardware
        self._toolbox = toolbox
        self._toolchain: Toolchain = current_toolchain().on(hardware.kind)
        self._now = now
        self._to_compile: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._to_measure: queue.SimpleQueue[list[_Job]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[MeasureRequest, Measurement]] = queue.SimpleQueue()
        self._digests: dict[tuple[Workload, TileConfig], str] = {}
        self._lock = threading.Lock()
        self._jobs: set[_Job] = set()  # without a result, and not withdrawn
        self._stopped = threading.Event()
        self._nodes: dict[str, _Node] = {}

    # --- nodes --------------------------------------------------------------------------------

    @property
    def devices(self) -> int:
        """How many devices measure side by side just now."""
        return sum(len(node.meters) for node in self._staying())

    @property
    def compilers(self) -> int:
        """How many candidates are compiled side by side just now."""
        return sum(len(node.compilers) for node in self._staying())

    def _staying(self) -> list[_Node]:
        return [node for node in list(self._nodes.values()) if not node.leaves.is_set()]

    @property
    def node_keys(self) -> set[str]:
        """The nodes that have lanes of this pool."""
        return set(self._nodes)

    def add_node(
        self, key: str, name: str, compilers: Sequence[Compiler], meters: Sequence[Meter],
        gate: Gate | None = None, driver: str = "",
    ) -> None:  # fmt: skip
        """Let the lanes of a node take part.

        Args:
            key: of the node.
            name: for people.
            compilers: lanes that compile.
            meters: lanes that measure.
            gate: shared with other pools' lanes there.
            driver: of its devices; "": as the hardware's.
        """
        node = _Node(
            name, compilers, meters, gate or Gate(), gate is None, driver or self.hardware.driver
        )
        lanes: list[tuple[Callable[..., None], Compiler | Meter]] = [
            *((self._compile_lane, compiler) for compiler in compilers),
            *((self._measure_lane, meter) for meter in meters),
        ]
        for lane, worker in lanes:
            node.threads.append(threading.Thread(target=lane, args=(node, worker), daemon=True))
        self._nodes[key] = node
        for thread in node.threads:
            thread.start()

    def drain_node(self, key: str) -> bool:
        """Give a node nothing new; return whether what was under way on it has ended."""
        node = self._nodes[key]
        node.leaves.set()
        return not any(thread.is_alive() for thread in node.threads)

    def remove_node(self, key: str) -> None:
        """Let go of a node that is gone, or drained: what is under way on it is lost."""
        node = self._nodes.pop(key)
        node.leaves.set()
        if node.owns_gate:
            node.gate.open()
        workers: list[Compiler | Meter] = [*node.compilers, *node.meters]
        for worker in workers:
            worker.kill()

    # --- recommender.ports.Measurer -----------------------------------------------------------

    def submit(self, requests: Sequence[MeasureRequest]) -> None:
        """Queue candidates; returns at once."""
        batches: dict[tuple[Workload, Protocol], _Batch] = {}
        jobs = []
        for request in requests:
            batch = batches.setdefault((request.workload, request.protocol), _Batch())
            batch.jobs.append(_Job(request, batch))
            batch.waiting += 1
            jobs.append(batch.jobs[-1])
        with self._lock:
            self._jobs.update(jobs)
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

    def waiting(self) -> Collection[str]:
        """Return the tokens of requests that no lane works on just now."""
        with self._lock:
            return {job.request.token for job in self._jobs if job.waits}

    def withdraw(self, tokens: Collection[str]) -> None:
        """Forget requests: no lane begins with one, and what lanes have begun with is dropped."""
        with self._lock:
            self._jobs = {job for job in self._jobs if job.request.token not in tokens}

    def close(self) -> None:
        """Stop all processes; what is queued or running has no result any more."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        threads = [thread for node in self._nodes.values() for thread in node.threads]
        for key in list(self._nodes):
            self.remove_node(key)
        for thread in threads:
            thread.join(JOIN_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- lanes --------------------------------------------------------------------------------

    def _next(self, waiting: queue.SimpleQueue[J], node: _Node) -> J | None:
        """Return the next job of a queue; None: the lane is to end."""
        while not self._ends(node):
            with contextlib.suppress(queue.Empty):
                job = waiting.get(timeout=LOOK_S)
                if not self._ends(node):
                    return job
                waiting.put(job)  # it came while this lane looked, but after the node's last job
        return None

    def _ends(self, node: _Node) -> bool:
        return self._stopped.is_set() or node.leaves.is_set()

    def _compile_lane(self, node: _Node, compiler: Compiler) -> None:
        while (job := self._next(self._to_compile, node)) is not None:
            request = job.request
            if not self._take([job]):
                self._compiled(node, job, None)
                continue
            try:
                with node.gate.passing():
                    if self._ends(node):  # while something was measured: others compile it
                        self._give_back(job)
                        break
                    outcome = compiler.compile(request.workload, request.config)
            except Exception as error:  # noqa: BLE001  thread border: a lane must not die
                outcome = self._lost(node, error)
                self._compiled(node, job, outcome)
                self._recover(node, compiler)
            else:
                self._compiled(node, job, outcome)
        compiler.close()

    def _give_back(self, job: _Job) -> None:
        """Leave a job that was taken, but not begun, to other lanes."""
        with self._lock:
            job.waits = True
        self._to_compile.put(job)

    def _take(self, jobs: Sequence[_Job]) -> list[_Job]:
        """Begin with jobs; return those that were not withdrawn."""
        with self._lock:
            taken = [job for job in jobs if job in self._jobs]
            for job in taken:
                job.waits = False
            return taken

    def _compiled(self, node: _Node, job: _Job, outcome: Compiled | Failure | None) -> None:
        """Pass a job on to the meters, or report its failure; None: it was withdrawn."""
        if isinstance(outcome, Failure):
            self._report(node, job, outcome)
        else:
            job.compiled = outcome
        with self._lock:
            job.waits = True
            job.batch.waiting -= 1
            is_last = job.batch.waiting == 0
        if job.request.protocol is Protocol.SCREEN:
            if job.compiled is not None:
                self._to_measure.put([job])
        elif is_last:
            ready = [j for j in job.batch.jobs if j.compiled is not None]
            if ready:
                self._to_measure.put(ready)

    def _measure_lane(self, node: _Node, meter: Meter) -> None:
        while (ready := self._next(self._to_measure, node)) is not None:
            jobs = self._take(ready)
            if not jobs:
                continue
            try:
                outcomes = self._measure(node, meter, jobs)
            except Exception as error:  # noqa: BLE001  thread border: a lane must not die
                failure = self._lost(node, error)
                for job in jobs:
                    self._report(node, job, failure)
                self._recover(node, meter)
                continue
            for job, outcome in zip(jobs, outcomes, strict=True):
                self._report(node, job, outcome)
        meter.close()

    def _measure(self, node: _Node, meter: Meter, jobs: Sequence[_Job]) -> list[Timed | Failure]:
        """Measure jobs of one workload and protocol; equal code is measured once."""
        request, batch = jobs[0].request, jobs[0].batch
        distinct = {job.compiled.digest: job.compiled for job in jobs if job.compiled is not None}
        if request.protocol is Protocol.SCREEN:
            found = batch.screened
            for digest, compiled in distinct.items():
                if digest not in found:
                    found[digest] = meter.screen(request.workload, compiled)
        else:
            with node.gate.closed():  # all cores for the candidates: no compiling meanwhile
                timed = meter.confirm(request.workload, list(distinct.values()))
            found = dict(zip(distinct, timed, strict=True))
        return [found[job.compiled.digest] for job in jobs if job.compiled is not None]

    def _recover(self, node: _Node, worker: Compiler | Meter) -> None:
        """Let a sick lane take no job until it works again; wait longer each time."""
        delay_s = BACKOFF_S
        while not self._ends(node):
            self._stopped.wait(delay_s)
            delay_s = min(MAX_BACKOFF_S, 2 * delay_s)
            try:
                worker.recover()
                return
            except Exception as error:  # noqa: BLE001  thread border: a lane must not die
                LOG.warning("a lane of %s is not back yet: %s", node.name, error)

    # --- results ------------------------------------------------------------------------------

    def _report(self, node: _Node, job: _Job, outcome: Timed | Failure) -> None:
        with self._lock:
            is_wanted = job in self._jobs
            self._jobs.discard(job)
        if is_wanted and not self._stopped.is_set():
            self._done.put((job.request, self._measurement(node, job, outcome)))

    def _measurement(self, node: _Node, job: _Job, outcome: Timed | Failure) -> Measurement:
        request, compiled = job.request, job.compiled
        is_screen, is_cpu = request.protocol is Protocol.SCREEN, self.hardware.kind == "cpu"
        failure = outcome if isinstance(outcome, Failure) else None
        timed = outcome if isinstance(outcome, Timed) else None
        metrics = dict(compiled.metrics) if compiled else {}
        return Measurement(
            workload=request.workload,
            config=request.config,
            hardware=self.hardware,
            toolchain=self._toolchain,
            program_digest=self._program_digest(request.workload, request.config),
            protocol=request.protocol,
            threads=1 if is_screen and is_cpu else request.workload.threads or self.hardware.cores,
            status=failure.status if failure else MeasureStatus.OK,
            times_s=timed.times_s if timed else (),
            reference_times_s=timed.reference_times_s if timed else (),
            detail=failure.detail if failure else "",
            compile_s=compiled.compile_s if compiled else failure.compile_s if failure else None,
            max_error=outcome.max_error,
            worker=node.name,
            driver=node.driver,
            measured_at=self._now(),
            metrics={**metrics, **timed.metrics} if timed else metrics,
        )

    def _program_digest(self, workload: Workload, config: TileConfig) -> str:
        """Return the program's digest, '' where it cannot be traced (then nothing runs)."""
        key = workload, config
        if key not in self._digests:
            try:
                digest = self._toolbox.program_digest(workload, config)
            except Exception as error:  # noqa: BLE001  user programs may raise anything
                LOG.warning("no program digest for %s: %s", workload, error)
                digest = ""
            self._digests[key] = digest
        return self._digests[key]

    def _lost(self, node: _Node, error: Exception) -> Failure:
        if not isinstance(error, WorkerError) and not self._stopped.is_set():
            LOG.error("a lane of %s failed", node.name, exc_info=error)
        detail = f"{type(error).__name__}: {error}"
        return Failure(status=MeasureStatus.WORKER_LOST, detail=detail)
