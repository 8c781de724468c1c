"""A coordinator killed with SIGKILL at any point: the run ends, no measurement lost or doubled."""

import multiprocessing
import random
import time
from pathlib import Path

import pytest

from db.migrate import open_database
from db.records import NewRun
from db.store import SqlStore
from recommender.workload import Workload
from tests.tuner_service.table_measurer import HARDWARE, TOOLCHAIN, TableMeasurer
from tilecore import kernels
from tuner_service.coordinator import Coordinator
from tuner_service.run_driver import Limits
from tuner_service.workplaces import HostWorkplace

pytestmark = pytest.mark.timeout(1800)
KILLS = 5


def work(url: str, log: Path) -> None:
    store = SqlStore(open_database(url))
    Coordinator(
        store,
        toolchain=TOOLCHAIN,
        workplace=HostWorkplace(HARDWARE, lambda _: TableMeasurer(delay_s=0.01, log=log)),
        limits=Limits(poll_s=0.01, queue_depth=8),
        leader_ttl_s=30.0,  # a dead leader on this host is noticed without waiting for this
        until_idle=True,
    ).run()


@pytest.mark.parametrize("seed", [1, 2])
def test_sigkill_at_random_points(tmp_path, seed):
    url, log, rng = f"sqlite:///{tmp_path}/tilecore.db", tmp_path / "log", random.Random(seed)
    store = SqlStore(open_database(url))
    definition = kernels.get("gemm")
    problem = definition.parse_problem({"m": 96, "n": 64, "k": 64})
    new = NewRun(
        workload=Workload.of("gemm", problem),
        hardware=HARDWARE,
        program_digest=definition.program_digest(problem),
        toolchain=TOOLCHAIN,
        spec={"max_trials": 24, "time_limit_s": 300.0},
        body_hash="x",
        planned_trials=24,
    )
    run, _ = store.runs.create(new)
    context = multiprocessing.get_context("fork")
    for _ in range(KILLS):
        process = context.Process(target=work, args=(url, log))
        process.start()
        _wait_for_progress(store, process, rng.randrange(0, 4))
        time.sleep(rng.uniform(0.0, 0.03))
        process.kill()
        process.join()
    last = context.Process(target=work, args=(url, log))
    last.start()
    last.join(120)
    assert last.exitcode == 0
    _check(store, run, executions=len(log.read_text().split()))


def _wait_for_progress(store, process, more):
    wanted = store.count_measurements() + more
    while process.is_alive() and store.count_measurements() < wanted:
        time.sleep(0.002)


def _check(store, run, executions):
    done = store.runs.get(run.public_id)
    assert done.state == "SUCCEEDED", done.error
    trials = store.trials.of_run(run.id)
    assert {t.state for t in trials} == {"done"}
    assert len({(t.config, t.protocol) for t in trials}) == len(trials)
    assert len({t.measurement_id for t in trials}) == len(trials) == store.count_measurements()
    assert sum(done.result["by_status"].values()) == len(trials)
    assert sum(e.kind == "trial" for e in store.runs.events(run.id)) == len(trials)
    assert executions >= len(trials)  # at-least-once execution, exactly one record
    assert store.leader.current().epoch > KILLS // 2
