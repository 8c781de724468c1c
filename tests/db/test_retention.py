"""Compaction removes what no answer rests on and nothing else, beside writers; space comes back."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import exc as sa_exc
from sqlalchemy import select, text, update
from sqlalchemy.dialects import sqlite

from db.models import MeasurementRow, RunRow
from db.records import MeasurementQuery, NewTrial, RetentionPolicy
from db.retention import _superfluous
from db.service_models import DriftRow
from recommender.measurement import Protocol
from tests.db.conftest import BOTH, accept
from tests.db.test_log import DEVICES, START, TOOLCHAINS, some
from tilecore.tile_config import TileConfig

pytestmark = pytest.mark.few(1)  # a case takes long

BARE = RetentionPolicy(keep_days=1, keep_best=1, keep_recent=0, keep_training=0)


def answers(store, subjects, count):
    """Return everything that recommendations rest on, and the tops of the log."""
    keys = [(d.key, p, t.key) for d in DEVICES[:2] for p in ("p1", "p2") for t in TOOLCHAINS]
    best = [store.best(w, *key, driver) for w in subjects for key in keys for driver in ("", "d1")]
    near = [sorted(map(repr, store.nearest(w, count=3))) for w in subjects]
    tops = [
        [r.id for r in store.page(MeasurementQuery(best_first=True, **query), limit=count).items]
        for w in subjects
        for query in (
            {"workload_key": w.key},
            {"workload_key": w.key, "protocol": Protocol.CONFIRM},
            {"hardware_key": DEVICES[0].key, "toolchain_key": TOOLCHAINS[0].key},
            {"program_digest": "p1", "kernel": w.kernel},
        )
    ]
    winners = [r.id for r in store.page(MeasurementQuery(winners=True), limit=500).items]
    return best, near, tops, winners


def add_drift(store, since):
    """Note that times of the first measurement's key changed, and were tuned again."""
    row = MeasurementRow
    query = select(row.workload_id, row.hardware_id, row.program_id, row.toolchain_id)
    with store.database.write() as session:
        key = session.execute(query.order_by(row.id).limit(1)).one()
        dates = {"since": since, "found_at": since, "ended_at": since}
        session.add(DriftRow(**key._mapping, **dates, ratio=1.5, explanation="slower"))


@BOTH
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10_000),
    keep_best=st.integers(1, 4),
    keep_recent=st.sampled_from((0, 2)),
    with_drift=st.booleans(),
)
def test_answers_and_tops_are_the_same_before_and_after(
    store, seed, keep_best, keep_recent, with_drift
):
    records = [some(seed, number) for number in range(150)]
    store.add_all(records)
    if with_drift:
        add_drift(store, START + timedelta(hours=20))
    subjects = sorted({m.workload for m in records}, key=lambda w: w.key)[:4]
    before = answers(store, subjects, keep_best)
    count = store.count_measurements()
    policy = RetentionPolicy(
        keep_days=1, keep_best=keep_best, keep_recent=keep_recent, keep_training=0
    )
    planned = store.retention.compact(policy, dry_run=True)
    assert store.count_measurements() == count
    done = store.retention.compact(policy, vacuum="off")
    assert done.is_complete
    assert done.removed == planned.removed
    assert answers(store, subjects, keep_best) == before
    assert store.count_measurements() == count - sum(done.removed.values())
    again = store.retention.compact(policy, vacuum="off")
    assert sum(again.removed.values()) == 0


def removed(report):
    return sum(report.removed.values())


@BOTH
def test_every_cause_of_a_failure_keeps_its_count(store, make_measurement):
    causes = ["no such register\nat line 3", "no such register", "out of memory", "x" * 300]
    for detail in causes * 3:
        store.add(make_measurement(None, detail=detail))
    store.add_all([make_measurement(i * 1e-3) for i in range(1, 6)])
    first = store.retention.compact(BARE, vacuum="off")
    assert first.removed == {"COMPILE_ERROR": 12, "OK": 3}  # the last one holds the highest id
    store.add_all([make_measurement(None, detail="out of memory")] * 2 + [make_measurement(1.0)])
    assert store.retention.compact(BARE, vacuum="full").note == ""
    assert store.retention.counts() == {
        ("gemm", "COMPILE_ERROR", "no such register"): 6,
        ("gemm", "COMPILE_ERROR", "out of memory"): 5,
        ("gemm", "COMPILE_ERROR", "x" * 200): 3,
        ("gemm", "OK", ""): 4,
    }


@BOTH
def test_what_is_young_recent_or_trained_on_stays(store, make_measurement):
    now = datetime.now(UTC)
    store.add_all([make_measurement(i * 1e-3) for i in range(1, 11)])
    young = [make_measurement(1.0, measured_at=now - timedelta(hours=h)) for h in range(3)]
    store.add_all(young)
    wide = RetentionPolicy(keep_days=1, keep_best=2, keep_recent=7, keep_training=0)
    assert removed(store.retention.compact(wide, dry_run=True)) == 13 - 7 - 2
    training = RetentionPolicy(keep_days=1, keep_best=1, keep_recent=0, keep_training=5)
    # those of one date count as equally old
    assert removed(store.retention.compact(training, dry_run=True)) == 0
    assert removed(store.retention.compact(BARE, vacuum="off")) == 9
    small = RetentionPolicy(keep_days=0, keep_best=1, above_bytes=1 << 40)
    found = store.retention.compact(small)
    assert (removed(found), found.note[:12]) == (0, "smaller than")
    late = store.retention.compact(BARE, time_limit_s=-1.0)
    assert not late.is_complete


def test_the_run_of_a_trial_is_looked_up_for_each(store):
    """All trials of the log were listed for each workload: of 1,000,000 that took 12 minutes."""
    query = _superfluous(BARE, START, []).params(workloads=[1, 2])
    how = {"render_postcompile": True}
    statement = str(query.compile(dialect=sqlite.dialect(), compile_kwargs=how))
    with store.database.read() as session:
        given = (1,) * statement.count("?")
        found = session.connection().exec_driver_sql(f"explain query plan {statement}", given)
        plan = [row[-1] for row in found]
    assert any(step.startswith("SEARCH trial") for step in plan), plan
    assert not any("LIST SUBQUERY" in step for step in plan), plan


def test_a_policy_that_keeps_no_best_is_none():
    with pytest.raises(ValueError, match="would drop"):
        RetentionPolicy(keep_best=0)


@BOTH
def test_runs_keep_their_trials_until_they_end_and_go_on_afterwards(
    store, new_run, make_measurement
):
    run = new_run(spec={"max_trials": 9, "time_limit_s": 60.0})
    epoch = store.leader.acquire("me", 60)
    store.runs.start(run, epoch)
    proposals = [
        NewTrial(config=TileConfig.of(block_M=i), protocol=Protocol.SCREEN, purpose="search")
        for i in range(8)
    ]
    store.trials.add(run.id, proposals[:6], epoch)
    for trial in store.trials.claim(run.id, epoch, 9, 60):
        time_s = 1e-3 * (1 + trial.sequence)
        accept(store, trial, epoch, make_measurement(time_s, config=trial.config))
    assert removed(store.retention.compact(BARE, vacuum="off")) == 0
    store.runs.finish(run.id, epoch, "SUCCEEDED", result={})
    soon = RetentionPolicy(keep_days=0, keep_best=1, keep_recent=0, keep_training=0)
    done = store.retention.compact(soon, vacuum="off")
    assert (removed(done), done.events) == (4, 6)  # the best and the newest stay
    left = store.trials.of_run(run.id)
    assert [t.sequence for t in left] == [0, 5]
    store.runs.extend(run.public_id, trials=2)
    store.trials.add(run.id, proposals[5:], epoch)
    claimed = store.trials.claim(run.id, epoch, 9, 60)
    assert [t.sequence for t in claimed] == [6, 7]
    assert {e.kind for e in store.runs.events(run.id)} == {
        "queued", "started", "succeeded", "extended"
    }  # fmt: skip


@BOTH
def test_a_run_that_is_extended_meanwhile_keeps_its_trials(
    store, second_store, new_run, make_measurement
):
    """It is waited for: it had ended when it was looked at, and goes on when trials are removed."""
    run = new_run()
    epoch = store.leader.acquire("me", 60)
    store.runs.start(run, epoch)
    proposals = [
        NewTrial(config=TileConfig.of(block_M=i), protocol=Protocol.SCREEN, purpose="search")
        for i in range(6)
    ]
    store.trials.add(run.id, proposals, epoch)
    for trial in store.trials.claim(run.id, epoch, 9, 60):
        time_s = 1e-3 * (1 + trial.sequence)
        accept(store, trial, epoch, make_measurement(time_s, config=trial.config))
    store.runs.finish(run.id, epoch, "SUCCEEDED", result={})
    soon = RetentionPolicy(keep_days=0, keep_best=1, keep_recent=0, keep_training=0)
    with ThreadPoolExecutor() as pool:
        with store.database.write() as session:
            session.execute(update(RunRow).where(RunRow.id == run.id).values(state="QUEUED"))
            compaction = pool.submit(second_store.retention.compact, soon, vacuum="off")
            time.sleep(0.5)
            assert not compaction.done()
        assert removed(compaction.result(60)) == 0
    assert len(store.trials.of_run(run.id)) == len(proposals)


@BOTH
def test_writers_go_on_and_lose_nothing(store, second_store, make_measurement):
    store.add_all([make_measurement(1e-3, config=TileConfig.of(i=i)) for i in range(1200)])
    now, stop, written = datetime.now(UTC), threading.Event(), []

    def write():
        while not stop.is_set():
            new = [make_measurement(2e-3, measured_at=now, detail=f"{len(written)}")]
            written.extend(second_store.add_all(new))

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        while not written:  # the newest record stays, whatever it is: one of the writers' now
            assert all(writer.is_alive() for writer in writers)
            time.sleep(0.001)
        done = store.retention.compact(BARE)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert removed(done) == 1199
    assert done.note == ""
    with pytest.raises(sa_exc.IntegrityError, match="append-only"), store.database.write() as s:
        s.execute(text("delete from measurement"))
    assert len(set(written)) == len(written) > 0
    assert second_store.count_measurements() == 1 + len(written)


def test_the_file_gets_smaller(store, make_measurement, database_path):
    long = {"metrics": {f"metric {i}": float(i) for i in range(60)}}
    store.add_all([make_measurement(1e-3, **long) for _ in range(2000)])
    store.measurements()
    done = store.retention.compact(BARE)
    assert done.bytes_after < done.bytes_before / 4
    assert database_path.stat().st_size == done.bytes_after
    assert len(store.measurements()) == 2  # not from memory
    refused = pytest.raises(sa_exc.IntegrityError, match="append-only")
    with refused, store.database.write() as session:
        session.execute(text("delete from measurement"))
