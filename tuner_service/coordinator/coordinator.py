"""The coordinator: a process of its own that runs tuning runs. Its state is in SQL.

One coordinator of a database leads; its epoch is checked in the transaction of every write, so one
that was stopped or cut off cannot harm what its successor does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from db.errors import DatabaseAway, DatabaseError, LeadershipLost, SchemaTooNew, SchemaTooOld
from db.records import RunRecord
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from recommender.measurement import Toolchain
from tuner_service.coordinator.learning import train_after
from tuner_service.coordinator.run_driver import Limits
from tuner_service.coordinator.station import PASSING, Station
from tuner_service.coordinator.workplaces import Workplace
from tuner_service.jobs import current
from tuner_service.process import is_process_gone, process_name
from workers.errors import WorkerError

log = structlog.get_logger()
OTHER_SCHEMA = (SchemaTooNew, SchemaTooOld)
IDLE_POLL_S = 0.3
AWAY_S = 1.0  # between two attempts, while database or workers are away
MATCH_S = 2.0  # between two looks at who offers which hardware
RELEASE_S = 60.0  # workers elsewhere that are idle for so long are let go
TRAIN_WITHIN_S = 60.0  # training waits so long for idle workers before it makes them idle


class Coordinator:
    """Leads, or waits to lead; works on all runs whose hardware its workplace offers."""

    def __init__(
        self,
        store: SqlStore,
        *,
        workplace: Workplace,
        toolchain: Toolchain,
        limits: Limits | None = None,
        leader_ttl_s: float = 10.0,
        until_idle: bool = False,
        after: Callable[[RunRecord], object] = lambda _run: None,
        release_s: float = RELEASE_S,
    ) -> None:
        """Begin as one of those who stand by; ``after`` is called with every run that ended."""
        self._store = store
        self._after, self._release_s = after, release_s
        self._workplace = workplace
        self._toolchain = toolchain
        self._limits = limits or Limits()
        self._ttl_s = leader_ttl_s
        self._until_idle = until_idle
        self._owner = process_name()
        self._stop = threading.Event()
        self._stations: dict[str, Station] = {}
        self._idle_since: dict[str, float] = {}  # by hardware
        self._closed: dict[str, tuple[int, float]] = {}  # workers that did not start
        self._to_train: dict[str, tuple[RunRecord, float]] = {}  # by kernel, with since when
        self._offered: list[HardwareProfile] = []
        self._matched_at = 0.0
        self._is_unsure = False  # whether the database may hold other than we think
        self._away = ""  # why the workers are away, as told last
        self.is_opening = False  # whether it starts workers, which nothing but an exit cuts short

    def stop(self) -> None:
        """Ask the coordinator to end soon; what is under way goes back to the queue."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped (or, with ``until_idle``, until no run is open).

        Raises:
            SchemaTooNew, SchemaTooOld: the database was migrated meanwhile (DB802, DB803).
        """
        try:
            self._run()
        finally:
            self._workplace.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            # the workers first: who leads without them keeps those out who have some
            epoch = self._lead() if self._has_workers() else None
            if epoch is None:
                continue
            try:
                self._work(epoch)
            except LeadershipLost as error:
                log.error("leadership lost", why=error.message)
            finally:
                self._close_stations()

    def _has_workers(self) -> bool:
        try:
            self._workplace.open()
        except WorkerError as error:
            if error.message != self._away:  # once, not every second for as long as it lasts
                log.warning("workers away", why=error.message, hint=error.hint)
            self._away = error.message
            self._stop.wait(AWAY_S)
            return False
        self._away = ""
        return True

    def _lead(self) -> int | None:
        while not self._stop.is_set():
            try:
                epoch = self._store.leader.acquire(self._owner, self._ttl_s, is_process_gone)
            except OTHER_SCHEMA:
                raise
            except DatabaseError as error:
                log.warning("database away", why=error.message)
                epoch = None
            if epoch is not None:
                log.info("leading", owner=self._owner, epoch=epoch)
                return epoch
            self._stop.wait(IDLE_POLL_S)
        return None

    def _work(self, epoch: int) -> None:
        self._offered, self._matched_at, self._is_unsure = [], 0.0, True
        with _Heartbeat(self._store, epoch, self._ttl_s) as heartbeat:
            while not self._stop.is_set():
                heartbeat.check()
                try:
                    self._tick(epoch)
                except LeadershipLost:
                    raise
                except (DatabaseError, WorkerError) as error:
                    log.warning("database or workers away", why=error.message)
                    self._is_unsure = True
                    self._stop.wait(AWAY_S)
        try:
            self._store.trials.release(epoch)
            self._store.leader.release(epoch)
        except DatabaseError as error:  # both end by themselves
            log.warning("database away", why=error.message)

    def _tick(self, epoch: int) -> None:
        if self._is_unsure:
            for station in self._stations.values():
                station.save()  # before leases are put back that ran out meanwhile
            self._store.trials.requeue(epoch)
            for station in self._stations.values():
                station.resync()
            self._is_unsure = False
        self._match_hardware(epoch)
        may_submit = not self._is_training_overdue()
        for station in self._stations.values():
            station.step(self._limits.poll_s / len(self._stations), may_submit=may_submit)
            for run in station.finished:
                self._follow_up(run)
                self._to_train.setdefault(run.workload.kernel, (run, time.monotonic()))
            station.finished.clear()
        self._release_idle()
        if not any(station.has_trials_out for station in self._stations.values()):
            self._train()
        if all(station.is_idle for station in self._stations.values()):
            if self._until_idle and self._workplace.is_settled and not self._has_open_runs():
                self._stop.set()
            self._stop.wait(IDLE_POLL_S)

    def _release_idle(self) -> None:
        """Let go of idle workers elsewhere: runs of another database may wait for the devices."""
        if not self._workplace.is_elsewhere:
            return
        now = time.monotonic()
        for key, station in list(self._stations.items()):
            if not station.is_idle:
                self._idle_since.pop(key, None)
            elif now - self._idle_since.setdefault(key, now) >= self._release_s:
                station.close()
                self._workplace.release(key)
                del self._stations[key], self._idle_since[key]

    def _has_open_runs(self) -> bool:
        return any(self._store.runs.open(hardware.key) for hardware in self._offered)

    def _match_hardware(self, epoch: int) -> None:
        """See who offers what; open a station for hardware that has runs."""
        now = time.monotonic()
        if not self._matched_at or now - self._matched_at >= MATCH_S:
            self._offered = list(self._workplace.refresh(self._store, epoch))
            if self._workplace.is_settled:
                keys = [hardware.key for hardware in self._offered]
                self._store.runs.match_hardware(keys, epoch)
            self._matched_at = now
        for hardware in self._offered:
            is_due = self._closed.get(hardware.key, (0, now))[1] <= now
            if is_due and hardware.key not in self._stations:
                waiting = self._store.runs.open(hardware.key)
                if waiting:
                    self._open_station(hardware, waiting[0], epoch)

    def _open_station(self, hardware: HardwareProfile, run: RunRecord, epoch: int) -> None:
        if self._stop.is_set():
            return
        self.is_opening = True
        try:
            measurer = self._workplace.measurer(hardware, epoch)
        except SystemExit:  # of the handler of a signal, ours or Ray's
            self._stop.set()
            return
        except WorkerError as error:
            if not (self._workplace.is_elsewhere or isinstance(error, PASSING)):
                self._store.runs.finish(run.id, epoch, "FAILED", error=str(error))
                return
            log.warning("workers away", hardware=hardware.name, why=error.message)
            attempts = self._closed.get(hardware.key, (0, 0.0))[0] + 1
            self._closed[hardware.key] = attempts, time.monotonic() + self._limits.delay_s(attempts)
            return
        finally:
            self.is_opening = False
        self._closed.pop(hardware.key, None)
        self._stations[hardware.key] = Station(
            self._store, measurer, epoch, self._limits,
            lambda run: current(self._store, run, self._toolchain, epoch),
        )  # fmt: skip

    # --- learning -----------------------------------------------------------------------------

    def _is_training_overdue(self) -> bool:
        """Whether the workers are to come to rest: training beside a measurement would disturb."""
        since = min((at for _, at in self._to_train.values()), default=None)
        return since is not None and time.monotonic() - since > TRAIN_WITHIN_S

    def _follow_up(self, run: RunRecord) -> None:
        try:
            self._after(run)
        except DatabaseError as error:  # the next run of the workload looks again
            log.warning("not followed up", run=run.public_id, why=error.message)
        except Exception:
            log.exception("not followed up", run=run.public_id)

    def _train(self) -> None:
        while self._to_train:
            kernel, (run, _) = next(iter(self._to_train.items()))
            try:
                train_after(self._store, run)
            except DatabaseAway:
                raise
            except Exception:
                log.exception("no model trained", kernel=kernel)
            del self._to_train[kernel]

    def _close_stations(self) -> None:
        for station in self._stations.values():
            station.close()
        self._stations.clear()
        self._idle_since.clear()


class _Heartbeat:
    """Renews the leader lease in a thread of its own: building a session may take seconds."""

    def __init__(self, store: SqlStore, epoch: int, ttl_s: float) -> None:
        self._store = store
        self._epoch = epoch
        self._ttl_s = ttl_s
        self._ended = threading.Event()
        self._lost: DatabaseError | None = None
        self._thread = threading.Thread(target=self._renew, name="heartbeat", daemon=True)

    def __enter__(self) -> _Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        """Raise what ended the leadership: another coordinator (DB806), or another schema."""
        if self._lost is not None:
            raise self._lost

    def _renew(self) -> None:
        while not self._ended.wait(self._ttl_s / 4):
            try:
                self._store.leader.renew(self._epoch, self._ttl_s)
            except (LeadershipLost, *OTHER_SCHEMA) as error:
                self._lost = error
                return
            except DatabaseError as error:
                log.warning("heartbeat missed", why=error.message)
