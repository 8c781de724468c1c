"""Connections to PostgreSQL that do not wait forever: a server may hang while its system answers.

Its processes wait for a disk that has gone, or were stopped: then neither its own limits on
statements nor TCP's end anything.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg

INTERVAL_S = 0.1  # how often a wait looks at the clock


def patient(limit_s: float) -> type[psycopg.Connection[Any]]:
    """Return a class of connections that are closed where an answer takes longer than a limit."""

    class Patient(psycopg.Connection[Any]):
        limit_s: float

        def wait(  # type: ignore[override]  # versions of psycopg have different arguments
            self, gen: Generator[Any, Any, Any], interval: float = INTERVAL_S, **options: Any
        ) -> Any:
            """Run one exchange with the server.

            Raises:
                psycopg.OperationalError: it took longer than ``limit_s``.
            """
            try:
                return super().wait(_until(gen, self.limit_s), interval, **options)
            except _TooLong:
                self.pgconn.finish()  # nobody knows what became of the statement
                reason = f"the server has not answered for {self.limit_s:g} s"
                raise psycopg.OperationalError(reason) from None

    Patient.limit_s = limit_s
    return Patient


class _TooLong(Exception):
    """The limit has passed."""


def _until(exchange: Generator[Any, Any, Any], limit_s: float) -> Generator[Any, Any, Any]:
    ends_at = time.monotonic() + limit_s
    try:
        wanted = next(exchange)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > ends_at:
                raise _TooLong
            wanted = exchange.send(ready)
    except StopIteration as end:
        return end.value
