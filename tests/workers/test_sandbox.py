"""What a candidate's process may do to others: nothing, whatever it starts, prints or kills."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvloop

from tests.workers.fault_toolbox import CRASHES
from tests.workers.measurer_contract import orphans
from workers.errors import WorkerLost
from workers.sandbox import (
    Crashed,
    LeftBehind,
    Outcome,
    Raised,
    Returned,
    Sandbox,
    TimedOut,
    Zygote,
)

MODULE = "tests.workers.test_sandbox"
LIMIT_S = 60.0


class Candidate:
    """Does what it is told to."""

    def run(self, fault: str) -> str:
        """Have a fault of the corpus."""
        CRASHES[fault]()
        return fault

    def print(self, text: str, times: int = 1) -> None:
        """Write to the standard output, past all buffers."""
        for _ in range(times):
            os.write(1, text.encode())

    def long_text(self, count: int) -> str:
        """Answer with more than a socket takes at once."""
        return "x" * count

    def close_output_after(self, fault: str) -> None:
        """Leave without standard output, then have a fault."""
        os.close(1)
        CRASHES[fault]()

    def start_and_wait(self) -> None:
        """Hang with processes of a session of their own around."""
        CRASHES["daemons"]()
        time.sleep(1000)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    zygote = Zygote("test", [MODULE])
    made = Sandbox(zygote, Candidate)
    yield made
    made.close()
    zygote.close()


def call(sandbox: Sandbox, method: str, *args: object) -> Outcome:
    return sandbox.call(method, *args, timeout_s=LIMIT_S)


@pytest.mark.few(1)
@pytest.mark.parametrize("fault", ["orphan", "daemons"])
def test_a_call_answers_for_the_processes_that_it_leaves(sandbox: Sandbox, fault: str) -> None:
    found = call(sandbox, "run", fault)
    assert isinstance(found, LeftBehind)
    assert set(found.processes.split(", ")) == {"sh"}
    assert orphans() == []
    assert call(sandbox, "print", "") == Returned(None)
    assert sandbox.starts == 2


def test_what_a_crashed_candidate_started_ends_before_its_end_is_told(sandbox: Sandbox) -> None:
    found = call(sandbox, "run", "daemons-crash")
    assert isinstance(found, Crashed)
    assert found.reason.startswith("killed by SIGSEGV")
    assert orphans() == []


def test_what_a_candidate_started_ends_when_it_is_killed_or_its_zygote_closes() -> None:
    """Daemons outlived both."""
    zygote = Zygote("test", [MODULE])
    one, two = Sandbox(zygote, Candidate), Sandbox(zygote, Candidate)
    for sandbox in (one, two):
        sandbox.call("start_and_wait", timeout_s=0.5)
    wait_until(lambda: orphans() == [])  # both were late
    for sandbox in (one, two):
        sandbox.start()
        assert sandbox._child is not None
        sandbox._child.jobs.send(("start_and_wait", ()))
    wait_until(lambda: len(orphans()) == 4)
    one.kill()
    wait_until(lambda: len(orphans()) == 2)
    zygote.close()
    wait_until(lambda: orphans() == [])
    for sandbox in (one, two):
        sandbox.close()


def test_output_is_limited_and_told_per_call(sandbox: Sandbox) -> None:
    """Many candidates of one process printed into one file: the last one paid for all of it."""
    assert call(sandbox, "print", "x" * (16 << 20), 10) == Returned(None)
    assert call(sandbox, "print", "x" * (16 << 20), 10) == Returned(None)
    assert call(sandbox, "print", "of an earlier one") == Returned(None)
    assert sandbox.starts == 1
    found = call(sandbox, "run", "abort")
    assert found == Crashed("killed by SIGABRT; last output: free(): invalid pointer")
    found = call(sandbox, "run", "output")
    assert isinstance(found, Crashed)
    assert "killed by SIGXFSZ (more than 256 MiB in a file or as output)" in found.reason


def test_a_candidate_without_output_spoils_nothing(sandbox: Sandbox) -> None:
    assert isinstance(call(sandbox, "close_output_after", "refuse"), Raised)
    assert call(sandbox, "print", "") == Raised("OSError", "", "[Errno 9] Bad file descriptor")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_threads_may_ask_side_by_side_whether_the_child_lives(sandbox: Sandbox) -> None:
    sandbox.start()

    def ask() -> None:
        for _ in range(5000):
            sandbox.start()

    with ThreadPoolExecutor(8) as threads:
        for asked in [threads.submit(ask) for _ in range(8)]:
            asked.result()
    assert sandbox.starts == 1


def test_an_event_loop_waits_no_longer_than_it_said(sandbox: Sandbox) -> None:
    async def wait() -> None:
        sandbox.start()
        for _ in range(2):  # the first one leaves nothing behind that would end the second
            assert await sandbox.awaited("print", "x", timeout_s=LIMIT_S) == Returned(None)
        began = time.monotonic()
        found = await sandbox.awaited("start_and_wait", timeout_s=0.2)
        assert isinstance(found, TimedOut)
        assert 0.2 <= found.after_s <= time.monotonic() - began
        assert await sandbox.awaited("print", "x", timeout_s=LIMIT_S) is None  # it was killed

    asyncio.run(wait())
    assert call(sandbox, "print", "x") == Returned(None)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_answers_may_be_longer_than_a_socket_takes_at_once(sandbox: Sandbox, run) -> None:
    """With uvloop, as the service has it, what came in pieces was an error 500: BlockingIOError."""

    async def ask() -> None:
        sandbox.start()
        for count in (1 << 24, 3):
            told = await sandbox.awaited("long_text", count, timeout_s=LIMIT_S)
            assert told == Returned("x" * count)

    run(ask())
    assert call(sandbox, "long_text", 1 << 24) == Returned("x" * (1 << 24))


class Stillborn:
    """Ends its process when it is made."""

    def __init__(self) -> None:
        os._exit(70)


def test_why_a_worker_does_not_start_is_told_in_words() -> None:
    """Once "start of the worker: Crashed(reason='exited with code 70')"."""
    zygote = Zygote("peak probe", (MODULE,))
    try:
        with pytest.raises(WorkerLost) as caught:
            Sandbox(zygote, Stillborn).start()
    finally:
        zygote.close()
    assert "peak probe: start of the worker: exited with code 70" in str(caught.value)
