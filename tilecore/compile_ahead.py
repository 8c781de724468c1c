"""Compiling ahead: another process compiles kernels while this one finds out what comes next.

TVM takes a second to import and must not build in two threads at once, so it is a process. It
compiles what it is sent into the store, and whoever needs the kernel finds it there. Where it is
not there (the process ended, its compiler is another one, the program has a fault) it is compiled
as if nobody had been asked, and errors are told from here.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tilecore.artifact import ArtifactStore
from tilecore.ir.nodes import PrimFunc
from tilecore.tile_config import KnobValue, digest

LEAST = 4  # kernels for which it pays to import TVM over there: here they are as soon compiled
NOTE_DIGITS = 4  # of a text's digest: some texts share a file
IDLE_S = 60.0  # then it ends, and gives back its memory
BOOT = (
    "import json,sys;sys.path[:]=json.loads(sys.argv[1]);"
    "from tilecore.compile_ahead import serve;serve(int(sys.argv[2]),float(sys.argv[3]))"
)
LOST = (OSError, EOFError, ValueError)
UNSENT = (*LOST, pickle.PicklingError, TypeError, AttributeError)  # a program that pickle refuses


class Helper:
    """One process that compiles, from when it is asked until it had nothing to do for a while."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._jobs: Connection[Any, Any] | None = None
        self._owner = 0  # whose it is: a fork of that process has no helper
        self._asked = self._done = 0

    def start(self) -> None:
        """Start the process, unless it runs: it imports TVM while nothing is asked of it yet."""
        with self._lock, contextlib.suppress(*LOST):
            if not self._runs():
                self._start()

    def pays(self, kernels: int) -> bool:
        """Return whether so many kernels are built earlier with its help."""
        if self._runs():
            return True
        return kernels >= LEAST and "tvm" not in sys.modules and len(os.sched_getaffinity(0)) > 1

    def ask(
        self, func: PrimFunc, target: Any, config: Mapping[str, KnobValue], store: ArtifactStore
    ) -> int:
        """Have a program compiled into a store; return what to ``wait`` for."""
        with self._lock:
            try:
                if not self._runs():
                    self._start()
                assert self._jobs is not None
                self._jobs.send((func, target, dict(config), store.root, store.limit_bytes))
            except UNSENT:
                self._forget()
                return 0
            self._asked += 1
            return self._asked

    def wait(self, number: int) -> None:
        """Wait until a program is compiled, or never will be."""
        with self._lock:
            while self._done < number:
                try:
                    assert self._jobs is not None
                    self._jobs.recv()
                except LOST:
                    self._forget()
                else:
                    self._done += 1

    def close(self) -> None:
        """Let the process end."""
        with self._lock:
            self._forget()

    def _runs(self) -> bool:
        process = self._process
        return process is not None and self._owner == os.getpid() and process.poll() is None

    def _start(self) -> None:
        self._forget()
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = [json.dumps(sys.path), str(theirs.fileno()), str(self._idle_s)]
            self._process = subprocess.Popen(
                [sys.executable, "-c", BOOT, *arguments], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        self._jobs, self._owner = Connection(ours.detach()), os.getpid()

    def _forget(self) -> None:
        """Drop the process; what was asked of it is as good as done."""
        if self._jobs is not None:
            self._jobs.close()
        self._process, self._jobs, self._done = None, None, self._asked


HELPER = Helper()
atexit.register(HELPER.close)


def serve(descriptor: int, idle_s: float) -> None:
    """Compile what is sent until nothing was for a while, or the owner is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's business
    jobs: Connection[Any, Any] = Connection(descriptor)
    import tilecore.codegen.llvm  # noqa: F401  TVM, which takes most of the time
    from tilecore.compiler import compile

    with contextlib.suppress(*UNSENT):
        while jobs.poll(idle_s):
            func, target, config, root, limit_bytes = jobs.recv()
            with contextlib.suppress(Exception):  # the owner meets the same, and tells
                compile(func, target, config, ArtifactStore(Path(root), limit_bytes))
            jobs.send(None)


def is_known(text: str) -> bool:
    """Return whether a program of this text was built before: then its kernel is on disk."""
    return _note(text).exists()


def note(text: str) -> None:
    """Remember that a program was built. Nothing rests on it but when the process is started."""
    path = _note(text)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def _note(text: str) -> Path:
    """Return the file of a text: one of so many that there are never more."""
    return Path.home() / ".cache" / "tilecore" / "built" / digest(text)[:NOTE_DIGITS]
