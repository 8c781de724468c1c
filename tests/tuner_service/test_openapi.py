"""The service does what its OpenAPI document says, whatever it is sent."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import uvicorn

from tuner_service.app import create_app

CONFIG = Path(__file__).with_name("schemathesis.toml")
STREAMS = "/events$"  # an open run streams until it ends, which here it never does


@pytest.fixture
def server(each_database):
    """A service on a free port, a key of an administrator, and how many examples it gets."""
    changes = {"auth": "required", "rate_limit": "1000000/second", "access_log": "off"}
    app = create_app(each_database.model_copy(update=changes))
    store = app.state.store
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    examples = 5 if each_database.database_url is None else 2
    yield f"http://127.0.0.1:{port}", store.keys.create("fuzz", "admin")[1], examples
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize(
    "each_database",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.exhaustive)],
    indirect=True,
)
def test_generated_requests_get_documented_answers(server, tmp_path):
    url, key, examples = server
    command = [sys.executable, "-m", "schemathesis.cli", f"--config-file={CONFIG}", "run"]
    command += [f"{url}/openapi.json", "--checks=all", f"--max-examples={examples}", "--seed=7"]
    command += [f"--header=Authorization: Bearer {key}", f"--exclude-path-regex={STREAMS}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    tested = [line for line in done.stdout.splitlines() if line.strip().startswith("Tested:")]
    assert int(tested[0].split()[-1]) >= 26
