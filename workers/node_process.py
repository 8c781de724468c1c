"""The process of a node: runs Ray's command, ends it when told to, and leaves nothing behind.

python -m workers.node_process COMMAND...

Told to end (SIGTERM, SIGINT, SIGHUP), Ray tells the cluster, lets what is under way end for 30 s
(RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S), and ends with a status as of a failure; this process then
ends with 0. However the command ends, all that it had started ends, too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from workers.offspring import adopt_orphans, end_all

PATIENCE_S = 40.0  # who stops containers kills them after 45 s (docker-compose.yml, deploy/)
PR_SET_PDEATHSIG = 1
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run(command: Sequence[str]) -> int:
    """Run a command to its end; return its exit status, 0 where it was told to end."""
    told: list[int] = []

    def end(number: int, _frame: object) -> None:
        how = signal.SIGKILL if told else signal.SIGTERM  # told twice: at once
        told.append(number)
        if how == signal.SIGTERM:
            signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
        with suppress(ProcessLookupError):
            os.kill(process.pid, how)

    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # until there is something to end
    adopt_orphans()
    # a session of its own: the terminal tells this process alone
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=_follow)
    for number in (*ENDS, signal.SIGALRM):
        signal.signal(number, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
    status = _wait(process.pid)
    end_all()
    return 0 if told else status


def _follow() -> None:
    """In the child: be told to end when the parent has ended, however that was."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)


def _wait(wanted: int) -> int:
    """Wait for the child, and for orphans that end meanwhile; return the child's status."""
    while True:
        pid, status = os.wait()
        if pid == wanted:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
