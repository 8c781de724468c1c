"""The client of a service that restarts or is busy."""

import socket
import threading
import time

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from tests.tuner_service.serving import served
from tuner_service.client import ServiceClient
from tuner_service.errors import NoServiceAddress, Refused, ServiceUnreachable

PROBLEM = {"code": "DB804", "detail": "it restarts", "title": "database-unreachable"}


def service(*answers):
    """Return an application that answers each question about a run with the next of these."""
    app, left = FastAPI(), list(answers)

    @app.get("/v1/tuning-runs/{run}")
    def run(run: str):
        status = left.pop(0) if len(left) > 1 else left[0]
        if status == 200:
            return {"id": run, "state": "SUCCEEDED"}
        return JSONResponse(PROBLEM, status, headers={"retry-after": "1"})

    return app


def test_a_run_is_followed_through_an_outage():
    """The first 503 ended the command, while the run went on."""
    with served(service(503, 429, 503, 200)) as url, ServiceClient(url) as client:
        began = time.monotonic()
        assert [now["state"] for now in client.follow({"id": "r"})] == ["SUCCEEDED"]
        assert 2.5 < time.monotonic() - began < 20  # as long as it asked for


def test_a_service_that_stays_away_is_told():
    with served(service(503)) as url, ServiceClient(url) as client:
        with pytest.raises(Refused, match="DB804"):
            next(client.follow({"id": "r"}, patience_s=0.5))
        with pytest.raises(Refused, match="SV918"):
            client._ask("GET", "/v1/tuning-runs/r")
    with ServiceClient(url) as client, pytest.raises(ServiceUnreachable, match="SV917"):
        next(client.follow({"id": "r"}, patience_s=0.5))


@pytest.mark.parametrize(
    "url",
    ["nix", "", "localhost:8711", "ftp://h", "http://", "http://h:abc", "http://h:99999",
     "http://[::1", "http://[", "http://h:0", "http://a b", "http://h\x00"],
)  # fmt: skip
def test_what_is_no_address_is_told_before_anything_is_sent(url):
    """Some were a service that does not answer (exit status 1), some an error of httpx."""
    with pytest.raises(NoServiceAddress, match="SV936") as caught:
        ServiceClient(url)
    assert "http://" in caught.value.hint


def test_a_service_that_is_started_again_is_found():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(service(200), port=port, log_level="error"))
    thread = threading.Thread(target=lambda: (time.sleep(1.0), server.run()))
    thread.start()
    try:
        with ServiceClient(f"http://127.0.0.1:{port}") as client:
            assert next(client.follow({"id": "r"}))["state"] == "SUCCEEDED"
    finally:
        server.should_exit = True
        thread.join()
