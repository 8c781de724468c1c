"""DeviceLock: at most one measuring run per device, across all processes of the machine."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from workers.errors import DeviceBusy

POLL_S = 0.01
WAIT_S = 600.0


def lock_path(device: str) -> Path:
    """Return the lock file of a device of this machine ("cpu", a GPU's UUID)."""
    return Path(tempfile.gettempdir()) / f"tilecore-{device}.lock"


@contextmanager
def device_lock(
    path: Path,
    wait_s: float = WAIT_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold the device. The kernel releases the lock when the process ends, however it ends.

    Raises:
        DeviceBusy: another process holds it for longer than ``wait_s`` (WK703).
    """
    fd = _open(path)
    try:
        start = clock()
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock() - start > wait_s:
                    raise DeviceBusy(path=path, waited_s=wait_s) from None
            sleep(POLL_S)
        yield
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    """Open the file for locking; another user may own it (then it may not be created again)."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_CREAT, 0o666)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM):
            raise
        return os.open(path, flags)
