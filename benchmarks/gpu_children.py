"""Processes that each do a part of a run on a GPU and send messages: one may hang or die."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

SPAWN = multiprocessing.get_context("spawn")  # a fork has what the parent began of CUDA, and fails
Work = Callable[[Connection], None]


class Child:
    """A process that does ``work``, which can be pickled, and the pipe to it."""

    def __init__(self, name: str, work: Work) -> None:
        self.name = name
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_run, args=(work, theirs))
        self.process.start()
        theirs.close()
        self.heard = time.monotonic()

    def receive(self) -> Any:
        """Return the next message; None: it is over."""
        self.heard = time.monotonic()
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None

    def end(self) -> int | None:
        """End it, if it has not ended; return its exit status, negative: a signal's."""
        self.process.join(0.2)
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        self.pipe.close()
        return code


def _run(work: Work, pipe: Connection) -> None:
    try:
        work(pipe)
    except Exception as error:  # noqa: BLE001  # one that fails is a result
        pipe.send({"error": f"{type(error).__name__}: {str(error)[:600]}"})
    pipe.close()
    os._exit(0)  # nothing of the parent's is to be tidied up twice


def messages(
    children: Sequence[Child], until: float, silent_s: float = float("inf")
) -> Iterator[tuple[Child, Any]]:
    """Yield what children send; (child, None): it is over, or was silent too long.

    Ends when all are over, or at ``until`` (of time.monotonic).
    """
    alive = {child.pipe: child for child in children}
    while alive and time.monotonic() < until:
        with suppress(InterruptedError):
            for pipe in wait(list(alive), 0.2):
                child = alive[pipe]
                message = child.receive()
                if message is None:
                    del alive[child.pipe]
                yield child, message
        for pipe, child in list(alive.items()):
            if time.monotonic() - child.heard > silent_s:
                del alive[pipe]
                yield child, None
