"""The process of a node: told to end, it ends in time and with all that it started, by 0."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

# Starts a daemon, and ends with 1 some time after it was told to, as Ray's command does.
NODE = """
import pathlib, signal, subprocess, sys, time
folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]
daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
def end(*_):
    if how != "deaf":
        time.sleep(0.3)
        (folder / "told").touch()
        sys.exit(1)
signal.signal(signal.SIGTERM, end)
(folder / "part").write_text(str(daemon.pid))
(folder / "part").rename(folder / "daemon")
if how == "fails":
    sys.exit(3)
while True:
    time.sleep(0.05)
"""
RUN = "import sys, workers.node_process as n; n.PATIENCE_S = {}; sys.exit(n.run(sys.argv[1:]))"
LIMIT_S = 30.0


class Node:
    def __init__(self, folder: Path, how: str = "well", patience_s: float = 1.0) -> None:
        self.folder = folder
        run = [sys.executable, "-c", RUN.format(patience_s)]
        command = [*run, sys.executable, "-c", NODE, str(folder), how]
        self.process = subprocess.Popen(command)
        deadline = time.monotonic() + 60
        while not (folder / "daemon").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self.all: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):  # all may have ended by now
            self.all.append(psutil.Process(int((folder / "daemon").read_text())))
        with contextlib.suppress(psutil.NoSuchProcess):
            self.all += psutil.Process(self.process.pid).children(recursive=True)

    def ends(self) -> int:
        """Return the status, once it has ended; nothing may be left."""
        status = self.process.wait(LIMIT_S)
        assert not [p for p in self.all if _runs(p)]
        return status


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_who_is_told_to_end_ends_well(tmp_path: Path, number: int) -> None:
    node = Node(tmp_path)
    node.process.send_signal(number)
    assert node.ends() == 0
    assert (tmp_path / "told").exists()


def test_a_node_that_ends_by_itself_has_failed(tmp_path: Path) -> None:
    assert Node(tmp_path, "fails").ends() == 3


def test_a_killed_node_leaves_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    [command] = psutil.Process(node.process.pid).children()
    command.kill()
    assert node.ends() == 128 + signal.SIGKILL


def test_who_does_not_listen_is_killed_after_a_while(tmp_path: Path) -> None:
    node, start = Node(tmp_path, "deaf"), time.monotonic()
    node.process.terminate()
    assert node.ends() == 0
    assert time.monotonic() - start > 0.9


def test_who_does_not_listen_is_killed_as_soon_as_it_is_told_again(tmp_path: Path) -> None:
    node = Node(tmp_path, "deaf", patience_s=10 * LIMIT_S)
    end = time.monotonic() + LIMIT_S
    while node.process.poll() is None and time.monotonic() < end:
        node.process.terminate()
        time.sleep(0.1)
    assert node.ends() == 0


def test_a_node_does_not_outlive_its_process(tmp_path: Path) -> None:
    node = Node(tmp_path)
    [command] = psutil.Process(node.process.pid).children()
    node.process.kill()
    node.process.wait(30)
    psutil.wait_procs([command], 30)
    assert (tmp_path / "told").exists()  # and so it could clear up
    node.all[0].kill()
