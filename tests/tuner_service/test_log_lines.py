"""Everything that a process of the service writes to stderr is one JSON object per line."""

import json
import subprocess
import sys

import pytest

from tests.tuner_service.serving import ServiceProcess

# What libraries, warnings and threads say while a request is at work that fails.
OUT_OF_ORDER = """
import logging, threading, warnings
from db.nodes import Nodes

def fails(self, **_):
    thread = threading.Thread(target=lambda: 1 / 0, name="aside")
    thread.start()
    thread.join()
    warnings.warn("something is odd")
    logging.getLogger("sqlalchemy.pool").error("said by a library: %s", "so")
    raise RuntimeError("out of order\\nin two lines")

Nodes.list = fails
"""
RAY = """
import logging, sys
from tuner_service.log_lines import configure_logging
if sys.argv[1] == "before":
    import ray
configure_logging("info")
import ray
from ray._private.worker import setup_logger
setup_logger(logging.INFO, "%(message)s")
logging.getLogger("ray").warning("of Ray itself")
logging.getLogger("ray.data").warning("of a part of it")
"""


def lines_of(text):
    """Return the lines of a log, each of which has to be a JSON object."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all(isinstance(line, dict) for line in found)
    assert all(
        line["event"] and line["level"] and line["timestamp"].endswith("Z") for line in found
    )
    return found


def test_every_line_of_a_served_process_is_json(settings):
    settings = settings.model_copy(
        update={"auth": "off", "access_log": "all", "answer_processes": 1}
    )
    with ServiceProcess(settings, OUT_OF_ORDER, ["--host", "0.0.0.0"]) as service:
        client = service.client
        assert client.get("/v1/kernels/gemm", headers={"X-Request-ID": "good-1"}).status_code == 200
        failed = client.get("/v1/nodes", headers={"X-Request-ID": "bad-1"})
        assert (failed.status_code, failed.json()["code"]) == (500, "SV905")
        service.stop()
        assert service.process.wait(60) == 0
    lines = lines_of(service.log.read_text())
    events = [line["event"] for line in lines]
    began = ("Started server process", "Application startup complete.", "Uvicorn running on")
    ended = ("Shutting down", "Application shutdown complete.", "Finished server process")
    for said in (*began, *ended):
        assert any(event.startswith(said) for event in events), said
    (access,) = [line for line in lines if line.get("path") == "/v1/kernels/gemm"]
    assert (access["request"], access["status"], access["event"]) == ("good-1", 200, "request")
    of_bad = {line["event"].strip(): line for line in lines if line.get("request") == "bad-1"}
    library = of_bad["said by a library: so"]
    assert (library["logger"], library["level"]) == ("sqlalchemy.pool", "error")
    for said in ("unexpected error", "Exception in ASGI application"):  # ours, and uvicorn's
        assert "RuntimeError: out of order\nin two lines" in of_bad[said]["exception"], said
    assert of_bad["request"]["status"] == 500
    assert any("UserWarning: something is odd" in event for event in events)
    (aside,) = [line for line in lines if line.get("thread") == "aside"]
    assert "ZeroDivisionError" in aside["exception"]


@pytest.mark.parametrize(
    "command", ["serve", pytest.param("coordinator", marks=pytest.mark.exhaustive)]
)
def test_an_error_that_ends_a_process_is_a_line(settings, command):
    """It was the text of the command line, in the middle of JSON."""
    (settings.data_dir / "tilecore.db").write_bytes(b"no database, and long enough to be read" * 99)
    done = subprocess.run(
        [sys.executable, "-m", "tuner_service", command], env=settings.environment(),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    (line,) = lines_of(done.stderr)
    assert (line["level"], line["code"]) == ("error", "DB805")


@pytest.mark.exhaustive
def test_lines_of_ray_are_lines_like_others():
    """Ray gives its logger a handler of its own, when it is imported and when it starts."""
    for moment in ("before", "after"):
        done = subprocess.run(
            [sys.executable, "-c", RAY, moment], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        said = [(line["logger"], line["event"]) for line in lines_of(done.stderr)]
        assert said == [("ray", "of Ray itself"), ("ray.data", "of a part of it")]
