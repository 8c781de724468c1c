"""Who may use the service, how often, how many at once; what it tells of its requests."""

import asyncio
import time
from collections import Counter
from datetime import timedelta

import httpx
import pytest
import structlog

from tests.tuner_service.serving import LOCAL, TestClient, served
from tests.tuner_service.test_app import GEMM, coordinate, problem
from tuner_service.app import create_app
from tuner_service.jobs import Effort, submit
from tuner_service.questions import understand
from tuner_service.web import access
from tuner_service.web.guessing import sender_of

RUN = GEMM | {"max_trials": 3}


@pytest.fixture
def serve(settings, store):
    """Return a client of a service with changed settings."""

    def start(**changes):
        app = create_app(settings.model_copy(update=changes), store)
        return TestClient(app, raise_server_exceptions=False)

    return start


@pytest.fixture
def bearer(store):
    """Return the headers of a new key."""

    def make(role="read", **given):
        _, secret = store.keys.create(role, role, **given)
        return {"Authorization": f"Bearer {secret}"}

    return make


def test_every_route_of_the_api_needs_a_role(serve, bearer):
    client, read = serve(auth="required"), bearer("read")
    paths = client.get("/openapi.json").json()["paths"]
    asked = [(path, method) for path in paths for method in paths[path]]
    closed = [(p, m) for p, m in asked if p.startswith(("/v1", "/metrics"))]
    assert len(closed) > 15
    for path, method in closed:
        assert paths[path][method]["security"] == [{"HTTPBearer": []}], path
        assert client.request(method, path).status_code == 401, path
        answers = path.startswith(("/v1/recommendations", "/v1/dispatch-tables"))
        answers = answers and not path.endswith(":tune")
        changes = method != "get" and not answers
        if changes or path.startswith("/v1/keys"):
            problem(client.request(method, path, headers=read), 403, "SV921")


def test_on_loopback_nobody_needs_a_key_unless_told_so(serve):
    assert serve().get("/v1/kernels").status_code == 200
    assert serve(auth="required").get("/v1/kernels").status_code == 401
    assert serve(host="0.0.0.0").get("/v1/kernels").status_code == 401
    assert serve(host="0.0.0.0", auth="off").get("/v1/kernels").status_code == 200


def test_a_stream_ends_when_its_key_is_revoked(
    bearer, settings, store, new_run_of_host, monkeypatch
):
    """Who followed a run when a key was revoked went on following it to its end."""
    monkeypatch.setattr(access, "REMEMBERED_S", 0.2)
    app = create_app(settings.model_copy(update={"auth": "required"}), store)
    run = new_run_of_host.public_id
    with served(app) as address, httpx.Client(base_url=address, timeout=20) as client:
        client.headers = bearer("read")
        with client.stream("GET", f"/v1/tuning-runs/{run}/events") as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("event: queued")
            store.keys.revoke(store.keys.list()[0].prefix)
            deadline = time.monotonic() + 20
            for line in lines:  # of a stream that goes on there is a sign of life now and then
                assert not line.startswith("event")
                assert time.monotonic() < deadline
        assert client.get(f"/v1/tuning-runs/{run}/events").status_code == 401


FOREIGN = (
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "null"},
    {"Origin": "http://evil.example"}, {"Origin": "http://127.0.0.1:3000"}, {"Origin": "http://["},
)  # fmt: skip


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("headers", FOREIGN)
def test_pages_of_other_sites_change_nothing_where_no_key_is_needed(serve, store, host, headers):
    """A browser sends such a POST for any page, without asking first where it has no JSON."""
    client = serve(host=host, auth="off")
    for path in ("/v1/models/1:activate", "/v1/models?kernel=gemm", "/v1/tuning-runs/x:cancel"):
        problem(client.post(path, content=b"x", headers=headers), 403, "SV940")
    problem(client.post("/v1/keys", json={"name": "x"}, headers=headers), 403, "SV940")
    problem(client.patch("/v1/tuning-runs/x", json={}, headers=headers), 403, "SV940")
    problem(client.post("/v1/recommendations", json=GEMM, headers=headers), 403, "SV940")
    assert store.keys.count() == 0
    assert client.get("/v1/kernels", headers=headers).status_code == 200  # nobody can read it


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("LOCALHOST:80", 200), ("127.0.0.1:8711", 200), ("127.3.2.1", 200),
        ("[::1]:8711", 200), ("evil.example", 403), ("evil.example:8711", 403), ("10.0.0.1", 403),
        ("127.0.0.1.evil.example", 403), ("localhost@evil.example", 403), ("[::1", 403), ("", 403),
    ],
)  # fmt: skip
def test_no_other_name_leads_to_a_service_of_this_machine(serve, bearer, host, status):
    """A page whose name points here for a moment read everything, as an administrator."""
    client, headers = serve(), {"Host": host}
    for method, path, body in (
        ("GET", "/v1/kernels", None), ("GET", "/dashboard", None), ("GET", "/metrics", None),
        ("HEAD", "/v1/keys", None), ("POST", "/v1/recommendations", GEMM),
    ):  # fmt: skip
        answer = client.request(method, path, json=body, headers=headers)
        assert answer.status_code == status, (method, path, answer.text)
    problem(client.get("/v1/kernels", headers={"Host": "evil.example"}), 403, "SV940")
    assert client.get("/healthz", headers=headers).status_code == 200
    # whoever has a key, and whoever the operator lets in from elsewhere, may use any name
    assert client.get("/v1/kernels", headers=headers | bearer()).status_code == 200
    other = serve(host="0.0.0.0", auth="off")
    assert other.get("/v1/kernels", headers=headers).status_code == 200


def test_without_a_valid_key_nobody_gets_in(serve, bearer, store):
    client = serve(auth="required")
    expired = bearer(lifetime=timedelta(seconds=-1))
    secret = bearer()["Authorization"]
    for headers in (
        {},
        expired,
        {"Authorization": secret[:-1]},
        {"Authorization": secret.replace("Bearer", "Basic")},
        {"Authorization": "Bearer " + "x" * 5000},
    ):
        refused = client.get("/v1/kernels", headers=headers)
        problem(refused, 401, "SV920")
        assert refused.headers["www-authenticate"] == "Bearer"
        assert secret[20:] not in refused.text
    assert client.get("/v1/kernels", headers={"Authorization": secret}).status_code == 200
    for path in ("/healthz", "/readyz", "/openapi.json"):
        assert client.get(path).status_code == 200
    problem(client.get("/metrics"), 401, "SV920")
    assert store.runs.list() == []


def test_a_wrong_key_is_refused_where_none_is_needed(serve):
    refused = serve().get("/v1/kernels", headers={"Authorization": "Bearer tc_no"})
    problem(refused, 401, "SV920")


def test_roles(serve, bearer, store):
    client = serve(auth="required")
    read, tune, admin = bearer("read"), bearer("tune"), bearer("admin")
    assert client.post("/v1/recommendations", json=GEMM, headers=read).status_code == 200
    assert (
        "SV921"
        in problem(client.post("/v1/tuning-runs", json=RUN, headers=read), 403, "SV921")["type"]
    )
    assert store.runs.list() == []
    url = client.post("/v1/tuning-runs", json=RUN, headers=tune).headers["location"]
    problem(client.post(f"{url}:cancel", headers=read), 403, "SV921")
    assert client.post(f"{url}:cancel", headers=tune).status_code == 202
    problem(client.get("/v1/keys", headers=tune), 403, "SV921")
    assert len(client.get("/v1/keys", headers=admin).json()["items"]) == 3


def test_keys_by_rest(serve, bearer, store, monkeypatch):
    monkeypatch.setattr(access, "REMEMBERED_S", 0.0)
    client, admin = serve(auth="required"), bearer("admin")
    made = client.post("/v1/keys", json={"name": "ci", "role": "tune"}, headers=admin)
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    key = made.json()
    mine = {"Authorization": f"Bearer {key.pop('key')}"}
    assert client.get("/v1/tuning-runs", headers=mine).status_code == 200
    assert client.get("/v1/keys", headers=admin).json()["items"][1] == key
    revoked = client.post(f"/v1/keys/{key['prefix']}:revoke", headers=admin).json()
    assert revoked["revoked_at"]
    problem(client.get("/v1/tuning-runs", headers=mine), 401, "SV920")
    problem(client.post("/v1/keys/tc_none:revoke", headers=admin), 404, "DB820")
    problem(client.post("/v1/keys", json={"name": ""}, headers=admin), 422, "SV901")
    problem(client.post("/v1/keys", json={"name": "a\nb"}, headers=admin), 422, "SV901")
    odd = {"name": "x", "role": "root"}
    problem(client.post("/v1/keys", json=odd, headers=admin), 422, "SV901")


def test_the_log_knows_whose_key_asked(serve, bearer, store):
    client = serve(auth="required")
    alice, bob = bearer("tune"), bearer("admin")  # called as their roles
    for who, m in ((alice, 64), (alice, 128), (bob, 64)):
        problem = GEMM["problem"] | {"m": m}
        client.post("/v1/tuning-runs", json=RUN | {"problem": problem}, headers=who)
    group = {"runs": [RUN]}
    client.post("/v1/tuning-runs:batch", json=group, headers=bob)

    def items(path):
        return client.get(path, headers=alice).json()["items"]

    names = [run["created_by"] for run in items("/v1/tuning-runs")]
    assert names == ["admin", "admin", "tune", "tune"]
    mine = items("/v1/tuning-runs?created_by=tune")
    assert [run["workload"]["problem"]["m"] for run in mine] == [128, 64]
    coordinate(store)
    total, ours = (items(f"/v1/measurements?limit=200{q}") for q in ("", "&created_by=tune"))
    assert 0 < len(ours) < len(total)
    assert {m["created_by"] for m in total} == {"admin", "tune"}
    assert {m["run"] for m in ours} == {run["id"] for run in mine}
    page = client.get("/v1/tuning-runs?created_by=tune&limit=1", headers=alice).json()
    other = f"/v1/tuning-runs?created_by=admin&cursor={page['next_cursor']}"
    assert client.get(other, headers=alice).json()["code"] == "SV908"
    anonymous = serve().post("/v1/tuning-runs", json=RUN).json()
    assert (anonymous["created_by"], anonymous["cause"]) == (None, None)


def test_a_key_has_a_rate(serve, bearer):
    client = serve(rate_limit="3/day")  # the limiter's windows start at midnight
    first, second = bearer(), bearer()
    codes = [client.get("/v1/kernels/gemm", headers=first).status_code for _ in range(5)]
    assert codes == [200, 200, 200, 429, 429]
    refused = client.get("/v1/kernels/gemm", headers=first)
    problem(refused, 429, "SV922")
    assert 1 <= int(refused.headers["retry-after"]) <= 86_400
    assert client.get("/v1/kernels/gemm", headers=second).status_code == 200
    assert client.get("/v1/kernels/gemm").status_code == 200


def at(app, address):
    """Return a client of a service that has this address."""
    return TestClient(app, raise_server_exceptions=False, client=(address, 4711))


def guess(client, number, **more):
    headers = {"Authorization": f"Bearer tc_guess{number}"}
    return client.get("/v1/kernels/gemm", headers=headers, **more)


def test_who_guesses_keys_is_held_off_and_nobody_else(serve, bearer):
    app = serve(auth="required", wrong_key_limit="3/day").app  # windows start at midnight
    honest, guesser, other = bearer(), at(app, "192.0.2.1"), at(app, "192.0.2.2")
    assert guesser.get("/v1/kernels/gemm", headers=honest).status_code == 200
    assert [guess(guesser, i).status_code for i in range(5)] == [401, 401, 401, 429, 429]
    refused = guess(guesser, 9)
    problem(refused, 429, "SV926")
    assert 1 <= int(refused.headers["retry-after"]) <= 86_400
    unused = bearer()
    right = guesser.get("/v1/kernels/gemm", headers=unused)
    problem(right, 429, "SV926")  # which key is right it does not learn
    assert other.get("/v1/kernels/gemm", headers=unused).status_code == 200
    for client in (guesser, other):  # keys in use are let in from the guesser's address, too
        assert client.get("/v1/kernels/gemm", headers=honest).status_code == 200
    assert guess(other, 77).status_code == 401
    assert guesser.get("/v1/kernels/gemm").status_code == 401  # no key is no guess
    counted = other.get("/metrics", headers=honest).text
    assert 'tilecore_wrong_keys_total{answer="unknown"} 4.0' in counted
    assert 'tilecore_wrong_keys_total{answer="limited"} 4.0' in counted


def test_one_wrong_key_again_and_again_is_no_guessing(serve, bearer):
    client = at(serve(auth="required", wrong_key_limit="2/day").app, "192.0.2.1")
    assert {guess(client, 0).status_code for _ in range(9)} == {401}
    expired = bearer(lifetime=timedelta(seconds=-1))
    asked = [client.get("/v1/kernels", headers=expired).status_code for _ in range(9)]
    assert set(asked) == {401}
    assert client.get("/v1/kernels", headers=bearer()).status_code == 200


def test_an_ipv6_network_is_one_guesser(serve):
    app = serve(auth="required", wrong_key_limit="2/day").app
    addresses = ("2001:db8::1", "2001:db8::ffff:2", "2001:db8::3", "2001:db8:0:1::1")
    codes = [guess(at(app, a), i).status_code for i, a in enumerate(addresses)]
    assert codes == [401, 401, 429, 401]
    assert sender_of("::ffff:192.0.2.1") == sender_of("192.0.2.1") == "192.0.2.1"
    assert sender_of("") == ""
    assert len(sender_of("x" * 999)) < 99


def test_guesses_sent_at_once_are_counted_one_by_one(serve):
    app = serve(auth="required", wrong_key_limit="4/day").app

    async def guess_at_once():
        transport = httpx.ASGITransport(app, client=("192.0.2.1", 4711))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{LOCAL}") as client:
            return await asyncio.gather(*(guess(client, i) for i in range(40)))

    codes = Counter(answer.status_code for answer in asyncio.run(guess_at_once()))
    assert codes == {401: 4, 429: 36}


def test_the_login_page_holds_guessers_off(serve):
    client = at(serve(auth="required", wrong_key_limit="2/day").app, "192.0.2.1")
    answers = [client.post("/dashboard/login", data={"key": f"tc_no{i}"}) for i in range(3)]
    assert [a.status_code for a in answers] == [401, 401, 429]
    assert "SV926" in answers[2].text
    assert answers[2].headers["retry-after"]


def test_too_many_requests_at_once_are_told_to_come_again(serve, settings, store):
    app = serve(max_in_flight=2, rate_limit="1/second").app

    async def ask_at_once(count):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{LOCAL}") as client:
            asked = [client.post("/v1/recommendations", json=GEMM) for _ in range(count)]
            return await asyncio.gather(*asked)

    answers = asyncio.run(ask_at_once(8))
    codes = sorted(a.status_code for a in answers)
    assert codes == [200] * 2 + [503] * 6
    busy = next(a for a in answers if a.status_code == 503)
    assert problem(busy, 503, "SV923")
    assert busy.headers["retry-after"]
    assert {a.status_code for a in asyncio.run(ask_at_once(2))} == {200}  # places are given back


def test_request_ids_are_taken_over_or_made(serve, logged):
    client = serve()
    given = client.get("/v1/kernels/gemm", headers={"X-Request-ID": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    made = client.get("/v1/kernels/gemm", headers={"X-Request-ID": "a b\tc"}).headers
    assert made["x-request-id"] not in ("", "a b\tc")
    assert made["x-content-type-options"] == "nosniff"
    client.get("/v1/kernels/none", headers={"X-Request-ID": "abc-2"})
    client.get("/v1/kernels/gemm")  # no error: no line
    (line,) = logged
    assert (line["request"], line["status"], line["path"]) == ("abc-2", 404, "/v1/kernels/none")


def test_metrics(serve, store, new_run_of_host, unmeasured_source):
    client = serve()
    client.post("/v1/recommendations", json=GEMM)
    client.get("/v1/kernels/none")
    for made_up in ("FROB", "QUUX"):
        client.request(made_up, "/v1/kernels")
    text = client.get("/metrics").text
    assert "FROB" not in text
    assert 'method="other"' in text
    counted = f'tilecore_recommendations_total{{kernel="gemm",source="{unmeasured_source}"}}'
    assert f"{counted} 1.0" in text
    counted = 'tilecore_request_seconds_count{method="GET",route="/v1/kernels/{name}",status="404"}'
    assert f"{counted} 1.0" in text
    assert 'tilecore_tuning_runs{state="QUEUED"} 1.0' in text
    assert "tilecore_database_up 1.0" in text
    assert "tilecore_coordinator_leads 0.0" in text


def test_metrics_of_a_database_that_is_away(serve, store, tmp_path):
    client = serve()
    store.database.close()
    (tmp_path / "tilecore.db").write_bytes(b"no database at all, and long enough to be read" * 99)
    (tmp_path / "tilecore.db-wal").unlink(missing_ok=True)
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert "tilecore_database_up 0.0" in answer.text


def test_who_knows_the_answer_gets_304(serve, new_run_of_host):
    client = serve()
    url = f"/v1/tuning-runs/{new_run_of_host.public_id}"
    first = client.get(url)
    tag = first.headers["etag"]
    again = client.get(url, headers={"If-None-Match": f'"other", {tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    for same in (tag.removeprefix("W/"), "*"):  # compared weakly, as RFC 9110 has it
        assert client.get(url, headers={"If-None-Match": same}).status_code == 304
    client.post(f"{url}:cancel")
    changed = client.get(url, headers={"If-None-Match": tag})
    assert (changed.status_code, changed.json()["state"]) == (200, "CANCELLED")
    assert changed.headers["etag"] != tag
    assert "etag" not in client.get(f"{url}/events").headers


@pytest.fixture
def logged():
    """What the service logs while the test runs."""
    before, capture = structlog.get_config(), structlog.testing.LogCapture()
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, capture],
        wrapper_class=structlog.make_filtering_bound_logger(0),
    )
    yield capture.entries
    structlog.configure(**before)


@pytest.fixture
def new_run_of_host(store):
    """A queued run of this host."""
    question = understand(store, "gemm", GEMM["problem"])
    return submit(store, question, Effort(max_trials=3, time_limit_s=60))[0]
