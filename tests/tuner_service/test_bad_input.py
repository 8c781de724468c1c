"""Bad input over REST, by the list of the first issue: each a problem with a stable code."""

import json
import re
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

import tilecore as tilelang
import tilecore.language as T
from tests.tuner_service.serving import TestClient
from tests.tuner_service.test_app import GEMM, problem
from tests.tuner_service.test_programs import SIZES, as_data
from tests.tuner_service.test_studies import STUDY
from tuner_service.app import create_app

QUESTIONS = ("/v1/recommendations", "/v1/tuning-runs", "/v1/dispatch-tables")
BATCHES = {"/v1/recommendations:batch": "requests", "/v1/tuning-runs:batch": "runs"}


@tilelang.jit
def torn(N, block_N=64):
    """A program whose layout puts two elements into one place."""

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block_N)) as b:
            tile = T.alloc_shared((8, 8), "float32")
            T.annotate_layout({tile: T.Layout((8, 8), lambda i, j: i)})
            for i, j in T.Parallel(8, 8):
                tile[i, j] = A[b * block_N + i * 8 + j]
            for i, j in T.Parallel(8, 8):
                B[b * block_N + i * 8 + j] = tile[i, j]

    return main


def wrong_problem(**changes):
    return GEMM | {"problem": GEMM["problem"] | changes}


WRONG = {
    "an unknown kernel": (GEMM | {"kernel": "fft"}, 404, "TC501"),
    "unknown hardware": (GEMM | {"hardware": "z80"}, 404, "RC601"),
    "a negative dimension": (wrong_problem(k=-1), 422, "TC502"),
    "a huge dimension": (wrong_problem(k=10**30), 422, "TC502"),
    "an unknown element type": (wrong_problem(dtype="int7"), 422, "TC502"),
    "element types that do not fit": (wrong_problem(accum_dtype="int32"), 422, "TC502"),
    "an illegal config": (GEMM | {"fixed": {"block_M": 64}}, 422, "SV901"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("case", WRONG)
def test_questions_about_kernels(client, store, case):
    body, status, code = WRONG[case]
    for path in QUESTIONS:
        asked = dict(body)
        if path.endswith("tables"):
            rest = {k: v for k, v in body["problem"].items() if k != "m"}
            asked |= {"problem": rest, "sizes": {"m": "1:8"}, "samples": 2}
        problem(client.post(path, json=asked), status, code)
    for path, member in BATCHES.items():
        problem(client.post(path, json={member: [GEMM, body]}), status, code)
    assert store.runs.list() == []


def test_what_parameters_refuse_is_told_once_and_in_our_words(client):
    """A closed set was told in pydantic's words, a header that two parts of a route read twice."""
    for query, expected in (
        ("status=ok", "expected 'OK', "),
        ("protocol=x", "expected 'screen' or "),
    ):
        told = problem(client.get(f"/v1/measurements?{query}"), 422, "SV901")["errors"]
        assert [fault["detail"].startswith(expected) for fault in told] == [True]
    answer = client.get("/v1/tuning-runs/none/events", headers={"Last-Event-ID": "abc"})
    told = problem(answer, 422, "SV901")
    assert told["detail"] == "/header/last-event-id: expected an integer, found 'abc'"
    assert len(told["errors"]) == 1


ILLEGAL = {
    "a knob that it has not": ({"block_Q": 64}, "TC303"),
    "a value that no device can hold": ({"block_M": 1 << 20}, "RC602"),
    "a value that is none": ({"num_stages": -2}, "TC303"),
    "a word for a number": ({"threads": "many"}, "TC303"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ILLEGAL)
def test_illegal_configs_of_programs(client, store, case):
    fixed, code = ILLEGAL[case]
    sent = client.post("/v1/programs", content=as_data().to_bytes()).json()["digest"]
    asked = {"program": sent, "problem": SIZES, "fixed": fixed}
    for path in QUESTIONS[:2]:
        problem(client.post(path, json=asked), 422, code)
    rest = {k: v for k, v in SIZES.items() if k != "M"}
    table = asked | {"problem": rest, "sizes": {"M": "1:8"}, "samples": 2}
    problem(client.post(QUESTIONS[2], json=table), 422, code)
    assert store.runs.list() == []


def test_a_program_with_a_type_error_names_its_line(client, store):
    document = as_data().to_json()
    text = json.dumps(document)
    wrong = text.replace('"dtype": "float32"', '"dtype": "int32"')
    assert wrong != text
    body = problem(client.post("/v1/programs", content=wrong), 422, "TC202")
    assert "user_programs.py>:" in body["detail"]
    assert "expected" in body["detail"]
    assert store.programs.list() == []


def test_a_layout_that_cannot_be_inferred_is_told(client, store):
    stored = client.post("/v1/programs", content=as_data(torn, {"N": 640}).to_bytes())
    asked = {"program": stored.json()["digest"], "problem": {"N": 640}}
    for path in QUESTIONS[:2]:
        body = problem(client.post(path, json=asked), 422, "RC602")
        assert "two elements in one place" in body["detail"]
    assert store.runs.list() == []


def test_sizes_that_a_program_has_not_and_devices_that_nobody_offers(client):
    """Tensors do not go over REST: their shapes are sizes, their device is `hardware`."""
    sent = client.post("/v1/programs", content=as_data().to_bytes()).json()["digest"]
    for sizes in ({**SIZES, "Q": 8}, {"M": 8, "N": 8}, {**SIZES, "M": 0}, {**SIZES, "M": True}):
        for path in QUESTIONS[:2]:
            problem(client.post(path, json={"program": sent, "problem": sizes}), 422, "TC502")
    elsewhere = {"program": sent, "problem": SIZES, "hardware": "h200"}
    problem(client.post("/v1/tuning-runs", json=elsewhere), 422, "SV906")
    problem(client.post("/v1/tuning-runs", json=GEMM | {"hardware": "mi300x"}), 422, "SV906")


def test_every_route_that_writes_says_that_the_database_is_locked(settings, store, database_lock):
    program = as_data().to_bytes()
    app = create_app(settings.model_copy(update={"database_timeout_s": 0.1}))
    with TestClient(app, raise_server_exceptions=False) as client, database_lock():
        answers = [
            client.post("/v1/tuning-runs", json=GEMM),
            client.post("/v1/tuning-runs:batch", json={"runs": [GEMM]}),
            client.post("/v1/studies", json=STUDY),
            client.post("/v1/programs", content=program),
            client.post("/v1/keys", json={"name": "a"}),
            client.post("/v1/database:compact", json={}),
        ]
        for answer in answers:
            problem(answer, 503, "DB801")
            assert answer.headers["retry-after"] == "5"


def test_a_database_of_a_newer_schema_is_told(client, settings):
    """It was migrated while the service ran."""
    with closing(sqlite3.connect(settings.data_dir / "tilecore.db")) as connection:
        connection.execute("update alembic_version set version_num = '9999'")
        connection.commit()
    body = problem(client.get("/readyz"), 503, "DB802")
    assert "9999" in body["detail"]
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 20_000 + b"]" * 20_000,
        b'{"kernel": "gemm", "problem": {"m": ' + b"9" * 5000 + b"}}",
        '{"kernel": "g\u00e9mm"}'.encode("latin-1"),
    ],
    ids=["deep", "long", "latin-1"],
)
def test_a_body_that_cannot_be_read_is_told_why(client, body):
    answer = client.post(
        "/v1/tuning-runs", content=body, headers={"content-type": "application/json"}
    )
    told = problem(answer, 422, "SV901")["detail"]
    assert "UTF-8, nested at most 100 deep, with integers of at most 4300" in told


NESTED = {
    "lists": lambda depth: b"[" * depth + b"]" * depth,
    "objects": lambda depth: b'{"t1":' * depth + b"1" + b"}" * depth,
}


@pytest.mark.parametrize("form", NESTED)
def test_what_is_nested_too_deep_is_told_on_every_route(client, form):
    """From some 500 to 946 levels on it was a fault of the service (SV905), by who read it."""
    for path, operations in client.app.openapi()["paths"].items():
        for method, operation in operations.items():
            if "application/json" not in operation.get("requestBody", {}).get("content", {}):
                continue
            address = re.sub(r"\{\w+\}", "1", path)
            for depth in (101, 300, 500, 650, 800, 946, 999, 5000):
                answer = client.request(
                    method, address, content=NESTED[form](depth),
                    headers={"content-type": "application/json"},
                )  # fmt: skip
                told = problem(answer, 422, "TC205" if path == "/v1/programs" else "SV901")
                if path != "/v1/programs":
                    assert "nested at most 100 deep" in told["detail"], (path, depth)


def test_a_body_may_be_nested_as_deep_as_is_said(client):
    t1 = {"ConfigurationSpace": {"TuningParameters": [{"Name": "a", "Values": [1]}]}}
    for depth, status in ((96, 201), (99, 201), (100, 422)):
        t1["Metadata"] = json.loads("[" * (depth - 1) + "]" * (depth - 1))  # in t1, in the body
        answer = client.post("/v1/studies", json={"name": "deep", "t1": t1})
        assert answer.status_code == status, (depth, answer.text)


@pytest.mark.parametrize("path", [*QUESTIONS, *BATCHES, "/v1/studies", "/v1/keys"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"kernel": "gemm", "kernel": "x"}',
        b' {"problem": {"m": 4, "n": 4, "m": 8}}',
        b'[{"a": 1, "a": 1}]',
    ],
)
def test_a_field_that_comes_twice_is_told(client, path, body):
    """The last one counted, silently."""
    told = problem(
        client.post(path, content=body, headers={"content-type": "application/json"}), 422, "SV901"
    )
    assert re.search(
        r"every field once, found member '(kernel|m|a)' twice in one object", told["detail"]
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("path", [*QUESTIONS, *BATCHES, "/v1/studies", "/v1/keys"])
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
def test_a_body_that_is_not_said_to_be_json_is_told_which_header_it_needs(client, path, kind):
    """What ``curl -d`` sends: "Input should be a valid dictionary" told nobody what to do."""
    headers = {} if kind is None else {"content-type": kind}
    answer = client.post(path, content=json.dumps(GEMM).encode(), headers=headers)
    told = problem(answer, 422, "SV901")
    expected = "expected the header `Content-Type: application/json`"
    assert told["detail"] == f"{expected}, found {kind or 'none'}"
    assert "curl" in told["hint"]


def test_a_database_that_hangs_is_told_and_takes_no_threads(settings, store):
    """Probes waited for as long as it hung, each with a thread."""
    ended = threading.Event()

    class Hanging(type(store.leader)):
        def current(self):
            ended.wait(60)
            return super().current()

    store.leader = Hanging(store.database)
    with TestClient(create_app(settings, store), raise_server_exceptions=False) as client:
        with ThreadPoolExecutor(6) as pool:
            began = time.monotonic()
            found = list(pool.map(lambda _: client.get("/readyz"), range(6)))
            took_s = time.monotonic() - began
            for answer in found:
                assert problem(answer, 503, "DB804")["detail"].endswith("not answered for 5 s")
                assert answer.headers["retry-after"] == "5"
        assert 5 <= took_s < 15
        ended.set()
        deadline = time.monotonic() + 20
        while client.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline


RUNS, STUDIES = "/v1/tuning-runs", "/v1/studies"
REFUSED = {  # what pydantic says of these named neither what was found nor what would do
    '{"kernel": "gemm", ': (RUNS, "/body/19: expected JSON, found at character 19: Expecting"),
    "[]": (RUNS, "/body: expected an object, found a list of 0"),
    "{}": (RUNS, "expected either kernel or program, found none"),
    json.dumps(GEMM | {"program": "0" * 32}): (RUNS, "kernel or program, found both"),
    json.dumps(GEMM | {"kernel": 5}): (RUNS, "/body/kernel: expected a text, found 5"),
    json.dumps(GEMM | {"threads": -1}): (RUNS, "threads: expected a number from 0 up, found -1"),
    json.dumps(GEMM | {"threads": "2"}): (RUNS, "threads: expected an integer, found '2'"),
    json.dumps(GEMM | {"max_trials": 10**9}): (RUNS, "up to 100000, found 1000000000"),
    json.dumps(GEMM | {"time_limit_s": 0}): (RUNS, "expected a number above 0, found 0"),
    json.dumps(GEMM | {"program": 'a\ud800"'}): (RUNS, "expected texts without NUL"),
    json.dumps(GEMM | {"program": "z" * 90}): (RUNS, "zz... (92 characters)"),
    json.dumps(GEMM | {"colour": 1}): (RUNS, "colour: expected a known field, found an unknown"),
    json.dumps({"parameters": {"a": [1]}}): (STUDIES, "/body/name: expected a value, found none"),
    json.dumps(STUDY | {"parameters": {"a": []}}): (STUDIES, "at least 1 of them, found 0"),
    json.dumps(STUDY | {"strategy": "luck"}): (STUDIES, "or 'exhaustive', found 'luck'"),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("body", REFUSED)
def test_what_was_expected_and_what_was_found(client, store, body):
    path, told = REFUSED[body]
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert told in problem(answer, 422, "SV901")["detail"]
    assert store.runs.list() == []


def test_times_and_numbers_of_an_address_say_what_was_found(client):
    for query, told in {
        "since=2026-11-28": "since: expected a time with its zone (2026-11-22T10:00:00Z), found '2",
        "m=x": "/query/m: expected an integer, found 'x'",
        "limit=0": "expected a number from 1 up, found '0'",
        "best=perhaps": "best: expected true or false, found 'perhaps'",
    }.items():
        assert told in problem(client.get(f"/v1/measurements?{query}"), 422, "SV901")["detail"]


def test_names_that_nothing_has_are_told(client):
    for path in ("tuning-runs", "measurements"):
        detail = problem(client.get(f"/v1/{path}?kernel=gem"), 404, "TC501")["detail"]
        assert "found 'gem'" in detail
    detail = problem(client.get("/v1/run-groups/zz"), 404, "DB809")["detail"]
    assert "the id of a group of tuning runs" in detail
    assert client.get("/v1/tuning-runs?kernel=program:0123").status_code == 200
