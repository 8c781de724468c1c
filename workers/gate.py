"""Gate: lets many pass, or one close it once all who passed are through."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Compile lanes pass it per candidate; the meter closes it while all cores must be free."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closers = 0
        self._is_abolished = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Wait until the gate is open, then count as inside."""
        with self._changed:
            self._changed.wait_for(lambda: self._closers == 0 or self._is_abolished)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Let nobody in and wait until nobody is inside."""
        with self._changed:
            self._closers += 1
            self._changed.wait_for(lambda: self._inside == 0 or self._is_abolished)
        try:
            yield
        finally:
            with self._changed:
                self._closers -= 1
                self._changed.notify_all()

    def open(self) -> None:
        """Let everybody through for good (when stopping)."""
        with self._changed:
            self._is_abolished = True
            self._changed.notify_all()
