"""What a process started and left behind: found, also where it cut itself loose, and ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection

PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 2.0  # until what was killed is gone
LOOK_S = 0.001


def adopt_orphans() -> None:
    """Become the parent of those below this process whose own parent ends, instead of init."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Return the pids of this process's children, ended ones that nobody waited for included.

    Empty where the kernel does not tell (CONFIG_PROC_CHILDREN).
    """
    found: set[int] = set()
    if _has_none():
        return found
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as file:
            found.update(map(int, file.read().split()))
    return found


def _has_none() -> bool:
    """Return whether there are no children: a system call, where looking for them takes dozens."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def end_all(keep: Collection[int] = ()) -> list[str]:
    """Kill this process's children, but for some, and what they leave to it.

    Args:
        keep: pids of those that may stay.

    Returns:
        Names of those that lived.
    """
    names: dict[int, str] = {}
    deadline = time.monotonic() + PATIENCE_S
    while found := children().difference(keep):
        for pid in found:
            names.setdefault(pid, _name_of_living(pid))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            break
        time.sleep(LOOK_S)
    return [name for name in names.values() if name]


def _name_of_living(pid: int) -> str:
    """Return the name of a process, '' where it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            name, _, rest = file.read().partition("(")[2].rpartition(")")
    except OSError:
        return ""
    return "" if rest.split()[0] in "ZX" else name
