"""Station: the runs of one kind of device share its workers, batch by batch, by priority.

Each run has a clock that its trials advance by 1 / priority; the one that is furthest behind
submits next (start-time fair queueing), so that a run of priority 20 gets twice as many trials as
one of 10, and one that joins late neither waits for the others nor makes them wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Concatenate, ParamSpec, TypeVar

import structlog

from db.errors import DatabaseAway
from db.records import RunRecord, TrialRecord
from db.store import SqlStore
from recommender.measurement import Measurement, MeasureStatus
from recommender.ports import Measurer
from tilecore.errors import TileError
from tuner_service.coordinator.run_driver import Limits, RunDriver
from workers.errors import (
    ClusterUnavailable,
    DeskBusy,
    DeviceBusy,
    ProgramTooCostly,
    SandboxFailed,
    StaleEpoch,
    WorkerLost,
)

log = structlog.get_logger()
P = ParamSpec("P")
R = TypeVar("R")
# What comes of the state that the workers are in just now, and of no run.
PASSING = (ClusterUnavailable, DeskBusy, DeviceBusy, SandboxFailed, StaleEpoch, WorkerLost)
COSTLY_ATTEMPTS = 3  # a busy machine looks like a costly program, and a killed reader, too
ADMIT_S = 0.5  # between two looks for runs that joined
TRIALS_PER_DEVICE = 4  # with the workers at once, where that is more than the queue's depth
TRIALS_COMPILED_PER_DEVICE = 2  # one that it measures and the next, where all compilers work, too


class Station:
    """Works on the runs of one kind of device with one measurer."""

    def __init__(
        self,
        store: SqlStore,
        measurer: Measurer,
        epoch: int,
        limits: Limits,
        current: Callable[[RunRecord], RunRecord] = lambda run: run,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without runs; ``current`` returns each as it can be worked on here, or refuses."""
        self._store = store
        self._measurer = measurer
        self._epoch = epoch
        self._limits = limits
        self._current = current
        self._clock = clock
        self._drivers: dict[int, RunDriver] = {}
        self._served: dict[int, float] = {}  # trials over priority, by run
        self._later: dict[int, tuple[int, float]] = {}  # runs put off: how often, until when
        self._unsaved: list[tuple[str, Measurement]] = []  # results the database has not taken yet
        self._admitted_at = -ADMIT_S
        self._stepped_at = clock()
        self.finished: list[RunRecord] = []  # since somebody emptied it

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._drivers

    @property
    def has_trials_out(self) -> bool:
        """Whether trials are with the workers."""
        return any(driver.leased for driver in self._drivers.values())

    def step(self, poll_s: float, *, may_submit: bool = True) -> None:
        """Do a little of everything; waits up to ``poll_s`` for results."""
        self._count_time()
        self._admit()
        self._follow_controls()
        if may_submit:
            self._share()
        self._unsaved += [(r.token, m) for r, m in self._measurer.collect(poll_s)]
        self.save()
        for driver in list(self._drivers.values()):
            if self._guarded(driver, RunDriver.end):
                self.finished.append(driver.run)
                self._drop(driver.run.id)

    def save(self) -> None:
        """Store results in one transaction, then tell the runs; kept while the database is away."""
        known = {
            token: (driver, lease.trial)
            for driver in self._drivers.values()
            for token, lease in driver.leased.items()
        }
        # what is not known is of a run that was cancelled, or of a lease that ran out
        outcomes = [(*known[token], m) for token, m in self._unsaved if token in known]
        kept: list[tuple[RunDriver, TrialRecord, Measurement]] = []
        for driver, trial, measurement in outcomes:
            lost = measurement.status is MeasureStatus.WORKER_LOST
            if lost and driver.retry(trial, measurement):
                self._unsaved = [u for u in self._unsaved if u[0] != _token(trial)]
                driver.leased.pop(_token(trial), None)
            else:
                kept.append((driver, trial, measurement))
        stored = (
            self._store.trials.accept_all([(t, m) for _, t, m in kept], self._epoch) if kept else []
        )
        self._unsaved.clear()
        for (driver, trial, measurement), found in zip(kept, stored, strict=True):
            driver.leased.pop(_token(trial), None)
            if found is None:
                log.warning("stale result dropped", trial=trial.id, attempt=trial.attempt)
                self._guarded(driver, RunDriver.reload, self._store.runs.get(driver.run.public_id))
            else:
                self._guarded(driver, RunDriver.tell, trial, measurement)

    def resync(self) -> None:
        """After the database was away: believe it, and put back leases it gave us in vain.

        The time in which it was away is none of the runs'.
        """
        kept = [lease.trial for d in self._drivers.values() for lease in d.leased.values()]
        self._store.trials.release(self._epoch, keep=kept, runs=list(self._drivers))
        for run_id, driver in list(self._drivers.items()):
            run = self._store.runs.get(driver.run.public_id)
            if run.state == "RUNNING":
                self._guarded(driver, RunDriver.reload, run)
            else:
                self._drop(run_id)
        self._stepped_at = self._clock()

    def close(self) -> None:
        """End the workers; runs stay open."""
        self._measurer.close()
        with suppress(DatabaseAway):  # another leads, or the database is away: some time is lost
            for driver in self._drivers.values():
                driver.leave()

    # --- the steps ----------------------------------------------------------------------------

    def _admit(self) -> None:
        """Begin with runs for which there is room.

        Those of a higher priority find as much room again as there is for all: runs that may wait
        (the system's own among them) never keep out what people are waiting for.
        """
        now, most = self._clock(), self._limits.max_active_runs
        if now - self._admitted_at < (ADMIT_S if self._drivers else 0.0):
            return
        if len(self._drivers) >= 2 * most:
            return
        self._admitted_at = now
        for run in self._store.runs.open(self._measurer.hardware.key, limit=3 * most):
            if run.id in self._drivers or self._has_ended(run):
                continue
            if self._later.get(run.id, (0, now))[1] > now:
                continue
            rivals = sum(d.priority >= run.priority for d in self._drivers.values())
            is_waiting = run.state != "RUNNING"
            if len(self._drivers) >= 2 * most or (is_waiting and rivals >= most):
                return  # what follows has no higher priority
            self._begin(run)

    def _has_ended(self, run: RunRecord) -> bool:
        """Cancel or pause a run that nobody works on, if that is wished; return whether it was."""
        if run.cancel_requested:
            return self._store.runs.finish(run.id, self._epoch, "CANCELLED")
        return run.pause_requested and self._store.runs.settle_pause(run.id, self._epoch)

    def _begin(self, run: RunRecord) -> None:
        try:
            run = self._current(run)
            if not self._store.runs.start(run, self._epoch):
                return
            log.info("run", run=run.public_id, workload=str(run.workload), state=run.state)
            # what this leader had leased of it when it was dropped is with no worker any more
            self._store.trials.release(self._epoch, runs=[run.id])
            driver = RunDriver(
                self._store, run, self._measurer, self._epoch, self._limits, self._clock
            )
        except DatabaseAway:
            raise
        except Exception as error:  # noqa: BLE001  a fault of one run is not one of the others
            self._put_off(run, error)
            return
        self._later.pop(run.id, None)
        self._served[run.id] = min(self._served.values(), default=0.0)
        self._drivers[run.id] = driver

    def _follow_controls(self) -> None:
        if not self._drivers:
            return
        controls = self._store.runs.controls(list(self._drivers))
        for run_id, driver in list(self._drivers.items()):
            self._unsaved += driver.expired()
            if self._guarded(driver, RunDriver.apply, controls[run_id]):
                self._drop(run_id)

    def _depth(self) -> int:
        """Return how many trials the workers have at once: none of them waits for one."""
        devices, compilers = self._measurer.devices, self._measurer.compilers
        busy = compilers + TRIALS_COMPILED_PER_DEVICE * devices
        return max(self._limits.queue_depth, TRIALS_PER_DEVICE * devices, busy)

    def _share(self) -> None:
        """Let the runs submit in turn until the workers have enough."""
        depth = self._depth()
        # a few at once: each question costs the search a fit of its model
        batch = min(self._limits.batch, depth) if len(self._drivers) > 1 else max(1, depth // 4)
        waiting = set(self._drivers)
        while waiting:
            free = depth - sum(len(d.leased) for d in self._drivers.values())
            if free < batch:
                return
            run_id = min(waiting, key=lambda r: (self._served[r], r))
            limit = free if len(waiting) == 1 else min(free, self._limits.batch)
            driver = self._drivers[run_id]
            submitted = self._guarded(driver, RunDriver.submit, limit)
            if not submitted:
                waiting.discard(run_id)
                continue
            self._served[run_id] += submitted / driver.priority

    def _count_time(self) -> None:
        """Count the time since the last step; that of the device for runs it works on."""
        now = self._clock()
        elapsed, self._stepped_at = now - self._stepped_at, now
        waiting = set(self._measurer.waiting())
        served = {run_id for run_id, d in self._drivers.items() if d.leased.keys() - waiting}
        total = sum(self._drivers[run_id].priority for run_id in served)
        for run_id, driver in self._drivers.items():
            share = driver.priority / total if run_id in served else 0.0
            driver.count_time(elapsed, elapsed * share)

    # --- faults -------------------------------------------------------------------------------

    def _guarded(
        self,
        driver: RunDriver,
        call: Callable[Concatenate[RunDriver, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R | None:
        """Return what the call returns; a fault of it puts off this run alone, and gives None."""
        try:
            return call(driver, *args, **kwargs)
        except DatabaseAway:
            raise
        except Exception as error:  # noqa: BLE001  a fault of one run is not one of the others
            self._drop(driver.run.id)
            self._put_off(driver.run, error)
            return None

    def _put_off(self, run: RunRecord, error: Exception) -> None:
        """Let a run go on later where the workers are at fault; it fails where it is itself."""
        attempts = self._later.get(run.id, (0, 0.0))[0] + 1
        is_costly = isinstance(error, ProgramTooCostly) and attempts < COSTLY_ATTEMPTS
        if not (isinstance(error, PASSING) or is_costly):
            self._later.pop(run.id, None)
            self._fail(run, error)
            return
        delay_s = self._limits.delay_s(attempts)
        self._later[run.id] = attempts, self._clock() + delay_s
        log.warning("run put off", run=run.public_id, why=str(error), delay_s=delay_s)
        if attempts == 1:
            self._store.runs.add_event(run.id, "retry", {"reason": str(error)})

    def _fail(self, run: RunRecord, error: Exception) -> None:
        if isinstance(error, TileError):
            why = str(error)
        else:
            log.error("run failed", run=run.public_id, exc_info=error)
            why = f"internal error: {error!r}"
        self._store.runs.finish(run.id, self._epoch, "FAILED", error=why)

    def _drop(self, run_id: int) -> None:
        driver = self._drivers.pop(run_id, None)
        if driver is not None:
            driver.withdraw()
        self._served.pop(run_id, None)


def _token(trial: TrialRecord) -> str:
    return f"{trial.id}:{trial.attempt}"
