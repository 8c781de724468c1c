"""Processes that are started again whenever they end, as a container runtime does it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "TILECORE_CHAOS_SERVICE"
RESTART_S = 1.0


class Service:
    """One supervised process; when it ends, all it started ends, and it starts again."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self.name = name
        self._command = list(command)
        self._environment = {**os.environ, **environment, MARK: name}
        self._log = folder / f"{name}.log"
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self.starts = 0
        self.left: list[str] = []  # what outlived the process that ended last

    def start(self) -> Service:
        self._thread.start()
        return self

    def _keep(self) -> None:
        while not self._stopping.is_set():
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log, start_new_session=True,
                )  # fmt: skip
            self.starts += 1
            self._process.wait()
            left = self.processes()
            self.left = [_name(process) for process in left]
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._stopping.wait(RESTART_S)

    def processes(self, wanted: str = "") -> list[psutil.Process]:
        """Return the processes of the service whose command line has ``wanted``."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.name and wanted in " ".join(
                    process.cmdline()
                ):
                    found.append(process)
        return found

    def kill(self, wanted: str = "") -> int:
        """Send SIGKILL to the service's process, or to those with ``wanted``; return how many."""
        if not wanted:
            assert self._process is not None
            self._process.send_signal(signal.SIGKILL)
            return 1
        found = self.processes(wanted)
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return len(found)

    def end(self, timeout_s: float) -> tuple[int, float]:
        """Tell the process to end, for good; return its exit status and how long that took."""
        assert self._process is not None
        self._stopping.set()
        start = time.monotonic()
        self._process.terminate()
        status = self._process.wait(timeout_s)
        elapsed_s = time.monotonic() - start
        self._thread.join(20)
        return status, elapsed_s

    def stop(self) -> None:
        self._stopping.set()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            self._thread.join(20)
        for left in self.processes():
            with suppress(psutil.NoSuchProcess):
                left.kill()


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "?"
