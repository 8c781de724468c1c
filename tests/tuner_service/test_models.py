"""Cost models by upload: who may, what is refused and why, what answers, going back."""

import hashlib
import random
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
import xgboost

from db.errors import AlreadyMade
from db.idempotency import Once
from recommender.families import schema_of
from recommender.features import NAMES, SCHEMA
from recommender.hardware import load_profile, profile_names
from recommender.training import make_groups, train
from tests.recommender.support import GEMM as KERNEL
from tests.recommender.support import sample, workload
from tests.tuner_service.serving import TestClient
from tests.tuner_service.test_access import bearer  # noqa: F401
from tests.tuner_service.test_app import GEMM, problem
from tests.tuner_service.test_cli import cli  # noqa: F401
from tilecore.kernels.attention import ATTENTION
from tilecore.tile_config import digest
from tuner_service.app import create_app
from tuner_service.errors import ModelsBusy
from tuner_service.model_uploads import ModelUploads
from workers.pack_results import read_results

RECORDED = Path(__file__).parents[2] / "benchmarks/data/h200/c5_2026-11-26.jsonl.gz"

SHAPES = [(512, 512, 512), (1024, 1024, 1024), (1000, 1000, 1000), (64, 2048, 2048)]


@pytest.fixture(scope="module")
def measurements():
    return [m for shape in SHAPES for m in sample(workload(*shape), 40)]


@pytest.fixture(scope="module")
def booster(measurements):
    return train(measurements, KERNEL).model.booster


@pytest.fixture(scope="module")
def good(booster):
    return bytes(booster.save_raw("ubj"))


@pytest.fixture(scope="module")
def bad(measurements):
    """A model of the right form that prefers what is slow."""
    groups = list(make_groups(measurements, KERNEL))
    rows = np.concatenate([g.features for g in groups])
    label = -3.0 * np.concatenate([g.log_ratio for g in groups])
    matrix = xgboost.DMatrix(rows, label=label, nthread=1)
    return bytes(xgboost.train({"max_depth": 4, "nthread": 1}, matrix, 20).save_raw("json"))


@pytest.mark.exhaustive
def test_a_model_of_gpus_is_another_one(client, store):
    recorded = [m for m in read_results(RECORDED) if m.workload.kernel == "attention"]
    store.add_all(recorded)
    known = {m.workload.key for m in recorded[:400]}
    model = train([m for m in recorded if m.workload.key in known], ATTENTION, family="sm_90a")
    raw = bytes(model.model.booster.save_raw("ubj"))
    found = upload(client, raw, schema=schema_of("sm_90a"), kernel="attention").json()
    assert (found["family"], found["kernel"]) == ("sm_90a", "attention")
    assert found["metrics"]["rows"] == len(
        {(m.workload.key, m.protocol, m.config) for m in recorded}
    )
    other = upload(client, raw, schema=schema_of("gfx942"), kernel="attention").json()
    assert (other["family"], other["state"]) == ("gfx942", "candidate")  # nothing was measured
    assert "too few workloads" in other["reason"]
    problem(upload(client, raw, schema=SCHEMA, kernel="attention"), 422, "RC604")
    problem(upload(client, raw, schema="sm_90a-0-abc", kernel="attention"), 422, "RC604")


def upload(client, raw, *, sha256=None, schema=SCHEMA, kernel="gemm", headers=None):
    params = {
        "kernel": kernel,
        "sha256": sha256 or hashlib.sha256(raw).hexdigest(),
        "feature_schema": schema,
    }
    return client.post("/v1/models", params=params, content=raw, headers=headers)


def answers(client):
    return client.post("/v1/recommendations", json=GEMM).json()["recommendations"][0]


@pytest.mark.exhaustive
def test_a_better_model_answers_a_worse_one_does_not_and_one_can_go_back(
    client, store, measurements, good, bad
):
    store.add_all(measurements)
    assert answers(client)["source"] != "predicted"
    made = upload(client, good)
    assert made.status_code == 201, made.text
    first = made.json()
    assert (first["state"], first["origin"], first["created_by"]) == ("active", "uploaded", None)
    assert first["metrics"]["model"] > first["metrics"]["nearest"]
    assert answers(client)["source"] == "predicted"
    same = upload(client, good).json()
    assert same["state"] == "candidate"
    assert "not better than incumbent" in same["reason"]
    worse = upload(client, bad).json()
    assert worse["state"] == "candidate"
    assert "analytic" in worse["reason"]
    # a later version that was promoted, as training does
    stored = store.models.load(first["id"])
    later = store.models.save(
        kernel="gemm", family="cpu", blob=stored.blob, feature_schema=SCHEMA, metrics={},
        trained_on=9, promote=True,
    )  # fmt: skip
    assert client.get(f"/v1/models/{first['id']}").json()["state"] == "retired"
    back = client.post(f"/v1/models/{first['id']}:activate").json()
    assert (back["id"], back["state"]) == (first["id"], "active")
    assert client.get(f"/v1/models/{later}").json()["state"] == "retired"
    assert store.active_model("gemm", "cpu").id == first["id"]
    problem(client.post(f"/v1/models/{worse['id']}:activate"), 409, "DB811")
    problem(client.post("/v1/models/999:activate"), 404, "DB825")
    problem(client.get("/v1/models/999"), 404, "DB825")
    page = client.get("/v1/models?kernel=gemm&limit=2").json()
    rest = client.get(f"/v1/models?kernel=gemm&limit=2&cursor={page['next_cursor']}").json()
    ids = [m["id"] for m in (*page["items"], *rest["items"])]
    assert ids == [later, worse["id"], same["id"], first["id"]]


def test_a_model_that_nobody_can_judge_stays_a_candidate(client, good):
    made = upload(client, good).json()
    assert made["state"] == "candidate"
    assert "too few workloads" in made["reason"]


def test_an_idempotency_key_stores_a_model_once(client, store, good, bad):
    once = {"Idempotency-Key": "once"}
    made = upload(client, good, headers=once)
    again = upload(client, good, headers=once)
    assert (made.status_code, again.status_code) == (201, 200)
    assert made.json() == again.json()
    problem(upload(client, bad, headers=once), 422, "DB807")
    assert upload(client, good, headers={"Idempotency-Key": "twice"}).status_code == 201
    assert len(store.models.list()) == 2


def test_another_process_that_stores_a_model_first_is_believed(store, good):
    """Both found nothing of the key, and looked at the model."""
    given = {"sha256": hashlib.sha256(good).hexdigest(), "feature_schema": SCHEMA}
    looking, others = ModelUploads(store), ModelUploads(store)
    first, is_new = others.add("gemm", good, **given, idempotency_key="k")
    assert is_new
    once = Once("model", "k", digest(["gemm", given["sha256"], SCHEMA]))
    with pytest.raises(AlreadyMade, match=f"model {first.id} was made"):
        looking._add("gemm", good, given["sha256"], SCHEMA, None, once)
    assert [m.id for m in store.models.list()] == [first.id]


def test_only_administrators_upload(settings, store, good, bearer):  # noqa: F811
    changes = {"auth": "required", "max_model_bytes": len(good)}
    client = TestClient(create_app(settings.model_copy(update=changes), store))
    tune, admin = bearer("tune"), bearer("admin")
    problem(upload(client, good[:60_000], headers=tune), 403, "SV921")
    problem(upload(client, good, headers=tune), 413, "SV904")  # not even read
    problem(client.post("/v1/models/1:activate", headers=tune), 403, "SV921")
    assert client.get("/v1/models", headers=tune).json()["items"] == []
    assert upload(client, good, headers=admin).json()["created_by"] == "admin"
    problem(upload(client, good + b" ", headers=admin), 413, "SV904")


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["ubj", "json"])
def test_files_that_are_damaged_or_something_else(client, booster, form):
    raw = bytes(booster.save_raw(form))
    good_hash = hashlib.sha256(raw).hexdigest()
    told = problem(upload(client, raw[:-1], sha256=good_hash), 422, "RC604")
    assert good_hash in told["detail"]
    for sent, words in (
        (raw[: len(raw) // 2], ""),
        (b"", ""),
        (b"\x80\x04\x95" + raw, "a pickle"),
        (b"PK\x03\x04" + raw, ""),
    ):
        told = problem(upload(client, sent), 422, "RC604")
        assert words in told["detail"]
        assert told["hint"]
    problem(upload(client, raw, schema="of-another-version"), 422, "RC604")
    problem(upload(client, raw, kernel="none"), 404, "TC501")
    problem(upload(client, raw, sha256="x"), 422, "SV901")
    assert client.get("/v1/models").json()["items"] == []


@pytest.mark.parametrize("form", ["ubj", "json"])
def test_features_are_those_that_the_model_names(client, booster, form):
    """A model that had them in another order was taken, and read each as its neighbour."""
    names = list(NAMES)
    for given, status in ((names, 201), ([*names[1:], names[0]], 422), (names[::-1], 422)):
        named = booster.copy()
        named.feature_names = given
        answer = upload(client, bytes(named.save_raw(form)))
        if status == 422:
            told = problem(answer, 422, "RC604")["detail"]
            assert told.startswith(f"expected feature 0 named {names[0]}, or none named, found")
        assert answer.status_code == status


def test_files_that_crash_xgboost_end_only_the_child(client, store, measurements, good):
    store.add_all(measurements)
    assert upload(client, good).json()["state"] == "active"
    where = good.index(b"left_children") + len("left_children")
    first = good.index(b"l#L", where) + 3 + 8
    evil = [bytearray(good) for _ in range(2)]
    evil[0][first : first + 4] = struct.pack(">i", 10**9)  # a child far outside
    evil[1][first + 4 : first + 8] = struct.pack(">i", 0)  # a circle
    rng = random.Random(7)
    for _ in range(3):
        flipped = bytearray(good)
        for _ in range(20):
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        evil.append(flipped)
    for number, raw in enumerate(evil):
        told = upload(client, bytes(raw))
        assert told.status_code in ((422,) if number < 2 else (201, 422)), told.text
        if told.status_code == 422:
            assert problem(told, 422, "RC604")["detail"]
        else:  # numbers that nobody can tell from others
            assert told.json()["state"] == "candidate"
        assert answers(client)["source"] == "predicted"


def test_models_are_looked_at_one_by_one(store, good, measurements):
    uploads = ModelUploads(store)
    given = {"sha256": hashlib.sha256(good).hexdigest(), "feature_schema": SCHEMA}
    outcomes = []

    def add():
        try:
            outcomes.append(uploads.add("gemm", good, **given)[0].state)
        except ModelsBusy as error:
            outcomes.append(error.code)

    threads = [threading.Thread(target=add) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["SV924", "candidate"]


@pytest.mark.parametrize(
    ("devices", "hint"),
    [("z80", "all GPUs of an architecture"), ("h200", "NVIDIA H200 is sm_90a"), ("", "")],
)
def test_devices_that_there_are_not_are_told_which_there_are(cli, tmp_path, devices, hint):  # noqa: F811
    file = tmp_path / "model.ubj"
    file.write_bytes(b"{}")
    status, _, err = cli("model", "upload", str(file), "--devices", devices)
    assert status == 2
    known = ", ".join(
        sorted({p.arch for p in map(load_profile, profile_names()) if p.kind != "cpu"})
    )
    assert f"--devices: expected cpu or an architecture ({known}), found" in err
    assert "sm_90a" in known
    assert hint in err.partition("hint: ")[2]


def test_an_empty_file_is_no_model(cli, tmp_path):  # noqa: F811
    """Once a message about a process that died."""
    file = tmp_path / "model.ubj"
    file.touch()
    status, _, err = cli("model", "upload", str(file))
    assert status == 2
    assert "found an empty file" in err


def test_models_on_the_command_line(cli, store, measurements, good, tmp_path):  # noqa: F811
    store.add_all(measurements)
    file = tmp_path / "model.ubj"
    file.write_bytes(good)
    status, out, _ = cli("model", "upload", str(file), "--kernel", "gemm")
    assert status == 0
    assert "active" in out
    status, out, _ = cli("model", "list", "--kernel", "gemm")
    assert "promoted" in out
    assert cli("model", "activate", "1")[0] == 0
    status, _, err = cli("model", "activate", "7")
    assert (status, "DB825" in err) == (2, True)
    file.write_bytes(good[:100])
    status, _, err = cli("model", "upload", str(file))
    assert (status, "RC604" in err) == (2, True)
    status, _, err = cli("model", "upload", str(tmp_path / "none"))
    assert (status, "cannot be read" in err) == (2, True)
