"""Dispatch tables for programs that are sent as data: by REST, by client and by command line."""

import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import tilecore as tilelang
from recommender.dispatch.question import DispatchQuestion
from tests.recommender import user_programs as programs
from tests.tuner_service.serving import LOCAL
from tests.tuner_service.test_app import GEMM, coordinate, problem
from tests.tuner_service.test_cli import cli  # noqa: F401
from tests.tuner_service.test_dispatch_programs import doubled_rows, here, product_is_right  # noqa: F401
from tests.tuner_service.test_programs import as_data, url  # noqa: F401
from tilecore.dispatch_reader import load_table, read_table
from tilecore.dispatcher import Dispatcher, StaleTable
from tuner_service.answers import answers
from tuner_service.client import ServiceClient
from tuner_service.dispatch import sent as dispatch_sent
from tuner_service.dispatch.programs import dispatch_program
from tuner_service.errors import Refused

MATMUL = f"{Path(programs.__file__)}:matmul"
FLOAT = {"dtype": "float32"}


@pytest.fixture(scope="module")
def matmul():
    return as_data(sizes={"M": 300, "N": 72, "K": 40}, **FLOAT)


@pytest.fixture
def asked(client, matmul):
    """A question about a stored program."""
    stored = client.post("/v1/programs", content=matmul.to_bytes())
    assert stored.status_code == 201, stored.text
    return {
        "program": stored.json()["digest"], "problem": {"N": 72, "K": 40},
        "sizes": {"M": "1:300"}, "samples": 5,
    }  # fmt: skip


def test_a_table_of_a_program_by_rest_is_run_by_its_function(client, asked):
    body = client.post("/v1/dispatch-tables", json=asked)
    assert body.status_code == 200, body.text
    table = read_table(body.json())
    assert (table.kernel, table.dims, table.span) == ("matmul", ("M",), ((1, 300),))
    assert (dict(table.problem), table.program_digest) == ({"N": 72, "K": 40}, "")
    assert {s.source for s in table.shapes} == {"analytic"}

    @tilelang.jit(out_idx=-1)
    def of_floats(M, N, K, block_M, block_N, block_K, num_stages, threads):
        knobs = {"block_M": block_M, "block_N": block_N, "block_K": block_K}
        return programs.matmul.program(
            M, N, K, **knobs, num_stages=num_stages, threads=threads, **FLOAT
        )

    run = Dispatcher(table, program=of_floats)
    rng = np.random.default_rng(31)
    for m in (1, 7, 65, 300, 333):
        product_is_right(run, m, rng)
    again = client.post("/v1/dispatch-tables", json=asked)
    assert again.content == body.content  # from memory


def test_settled_knobs_and_counted_shapes(client, asked):
    fixed = client.post("/v1/dispatch-tables", json=asked | {"fixed": {"block_N": 64}}).json()
    assert {c["block_N"] for c in read_table(fixed).configs} == {64}
    shapes = [{"sizes": {"M": 8, "N": 72}, "weight": 3}, {"sizes": {"m": 100, "N": 30}}]
    counted = asked | {"sizes": {}, "problem": {"K": 40}, "shapes": shapes}
    table = read_table(client.post("/v1/dispatch-tables", json=counted).json())
    assert table.dims == ("M", "N")
    assert {s.shape: s.weight for s in table.shapes} == {(8, 72): 0.75, (100, 30): 0.25}
    assert dict(table.problem) == {"K": 40}


def test_a_table_for_a_gpu_that_is_not_here(client, asked):
    body = client.post("/v1/dispatch-tables", json=asked | {"hardware": "h100", "samples": 3})
    table = read_table(body.json())
    assert (table.hardware, table.target) == ("NVIDIA H100 80GB HBM3", "h100")


def test_what_was_measured_of_a_program_is_what_its_table_rests_on(client, asked, store):
    run = {k: asked[k] for k in ("program", "problem")}
    for m in (16, 256):
        body = run | {"problem": {**run["problem"], "M": m}, "max_trials": 4}
        assert client.post("/v1/tuning-runs", json=body).status_code == 202
    coordinate(store)
    table = read_table(
        client.post("/v1/dispatch-tables", json=asked | {"sizes": {"M": [16, 256]}}).json()
    )
    assert table.measured_share() == pytest.approx(1.0)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"problem": {"N": 72}}, 422, "TC502"),
        ({"problem": {"N": 72, "K": 40, "z": 1}}, 422, "TC502"),
        ({"problem": {"N": -72, "K": 40}}, 422, "TC502"),
        ({"problem": {"N": "72", "K": 40}}, 422, "TC502"),
        ({"sizes": {"Q": "1:4"}}, 422, "TC502"), ({"sizes": {"M": "0:4"}}, 422, "RC611"),
        ({"sizes": {"M": "1:4", "m": "1:8"}}, 422, "RC611"), ({"sizes": {}}, 422, "SV901"),
        ({"sizes": {"M": "1:9999"}, "samples": 33}, 422, "RC611"),
        ({"fixed": {"block_Q": 8}}, 422, "TC303"), ({"fixed": {"block_M": 1 << 20}}, 422, "RC602"),
        ({"kernel": "gemm"}, 422, "SV901"), ({"program": None}, 422, "SV901"),
        ({"program": "f" * 32}, 404, "DB827"), ({"program": "../etc"}, 422, "SV901"),
        ({"hardware": "abacus"}, 404, "RC601"), ({"threads": 4000}, 422, "SV907"),
    ],
)  # fmt: skip
def test_bad_requests_are_problems_with_a_code(client, asked, changes, status, code):
    assert problem(client.post("/v1/dispatch-tables", json=asked | changes), status, code)


def test_knobs_of_a_library_kernel_cannot_be_settled(client):
    body = {"kernel": "gemm", "problem": {"n": 64, "k": 64}, "sizes": {"m": "1:8"}}
    refused = client.post("/v1/dispatch-tables", json=body | {"fixed": {"block_M": 64}})
    assert problem(refused, 422, "SV901")


def test_all_shapes_together_have_a_limit_of_time(client, asked, monkeypatch):
    monkeypatch.setattr(dispatch_sent, "LIMIT_S", 0.0)
    slow = client.post("/v1/dispatch-tables", json=asked | {"sizes": {"M": [33, 35]}})
    assert problem(slow, 422, "WK710")


def test_kernels_are_answered_while_programs_are_looked_at(client, asked, monkeypatch):
    """A table takes seconds: the third one at a time waits, then is told to come again."""
    inside, leave = threading.Barrier(answers.PROGRAMS + 1), threading.Event()
    candidates = DispatchQuestion.candidates

    def held(question, shape, learned):
        inside.wait(300)
        assert leave.wait(300)
        return candidates(question, shape, learned)

    monkeypatch.setattr(DispatchQuestion, "candidates", held)
    monkeypatch.setattr(answers, "WAIT_S", 0.2)
    bodies = [asked | {"sizes": {"M": [size, 200]}} for size in (3, 5, 9)]
    found = []
    threads = [
        threading.Thread(
            target=lambda b=body: found.append(client.post("/v1/dispatch-tables", json=b))
        )
        for body in bodies[: answers.PROGRAMS]
    ]
    for thread in threads:
        thread.start()
    try:
        inside.wait(300)
        refused = client.post("/v1/dispatch-tables", json=bodies[-1])
        assert problem(refused, 503, "WK711")
        assert refused.headers["retry-after"] == "5"
        assert client.post("/v1/recommendations", json=GEMM).status_code == 200
    finally:
        monkeypatch.setattr(DispatchQuestion, "candidates", candidates)
        inside.reset()
        leave.set()
        for thread in threads:
            thread.join()
    assert len(found) == answers.PROGRAMS


# --- who sends them ------------------------------------------------------------------------------


def test_a_client_gets_the_table_that_this_machine_would_make(here, url, store):  # noqa: F811
    sizes = {"M": "16:256"}
    given = {"N": 72, "K": 40, "samples": 3, **FLOAT}
    there = dispatch_program(programs.matmul, sizes, service=url, **given)
    local = dispatch_program(programs.matmul, sizes, **given)
    assert there.to_json() | {"created_at": ""} == local.to_json() | {"created_at": ""}
    assert [p.name for p in store.programs.list()] == ["matmul"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", StaleTable)
        run = Dispatcher(there, program=programs.matmul)
    product_is_right(run, 91, np.random.default_rng(32))


def test_dynamic_axes_by_a_service(here, url):  # noqa: F811
    table = dispatch_program(doubled_rows, {"rows": [5, 64]}, N=48, service=url)
    a = np.random.default_rng(33).standard_normal((19, 48)).astype(np.float32)
    b = np.empty_like(a)
    Dispatcher(table, program=doubled_rows)(a, b)
    np.testing.assert_allclose(b, a.astype(np.float64) * 2 + 1, rtol=1e-6)


def test_command_lines_of_who_asks_a_service(cli, url, tmp_path):  # noqa: F811
    path = tmp_path / "table.json"
    arguments = ["--n", "72", "--k", "40", "--m", "1:64", "--samples", "3", "--service", url]
    float32 = ["--set", "dtype=float32"]
    status, shown, said = cli("dispatch", MATMUL, *arguments, *float32, "--output", str(path))
    assert status == 0, said
    assert "0% of the calls rest on measurements" in shown
    table = load_table(path)
    assert dict(table.problem) == {"N": 72, "K": 40, "dtype": "float32"}
    assert Dispatcher(path, program=programs.matmul).doubts == ()
    assert cli("dispatch", "gemm", *arguments, "--output", str(path))[0] == 0
    assert load_table(path).kernel == "gemm"
    for more, code in (
        (["--hardware", "abacus"], "SV918"), (["--set", "q=1"], "TC502"),
    ):  # fmt: skip
        status, _, said = cli("dispatch", MATMUL, *arguments, *more)
        assert (status, code in said, "Traceback" in said) == (2, True, False), said


def test_a_service_refuses_with_its_code(client, matmul):
    with ServiceClient(f"http://{LOCAL}") as service:
        service._http = client
        with pytest.raises(Refused, match="TC502: K"):
            service.dispatch_table_of(matmul, {"N": 72}, {"M": "1:8"})
