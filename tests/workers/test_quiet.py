"""One core for a call of one thread; neighbours are waited for, and told of."""

from __future__ import annotations

import os
import threading

import pytest

from workers import quiet
from workers.quiet import LOOK_S, PATIENCE_S, QuietCores, busy_share, core_ticks, ticks_of

STAT = """cpu  300 0 100 1000 50 0 0 0 0 0
cpu0 200 0 50 400 10 0 0 0 0 0
cpu1 100 0 50 600 40 0 0 0 7 0
intr 12345
ctxt 99
"""


def test_ticks_of_cores():
    assert ticks_of(STAT) == {0: (250.0, 660.0), 1: (150.0, 790.0)}
    assert set(os.sched_getaffinity(0)) <= set(core_ticks())


def test_shares():
    before = {0: (0.0, 0.0), 1: (0.0, 0.0)}
    after = {0: (100.0, 100.0), 1: (0.0, 100.0)}
    assert busy_share(before, after, {0, 1}) == 0.5
    assert busy_share(before, after, {1}) == 0.0
    assert busy_share(before, before, {0, 1}) == 0.0
    assert busy_share(before, after, {7}) == 0.0  # a core that has gone


class Machine:
    """Cores that are busy as they are told, while somebody sleeps."""

    def __init__(self, *shares):
        self.shares, self.now_s = list(shares), 0.0
        self.cores = {core: [0.0, 0.0] for core in os.sched_getaffinity(0)}

    def ticks(self):
        return {core: tuple(ticks) for core, ticks in self.cores.items()}

    def sleep(self, seconds):
        share = self.shares.pop(0) if len(self.shares) > 1 else self.shares[0]
        self.now_s += seconds
        for ticks in self.cores.values():
            ticks[0] += 100 * seconds * share
            ticks[1] += 100 * seconds

    def cores_of(self):
        return QuietCores(self.ticks, lambda: self.now_s, self.sleep)


@pytest.mark.parametrize(("shares", "waited", "is_quiet"), [
    ((0.0,), LOOK_S, 1.0), ((0.9, 0.5, 0.1), 3 * LOOK_S, 1.0), ((0.9,), PATIENCE_S, 0.0),
])  # fmt: skip
def test_neighbours_are_waited_for(shares, waited, is_quiet):
    found = Machine(*shares).cores_of().wait()
    assert found["is_quiet"] == is_quiet
    assert found["waited_s"] == pytest.approx(waited, abs=LOOK_S + 1e-9)


def test_one_thread_keeps_the_idlest_core(monkeypatch):
    allowed = sorted(os.sched_getaffinity(0))
    machine = Machine(0.0)
    cores = machine.cores_of()
    with cores.one() as core:
        assert core == allowed[-1]  # none was busy yet
        assert os.sched_getaffinity(0) == {core}
    assert sorted(os.sched_getaffinity(0)) == allowed
    machine.sleep(1.0)
    machine.cores[allowed[-1]][0] += 50  # others work there
    with cores.one() as core:
        assert core == (allowed[-2] if len(allowed) > 1 else allowed[-1])
    machine.sleep(1.0)  # and have stopped
    with cores.one() as core:
        assert core == allowed[-1]


def test_other_threads_stay_where_they_are():
    found, asked, done = [], threading.Event(), threading.Event()

    def look():
        asked.wait(10)
        found.append(os.sched_getaffinity(threading.get_native_id()))
        done.set()

    thread = threading.Thread(target=look)
    thread.start()
    with QuietCores().one():
        asked.set()
        done.wait(10)
    thread.join()
    assert found == [os.sched_getaffinity(0)]


def test_the_core_is_given_back_after_a_fault():
    allowed = os.sched_getaffinity(0)
    with pytest.raises(ZeroDivisionError), QuietCores().one():
        _ = 1 / 0
    assert os.sched_getaffinity(0) == allowed
    assert quiet.PATIENCE_S < 1  # of every confirmation on a busy machine
