from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.device_lock import PLACES, device_lock, lock_path
from workers.errors import DeviceBusy, LockRefused

# Users as they are, whom nobody trusts; what they run was imported before they became these.
ANNE, BOB = 20_001, 20_002
HOLD = """
import os, sys, time
from pathlib import Path
from workers.device_lock import device_lock
from workers.errors import WorkerError
path, user, wait_s, umask = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
created = []
def look(event, arguments):
    if event == "open" and arguments[0] == str(path) and arguments[2] & os.O_CREAT:
        created.append(arguments)
sys.addaudithook(look)
if user:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
os.umask(int(umask, 8))
try:
    with device_lock(path, wait_s):
        print("held", created, flush=True)
        sys.stdin.readline()
except WorkerError as error:
    print(error.code, error.message, flush=True)
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two other users")


class User:
    """A process of a user that takes a lock and holds it until it is told to let go."""

    def __init__(self, path: Path, user: int = 0, wait_s: float = 60.0, umask: str = "077") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path), str(user), str(wait_s), umask],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def says(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def lets_go(self) -> None:
        self._process.communicate("\n")

    def dies(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder like /run/lock: all may create files, nobody removes others'."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # below tmp_path others see nothing
        os.chmod(name, 0o1777)
        yield Path(name)


def test_another_process_waits_and_a_killed_holder_releases(tmp_path: Path) -> None:
    path = tmp_path / "device.lock"
    holder = User(path)
    try:
        assert holder.says() == "held []"
        with pytest.raises(DeviceBusy, match="WK703"), device_lock(path, wait_s=0.05):
            pass
    finally:
        holder.dies()
    with device_lock(path, wait_s=5.0):
        pass


def test_devices_have_locks_of_their_own() -> None:
    assert lock_path("cpu") != lock_path("GPU-1")


def test_all_users_of_a_machine_have_the_same_lock(tmp_path: Path) -> None:
    """It lay in the folder for temporary files, which each user may have of his own."""
    code = "from workers.device_lock import lock_path; print(lock_path('cpu'))"
    found = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == str(lock_path("cpu"))
    assert lock_path("cpu").parent in PLACES


def test_locks_lie_where_all_may_create_files_and_none_removes_others(
    place: Path, tmp_path: Path
) -> None:
    mine, open_to_all = tmp_path / "mine", tmp_path / "open"
    for folder, mode in ((mine, 0o755), (open_to_all, 0o777)):
        folder.mkdir()
        folder.chmod(mode)
    places = [tmp_path / "nowhere", mine, open_to_all, Path("/proc/sys"), place]
    assert lock_path("cpu", places).parent == place


@needs_root
def test_what_one_user_holds_another_waits_for(place: Path) -> None:
    path = place / "tilecore-cpu.lock"
    anne = User(path, ANNE)
    try:
        assert anne.says() == "held []"
        assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (ANNE, 0o666)
        assert "WK703" in User(path, BOB, wait_s=0.05).says()
        bob = User(path, BOB)
        time.sleep(0.5)
        anne.lets_go()
        assert bob.says() == "held []"  # never O_CREAT: fs.protected_regular would refuse it
        with pytest.raises(DeviceBusy), device_lock(path, wait_s=0.05):
            pass  # nor may root
        bob.lets_go()
        assert [p.name for p in place.iterdir()] == [path.name]
    finally:
        anne.dies()


@needs_root
def test_a_lock_that_a_user_may_not_open_is_told(place: Path) -> None:
    path = place / "tilecore-cpu.lock"
    path.touch()
    path.chmod(0o600)
    assert User(path, BOB).says().startswith(f"WK712 expected the lock {path} to be a file that")
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(LockRefused, match="WK712"), device_lock(path):
        pass
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(LockRefused, match=r"WK712.*no file"), device_lock(path):
        pass


def test_a_file_that_was_removed_is_no_lock_any_more(tmp_path: Path) -> None:
    path = tmp_path / "device.lock"
    first, second = User(path), None
    try:
        assert first.says() == "held []"
        path.unlink()  # somebody clears the folder: whoever comes now makes a new one
        second = User(path)
        assert second.says() == "held []"
        with pytest.raises(DeviceBusy), device_lock(path, wait_s=0.05):
            pass
    finally:
        for user in filter(None, (first, second)):
            user.dies()


def test_a_file_that_is_removed_while_it_is_locked_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock, locked = tmp_path / "device.lock", fcntl.flock, []

    def slow(fd: int, how: int) -> None:
        if not locked:
            path.unlink()  # by somebody else, between our opening and locking it
        flock(fd, how)
        locked.append(os.fstat(fd).st_ino)

    monkeypatch.setattr(fcntl, "flock", slow)
    with device_lock(path, wait_s=5.0):
        assert len(locked) == 2
        assert path.stat().st_ino == locked[-1]


def contained(shell: str, folder: Path) -> list[str]:
    """Return the command that runs Python as in a container: with mounts of its own."""
    script = f'{shell} && exec "$0" "$@"'
    return ["unshare", "--mount", "env", f"LOCKS={folder}", "sh", "-c", script, sys.executable]


def may_mount() -> bool:
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/tmp"]
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run(probe, check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="needs root and mount namespaces")
def test_containers_share_the_locks_of_a_folder_that_they_mount(tmp_path: Path) -> None:
    """As docker-compose.yml has it; without one, a container that is read-only locks by itself."""
    folder = tmp_path / "locks"
    folder.mkdir(mode=0o1777)
    folder.chmod(0o1777)
    root = Path(__file__).parents[2]
    mounts = 'mount --bind "$LOCKS" /run/lock'
    code = "from workers.device_lock import lock_path; print(lock_path('cpu'))"
    for shell, expected in (
        (mounts, "/run/lock"),
        (f"{mounts} && mount -o remount,bind,ro /run/lock", "/tmp"),
    ):
        command = [*contained(shell, folder), "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
        assert done.stdout.strip() == f"{expected}/tilecore-cpu.lock"
    held = "from workers.device_lock import lock_path; import sys\n"
    held += "sys.argv[1:] = [str(lock_path('cpu')), '0', '0.05', '022']\n" + HOLD
    one, two = (
        subprocess.Popen(
            [*contained(mounts, folder), "-c", held], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, cwd=root,
        )
        for _ in range(2)
    )  # fmt: skip
    said = sorted(process.stdout.readline()[:5] for process in (one, two) if process.stdout)
    assert said == ["WK703", "held "]
    for process in (one, two):
        process.communicate("\n")
