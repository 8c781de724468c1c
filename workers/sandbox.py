"""Sandbox: candidates run in a child process that may hang, crash or eat memory without harm.

A :class:`Zygote` owns the process that children are forked from (modules imported once, environment
set once). A :class:`Sandbox` owns one child holding one worker object; ``call`` runs a method of it
and returns what became of it as a value. After a fault the next call starts a new child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import IO, Any

from workers.errors import SandboxFailed, WorkerLost
from workers.spares import Forking, Spares
from workers.zygote import MAX_FILE_BYTES, STATUS, boot_command, kill_group

OUTPUT_TAIL_BYTES = 2000
START_TIMEOUT_S = 120.0  # importing TVM and torch on a busy machine
HINTS = {
    "SIGKILL": " (by the kernel: out of memory?)",
    "SIGXFSZ": f" (more than {MAX_FILE_BYTES >> 20} MiB in a file or as output)",
}


@dataclass(frozen=True, slots=True)
class Returned:
    """The call returned."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The call raised: class name, stable code of ours ('' where foreign) and message."""

    kind: str
    code: str
    text: str

    def __str__(self) -> str:
        return self.text if self.code else f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class Crashed:
    """The child ended inside the call: by a signal or by exiting."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The call ran longer than allowed and the child was killed."""

    after_s: float

    def __str__(self) -> str:
        return f"killed after {self.after_s:.1f} s without an answer"


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The call asked for more memory than the child may have."""

    detail: str

    def __str__(self) -> str:
        return f"out of memory: {self.detail}" if self.detail else "out of memory"


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """The call returned, but processes that it had started lived on: names of these, killed."""

    processes: str

    def __str__(self) -> str:
        return f"left processes behind: {self.processes}"


Outcome = Returned | Raised | Crashed | TimedOut | OutOfMemory | LeftBehind


@dataclass(slots=True)
class Child:
    """A forked child: its job connection, status pipe and captured output."""

    pid: int
    jobs: Connection[Any, Any]
    status: int
    output: IO[bytes]

    def has_ended(self) -> bool:
        """Return whether it is known to have ended: its exit code can be read."""
        end = select.poll()  # of this call alone: another thread may be asking too
        end.register(self.status, select.POLLIN)
        return bool(end.poll(0))

    def exit_code(self, timeout_s: float) -> int | None:
        """Return the exit code (negative: signal) or None while it runs."""
        if not wait([self.status], timeout_s):
            return None
        found = os.read(self.status, STATUS.size)
        return int(STATUS.unpack(found)[0]) if found else None

    def last_output(self) -> str:
        """Return the end of what the child printed."""
        self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, self.output.tell() - OUTPUT_TAIL_BYTES))
        return self.output.read().decode(errors="replace").strip()

    def kill(self) -> None:
        """Kill the child with all it started, unless it has ended: its pid may be another's."""
        if not self.has_ended():
            kill_group(self.pid)

    def close(self) -> None:
        """Kill the child and release its descriptors."""
        self.kill()
        self.jobs.close()
        os.close(self.status)
        self.output.close()


@dataclass
class Zygote:
    """Owner of the process that children are forked from; restarted when it is found dead.

    Attributes:
        name: for messages.
        preload: modules imported before the first fork.
        absent: modules whose import fails in it, as if they were not installed.
        environment: variables set for the process, on top of the inherited ones.
        memory_bytes: address space a child may add to what the imports took, None: no limit.
        spares: where the process comes from if there is one, and goes to at the end.
    """

    name: str
    preload: Sequence[str] = ()
    absent: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None
    spares: Spares | None = None
    _running: Forking | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_closed: bool = False

    def warm_up(self) -> None:
        """Start the process ahead of its first use; returns at once."""

        def start() -> None:
            with self._lock, contextlib.suppress(OSError, EOFError):  # fork() tries again and tells
                if self._running is None and not self._is_closed:
                    self._start()

        threading.Thread(target=start, daemon=True).start()

    def fork(self) -> Child:
        """Return a new child.

        Raises:
            SandboxFailed: neither the running nor a restarted zygote answers (WK702).
        """
        with self._lock:
            for attempt in range(2):
                try:
                    return self._fork()
                except (OSError, EOFError) as error:
                    self._stop()
                    if attempt or self._is_closed:
                        raise SandboxFailed(worker=self.name, reason=str(error)) from error
        raise AssertionError("unreachable")

    def close(self) -> None:
        """End the process for good; its children end with it. May be called from any thread.

        With ``spares`` it is kept there, unless it is just starting or forking: its children must
        have ended before.
        """
        self._is_closed = True
        if self.spares is not None and self._lock.acquire(blocking=False):
            try:
                if self._running is not None:
                    self.spares.put(self._running)
                self._running = None
            finally:
                self._lock.release()
            return
        running = self._running
        if running is not None:
            running.process.terminate()  # whoever waits for it gets an answer at once
        with self._lock:
            self._stop()

    def _fork(self) -> Child:
        control = (self._running or self._start()).control
        ours, theirs = Pipe()
        status_read, status_write = os.pipe()
        output = tempfile.TemporaryFile()  # noqa: SIM115  closed with the child
        try:
            fds = [theirs.fileno(), status_write, output.fileno()]
            socket.send_fds(control, [b"F"], fds)
        finally:
            theirs.close()
            os.close(status_write)
        child = Child(0, ours, status_read, output)
        pid = child.exit_code(START_TIMEOUT_S)  # the first number on the pipe is the pid
        if pid is None:
            ours.close()
            os.close(status_read)
            output.close()
            raise EOFError("the forking process ended")
        child.pid = pid
        return child

    def _kind(self) -> tuple[object, ...]:
        """Return what makes two processes alike; variables that are inherited come with a child."""
        settings = tuple(sorted(self.environment.items()))
        place = os.getcwd(), *sys.path
        return tuple(self.preload), tuple(self.absent), settings, self.memory_bytes, place

    def _start(self) -> Forking:
        kept = None if self.spares is None else self.spares.take(self._kind())
        self._running = kept or self._booted()
        return self._running

    def _booted(self) -> Forking:
        ours, theirs = socket.socketpair()
        config = {
            "control_fd": theirs.fileno(),
            "preload": list(self.preload),
            "absent": list(self.absent),
            "memory_bytes": self.memory_bytes,
        }
        settings = [f"{name}={value}" for name, value in sorted(self.environment.items())]
        with theirs:
            process = subprocess.Popen(  # `env` adds variables to the inherited ones
                ["env", *settings, *boot_command(config)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self._running = Forking(self._kind(), process, ours)  # close() ends it while it imports
        ours.settimeout(START_TIMEOUT_S)
        if ours.recv(1) != b"R":
            raise EOFError("the forking process ended while importing " + ", ".join(self.preload))
        ours.settimeout(None)
        return self._running

    def _stop(self) -> None:
        if self._running is not None:
            self._running.end()
        self._running = None


class Sandbox:
    """One child with one worker object; a fault of a call ends the child, not the owner."""

    def __init__(self, zygote: Zygote, factory: Callable[..., Any], *args: Any) -> None:
        self._zygote = zygote
        self._factory = factory
        self._args = args
        self._child: Child | None = None
        self.starts = 0

    def start(self) -> None:
        """Make sure that a child with a worker object runs.

        Raises:
            SandboxFailed: it does not start (WK702).
            WorkerLost: the worker object cannot be built (WK701).
        """
        if self._child is not None:
            if not self._child.has_ended():
                return
            self.close()  # it ended between two calls
        self._child = self._zygote.fork()
        self.starts += 1
        inherited = os.environ  # noqa: TID251  handed on, not read
        environment = {**inherited, **self._zygote.environment}
        arguments = environment, self._factory, self._args
        outcome = self._exchange("__init__", arguments, START_TIMEOUT_S)
        if not isinstance(outcome, Returned):
            self.close()
            raise WorkerLost(worker=self._zygote.name, reason=f"start of the worker: {outcome}")

    def call(self, method: str, *args: Any, timeout_s: float) -> Outcome:
        """Run ``worker.method(*args)`` in the child and return what became of it.

        Raises:
            SandboxFailed, WorkerLost: the machinery failed, not the candidate (WK702, WK701).
        """
        self.start()
        outcome = self._exchange(method, args, timeout_s)
        if isinstance(outcome, Crashed | TimedOut | OutOfMemory | LeftBehind):
            self.close()  # its memory and its state cannot be trusted any more
        return outcome

    async def awaited(self, method: str, *args: Any, timeout_s: float) -> Outcome | None:
        """Do what ``call`` does without a thread that waits; None: no child runs that can be asked.

        What is sent has to fit into the buffer of a socket, as a few kilobytes do.

        Raises:
            WorkerLost: as ``call`` (WK701).
        """
        child = self._child
        if child is None or child.has_ended():
            return None
        loop, place, began = asyncio.get_running_loop(), child.jobs.fileno(), time.monotonic()
        ready = loop.create_future()
        outcome: Outcome | None = None
        try:
            child.jobs.send((method, args))
            loop.add_reader(place, _note, ready, True)
            limit = loop.call_later(timeout_s, _note, ready, False)
            try:
                has_answered = await ready
            finally:
                limit.cancel()
                loop.remove_reader(place)
                os.set_blocking(place, True)  # uvloop changes that; answers come in pieces
            outcome = self._received(child) if has_answered else TimedOut(time.monotonic() - began)
        except (EOFError, ConnectionError):
            outcome = await asyncio.to_thread(self._crash, child)
        finally:
            if not isinstance(outcome, Returned | Raised):  # or it answers who asks next
                self.close()
        return outcome

    def kill(self) -> None:
        """Kill the child, if any; a call in progress in another thread ends as lost or crashed."""
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """Kill the child, if any, and release its descriptors; not while a call is in progress."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _exchange(self, method: str, args: tuple[Any, ...], timeout_s: float) -> Outcome:
        child = self._child
        assert child is not None
        start = time.monotonic()
        try:
            child.jobs.send((method, args))
            if not child.jobs.poll(timeout_s):
                return TimedOut(time.monotonic() - start)
            return self._received(child)
        except (EOFError, ConnectionError):
            return self._crash(child)

    def _received(self, child: Child) -> Outcome:
        try:
            reply = child.jobs.recv()
        except (pickle.UnpicklingError, ValueError, AttributeError, ImportError) as error:
            return Crashed(f"sent an unreadable answer ({type(error).__name__})")
        if reply[0] == "returned":
            return Returned(reply[1])
        if reply[0] == "memory":
            return OutOfMemory(reply[1])
        if reply[0] == "left":
            return LeftBehind(reply[1])
        return Raised(*reply[1:])

    def _crash(self, child: Child) -> Crashed:
        code = child.exit_code(1.0)
        if code is None:  # the zygote is gone and took its children along
            self.close()
            raise WorkerLost(worker=self._zygote.name, reason="its forking process ended")
        reason, output = _exit_reason(code), child.last_output()
        return Crashed(f"{reason}; last output: {output}" if output else reason)


def _note(ready: asyncio.Future[bool], has_answered: bool) -> None:
    if not ready.done():
        ready.set_result(has_answered)


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}{HINTS.get(name, '')}"
