"""The process that candidates' processes are forked from: imports once, forks in milliseconds.

It is started with ``python -c`` by :class:`workers.sandbox.Zygote` and speaks over one Unix socket:
a request carries three descriptors (job connection, status pipe, output file), the answer on the
status pipe is the child's pid and later its wait status. It ends when its socket closes, i.e. when
its owner ends however that happens, or by SIGTERM; its children end with it (PR_SET_PDEATHSIG).
Nothing here starts a session: a cluster that kills the owner's process group must reach all of it.

A child answers for what it started: processes that a call leaves behind are ended, and the call has
failed. What a child that crashed leaves behind, the forking process ends before it tells.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from workers.offspring import adopt_orphans, children, end_all

PR_SET_PDEATHSIG = 1
STATUS = struct.Struct("<q")
MAX_FILE_BYTES = 256 << 20
ERROR_CHARACTERS = 4000

# What the owner runs: sys.path is the owner's, so that the same modules are found.
BOOT = (
    "import json,sys;c=json.loads(sys.argv[1]);sys.path[:]=c['sys_path'];"
    "from workers.zygote import serve;serve(c)"
)


def serve(config: dict[str, Any]) -> None:
    """Import what candidates need, then fork a child per request until the owner is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's business
    control = socket.socket(fileno=config["control_fd"])
    sys.modules.update(dict.fromkeys(config["absent"]))  # None: its import raises ImportError
    gc.disable()  # imports make much, and hardly any garbage
    for module in config["preload"]:
        with contextlib.suppress(ImportError):  # an optional rival may not be installed
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a full collection of a child would walk, and copy, all that was imported
    gc.enable()
    adopt_orphans()
    own = children()  # of what was imported
    candidates: dict[int, int] = {}  # pid -> status pipe
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_end.append(number))
    signal.set_wakeup_fd(wake_write)
    control.sendall(b"R")
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        while not asked_to_end:
            ready = {key.fileobj for key, _ in selector.select()}
            if wake_read in ready:
                os.read(wake_read, 512)
                _reap(candidates, own)
            if control in ready and not _answer(control, candidates, config["memory_bytes"]):
                break
    for pid in candidates:
        kill_group(pid)
    end_all(keep=own)


def _answer(control: socket.socket, candidates: dict[int, int], memory_bytes: int | None) -> bool:
    message, fds, _, _ = socket.recv_fds(control, 1, 3)
    if not message:
        return False
    job_fd, status_fd, output_fd = fds
    pid = os.fork()
    if pid == 0:
        for fd in (status_fd, control.fileno(), *candidates.values()):
            os.close(fd)
        _become_candidate(job_fd, output_fd, memory_bytes)
    os.close(job_fd)
    os.close(output_fd)
    candidates[pid] = status_fd
    _tell(status_fd, pid)
    return True


def _reap(candidates: dict[int, int], own: set[int]) -> None:
    """Tell of the candidates that have ended, once nothing is left that they started."""
    while ended := _first_ended():
        if ended in candidates:
            kill_group(ended)  # the number is not another's until somebody waits for it
        _, status = os.waitpid(ended, 0)
        if ended in candidates:
            status_fd = candidates.pop(ended)
            end_all(keep=own | candidates.keys())
            _tell(status_fd, os.waitstatus_to_exitcode(status))
            os.close(status_fd)


def _first_ended() -> int:
    """Return the pid of a child that has ended and was not waited for, 0 where there is none."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return found.si_pid if found else 0


def _tell(status_fd: int, value: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the owner does not wait for this child any more
        os.write(status_fd, STATUS.pack(value))


def kill_group(pid: int) -> None:
    """Kill a child with everything it started; a child that is gone is fine."""
    for kill in (os.killpg, os.kill):  # before its setpgid the group does not exist yet
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _become_candidate(job_fd: int, output_fd: int, memory_bytes: int | None) -> NoReturn:
    code = 70
    try:
        zygote = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != zygote:
            os._exit(0)
        os.setpgid(0, 0)
        adopt_orphans()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGXFSZ):  # Python ignores the last
            signal.signal(number, signal.SIG_DFL)
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
        if memory_bytes is not None:
            _limit_memory(memory_bytes)
        _work(Connection(job_fd))
        code = 0
    finally:
        os._exit(code)


def _limit_memory(memory_bytes: int) -> None:
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = mapped + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _work(owner: Connection[Any, Any]) -> None:
    """Build the worker object, then answer calls of its methods until the owner closes."""
    worker: Any = None
    while True:
        try:
            method, args = owner.recv()
        except EOFError:
            return
        _forget_output()
        try:
            if method == "__init__":
                environment, factory, arguments = args
                _inherit(environment)
                worker, value = factory(*arguments), None
            else:
                value = getattr(worker, method)(*args)
            left = end_all()
            owner.send(("left", ", ".join(left)) if left else ("returned", value))
        except MemoryError as error:
            end_all()
            owner.send(("memory", str(error)))
        except Exception as error:  # noqa: BLE001  the process border: every fault becomes a value
            end_all()
            owner.send(_describe(error))


def _inherit(environment: dict[str, str]) -> None:
    """Take over the owner's variables of today: they may have changed since the imports."""
    variables = os.environ  # noqa: TID251  handed on, not read
    variables.clear()
    variables.update(environment)


def _forget_output() -> None:
    """Empty the output file: its size is limited, and its end is told, per call."""
    with contextlib.suppress(OSError):  # the last call closed it
        os.ftruncate(1, 0)
        os.lseek(1, 0, os.SEEK_SET)


def _describe(error: Exception) -> tuple[str, ...]:
    """Return the error as text: the exception itself may not be picklable."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  a broken __str__ must not take the worker down
        text = "(its message cannot be shown)"
    if "bad_alloc" in text or "Cannot allocate memory" in text:
        return ("memory", text[:ERROR_CHARACTERS])
    code = getattr(error, "code", "")
    return ("raised", type(error).__name__, str(code), text[:ERROR_CHARACTERS])


def boot_command(config: dict[str, Any]) -> list[str]:
    """Return the command that starts a zygote with ``config``."""
    return [sys.executable, "-c", BOOT, json.dumps({**config, "sys_path": sys.path})]
