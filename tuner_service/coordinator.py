"""The coordinator: a process of its own that runs tuning runs. Its state is in SQL.

One coordinator of a database leads; its epoch is checked in the transaction of every write, so one
that was stopped or cut off cannot harm what its successor does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from db.errors import DatabaseError, LeadershipLost
from db.records import RunRecord
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from recommender.measurement import Toolchain
from recommender.ports import Measurer
from tilecore import kernels
from tilecore.errors import TileError
from tuner_service.errors import StaleRun
from tuner_service.learning import train_after
from tuner_service.process import is_process_gone, process_name
from tuner_service.run_driver import Limits, RunDriver

log = structlog.get_logger()
IDLE_POLL_S = 0.3


class Coordinator:
    """Leads, or waits to lead; works on the runs of one device, one after the other."""

    def __init__(
        self,
        store: SqlStore,
        *,
        hardware: HardwareProfile,
        toolchain: Toolchain,
        make_measurer: Callable[[int], Measurer],
        limits: Limits | None = None,
        leader_ttl_s: float = 10.0,
        until_idle: bool = False,
    ) -> None:
        self._store = store
        self._hardware = hardware
        self._toolchain = toolchain
        self._make_measurer = make_measurer
        self._limits = limits or Limits()
        self._ttl_s = leader_ttl_s
        self._until_idle = until_idle
        self._owner = process_name()
        self._stop = threading.Event()
        self._measurer: Measurer | None = None

    def stop(self) -> None:
        """Ask the coordinator to end soon; what is under way goes back to the queue."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped (or, with ``until_idle``, until no run is open)."""
        while not self._stop.is_set():
            epoch = self._lead()
            if epoch is None:
                return
            try:
                self._work(epoch)
            except LeadershipLost as error:
                log.error("leadership lost", why=error.message)
            finally:
                self._close_measurer()

    def _lead(self) -> int | None:
        while not self._stop.is_set():
            try:
                epoch = self._store.leader.acquire(self._owner, self._ttl_s, is_process_gone)
            except DatabaseError as error:
                log.warning("database away", why=error.message)
                epoch = None
            if epoch is not None:
                log.info("leading", owner=self._owner, epoch=epoch)
                return epoch
            self._stop.wait(IDLE_POLL_S)
        return None

    def _work(self, epoch: int) -> None:
        with _Heartbeat(self._store, epoch, self._ttl_s) as heartbeat:
            self._store.trials.requeue(epoch)
            while not self._stop.is_set():
                heartbeat.check()
                try:
                    run = self._store.runs.next_open(self._hardware.key)
                    if run is not None:
                        self._drive(run, epoch, heartbeat)
                        continue
                except LeadershipLost:
                    raise
                except DatabaseError as error:
                    log.warning("database away", why=error.message)
                    run = None
                    self._stop.wait(1.0)
                    continue
                if self._until_idle:
                    self._stop.set()
                self._stop.wait(IDLE_POLL_S)
        self._store.leader.release(epoch)

    def _drive(self, run: RunRecord, epoch: int, heartbeat: _Heartbeat) -> None:
        log.info("run", run=run.public_id, workload=str(run.workload), state=run.state)
        try:
            self._check_versions(run)
            self._store.runs.start(run, epoch)
            driver = RunDriver(self._store, run, self._get_measurer(epoch), epoch, self._limits)
            while not driver.step():
                heartbeat.check()
                if self._stop.is_set():
                    driver.stop()
                    return
            train_after(self._store, run)
        except DatabaseError:
            raise
        except TileError as error:
            self._store.runs.finish(run.id, epoch, "FAILED", error=str(error))
        except Exception as error:
            log.exception("run failed", run=run.public_id)
            self._store.runs.finish(run.id, epoch, "FAILED", error=f"internal error: {error!r}")

    def _check_versions(self, run: RunRecord) -> None:
        """Refuse a run that was queued for another program or toolchain than this process has."""
        program = kernels.get(run.workload.kernel).program_digest(dict(run.workload.problem))
        for what, expected, found in (
            ("program", run.program_digest, program),
            ("toolchain", run.toolchain.key, self._toolchain.key),
        ):
            if expected != found:
                raise StaleRun(what=what, expected=expected[:12], found=found[:12])

    def _get_measurer(self, epoch: int) -> Measurer:
        if self._measurer is None:
            self._measurer = self._make_measurer(epoch)
        return self._measurer

    def _close_measurer(self) -> None:
        if self._measurer is not None:
            self._measurer.close()
            self._measurer = None


class _Heartbeat:
    """Renews the leader lease in a thread of its own: building a session may take seconds."""

    def __init__(self, store: SqlStore, epoch: int, ttl_s: float) -> None:
        self._store = store
        self._epoch = epoch
        self._ttl_s = ttl_s
        self._ended = threading.Event()
        self._lost: LeadershipLost | None = None
        self._thread = threading.Thread(target=self._renew, name="heartbeat", daemon=True)

    def __enter__(self) -> _Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        """Raise LeadershipLost if another coordinator took over (DB806)."""
        if self._lost is not None:
            raise self._lost

    def _renew(self) -> None:
        while not self._ended.wait(self._ttl_s / 4):
            try:
                self._store.leader.renew(self._epoch, self._ttl_s)
            except LeadershipLost as error:
                self._lost = error
                return
            except DatabaseError as error:
                log.warning("heartbeat missed", why=error.message)
