"""The coordinator brings runs to their end, whatever happens to workers, leases and itself."""

import threading

import pytest

from db.errors import LeadershipLost
from recommender.measurement import MeasureStatus, Protocol, Toolchain
from tests.tuner_service.table_measurer import HARDWARE, TOOLCHAIN, TableMeasurer
from tuner_service.coordinator import Coordinator
from tuner_service.process import is_process_gone, process_name
from tuner_service.run_driver import Limits, RunDriver

LIMITS = Limits(retry_base_s=0.01, poll_s=0.01, max_attempts=3)


def coordinator(store, measurer, **changes):
    options = {"limits": LIMITS, "until_idle": True, "leader_ttl_s": 5.0} | changes
    return Coordinator(
        store, hardware=HARDWARE, toolchain=TOOLCHAIN, make_measurer=lambda _: measurer, **options
    )


def test_a_run_ends_with_a_result_and_one_measurement_per_trial(store, queue_run):
    run, measurer = queue_run(), TableMeasurer()
    coordinator(store, measurer).run()
    done = store.runs.get(run.public_id)
    assert (done.state, done.error) == ("SUCCEEDED", None)
    trials = store.trials.of_run(run.id)
    assert {t.state for t in trials} == {"done"}
    assert store.count_measurements() == len(trials)
    screened = [t for t in trials if t.protocol is Protocol.SCREEN]
    assert len(screened) == 6
    assert min(screened, key=lambda t: t.sequence).purpose == "default"
    best = done.result["best"]
    assert best["protocol"] == "confirm"
    assert best["latency_us"] <= done.result["default"]["latency_us"]
    assert best["ratio_to_reference"] == pytest.approx(55 / best["latency_us"])
    assert 0 < best["fraction_of_peak"] < 1
    assert measurer.largest_confirm == sum(t.protocol is Protocol.CONFIRM for t in trials)
    assert measurer.is_closed
    assert not store.leader.current().is_alive


def test_runs_are_worked_on_one_after_the_other(store, queue_run):
    first, second = queue_run(), queue_run(max_trials=3)
    coordinator(store, TableMeasurer()).run()
    states = [store.runs.get(r.public_id) for r in (first, second)]
    assert [r.state for r in states] == ["SUCCEEDED", "SUCCEEDED"]
    assert states[0].finished_at <= states[1].started_at


def test_lost_workers_are_retried_and_leave_no_record(store, queue_run):
    run = queue_run(max_trials=2)
    coordinator(store, TableMeasurer(lost_attempts=2)).run()
    assert store.runs.get(run.public_id).state == "SUCCEEDED"
    trials = store.trials.of_run(run.id)
    assert {t.attempt for t in trials} == {3}
    assert set(store.trials.count_by_status(run.id)) == {"OK"}


def test_workers_that_stay_lost_fail_the_run_with_the_cause(store, queue_run):
    run = queue_run(max_trials=2)
    coordinator(store, TableMeasurer(lost_attempts=99)).run()
    done = store.runs.get(run.public_id)
    assert done.state == "FAILED"
    assert "WORKER_LOST x2" in done.error
    assert "the node went away" in done.error


def test_a_failing_candidate_is_a_result_not_a_retry(store, queue_run):
    default_m = 128
    run = queue_run()
    coordinator(store, TableMeasurer(broken_block_m=default_m)).run()
    done = store.runs.get(run.public_id)
    assert done.state == "SUCCEEDED"
    assert done.result["default"]["status"] == "WRONG_RESULT"
    assert done.result["gain_over_default"] is None
    failed = [m for m in store.measurements() if m.status is MeasureStatus.WRONG_RESULT]
    assert failed
    assert all(m.config["block_M"] == default_m for m in failed)


def test_a_run_queued_by_other_code_is_refused(store, queue_run):
    run = queue_run(toolchain=Toolchain(tilecore="older", tvm="x", llvm="y"))
    coordinator(store, TableMeasurer()).run()
    done = store.runs.get(run.public_id)
    assert (done.state, done.error[:5]) == ("FAILED", "SV912")


def test_an_unexpected_fault_fails_one_run_only(store, queue_run):
    class Exploding(TableMeasurer):
        def submit(self, requests):
            if dict(requests[0].workload.problem)["m"] == 32:
                raise ZeroDivisionError("a bug")
            super().submit(requests)

    from tests.tuner_service.conftest import gemm

    bad, good = queue_run(gemm(m=32)), queue_run()
    coordinator(store, Exploding()).run()
    assert "a bug" in store.runs.get(bad.public_id).error
    assert store.runs.get(good.public_id).state == "SUCCEEDED"


def test_cancelling_a_run_under_way(store, queue_run):
    run = queue_run(max_trials=60)
    worker = coordinator(store, TableMeasurer(delay_s=0.02))
    thread = threading.Thread(target=worker.run)
    thread.start()
    while store.count_measurements() < 2:
        pass
    store.runs.cancel(run.public_id)
    thread.join(20)
    assert store.runs.get(run.public_id).state == "CANCELLED"
    assert {t.state for t in store.trials.of_run(run.id)} == {"done", "cancelled"}


def test_stopping_gives_the_work_back_and_the_next_one_ends_it(store, queue_run):
    run = queue_run(max_trials=12)
    worker = coordinator(store, TableMeasurer(delay_s=0.02))
    thread = threading.Thread(target=worker.run)
    thread.start()
    while store.count_measurements() < 2:
        pass
    worker.stop()
    thread.join(20)
    assert store.runs.get(run.public_id).state == "RUNNING"
    assert "leased" not in {t.state for t in store.trials.of_run(run.id)}
    coordinator(store, TableMeasurer()).run()
    assert store.runs.get(run.public_id).state == "SUCCEEDED"
    kinds = [e.kind for e in store.runs.events(run.id)]
    assert kinds.count("resumed") == 1
    assert kinds.count("trial") == len(store.trials.of_run(run.id)) == store.count_measurements()


def test_a_leader_that_was_replaced_writes_nothing_more(store, queue_run):
    run = queue_run()
    old = store.leader.acquire("old", 0.0)
    store.runs.start(run, old)
    driver = RunDriver(store, run, TableMeasurer(), old, LIMITS)
    driver.step()
    store.leader.acquire("new", 60)
    with pytest.raises(LeadershipLost):
        any(driver.step() for _ in range(100))


def test_process_names():
    me = process_name()
    assert not is_process_gone(me)
    host, boot, _, start = me.split("/")
    assert is_process_gone(f"{host}/{boot}/999999999/{start}")
    assert is_process_gone(f"{host}/{boot}/1/{start}")
    assert not is_process_gone(f"elsewhere/{boot}/1/{start}")
    assert not is_process_gone("nonsense")
