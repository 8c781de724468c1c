"""The coordinator brings runs to their end, whatever happens to workers, leases and itself."""

import re
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import structlog
from sqlalchemy import text, update
from structlog.testing import LogCapture

from db.errors import LeadershipLost, SchemaTooNew, UnknownProgram
from db.service_models import ModelRow
from db.session import Database
from db.store import SqlStore
from recommender.measurement import MeasureStatus, Protocol, Toolchain
from tests.tuner_service.table_measurer import HARDWARE, TOOLCHAIN, TableMeasurer
from tuner_service.coordinator.coordinator import Coordinator
from tuner_service.coordinator.main import run_coordinator
from tuner_service.coordinator.run_driver import Limits
from tuner_service.coordinator.station import Station
from tuner_service.coordinator.workplaces import HostWorkplace
from tuner_service.process import is_process_gone, process_name
from tuner_service.report import partial_result
from workers.errors import (
    ClusterUnavailable,
    DeskBusy,
    DeviceMissing,
    ProgramTooCostly,
    SandboxFailed,
)

LIMITS = Limits(retry_base_s=0.01, poll_s=0.01, max_attempts=3)


def coordinator(store, measurer, **changes):
    options = {"limits": LIMITS, "until_idle": True, "leader_ttl_s": 5.0} | changes
    workplace = HostWorkplace(HARDWARE, lambda _: measurer)
    return Coordinator(store, workplace=workplace, toolchain=TOOLCHAIN, **options)


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


def test_outlines_tell_what_the_trials_do(store, queue_run):
    """The page of a run, and what it has found so far, read all trials whole: 0.4 ms for each."""
    run = queue_run(max_trials=12)
    coordinator(store, TableMeasurer(broken_block_m=64)).run()
    done, trials = store.runs.get(run.public_id), store.trials.of_run(run.id)
    outlines = store.trials.outlines(run.id)
    assert [(o.id, o.sequence, o.config, o.protocol, o.purpose, o.state) for o in outlines] == [
        (t.id, t.sequence, dict(t.config.items_), t.protocol.value, t.purpose, t.state)
        for t in trials
    ]
    assert [(o.status, o.time_s, o.detail) for o in outlines] == [
        (t.measurement.status.value, t.measurement.time_s, t.measurement.detail) for t in trials
    ]
    assert store.trials.some([o.id for o in outlines[::-2]]) == trials[::-2]
    so_far = partial_result(store, replace(done, state="RUNNING", result=None))
    assert so_far == {k: v for k, v in done.result.items() if k != "ended_by"}


def test_workers_that_are_away_are_told_of_once(store, queue_run):
    class Late(HostWorkplace):
        failures = 2

        def open(self):
            self.failures -= 1
            if self.failures >= 0:
                raise ClusterUnavailable(address="head:6379", reason="Connection refused")

    run, capture = queue_run(), LogCapture()
    workplace = Late(HARDWARE, lambda _: TableMeasurer())
    before = structlog.get_config()
    structlog.configure(
        processors=[capture], wrapper_class=structlog.make_filtering_bound_logger(0)
    )
    try:
        Coordinator(
            store, workplace=workplace, toolchain=TOOLCHAIN, limits=LIMITS, until_idle=True
        ).run()
    finally:
        structlog.configure(**before)
    assert store.runs.get(run.public_id).state == "SUCCEEDED"
    (away,) = [line for line in capture.entries if line["event"] == "workers away"]
    assert "head:6379" in away["why"]
    assert "ray start" in away["hint"]


def test_one_that_is_told_to_end_waits_for_no_workers_to_start(settings, store, queue_run):
    """Where Ray had just begun to start it took 28 s."""
    run, has_begun, began = queue_run(), threading.Event(), time.monotonic()

    def slow(_):
        has_begun.set()
        for _ in range(1200):  # a signal just before a sleep is seen when that ends
            time.sleep(0.1)
        return TableMeasurer()

    def end():
        assert has_begun.wait(60)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

    ends = signal.SIGTERM, signal.SIGINT
    before = [signal.getsignal(number) for number in ends]
    thread = threading.Thread(target=end)
    thread.start()
    try:
        run_coordinator(
            settings, store, until_idle=False, parent=None, workplace=HostWorkplace(HARDWARE, slow)
        )
    finally:
        thread.join()
        for number, handler in zip(ends, before, strict=True):
            signal.signal(number, handler)
    assert time.monotonic() - began < 60
    assert not store.leader.current().is_alive
    assert store.runs.get(run.public_id).state == "QUEUED"


def test_no_more_runs_share_a_device_than_allowed(store, queue_run):
    first, second = queue_run(), queue_run(max_trials=3)
    limits = replace(LIMITS, max_active_runs=1)
    coordinator(store, TableMeasurer(), limits=limits).run()
    states = [store.runs.get(r.public_id) for r in (first, second)]
    assert [r.state for r in states] == ["SUCCEEDED", "SUCCEEDED"]
    assert states[0].finished_at <= states[1].started_at


def test_an_urgent_run_does_not_wait_for_those_that_may_wait(store, queue_run):
    """The system's own runs filled all places, and what people asked for waited for them."""
    epoch = store.leader.acquire("me", 60)
    limits = replace(LIMITS, max_active_runs=2)
    station = Station(store, TableMeasurer(), epoch, limits)
    low = [queue_run(max_trials=60, priority=1) for _ in range(3)]
    station.step(0.0)
    urgent = [queue_run(max_trials=2) for _ in range(3)]
    time.sleep(0.6)
    station.step(0.0)
    states = [store.runs.get(r.public_id).state for r in (*low, *urgent)]
    assert states == ["RUNNING", "RUNNING", "QUEUED", "RUNNING", "RUNNING", "QUEUED"]
    station.close()


def test_a_run_extended_at_its_last_moment_goes_on(store, queue_run):
    run = queue_run(max_trials=3)

    class Slow(TableMeasurer):
        """Somebody extends the run while its last results are on their way."""

        def collect(self, timeout_s):
            found = super().collect(timeout_s)
            now = store.runs.get(run.public_id)
            is_last = sum(store.trials.count_by_status(run.id).values()) > 3
            if found and now.round == 0 and is_last and not self._queue:
                store.runs.extend(run.public_id, trials=4)
            return found

    coordinator(store, Slow()).run()
    done, trials = store.runs.get(run.public_id), store.trials.of_run(run.id)
    assert (done.state, done.round) == ("SUCCEEDED", 1)
    assert sum(t.protocol is Protocol.SCREEN for t in trials) == 7
    assert len({t.measurement_id for t in trials}) == len(trials) == store.count_measurements()


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


def test_a_run_that_waited_while_the_code_was_upgraded_is_one_of_the_new_code(store, queue_run):
    """All that was queued failed with each upgrade, and what one of two versions queued."""
    older = Toolchain(tilecore="older", tvm="x", llvm="y")
    run = queue_run(toolchain=older, program_digest="older")
    coordinator(store, TableMeasurer()).run()
    done = store.runs.get(run.public_id)
    assert (done.state, done.toolchain) == ("SUCCEEDED", TOOLCHAIN)
    assert done.program_digest == queue_run().program_digest
    assert {m.toolchain for m in store.measurements()} == {TOOLCHAIN}
    told = [(e.kind, e.payload) for e in store.runs.events(run.id)][:3]
    assert told[1] == ("renewed", {"from": older.key, "to": TOOLCHAIN.key, "trials": 0})
    assert told[2][0] == "started"


@pytest.mark.parametrize("upgrades", [1, 2])
def test_a_run_that_other_code_began_begins_again_with_what_was_fastest(store, queue_run, upgrades):
    """It failed (SV912): whoever upgraded in the middle of a run had to queue it again."""
    older = [Toolchain(tilecore=f"older {i}", tvm="x", llvm="y") for i in range(upgrades)]
    run = queue_run(toolchain=older[0], max_trials=12)
    for toolchain in older:  # each code is left in the middle of the screening
        workplace = HostWorkplace(
            HARDWARE, lambda _, t=toolchain: TableMeasurer(toolchain=t, delay_s=0.02)
        )
        before = Coordinator(
            store, workplace=workplace, toolchain=toolchain, limits=LIMITS, leader_ttl_s=0.0
        )
        known = store.count_measurements()
        thread = threading.Thread(target=before.run)
        thread.start()
        while store.count_measurements() < known + 4:
            time.sleep(0.005)
        before.stop()
        thread.join(20)
    known = store.count_measurements()
    told = [t.measurement for t in store.trials.of_run(run.id) if t.measurement]
    best = min(told, key=lambda m: m.time_s).config
    active_s = store.runs.get(run.public_id).active_s
    coordinator(store, TableMeasurer()).run()
    done = store.runs.get(run.public_id)
    trials = store.trials.of_run(run.id)
    assert (done.state, done.toolchain) == ("SUCCEEDED", TOOLCHAIN)
    assert {t.measurement.toolchain for t in trials} == {TOOLCHAIN}
    assert store.count_measurements() == known + len(trials)  # what was measured stays in the log
    assert sum(t.protocol is Protocol.SCREEN for t in trials) == 12
    assert best in [t.config for t in trials if t.protocol is Protocol.CONFIRM]
    assert done.result["trials"] == sum(store.trials.count_by_status(run.id).values())
    assert done.result["trials"] == len(trials) == len(store.trials.outlines(run.id))
    assert done.active_s >= active_s
    renewed = [e.payload for e in store.runs.events(run.id) if e.kind == "renewed"]
    assert [(e["from"], e["to"]) for e in renewed] == [
        (a.key, b.key) for a, b in zip(older, [*older[1:], TOOLCHAIN], strict=True)
    ]
    assert [e["trials"] for e in renewed][-1] == len(told) >= 4
    extended, _ = store.runs.extend(run.public_id, trials=3)
    coordinator(store, TableMeasurer()).run()
    again = store.trials.of_run(extended.id)
    assert sum(t.protocol is Protocol.SCREEN for t in again) == 15
    assert {t.state for t in again} == {"done"}


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
    station = Station(store, TableMeasurer(), old, LIMITS)
    station.step(0.0)
    assert store.runs.get(run.public_id).state == "RUNNING"
    store.leader.acquire("new", 60)
    with pytest.raises(LeadershipLost):
        any(station.step(0.0) for _ in range(100))


def test_a_coordinator_ends_when_its_database_is_migrated(store, queue_run):
    run = queue_run(max_trials=400)
    worker = coordinator(store, TableMeasurer(delay_s=0.01), leader_ttl_s=0.4)
    ended = []

    def work():
        try:
            worker.run()
        except SchemaTooNew as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait(lambda: store.count_measurements() >= 3)
    with store.database.write() as session:
        session.execute(text("update alembic_version set version_num = '9999'"))
    thread.join(20)
    assert [error.code for error in ended] == ["DB802"]
    assert store.runs.get(run.public_id).state == "RUNNING"


def test_process_names():
    me = process_name()
    assert not is_process_gone(me)
    host, boot, _, start, unit = me.split("/")
    assert is_process_gone(f"{host}/{boot}/999999999/{start}/{unit}")
    assert is_process_gone(f"{host}/{boot}/1/{start}/{unit}")
    assert not is_process_gone(f"elsewhere/{boot}/1/{start}/{unit}")
    assert not is_process_gone(f"{host}/{boot}1/999999999/{start}/{unit}")  # another container's
    assert not is_process_gone(f"{host}/{boot}/999999999/1795944000.25")  # of an earlier version
    assert not is_process_gone("nonsense")


def test_a_step_of_the_clock_ends_no_process(tmp_path, monkeypatch):
    """Linux dates its boot anew with each: who compared dates of starts took living ones for gone.

    Two coordinators of one host then took the place of each other three times a second.
    """
    me = process_name()
    for entry in Path("/proc").iterdir():
        if entry.name != "stat":
            (tmp_path / entry.name).symlink_to(entry)
    stat = Path("/proc/stat").read_text()
    boot_s = re.search(r"^btime (\d+)$", stat, re.MULTILINE)[1]
    (tmp_path / "stat").write_text(stat.replace(f"btime {boot_s}", f"btime {int(boot_s) + 3600}"))
    before = psutil.Process().create_time()
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert psutil.Process().create_time() == pytest.approx(before + 3600)
    assert not is_process_gone(me)
    assert process_name() == me


@pytest.mark.parametrize(
    ("devices", "compilers", "depth"), [(1, 1, 16), (8, 1, 32), (1, 30, 32), (2, 16, 20)]
)
def test_workers_have_as_many_trials_as_keep_devices_and_compilers_busy(
    store, queue_run, devices, compilers, depth
):
    run = queue_run(max_trials=100)
    measurer = Silent(devices=devices, compilers=compilers)
    station = Station(store, measurer, store.leader.acquire("me", 60), LIMITS)
    station.step(0.0)
    assert len(store.trials.of_run(run.id, state="leased")) == depth
    station.close()


@pytest.mark.exhaustive
def test_runs_share_a_device_by_priority(store, queue_run):
    from tests.tuner_service.conftest import gemm

    low = queue_run(gemm(m=32), max_trials=60)
    high = queue_run(gemm(m=64), max_trials=60, priority=30)
    epoch = store.leader.acquire("me", 60)
    limits = replace(LIMITS, batch=2, queue_depth=4)
    station = Station(store, TableMeasurer(), epoch, limits)
    while store.count_measurements() < 40:
        station.step(0.0)
    done = {r.id: len(store.trials.of_run(r.id, state="done")) for r in (low, high)}
    assert done[high.id] / done[low.id] == pytest.approx(3, rel=0.2)
    store.runs.amend(low.public_id, priority=300)
    while store.count_measurements() < 70:
        station.step(0.0)
    later = {r: len(store.trials.of_run(r, state="done")) - count for r, count in done.items()}
    assert later[low.id] > 4 * later[high.id]
    station.close()
    shares = [store.runs.get(r.public_id) for r in (low, high)]
    assert sum(r.device_s for r in shares) == pytest.approx(shares[0].active_s, rel=0.05)


def in_background(worker):
    thread = threading.Thread(target=worker.run)
    thread.start()
    return thread


def wait(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.005)


@pytest.mark.exhaustive
def test_a_paused_run_lets_others_pass_and_goes_on_where_it_stood(store, queue_run):
    run = queue_run(max_trials=30)
    worker = coordinator(store, TableMeasurer(delay_s=0.01), until_idle=False)
    thread = in_background(worker)
    wait(lambda: store.count_measurements() >= 3)
    store.runs.pause(run.public_id)
    wait(lambda: store.runs.get(run.public_id).state == "PAUSED")
    assert not store.trials.of_run(run.id, state="leased")
    other = queue_run(max_trials=2)
    wait(lambda: store.runs.get(other.public_id).state == "SUCCEEDED")
    assert store.runs.get(run.public_id).state == "PAUSED"
    measured = len(store.trials.of_run(run.id, state="done"))
    assert measured < 30
    store.runs.resume(run.public_id)
    wait(lambda: store.runs.get(run.public_id).state == "SUCCEEDED")
    worker.stop()
    thread.join(20)
    assert sum(t.protocol is Protocol.SCREEN for t in store.trials.of_run(run.id)) == 30


@pytest.mark.exhaustive
@pytest.mark.parametrize("while_open", [True, False])
def test_an_extended_run_searches_on_and_confirms_again(store, queue_run, while_open):
    run = queue_run(max_trials=4)
    if not while_open:
        coordinator(store, TableMeasurer()).run()
        first = store.runs.get(run.public_id)
        assert (first.state, first.result["ended_by"]) == ("SUCCEEDED", "its budget")
        before = [t for t in store.trials.of_run(run.id) if t.protocol is Protocol.CONFIRM]
    store.runs.extend(run.public_id, trials=5)
    coordinator(store, TableMeasurer()).run()
    done, trials = store.runs.get(run.public_id), store.trials.of_run(run.id)
    assert (done.state, done.round, done.planned_trials) == ("SUCCEEDED", 1, 9)
    assert {t.state for t in trials} == {"done"}
    screened = [t.config for t in trials if t.protocol is Protocol.SCREEN]
    assert len(screened) == len(set(screened)) == 9
    again = {t.config for t in trials if t.protocol is Protocol.CONFIRM and t.round == 1}
    assert done.result["best"]["config"] in [dict(c.items_) for c in again]
    assert len({t.measurement_id for t in trials}) == len(trials) == store.count_measurements()
    if not while_open:
        fastest = min(before, key=lambda t: t.measurement.time_s)
        assert fastest.config in again
        assert done.result["best"]["latency_us"] <= first.result["best"]["latency_us"]
        assert done.active_s > first.active_s


def test_a_ceiling_ends_a_run_with_what_it_has(store, queue_run):
    run = queue_run(max_trials=500, ceiling_s=0.3)
    coordinator(store, TableMeasurer(delay_s=0.02)).run()
    done = store.runs.get(run.public_id)
    assert (done.state, done.result["ended_by"]) == ("SUCCEEDED", "its ceiling")
    assert done.result["best"]["protocol"] == "screen"
    assert 0.3 <= done.active_s < 5
    assert {t.state for t in store.trials.of_run(run.id)} == {"done", "cancelled"}


def test_a_run_for_hardware_that_nobody_offers_waits_and_says_so(store, queue_run):
    other = replace(HARDWARE, name="another")
    here, elsewhere = queue_run(max_trials=2), queue_run(max_trials=2, hardware=other)
    coordinator(store, TableMeasurer()).run()
    states = [store.runs.get(r.public_id).state for r in (here, elsewhere)]
    assert states == ["SUCCEEDED", "WAITING_FOR_HARDWARE"]


def test_a_trial_that_the_workers_forget_is_done_again(store, queue_run):
    class Forgetful(TableMeasurer):
        def submit(self, requests):
            super().submit([r for r in requests if not r.token.endswith(":1")])

    run = queue_run(max_trials=2)
    limits = replace(LIMITS, lease_s=0.05, max_attempts=100)
    coordinator(store, Forgetful(), limits=limits).run()
    trials = store.trials.of_run(run.id)
    assert store.runs.get(run.public_id).state == "SUCCEEDED"
    assert all(t.losses == t.attempt - 1 >= 1 for t in trials)


class Silent(TableMeasurer):
    """Takes trials and never says what came of them."""

    def submit(self, requests):
        self.submitted = list(requests)


def test_a_trial_that_no_worker_answers_fails(store, queue_run):
    """Leases that ran out were no losses: such a trial was begun again for ever."""
    run = queue_run(max_trials=2)
    coordinator(store, Silent(), limits=replace(LIMITS, lease_s=0.02)).run()
    done = store.runs.get(run.public_id)
    assert done.state == "FAILED"
    assert "WORKER_LOST x2" in done.error
    assert "no answer within 0.02 s" in done.error
    assert {(t.state, t.attempt, t.losses) for t in store.trials.of_run(run.id)} == {
        ("failed", LIMITS.max_attempts, LIMITS.max_attempts - 1)
    }


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_a_confirmation_has_a_lease_for_each_of_its_trials(store, queue_run):
    """It was put back while its lane still timed it: it could not end."""

    class AllAtOnce(TableMeasurer):
        confirms = ()

        def submit(self, requests):
            if requests[0].protocol is not Protocol.CONFIRM:
                super().submit(requests)
                return
            assert not self.confirms
            self.confirms = requests

    run, clock, measurer = queue_run(), Clock(), AllAtOnce()
    epoch = store.leader.acquire("me", 60)
    station = Station(store, measurer, epoch, LIMITS, clock=clock)
    while not measurer.confirms:
        station.step(0.0)
    clock.now_s += LIMITS.lease_s * (len(measurer.confirms) - 0.5)
    station.step(0.0)
    TableMeasurer.submit(measurer, measurer.confirms)
    while not station.is_idle:
        station.step(0.0)
    assert store.runs.get(run.public_id).state == "SUCCEEDED"
    assert {(t.attempt, t.losses) for t in store.trials.of_run(run.id)} == {(1, 0)}


def test_a_lost_confirmation_is_begun_again_whole(store, queue_run):
    class Losing(TableMeasurer):
        batches = ()

        def submit(self, requests):
            confirms = [r for r in requests if r.protocol is Protocol.CONFIRM]
            self.batches += (len(confirms),) if confirms else ()
            super().submit(requests)

        def _measure(self, request):
            self._lost_attempts = 2 if request.protocol is Protocol.CONFIRM else 0
            return super()._measure(request)

    run, measurer = queue_run(), Losing(delay_s=0.005)
    coordinator(store, measurer).run()
    assert store.runs.get(run.public_id).state == "SUCCEEDED"
    confirms = [t for t in store.trials.of_run(run.id) if t.protocol is Protocol.CONFIRM]
    assert measurer.batches == (len(confirms),) * 3


def test_time_in_which_nobody_works_on_a_run_is_not_its_own(store, queue_run):
    """An outage of 15 minutes used up the budget of a run."""
    run, clock, measurer = queue_run(), Clock(), Silent()
    epoch = store.leader.acquire("me", 60)
    station = Station(store, measurer, epoch, LIMITS, clock=clock)
    station.step(0.0)
    clock.now_s += 900.0  # the database, or the workers, were away
    station.resync()
    clock.now_s += 2.0
    station.step(0.0)
    found = store.runs.get(run.public_id)
    assert (found.active_s, found.device_s) == (2.0, 2.0)
    measurer.waiting = lambda: {r.token for r in measurer.submitted}
    clock.now_s += 3.0  # none of its trials has begun
    station.step(0.0)
    found = store.runs.get(run.public_id)
    assert (found.active_s, found.device_s) == (5.0, 2.0)


def after(failures, error):
    """Return a check of runs that fails so often, then passes."""
    left = [failures]

    def check(run):
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return run

    return check


def work(store, station):
    deadline = time.monotonic() + 20
    while store.runs.open(HARDWARE.key):
        assert time.monotonic() < deadline, "timed out"
        station.step(0.001)


@pytest.mark.parametrize(
    ("failures", "error"),
    [
        (5, DeskBusy(places=2)),
        (5, SandboxFailed(worker="program reader", reason="killed")),
        (2, ProgramTooCostly(limit_s=30, limit="2 GiB", found="found one that takes longer")),
    ],
    ids=lambda value: getattr(value, "title", ""),
)
def test_what_workers_cannot_do_just_now_fails_no_run(store, queue_run, failures, error):
    epoch = store.leader.acquire("me", 60)
    run = queue_run(max_trials=2)
    station = Station(store, TableMeasurer(), epoch, LIMITS, after(failures, error))
    work(store, station)
    assert store.runs.get(run.public_id).state == "SUCCEEDED"
    told = [e.payload for e in store.runs.events(run.id) if e.kind == "retry"]
    assert told == [{"reason": str(error)}]


@pytest.mark.parametrize(
    "error",
    [
        UnknownProgram(found="f" * 32),  # the whole coordinator waited for it to come back
        ProgramTooCostly(limit_s=30, limit="2 GiB", found="found one that takes longer"),
    ],
    ids=lambda error: error.title,
)
def test_what_a_run_lacks_for_good_fails_that_run_alone(store, queue_run, error):
    epoch = store.leader.acquire("me", 60)
    bad, good = queue_run(max_trials=3), queue_run(max_trials=2)

    def check(run):
        if run.id == bad.id:
            raise error
        return run

    work(store, Station(store, TableMeasurer(), epoch, LIMITS, check))
    done = store.runs.get(bad.public_id)
    assert (done.state, done.error) == ("FAILED", str(error))
    assert store.runs.get(good.public_id).state == "SUCCEEDED"


def test_a_run_goes_on_without_a_damaged_model(store, queue_run):
    """No run of any kernel went on."""
    store.models.save(
        kernel="gemm", family="cpu", blob=b"a model", feature_schema="any", metrics={},
        trained_on=9, promote=True,
    )  # fmt: skip
    with store.database.write() as session:
        session.execute(update(ModelRow).values(blob=b"a medal"))
    run = queue_run(max_trials=2)
    coordinator(store, TableMeasurer()).run()
    assert store.runs.get(run.public_id).state == "SUCCEEDED"


def test_a_run_that_is_put_off_is_cancelled_and_paused(store, queue_run):
    epoch = store.leader.acquire("me", 60)
    runs = [queue_run(max_trials=2) for _ in range(2)]
    limits = replace(LIMITS, retry_base_s=60.0)
    for run in runs:
        assert store.runs.start(run, epoch)
    station = Station(store, TableMeasurer(), epoch, limits, after(2, DeskBusy(places=2)))
    station.step(0.0)
    store.runs.cancel(runs[0].public_id)
    store.runs.pause(runs[1].public_id)
    time.sleep(0.6)
    station.step(0.0)
    states = [store.runs.get(r.public_id).state for r in runs]
    assert states == ["CANCELLED", "PAUSED"]


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ClusterUnavailable(address="local", reason="a slow start"), "SUCCEEDED"),
        (DeviceMissing(expected="a GPU", found="none"), "FAILED"),
    ],
    ids=lambda value: getattr(value, "title", value),
)
def test_workers_that_do_not_start_at_once(store, queue_run, error, state):
    """A start of Ray that was too slow failed the runs that waited, one after the other."""
    left = [error, error]

    def make(_epoch):
        if left:
            raise left.pop()
        return TableMeasurer()

    runs = [queue_run(max_trials=2) for _ in range(2)]
    workplace = HostWorkplace(HARDWARE, make)
    Coordinator(
        store, workplace=workplace, toolchain=TOOLCHAIN, limits=LIMITS, until_idle=True
    ).run()
    assert {store.runs.get(r.public_id).state for r in runs} == {state}


@pytest.mark.exhaustive
def test_what_waits_behind_slow_candidates_is_not_done_again(store, queue_run):
    """Trials that waited longer than a lease were put back before their turn, again and again."""
    run = queue_run(max_trials=24)
    limits = replace(LIMITS, lease_s=0.2)
    coordinator(store, TableMeasurer(delay_s=0.03), limits=limits).run()
    trials = store.trials.of_run(run.id)
    assert store.runs.get(run.public_id).state == "SUCCEEDED"
    assert {(t.attempt, t.losses) for t in trials} == {(1, 0)}


def test_workers_do_not_begin_with_what_is_cancelled(store, queue_run, tmp_path):
    run, other = queue_run(max_trials=60), queue_run(max_trials=2)
    measurer = TableMeasurer(delay_s=0.05, log=tmp_path / "log")
    epoch = store.leader.acquire("me", 60)
    station = Station(store, measurer, epoch, LIMITS)
    while store.count_measurements() < 3:
        station.step(0.0)
    store.runs.cancel(run.public_id)
    while store.runs.get(other.public_id).state != "SUCCEEDED":
        station.step(0.0)
    measured = {t.id for r in (run, other) for t in store.trials.of_run(r.id) if t.measurement}
    executed = {int(line.split(":")[0]) for line in (tmp_path / "log").read_text().splitlines()}
    assert executed == measured
    station.close()


def test_what_the_database_missed_is_stored_when_it_is_back(store, queue_run, database_lock):
    run = queue_run(max_trials=20)
    store.database.close()
    impatient = SqlStore(Database(store.database.shown_url, busy_timeout_s=0.05))
    worker = coordinator(impatient, TableMeasurer(delay_s=0.02), leader_ttl_s=60.0)
    thread = in_background(worker)
    for wanted in (2, 8):
        wait(lambda n=wanted: store.count_measurements() >= n)
        with database_lock():
            time.sleep(0.4)
    thread.join(60)
    trials = store.trials.of_run(run.id)
    assert store.runs.get(run.public_id).state == "SUCCEEDED"
    assert {t.state for t in trials} == {"done"}
    assert len({t.measurement_id for t in trials}) == len(trials) == store.count_measurements()
    impatient.database.close()


def test_what_came_in_while_the_database_was_away_for_longer_than_a_lease_counts(
    store, queue_run, database_lock, tmp_path
):
    run = queue_run(max_trials=6)
    store.database.close()
    impatient = SqlStore(Database(store.database.shown_url, busy_timeout_s=0.05))
    measurer = TableMeasurer(delay_s=0.05, log=tmp_path / "log")
    limits = replace(LIMITS, lease_s=0.3)
    worker = coordinator(impatient, measurer, limits=limits, leader_ttl_s=60.0)
    thread = in_background(worker)
    wait(lambda: store.count_measurements() >= 2)
    with database_lock():
        time.sleep(1.2)
    thread.join(60)
    assert store.runs.get(run.public_id).state == "SUCCEEDED"
    executed = (tmp_path / "log").read_text().splitlines()
    assert len(executed) == len(store.trials.of_run(run.id)) == store.count_measurements()
    impatient.database.close()


def test_idle_workers_elsewhere_are_let_go_and_come_back(store, queue_run):
    """Two databases share a cluster: the devices of one without runs are the other one's."""
    made, released = [], []

    class Elsewhere(HostWorkplace):
        is_elsewhere = True

        def release(self, hardware_key):
            released.append(hardware_key)

    def measurer(_epoch):
        made.append(TableMeasurer())
        return made[-1]

    worker = Coordinator(
        store,
        toolchain=TOOLCHAIN,
        workplace=Elsewhere(HARDWARE, measurer),
        limits=Limits(poll_s=0.01),
        release_s=0.05,
    )
    thread = in_background(worker)
    for count in (1, 2):
        run = queue_run()
        wait(lambda run=run: store.runs.get(run.public_id).state == "SUCCEEDED")
        wait(lambda count=count: len(released) == count)
        assert len(made) == count
        assert made[-1].is_closed
    worker.stop()
    thread.join()
    assert released == [HARDWARE.key] * 2


def test_however_often_something_failed_it_is_tried_again():
    limits = Limits(retry_base_s=0.5)
    assert [limits.delay_s(failures) for failures in (1, 2, 6, 10_000)] == [1.0, 2.0, 30.0, 30.0]
