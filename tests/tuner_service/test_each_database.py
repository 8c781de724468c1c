"""What the REST service answers on SQLite and on PostgreSQL, and what many at once do to it."""

import hashlib
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from db.records import MeasurementQuery
from recommender.external import ExternalSpace
from recommender.hardware import HardwareProfile
from tests.tuner_service.serving import TestClient, served
from tests.tuner_service.test_app import GEMM, coordinate, problem
from tests.tuner_service.test_studies import STUDY
from tilecore.tile_config import digest
from tuner_service import wiring
from tuner_service.app import create_app
from tuner_service.hardware import all_hardware
from tuner_service.routes.context import encode_cursor

AT_ONCE = 16
RUN = GEMM | {"max_trials": 4}


@pytest.fixture
def app(each_database):
    changes = {"answer_processes": 0, "access_log": "off", "database_timeout_s": 30.0}
    return create_app(each_database.model_copy(update=changes))


@pytest.fixture
def client(app):
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def shape(m, **changes):
    return RUN | {"problem": GEMM["problem"] | {"m": m}} | changes


def pages(client, address, limit):
    """Return the items of all pages of a list."""
    found, cursor = [], ""
    while True:
        page = client.get(f"{address}limit={limit}{cursor}").json()
        assert len(page["items"]) <= limit
        found += page["items"]
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


def test_runs_log_and_best(client, app):
    store = app.state.store
    made = client.post("/v1/tuning-runs", json=RUN, headers={"Idempotency-Key": "one"})
    assert (made.status_code, made.json()["state"]) == (202, "QUEUED")
    again = client.post("/v1/tuning-runs", json=RUN, headers={"Idempotency-Key": "one"})
    assert (again.status_code, again.json()["id"]) == (200, made.json()["id"])
    problem(
        client.post("/v1/tuning-runs", json=shape(32), headers={"Idempotency-Key": "one"}),
        422, "DB807",
    )  # fmt: skip
    group = {"runs": [shape(128, priority=20), shape(256)]}
    queued = client.post("/v1/tuning-runs:batch", json=group).json()
    url = made.headers["location"]
    assert client.post(f"{url}:pause").json()["state"] == "PAUSED"
    assert client.post(f"{url}:resume").json()["state"] == "QUEUED"
    assert client.patch(url, json={"priority": 30}).json()["priority"] == 30
    coordinate(store)
    run = client.get(url).json()
    assert run["state"] == "SUCCEEDED", run
    trials = pages(client, f"{url}/trials?", 3)
    assert [t["sequence"] for t in trials] == list(range(sum(run["trials"].values())))
    assert client.get(f"{url}/result").json()["is_final"]
    events = client.get(f"{url}/events").text
    assert "event: queued" in events
    assert "event: succeeded" in events
    assert client.post(f"{url}:extend", json={"trials": 2}).status_code == 202
    assert client.post(f"{url}:cancel").json()["state"] == "CANCELLED"
    runs = pages(client, "/v1/tuning-runs?", 1)
    assert [r["workload"]["problem"]["m"] for r in runs] == [256, 128, 64]
    assert {r["group"] for r in runs[:2]} == {queued["id"]}
    log = pages(client, "/v1/measurements?", 7)
    assert len(log) == store.count_measurements() == len({m["id"] for m in log})
    times = [m["latency_us"] for m in pages(client, "/v1/measurements?m=64&best=true&", 2)]
    assert times == sorted(times)
    winners = client.get("/v1/measurements?best_per=workload").json()["items"]
    assert {w["problem"]["m"] for w in winners} == {64, 128, 256}
    near = client.get(
        "/v1/measurements?kernel=gemm&near=m=120,n=64,k=64&best_per=workload&near_count=2"
    ).json()["items"]
    assert [n["problem"]["m"] for n in near] == [128, 64]
    exported = client.get("/v1/measurements/export?format=csv").text
    assert len(exported.splitlines()) == 1 + len(log)
    best = client.post("/v1/recommendations", json=GEMM).json()["recommendations"][0]
    assert best["source"] == "measured"
    assert client.get("/readyz").json()["status"] == "ready"


def test_keys_and_nodes(client, app):
    store = app.state.store
    made = client.post("/v1/keys", json={"name": "ci", "role": "tune", "expires_in_days": 1}).json()
    mine = {"Authorization": f"Bearer {made['key']}"}
    problem(client.post("/v1/keys", json={"name": "x"}, headers=mine), 403, "SV921")
    for name in "ab":
        client.post("/v1/keys", json={"name": name})
    assert [key["name"] for key in pages(client, "/v1/keys?", 2)] == ["ci", "a", "b"]
    assert client.post(f"/v1/keys/{made['prefix']}:revoke").json()["revoked_at"]
    epoch, host = store.leader.acquire("me", 60), wiring.detected_host()
    for number in range(3):
        store.nodes.join(f"n{number}", name="one", hardware=host, devices=2, epoch=epoch)
    assert [n["key"] for n in pages(client, "/v1/nodes?", 2)] == ["n2", "n1", "n0"]
    assert client.post("/v1/nodes/n1:drain").json()["state"] == "draining"
    assert 'state="draining"} 2.0' in client.get("/metrics").text
    store.nodes.see(["n0", "n2"], [], epoch)
    assert [n["key"] for n in pages(client, "/v1/nodes?", 2)] == ["n2", "n0"]
    problem(client.post("/v1/nodes/n1:drain"), 409, "DB811")
    devices = pages(client, "/v1/hardware?", 4)
    assert devices[0]["is_host"]
    assert len({d["key"] for d in devices}) == len(devices) > 8


def send_at_once(app, path, bodies, key):
    """Send requests with one key at the same moment; return the answers."""
    gate = threading.Barrier(len(bodies))

    def send(address, body):
        with httpx.Client(base_url=address, timeout=60) as client:
            client.get("/healthz")  # connected
            gate.wait(30)
            return client.post(path, json=body, headers={"Idempotency-Key": key})

    with served(app) as address, ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(send, [address] * len(bodies), bodies))


def test_one_key_sent_often_at_once_makes_one_run(app):
    answers = send_at_once(app, "/v1/tuning-runs", [RUN] * AT_ONCE, "one")
    assert Counter(a.status_code for a in answers) == {202: 1, 200: AT_ONCE - 1}
    assert len({a.json()["id"] for a in answers}) == 1
    (run,) = app.state.store.runs.list()
    assert run.public_id == answers[0].json()["id"]


def test_one_key_sent_at_once_with_other_bodies_makes_the_first_run(app):
    bodies = [shape(16 * (1 + i)) for i in range(AT_ONCE)]
    answers = send_at_once(app, "/v1/tuning-runs", bodies, "other")
    assert Counter(a.status_code for a in answers) == {202: 1, 422: AT_ONCE - 1}
    for answer in answers:
        if answer.status_code == 422:
            problem(answer, 422, "DB807")
    (run,) = app.state.store.runs.list()
    (won,) = [a.json() for a in answers if a.status_code == 202]
    assert (run.public_id, run.workload.as_dict()) == (won["id"], won["workload"])


def test_one_key_sent_often_at_once_makes_one_api_key_and_tells_it_once(app):
    body = {"name": "ci", "role": "tune"}
    answers = send_at_once(app, "/v1/keys", [body] * AT_ONCE, "one")
    assert Counter(a.status_code for a in answers) == {201: 1, 409: AT_ONCE - 1}
    (key,) = app.state.store.keys.list()
    (made,) = [a.json() for a in answers if a.status_code == 201]
    assert app.state.store.keys.find(made["key"]) == key
    for answer in answers:
        if answer.status_code == 409:
            assert key.prefix in problem(answer, 409, "DB830")["detail"]
            secret = made["key"].removeprefix(key.prefix)
            assert secret not in answer.text
            assert hashlib.sha256(made["key"].encode()).hexdigest() not in answer.text
    with TestClient(app, raise_server_exceptions=False) as client:
        headers = {"Idempotency-Key": "one"}
        other = client.post("/v1/keys", json=body | {"role": "read"}, headers=headers)
        problem(other, 422, "DB807")
        anew = client.post("/v1/keys", json=body, headers={"Idempotency-Key": "two"})
        assert anew.status_code == 201
        assert client.post("/v1/keys", json=body).status_code == 201
        # the keys of requests of another kind are others
        assert client.post("/v1/tuning-runs", json=RUN, headers=headers).status_code == 202


@pytest.mark.few(1)
def test_forged_cursors_are_refused_by_every_list(client, app):
    """PostgreSQL was asked for ids that its INTEGER cannot hold: a fault of the service (SV905)."""
    store = app.state.store
    run = client.post("/v1/tuning-runs", json=RUN).json()["id"]
    coordinate(store)
    store.keys.create("a", "read")
    epoch = store.leader.acquire("me", 60)
    store.nodes.join("n1", name="one", hardware=wiring.detected_host(), devices=1, epoch=epoch)
    store.models.save(
        kernel="gemm", family="cpu", blob=b"m", feature_schema="s", metrics={}, trained_on=1,
        promote=True,
    )  # fmt: skip
    study = client.post("/v1/studies", json=STUDY).json()["id"]
    lists = {
        "/v1/keys": "keys", "/v1/nodes": "nodes:False", "/v1/models": "models:None",
        "/v1/programs": "programs:None", "/v1/studies": "studies:None",
        "/v1/tuning-runs": "runs:None:None:None:None",
        "/v1/tuning-runs/{run_id}/trials": f"trials:{run}:None",
        "/v1/studies/{study_id}/trials": f"study:{study}",
        "/v1/hardware": "hardware", "/v1/database/removed": "removed",
        "/v1/measurements": digest(repr(MeasurementQuery()), 16),
        "/v1/measurements?best=true": digest(repr(MeasurementQuery(best_first=True)), 16),
        "/v1/measurements?best_per=workload": digest(repr(MeasurementQuery(winners=True)), 16),
    }  # fmt: skip
    paged = {
        path
        for path, operations in client.app.openapi()["paths"].items()
        if any(p["name"] == "cursor" for p in operations.get("get", {}).get("parameters", ()))
    }
    assert paged == {path.partition("?")[0] for path in lists}
    for path, query in lists.items():
        parts = 2 if "measurements" in path else 1
        address, _, asked = path.format(run_id=run, study_id=study).partition("?")
        by_name = address in ("/v1/hardware", "/v1/database/removed")  # the item has to be there
        for key in (1, 1.5, -1, 2**31 - 1, 2**31, 2**40, 2**61, 1e18, 1e300, 2**70):
            cursor = encode_cursor(query, [key] * parts)
            answer = client.get(f"{address}?{asked}&cursor={cursor}".replace("?&", "?"))
            if key < 2**31 and not by_name:
                assert answer.status_code == 200, (path, key, answer.text)
            elif answer.status_code != 200:
                problem(answer, 422, "SV908")


def test_a_cursor_goes_on_where_its_item_is_and_not_where_it_was(client, app):
    first = client.get("/v1/hardware?limit=5").json()
    store = app.state.store
    host = wiring.detected_host().as_dict()
    store.save_hardware(HardwareProfile(**{**host, "name": "A new CPU"}))  # comes before the rest
    rest = pages(client, f"/v1/hardware?cursor={first['next_cursor']}&", 50)
    names = [d["name"] for d in (*first["items"], *rest)]
    assert len(set(names)) == len(names) == len(all_hardware(store)) - 1
    for path in ("/v1/hardware", "/v1/keys", "/v1/nodes", "/v1/database/removed"):
        problem(client.get(f"{path}?cursor={encode_cursor('runs', [1])}"), 422, "SV908")
        problem(client.get(f"{path}?limit=201"), 422, "SV901")
    gone = encode_cursor("hardware", [1])
    problem(client.get(f"/v1/hardware?cursor={gone}"), 422, "SV908")


@pytest.mark.exhaustive
def test_a_study_of_billions_of_configurations(client, app):
    """More than 200,000 were refused. Of so many a sample and what is around the best is seen."""
    names, sizes = "abcdefghi", [2**i for i in range(13)]
    body = {
        "name": "large", "max_trials": 48, "conditions": ["a * b <= 65536", "c * d <= 65536"],
        "parameters": dict.fromkeys(names, sizes), "default": dict.fromkeys(names, 1),
    }  # fmt: skip

    def time_of(config):
        return 1.0 + sum(abs(np.log2(config[name]) - 4 - i / 2) for i, name in enumerate(names))

    made = client.post("/v1/studies", json=body)
    assert made.status_code == 201, made.text
    study, url = made.json(), made.headers["location"]
    assert study["space_size"] == 133**2 * 13**5 > 2**31
    assert 50_000 < study["sampled"] <= 2**16
    assert (study["space_size_is_estimate"], study["notes"]) == (False, [])
    elsewhere = body["default"] | {"c": 16, "i": 4096}
    told = [{"config": elsewhere, "repeats_us": [time_of(elsewhere)]}]
    added = client.post(f"{url}/trials:add", json={"worker": "w", "trials": told})
    assert added.status_code == 200, added.text
    broken = [{"config": elsewhere | {"a": 4096, "b": 32}, "failure": "illegal"}]
    refused = client.post(f"{url}/trials:add", json={"worker": "w", "trials": broken})
    assert "one of the space" in problem(refused, 422, "RC610")["detail"]
    asked = study_to_its_end(client, url, time_of)
    assert asked[0] == body["default"]
    assert len(asked) == len({tuple(config.values()) for config in asked}) == 48
    assert all(c["a"] * c["b"] <= 65536 and c["c"] * c["d"] <= 65536 for c in asked)
    space = ExternalSpace(dict.fromkeys(names, tuple(sizes)), tuple(body["conditions"]))
    best = client.get(url).json()["best"]["config"]
    assert best == min(asked, key=time_of)
    assert not np.isin([space.find(config) for config in asked[16:]], space.sample).all()
    again = client.post("/v1/studies", json=body | {"problem": {"n": 2}, "max_trials": 6})
    assert again.json()["learns_from"] == [study["id"]]
    warm = study_to_its_end(client, again.headers["location"], time_of)
    assert min(map(time_of, warm)) <= min(map(time_of, asked))
    page = client.get(f"/dashboard/studies/{study['id']}").text
    assert "of them looked at" in page


def study_to_its_end(client, url, time_of):
    """Return what was asked for, in that order, and tell its times."""
    asked = []
    while given := client.post(f"{url}/trials:suggest", json={"worker": "w"}).json()["items"]:
        for trial in given:
            asked.append(trial["config"])
            body = {"worker": "w", "repeats_us": [time_of(trial["config"])]}
            told = client.post(f"{url}/trials/{trial['id']}:complete", json=body)
            assert told.status_code == 200, told.text
    return asked
