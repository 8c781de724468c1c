"""Streams: how many clients follow runs at once. Each asks the database several times a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tuner_service.errors import TooManyStreams


class NothingFollows(Exception):
    """A stream that is resumed has ended: 204, at which an EventSource asks no more."""


class OpenStreams:
    """The streams of one process of the service."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open = 0
        self.is_ending = False

    def check(self) -> None:
        """Complain if there is no place for one more.

        Raises:
            TooManyStreams: others have to end first (SV935).
        """
        if self._open >= self._limit:
            raise TooManyStreams(limit=self._limit)

    def end(self) -> None:
        """Have all of them end soon: the service stops. Clients go on with ``Last-Event-ID``."""
        self.is_ending = True

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take a place for as long as a stream is open."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
