"""Questions are answered past the router as the router would have them answered."""

import json

import pytest

from tests.tuner_service.serving import TestClient
from tests.tuner_service.test_app import GEMM, problem
from tuner_service.app import create_app
from tuner_service.web.short_way import ShortWay

URL = "/v1/recommendations"
JSON = {"content-type": "application/json"}
SHAPE = {"m": 64, "n": 64, "k": 64}
GOOD = [
    json.dumps(GEMM),
    json.dumps(GEMM | {"top_k": 3, "threads": 1.0}),
    json.dumps({"kernel": "gemm", "problem": {"M": 65.0, "n": 64, "k": 64, "transpose_b": True}}),
    json.dumps({"kernel": "softmax", "problem": {"m": 10, "n": 20}, "hardware": "h100"}),
]
BAD = [
    "", "{", "[]", "null", "7", '"gemm"', "{}", '{"kernel": "fft"}', "[" * 5000,
    json.dumps(GEMM | {"top_k": 51}), json.dumps(GEMM | {"top_k": "3"}),
    json.dumps(GEMM | {"top_k": True}), json.dumps(GEMM | {"more": 1}),
    json.dumps(GEMM | {"problem": SHAPE | {"m": 1e400}}),
    json.dumps(GEMM | {"problem": SHAPE | {"m": None}}),
    json.dumps(GEMM | {"problem": SHAPE | {"m": 0.5}}),
    json.dumps(GEMM | {"problem": SHAPE | {"m": 2**70}}),
    json.dumps(GEMM | {"problem": SHAPE | {"dtype": "\ud800"}}),
    json.dumps(GEMM | {"hardware": "a\0b"}), json.dumps(GEMM | {"hardware": "no such device"}),
    json.dumps(GEMM | {"program": "0" * 32}), json.dumps(GEMM | {"fixed": {"block_M": 64}}),
    json.dumps(GEMM)[:-1] + ', "top_k": 2, "top_k": 1}',
    json.dumps(GEMM | {"threads": 4000}), json.dumps({"program": "0" * 32, "problem": {}}),
]  # fmt: skip


@pytest.fixture
def app(settings, store):
    return create_app(settings.model_copy(update={"auth": "required"}), store)


@pytest.fixture
def client(app, store):
    _, key = store.keys.create("reader", "read")
    headers = {"Authorization": f"Bearer {key}"}
    with TestClient(app, headers=headers, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def routed(settings, store):
    """A service whose questions all go by the route."""
    app = create_app(settings, store)
    app.user_middleware = [m for m in app.user_middleware if m.cls is not ShortWay]
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def told(response):
    differing = {"x-request-id", "date"}
    headers = {k: v for k, v in response.headers.items() if k not in differing}
    return response.status_code, headers, response.content


@pytest.mark.few(1)
@pytest.mark.parametrize("body", [*GOOD, *BAD], ids=range(len(GOOD) + len(BAD)))
def test_both_ways_say_the_same(client, routed, body):
    short, long = (c.post(URL, content=body, headers=JSON) for c in (client, routed))
    assert told(short) == told(long)
    assert (short.status_code == 200) == (body in GOOD)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["text/plain", "", "application/json; charset=utf-8",
                                  "application/vnd.x+json", "APPLICATION/JSON"])  # fmt: skip
def test_other_content_types(client, routed, kind):
    headers = {"content-type": kind} if kind else {}
    for body in (GOOD[0], BAD[1]):
        short, long = (c.post(URL, content=body, headers=headers) for c in (client, routed))
        assert told(short) == told(long)


def test_what_can_be_read_meets_no_router(app, client, monkeypatch):
    async def refuse(*_):
        raise AssertionError

    client.post(URL, json=GEMM)
    monkeypatch.setattr(app.router, "middleware_stack", refuse)
    assert client.post(URL, json=GEMM).status_code == 200
    assert client.post(URL, json=GEMM | {"top_k": 0}).status_code == 500


def test_it_opens_no_door(client):
    assert client.post(URL, json=GEMM).status_code == 200
    unknown = {"Authorization": "Bearer nobody"}
    problem(client.post(URL, json=GEMM, headers=unknown), 401, "SV920")
    assert client.get(URL).status_code == 405
    assert client.put(URL, json=GEMM).status_code == 405
    long = json.dumps(GEMM) + " " * 70_000
    assert client.post(URL, content=long, headers=JSON).status_code == 413


def test_both_ways_are_counted_alike(client, routed):
    for c in (client, routed):
        for _ in range(3):
            c.post(URL, json=GEMM)
        lines = c.get("/metrics").text.splitlines()
        asked = [line for line in lines if line.startswith("tilecore_request_seconds_count")]
        route = 'method="POST",route="/v1/recommendations",status="200"'
        assert asked == [f"tilecore_request_seconds_count{{{route}}} 3.0"]
        told = [line for line in lines if line.startswith("tilecore_recommendations_total")]
        assert [line.split()[-1] for line in told] == ["3.0"]
