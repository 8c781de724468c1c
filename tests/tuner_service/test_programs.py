"""Programs of users by REST: sent as data, asked about, tuned, looked up."""

import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import uvicorn

from recommender.hardware import load_profile
from recommender.portable_tracing import portable
from tests.recommender import user_programs as programs
from tests.tilecore.document_faults import damaged, generator
from tests.tuner_service.serving import TestClient
from tests.tuner_service.table_measurer import TableMeasurer
from tests.tuner_service.test_app import GEMM, coordinate, problem
from tests.tuner_service.test_cli import cli  # noqa: F401
from tests.tuner_service.test_program_advice import installed  # noqa: F401
from tilecore.advice import question_of
from tilecore.codegen.nvrtc import load_nvrtc
from tilecore.errors import ProgramError, TypeMismatch
from tuner_service import questions, wiring
from tuner_service.answers.answers import PROGRAMS
from tuner_service.app import create_app
from tuner_service.client import ServiceClient
from tuner_service.coordinator.coordinator import Coordinator
from tuner_service.coordinator.run_driver import Limits
from tuner_service.coordinator.workplaces import HostWorkplace
from tuner_service.errors import Refused, ServiceUnreachable
from tuner_service.routes import programs as program_routes
from tuner_service.routes import run_groups
from workers.pool import LocalPool

FILE = Path(programs.__file__)
SIZES = {"M": 192, "N": 256, "K": 320}
JSON = {"Content-Type": "application/json"}


def as_data(program=programs.matmul, sizes=SIZES, **given):
    return portable(question_of(program, (), {**sizes, **given}), load_profile("avx512"))


@pytest.fixture(scope="module")
def matmul():
    return as_data()


@pytest.fixture
def sent(client, matmul):
    """The digest of a stored program."""
    response = client.post("/v1/programs", content=matmul.to_bytes(), headers=JSON)
    assert response.status_code == 201, response.text
    return response.json()["digest"]


@pytest.fixture
def url(settings, store):
    """A service on a free port."""
    app = create_app(settings, store)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def test_a_program_is_stored_once_and_found(client, matmul, sent):
    assert sent == matmul.digest
    again = client.post("/v1/programs", content=json.dumps(matmul.to_json(), indent=2))
    assert (again.status_code, again.json()["digest"]) == (200, sent)
    assert again.headers["location"] == f"/v1/programs/{sent}"
    found = client.get(f"/v1/programs/{sent}").json()
    assert found["document"] == matmul.to_json()
    assert (found["name"], found["sizes"], found["variants"]) == ("matmul", ["K", "M", "N"], 1)
    assert found["can_be_tuned"]
    assert {k["name"]: k["default"] for k in found["knobs"]}["block_M"] == 128
    listed = client.get("/v1/programs").json()["items"]
    assert [p["digest"] for p in listed] == [sent]


def test_a_recommendation_for_a_program(client, sent):
    asked = {"program": sent, "problem": SIZES, "hardware": "h100", "top_k": 3}
    body = client.post("/v1/recommendations", json=asked).json()
    local = programs.matmul.question((), SIZES, target="h100", top_k=3)
    from tuner_service.advice import advise_for

    expected = advise_for(local, load_profile("h100"))
    assert [r["config"] for r in body["recommendations"]] == [dict(r.config) for r in expected]
    assert body["legal"] == expected.legal
    assert body["recommendations"][0]["source"] == "analytic"
    assert body["workload"]["kernel"] == f"program:{sent}"
    fixed = client.post("/v1/recommendations", json=asked | {"fixed": {"block_N": 64}}).json()
    assert {r["config"]["block_N"] for r in fixed["recommendations"]} == {64}
    batch = {"requests": [asked, {"kernel": "gemm", "problem": {"m": 64, "n": 64, "k": 64}}]}
    both = client.post("/v1/recommendations:batch", json=batch).json()["responses"]
    assert both[0] == body


def test_a_run_of_a_program_and_what_it_leaves_in_the_log(client, store, sent):
    asked = {"program": sent, "problem": SIZES, "max_trials": 5}
    queued = client.post("/v1/tuning-runs", json=asked, headers={"Idempotency-Key": "one"})
    assert queued.status_code == 202, queued.text
    again = client.post("/v1/tuning-runs", json=asked, headers={"Idempotency-Key": "one"})
    assert (again.status_code, again.json()["id"]) == (200, queued.json()["id"])
    coordinate(store)
    run = client.get(queued.headers["location"]).json()
    assert (run["state"], run["program_digest"]) == ("SUCCEEDED", sent)
    assert run["result"]["best"]["gflops"] > 0
    assert run["result"]["default"]["config"]["block_M"] == 128
    log = client.get("/v1/measurements", params={"program": sent, "status": "OK"}).json()["items"]
    assert len(log) >= 5
    assert {m["kernel"] for m in log} == {f"program:{sent}"}
    shape = {"kernel": f"program:{sent}", "m": 192}
    assert client.get("/v1/measurements", params=shape).json()["items"]

    best = run["result"]["best"]["config"]
    body = {"program": sent, "problem": SIZES}
    first = client.post("/v1/recommendations", json=body).json()["recommendations"][0]
    assert (first["source"], first["config"]) == ("measured", best)
    other = next(m["config"] for m in log if m["config"]["block_M"] != best["block_M"])
    fixed = client.post("/v1/recommendations", json=body | {"fixed": {"block_M": other["block_M"]}})
    kept = fixed.json()["recommendations"][0]
    assert (kept["source"], kept["config"]["block_M"]) == ("measured", other["block_M"])
    near = {"program": sent, "problem": {**SIZES, "M": 256}}
    second = client.post("/v1/recommendations", json=near).json()["recommendations"]
    assert "nearest" in {r["source"] for r in second}
    near = {"kernel": f"program:{sent}", "near": "M=200,N=256,K=320", "best_per": "workload"}
    found = client.get("/v1/measurements", params=near).json()["items"]
    assert found[0]["config"] == best
    assert found[0]["distance"] < 0.1
    told = [t for t in client.get("/metrics").text.splitlines() if "tilecore_measurements{" in t]
    assert [t.split("kernel=")[1][:9] for t in told] == ['"program"']
    partial = client.get(f"/v1/tuning-runs/{run['id']}/result").json()
    assert partial["result"]["best"]["config"] == best


def test_a_run_of_a_program_gets_beyond_a_thinned_space(client, store):
    """Of more than 200,000 combinations a run only ever saw every other value."""
    by_8 = tuple(range(8, 521, 8))
    space = dict.fromkeys(("block_M", "block_N", "block_K"), by_8)
    asked = question_of(programs.matmul, (), SIZES, space=space)
    data = portable(asked, load_profile("avx512"))
    assert client.post("/v1/programs", content=data.to_bytes(), headers=JSON).status_code == 201
    asked = {"program": data.digest, "problem": SIZES}
    notes = client.post("/v1/recommendations", json=asked).json()["notes"]
    assert any(note.startswith("looked at ") for note in notes)
    run = client.post("/v1/tuning-runs", json=asked | {"max_trials": 40})
    assert run.status_code == 202, run.text
    coordinate(store)
    found = client.get(run.headers["location"]).json()
    assert found["state"] == "SUCCEEDED", found["error"]
    desk, record, host = (
        wiring.program_desk(),
        store.programs.get(data.digest),
        wiring.host_profile(store),
    )
    table = desk.table(record.digest, record.document, SIZES, host, wiring.compile_target(host))
    tried = [t.config for t in store.trials.of_run(store.runs.get(found["id"]).id)]
    assert set(tried) - set(table.configs)


def test_a_program_is_compiled_checked_and_timed_by_sandboxed_workers(client, store, settings):
    data = as_data(programs.scaled, {"N": 4096, "factor": 3.0})
    digest = client.post("/v1/programs", content=data.to_bytes(), headers=JSON).json()["digest"]
    asked = {"program": digest, "problem": {"N": 4096}, "max_trials": 2}
    run = client.post("/v1/tuning-runs", json=asked).json()
    host = wiring.host_profile(store)
    Coordinator(
        store, toolchain=wiring.host_toolchain(), until_idle=True, limits=Limits(poll_s=0.05),
        workplace=HostWorkplace(host, lambda epoch: wiring.make_measurer(settings, host, epoch)),
    ).run()  # fmt: skip
    found = client.get(f"/v1/tuning-runs/{run['id']}").json()
    assert found["state"] == "SUCCEEDED", found["error"]
    log = client.get("/v1/measurements", params={"program": digest}).json()["items"]
    screened = [m for m in log if m["protocol"] == "screen"]
    confirmed = [m for m in log if m["protocol"] == "confirm"]
    assert {m["status"] for m in screened} == {"OK"}
    assert confirmed
    assert {m["status"] for m in confirmed} <= {"OK", "UNSTABLE"}  # as busy as the machine is
    ends = {m["protocol"] for m in log if m["status"] == "OK"}
    assert found["result"]["best"]["protocol"] == min(ends)  # a confirmed time, if there is one


@pytest.mark.exhaustive
@pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")
def test_a_program_is_tuned_for_an_emulated_gpu(client, store, settings):
    sizes = {"M": 64, "N": 48, "K": 40}
    digest = as_data(sizes=sizes).digest
    data = as_data(sizes=sizes).to_bytes()
    assert client.post("/v1/programs", content=data, headers=JSON).status_code == 201
    asked = {"program": digest, "problem": sizes, "max_trials": 3, "hardware": "emulated h200"}
    response = client.post("/v1/tuning-runs", json=asked)
    assert response.status_code == 202, response.text
    host, device = wiring.host_profile(store), load_profile("emulated h200")
    Coordinator(
        store, toolchain=wiring.host_toolchain(), until_idle=True, limits=Limits(poll_s=0.05),
        workplace=HostWorkplace(
            host, lambda _: TableMeasurer(), [device],
            lambda hardware, _: LocalPool(
                hardware, artifact_dir=settings.artifact_dir, compile_workers=1
            ),
        ),
    ).run()  # fmt: skip
    found = client.get(f"/v1/tuning-runs/{response.json()['id']}").json()
    assert found["state"] == "SUCCEEDED", found["error"]
    log = client.get("/v1/measurements", params={"program": digest}).json()["items"]
    assert {m["status"] for m in log} == {"OK"}, [m["detail"] for m in log]
    assert {m["hardware"] for m in log} == {"emulated NVIDIA H200"}
    assert {m["protocol"] for m in log} == {"screen", "confirm"}
    assert len({json.dumps(m["config"], sort_keys=True) for m in log}) == 3


def broken(change):
    document = as_data().to_json()
    change(document["variants"][0]["program"])
    return json.dumps(document)


BAD = {
    "no JSON": ("{", 422, "TC205", "JSON"),
    "no document": ("[]", 422, "TC205", "an object"),
    "too long": (" " * (1 << 21), 413, "SV904", "1048576"),
    "too deep": ("[" * 50_000, 422, "TC205", "nesting"),
    "an unknown node": (
        broken(lambda p: p["body"]["stmts"].append({"node": "exec"})), 422, "TC205",
        "/variants/0/program/body/stmts/1/node",
    ),
    "a fault of the program": (
        broken(lambda p: p["body"]["stmts"][0]["body"]["stmts"].pop(0)), 422, "TC",
        "user_programs.py>:",
    ),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("case", BAD)
def test_bad_programs(client, case):
    text, status, code, detail = BAD[case]
    response = client.post("/v1/programs", content=text, headers=JSON)
    body = response.json()
    assert (response.status_code, body["code"][: len(code)]) == (status, code)
    assert detail in body["detail"]


def test_damaged_programs_never_are_a_fault_of_the_service(client, matmul):
    seen = Counter()
    whole = matmul.to_json()
    for seed in range(70):
        document = damaged(whole, generator(seed))
        response = client.post("/v1/programs", content=json.dumps(document))
        seen[response.status_code] += 1
        if response.status_code not in (200, 201):
            assert response.json()["code"].startswith("TC"), response.text
            continue
        asked = {"program": response.json()["digest"], "problem": SIZES, "hardware": "h100"}
        answer = client.post("/v1/recommendations", json=asked)
        seen["answered", answer.status_code] += 1
        assert answer.status_code in (200, 422), answer.text
    assert set(seen) <= {200, 201, 422, ("answered", 200), ("answered", 422)}
    assert seen[422] > 40
    assert seen["answered", 200] > 0


def test_bad_questions_about_programs(client, sent):
    gemm = {"kernel": "gemm", "problem": {"m": 8, "n": 8, "k": 8}}
    ask = {"program": sent, "problem": SIZES}
    cases = [
        ({"problem": SIZES}, 422, "SV901"),
        (gemm | {"program": sent}, 422, "SV901"),
        (gemm | {"fixed": {"block_M": 64}}, 422, "SV901"),
        (ask | {"program": "f" * 32}, 404, "DB827"),
        (ask | {"program": "../etc"}, 422, "SV901"),
        (ask | {"problem": {"M": 8}}, 422, "TC502"),
        (ask | {"problem": {**SIZES, "M": -1}}, 422, "TC502"),
        (ask | {"fixed": {"block_Q": 64}}, 422, "TC303"),
        (ask | {"fixed": {"block_M": 1 << 20}}, 422, "RC602"),
        (ask | {"hardware": "z80"}, 404, "RC601"),
        (ask | {"threads": 4096}, 422, "SV907"),
    ]
    for body, status, code in cases:
        for path in ("/v1/recommendations", "/v1/tuning-runs"):
            problem(client.post(path, json=body), status, code)
    problem(client.post("/v1/tuning-runs", json=ask | {"hardware": "h100"}), 422, "SV906")
    problem(client.get(f"/v1/programs/{'f' * 32}"), 404, "DB827")


def test_who_waits_for_a_look_at_a_program_holds_no_thread(client, sent, matmul, monkeypatch):
    """Forty who waited took every thread there is: nothing else was answered."""
    inside, leave, desk = threading.Semaphore(0), threading.Event(), wiring.program_desk()

    class Held:
        def read(self, document):
            inside.release()
            assert leave.wait(120)
            return desk.read(document)

    for module in (program_routes, questions):
        monkeypatch.setattr(module, "program_desk", Held)
    run = {"program": sent, "problem": SIZES}
    kinds = (
        lambda: client.post("/v1/programs", content=matmul.to_bytes()),
        lambda: client.get(f"/v1/programs/{sent}"),
        lambda: client.post("/v1/tuning-runs", json=run),
        lambda: client.post("/v1/tuning-runs:batch", json={"runs": [GEMM, run]}),
    )
    with ThreadPoolExecutor(49) as pool:
        waiting = [pool.submit(kinds[i % len(kinds)]) for i in range(48)]
        try:
            for _ in range(PROGRAMS):
                assert inside.acquire(timeout=60)
            for path in ("/v1/tuning-runs", "/v1/programs"):
                assert pool.submit(client.get, path).result(timeout=20).status_code == 200
            assert not inside.acquire(timeout=0.2)
        finally:
            leave.set()
        assert {answer.result().status_code for answer in waiting} <= {200, 202}


def test_all_programs_of_a_batch_have_a_limit_of_time(client, store, sent, monkeypatch):
    monkeypatch.setattr(run_groups, "LIMIT_S", -1.0)
    run = {"program": sent, "problem": SIZES}
    body = problem(client.post("/v1/tuning-runs:batch", json={"runs": [GEMM, run]}), 422, "WK710")
    assert "with all others" in body["detail"]
    assert store.runs.list() == []
    assert client.post("/v1/tuning-runs:batch", json={"runs": [GEMM, GEMM]}).status_code == 202


def test_roles(settings, store, matmul):
    app = create_app(settings.model_copy(update={"auth": "required"}), store)
    client = TestClient(app, raise_server_exceptions=False)
    keys = {role: {"Authorization": f"Bearer {store.keys.create(role, role)[1]}"}
            for role in ("read", "tune")}  # fmt: skip
    send = {"content": matmul.to_bytes()}
    problem(client.post("/v1/programs", **send), 401, "SV920")
    problem(client.post("/v1/programs", **send, headers=keys["read"]), 403, "SV921")
    made = client.post("/v1/programs", **send, headers=keys["tune"])
    assert made.status_code == 201
    assert made.json()["created_by"] == "tune"  # the name of the key
    ask = {"program": matmul.digest, "problem": SIZES}
    assert client.post("/v1/recommendations", json=ask, headers=keys["read"]).status_code == 200


# --- who sends them ------------------------------------------------------------------------------


def test_a_client_traces_here_and_asks_there(installed, url, store):  # noqa: F811
    found = programs.matmul.recommend(**SIZES, target="h100", top_k=3, service=url)
    local = programs.matmul.recommend(**SIZES, target="h100", top_k=3)
    assert [r.config for r in found] == [r.config for r in local]
    assert found[0].time_s == pytest.approx(local[0].time_s)
    assert found.work_flop == pytest.approx(local.work_flop)
    assert store.programs.list()[0].name == "matmul"
    called = programs.dynamic.recommend(512, target="h100", service=url, problem={"M": 4096})
    assert called.legal > 1
    with pytest.raises(Refused, match="TC502: M: expected an integer"):
        programs.dynamic.recommend(512, target="h100", service=url)
    with pytest.raises(ProgramError, match="missing"):
        programs.faulty.recommend(512, service=url)
    with pytest.raises(TypeMismatch, match="beside `service`"):
        programs.dynamic.recommend(512, problem={"M": 4096})


def test_services_that_are_none(installed):  # noqa: F811
    told = {
        "http://127.0.0.1:9": "SV917.*expected a tilecore service",
        "nonsense": "SV936.*expected the address of a service",
        "http://[": "SV936.*expected the address of a service",
    }
    for url, match in told.items():
        with pytest.raises(ServiceUnreachable, match=match):
            programs.matmul.recommend(**SIZES, service=url)


def test_command_lines_of_who_asks_a_service(cli, url, store):  # noqa: F811
    sizes = ["--m", "192", "--n", "256", "--k", "320"]
    status, out, err = cli("recommend", f"{FILE}:matmul", *sizes, "--service", url, "--json",
                           "--fixed", "block_K=64", "--hardware", "h100")  # fmt: skip
    assert status == 0, err
    answer = json.loads(out)
    assert "block_K" not in answer["recommendations"][0]["config"]
    assert answer["recommendations"][0]["source"] == "analytic"
    stop = threading.Event()
    worker = threading.Thread(target=lambda: _until(stop, lambda: coordinate(store)))
    worker.start()
    try:
        status, out, err = cli("tune", f"{FILE}:matmul", *sizes, "--trials", "3", "--service", url)
    finally:
        stop.set()
        worker.join()
    assert status == 0, err
    assert "best found" in out
    assert "M=192" in out
    status, _, err = cli("tune", f"{FILE}:nothing", "--service", url)
    assert (status, err[:12]) == (2, "error: SV913")
    status, _, err = cli("tune", f"{FILE}:matmul", *sizes, "--target", "h200")  # not on the CPU
    assert (status, err[:12], "NVIDIA H200" in err) == (2, "error: SV906", True)


def test_kernels_of_the_library_by_a_service(cli, url, store, monkeypatch):  # noqa: F811
    """Programs and dispatch tables of a service were to be had here, and no kernel of its own."""
    asked = ["gemm", "--m", "64", "--n", "64", "--k", "64", "--service", url]
    status, out, err = cli("recommend", *asked, "--top-k", "2")
    assert (status, err) == (0, "")
    assert f"gemm 64x64x64 float32 on {wiring.detected_host().name}, by {url}" in out
    assert "2. block_K=" in out
    status, out, _ = cli("recommend", *asked, "--hardware", "h100", "--threads", "0", "--json")
    told = json.loads(out)
    assert (len(told), set(told[0]["config"]) > {"block_M", "num_stages"}) == (5, True)
    with monkeypatch.context() as patch:  # `--wait` came to nothing
        patch.setattr(ServiceClient, "follow", lambda self, run: [run | {"state": "FAILED"}])
        status, _, err = cli("tune", *asked, "--target", "h200", "--wait")
    assert (status, err[:12]) == (2, "error: SV911")
    assert store.runs.list()[0].state == "QUEUED"
    stop = threading.Event()
    worker = threading.Thread(target=lambda: _until(stop, lambda: coordinate(store)))
    worker.start()
    try:
        status, out, err = cli("tune", *asked, "--trials", "3", "--priority", "7")
    finally:
        stop.set()
        worker.join()
    assert (status, err) == (0, "")
    run, waits = store.runs.list()
    assert waits.hardware.name == "NVIDIA H200"
    assert (run.priority, run.spec["max_trials"]) == (7, 3)
    assert "best found" in out
    assert f"records: run {run.public_id} at {url}" in out
    for command, code in (
        (["recommend", *asked, "--set", "m=-1"], "TC502"),
        (["tune", *asked, "--file", "x"], "SV901"),
        (["tune", *asked, "--target", "h200"], "SV918"),
        (["recommend", "conv", *asked[1:]], "SV918"),
    ):  # fmt: skip
        status, _, err = cli(*command)
        assert (status, err[:12]) == (2, f"error: {code}")


def test_a_program_tuned_on_this_machine_is_known_the_next_time(cli, client, store):  # noqa: F811
    host = wiring.detected_host()
    store.save_hardware(type(host)(**{**host.as_dict(), "source": "measured 2026-11-20"}))
    data = portable(question_of(programs.matmul, (), SIZES), wiring.host_profile(store))
    digest = client.post("/v1/programs", content=data.to_bytes()).json()["digest"]
    asked = {"program": digest, "problem": SIZES, "max_trials": 4}
    run = client.post("/v1/tuning-runs", json=asked).json()["id"]
    coordinate(store)
    sizes = ["--m", "192", "--n", "256", "--k", "320"]
    status, out, err = cli("tune", f"{FILE}:matmul", *sizes, "--trials", "4")
    assert (status, err) == (0, "")
    assert "answered from the database" in out
    assert f"records: run {run}" in out
    assert f"program {digest[:12]} K=320 M=192 N=256" in out


def _until(stop, step):
    while not stop.is_set():
        step()
        stop.wait(0.1)


def test_the_key_of_a_client(settings, store, matmul):
    app = create_app(settings.model_copy(update={"auth": "required"}), store)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        where = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        question = question_of(programs.matmul, (), SIZES, target="h100")
        with ServiceClient(where) as client, pytest.raises(Refused, match="SV920"):
            client.recommend(question)
        with ServiceClient(where, store.keys.create("a", "tune")[1]) as client:
            assert client.recommend(question)[0].config
    finally:
        server.should_exit = True
        thread.join()
