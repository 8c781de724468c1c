"""Forking processes without an owner: who gets them, what their children see, when they end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.sandbox import Returned, Sandbox, Zygote
from workers.spares import Spares

MODULE = "tests.workers.test_spares"


class Child:
    """Says where it came from."""

    def parent(self) -> int:
        return os.getppid()

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)


@pytest.fixture
def spares() -> Iterator[Spares]:
    made = Spares(keep_s=60.0)
    yield made
    for forking in made._kept.values():
        forking.end()


def ask(zygote: Zygote, method: str, *args: object) -> object:
    sandbox = Sandbox(zygote, Child)
    found = sandbox.call(method, *args, timeout_s=60.0)
    sandbox.close()
    assert isinstance(found, Returned)
    return found.value


def parent_of_one(spares: Spares, **options: object) -> object:
    zygote = Zygote("test", [MODULE], spares=spares, **options)
    pid = ask(zygote, "parent")
    zygote.close()
    return pid


def is_alive(pid: object) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_the_next_zygote_takes_the_process_over(spares: Spares) -> None:
    first = parent_of_one(spares)
    assert is_alive(first)
    assert parent_of_one(spares) == first


def test_two_at_a_time_have_a_process_each(spares: Spares) -> None:
    zygotes = [Zygote("test", [MODULE], spares=spares) for _ in range(2)]
    parents = [ask(zygote, "parent") for zygote in zygotes]
    assert len(set(parents)) == 2
    for zygote in zygotes:
        zygote.close()
    assert [is_alive(pid) for pid in parents] == [False, True]  # one of a kind stays


@pytest.mark.exhaustive
def test_other_imports_settings_or_folders_want_another_process(
    spares: Spares, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {parent_of_one(spares), parent_of_one(spares, absent=("torch",))}
    seen |= {parent_of_one(spares, environment={"OMP_NUM_THREADS": "3"})}
    seen |= {parent_of_one(spares, memory_bytes=1 << 32)}
    monkeypatch.chdir(tmp_path)
    assert len(seen | {parent_of_one(spares)}) == 5


def test_a_child_sees_the_variables_of_today(
    spares: Spares, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"TILECORE_TEST_OWN": "own"}
    monkeypatch.setenv("TILECORE_TEST_SEEN", "before")
    monkeypatch.setenv("TILECORE_TEST_GONE", "before")
    first = parent_of_one(spares, environment=settings)
    monkeypatch.setenv("TILECORE_TEST_SEEN", "after")
    monkeypatch.delenv("TILECORE_TEST_GONE")
    zygote = Zygote("test", [MODULE], spares=spares, environment=settings)
    assert ask(zygote, "parent") == first
    assert ask(zygote, "variable", "TILECORE_TEST_SEEN") == "after"
    assert ask(zygote, "variable", "TILECORE_TEST_GONE") is None
    assert ask(zygote, "variable", "TILECORE_TEST_OWN") == "own"
    zygote.close()


def test_a_process_that_ended_meanwhile_is_not_handed_out(spares: Spares) -> None:
    first = parent_of_one(spares)
    [kept] = spares._kept.values()
    kept.process.kill()
    kept.process.wait()
    assert parent_of_one(spares) != first


def test_it_ends_when_nobody_wants_it() -> None:
    short = Spares(keep_s=0.2)
    pid = parent_of_one(short)
    deadline = time.monotonic() + 60.0
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert parent_of_one(short) != pid
