"""The whole service as a user runs it: `tilecore serve` and `tilecore tune`, real workers."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from db.migrate import open_database
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from tuner_service import wiring
from tuner_service.jobs import Effort, submit
from tuner_service.questions import understand
from tuner_service.settings import Settings

# One thread: on a machine that other tests use too, the rival's threads would wait for a core.
GEMM = ["gemm", "--m", "48", "--n", "64", "--k", "32", "--threads", "1"]
PROBLEM = {"m": 48, "n": 64, "k": 32}
BODY = {"kernel": "gemm", "problem": PROBLEM, "threads": 1, "max_trials": 3}
pytestmark = pytest.mark.timeout(1800)
EXAMPLES = Path(__file__).parents[2] / "examples"
CLI = [sys.executable, "-m", "tuner_service"]


@pytest.fixture
def settings(tmp_path):
    return Settings(data_dir=tmp_path, executor="local", compile_workers=1, leader_ttl_s=5.0)


@pytest.fixture
def store(settings):
    store = SqlStore(open_database(settings.url))
    host = wiring.detected_host().as_dict()
    store.save_hardware(HardwareProfile(**{**host, "source": "measured for this test"}))
    yield store
    store.database.close()


def wait(condition, timeout_s=900.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def leader_pid(store):
    leader = store.leader.current()
    return int(leader.owner.split("/")[2]) if leader and leader.is_alive else None


@pytest.mark.exhaustive
def test_tune_survives_the_death_of_its_coordinator_and_answers_at_once_later(settings, store):
    command = [*CLI, "tune", *GEMM, "--trials", "4"]
    environment = {**settings.environment(), "COLUMNS": "120"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as tuning:
        wait(lambda: store.count_measurements() >= 2)
        os.kill(leader_pid(store), signal.SIGKILL)
        output, _ = tuning.communicate(timeout=900)
    assert tuning.returncode == 0, output + settings.log_file.read_text()[-3000:]
    assert "best found" in output
    (run,) = store.runs.list()
    trials = store.trials.of_run(run.id)
    assert {t.state for t in trials} == {"done"}
    assert len({t.measurement_id for t in trials}) == len(trials) == store.count_measurements()
    outcomes = {t.measurement.status.value for t in trials}
    assert "OK" in outcomes
    assert outcomes <= {"OK", "UNSTABLE"}  # the second on a machine with busy neighbours
    assert store.leader.current().epoch == 2
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "answered from the database" in again.stdout
    assert store.count_measurements() == len(trials)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_serve_answers_tunes_and_stops_with_everything_it_started(settings, store):
    port = free_port()
    command = [*CLI, "serve", "--port", str(port)]
    log = settings.data_dir / "serve.log"
    with log.open("w") as output:
        serving = subprocess.Popen(
            command, env=settings.environment(), stdout=output, stderr=subprocess.STDOUT
        )
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
    try:
        wait(lambda: _is_ready(client))
        ranked = client.post("/v1/recommendations", json={**BODY, "max_trials": None}).status_code
        assert ranked == 422  # a field of another request
        question = {name: BODY[name] for name in ("kernel", "problem", "threads")}
        assert client.post("/v1/recommendations", json=question).json()["recommendations"]
        created = client.post("/v1/tuning-runs", json=BODY)
        assert created.status_code == 202
        url = created.headers["location"]
        with client.stream("GET", f"{url}/events", timeout=900) as stream:
            kinds = [line[7:] for line in stream.iter_lines() if line.startswith("event: ")]
        assert kinds[-1] == "succeeded", client.get(url).json()
        measured = client.get("/v1/measurements?best=true&protocol=confirm&limit=1").json()["items"]
        assert measured[0]["reference_repeats_us"]
        first = client.post("/v1/recommendations", json=question).json()["recommendations"][0]
        assert (first["source"], first["config"]) == ("measured", measured[0]["config"])
        child = leader_pid(store)
    finally:
        serving.terminate()
        serving.wait(60)
    assert serving.returncode in (0, -signal.SIGTERM), log.read_text()[-3000:]
    wait(lambda: not os.path.exists(f"/proc/{child}"), 60)
    assert not store.leader.current().is_alive


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_service_that_is_stopped_ends_the_streams_that_clients_follow(settings, store, number):
    """Once it waited for 5 s, then cancelled them with a traceback in its log, and a service that
    got SIGTERM left its coordinator to find out by itself."""
    run, _ = submit(
        store, understand(store, "gemm", PROBLEM), Effort(max_trials=3, time_limit_s=60.0)
    )
    store.runs.pause(run.public_id)
    port = free_port()
    with subprocess.Popen(
        [*CLI, "serve", "--port", str(port)], env=settings.environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as serving:  # fmt: skip
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        wait(lambda: _is_ready(client))
        child = leader_pid(store)
        with client.stream("GET", f"/v1/tuning-runs/{run.public_id}/events") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: queued"
            serving.send_signal(number)
            assert "event: paused" in list(lines)  # it ends as such, not in the middle
        output, _ = serving.communicate(timeout=60)
    assert serving.returncode == 0, output
    assert not os.path.exists(f"/proc/{child}")
    assert "Traceback" not in output
    assert "timeout graceful shutdown exceeded" not in output


@pytest.mark.exhaustive
def test_outside_workers_tune_a_kernel_of_their_own_with_a_key(settings, store):
    port, (_, key) = free_port(), store.keys.create("bench", "tune")
    environment = {**settings.environment(), "TILECORE_AUTH": "required", "TILECORE_KEY": key}
    command = [*CLI, "serve", "--no-coordinator", "--port", str(port)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as serving:
        url = f"http://127.0.0.1:{port}"
        client = httpx.Client(base_url=url, timeout=60)
        wait(lambda: _is_up(client), 120)
        assert client.get("/v1/studies").status_code == 401
        script = [sys.executable, str(EXAMPLES / "tune_your_own_kernel.py"), url]
        workers = [
            subprocess.Popen(script, env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        said = [worker.communicate(timeout=300)[0] for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0]
        serving.terminate()
    (study,) = store.studies.list()
    trials = store.studies.trials(study)
    assert store.studies.count(study) == {"ok": 30}
    assert len({trial.worker for trial in trials}) == 2
    best = min(trials, key=lambda trial: trial.time_s)
    assert all(f"best: {best.config}" in text for text in said)
    assert sum(text.count("'rows'") for text in said) == 30 + 2


def _is_up(client):
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def _is_ready(client):
    try:
        return client.get("/readyz").json().get("coordinator") == "leading"
    except httpx.TransportError:
        return False
