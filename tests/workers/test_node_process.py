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
RUN = "import sys, workers.node_process as n; n.PATIENCE_S = 1.0; sys.exit(n.run(sys.argv[1:]))"


class Node:
    def __init__(self, folder: Path, how: str = "well") -> None:
        self.folder = folder
        command = [sys.executable, "-c", RUN, sys.executable, "-c", NODE, str(folder), how]
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
        status = self.process.wait(30)
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


@pytest.mark.parametrize("times", [1, 2])
def test_who_does_not_listen_is_killed(tmp_path: Path, times: int) -> None:
    """After a while, or as soon as it is told again."""
    node, start = Node(tmp_path, "deaf"), time.monotonic()
    for _ in range(times):
        node.process.terminate()
        time.sleep(0.1)
    assert node.ends() == 0
    assert (time.monotonic() - start > 0.9) == (times == 1) or times == 2


def test_a_node_does_not_outlive_its_process(tmp_path: Path) -> None:
    node = Node(tmp_path)
    [command] = psutil.Process(node.process.pid).children()
    node.process.kill()
    node.process.wait(30)
    psutil.wait_procs([command], 30)
    assert (tmp_path / "told").exists()  # and so it could clear up
    node.all[0].kill()
