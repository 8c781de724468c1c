"""@autotune asks a service: one machine has it tuned, the next one gets the result, none is stuck.

Machines are processes with databases of their own; the service is `tilecore serve` with workers.
"""

import json
import signal
import socket
import subprocess
import sys
import textwrap

import httpx
import pytest

from db.migrate import open_database
from db.records import MeasurementQuery
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from tuner_service import wiring
from tuner_service.settings import Settings

CLI = [sys.executable, "-m", "tuner_service"]
pytestmark = pytest.mark.timeout(1800)
SCRIPT = textwrap.dedent(
    """
    import json, sys
    import numpy as np
    import tilecore as tilelang
    import tilecore.language as T

    CONFIGS = [{"block": 16, "rows": 4}, {"block": 64, "rows": 8}, {"block": 128, "rows": 2}]

    def reference(x, y):
        return x * 2 + y

    @tilelang.autotune(configs=CONFIGS, ref_prog=reference if "--check" in sys.argv else None)
    @tilelang.jit(out_idx=-1)
    def added(M, N, block, rows):
        @T.prim_func
        def main(
            X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32"),
            Z: T.Tensor((M, N), "float32"),
        ):
            with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, rows)) as (bx, by):
                for i, j in T.Parallel(rows, block):
                    r, c = by * rows + i, bx * block + j
                    if r < M and c < N:
                        Z[r, c] = X[r, c] * 2 + Y[r, c]
        return main

    kernel = added(37, 301)
    result = next(iter(added.results.values()))
    x, y = np.random.default_rng(3).standard_normal((2, 37, 301)).astype("float32")
    right = np.allclose(kernel(x, y), x.astype("float64") * 2 + y, rtol=1e-6)
    print(json.dumps({"config": result.config, "latency": result.latency,
                      "stored": result.is_stored, "right": bool(right)}))
    """
)


@pytest.fixture
def settings(tmp_path):
    folder = tmp_path / "service"
    return Settings(data_dir=folder, executor="local", compile_workers=1, leader_ttl_s=5.0)


@pytest.fixture
def service(settings):
    """Address of a service with a coordinator and workers."""
    store = SqlStore(open_database(settings.url))
    host = wiring.detected_host().as_dict()
    store.save_hardware(HardwareProfile(**{**host, "source": "measured for this test"}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (settings.data_dir / "serve.log").open("w") as output:
        serving = subprocess.Popen(
            [*CLI, "serve", "--port", str(port)], env=settings.environment(), stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    retrying = httpx.HTTPTransport(retries=12)
    with httpx.Client(transport=retrying, timeout=120) as client:
        assert client.get(f"{url}/healthz").status_code == 200
    try:
        yield url, store, serving
    finally:
        if serving.poll() is None:
            serving.terminate()
        serving.wait(60)
        store.database.close()


@pytest.fixture
def machine(tmp_path):
    """Runs the script on a machine with a database of its own; returns what it printed."""
    script = tmp_path / "added.py"
    script.write_text(SCRIPT)

    def run(name, url, *arguments, limit_s=600.0):
        own = Settings(
            data_dir=tmp_path / name, executor="local", compile_workers=1, service_url=url,
            service_timeout_s=limit_s,
        )  # fmt: skip
        done = subprocess.run(
            [sys.executable, str(script), *arguments], env=own.environment(), capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        store = SqlStore(open_database(own.url))
        count = store.count_measurements()
        store.database.close()
        return json.loads(done.stdout.splitlines()[-1]), count, done.stderr

    return run


@pytest.mark.exhaustive
def test_a_service_tunes_once_and_every_machine_gets_the_result(service, machine):
    url, store, serving = service
    first, measured_here, said = machine("one", url)
    assert first["right"], said
    assert (first["stored"], measured_here) == (False, 0), said
    (run,) = store.runs.list()
    assert run.state == "SUCCEEDED"
    log = store.page(MeasurementQuery(program_digest=run.program_digest), limit=50).items
    assert {r.measurement.config["block"] for r in log} == {16, 64, 128}
    confirmed = [
        (r.measurement.time_s * 1e3, dict(r.measurement.config.items_))
        for r in log
        if r.measurement.protocol.value == "confirm" and r.measurement.time_s
    ]
    fastest_ms, config = min(confirmed, key=lambda found: found[0])
    assert (first["config"], first["latency"]) == (config, pytest.approx(fastest_ms))

    second, measured_here, said = machine("two", url)
    assert (second["stored"], measured_here) == (True, 0), said
    assert (second["config"], second["latency"]) == (first["config"], first["latency"])
    assert len(store.runs.list()) == 1

    checked, measured_here, said = machine("three", url, "--check")
    assert (checked["stored"], checked["config"]) == (True, first["config"]), said
    assert measured_here > 0  # the winner against the author's reference, nothing else

    serving.send_signal(signal.SIGKILL)
    serving.wait(60)
    alone, measured_here, said = machine("four", url)
    assert alone["right"]
    assert (alone["stored"], measured_here > 0) == (False, True)
    assert "does not tune" in said
    assert "SV917" in said
