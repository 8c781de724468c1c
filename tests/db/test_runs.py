"""Runs, trials and leases: nothing lost, nothing doubled."""

import threading
from datetime import timedelta

import pytest

from db.errors import IdempotencyConflict, LeadershipLost, UnknownRun
from db.models import LeaderRow, TrialRow
from db.records import NewTrial
from recommender.measurement import MeasureStatus, Protocol
from tilecore.tile_config import TileConfig


def trials(count, protocol=Protocol.SCREEN):
    return [
        NewTrial(config=TileConfig.of(block_M=i), protocol=protocol, purpose="search")
        for i in range(count)
    ]


def test_idempotency_key_gives_the_first_run_again(new_run):
    first = new_run(idempotency_key="k")
    assert new_run(idempotency_key="k").id == first.id
    with pytest.raises(IdempotencyConflict, match="DB807"):
        new_run(idempotency_key="k", body_hash="other")
    assert new_run().id != new_run().id


def test_unknown_run(store):
    with pytest.raises(UnknownRun, match="DB809"):
        store.runs.get("nowhere")


def test_a_run_from_queue_to_result(store, new_run, make_measurement):
    run = new_run()
    epoch = store.leader.acquire("me", 10)
    assert store.runs.next_open(run.hardware.key).id == run.id
    store.runs.start(run, epoch)
    assert store.trials.add(run.id, trials(3), epoch) == []
    repeated = store.trials.add(run.id, trials(4), epoch)
    assert len(repeated) == 3
    for trial in store.trials.claim(run.id, epoch, 10, 60):
        measured = make_measurement(1e-3 * (1 + trial.sequence), config=trial.config)
        assert store.trials.accept(trial, epoch, measured) is not None
        assert store.trials.accept(trial, epoch, measured) is None  # a second time: refused
    assert store.trials.count_by_status(run.id) == {"OK": 4}
    assert store.count_measurements() == 4
    store.runs.finish(run.id, epoch, "SUCCEEDED", result={"best": 1})
    done = store.runs.get(run.public_id)
    assert (done.state, done.result, done.is_finished) == ("SUCCEEDED", {"best": 1}, True)
    assert [e.kind for e in store.runs.events(run.id)] == [
        "queued", "started", "trial", "trial", "trial", "trial", "succeeded",
    ]  # fmt: skip
    found = store.runs.latest(
        run.workload,
        hardware_key=run.hardware.key,
        program_digest="p1",
        toolchain_key=run.toolchain.key,
        states=("SUCCEEDED",),
    )
    assert found.id == run.id


def test_a_result_counts_only_while_its_lease_is_held(store, new_run, make_measurement):
    run = new_run()
    old = store.leader.acquire("old", 0.0)
    store.trials.add(run.id, trials(1), old)
    (lost,) = store.trials.claim(run.id, old, 1, 60)
    new = store.leader.acquire("new", 60)
    assert new == old + 1
    assert store.trials.requeue(new) == 1
    (held,) = store.trials.claim(run.id, new, 1, 60)
    assert store.trials.accept(lost, old, make_measurement()) is None
    assert store.trials.accept(held, new, make_measurement()) is not None
    assert store.count_measurements() == 1


def test_an_old_leader_can_write_nothing(store, new_run):
    run = new_run()
    old = store.leader.acquire("old", 0.0)
    store.leader.acquire("new", 60)
    for write in (
        lambda: store.trials.add(run.id, trials(1), old),
        lambda: store.trials.claim(run.id, old, 1, 60),
        lambda: store.runs.start(run, old),
        lambda: store.runs.finish(run.id, old, "FAILED", error="x"),
        lambda: store.leader.renew(old, 60),
    ):
        with pytest.raises(LeadershipLost, match="DB806"):
            write()


def test_leadership_is_exclusive_until_it_ends(store):
    assert store.leader.acquire("a", 60) == 1
    assert store.leader.acquire("b", 60) is None
    assert store.leader.current().is_alive
    assert store.leader.acquire("b", 60, is_gone=lambda owner: owner == "a") == 2
    store.leader.release(2)
    assert not store.leader.current().is_alive
    assert store.leader.acquire("c", 60) == 3


def test_expired_leases_go_back_and_released_ones_too(store, new_run):
    run = new_run()
    epoch = store.leader.acquire("me", 60)
    store.trials.add(run.id, trials(3), epoch)
    store.trials.claim(run.id, epoch, 2, lease_s=-1)
    store.trials.claim(run.id, epoch, 1, lease_s=60)
    assert store.trials.requeue(epoch) == 2
    assert store.trials.release(epoch) == 1
    assert [t.attempt for t in store.trials.claim(run.id, epoch, 9, 60)] == [2, 2, 2]


def test_a_lost_worker_delays_the_next_attempt(store, new_run):
    run = new_run()
    epoch = store.leader.acquire("me", 60)
    store.trials.add(run.id, trials(1), epoch)
    (trial,) = store.trials.claim(run.id, epoch, 1, 60)
    assert store.trials.retry_later(trial, epoch, "node gone", delay_s=60)
    assert not store.trials.retry_later(trial, epoch, "node gone", delay_s=60)
    assert store.trials.claim(run.id, epoch, 1, 60) == []
    with store.database.write() as session:
        row = session.get(TrialRow, trial.id)
        row.not_before = row.not_before - timedelta(seconds=61)
    (again,) = store.trials.claim(run.id, epoch, 1, 60)
    assert (again.attempt, again.last_error) == (2, "node gone")


def test_a_trial_that_lost_all_workers_is_failed(store, new_run, make_measurement):
    run = new_run()
    epoch = store.leader.acquire("me", 60)
    store.trials.add(run.id, trials(1), epoch)
    (trial,) = store.trials.claim(run.id, epoch, 1, 60)
    store.trials.accept(trial, epoch, make_measurement(None, status=MeasureStatus.WORKER_LOST))
    (stored,) = store.trials.of_run(run.id)
    assert (stored.state, stored.measurement.status) == ("failed", MeasureStatus.WORKER_LOST)


def test_cancelling(store, new_run, make_measurement):
    queued, under_way = new_run(), new_run()
    assert store.runs.cancel(queued.public_id).state == "CANCELLED"
    epoch = store.leader.acquire("me", 60)
    store.runs.start(under_way, epoch)
    store.trials.add(under_way.id, trials(2), epoch)
    (leased,) = store.trials.claim(under_way.id, epoch, 1, 60)
    assert store.runs.cancel(under_way.public_id).state == "RUNNING"
    assert store.runs.is_cancel_requested(under_way.id)
    store.runs.finish(under_way.id, epoch, "CANCELLED")
    assert {t.state for t in store.trials.of_run(under_way.id)} == {"cancelled"}
    assert store.trials.accept(leased, epoch, make_measurement()) is None
    assert store.runs.cancel(under_way.public_id).state == "CANCELLED"


def test_runs_are_listed_newest_first_and_one_under_way_comes_first(store, new_run):
    ids = [new_run().id for _ in range(3)]
    epoch = store.leader.acquire("me", 60)
    assert [r.id for r in store.runs.list(limit=2)] == ids[:0:-1]
    assert [r.id for r in store.runs.list(before=ids[1])] == [ids[0]]
    last = store.runs.list(limit=1)[0]
    assert store.runs.next_open(last.hardware.key).id == ids[0]
    store.runs.start(last, epoch)
    assert store.runs.next_open(last.hardware.key).id == last.id
    assert [r.id for r in store.runs.list(state="RUNNING")] == [last.id]
    assert len(store.runs.list(kernel="gemm")) == 3
    assert store.runs.list(kernel="conv") == []


def test_two_claimers_never_get_the_same_trial(store, new_run):
    run = new_run()
    epoch = store.leader.acquire("me", 60)
    store.trials.add(run.id, trials(24), epoch)
    got = []

    def claim():
        for _ in range(6):
            got.extend(t.id for t in store.trials.claim(run.id, epoch, 2, 60))

    threads = [threading.Thread(target=claim) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(set(got))
    assert len(got) == 24


def test_concurrent_updates_are_not_lost(store):
    """SQLite's default transactions lose most of these; BEGIN IMMEDIATE loses none."""
    store.leader.acquire("me", 60)

    def bump():
        for _ in range(40):
            with store.database.write() as session:
                row = session.get(LeaderRow, "coordinator")
                row.epoch = row.epoch + 1

    threads = [threading.Thread(target=bump) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.leader.current().epoch == 161
