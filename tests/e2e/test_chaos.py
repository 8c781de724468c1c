"""The short form of `make chaos`: each kind of blow once in one run, while a client asks on."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from db.migrate import open_database
from db.store import SqlStore
from tests.chaos.asker import NOBODY, Ask, Asker
from tests.chaos.site import Site
from tests.chaos.stand_in import CONFIRM_SHARE, StandInMeasurer, recorded_time_s
from tests.chaos.storm import CUTS, PLAN, Storm, Strike, audit
from tests.postgres import PROGRAMS
from tilecore.target import cpu_target
from tilecore.tile_config import TileConfig
from tuner_service import wiring
from tuner_service.coordinator.coordinator import Coordinator
from tuner_service.coordinator.run_driver import Limits
from tuner_service.coordinator.workplaces import HostWorkplace
from tuner_service.jobs import Effort, submit
from tuner_service.questions import understand

# Its space has 36 configs; fewer registers leave fewer register tiles.
PROBLEM = {"m": 2, "n": 16, "k": 16 if cpu_target().isa == "avx512" else 256}
WIDE = PROBLEM | {"n": 64}  # 84 configs (72): blows take some even where all recover at once
ASKED = 20  # answers to each question


def undisturbed(path: Path, problem: Mapping[str, int] = PROBLEM) -> dict[str, object]:
    """Return the best config of the same run in this process, alone."""
    store = SqlStore(open_database(f"sqlite:///{path}"))
    question = understand(store, "gemm", problem)
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


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.skipif(not PROGRAMS, reason="needs PostgreSQL's programs")
def test_a_run_outlives_the_death_of_everything_it_needs(folder):
    with Site(folder, repeats=20.0) as site:
        body = {"kernel": "gemm", "problem": WIDE, "max_trials": 1000, "time_limit_s": 3600}
        run_id = site.queue(body, "once")
        site.wait_for_records(1)
        storm = Storm(site, random.Random(7), records=1)
        with Asker(site, run_id, body) as asker:
            storm.rage(dict.fromkeys(PLAN, 1), lambda: site.run(run_id).is_finished)
            run = site.wait_for_end(run_id, 300)
        assert site.queue(body, "once") == run_id
        ledger = audit(site, run)
    asker.check(storm.strikes, ASKED)
    assert ledger.trials >= 60
    assert run.result["best"]["config"] == undisturbed(folder / "calm.db", WIDE)


BEFORE, AFTER = Ask("run", 1.0, 1.1, 200), Ask("run", 9.0, 9.1, 200)
STRIKES = [Strike("API", 3.0, 3.0), Strike("PostgreSQL", 5.0, 5.4), Strike("Ray head", 7.0, 7.0)]


def asked(*asks: Ask) -> Asker:
    asker = Asker(None, "", {}, [BEFORE, *asks, replace(AFTER, what="recommendation"), AFTER])
    asker._has_ended = asker._is_measured = True
    return asker


def test_what_a_blow_explains_is_no_fault():
    well = Ask("run", 4.0, 4.1, 200)
    asker = asked(Ask("run", 2.9, 3.1, NOBODY), Ask("run", 3.5, 3.6, NOBODY), well,
                  Ask("run", 5.1, 5.2, 503), Ask("run", 8.0, 8.1, 503))  # fmt: skip
    asker.check(STRIKES, 1)
    assert asker.counts() == {200: 4, NOBODY: 2, 503: 2}


def test_what_is_struck_may_answer_until_it_has_ended():
    late = Ask("run", 5.3, 5.31, 200)
    asked(Ask("run", 5.1, 5.2, 503), late, Ask("run", 5.5, 5.6, 503)).check(STRIKES, 1)
    with pytest.raises(AssertionError):
        asked(replace(late, began_at=5.5), Ask("run", 5.7, 5.8, 503)).check(STRIKES, 1)


@pytest.mark.parametrize(
    "fault",
    [
        Ask("run", 3.1, 3.2, 500),
        Ask("run", 3.1, 3.2, 503),  # the database was well
        Ask("run", 7.1, 7.2, NOBODY),  # the API had answered since it was killed
        Ask("run", 0.5, 0.6, NOBODY),
        Ask("run", 5.1, 5.2, 404),
    ],
    ids=lambda fault: f"{fault.status} at {fault.began_at}",
)
def test_what_no_blow_explains_is_a_fault(fault):
    asker = asked(fault, Ask("run", 4.0, 4.1, 200))
    if fault.began_at > 4:
        asker.asks[1:3] = reversed(asker.asks[1:3])
    with pytest.raises(AssertionError):
        asker.check(STRIKES, 1)


def test_answers_that_cannot_be_are_told():
    asker = Asker(None, "a run", {})
    told = {"id": "a run", "state": "RUNNING", "trials": {"OK": 3}}
    assert asker._look_at_run(told) == []
    assert asker._look_at_run(told | {"trials": {"OK": 2}}) == ["2 trials after 3"]
    assert asker._look_at_run(told | {"state": "SUCCEEDED"}) == []
    assert asker._look_at_run(told) == ["RUNNING after its end"]
    assert len(asker._look_at_run(told | {"id": "another", "state": "SUCCEEDED"})) == 1
    config = TileConfig.of(block_M=32)
    asker._configs = {config}
    one = {"rank": 1, "config": dict(config.items_), "source": "measured", "rationale": "median"}
    right_us = 1e6 * CONFIRM_SHARE * recorded_time_s(config)
    assert (
        asker._look_at_recommendation({"recommendations": [one | {"latency_us": right_us}]}) == []
    )
    for wrong in (
        [],
        [one | {"latency_us": 2 * right_us}],
        [one | {"latency_us": right_us, "config": {"block_M": 64}}],
        [one | {"latency_us": right_us, "source": "prior"}],  # it was measured
    ):
        assert asker._look_at_recommendation({"recommendations": wrong}), wrong


@pytest.mark.parametrize("has_links", [True, False])
def test_each_kind_of_blow_comes_before_any_comes_again(has_links):
    network = SimpleNamespace(has_links=has_links)
    order = Storm(SimpleNamespace(network=network), random.Random(3))._order(PLAN)
    kinds = set(PLAN) if has_links else set(PLAN) - {*CUTS}
    assert set(order[: len(kinds)]) == kinds
    assert Counter(order) == {kind: PLAN[kind] for kind in kinds}


def test_a_storm_that_is_over_too_soon_is_a_fault():
    storm = Storm(SimpleNamespace(network=SimpleNamespace(has_links=True)), random.Random(3))
    with pytest.raises(AssertionError, match="never dealt: PostgreSQL"):
        storm.rage({"PostgreSQL": 1}, lambda: True)
