"""A log that has no room: the process goes on, and tells how many lines it could not write."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from db.errors import DatabaseUnreachable
from tuner_service.log_stream import LogStream
from tuner_service.watch import CoordinatorProcess

ROOM = 1000
FULL = Path("/dev/full")
SPEAKER = f"""
import logging, resource, structlog
from tuner_service.log_lines import configure_logging
resource.setrlimit(resource.RLIMIT_FSIZE, ({ROOM}, resource.RLIM_INFINITY))
configure_logging("info")
for number in range(100):
    structlog.get_logger().info("said", number=number)
    logging.getLogger("ours").info("%s", number)
    print("printed", number)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
structlog.get_logger().info("room again")
logging.getLogger("ours").info("the end")
"""


def test_lines_without_room_are_counted_and_told_once_there_is_room(tmp_path):
    out, log = tmp_path / "out", tmp_path / "log"
    with out.open("ab") as stdout, log.open("ab") as stderr:
        command = [sys.executable, "-c", SPEAKER]
        done = subprocess.run(command, stdout=stdout, stderr=stderr, check=False)
    assert done.returncode == 0
    assert out.stat().st_size == ROOM
    written = log.read_bytes()
    lines = written.decode().splitlines()
    notices = [n for n, line in enumerate(lines) if "log.lines_lost" in line]
    assert len(notices) == 1
    notice = json.loads(lines[notices[0]])
    assert (notice["level"], notice["reason"]) == ("warning", os.strerror(errno.EFBIG))
    before = written[:ROOM].decode().splitlines(keepends=True)
    whole = sum(line.endswith("\n") for line in before)
    assert notice["lines"] == 200 - whole
    assert json.loads(lines[notices[0] + 1])["event"] == "room again"
    (last,) = [json.loads(line) for line in lines[notices[0] + 2 :]]
    assert (last["logger"], last["event"]) == ("ours", "the end")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_a_stream_into_a_full_disk_counts_what_it_is_told():
    with FULL.open("wb", buffering=0) as full:
        stream = LogStream(full.fileno())
        assert [stream.write(b"one\ntwo\n"), stream.write(b"a part"), stream.write(b"")] == [
            8,
            6,
            0,
        ]
        assert stream._notice().startswith(b'{"event": "log.lines_lost", "lines": 3, ')


@pytest.mark.exhaustive
@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_a_coordinator_works_on_where_its_log_has_no_room(settings, store):
    settings.log_file.symlink_to(FULL)
    child = CoordinatorProcess(settings, until_idle=True)
    child.start()
    assert child._process.wait(60) == 0
    assert store.leader.current().epoch == 1  # it led, and said so


def test_whoever_waits_is_told_that_nobody_leads(settings, store):
    """`tilecore tune` showed its last progress for as long as a disk was full, and said nothing."""
    told, times = [], iter([0.0, 0.0, 0.5, 29.0, 31.0, 33.0])
    child = CoordinatorProcess(
        settings, until_idle=True, tell=told.append, clock=lambda: next(times)
    )
    child.start()
    try:
        child._process.send_signal(signal.SIGSTOP)  # as good as one that cannot write
        for _ in range(2):
            child.ensure(store)
        assert told == []
        for _ in range(2):
            child.ensure(store)
        (text,) = told
        assert text.startswith("nobody has led for 30 s")
        assert str(settings.log_file) in text
    finally:
        child._process.kill()
        child._process.wait()


def test_a_coordinator_is_kept_running_over_a_database_that_was_away(settings, store):
    """The keeper's thread ended: runs waited for ever, while /readyz stayed 200."""
    errors = iter([DatabaseUnreachable(url="-", reason="restarting"), BlockingIOError(11, "fork")])

    class Away(type(store.leader)):
        def current(self):
            if child._process is not None and (error := next(errors, None)):
                raise error
            return super().current()

    store.leader, stop = Away(store.database), threading.Event()
    told = []
    child = CoordinatorProcess(settings, until_idle=False, tell=told.append)
    keeper = threading.Thread(target=child.keep_running, args=(store, stop), daemon=True)
    keeper.start()
    try:
        first = _started(child, None)
        first.kill()
        assert _started(child, first).pid != first.pid
    finally:
        stop.set()
        keeper.join()
        child._process.kill()
        child._process.wait()
    away, full = told
    assert "restarting" in away
    assert full.endswith("[Errno 11] fork")


def _started(child, before):
    """Return the process that a keeper starts after ``before``."""
    deadline = time.monotonic() + 30
    while child._process is before:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return child._process


def test_where_the_log_cannot_be_opened_nothing_is_kept_of_it(settings):
    settings.log_file.mkdir()
    with CoordinatorProcess(settings, until_idle=True)._log() as log:
        assert log.name == os.devnull
