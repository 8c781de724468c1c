"""Standard output and error that go on where nothing can be written: lost lines are counted."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from datetime import UTC, datetime
from typing import Any


class LogStream(io.RawIOBase):
    """An open file that never fails: lines that find no room are counted.

    The next line that finds room comes behind one that tells how many were lost, and why.
    """

    def __init__(self, number: int) -> None:
        """Args: number: of the open file, which stays open."""
        super().__init__()
        self._number = number
        self._lost, self._reason = 0, ""
        self._is_cut = False  # the end of the file is a part of a line
        self._turn = threading.RLock()

    def fileno(self) -> int:
        """Return the number of the open file."""
        return self._number

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return os.isatty(self._number)

    def writable(self) -> bool:
        """Return that it takes something."""
        return True

    def write(self, data: Any, /) -> int:
        """Write all of it, or count the lines that were not wholly written."""
        told = bytes(data)
        with self._turn:
            if self._lost and not self._unwritten(self._notice()):
                self._lost = 0
            rest = told if self._lost else self._unwritten(told)
            if rest:
                self._lost += max(1, rest.count(b"\n"))
        return len(told)

    def _notice(self) -> bytes:
        notice = {
            "event": "log.lines_lost",
            "lines": self._lost,
            "reason": self._reason,
            "level": "warning",
            "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        }
        return (b"\n" if self._is_cut else b"") + json.dumps(notice).encode() + b"\n"

    def _unwritten(self, data: bytes) -> bytes:
        """Write; return what finds no room."""
        rest = data
        try:
            while rest:
                done = os.write(self._number, rest)
                self._is_cut = not rest[:done].endswith(b"\n")
                rest = rest[done:]
        except OSError as error:
            self._reason = error.strerror or str(error)
        return rest


def keep_writable() -> None:
    """Let nothing that this process prints or logs fail: a full disk must not end its work."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream is not getattr(sys, f"__{name}__"):
            continue  # replaced before, by us or by a test
        stream.flush()
        raw: Any = LogStream(stream.fileno())
        setattr(
            sys, name, io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=True)
        )
