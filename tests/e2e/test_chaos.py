"""The short form of `make chaos`: everything but the Ray head killed once in 30 trials."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest

from db.migrate import open_database
from db.store import SqlStore
from tests.chaos.site import Site
from tests.chaos.stand_in import StandInMeasurer
from tests.chaos.storm import Storm, audit
from tests.postgres import PROGRAMS
from tilecore.target import cpu_target
from tuner_service import wiring
from tuner_service.coordinator import Coordinator
from tuner_service.jobs import Effort, submit
from tuner_service.questions import understand
from tuner_service.run_driver import Limits
from tuner_service.workplaces import HostWorkplace

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PROGRAMS, reason="needs PostgreSQL's programs"),
]
# Its space has 36 configs; fewer registers leave fewer register tiles.
PROBLEM = {"m": 2, "n": 16, "k": 16 if cpu_target().isa == "avx512" else 256}
PLAN = {
    "API": 1, "measure actor": 1, "PostgreSQL": 1, "raylet of a node": 1, "link cut": 1,
    "leading coordinator": 1,
}  # fmt: skip


def undisturbed(path: Path) -> dict[str, object]:
    """Return the best config of the same run in this process, alone."""
    store = SqlStore(open_database(f"sqlite:///{path}"))
    question = understand(store, "gemm", PROBLEM)
    run, _ = submit(store, question, Effort(max_trials=1000, time_limit_s=600.0))
    host, toolchain = question.hardware, question.toolchain
    Coordinator(
        store,
        workplace=HostWorkplace(host, lambda _: StandInMeasurer(host, toolchain=toolchain)),
        toolchain=wiring.host_toolchain(),
        limits=Limits(poll_s=0.01),
        until_idle=True,
    ).run()
    found = store.runs.get(run.public_id).result
    store.database.close()
    return found["best"]["config"]


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="tcch", dir="/tmp") as path:  # sockets: short paths
        yield Path(path)


def test_a_run_outlives_the_death_of_everything_it_needs(folder):
    with Site(folder, repeats=20.0, coordinators=1) as site:
        body = {"kernel": "gemm", "problem": PROBLEM, "max_trials": 1000, "time_limit_s": 3600}
        run_id = site.queue(body, "once")
        site.wait_for_records(1)
        storm = Storm(site, random.Random(7), records=1)
        storm.rage(PLAN, lambda: site.run(run_id).is_finished)
        run = site.wait_for_end(run_id, 300)
        assert site.queue(body, "once") == run_id
        ledger = audit(site, run)
    assert len(storm.blows) >= 4, storm.blows
    assert ledger.trials >= 25
    assert run.result["best"]["config"] == undisturbed(folder / "calm.db")
