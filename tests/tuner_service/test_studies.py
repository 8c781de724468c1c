"""Tuning somebody's own kernel over REST: they measure, the service says what next."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import event, update

from db.service_models import StudyRow
from recommender.analytic import estimate
from recommender.hardware import load_profile
from recommender.recorded import RecordedSpace
from recommender.space import SearchSpace
from tests.recommender import user_programs
from tests.tuner_service.serving import TestClient
from tests.tuner_service.test_app import problem
from tests.tuner_service.test_programs import as_data
from tilecore import kernels
from tuner_service.app import create_app

DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "benchmark_hub"
STUDY = {
    "name": "my matmul",
    "parameters": {"BM": [32, 64, 128], "BN": [32, 64, 128], "stages": [2, 3], "order": ["a", "b"]},
    "conditions": ["(BM + BN) * stages <= 512", "order == 'a' or BM >= BN"],
    "default": {"BM": 64, "BN": 64, "stages": 2, "order": "a"},
    "max_trials": 20,
}


def ask(client, url, count=1, worker="w1", **more):
    answer = client.post(f"{url}/trials:suggest", json={"worker": worker, "count": count, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


def tell(client, url, trial, worker="w1", **what):
    return client.post(f"{url}/trials/{trial['id']}:complete", json={"worker": worker, **what})


def time_of(config):
    return 10.0 + abs(config["BM"] - 128) + abs(config["BN"] - 64) + config["stages"]


def test_a_study_from_its_default_to_its_best(client):
    made = client.post("/v1/studies", json=STUDY)
    assert made.status_code == 201
    url, study = made.headers["location"], made.json()
    assert (study["state"], study["best"], study["created_by"]) == ("OPEN", None, "anonymous")
    assert 20 < study["space_size"] < 36
    first = ask(client, url)
    assert first[0]["config"] == STUDY["default"]
    seen = []
    while trials := ask(client, url, count=4):
        for trial in trials:
            config = trial["config"]
            seen.append(json.dumps(config))
            assert (config["BM"] + config["BN"]) * config["stages"] <= 512
            told = tell(client, url, trial, repeats_us=[time_of(config), 9999.0, 1.0])
            assert told.json()["latency_us"] == pytest.approx(time_of(config))
    assert len(seen) == len(set(seen)) == 20
    done = client.get(url).json()
    assert done["trials"] == {"ok": 20}
    fastest = min(map(time_of, map(json.loads, seen)))
    assert done["best"]["latency_us"] == pytest.approx(fastest)
    assert fastest < time_of(STUDY["default"])
    listed = client.get("/v1/studies").json()["items"]
    assert [s["id"] for s in listed] == [study["id"]]
    first_page = client.get(f"{url}/trials?limit=15").json()
    rest = client.get(f"{url}/trials?limit=15&cursor={first_page['next_cursor']}").json()
    assert len(first_page["items"]) + len(rest["items"]) == 20
    assert rest["next_cursor"] is None


def test_a_worker_that_comes_back_gets_its_trials_again(client):
    url = client.post("/v1/studies", json=STUDY).headers["location"]
    held = ask(client, url, count=3)
    again = ask(client, url, count=2)
    assert [t["id"] for t in again] == [t["id"] for t in held[:2]]
    others = ask(client, url, count=3, worker="w2")
    assert not {t["id"] for t in others} & {t["id"] for t in held}
    problem(tell(client, url, others[0], worker="w1", repeats_us=[1.0]), 409, "DB824")


def test_many_workers_never_measure_the_same(client):
    url = client.post("/v1/studies", json=STUDY).headers["location"]
    given = []

    def work(worker):
        while trials := ask(client, url, count=2, worker=worker):
            for trial in trials:
                given.append(trial["id"])
                tell(client, url, trial, worker, repeats_us=[time_of(trial["config"])])

    threads = [threading.Thread(target=work, args=(f"w{i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given) == len(set(given)) == 20


def test_failures_are_learned_from(client):
    body = STUDY | {"max_trials": 12, "default": None}
    url = client.post("/v1/studies", json=body).headers["location"]
    for trial in ask(client, url, count=12):
        told = tell(client, url, trial, failure="wrong result")
        assert (told.json()["state"], told.json()["detail"]) == ("failed", "wrong result")
    done = client.get(url).json()
    assert (done["trials"], done["best"]) == ({"failed": 12}, None)


def test_a_recorded_kernel_is_tuned_through_rest(client):
    """A T1 document of Kernel Tuner's; the times are those recorded on an A100."""
    body, times, knobs = recorded("A100")
    made = client.post("/v1/studies", json=body)
    assert made.status_code == 201, made.text
    url = made.headers["location"]
    assert made.json()["space_size"] == len(times)
    shares = run_study(client, url, times, knobs, 48)
    best = client.get(url).json()["best"]
    assert best["latency_us"] == min(t for t, share in times.values() if share == max(shares))
    assert max(shares) > shares[0]  # of the default, which was measured first


def recorded(device):
    """Return the request of a study of a recorded kernel, and the times on a device by config."""
    document = json.loads((DATA / "raw" / "T1_convolution_milo.json").read_text())
    space = RecordedSpace.load(DATA / "csv" / f"convolution_milo__{device}.csv.gz")
    times = {
        tuple(map(float, c)): (None if np.isnan(t) else t * 1e6, share)
        for c, t, share in zip(space.configs, space.time_s, space.speed, strict=True)
    }
    t1 = {"ConfigurationSpace": document["ConfigurationSpace"]}
    body = {"name": "conv", "t1": t1, "max_trials": 48, "hardware": f"NVIDIA {device}"}
    return body, times, space.knobs


def run_study(client, url, times, knobs, trials, worker="w1"):
    """Measure some trials; return the shares of the best speed in the order asked for."""
    shares = []
    while len(shares) < trials:
        for trial in ask(client, url, min(8, trials - len(shares)), worker):
            time_us, share = times[tuple(float(trial["config"][k]) for k in knobs)]
            what = {"repeats_us": [time_us]} if time_us else {"failure": "fails"}
            tell(client, url, trial, worker, **what)
            shares.append(share)
    return shares


def test_a_study_begins_with_what_was_fast_in_earlier_ones(client, settings, store):
    body, times, knobs = recorded("A4000")
    known = client.post("/v1/studies", json=body)
    assert known.json()["learns_from"] == []
    run_study(client, known.headers["location"], times, knobs, 40)
    body, times, knobs = recorded("A100")
    cold = client.post("/v1/studies", json=body | {"warm_start": False})
    warm = client.post("/v1/studies", json=body)
    other = client.post("/v1/studies", json=body | {"name": "another conv"})
    random = client.post("/v1/studies", json=body | {"strategy": "random"})
    assert [s.json()["learns_from"] for s in (cold, warm, other, random)] == [
        [], [known.json()["id"]], [], [],
    ]  # fmt: skip
    cold = run_study(client, cold.headers["location"], times, knobs, 5)
    url = warm.headers["location"]
    found = run_study(client, url, times, knobs, 5)
    assert found[0] == cold[0]  # the default of the document
    assert max(found) > max(cold)
    # What is told later, and a service that starts anew, change nothing.
    twin = client.post("/v1/studies", json=body).headers["location"]
    assert client.get(twin).json()["learns_from"] == [known.json()["id"]]
    body, times_there, knobs = recorded("A4000")
    run_study(client, known.headers["location"], times_there, knobs, 8)
    with TestClient(create_app(settings, store), raise_server_exceptions=False) as again:
        assert run_study(again, twin, times, knobs, 5) == found


def test_a_study_of_the_same_device_begins_with_the_winner(client):
    body = STUDY | {"hardware": "my board", "default": None}
    url = client.post("/v1/studies", json=body).headers["location"]
    for _ in range(20):
        for trial in ask(client, url):
            tell(client, url, trial, repeats_us=[time_of(trial["config"])])
    best = client.get(url).json()["best"]["config"]
    again = client.post("/v1/studies", json=body | {"seed": 7}).headers["location"]
    assert best in [trial["config"] for trial in ask(client, again, count=4)]


def test_listed_configurations(client):
    listed = [{"tile": tile, "warps": tile // 16} for tile in (16, 32, 64, 128)]
    body = {"name": "listed", "configurations": listed, "default": listed[2]}
    made = client.post("/v1/studies", json=body)
    assert (made.status_code, made.json()["space_size"]) == (201, 4)
    found = [trial["config"] for trial in ask(client, made.headers["location"], count=64)]
    assert found[0] == listed[2]
    assert sorted(found, key=lambda config: config["tile"]) == listed


def t1_of(**parameter):
    return {"name": "x", "t1": {"TuningParameters": [{"Name": "a", **parameter}]}}


BAD = {
    "no space": ({"name": "x"}, "SV901"),
    "two spaces": (STUDY | {"t1": {}}, "SV901"),
    "no T1": ({"name": "x", "t1": {"a": 1}}, "RC610"),
    "code": (STUDY | {"conditions": ["__import__('os').system('true')"]}, "RC610"),
    "default outside": (STUDY | {"default": {"BM": 1}}, "RC610"),
    "listed with conditions": (
        {"name": "x", "configurations": [{"a": 1}], "conditions": ["a > 0"]},
        "SV901",
    ),
    "listed unlike": ({"name": "x", "configurations": [{"a": 1}, {"b": 1}]}, "RC610"),
    "listed twice": ({"name": "x", "configurations": [{"a": 1}, {"a": 1}]}, "RC610"),
    "none listed": ({"name": "x", "configurations": []}, "SV901"),
    "threads": (STUDY | {"threads": 2}, "SV901"),
    "empty": (STUDY | {"conditions": ["BM < 0"], "default": None}, "RC610"),
    "huge": ({"name": "x", "parameters": {f"p{i}": list(range(99)) for i in range(10)}}, "RC610"),
    "nested": ({"name": "x", "parameters": {"p": [[1]]}}, "SV901"),
    "values too deep": (t1_of(Values="-" * 5_000 + "1"), "RC610"),
    "values far too deep": (t1_of(Values="-" * 60_000 + "1"), "RC610"),
    "a value beyond all": (t1_of(Values=[10**400]), "RC610"),
    "a text too long": (t1_of(Values=["x" * 1025, "y"]), "RC610"),
    "a number beyond all": (
        STUDY | {"conditions": [f"BM < {'9' * 400}"], "default": None},
        "RC610",
    ),
    "infinite": ({"name": "x", "parameters": {"p": ["Infinity"]}, "max_trials": 0}, "SV901"),
    "strategy": (STUDY | {"strategy": "magic"}, "SV901"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BAD)
def test_bad_studies(client, store, name):
    body, code = BAD[name]
    problem(client.post("/v1/studies", json=body), 422, code)
    assert store.studies.list() == []


def test_bad_answers_and_closed_studies(client):
    url = client.post("/v1/studies", json=STUDY).headers["location"]
    (trial,) = ask(client, url)
    problem(tell(client, url, trial), 422, "SV901")
    problem(tell(client, url, trial, repeats_us=[1.0], failure="both"), 422, "SV901")
    for wrong in (-1.0, 0, 1e-300, 9e-5, True, "5", 1e400, None):
        body = json.dumps({"worker": "w1", "repeats_us": [4.0, wrong]}).encode()
        path, headers = f"{url}/trials/{trial['id']}:complete", {"content-type": "application/json"}
        problem(client.post(path, content=body, headers=headers), 422, "SV901")
    problem(tell(client, url, {"id": 999}, repeats_us=[1.0]), 404, "DB823")
    problem(client.get("/v1/studies/none"), 404, "DB821")
    assert client.post(f"{url}:close").json()["state"] == "CLOSED"
    asked = client.post(f"{url}/trials:suggest", json={"worker": "w1"})
    problem(asked, 409, "DB822")
    assert tell(client, url, trial, repeats_us=[1.0]).status_code == 200


def test_a_repeated_key_is_the_same_study(client):
    headers = {"Idempotency-Key": "once"}
    first = client.post("/v1/studies", json=STUDY, headers=headers)
    again = client.post("/v1/studies", json=STUDY, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    other = client.post("/v1/studies", json=STUDY | {"seed": 1}, headers=headers)
    problem(other, 422, "DB807")


def test_studies_and_programs_are_found_by_who_made_them(settings, store):
    """Runs named the key, studies and programs its prefix."""
    app = create_app(settings.model_copy(update={"auth": "required"}), store)
    client = TestClient(app, raise_server_exceptions=False)
    alice, bob = (
        {"Authorization": f"Bearer {store.keys.create(name, 'tune')[1]}"}
        for name in ("alice", "bob")
    )
    for who, name in ((alice, "first"), (bob, "second"), (alice, "third")):
        made = client.post("/v1/studies", json=STUDY | {"name": name}, headers=who)
        assert made.status_code == 201
    for who, factor in ((alice, 2.0), (bob, 3.0)):
        program = as_data(user_programs.scaled, {"N": 640, "factor": factor})
        assert client.post("/v1/programs", content=program.to_bytes(), headers=who).is_success

    def items(path):
        answer = client.get(path, headers=bob)
        assert answer.status_code == 200, answer.text
        return answer.json()["items"]

    assert [s["created_by"] for s in items("/v1/studies")] == ["alice", "bob", "alice"]
    assert [s["name"] for s in items("/v1/studies?created_by=alice")] == ["third", "first"]
    assert items("/v1/studies?created_by=carol") == []
    assert [p["created_by"] for p in items("/v1/programs?created_by=bob")] == ["bob"]
    page = client.get("/v1/studies?created_by=alice&limit=1", headers=bob).json()
    rest = items(f"/v1/studies?created_by=alice&limit=1&cursor={page['next_cursor']}")
    assert [s["name"] for s in rest] == ["first"]
    other = client.get(f"/v1/studies?created_by=bob&cursor={page['next_cursor']}", headers=bob)
    problem(other, 422, "SV908")


KERNEL = {
    "name": "our gemm",
    "kernel": "gemm",
    "problem": {"M": 4096, "n": 4096, "k": 4096, "dtype": "float16"},
    "hardware": "h200",
    "max_trials": 24,
}


def time_on_h200(config):
    """Anybody's times: the service knows nothing of how they come about."""
    return 100.0 + abs(config["block_M"] - 128) + abs(config["block_N"] - 256) + config["threads"]


def test_a_kernel_of_the_library_is_measured_by_outside_workers(client, settings):
    """No node offers the device: a worker in any language measures on one."""
    made = client.post("/v1/studies", json=KERNEL)
    assert made.status_code == 201, made.json()
    url, study = made.headers["location"], made.json()
    assert (study["kernel"], study["problem"]["m"]) == ("gemm", 4096)
    assert study["hardware"] == "NVIDIA H200"
    space = SearchSpace.build(
        kernels.get("gemm").on("cuda"),
        kernels.get("gemm").parse_problem(KERNEL["problem"]),
        load_profile("h200"),
    )
    assert study["space_size"] == len(space)
    (first,) = ask(client, url)
    assert first["config"] == dict(kernels.get("gemm").on("cuda").default_config("cuda").items_)
    told = [first]
    tell(client, url, first, repeats_us=[time_on_h200(first["config"])])
    with TestClient(create_app(settings)) as restarted:  # the space is made again, and the same
        while trials := ask(restarted, url, count=5):
            for trial in trials:
                assert space.contains(trial["config"])
                tell(restarted, url, trial, repeats_us=[time_on_h200(trial["config"])])
            told += trials
    assert len({json.dumps(t["config"], sort_keys=True) for t in told}) == len(told) == 24
    best = client.get(url).json()["best"]["latency_us"]
    assert best == pytest.approx(min(time_on_h200(t["config"]) for t in told))
    assert best < time_on_h200(first["config"])
    # the model's choices, not any: what is expected to be slow is not looked at first
    expected = estimate(space).time_s
    early = [expected[space.index(t["config"])] for t in told[1:5]]
    assert max(early) < np.median(expected)


def test_a_default_outside_of_the_space_is_measured_first(client):
    body = KERNEL | {"problem": {"m": 96, "n": 96, "k": 64}, "hardware": "x86-64-avx512"}
    url = client.post("/v1/studies", json=body | {"max_trials": 3}).headers["location"]
    trials = ask(client, url, count=3)
    default = kernels.get("gemm").on("cpu").default_config("cpu")
    assert trials[0]["config"] == dict(default.items_)
    for trial in trials:
        tell(client, url, trial, repeats_us=[5.0])
    assert client.get(url).json()["trials"] == {"ok": 3}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"kernel": "fft"}, 404, "TC501"),
        ({"problem": {"m": 4}}, 422, "TC502"),
        ({"problem": None}, 422, "TC502"),
        ({"hardware": "h2000"}, 404, "RC601"),
        ({"threads": 5000}, 422, "SV901"),
        ({"threads": 900}, 422, "SV907"),
        ({"parameters": {"a": [1]}}, 422, "SV901"),
        ({"conditions": ["block_M > 3"]}, 422, "SV901"),
        ({"default": {"block_M": 64}}, 422, "SV901"),
        ({"kernel": None, "parameters": {"a": [1]}, "threads": 1}, 422, "SV901"),
    ],
)
def test_bad_studies_of_library_kernels(client, store, changes, status, code):
    problem(client.post("/v1/studies", json=KERNEL | changes), status, code)
    assert store.studies.list() == []


def test_a_study_of_a_kernel_that_has_changed_since_is_refused(client, store):
    """Numbers of configurations would mean others."""
    made = client.post("/v1/studies", json=KERNEL)
    with store.database.write() as session:
        session.execute(update(StudyRow).values(space_key="0" * 32))
    refused = client.post(f"{made.headers['location']}/trials:suggest", json={"worker": "w"})
    assert "found" in problem(refused, 409, "SV934")["detail"]
    assert client.get(made.headers["location"]).status_code == 200


def test_what_was_measured_elsewhere_is_told_without_being_asked(client):
    url = client.post("/v1/studies", json=STUDY).headers["location"]
    (held,) = ask(client, url)
    fast = {"BM": 128, "BN": 64, "stages": 2, "order": "a"}
    broken = fast | {"BN": 32, "order": "b"}
    body = {"worker": "a recording", "trials": [
        {"config": fast, "repeats_us": [12.0, 13.0, 12.5]}, {"config": broken, "failure": "spills"},
        {"config": held["config"], "repeats_us": [90.0]},
    ]}  # fmt: skip
    made = client.post(f"{url}/trials:add", json=body)
    assert made.status_code == 200
    items = made.json()["items"]
    assert [(t["state"], t["latency_us"]) for t in items] == [
        ("ok", 12.5), ("failed", None), ("ok", 90.0),
    ]  # fmt: skip
    assert items[2]["id"] == held["id"]
    problem(tell(client, url, held, repeats_us=[1.0]), 409, "DB824")
    changed = {**body, "trials": [{"config": fast, "repeats_us": [1.0]}]}
    assert client.post(f"{url}/trials:add", json=body).json()["items"] == items
    assert client.post(f"{url}/trials:add", json=changed).json()["items"] == items[:1]
    study = client.get(url).json()
    assert (study["max_trials"], study["best"]["config"]) == (22, fast)
    asked = []
    while given := ask(client, url, count=4):
        for trial in given:
            asked.append(trial["config"])
            tell(client, url, trial, repeats_us=[time_of(trial["config"])])
    assert len(asked) == 19
    assert not any(config in asked for config in (fast, broken, held["config"]))
    for trials, field in (
        ([{"config": fast | {"BM": 33}, "repeats_us": [1.0]}], "one of the space"),
        ([{"config": fast, "repeats_us": [1.0]}] * 2, "each configuration once"),
    ):
        refused = client.post(f"{url}/trials:add", json={"worker": "w", "trials": trials})
        assert field in problem(refused, 422, "RC610")["detail"]
    neither = client.post(f"{url}/trials:add", json={"worker": "w", "trials": [{"config": fast}]})
    assert "trials[0]: " in problem(neither, 422, "SV901")["detail"]
    client.post(f"{url}:close")
    problem(client.post(f"{url}/trials:add", json=body), 409, "DB822")


def test_a_kernel_of_the_library_is_told_its_own_candidates(client):
    asked = {"name": "k", "kernel": "gemm", "problem": {"m": 64, "n": 64, "k": 64}, "max_trials": 9}
    url = client.post("/v1/studies", json=asked).headers["location"]
    (first,) = ask(client, url)
    (second,) = ask(client, url, worker="w2")
    for config in (first["config"], second["config"]):
        body = {"worker": "w", "trials": [{"config": config, "repeats_us": [5.0]}]}
        assert client.post(f"{url}/trials:add", json=body).json()["items"][0]["state"] == "ok"
    body["trials"][0]["config"] = {**config, "block_M": 31}
    problem(client.post(f"{url}/trials:add", json=body), 422, "RC610")


def test_the_trials_of_listed_studies_are_counted_together(client, store):
    """Each study of the list was asked for its trials and its best by itself."""
    counts = []
    for size in (2, 9):
        while len(store.studies.list()) < size:
            url = client.post("/v1/studies", json=STUDY).headers["location"]
            for trial in ask(client, url, 1 + size % 2):
                tell(client, url, trial, repeats_us=[time_of(trial["config"]), 1e6])
        asked = []

        def note(*told, asked=asked):
            asked.append(told[2])

        event.listen(store.database._read, "before_cursor_execute", note)
        listed = client.get("/v1/studies").json()["items"]
        event.remove(store.database._read, "before_cursor_execute", note)
        assert len(listed) == size
        for one in listed:
            assert one == client.get(f"/v1/studies/{one['id']}").json()
            assert one["trials"] == {"ok": 2 if one in listed[:7] and size == 9 else 1}
            trials = client.get(f"/v1/studies/{one['id']}/trials").json()["items"]
            assert one["best"] == min(trials, key=lambda t: t["latency_us"])
        counts.append(len(asked))
    assert counts[0] == counts[1] > 0
