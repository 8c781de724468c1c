"""Follow a tuning run from outside the coordinator, and start a coordinator where none works."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import structlog

from db.errors import DatabaseError
from db.records import FINISHED_STATES, EventRecord, RunRecord
from db.store import SqlStore
from tuner_service.errors import CoordinatorStopped, RunHeld
from tuner_service.process import is_process_gone
from tuner_service.settings import Settings
from workers.offer import resource_name

log = structlog.get_logger()
POLL_S = 0.2
STOP_TIMEOUT_S = 30.0
STOP_LOOK_S = 0.05
MAX_STARTS = 4
KEEP_S = 1.0  # between two looks whether a coordinator has to be started again
LOOK_S = 1.0  # between two looks whether a coordinator that runs also leads
STALLED_S = 30.0  # without a leader: starting takes some seconds, and so does a lease
HELD = ("PAUSED", "WAITING_FOR_HARDWARE")
WHO_OFFERS = (
    "`tilecore node list` says who offers what; start `tilecore worker` where the device is"
)


class CoordinatorProcess:
    """A coordinator as a child process; it ends with its parent.

    Args:
        settings: of this process, and of the child.
        until_idle: whether it ends when there is nothing more to do.
        tell: (text) -> None, for whoever waits: nothing goes on, and why may be read where.
        clock: seconds.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        until_idle: bool,
        tell: Callable[[str], None] = log.warning,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._until_idle = until_idle
        self._tell = tell
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._looked_at = self._led_at = clock()
        self.starts = 0

    def ensure(self, store: SqlStore) -> None:
        """Start it unless it runs or another coordinator leads.

        Raises:
            CoordinatorStopped: it ended again and again (SV909).
        """
        if self._process is not None and self._process.poll() is None:
            self._look(store)
            return
        if is_led(store):
            return
        if self._process is not None and self.starts >= MAX_STARTS:
            raise CoordinatorStopped(
                status=self._process.returncode, hint=f"see the log: {self._settings.log_file}"
            )
        self.start()

    def _look(self, store: SqlStore) -> None:
        """Tell once that a coordinator that runs cannot lead: it waits for the database."""
        now = self._clock()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        if is_led(store):
            self._led_at = now
        elif now - self._led_at > STALLED_S:
            self._tell(
                f"nobody has led for {STALLED_S:g} s: the coordinator waits, perhaps for room on "
                f"the disk of the database; {self._settings.log_file} says for what"
            )
            self._led_at = math.inf

    def start(self) -> None:
        """Start it; what it says goes to the log file."""
        self._looked_at = self._led_at = self._clock()
        command = [sys.executable, "-m", "tuner_service", "coordinator"]
        command += ["--parent", str(os.getpid())] + (["--until-idle"] if self._until_idle else [])
        with self._log() as output:
            self._process = subprocess.Popen(
                command,
                env=self._settings.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the parent, which then asks it to stop
            )
        self.starts += 1

    def _log(self) -> BinaryIO:
        """Open the log file; where that cannot be, nothing is kept of what the process says."""
        try:
            self._settings.log_file.parent.mkdir(parents=True, exist_ok=True)
            return self._settings.log_file.open("ab")
        except OSError as error:
            reason = error.strerror or str(error)
            log.warning("coordinator.no_log", path=str(self._settings.log_file), reason=reason)
            return Path(os.devnull).open("ab")

    def stop(self, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Ask it to stop, wait unless told not to, and end it if it does not."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        until = time.monotonic() + STOP_TIMEOUT_S
        while not unless():
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_LOOK_S)
                return
            if time.monotonic() > until:
                self._process.kill()

    def keep_running(self, store: SqlStore, stop: threading.Event) -> None:
        """Start it again whenever it ended, until ``stop`` is set.

        A database that is away, and a machine that has no room for a process, are waited for.
        """
        told = ""
        while not stop.is_set():
            self.starts = 0
            try:
                self.ensure(store)
                told = ""
            except (DatabaseError, OSError) as error:
                if str(error) != told:
                    told = str(error)
                    self._tell(f"whether a coordinator works cannot be seen to: {told}")
            stop.wait(KEEP_S)


def is_led(store: SqlStore) -> bool:
    """Return whether a coordinator of this database is at work."""
    leader = store.leader.current()
    return leader is not None and leader.is_alive and not is_process_gone(leader.owner)


def follow(
    store: SqlStore, run: RunRecord, coordinator: CoordinatorProcess | None
) -> Iterator[EventRecord | None]:
    """Yield the events of a run until it is finished, None where nothing new happened.

    Raises:
        CoordinatorStopped: the coordinator ended again and again (SV909).
        RunHeld: the run is paused, or nobody offers its hardware (SV916).
    """
    last = 0
    while True:
        state = store.runs.get(run.public_id).state
        events = store.runs.events(run.id, after=last)
        for event in events:
            last = event.id
            yield event
        if state in FINISHED_STATES and not events:
            return
        if state in HELD and not events:
            hint = RunHeld.default_hint if state == "PAUSED" else WHO_OFFERS
            raise RunHeld(run=run.public_id, state=state, why=why_held(run, state), hint=hint)
        if not events:
            if coordinator is not None:
                coordinator.ensure(store)
            yield None
            time.sleep(POLL_S)


def follow_all(
    store: SqlStore, runs: Sequence[RunRecord], coordinator: CoordinatorProcess
) -> Iterator[Sequence[RunRecord]]:
    """Yield the runs as they stand now and then, until those that are open are all held.

    Raises:
        CoordinatorStopped: the coordinator ended again and again (SV909).
    """
    while True:
        now = [store.runs.get(run.public_id) for run in runs]
        yield now
        if all(run.is_finished or run.state in HELD for run in now):
            return
        coordinator.ensure(store)
        time.sleep(POLL_S)


def why_held(run: RunRecord, state: str) -> str:
    """Return what a held run waits for, and how somebody offers it; nothing where it is paused."""
    if state != "WAITING_FOR_HARDWARE":
        return ""
    hardware = run.hardware
    kind = f'"{hardware.name}"' if hardware.is_emulated else hardware.kind
    option = "" if kind == "cpu" else f" --offer {kind}"
    return (
        f": no machine offers {hardware.name} ({resource_name(hardware)}); it goes on by itself "
        f"when one does (`tilecore worker --address HOST:PORT{option}` there) and a "
        "coordinator runs"
    )
