"""Drifts in the database: what shows them, what they keep from answering, when they end."""

from datetime import UTC, datetime, timedelta

import pytest

from db.changes import EVERYTHING, Follower
from db.records import NewTrial
from recommender.drift import Drift
from recommender.measurement import Protocol
from tests.db.conftest import BOTH, HARDWARE, TOOLCHAIN, accept
from tilecore.tile_config import TileConfig

pytestmark = BOTH
START = datetime(2026, 11, 20, tzinfo=UTC)
DRIFT = Drift(START + timedelta(days=2), 1.3, 2, 2)


@pytest.fixture
def tuned(store, new_run, make_measurement):
    """Return runs of four days, of which the last two were slower, and another workload's."""
    epoch = store.leader.acquire("me", 60)
    runs = []
    for day, time_s in enumerate((1.0, 1.1, 1.3, 1.4)):
        run = new_run()
        store.runs.start(run, epoch)
        config = TileConfig.of(block_M=16)
        trial = NewTrial(config=config, protocol=Protocol.CONFIRM, purpose="confirm")
        store.trials.add(run.id, [trial], epoch)
        (leased,) = store.trials.claim(run.id, epoch, 1, 60)
        at = START + timedelta(days=day)
        found = make_measurement(
            time_s, protocol=Protocol.CONFIRM, config=config, measured_at=at, driver="d"
        )
        accept(store, leased, epoch, found)
        store.runs.finish(run.id, epoch, "SUCCEEDED", result={})
        runs.append(store.runs.get(run.public_id))
    return runs


def best(store, make_measurement):
    workload = make_measurement().workload
    return store.best(workload, HARDWARE.key, "p1", TOOLCHAIN.key).time_s


def test_the_history_is_that_of_like_runs(store, tuned, new_run, make_workload):
    new_run(), new_run(workload=make_workload(128)), new_run(program_digest="p2")
    found = store.drifts.history(tuned[0])
    assert [name for name, _ in found] == [run.public_id for run in reversed(tuned)]
    assert [measured[0].time_s for _, measured in found] == [1.4, 1.3, 1.1, 1.0]
    assert {measured[0].driver for _, measured in found} == {"d"}


def test_what_was_measured_before_a_drift_answers_no_more(store, tuned, make_measurement):
    assert best(store, make_measurement) == 1.0
    found = store.drifts.add(tuned[-1], DRIFT)
    assert (found.since, found.ratio) == (DRIFT.since, 1.3)
    assert found.explanation == DRIFT.explain()
    assert best(store, make_measurement) == 1.3
    after = [run.public_id for run in reversed(tuned[2:])]
    assert [name for name, _ in store.drifts.history(tuned[0])] == after


def test_a_drift_is_open_once_until_a_later_run_succeeded(
    store, second_store, tuned, new_run, make_measurement
):
    key = (tuned[0].workload, HARDWARE.key, "p1", TOOLCHAIN.key)
    follower = Follower(store.database)
    while follower.look():
        pass
    assert store.drifts.open(*key) is None
    found = store.drifts.add(tuned[-1], DRIFT)
    assert found is not None
    assert follower.look() == EVERYTHING
    assert second_store.drifts.open(*key) == found
    assert store.drifts.add(tuned[-1], DRIFT) is None
    assert store.drifts.open(*key[:2], "p2", key[3]) is None
    assert not store.drifts.end(tuned[-1])  # it began before
    while follower.look():
        pass
    assert store.drifts.end(new_run())
    assert store.drifts.open(*key) is None
    assert follower.look() == EVERYTHING
    assert best(store, make_measurement) == 1.3
    again = store.drifts.add(tuned[-1], Drift(START + timedelta(days=3), 1.1, 2, 2))
    assert again is not None
    assert again.id != found.id
    assert best(store, make_measurement) == 1.4
