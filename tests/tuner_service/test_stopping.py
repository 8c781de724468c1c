"""A service that stops: what is under way ends well, what comes is refused, all in bounded time."""

import asyncio
import contextlib
import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import yaml

from tests.tuner_service.serving import ServiceProcess, bounded
from tuner_service.app import create_app
from tuner_service.settings import Settings
from tuner_service.web.stopping import UnderWay

ROOT = Path(__file__).parents[2]
GEMM = {"kernel": "gemm", "problem": {"m": 64, "n": 64, "k": 64}, "max_trials": 3}
ALONE = ["--no-coordinator"]
LEFT_S = 10.0  # for what comes after the grace


def queue(service):
    """Send a request that waits for the database for as long as that is locked."""
    with httpx.Client(base_url=service.url, timeout=60) as client:
        return client.post("/v1/tuning-runs", json=GEMM)


def is_waiting(service):
    with httpx.Client(base_url=service.url) as client:
        text = client.get("/metrics").text
    return "tilecore_requests_in_flight 2.0" in text  # the question itself is one


def wait(condition, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def refused(answer):
    body = answer.json()
    assert (answer.status_code, body["code"]) == (503, "SV939")
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-request-id"]
    return body


def test_a_request_under_way_is_answered_and_others_are_refused(settings, database_lock):
    settings = settings.model_copy(update={"database_timeout_s": 30.0})
    with ServiceProcess(settings, options=ALONE) as service, ThreadPoolExecutor() as pool:
        with database_lock():
            slow = pool.submit(queue, service)
            wait(lambda: is_waiting(service))
            service.stop()
            wait(lambda: service.client.get("/readyz").status_code == 503, 2)
            for path in ("/readyz", "/v1/kernels", "/dashboard"):
                refused(service.client.get(path))
            assert service.client.get("/healthz").status_code == 200  # nobody is to kill it
            assert not slow.done()
        assert slow.result(20).status_code == 202
        assert service.process.wait(LEFT_S) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(service.url)


@pytest.mark.exhaustive
def test_a_request_that_lasts_longer_than_the_grace_is_ended_with_a_problem(
    settings, database_lock
):
    """uvicorn cancelled it: its client saw a connection that broke off."""
    grace_s = 0.5
    changes = {"database_timeout_s": 30.0, "stop_grace_s": grace_s}
    service = ServiceProcess(settings.model_copy(update=changes), options=ALONE)
    with service, ThreadPoolExecutor() as pool, database_lock():
        slow = pool.submit(queue, service)
        wait(lambda: is_waiting(service))
        service.stop()
        began = time.monotonic()
        body = refused(slow.result(20))
        assert grace_s * 0.8 < time.monotonic() - began < grace_s + 3
        assert "Retry-After" in body["hint"]
        assert service.process.wait(LEFT_S) == 0  # its thread waits for the database yet
    lines = [json.loads(line) for line in service.log.read_text().splitlines()]
    assert [x["event"] for x in lines if x["level"] in ("error", "critical")] == []
    assert any("AnyIO worker thread" in line["event"] for line in lines)


def run_one(app, within_s):
    """Handle a request while the service stops; return the messages sent and the seconds taken."""
    sent = []

    async def send(message):
        sent.append(message)

    async def both():
        under_way = UnderWay()
        scope = {"type": "http", "path": "/x", "method": "GET"}
        task = asyncio.create_task(under_way.run(app, scope, None, send))
        await asyncio.sleep(0)
        began = time.monotonic()
        await under_way.end(within_s)
        taken_s = time.monotonic() - began
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(task, 1)
        return taken_s

    return sent, asyncio.run(both())


def test_an_answer_that_has_begun_breaks_off():
    async def endless(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(60)

    sent, taken_s = run_one(endless, 0.1)
    assert [message["type"] for message in sent] == ["http.response.start"]
    assert 0.1 <= taken_s < 1


def test_a_request_that_refuses_to_end_is_not_waited_for():
    async def deaf(_scope, _receive, _send):
        until = time.monotonic() + 2.8
        while time.monotonic() < until:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.1)

    sent, taken_s = run_one(deaf, 0.1)
    assert sent == []
    assert 2 <= taken_s < 2.8


def test_nothing_under_way_is_not_waited_for():
    began = time.monotonic()
    asyncio.run(UnderWay().end(60))
    assert time.monotonic() - began < 1


def test_an_idle_service_stops_at_once_with_clients_connected(settings, store):
    with bounded(create_app(settings, store), settings) as address:
        silent = socket.create_connection(address)
        kept = httpx.Client(base_url=f"http://{address[0]}:{address[1]}")
        assert kept.get("/healthz").status_code == 200
        began = time.monotonic()
    assert time.monotonic() - began < 2
    silent.close()
    kept.close()


def test_who_stops_containers_waits_longer_than_requests_get():
    grace_s = Settings.model_fields["stop_grace_s"].default
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    period = compose["services"]["api"]["stop_grace_period"]
    assert float(re.fullmatch(r"(\d+)s", period)[1]) >= grace_s + LEFT_S
    manifests = yaml.safe_load_all((ROOT / "deploy/kubernetes/tilecore.yaml").read_text())
    (api,) = [m for m in manifests if (m["kind"], m["metadata"]["name"]) == ("Deployment", "api")]
    assert api["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= grace_s + LEFT_S
