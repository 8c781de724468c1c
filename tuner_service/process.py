"""Names of processes: who leads, and whether that one still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

UNIT = "s after boot"  # at the end of names; those that end otherwise are of other versions


def process_name() -> str:
    """Return host, boot, process id and when it started: the name of this process and no other."""
    start_s = _since_boot_s(psutil.Process())
    return f"{socket.gethostname()}/{_boot()}/{os.getpid()}/{start_s:.2f}/{UNIT}"


def is_process_gone(name: str) -> bool:
    """Return whether the process called ``name`` ran on this host and is known to have ended."""
    try:
        host, boot, pid, start_s, unit = name.split("/")
    except ValueError:
        return False
    if (host, boot, unit) != (socket.gethostname(), _boot(), UNIT):
        return False
    try:
        process = psutil.Process(int(pid))
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
        return abs(_since_boot_s(process) - float(start_s)) > 0.05
    except psutil.NoSuchProcess:
        return True


def _since_boot_s(process: psutil.Process) -> float:
    """Return when a process started, which is the same whatever becomes of the system's clock.

    As a date it is another one after each step of the clock: a standby took living leaders for
    gone, and they took each other's place for good.
    """
    return float(process.create_time() - psutil.boot_time())


def _boot() -> str:
    """Return what process ids are unique in: a boot, and in it a namespace.

    Containers that share their host's name (pods in its network) do not see each other's processes.
    """
    try:
        return f"{_boot_id()}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return _boot_id()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{psutil.boot_time():.0f}"
