"""Texts that a database refuses, and numbers that JSON has not: never a fault of the service."""

import json
import math

import pytest

from tests.tuner_service.serving import TestClient
from tests.tuner_service.test_app import GEMM, problem
from tests.tuner_service.test_programs import as_data
from tests.tuner_service.test_studies import STUDY
from tuner_service.app import create_app

JSON = {"content-type": "application/json"}
NUL, HALF = "a\0b", "a\ud800b"
ADDRESSES = (
    "tuning-runs/%00", "tuning-runs?kernel=%00", "tuning-runs?created_by=%00",
    "tuning-runs?group=%00", "run-groups/%00", "studies/x%00y", "programs/%00", "hardware/%00",
    "kernels/%00", "models?kernel=%00", "measurements?run=%00", "measurements?created_by=%00",
    "measurements?toolchain=%00", "measurements?program=%00", "measurements?dtype=%00",
    "measurements/export?format=csv&kernel=%00", "database/removed?kernel=%00",
)  # fmt: skip
RUN = {"kernel": "gemm", "problem": {"m": 8, "n": 8, "k": 8}}


def bodies(odd):
    """Bodies with an odd text somewhere, by route."""
    choices = STUDY | {"parameters": {"order": [odd, "b"]}, "conditions": [], "default": None}
    space = {"ConfigurationSpace": {"TuningParameters": [{"Name": odd, "Values": "[1]"}]}}
    return [
        ("recommendations", RUN | {"kernel": odd}), ("recommendations", RUN | {"hardware": odd}),
        ("recommendations", RUN | {"problem": {"m": 8, "n": 8, "k": 8, "dtype": odd}}),
        ("recommendations", RUN | {"problem": {odd: 8}}), ("recommendations", {odd: 1}),
        ("recommendations", RUN | {"fixed": {"block_M": odd}}),
        ("recommendations:batch", {"requests": [RUN | {"kernel": odd}]}),
        ("dispatch-tables", RUN | {"problem": {"n": 8, "k": 8}, "sizes": {odd: "1:8"}}),
        ("dispatch-tables", RUN | {"problem": {"n": 8, "k": 8}, "sizes": {"m": odd}}),
        ("tuning-runs", RUN | {"hardware": odd}), ("keys", {"name": odd}),
        ("studies", STUDY | {"name": odd}), ("studies", STUDY | {"hardware": odd}),
        ("studies", choices), ("studies", STUDY | {"conditions": [f"BM == '{odd}'"]}),
        ("studies", {"name": "n", "t1": space}), ("studies", {"name": "n", "t1": {odd: 1}}),
        *(("programs", document) for document in programs(odd)),
    ]  # fmt: skip


def programs(odd):
    """Programs with an odd text in a name, a knob, the name of a file."""
    found = [as_data().to_json() for _ in range(4)]
    found[0]["name"] = odd
    found[1]["knobs"][0]["name"] = odd
    found[2]["variants"][0]["program"]["name"] = odd
    text = json.dumps(found[3]).replace("user_programs.py", json.dumps(odd)[1:-1])
    return [*found[:3], json.loads(text)]


@pytest.fixture
def client(each_database):
    with TestClient(create_app(each_database), raise_server_exceptions=False) as client:
        yield client


@pytest.mark.few(1)
def test_odd_texts_are_refused_or_stored(client):
    """PostgreSQL refused a NUL in 17 places: each was a 500 (SV905)."""
    for address in ADDRESSES:
        assert problem(client.get(f"/v1/{address}"), 422, "SV901")
    for action in ("nodes/%00:drain", "keys/%00:revoke", "tuning-runs/%00:cancel"):
        assert problem(client.post(f"/v1/{action}"), 422, "SV901")
    for odd in (NUL, HALF):
        for route, body in bodies(odd):
            answer = client.post(f"/v1/{route}", content=json.dumps(body), headers=JSON)
            assert answer.status_code == 422, (route, body, answer.text)
            assert answer.headers["content-type"] == "application/problem+json"
        url = client.post("/v1/studies", json=STUDY).headers["location"]
        for told in ({"worker": odd}, {"worker": "w", "failure": odd}):
            route = "suggest" if "failure" not in told else "1:complete"
            path = f"{url}/trials:{route}" if route == "suggest" else f"{url}/trials/{route}"
            answer = client.post(path, content=json.dumps(told), headers=JSON)
            assert answer.status_code == 422, answer.text
    assert client.get("/v1/studies").json()["items"][0]["trials"] == {}
    assert client.post("/v1/recommendations", json=GEMM).status_code == 200


@pytest.mark.few(1)
def test_numbers_that_are_none_are_refused(client):
    url = client.post("/v1/studies", json=STUDY).headers["location"]
    (trial,) = client.post(f"{url}/trials:suggest", json={"worker": "w"}).json()["items"]
    for number in (math.nan, math.inf, -math.inf):
        for path, body in (
            (f"{url}/trials/{trial['id']}:complete", {"worker": "w", "repeats_us": [1.0, number]}),
            ("/v1/tuning-runs", RUN | {"time_limit_s": number}),
            ("/v1/database:compact", {"keep_days": number}),
        ):
            answer = client.post(path, content=json.dumps(body), headers=JSON)
            assert problem(answer, 422, "SV901")
