"""Dispatch tables whose shapes a service has measured: POST /v1/dispatch-tables:tune."""

import threading

import numpy as np
import pytest

from recommender.measurement import Protocol
from tests.recommender import user_programs as programs
from tests.tuner_service.serving import LOCAL
from tests.tuner_service.test_app import coordinate, problem
from tests.tuner_service.test_cli import cli  # noqa: F401
from tests.tuner_service.test_dispatch_programs import here, product_is_right  # noqa: F401
from tests.tuner_service.test_dispatch_sent import FLOAT, MATMUL
from tests.tuner_service.test_programs import as_data, url  # noqa: F401
from tilecore.dispatch_reader import load_table, read_table
from tilecore.dispatcher import Dispatcher
from tuner_service.answers.desk import Answerer
from tuner_service.client import ServiceClient
from tuner_service.dispatch.answers import ORDER, WAITING, TuningOrder
from tuner_service.dispatch.programs import dispatch_program
from tuner_service.dispatch.schemas import DispatchTuningRequest
from tuner_service.errors import Refused
from tuner_service.jobs import Effort

PATH = "/v1/dispatch-tables:tune"
REQUEST = {
    "kernel": "gemm", "problem": {"n": 64, "k": 64}, "sizes": {"m": [16, 64, 256]}, "max_trials": 6,
}  # fmt: skip

HUGE = {"problem": {"n": 1 << 20, "k": 1 << 20}, "sizes": {"m": [1 << 20, 1 << 19]}}


@pytest.fixture
def workers(store):
    """A coordinator of this host that works on whatever is queued."""
    is_over = threading.Event()

    def work():
        while not is_over.is_set():
            coordinate(store)
            is_over.wait(0.05)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    is_over.set()
    thread.join()


def groups(store):
    return {run.group for run in store.runs.list()}


@pytest.mark.exhaustive
def test_the_same_request_again_has_the_table(client, store):
    begun = client.post(PATH, json=REQUEST)
    assert (begun.status_code, begun.headers["retry-after"]) == (202, "2"), begun.text
    now = begun.json()
    assert (now["stage"], now["runs_by_state"]) == ("tuning", {"QUEUED": 3})
    assert now["planned_trials"] == 18
    assert client.post(PATH, json=REQUEST).json() == now  # nothing is queued twice
    coordinate(store)
    crossing = client.post(PATH, json=REQUEST)
    assert (crossing.status_code, crossing.json()["stage"]) == (202, "cross-measuring")
    assert not set(crossing.json()["runs"]) & set(now["runs"])
    coordinate(store)
    found = client.post(PATH, json=REQUEST)
    assert found.status_code == 200, found.text
    table = read_table(found.json())
    assert table.measured_share() == pytest.approx(1.0)
    assert len(groups(store)) == 2
    for public_id in crossing.json()["runs"]:
        run = store.runs.get(public_id)
        trials = store.trials.of_run(run.id)
        confirmed = {t.config for t in trials if t.protocol is Protocol.CONFIRM}
        assert set(table.configs) <= confirmed  # side by side
    later = read_table(client.post(PATH, json=REQUEST).json())
    assert (later.shapes, later.configs) == (table.shapes, table.configs)
    assert len(groups(store)) == 2


@pytest.mark.exhaustive
def test_another_key_or_question_begins_anew_but_tunes_no_shape_twice(client, store):
    client.post(PATH, json=REQUEST)
    coordinate(store)
    anew = client.post(PATH, json=REQUEST, headers={"Idempotency-Key": "again"})
    assert anew.json()["stage"] == "cross-measuring"  # the shapes are known
    wider = REQUEST | {"sizes": {"m": [16, 64, 256, 300]}}
    now = client.post(PATH, json=wider).json()
    assert (now["stage"], now["runs_by_state"]) == ("tuning", {"SUCCEEDED": 3, "QUEUED": 1})


def test_requests_at_the_same_time_queue_one_group(client, store):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(client.post(PATH, json=REQUEST)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in found} == {202}
    assert len({tuple(answer.json()["runs"]) for answer in found}) == 1
    assert len(groups(store)) == 1


@pytest.mark.exhaustive
def test_an_answering_process_queues_and_answers_the_same(settings, store):
    order = TuningOrder(
        request=DispatchTuningRequest(**REQUEST),
        effort=Effort(max_trials=6, time_limit_s=60.0, on_this_host=True), created_by="somebody",
    )  # fmt: skip
    answerer = Answerer(settings.url, 5.0)
    assert answerer.answer((), ORDER + order.model_dump_json()).source == WAITING
    assert {run.created_by for run in store.runs.list()} == {"somebody"}
    coordinate(store)
    answerer.answer((), ORDER + order.model_dump_json())
    coordinate(store)
    assert answerer.answer((), ORDER + order.model_dump_json()).source == "table"


def test_a_run_that_was_cancelled_is_told_and_another_key_goes_on(client, store):
    first = client.post(PATH, json=REQUEST).json()["runs"][0]
    assert client.post(f"/v1/tuning-runs/{first}:cancel").status_code == 202
    coordinate(store)
    assert first in problem(client.post(PATH, json=REQUEST), 409, "SV911")["detail"]
    anew = client.post(PATH, json=REQUEST, headers={"Idempotency-Key": "again"})
    assert (anew.status_code, anew.json()["stage"]) == (202, "tuning")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"max_trials": 0}, 422, "SV901"), ({"trust_predictions": True}, 422, "SV901"),
        ({"sizes": {}}, 422, "SV901"), ({"kernel": "gemmm"}, 404, "TC501"),
        ({"kernel": None}, 422, "SV901"), ({"hardware": "abacus"}, 404, "RC601"),
        ({"hardware": "h100"}, 422, "SV906"), ({"sizes": {"m": "0:4"}}, 422, "RC611"),
        (HUGE, 422, "SV932"),
        ({"problem": {"k": 64}, "sizes": {"m": "1:64", "n": "1:64"}, "samples": 12}, 422, "RC611"),
    ],
)  # fmt: skip
def test_bad_requests_queue_nothing(client, store, changes, status, code):
    problem(client.post(PATH, json=REQUEST | changes), status, code)
    assert store.runs.list() == []


def test_a_program_is_tuned_by_who_has_its_function(here, url, store, workers):  # noqa: F811
    table = dispatch_program(
        programs.matmul, {"M": [16, 91]}, N=72, K=40, trials=3, service=url, **FLOAT
    )
    assert {s.source for s in table.shapes} == {"measured"}
    run = Dispatcher(table, program=programs.matmul)
    assert run.doubts == ()
    product_is_right(run, 91, np.random.default_rng(34))


@pytest.mark.exhaustive
def test_the_command_line_waits_for_the_service(cli, url, workers, tmp_path):  # noqa: F811
    path = tmp_path / "table.json"
    arguments = ["--n", "72", "--k", "40", "--m", "16,64", "--service", url, "--tune"]
    status, shown, said = cli(
        "dispatch", "gemm", *arguments, "--trials", "3", "--output", str(path)
    )
    assert status == 0, said
    assert "cross-measuring 2 shapes" in shown
    assert "100% of the calls rest on measurements" in shown
    assert {s.source for s in load_table(path).shapes} == {"measured"}
    status, _, said = cli("dispatch", MATMUL, *arguments, "--set", "q=1")
    assert (status, "TC502" in said, "Traceback" in said) == (2, True, False), said


@pytest.mark.exhaustive
def test_the_client_tells_how_it_stands(client, store):
    def watch(now):
        told.append(now["stage"])
        coordinate(store)

    told = []
    with ServiceClient(f"http://{LOCAL}") as service:
        service._http = client
        table = service.dispatch_table(
            "gemm", {"n": 64, "k": 64}, {"m": "16,64"}, max_trials=3, tuned=watch
        )
        with pytest.raises(Refused, match="SV906"):
            service.dispatch_table(
                "gemm", {"n": 64, "k": 64}, {"m": "16,64"}, hardware="h100", tuned=watch
            )
    assert told == ["tuning", "cross-measuring"]
    assert table.measured_share() == pytest.approx(1.0)
