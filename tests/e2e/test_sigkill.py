"""A coordinator killed with SIGKILL at any point: the run ends, no measurement lost or doubled."""

import random
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from db.migrate import open_database
from db.records import NewRun
from db.store import SqlStore
from recommender.workload import Workload
from tests.tuner_service.table_measurer import HARDWARE, TOOLCHAIN, TableMeasurer
from tilecore import kernels
from tuner_service.coordinator.coordinator import Coordinator
from tuner_service.coordinator.run_driver import Limits
from tuner_service.coordinator.workplaces import HostWorkplace
from workers.sandbox import Crashed, Outcome, Returned, Sandbox, Zygote

pytestmark = pytest.mark.timeout(1800)
KILLS = 5


class Coordinating:
    """What the processes that are killed do."""

    def run(self, url: str, log: Path) -> None:
        store = SqlStore(open_database(url))
        Coordinator(
            store,
            toolchain=TOOLCHAIN,
            workplace=HostWorkplace(HARDWARE, lambda _: TableMeasurer(delay_s=0.01, log=log)),
            limits=Limits(poll_s=0.01, queue_depth=8),
            leader_ttl_s=30.0,  # a dead leader on this host is noticed without waiting for this
            until_idle=True,
        ).run()


@pytest.fixture(scope="module")
def zygote():
    """Forks from a process of one thread: a child of this one may inherit a lock that is held."""
    made = Zygote("coordinators", ["tests.e2e.test_sigkill"])
    yield made
    made.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 2])
def test_sigkill_at_random_points(tmp_path, seed, zygote):
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
    coordinator = Sandbox(zygote, Coordinating)
    with ThreadPoolExecutor(1) as waiting:
        for _ in range(KILLS):
            coordinator.start()
            end = waiting.submit(coordinator.call, "run", url, log, timeout_s=600)
            _wait_for_progress(store, end, rng.randrange(0, 4))
            time.sleep(rng.uniform(0.0, 0.03))
            coordinator.kill()
            assert isinstance(end.result(60), Crashed | Returned)
            coordinator.close()
    assert coordinator.call("run", url, log, timeout_s=120) == Returned(None)
    coordinator.close()
    _check(store, run, executions=len(log.read_text().split()))


def _wait_for_progress(store: SqlStore, end: Future[Outcome], more: int) -> None:
    wanted = store.count_measurements() + more
    while not end.done() and store.count_measurements() < wanted:
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
