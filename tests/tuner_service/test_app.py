"""The REST service: what it answers, and that every error is a problem with a stable code."""

import json
import threading
import time
from contextlib import ExitStack

import httpx
import pytest

from db.errors import DatabaseUnreachable
from recommender.measurement import Toolchain
from tests.tuner_service.serving import TestClient, served
from tests.tuner_service.table_measurer import TableMeasurer
from tuner_service import wiring
from tuner_service.app import create_app
from tuner_service.coordinator.coordinator import Coordinator
from tuner_service.coordinator.run_driver import Limits
from tuner_service.coordinator.workplaces import HostWorkplace

GEMM = {"kernel": "gemm", "problem": {"m": 64, "n": 64, "k": 64, "dtype": "float32"}}


def coordinate(store):
    """Let a coordinator of this host work until nothing is open."""
    host = wiring.host_profile(store)
    toolchain: Toolchain = wiring.host_toolchain().on("cpu")
    Coordinator(
        store,
        toolchain=toolchain,
        workplace=HostWorkplace(host, lambda _: TableMeasurer(host, toolchain=toolchain)),
        limits=Limits(poll_s=0.01),
        until_idle=True,
    ).run()


def problem(response, status, code):
    body = response.json()
    assert response.status_code == status, body
    assert response.headers["content-type"] == "application/problem+json"
    assert (body["status"], body["code"]) == (status, code)
    assert body["type"] == f"urn:tilecore:error:{code}"
    assert body["detail"]
    assert body["instance"].startswith("/")
    return body


def test_a_recommendation_for_an_unmeasured_workload(client, unmeasured_source):
    body = client.post("/v1/recommendations", json=GEMM | {"top_k": 3}).json()
    ranks = body["recommendations"]
    assert [r["rank"] for r in ranks] == [1, 2, 3]
    first = ranks[0]
    assert first["source"] == unmeasured_source
    assert first["interval_us"][0] <= first["latency_us"] <= first["interval_us"][1]
    assert first["gflops"] == pytest.approx(2 * 64**3 / first["latency_us"] / 1e3)
    assert first["rationale"]
    assert len({json.dumps(r["config"]) for r in ranks}) == 3
    assert body["workload"]["problem"]["m"] == 64


HALF = {"kernel": "gemm", "problem": {"m": 512, "n": 4096, "k": 4096, "dtype": "float16"}}


def test_a_recommendation_for_a_gpu_that_is_not_here(client):
    body = client.post("/v1/recommendations", json=HALF | {"hardware": "h100"}).json()
    assert (body["hardware"], body["hardware_asked_for"]) == ("NVIDIA H100 80GB HBM3", None)
    first = body["recommendations"][0]
    assert set(first["config"]) == {"block_M", "block_N", "block_K", "num_stages", "threads"}
    refused = client.post("/v1/tuning-runs", json=HALF | {"hardware": "h100"})
    assert problem(refused, 422, "SV906")
    waiting = HALF | {"hardware": "h100", "wait_for_hardware": True}
    accepted = client.post("/v1/tuning-runs", json=waiting)
    assert (accepted.status_code, accepted.json()["state"]) == (202, "QUEUED")
    too_large = HALF | {"hardware": "emulated h100"}
    assert problem(client.post("/v1/tuning-runs", json=too_large), 422, "SV930")


def test_an_unknown_gpu_gets_what_its_like_would_get_with_less_confidence(client):
    known = client.post("/v1/recommendations", json=HALF | {"hardware": "h100-sxm"}).json()
    body = client.post("/v1/recommendations", json=HALF | {"hardware": "NVIDIA H100 NVL"}).json()
    assert body["hardware_asked_for"] == "NVIDIA H100 NVL"
    assert body["hardware"] == known["hardware"]
    first, same = body["recommendations"][0], known["recommendations"][0]
    assert first["config"] == same["config"]
    assert first["confidence"] < same["confidence"]
    assert first["rationale"].startswith("nobody knows NVIDIA H100 NVL")


def test_a_batch(client):
    other = GEMM | {"problem": {"M": 128, "N": 64, "K": 64}}
    body = client.post("/v1/recommendations:batch", json={"requests": [GEMM, other]}).json()
    assert [r["workload"]["problem"]["m"] for r in body["responses"]] == [64, 128]


def test_a_batch_fails_with_its_first_fault(client):
    wrong, unknown = (GEMM | {"problem": {"m": 64}}), (GEMM | {"kernel": "fft"})
    for first, code in ((wrong, "TC502"), (unknown, "TC501")):
        requests = [GEMM, first, GEMM | {"top_k": 2}, unknown, wrong]
        refused = client.post("/v1/recommendations:batch", json={"requests": requests})
        told = problem(refused, 422 if code == "TC502" else 404, code)
        codes = ["TC502", "TC501", "TC502"] if first is wrong else ["TC501", "TC501", "TC502"]
        assert [e["code"] for e in told["errors"]] == codes
        assert [e["pointer"] for e in told["errors"]] == [f"/body/requests/{i}" for i in (1, 3, 4)]
        assert "/body/requests/3: expected one of attention" in told["detail"]


def test_a_tuning_run_from_request_to_measured_recommendation(client, store):
    created = client.post("/v1/tuning-runs", json=GEMM | {"max_trials": 5})
    assert created.status_code == 202
    run = created.json()
    assert run["state"] == "QUEUED"
    url = created.headers["location"]
    assert client.get(url).json() == run
    coordinate(store)
    done = client.get(url).json()
    assert (done["state"], done["error"]) == ("SUCCEEDED", None)
    trials = client.get(f"{url}/trials").json()["items"]
    assert done["trials"] == {"OK": len(trials)}
    assert {t["state"] for t in trials} == {"done"}
    assert client.get(f"{url}/trials?state=pending").json()["items"] == []
    page = client.get(f"{url}/trials?limit=3").json()
    rest = client.get(f"{url}/trials?limit=1000&cursor={page['next_cursor']}").json()
    assert (page["items"] + rest["items"], rest["next_cursor"]) == (trials, None)
    problem(client.get(f"{url}/trials?state=done&cursor={page['next_cursor']}"), 422, "SV908")
    best = done["result"]["best"]
    first = client.post("/v1/recommendations", json=GEMM).json()["recommendations"][0]
    assert first["source"] == "measured"
    assert first["config"] == best["config"]
    assert first["latency_us"] == pytest.approx(best["latency_us"])
    listed = client.get("/v1/tuning-runs?state=SUCCEEDED&limit=1").json()
    assert [r["id"] for r in listed["items"]] == [run["id"]]


def test_events_stream_until_the_end_and_resume(client, store):
    url = client.post("/v1/tuning-runs", json=GEMM | {"max_trials": 3}).headers["location"]
    thread = threading.Thread(target=coordinate, args=(store,))
    thread.start()
    events = _events(client.get(f"{url}/events"))
    thread.join()
    kinds = [event["event"] for event in events]
    assert kinds[:2] == ["queued", "started"]
    assert kinds[-1] == "succeeded"
    assert kinds.count("trial") == len(client.get(f"{url}/trials").json()["items"])
    trial = json.loads(events[2]["data"])
    assert (trial["status"], trial["purpose"]) == ("OK", "default")
    middle = events[3]["id"]
    rest = _events(client.get(f"{url}/events", headers={"Last-Event-ID": middle}))
    assert rest == events[4:]
    ended = client.get(f"{url}/events", headers={"Last-Event-ID": events[-1]["id"]})
    assert (ended.status_code, ended.content) == (204, b"")  # else an EventSource asks for ever
    assert client.get(f"{url}/events").status_code == 200


def test_a_stream_outlives_an_outage_of_the_database(client, store):
    url = client.post("/v1/tuning-runs", json=GEMM | {"max_trials": 3}).headers["location"]
    coordinate(store)
    whole = _events(client.get(f"{url}/events"))
    away = iter([True, False, True, False])

    class Flaky(type(store.runs)):
        def events(self, *given, **more):
            if next(away, False):
                raise DatabaseUnreachable(url="here", reason="it restarts")
            return super().events(*given, **more)

    client.app.state.store.runs = Flaky(store.database)
    assert _events(client.get(f"{url}/events")) == whole


def test_no_more_streams_are_open_than_allowed(settings, store):
    """Each asks the database several times a second, for as long as somebody follows."""
    app = create_app(settings.model_copy(update={"max_streams": 2}), store)
    with served(app) as address, httpx.Client(base_url=address, timeout=20) as client:
        url = client.post("/v1/tuning-runs", json=GEMM).headers["location"]
        with ExitStack() as opened:
            followed = []
            for _ in range(2):
                stream = opened.enter_context(client.stream("GET", f"{url}/events"))
                followed.append(stream.iter_lines())
                assert next(followed[-1]).startswith("event: queued")
            with client.stream("GET", f"{url}/events") as refused:
                assert refused.status_code == 503
                refused.read()
            assert problem(refused, 503, "SV935")["hint"]
            assert refused.headers["retry-after"]
            assert client.get(url).status_code == 200
        client.post(f"{url}:cancel")
        deadline = time.monotonic() + 20
        while client.get(f"{url}/events").status_code != 200:
            assert time.monotonic() < deadline


def test_head_is_answered_as_get_without_a_body(settings, store):
    """A stream, too, which ends at once and gives its place back: this run waits for workers."""
    app = create_app(settings.model_copy(update={"max_streams": 1}), store)
    with served(app) as address, httpx.Client(base_url=address, timeout=20) as client:
        run = client.post("/v1/tuning-runs", json=GEMM).headers["location"]
        of_one_request = {"date", "x-request-id"}
        for path in ("/healthz", run, "/v1/kernels", "/v1/tuning-runs/none", "/dashboard/runs"):
            asked, given = client.head(path), client.get(path)
            assert (asked.status_code, asked.content) == (given.status_code, b"")
            differences = asked.headers.items() ^ given.headers.items()
            assert {name for name, _ in differences} <= of_one_request
        etag = client.get("/v1/kernels").headers["etag"]
        assert client.head("/v1/kernels", headers={"If-None-Match": etag}).status_code == 304
        assert client.head("/v1/recommendations").status_code == 405
        assert client.head(f"{run}/events").headers["content-type"].startswith("text/event")
        deadline = time.monotonic() + 20
        while True:
            with client.stream("GET", f"{run}/events") as stream:
                if stream.status_code == 200:
                    break
            assert time.monotonic() < deadline
        counted = client.get("/metrics").text
        counted = (
            'tilecore_request_seconds_count{method="HEAD",route="/v1/kernels",status="200"} 1.0'
        )
        assert counted in client.get("/metrics").text


def _events(response):
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = [b for b in response.text.split("\n\n") if "data:" in b]
    return [dict(line.split(": ", 1) for line in b.splitlines() if ": " in line) for b in blocks]


def test_the_tuning_log_can_be_filtered_and_paged(client, store):
    for m in (64, 32):
        body = GEMM | {"max_trials": 4, "problem": GEMM["problem"] | {"m": m}}
        client.post("/v1/tuning-runs", json=body)
    coordinate(store)
    total = store.count_measurements()
    seen, cursor = [], None
    while True:
        query = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = client.get("/v1/measurements", params=query).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == len(seen) == total
    few = client.get("/v1/measurements?kernel=gemm&m=32&protocol=confirm&status=OK&best=true")
    items = few.json()["items"]
    latencies = [item["latency_us"] for item in items]
    assert latencies == sorted(latencies)
    assert {(i["problem"]["m"], i["protocol"]) for i in items} == {(32, "confirm")}
    assert all(len(i["repeats_us"]) == 3 and len(i["reference_repeats_us"]) == 2 for i in items)
    assert client.get("/v1/measurements?hardware=host").json()["items"]
    assert client.get("/v1/measurements?status=WRONG_RESULT").json()["items"] == []
    run = client.get("/v1/tuning-runs").json()["items"][0]
    mine = client.get(f"/v1/measurements?run={run['id']}&limit=200").json()["items"]
    assert {i["run"] for i in mine} == {run["id"]}


def test_idempotency_keys(client):
    headers, body = {"Idempotency-Key": "once"}, GEMM | {"max_trials": 5}
    first = client.post("/v1/tuning-runs", json=body, headers=headers)
    again = client.post("/v1/tuning-runs", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"]
    for changed in ({"seed": 3}, {"priority": 3}, {"wait_for_hardware": True}):
        other = client.post("/v1/tuning-runs", json=body | changed, headers=headers)
        problem(other, 422, "DB807")


def test_cancel(client):
    url = client.post("/v1/tuning-runs", json=GEMM).headers["location"]
    assert client.post(f"{url}:cancel").json()["state"] == "CANCELLED"
    assert client.post(f"{url}:cancel").status_code == 202


def test_catalog_and_health(client, store):
    found = {kernel["name"]: kernel for kernel in client.get("/v1/kernels").json()}
    assert set(found) == {
        "attention", "attention_backward", "batched_gemm", "conv2d", "decode_attention",
        "dequant_gemm", "elementwise", "gemm", "gemm_epilogue", "grouped_gemm", "layer_norm",
        "linear_attention", "reduction", "rms_norm", "scaled_gemm", "softmax", "split_k_gemm",
    }  # fmt: skip
    gemm = found["gemm"]
    assert [f["name"] for f in gemm["fields"] if f["required"]] == ["m", "n", "k"]
    assert client.get("/v1/kernels/gemm").json() == gemm
    hardware = client.get("/v1/hardware").json()["items"]
    assert hardware[0]["is_host"]
    assert client.get(f"/v1/hardware/{hardware[0]['key']}").json() == hardware[0]
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json()["coordinator"] == "absent"
    store.leader.acquire("someone", 60)
    assert client.get("/readyz").json()["coordinator"] == "leading"


BAD_QUESTIONS = {
    "unknown kernel": (GEMM | {"kernel": "conv"}, 404, "TC501"),
    "unknown hardware": (GEMM | {"hardware": "z80"}, 404, "RC601"),
    "negative dimension": (GEMM | {"problem": {"m": -1, "n": 4, "k": 4}}, 422, "TC502"),
    "huge dimension": (GEMM | {"problem": {"m": 2**21, "n": 4, "k": 4}}, 422, "TC502"),
    "astronomic dimension": (GEMM | {"problem": {"m": 10**400, "n": 4, "k": 4}}, 422, "TC502"),
    "missing dimension": (GEMM | {"problem": {"m": 4, "n": 4}}, 422, "TC502"),
    "unknown field": (GEMM | {"problem": {"m": 4, "n": 4, "k": 4, "q": 1}}, 422, "TC502"),
    "dtype mismatch": (
        GEMM | {"problem": {"m": 4, "n": 4, "k": 4, "dtype": "int7"}},
        422,
        "TC502",
    ),
    "sums of another kind": (
        GEMM | {"problem": {"m": 4, "n": 4, "k": 4, "dtype": "float32", "accum_dtype": "int32"}},
        422,
        "TC502",
    ),
    "fractions for bytes": (
        GEMM | {"problem": {"m": 4, "n": 4, "k": 4, "dtype": "int8", "accum_dtype": "float32"}},
        422,
        "TC502",
    ),
    "text for a number": (GEMM | {"problem": {"m": "4", "n": 4, "k": 4}}, 422, "TC502"),
    "flag for a number": (GEMM | {"problem": {"m": True, "n": 4, "k": 4}}, 422, "TC502"),
    "fraction": (GEMM | {"problem": {"m": 4.5, "n": 4, "k": 4}}, 422, "SV901"),
    "list": (GEMM | {"problem": {"m": [4], "n": 4, "k": 4}}, 422, "SV901"),
    "extra member": (GEMM | {"colour": "red"}, 422, "SV901"),
    "threads": (GEMM | {"threads": 4000}, 422, "SV907"),
    "threads as text": (GEMM | {"threads": "1"}, 422, "SV901"),
    "no kernel": ({"problem": {"m": 4}}, 422, "SV901"),
    "not an object": ([1, 2], 422, "SV901"),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", BAD_QUESTIONS)
@pytest.mark.parametrize("path", ["/v1/recommendations", "/v1/tuning-runs"])
def test_bad_questions(client, store, path, name):
    body, status, code = BAD_QUESTIONS[name]
    problem(client.post(path, json=body), status, code)
    assert store.runs.list() == []


def test_a_whole_number_with_a_point_is_an_integer(client):
    body = GEMM | {"problem": {"m": 64.0, "n": 64, "k": 64}, "top_k": 1.0}
    assert client.post("/v1/recommendations", json=body).status_code == 200


def test_tuning_needs_a_device_that_is_here(client):
    other = next(h for h in client.get("/v1/hardware").json()["items"] if not h["offers_tuning"])
    body = GEMM | {"hardware": other["name"]}
    assert client.post("/v1/recommendations", json=body).status_code == 200
    problem(client.post("/v1/tuning-runs", json=body), 422, "SV906")


def test_other_errors_are_problems_too(client):
    problem(client.get("/nowhere"), 404, "SV902")
    problem(client.delete("/v1/tuning-runs"), 405, "SV903")
    problem(client.get("/v1/tuning-runs/none"), 404, "DB809")
    problem(client.get("/v1/tuning-runs/none/events"), 404, "DB809")
    problem(client.post("/v1/tuning-runs/none:cancel"), 404, "DB809")
    problem(client.get("/v1/measurements?limit=0"), 422, "SV901")
    problem(client.get("/v1/measurements?kernel=conv"), 404, "TC501")
    problem(client.get("/v1/measurements?cursor=abc"), 422, "SV908")
    problem(client.get("/v1/measurements?cursor=%F0%9F%98%80"), 422, "SV901")
    problem(client.get("/v1/tuning-runs?state=ODD"), 422, "SV901")
    broken = client.post(
        "/v1/recommendations", content=b"{", headers={"content-type": "application/json"}
    )
    assert problem(broken, 422, "SV901")["errors"]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("method", "address"),
    [
        ("GET", "/v1/measurements?kernal=gemm"),
        ("GET", "/v1/measurements/export?format=csv&limit=3"),
        ("GET", "/v1/tuning-runs?STATE=QUEUED"),
        ("GET", "/v1/kernels/gemm?x="),
        ("POST", "/v1/recommendations?top_k=1"),
    ],
)
def test_a_misspelt_parameter_is_told(client, method, address):
    refused = client.request(method, address, json=GEMM if method == "POST" else None)
    told = problem(refused, 422, "SV901")["detail"]
    assert "found an unknown parameter" in told
    known = client.get("/v1/measurements?kernel=gemm&limit=1&best=true")
    assert known.status_code == 200


def test_a_parameter_that_comes_twice_is_told(client):
    """The last one won, and the other filter was dropped."""
    told = problem(client.get("/v1/measurements?m=1&n=2&m=3"), 422, "SV901")["detail"]
    assert told == "/query/m: expected it once, found it several times"


def test_a_cursor_belongs_to_its_query(client, store):
    client.post("/v1/tuning-runs", json=GEMM | {"max_trials": 4})
    coordinate(store)
    cursor = client.get("/v1/measurements?limit=1").json()["next_cursor"]
    assert client.get(f"/v1/measurements?limit=1&cursor={cursor}").status_code == 200
    problem(client.get(f"/v1/measurements?limit=1&m=64&cursor={cursor}"), 422, "SV908")


def test_long_bodies_are_refused_announced_or_not(client, settings):
    long = b" " * (settings.max_body_bytes + 1)
    problem(client.post("/v1/recommendations", content=long), 413, "SV904")
    pieces = (b" " * 1000 for _ in range(settings.max_body_bytes // 1000 + 2))
    problem(client.post("/v1/recommendations", content=pieces), 413, "SV904")


def test_a_locked_database_is_503(settings, store, database_lock):
    app = create_app(settings.model_copy(update={"database_timeout_s": 0.1}))
    with TestClient(app, raise_server_exceptions=False) as client, database_lock():
        response = client.post("/v1/tuning-runs", json=GEMM)
        problem(response, 503, "DB801")
        assert response.headers["retry-after"] == "5"


def test_a_fault_of_ours_is_a_problem_without_a_trace(client, store):
    client.app.state.store = None
    body = problem(client.get("/v1/tuning-runs"), 500, "SV905")
    client.app.state.store = store
    assert "NoneType" not in json.dumps(body)


def test_openapi_documents_errors_and_examples(client):
    document = client.get("/openapi.json").json()
    post = document["paths"]["/v1/recommendations"]["post"]["responses"]
    assert "application/problem+json" in post["422"]["content"]
    question = document["components"]["schemas"]["RecommendationRequest"]["properties"]
    assert question["problem"]["examples"] == [{"m": 1000, "n": 1024, "k": 512, "dtype": "float32"}]
    assert "text/event-stream" in json.dumps(document["paths"]["/v1/tuning-runs/{run_id}/events"])
