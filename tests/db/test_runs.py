"""Runs, trials and leases: nothing lost, nothing doubled."""

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from alembic import command
from sqlalchemy import update

from db.errors import (
    BudgetUsedUp,
    IdempotencyConflict,
    IllegalTransition,
    LeadershipLost,
    UnknownNode,
    UnknownRun,
)
from db.events import add_event
from db.leader import Leadership
from db.migrate import migrating, upgrade
from db.models import LeaderRow, TrialRow
from db.records import MeasurementQuery, NewRun, NewTrial
from db.session import Database
from db.store import SqlStore
from recommender.measurement import MeasureStatus, Protocol
from tests.db.conftest import BOTH, HARDWARE, TOOLCHAIN, accept
from tilecore.tile_config import TileConfig

pytestmark = BOTH


MORNING = datetime(2026, 11, 20, 8, tzinfo=UTC)


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
    assert store.runs.open(run.hardware.key)[0].id == run.id
    store.runs.start(run, epoch)
    assert store.trials.add(run.id, trials(3), epoch) == []
    repeated = store.trials.add(run.id, trials(4), epoch)
    assert len(repeated) == 3
    for trial in store.trials.claim(run.id, epoch, 10, 60):
        measured = make_measurement(1e-3 * (1 + trial.sequence), config=trial.config)
        assert accept(store, trial, epoch, measured) is not None
        assert accept(store, trial, epoch, measured) is None  # a second time: refused
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
    assert accept(store, lost, old, make_measurement()) is None
    assert accept(store, held, new, make_measurement()) is not None
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


def test_a_lost_confirmation_is_begun_again_whole(store, new_run):
    """Its trials were leased as their delays ended: what is compared was timed apart."""
    run, epoch = new_run(), store.leader.acquire("me", 60)
    store.trials.add(run.id, [*trials(3, Protocol.CONFIRM), *trials(1)], epoch)
    confirms = store.trials.claim(run.id, epoch, 3, 60)
    for trial, delay_s in zip(confirms, (0.0, 0.2, 0.0), strict=True):
        store.trials.retry_later(trial, epoch, "node gone", delay_s)
    (screen,) = store.trials.claim(run.id, epoch, 9, 60)
    assert screen.protocol is Protocol.SCREEN
    time.sleep(0.25)
    assert len(store.trials.claim(run.id, epoch, 9, 60)) == 3


def test_leases_are_prolonged_by_who_holds_them(store, new_run):
    run, epoch = new_run(), store.leader.acquire("me", 60)
    store.trials.add(run.id, trials(2), epoch)
    short, other = store.trials.claim(run.id, epoch, 2, 0.0)
    store.trials.release(epoch, keep=[short])
    assert store.trials.renew([short, other, replace(short, attempt=9)], epoch, 60) == 1
    assert store.trials.requeue(epoch) == 0
    assert [t.id for t in store.trials.of_run(run.id, state="leased")] == [short.id]


def test_leases_of_thousands_of_devices_are_held_at_once(store, new_run, make_measurement):
    """One leader serves them; a condition for each of 1,200 was too deep for SQLite."""
    run, epoch = new_run(), store.leader.acquire("me", 60)
    assert store.trials.add(run.id, trials(1200), epoch) == []
    assert len(store.trials.add(run.id, trials(1201), epoch)) == 1200
    claimed = store.trials.claim(run.id, epoch, 1201, 60)
    assert [t.sequence for t in claimed] == list(range(1201))
    assert store.trials.renew(claimed, epoch, 60) == 1201
    outcomes = [(t, make_measurement(config=t.config)) for t in claimed]
    assert None not in store.trials.accept_all(outcomes, epoch)
    assert store.trials.count_by_status(run.id) == {"OK": 1201}


def test_of_outcomes_of_one_trial_the_first_of_the_held_lease_is_stored(
    store, new_run, make_measurement
):
    run, epoch = new_run(), store.leader.acquire("me", 60)
    store.trials.add(run.id, trials(2), epoch)
    stale, other = store.trials.claim(run.id, epoch, 2, -1)
    store.trials.requeue(epoch)
    held, again = store.trials.claim(run.id, epoch, 2, 60)
    assert (held.id, again.id) == (stale.id, other.id)
    lost = make_measurement(None, status=MeasureStatus.WORKER_LOST, config=other.config)
    outcomes = [
        (stale, make_measurement(1e-3, config=held.config)),
        (held, make_measurement(2e-3, config=held.config)),
        (again, lost),
        (held, make_measurement(3e-3, config=held.config)),
        (again, make_measurement(4e-3, config=other.config)),
    ]
    found = store.trials.accept_all(outcomes, epoch)
    assert [number is None for number in found] == [True, False, False, True, True]
    ended = store.trials.of_run(run.id)
    assert [(t.state, t.measurement.time_s) for t in ended] == [("done", 2e-3), ("failed", None)]


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
    accept(store, trial, epoch, make_measurement(None, status=MeasureStatus.WORKER_LOST))
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
    assert store.runs.controls([under_way.id])[under_way.id].cancel_requested
    store.runs.finish(under_way.id, epoch, "CANCELLED")
    assert {t.state for t in store.trials.of_run(under_way.id)} == {"cancelled"}
    assert accept(store, leased, epoch, make_measurement()) is None
    assert store.runs.cancel(under_way.public_id).state == "CANCELLED"


def test_runs_and_measurements_know_who_asked_for_them(store, new_run, make_measurement):
    epoch = store.leader.acquire("me", 60)
    for author in ("alice", "bob", None):
        run = new_run(created_by=author)
        store.trials.add(run.id, trials(2), epoch)
        outcomes = [
            (trial, make_measurement(config=trial.config, measured_at=MORNING))
            for trial in store.trials.claim(run.id, epoch, 9, 60)
        ]
        store.trials.accept_all(outcomes, epoch)
    store.add_all([make_measurement(protocol=Protocol.CONFIRM)], created_by="alice")
    assert [r.created_by for r in store.runs.list()] == [None, "bob", "alice"]
    assert [r.created_by for r in store.runs.list(created_by="alice")] == ["alice"]
    everything = [r.created_by for r in store.page(MeasurementQuery(), limit=9).items]
    assert sorted(map(str, everything)) == ["None"] * 2 + ["alice"] * 3 + ["bob"] * 2
    for query, count in (
        (MeasurementQuery(created_by="alice"), 3),
        (MeasurementQuery(created_by="alice", best_first=True), 3),
        (MeasurementQuery(created_by="alice", protocol=Protocol.SCREEN, kernel="gemm"), 2),
        (MeasurementQuery(created_by="alice", winners=True), 1),
        (MeasurementQuery(created_by="nobody"), 0),
    ):
        found = store.page(query, limit=9).items
        assert [r.created_by for r in found] == ["alice"] * count
    first = store.page(MeasurementQuery(created_by="alice"), limit=2)
    rest = store.page(MeasurementQuery(created_by="alice"), limit=2, after=first.next_after)
    assert (len(first.items), len(rest.items)) == (2, 1)


def test_runs_are_listed_newest_first_and_one_under_way_comes_first(store, new_run):
    ids = [new_run().id for _ in range(3)]
    epoch = store.leader.acquire("me", 60)
    assert [r.id for r in store.runs.list(limit=2)] == ids[:0:-1]
    assert [r.id for r in store.runs.list(before=ids[1])] == [ids[0]]
    last = store.runs.list(limit=1)[0]
    key = last.hardware.key
    assert [r.id for r in store.runs.open(key, limit=9)] == ids
    store.runs.start(last, epoch)
    assert [r.id for r in store.runs.open(key, limit=2)] == [last.id, ids[0]]
    store.runs.amend(store.runs.list()[1].public_id, priority=90)
    assert [r.id for r in store.runs.open(key, limit=3)] == [last.id, ids[1], ids[0]]
    assert [r.id for r in store.runs.list(state="RUNNING")] == [last.id]
    assert len(store.runs.list(kernel="gemm")) == 3
    assert store.runs.list(kernel="conv") == []


def test_groups_of_one_priority_take_turns(store, new_run):
    """A group of hundreds does not make everybody else wait for all of it."""
    many = [new_run(group="g-1").id for _ in range(4)]
    single, urgent = new_run().id, new_run(priority=90).id
    key = store.runs.list(limit=1)[0].hardware.key
    assert [r.id for r in store.runs.open(key, limit=9)] == [urgent, many[0], single, *many[1:]]
    epoch = store.leader.acquire("me", 60)
    for run in store.runs.open(key, limit=2):
        store.runs.start(run, epoch)
    order = [r.id for r in store.runs.open(key, limit=9)]
    assert order == [urgent, many[0], single, *many[1:]]


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
                row = session.get(LeaderRow, "coordinator", with_for_update=True)
                row.epoch = row.epoch + 1

    threads = [threading.Thread(target=bump) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.leader.current().epoch == 161


def under_way(store, run, epoch, count=2):
    store.runs.start(run, epoch)
    store.trials.add(run.id, trials(count), epoch)
    return store.trials.claim(run.id, epoch, count, 60)


def test_pausing_and_resuming(store, new_run):
    queued, run = new_run(), new_run()
    assert store.runs.pause(queued.public_id).state == "PAUSED"
    assert store.runs.pause(queued.public_id).state == "PAUSED"
    assert [r.id for r in store.runs.open(run.hardware.key, limit=9)] == [run.id]
    epoch = store.leader.acquire("me", 60)
    assert not store.runs.start(queued, epoch)
    under_way(store, run, epoch)
    asked = store.runs.pause(run.public_id)
    assert (asked.state, asked.pause_requested) == ("RUNNING", True)
    assert not store.runs.resume(run.public_id).pause_requested
    assert not store.runs.settle_pause(run.id, epoch)
    store.runs.pause(run.public_id)
    assert store.runs.settle_pause(run.id, epoch)
    assert store.runs.get(run.public_id).state == "PAUSED"
    assert store.runs.resume(run.public_id).state == "QUEUED"
    kinds = [e.kind for e in store.runs.events(run.id)]
    assert kinds[2:] == ["pause_requested", "unpaused", "pause_requested", "paused", "unpaused"]


def test_what_makes_no_sense_in_a_state_is_refused(store, new_run):
    epoch = store.leader.acquire("me", 60)
    cancelled, failed, queued = new_run(), new_run(), new_run()
    store.runs.cancel(cancelled.public_id)
    store.runs.finish(failed.id, epoch, "FAILED", error="x")
    refused = {
        "resumed": [(store.runs.resume, run) for run in (cancelled, failed, queued)],
        "paused": [(store.runs.pause, run) for run in (cancelled, failed)],
        "cancelled": [(store.runs.cancel, failed)],
        "extended": [(lambda i: store.runs.extend(i, trials=1), cancelled)],
        "changed": [(lambda i: store.runs.amend(i, priority=1), failed)],
    }
    for verb, calls in refused.items():
        for call, run in calls:
            with pytest.raises(IllegalTransition, match=f"DB811.*cannot be {verb}"):
                call(run.public_id)
    running = new_run()
    under_way(store, running, epoch)
    store.runs.cancel(running.public_id)
    with pytest.raises(IllegalTransition, match="to be cancelled"):
        store.runs.pause(running.public_id)


def test_a_finished_run_goes_on_with_a_larger_budget(store, new_run, make_measurement):
    run = new_run(spec={"max_trials": 2, "time_limit_s": 5.0}, planned_trials=2, ceiling_s=9.0)
    epoch = store.leader.acquire("me", 60)
    first, _ = under_way(store, run, epoch)
    accept(store, first, epoch, make_measurement(config=first.config))
    store.runs.add_time(run.id, 4.0, 2.0, epoch)
    store.runs.finish(run.id, epoch, "SUCCEEDED", result={"best": 1})
    with pytest.raises(BudgetUsedUp, match=r"DB812.*more than 2 trials"):
        store.runs.extend(run.public_id, seconds=1.0)
    with pytest.raises(BudgetUsedUp, match="at most 100000 trials"):
        store.runs.extend(run.public_id, trials=10**6)
    again = store.runs.extend(run.public_id, trials=3, seconds=1.0)[0]
    assert (again.state, again.round, again.planned_trials) == ("QUEUED", 1, 5)
    assert (again.spec["time_limit_s"], again.ceiling_s) == (6.0, 10.0)
    assert (again.active_s, again.device_s, again.finished_at) == (4.0, 2.0, None)
    states = {t.sequence: t.state for t in store.trials.of_run(run.id)}
    assert states == {0: "done", 1: "pending"}  # what was dropped at the end is to be done
    proposals = trials(2, Protocol.CONFIRM)
    assert store.trials.add(run.id, proposals, epoch) == []
    later = [replace(p, round=1) for p in (*trials(3), *proposals)]
    assert store.trials.add(run.id, later, epoch) == later[:2]  # screened once, confirmed again
    assert store.runs.extend(run.public_id, trials=1)[0].round == 2


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "SUCCEEDED"])
def test_a_result_stays_until_there_is_a_new_one(store, new_run, state):
    """A run that was extended and then failed, or was cancelled, lost what it had found."""
    epoch = store.leader.acquire("me", 60)
    run = new_run(spec={"max_trials": 2, "time_limit_s": 5.0})
    under_way(store, run, epoch)
    store.runs.finish(run.id, epoch, "SUCCEEDED", result={"best": 1})
    assert store.runs.extend(run.public_id, trials=3)[0].result == {"best": 1}
    new = {"best": 2} if state == "SUCCEEDED" else None
    store.runs.finish(run.id, epoch, state, result=new)
    found = store.runs.get(run.public_id)
    assert (found.state, found.result) == (state, new or {"best": 1})


def test_a_group_is_queued_whole_and_once(store, make_workload):
    def batch(body):
        return [
            NewRun(
                workload=make_workload(m), hardware=HARDWARE, program_digest="p1",
                toolchain=TOOLCHAIN, spec={"max_trials": 4}, body_hash=body, group="g-1",
                idempotency_key="k" if m == 64 else None,
            )
            for m in (64, 32, 16)
        ]  # fmt: skip

    runs, is_new = store.runs.create_all(batch("b"))
    assert is_new
    again, is_new = store.runs.create_all(batch("b"))
    assert not is_new
    assert [r.id for r in again] == [r.id for r in runs]
    with pytest.raises(IdempotencyConflict, match="DB807"):
        store.runs.create_all(batch("other"))
    assert [r.id for r in store.runs.of_group("g-1")] == [r.id for r in runs]
    assert len(store.runs.list(group="g-1")) == len(store.runs.list()) == 3
    with pytest.raises(UnknownRun, match=r"DB809.*group of tuning runs"):
        store.runs.of_group("g-2")


def test_runs_wait_for_hardware_that_nobody_offers(store, new_run):
    here, elsewhere = new_run(), new_run(hardware=replace(HARDWARE, name="another"))
    epoch = store.leader.acquire("me", 60)
    store.runs.match_hardware([HARDWARE.key], epoch)
    states = [store.runs.get(r.public_id).state for r in (here, elsewhere)]
    assert states == ["QUEUED", "WAITING_FOR_HARDWARE"]
    assert store.runs.pause(elsewhere.public_id).state == "PAUSED"
    store.runs.resume(elsewhere.public_id)
    for _ in range(2):
        store.runs.match_hardware([], epoch)
    store.runs.match_hardware([HARDWARE.key, elsewhere.hardware.key], epoch)
    assert {store.runs.get(r.public_id).state for r in (here, elsewhere)} == {"QUEUED"}
    kinds = [e.kind for e in store.runs.events(elsewhere.id)]
    assert kinds == ["queued", "waits", "paused", "unpaused", "waits", "hardware_joined"]


def test_what_is_wished_of_a_run_that_waits_for_hardware_comes_true(store, new_run):
    """Its node left before the coordinator saw the wish; such runs hung for ever."""
    epoch = store.leader.acquire("me", 60)
    cancelled, paused, resumed = new_run(), new_run(), new_run()
    for run in (cancelled, paused, resumed):
        under_way(store, run, epoch)
    store.runs.cancel(cancelled.public_id)
    for run in (paused, resumed):
        store.runs.pause(run.public_id)
    store.runs.match_hardware([], epoch)
    found = [store.runs.get(r.public_id) for r in (cancelled, paused, resumed)]
    assert [r.state for r in found] == ["CANCELLED", "PAUSED", "PAUSED"]
    assert not any(r.pause_requested or r.cancel_requested for r in found)
    assert {t.state for t in store.trials.of_run(cancelled.id)} == {"cancelled"}
    assert store.runs.resume(resumed.public_id).state == "QUEUED"


def test_a_run_that_was_extended_meanwhile_does_not_end(store, new_run):
    """The coordinator had decided to end it before it saw the extension, which was lost."""
    epoch = store.leader.acquire("me", 60)
    run = new_run(spec={"max_trials": 2, "time_limit_s": 5.0})
    under_way(store, run, epoch)
    store.runs.extend(run.public_id, trials=3)
    assert not store.runs.finish(run.id, epoch, "SUCCEEDED", result={"best": 1}, as_of=0)
    now = store.runs.get(run.public_id)
    assert (now.state, now.result, now.spec["max_trials"]) == ("RUNNING", None, 5)
    assert store.runs.finish(run.id, epoch, "SUCCEEDED", result={"best": 2}, as_of=1)
    assert store.runs.get(run.public_id).result == {"best": 2}


def test_a_run_that_is_to_be_cancelled_is_not_paused_nor_stuck(store, new_run):
    epoch = store.leader.acquire("me", 60)
    run = new_run(spec={"max_trials": 2, "time_limit_s": 5.0})
    under_way(store, run, epoch)
    store.runs.pause(run.public_id)
    store.runs.cancel(run.public_id)
    assert not store.runs.settle_pause(run.id, epoch)
    # the coordinator ends it before it sees the wish: it may be extended as any other
    store.runs.finish(run.id, epoch, "SUCCEEDED", result={"best": 1}, as_of=0)
    assert not store.runs.get(run.public_id).cancel_requested
    assert store.runs.extend(run.public_id, trials=3)[0].state == "QUEUED"


def test_nodes_join_drain_and_get_lost(store, new_run):
    epoch = store.leader.acquire("me", 60)
    join = {"hardware": HARDWARE, "devices": 2, "epoch": epoch}
    store.nodes.join("n1", name="one", **join)
    store.nodes.join("n2", name="two", refused="other toolchain", **join)
    assert {n.key: n.state for n in store.nodes.list()} == {"n1": "active", "n2": "refused"}
    assert store.nodes.drain("n1").state == "draining"
    store.nodes.join("n1", name="one", **join)
    store.nodes.see(["n1"], ["n1"], epoch)
    assert {n.key: n.state for n in store.nodes.list()} == {"n1": "drained", "n2": "lost"}
    assert store.nodes.drain("n1").state == "drained"
    assert store.nodes.undrain("n1").state == "active"
    store.nodes.see([], [], epoch)
    assert store.nodes.list(with_lost=False) == []
    assert store.nodes.has_offered(HARDWARE.key)
    assert not store.nodes.has_offered("other")
    with pytest.raises(IllegalTransition, match="it is lost"):
        store.nodes.drain("n1")
    with pytest.raises(UnknownNode, match="DB813"):
        store.nodes.undrain("n3")


def test_a_node_goes_by_how_its_key_begins(store):
    epoch = store.leader.acquire("me", 60)
    for key in ("abcd1", "abcd2", "abc%_"):
        store.nodes.join(key, name=key, hardware=HARDWARE, devices=1, epoch=epoch)
    assert store.nodes.drain("abc%").key == "abc%_"
    assert store.nodes.drain("abcd1").key == "abcd1"
    for several in ("abcd", "abc", "", "____"):
        with pytest.raises(UnknownNode, match="DB813"):
            store.nodes.drain(several)


def test_measurements_are_dated_by_the_clock_of_the_database(
    store, store_url, new_run, make_measurement
):
    """The clocks of two coordinators differ; the log has one order."""

    class Ahead(Database):
        def now(self, session):
            return super().now(session) + timedelta(hours=3)

    other = SqlStore(Ahead(store_url))
    run, epoch = new_run(), store.leader.acquire("me", 60)
    here, there = under_way(store, run, epoch)
    measured = [make_measurement(config=t.config, measured_at=MORNING) for t in (here, there)]
    accept(store, here, epoch, measured[0])
    accept(other, there, epoch, measured[1])
    dates = [t.measurement.measured_at for t in store.trials.of_run(run.id)]
    assert dates[0] == MORNING
    assert abs(dates[1] - MORNING - timedelta(hours=3)) < timedelta(seconds=5)
    other.database.close()


def test_what_is_stored_without_a_run_is_dated_by_the_clock_of_the_database(
    store, store_url, make_measurement
):
    """What a tuning in a process of its own stores, and what another machine dated years ahead."""

    class Behind(Database):
        def now(self, session):
            return super().now(session) - timedelta(hours=3)

    other = SqlStore(Behind(store_url))
    other.add_all([make_measurement(measured_at=MORNING)])
    ahead = datetime.now(UTC) + timedelta(days=900)
    imported = [make_measurement(measured_at=at) for at in (ahead, MORNING)]
    dates = [m.measured_at for m in store.add_unknown(lambda: imported)]
    assert dates[0] < ahead - timedelta(days=899)
    assert dates[1] == MORNING
    stored = [m.measured_at for m in reversed(store.measurements())]
    assert abs(stored[0] - MORNING + timedelta(hours=3)) < timedelta(seconds=5)
    assert stored[1:] == [MORNING, dates[0]]
    other.database.close()


def test_a_leader_that_is_gone_holds_nobody_up_where_the_clock_was_set_back(store, store_url):
    """Its lease ended an hour from then: so long nobody led."""
    other = Leadership(store.database, clock=lambda: now_s)
    now_s, set_back = 0.0, timedelta(hours=1)
    assert store.leader.acquire("gone", 10) == 1
    until = store.leader.current().until + set_back
    with store.database.write() as session:
        session.execute(update(LeaderRow).values(until=until))
    assert other.acquire("standby", 10) is None
    now_s = 20.0
    assert other.acquire("standby", 10) is None
    with store.database.write() as session:  # it lives: it renews
        session.execute(update(LeaderRow).values(until=until + timedelta(seconds=20)))
    now_s = 40.0
    assert other.acquire("standby", 10) is None
    now_s = 69.0
    assert other.acquire("standby", 10) is None
    now_s = 71.0
    assert other.acquire("standby", 10) == 2


def test_a_retry_is_not_put_off_by_as_much_as_the_clock_was_set_back(store, new_run):
    run, epoch = new_run(), store.leader.acquire("me", 60)
    store.trials.add(run.id, [*trials(1, Protocol.CONFIRM), *trials(2)], epoch)
    for trial in store.trials.claim(run.id, epoch, 3, 60):
        store.trials.retry_later(trial, epoch, "node gone", 30.0)
    assert store.trials.claim(run.id, epoch, 9, 60) == []
    with store.database.write() as session:
        later = store.database.now(session) + timedelta(hours=1)
        session.execute(update(TrialRow).values(not_before=later))
    assert len(store.trials.claim(run.id, epoch, 9, 60)) == 3


def test_events_of_a_run_are_seen_in_their_order(store, second_store, new_run, make_measurement):
    """A later event was committed before an earlier one: who had read it never saw that."""
    run, epoch = new_run(), store.leader.acquire("me", 60)
    first, second = under_way(store, run, epoch)
    last = store.runs.events(run.id)[-1].id

    def work():
        second_store.trials.retry_later(second, epoch, "lost", 0.0)
        accept(second_store, first, epoch, make_measurement(config=first.config))

    with store.runs._row(run.public_id) as (session, row):
        add_event(session, store.database, row.id, "pause_requested", {})
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(0.3)
        assert second_store.runs.events(run.id, after=last) == []
    thread.join(20)
    kinds = [e.kind for e in store.runs.events(run.id, after=last)]
    assert kinds == ["pause_requested", "retry", "trial"]


def test_trials_are_listed_in_pages(store, new_run, make_measurement):
    run, epoch = new_run(), store.leader.acquire("me", 60)
    _, second, *_ = under_way(store, run, epoch, 5)
    accept(store, second, epoch, make_measurement(config=second.config))
    page = store.trials.page(run.id, limit=2)
    rest = store.trials.page(run.id, limit=9, after=page[-1].id)
    assert [t.sequence for t in (*page, *rest)] == [0, 1, 2, 3, 4]
    assert page[1].measurement is not None
    other = new_run()
    counts = store.trials.counts_by_status([run.id, other.id])
    assert counts == {run.id: {"OK": 1, "leased": 4}, other.id: {}}
    assert [t.id for t in store.trials.page(run.id, state="done")] == [second.id]


def test_outcomes_are_accepted_together_and_stale_ones_left_out(store, new_run, make_measurement):
    run = new_run()
    epoch = store.leader.acquire("me", 60)
    leased = under_way(store, run, epoch, 3)
    store.trials.retry_later(leased[1], epoch, "node gone", delay_s=0.0)
    outcomes = [(trial, make_measurement(config=trial.config)) for trial in leased]
    first, stale, third = store.trials.accept_all(outcomes, epoch)
    assert stale is None
    assert first < third
    assert store.trials.count_by_status(run.id) == {"OK": 2, "pending": 1}
    (again,) = store.trials.claim(run.id, epoch, 9, 60)
    assert (again.attempt, again.losses) == (2, 1)


def test_going_back_to_the_schema_before_and_forward_keeps_every_trial(
    store, new_run, make_measurement
):
    run = new_run(spec={"max_trials": 9, "time_limit_s": 5.0})
    epoch = store.leader.acquire("me", 60)
    store.runs.pause(new_run().public_id)
    for number in range(2):
        proposals = [replace(t, round=number) for t in trials(3, Protocol.CONFIRM)]
        store.trials.add(run.id, proposals, epoch)
        for trial in store.trials.claim(run.id, epoch, 9, 60):
            accept(store, trial, epoch, make_measurement(config=trial.config))
        if number == 0:
            store.runs.extend(run.public_id, trials=1)
    before = [t.measurement_id for t in store.trials.of_run(run.id)]
    assert len(before) == 6
    with migrating(store.database) as config:
        command.downgrade(config, "0004")
    upgrade(store.database)
    runs = store.runs.list()
    assert [r.state for r in runs] == ["SUCCEEDED", "QUEUED", "QUEUED"]
    kept = [[t.measurement_id for t in store.trials.of_run(r.id)] for r in (runs[0], runs[2])]
    assert kept == [before[:3], before[3:]]
    assert store.count_measurements() == 6


def test_a_run_of_other_code_begins_again_and_its_measurements_stay(
    store, new_run, make_measurement
):
    """Two extensions and two upgrades: trials that are put aside never stand where others are."""
    run, epoch = new_run(spec={"max_trials": 9, "time_limit_s": 9.0}), store.leader.acquire("a", 60)
    store.runs.start(run, epoch)
    codes = [replace(TOOLCHAIN, tilecore=f"code {i}") for i in range(3)]
    for number, code in enumerate(codes):
        store.runs.add_time(run.id, 2.0, 1.0, epoch)
        for protocol in Protocol:
            new = [replace(t, round=run.round) for t in trials(2, protocol)]
            assert store.trials.add(run.id, new, epoch) == []
            assert store.trials.add(run.id, new, epoch) == new
        first, *_ = store.trials.claim(run.id, epoch, 4, 60)
        assert accept(store, first, epoch, make_measurement(config=first.config))
        if number == 0:
            store.runs.extend(run.public_id, trials=1)
            store.trials.add(
                run.id, [replace(t, round=1) for t in trials(2, Protocol.CONFIRM)], epoch
            )
        run = store.runs.renew(
            run, epoch, program_digest=f"p{number}", toolchain=code, incumbents=[first.config]
        )
        assert (run.program_digest, run.toolchain, run.device_s) == (f"p{number}", code, 0.0)
        assert run.active_s == 2.0 * (number + 1)
        assert len(run.spec["incumbents"]) == number + 1
        assert run.spec["max_trials"] == 10  # extended meanwhile: the record did not know
        assert store.trials.of_run(run.id) == store.trials.page(run.id) == []
        assert store.trials.count_by_status(run.id) == {}
        assert store.trials.claim(run.id, epoch, 9, 60) == []
        assert accept(store, first, epoch, make_measurement()) is None
        assert store.count_measurements() == number + 1
    told = [e.payload["trials"] for e in store.runs.events(run.id) if e.kind == "renewed"]
    assert told == [1, 1, 1]
    store.runs.finish(run.id, epoch, "SUCCEEDED", result={})
    again, _ = store.runs.extend(run.public_id, trials=1)
    assert store.trials.claim(again.id, epoch, 9, 60) == []  # what was put aside stays there
    store.runs.finish(run.id, epoch, "CANCELLED")
    assert (
        store.runs.renew(run, epoch, program_digest="p9", toolchain=TOOLCHAIN).program_digest
        == "p2"
    )
