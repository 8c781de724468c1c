"""What was committed since somebody looked: what answers rest on, also where commits overtake."""

from dataclasses import replace

import pytest
from sqlalchemy import text

from db import changes
from db.changes import EVERYTHING, NOTHING, Changes, Follower
from db.errors import DatabaseLocked
from db.rows import add_measurements
from db.snapshot import Snapshot
from recommender.measurement import MeasureStatus, Protocol
from tests.db.conftest import BOTH, HARDWARE, TOOLCHAIN, measurement, workload
from tilecore.tile_config import TileConfig


@pytest.fixture
def follower(store, monkeypatch):
    """A follower that has told all that there was: a device."""
    store.save_hardware(HARDWARE)
    monkeypatch.setattr(changes, "UNLISTED_S", -1.0)
    found = Follower(store.database)
    while found.look():
        pass
    return found


def ids_of(store, *workloads):
    known = store.log.workloads("gemm")
    return frozenset(known.ids[known.index.workloads.index(w)] for w in workloads)


@BOTH
def test_everything_is_new_at_first_then_nothing(store):
    follower = Follower(store.database)
    assert follower.look() == EVERYTHING
    assert not NOTHING
    assert EVERYTHING


@BOTH
def test_what_was_measured_is_told_once(store, follower):
    near, far = workload(64), workload(128)
    store.add_all([measurement(2e-3, workload=near), measurement(1e-3, workload=far)])
    found = follower.look()
    assert found == Changes(
        kernels=frozenset({"gemm"}), grown=frozenset({near, far}),
        workloads=frozenset({near.key, far.key}), won=ids_of(store, near, far),
    )  # fmt: skip
    assert [follower.look() for _ in range(4)] == [NOTHING] * 4


@BOTH
def test_winners_are_told_from_others(store, follower, new_run):
    subject = workload()
    store.add(measurement(2e-3))
    follower.look()
    cases = [
        (measurement(3e-3), False, False),  # slower
        (measurement(2e-3, config=TileConfig.of(block_M=8)), False, False),  # as fast, later
        (measurement(None), False, False),
        (measurement(1e-3), True, False),
        (measurement(9e-3, protocol=Protocol.CONFIRM), True, True),  # the first of its protocol
        (measurement(8e-3, toolchain=replace(TOOLCHAIN, llvm="23")), True, True),
        (measurement(7e-3, hardware=replace(HARDWARE, cores=3)), True, True),
    ]
    for one, is_winner, is_first in cases:
        store.add(one)
        found = follower.look()
        if one.hardware != HARDWARE:  # a device that nobody knew
            assert found == EVERYTHING
            continue
        assert found.workloads == {subject.key}
        assert found.won == (ids_of(store, subject) if is_winner else frozenset())
        assert found.grown == (frozenset({subject}) if is_first else frozenset())
    new_run(workload=workload(256))  # nothing was measured yet
    store.keys.create("k", "read")
    while (found := follower.look()) == EVERYTHING:  # of the last case
        pass
    assert found == NOTHING
    failed = measurement(None, workload=workload(256))
    store.add(failed)
    found = follower.look()
    assert (found.grown, found.won) == (frozenset({workload(256)}), frozenset())


@BOTH
def test_models_and_devices_change_everything(store, follower):
    def saved(promote):
        store.models.save(
            kernel="gemm", family="cpu", blob=b"m", feature_schema="s", metrics={}, trained_on=3,
            promote=promote,
        )  # fmt: skip

    store.add(measurement())
    for act in (
        lambda: saved(False),
        lambda: saved(True),
        lambda: store.save_hardware(replace(HARDWARE, source="measured")),
        lambda: store.save_hardware(replace(HARDWARE, name="another")),
    ):
        while follower.look():
            pass
        act()
        assert follower.look() == EVERYTHING


@BOTH
def test_more_than_is_told_apart_changes_everything(store, follower, monkeypatch):
    monkeypatch.setattr(changes, "MOST", 3)
    monkeypatch.setattr(changes, "RECENT", 1)
    store.add(measurement())
    follower.look()
    store.add_all([measurement(1e-3 + i * 1e-6) for i in range(5)])
    assert follower.look() == EVERYTHING
    while follower.look():
        pass
    store.add(measurement(1e-6))
    assert follower.look().won == ids_of(store, workload())


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("is_known", [True, False])
def test_what_commits_after_higher_numbers_is_told(store, second_store, monkeypatch, is_known):
    """A transaction that took its number first may end last, and there may be no later one."""
    monkeypatch.setattr(changes, "UNLISTED_S", -1.0)
    store.add(measurement())
    follower, early, late = Follower(store.database), workload(256), workload(512)
    while is_known and follower.look():
        pass
    with store.database.write() as session:
        add_measurements(session, [measurement(workload=early)], measurement().measured_at)
        session.flush()
        if not is_known:  # the follower begins while it is under way
            follower.look()
        second_store.add(measurement(workload=late))
        told = [follower.look() for _ in range(4)]
    assert [found.workloads for found in told] == [{late.key}, *[frozenset()] * 3]
    after = [follower.look() for _ in range(4)]
    assert (after[0].workloads, after[0].grown) == ({early.key}, {early})
    assert after[1:] == [NOTHING] * 3


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_what_is_under_way_elsewhere_costs_no_more_than_numbers(store, second_store, monkeypatch):
    """A transaction that writes for hours, of whatever database, keeps no number from closing."""
    monkeypatch.setattr(changes, "UNLISTED_S", -1.0)
    monkeypatch.setattr(changes, "MOST", 8)
    monkeypatch.setattr(changes, "RECENT", 4)
    store.add(measurement())
    with store.database.write() as session:
        session.execute(text("select pg_current_xact_id()"))
        follower = Follower(store.database)
        assert follower.look() == EVERYTHING
        found = []
        for i in range(14):
            second_store.add(measurement(9e-4 - i * 1e-6))
            found.append(follower.look())
            assert follower.look() == NOTHING
    assert found.count(EVERYTHING) == 2
    assert all(one.won for one in found if one != EVERYTHING)


@pytest.mark.parametrize(
    ("store_url", "failing"),
    [
        ("sqlite", "STATE"), ("sqlite", "NUMBERS"), ("sqlite", "TOLD"),
        ("postgresql", "TOLD"), ("postgresql", "NEXT_TRANSACTION"),
    ],
    indirect=["store_url"],
)  # fmt: skip
def test_what_a_failed_look_may_have_missed_is_told(store, follower, monkeypatch, failing):
    ask = store.database.ask

    def fail(query, values):
        if query is getattr(changes, failing):
            raise DatabaseLocked(url="", timeout_s=1.0)
        return ask(query, values)

    store.add(measurement())
    monkeypatch.setattr(store.database, "ask", fail)
    with pytest.raises(DatabaseLocked):
        follower.look()
    monkeypatch.setattr(store.database, "ask", ask)
    assert follower.look() == EVERYTHING


@BOTH
def test_a_snapshot_keeps_what_changes_leave_as_it_is(store, follower):
    def reads(snapshot, subject):
        return [m.time_s for m in snapshot.nearest(subject, count=1)]

    one, two = workload(64), workload(4096)
    store.add_all([measurement(2e-3, workload=one), measurement(3e-3, workload=two)])
    while follower.look():
        pass
    known = Snapshot(store)
    assert (reads(known, one), reads(known, two)) == ([2e-3], [3e-3])
    store.add(measurement(1e-3, workload=one))
    later = known.after(follower.look())
    assert (reads(known, one), reads(later, one)) == ([2e-3], [1e-3])
    assert later.nearest(two, count=1)[0] is known.nearest(two, count=1)[0]  # not read again
    third = workload(70)
    assert not later.is_known(third)
    store.add(measurement(5e-3, workload=third))
    assert not later.is_known(third)
    last = later.after(follower.look())
    assert last.is_known(third)
    assert reads(last, third) == [5e-3]


@BOTH
def test_a_view_tells_which_winners_were_looked_at(store):
    subjects = [workload(m) for m in (64, 128, 4096)]
    store.add_all([measurement(workload=w) for w in subjects])
    snapshot = Snapshot(store)
    first, second = snapshot.view(), snapshot.view()
    first.nearest(subjects[0], count=2)
    second.nearest(subjects[2], count=1)
    assert first.looked_at == ids_of(store, *subjects[:2])
    assert second.looked_at == ids_of(store, subjects[2])
    assert snapshot.looked_at == set()


@BOTH
def test_a_winner_that_failed_later_stays_one(store, follower):
    store.add(measurement(1e-3))
    follower.look()
    store.add(measurement(None, status=MeasureStatus.UNSTABLE))
    found = follower.look()
    assert (found.workloads, found.won) == ({workload().key}, frozenset())
