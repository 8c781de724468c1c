"""The coordinator's process: signals, parent, logging, and what it is wired to."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from db.store import SqlStore
from tuner_service import wiring
from tuner_service.coordinator.coordinator import Coordinator
from tuner_service.coordinator.run_driver import Limits
from tuner_service.coordinator.workplaces import Workplace
from tuner_service.drifting import check_after
from tuner_service.log_lines import configure_logging
from tuner_service.settings import Settings
from workers.device_lock import WAIT_S
from workers.measure_worker import CONFIRM_TIMEOUT_S, PREPARE_TIMEOUT_S

PARENT_POLL_S = 1.0


def run_coordinator(
    settings: Settings,
    store: SqlStore,
    *,
    until_idle: bool,
    parent: int | None,
    workplace: Workplace | None = None,
) -> None:
    """Work until SIGTERM, SIGINT, the end of ``parent`` or, if so wished, until nothing is open.

    ``workplace``: where to measure, in place of what the settings say.
    """
    configure_logging(settings.log_level)
    coordinator = Coordinator(
        store,
        workplace=workplace or wiring.make_workplace(settings, store),
        toolchain=wiring.host_toolchain(),
        limits=limits(settings),
        leader_ttl_s=settings.leader_ttl_s,
        until_idle=until_idle,
        after=lambda run: check_after(store, settings, run),
    )

    def stop(_number: int, _frame: FrameType | None) -> None:
        coordinator.stop()
        if coordinator.is_opening:
            sys.exit()  # it takes seconds until workers have started, which nobody waits for now

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent, coordinator), daemon=True).start()
    coordinator.run()


def limits(settings: Settings) -> Limits:
    """Return the part of the settings that says how trials are treated.

    Unless they say for how long, a worker has a trial as long as its own limits let it: it waits
    for the device, makes inputs (the rival's, too), checks, times, and times again alone.
    """
    within_s = WAIT_S + 2 * PREPARE_TIMEOUT_S + CONFIRM_TIMEOUT_S + 4 * settings.run_timeout_s
    return Limits(
        queue_depth=settings.queue_depth,
        lease_s=settings.lease_s or within_s,
        max_attempts=settings.max_attempts,
        retry_base_s=settings.retry_base_s,
    )


def _end_with(parent: int, coordinator: Coordinator) -> None:
    waiting = threading.Event()
    while os.getppid() == parent:
        waiting.wait(PARENT_POLL_S)
    coordinator.stop()
