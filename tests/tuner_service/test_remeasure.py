"""Answers that rest on another program, toolchain or driver say so and are measured again, once."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from recommender.hardware import load_profile
from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.space import SearchSpace
from tests.tuner_service.serving import TestClient
from tests.tuner_service.test_app import GEMM, coordinate
from tuner_service import questions, wiring
from tuner_service.app import create_app
from tuner_service.hardware import find_hardware
from tuner_service.remeasure import Doubt, follow_up


@pytest.fixture
def question(store):
    return questions.understand(store, "gemm", GEMM["problem"])


@pytest.fixture
def leader(store):
    return store.leader.acquire("a coordinator", 600.0)


def measured(question, **changes):
    space = SearchSpace.build(
        question.definition, dict(question.workload.problem), question.hardware
    )
    fields = {
        "workload": question.workload,
        "config": space.config(len(space) // 2),
        "hardware": question.hardware,
        "toolchain": question.toolchain,
        "program_digest": question.program_digest,
        "protocol": Protocol.CONFIRM,
        "threads": question.hardware.cores,
        "status": MeasureStatus.OK,
        "times_s": (1e-6, 1.1e-6, 0.9e-6),
        "driver": question.hardware.driver,
        "measured_at": datetime.now(UTC),
    }
    return Measurement(**(fields | changes))


def ask(settings, store, **changes):
    app = create_app(settings.model_copy(update=changes), store)
    with TestClient(app) as client:
        return client.post("/v1/recommendations", json=GEMM).json()


CHANGES = {
    "program": lambda q: {"program_digest": "another"},
    "toolchain": lambda q: {"toolchain": replace(q.toolchain, tvm="0.1")},
    "driver": lambda q: {"driver": "kernel 1"},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("what", CHANGES)
def test_a_doubtful_answer_is_queued_where_a_worker_is_there(
    settings, store, question, leader, what
):
    store.add(old := measured(question, **CHANGES[what](question)))
    body = ask(settings, store)
    again = body["remeasurement"]
    assert (again["cause"], again["state"]) == ("stale", "queued")
    assert again["reasons"][0].startswith(what)
    stale = next(r for r in body["recommendations"] if r["is_stale"])
    assert stale["config"] == dict(old.config.items_)
    assert stale["doubts"] == again["reasons"]
    assert again["reasons"][0] in stale["rationale"]
    store.add(measured(question))
    assert ask(settings, store)["remeasurement"] is None
    fresh = ask(settings, store)["recommendations"][0]
    assert stale["confidence"] < fresh["confidence"] == 0.98
    (run,) = store.runs.list()
    assert (run.public_id, run.cause, run.priority) == (again["run"], "stale", 1)
    assert run.spec["incumbents"] == [dict(old.config.items_)]


def test_without_a_worker_it_is_said_to_be_needed(settings, store, question):
    store.add(measured(question, driver="kernel 1"))
    again = ask(settings, store)["remeasurement"]
    assert (again["state"], again["run"]) == ("needed", None)
    assert "no worker" in again["detail"]
    assert store.runs.list() == []


def test_it_is_queued_once_and_can_be_switched_off(settings, store, question, leader):
    store.add(measured(question, driver="kernel 1"))
    off = ask(settings, store, retune="off")["remeasurement"]
    assert off["state"] == "needed"
    assert "TILECORE_RETUNE" in off["detail"]
    first, second = (ask(settings, store)["remeasurement"] for _ in range(2))
    assert first["run"] == second["run"] == store.runs.list()[0].public_id
    store.runs.cancel(first["run"])
    assert ask(settings, store)["remeasurement"]["state"] == "needed"
    assert len(store.runs.list()) == 1


def test_no_more_are_open_than_allowed(settings, store, question, leader):
    few = settings.model_copy(update={"retune_max_open": 1})
    doubts = [Doubt(cause="stale", reasons=("why",), incumbents=(), name=n) for n in ("a", "b")]
    found = [follow_up(store, few, question, doubt).state for doubt in doubts]
    assert found == ["queued", "needed"]


def test_the_run_measures_the_incumbent_first_and_confirms_it(settings, store, question):
    epoch = store.leader.acquire("a coordinator", 600.0)
    store.add(old := measured(question, driver="kernel 1"))
    again = ask(settings, store, retune_trials=4)["remeasurement"]
    store.leader.release(epoch)
    coordinate(store)
    run = store.runs.get(again["run"])
    assert run.state == "SUCCEEDED"
    trials = store.trials.of_run(run.id)
    ran = {(t.config, t.protocol) for t in trials if t.measurement is not None}
    assert {(old.config, Protocol.SCREEN), (old.config, Protocol.CONFIRM)} <= ran
    assert wiring.host_profile(store).driver == question.hardware.driver
    first = ask(settings, store)
    assert first["remeasurement"] is None
    assert first["recommendations"][0]["source"] == "measured"


def test_times_of_an_unknown_device_are_queued_nowhere(settings, store, leader):
    app = create_app(settings, store)
    with TestClient(app) as client:
        body = client.post("/v1/recommendations", json=GEMM | {"hardware": "H100"}).json()
    assert body["remeasurement"] is None
    assert store.runs.list() == []


def test_a_gpu_is_known_with_the_driver_that_workers_last_saw(store):
    shipped = load_profile("h200")
    assert find_hardware(store, "h200").driver == ""
    for driver in ("NVIDIA 570.1", "NVIDIA 580.2"):
        wiring.note_driver(store, replace(shipped, driver=driver))
        assert find_hardware(store, "h200") == replace(shipped, driver=driver)
        assert find_hardware(store, shipped.key).driver == driver
    wiring.note_driver(store, shipped)  # nobody could read it
    assert find_hardware(store, "h200").driver == "NVIDIA 580.2"
