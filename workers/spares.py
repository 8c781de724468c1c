"""Spares: forking processes that nobody uses, kept for the next owner that needs the same imports.

Importing TVM and torch takes seconds, tuning a handful of configs does not: whoever tunes again and
again in one program gives the processes of the last pool to the next one.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Forking:
    """A process that forks children, and the socket on which it is asked to (``zygote.py``).

    Attributes:
        kind: equal for processes that can stand for each other.
    """

    kind: Hashable
    process: subprocess.Popen[bytes]
    control: socket.socket

    def end(self) -> None:
        """End it, and its children with it."""
        self.control.close()
        try:
            self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Spares:
    """At most one idle process of a kind; each ends after ``keep_s`` seconds without an owner."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._kept: dict[Hashable, Forking] = {}

    def take(self, kind: Hashable) -> Forking | None:
        """Return an idle process of a kind, which is the caller's from now on, if there is one."""
        with self._lock:
            found = self._kept.pop(kind, None)
        if found is not None and found.process.poll() is not None:
            found.end()
            return None
        return found

    def put(self, forking: Forking) -> None:
        """Keep a process without children; of two of a kind the older one ends."""
        with self._lock:
            old = self._kept.get(forking.kind)
            self._kept[forking.kind] = forking
        if old is not None:
            old.end()
        timer = threading.Timer(self._keep_s, self._let_go, (forking,))
        timer.daemon = True
        timer.start()

    def _let_go(self, forking: Forking) -> None:
        with self._lock:
            if self._kept.get(forking.kind) is not forking:
                return  # somebody has taken it
            del self._kept[forking.kind]
        forking.end()
