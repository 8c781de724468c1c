"""DeviceLock: at most one measuring run per device, whoever's processes on the machine they are."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from workers.errors import DeviceBusy, LockRefused

POLL_S = 0.01
WAIT_S = 600.0
# Never the folder for temporary files, which users and services may have of their own (TMPDIR,
# PrivateTmp of systemd). Containers have these of their own, too: those of one machine share its
# locks where a folder of the machine is mounted at the first.
PLACES = (Path("/run/lock"), Path("/tmp"))
FOR_ALL = stat.S_ISVTX | stat.S_IWOTH  # all may create files, nobody removes those of others


def lock_path(device: str, places: Sequence[Path] = PLACES) -> Path:
    """Return the lock file of a device of this machine ("cpu", a GPU's UUID).

    It depends on nothing that users have of their own: neither variables nor what they may write.
    """
    place = next((p for p in places if _is_for_all(p)), Path(tempfile.gettempdir()))
    return place / f"tilecore-{device}.lock"


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
        LockRefused: the file is there, and this user may not open it (WK712).
    """
    start = clock()
    while (fd := _locked(path)) is None:
        if clock() - start > wait_s:
            raise DeviceBusy(path=path, waited_s=wait_s)
        sleep(POLL_S)
    try:
        yield
    finally:
        os.close(fd)


def _is_for_all(place: Path) -> bool:
    try:
        is_open = place.stat().st_mode & FOR_ALL == FOR_ALL
        return is_open and not os.statvfs(place).f_flag & os.ST_RDONLY
    except OSError:
        return False


def _locked(path: Path) -> int | None:
    """Return the file, open and locked, None where another process has it."""
    fd = _open(path)
    is_ours = False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = _is_at(fd, path)  # else somebody removed it, and others lock another one
    except BlockingIOError:
        pass
    finally:
        if not is_ours:
            os.close(fd)
    return fd if is_ours else None


def _open(path: Path) -> int:
    """Return the file, open for locking, which asks for no right to write to it.

    A file that is there is never opened with O_CREAT: that is refused where another user made it,
    in folders for all (fs.protected_regular).
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            _create(path)
        except OSError as error:
            raise LockRefused(path=path, reason=error.strerror) from error
        else:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return fd
            os.close(fd)
            raise LockRefused(path=path, reason="no file")


def _create(path: Path) -> None:
    """Create the file, unless it is there: at no time is it one that others cannot open."""
    fd, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        os.fchmod(fd, 0o666)  # whatever the umask
        with suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.close(fd)
        os.unlink(name)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
