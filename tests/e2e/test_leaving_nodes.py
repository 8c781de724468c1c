"""Nodes that leave during a run: drained, or told to end; by the real commands on a real Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from db.records import RunRecord
from tests.chaos.network import works
from tests.chaos.site import NODES, Site, patient
from tests.chaos.storm import audit
from tests.e2e.test_chaos import PROBLEM
from tests.postgres import PROGRAMS

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PROGRAMS, reason="needs PostgreSQL's programs"),
    pytest.mark.skipif(not works(), reason="needs root and ip, to tell two nodes apart"),
]
BODY = {"kernel": "gemm", "problem": PROBLEM, "max_trials": 1000, "time_limit_s": 3600}
STAYS, GOES = NODES
GRACE_S = 45.0  # docker-compose.yml, deploy/kubernetes
WAIT_S = 240.0


class Run:
    """A run under way on two nodes."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.id = site.queue(BODY, "leaving")
        self.wait(lambda: self.count(STAYS) >= 1 and self.count(GOES) >= 1)

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def record(self) -> RunRecord:
        return patient(lambda: self.site.store.runs.get(self.id))

    def count(self, node: str) -> int:
        """Return how many trials were measured on a node."""
        address = self.site.network.address(node)
        done = patient(lambda: self.site.store.trials.of_run(self.record().id, state="done"))
        return sum(t.measurement is not None and address in t.measurement.worker for t in done)

    def goes_on(self, trials: int = 2) -> None:
        """Wait until that many more trials were measured on the node that stays."""
        before = self.count(STAYS)
        self.wait(lambda: self.count(STAYS) >= before + trials)

    def states(self) -> dict[str, str]:
        """Return the states of nodes, by host; of those that came again the latest."""
        found = {node.name: node.state for node in reversed(self.site.store.nodes.list())}
        network = self.site.network
        return {
            n: s for n in NODES for k, s in found.items() if k.endswith(f"/{network.address(n)}")
        }

    def key(self, node: str) -> str:
        address = self.site.network.address(node)
        return next(n.key for n in self.site.store.nodes.list() if n.name.endswith(f"/{address}"))

    def tilecore(self, *arguments: str) -> None:
        environment = os.environ | {"TILECORE_DATABASE_URL": self.site.database_url}
        command = [sys.executable, "-m", "tuner_service", *arguments]
        subprocess.run(command, env=environment, check=True, capture_output=True)


@pytest.fixture
def run() -> Iterator[Run]:
    with (
        tempfile.TemporaryDirectory(prefix="tclv", dir="/tmp") as folder,
        Site(Path(folder), repeats=150.0, coordinators=1) as site,
    ):
        yield Run(site)


def test_nodes_leave_and_come_back_while_a_run_goes_on(run: Run) -> None:
    before = run.count(GOES)
    run.tilecore("node", "drain", run.key(GOES)[:12])
    assert run.states() == {STAYS: "active", GOES: "draining"}
    run.wait(lambda: run.states()[GOES] == "drained")
    after = run.count(GOES)
    assert after > before  # what was under way has ended there
    run.goes_on()
    assert run.count(GOES) == after  # and nothing new has begun
    run.tilecore("node", "undrain", run.key(GOES)[:12])
    run.wait(lambda: run.count(GOES) > after)
    assert run.states() == dict.fromkeys(NODES, "active")

    # SIGTERM: as a drain, then the process ends
    before = run.count(GOES)
    node = run.site.services[GOES]
    status, elapsed_s = node.end(GRACE_S)
    assert (status, node.left) == (0, [])
    assert elapsed_s < GRACE_S - 5
    run.wait(lambda: run.states()[GOES] == "lost")
    after = run.count(GOES)
    assert after > before
    run.goes_on()
    assert run.count(GOES) == after
    assert not run.record().is_finished
    attempts = [t.attempt for t in run.site.store.trials.of_run(run.record().id, state="done")]
    assert set(attempts) == {1}  # no work was lost so far

    # SIGTERM where there is no time for what is under way: it is given back
    run.site.start_node(GOES, RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S="0")
    node = run.site.services[GOES]
    run.wait(lambda: node.processes("ray::MeasureActor.screen"))  # something is under way
    time.sleep(0.3)  # far less than it takes
    status, elapsed_s = node.end(GRACE_S)
    assert (status, node.left) == (0, [])
    assert elapsed_s < GRACE_S - 5
    assert not run.record().is_finished
    ledger = audit(run.site, run.site.wait_for_end(run.id, 600))
    assert ledger.trials >= 25
    assert ledger.attempts > ledger.trials
    assert run.states() == {STAYS: "active", GOES: "lost"}
