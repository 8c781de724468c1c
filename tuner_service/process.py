"""Names of processes: who leads, and whether that one still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil


def process_name() -> str:
    """Return host, boot, process id and start time: the name of this process and of no other."""
    start = psutil.Process().create_time()
    return f"{socket.gethostname()}/{_boot()}/{os.getpid()}/{start:.2f}"


def is_process_gone(name: str) -> bool:
    """Return whether the process called ``name`` ran on this host and is known to have ended."""
    try:
        host, boot, pid, start = name.split("/")
    except ValueError:
        return False
    if (host, boot) != (socket.gethostname(), _boot()):
        return False
    try:
        process = psutil.Process(int(pid))
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
        return bool(abs(process.create_time() - float(start)) > 0.05)
    except psutil.NoSuchProcess:
        return True


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
