"""The service does what its OpenAPI document says, whatever it is sent."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tuner_service.serving import served
from tuner_service.app import create_app
from tuner_service.settings import load_settings

CONFIG = Path(__file__).with_name("schemathesis.toml")
STREAMS = "/events$"  # an open run streams until it ends, which here it never does


@pytest.fixture
def server(each_database):
    """A service on a free port, and a key of an administrator."""
    changes = {"auth": "required", "rate_limit": "1000000/second", "access_log": "off"}
    app = create_app(each_database.model_copy(update=changes))
    store = app.state.store
    with served(app) as address:
        yield address, store.keys.create("fuzz", "admin")[1]


RANDOM = "examples,fuzzing,stateful"
ALL = f"{RANDOM},coverage"  # every border of every field: 3,000 requests


@pytest.mark.parametrize(
    ("each_database", "examples", "phases"),
    [
        ("sqlite", 3, RANDOM),
        pytest.param("sqlite", 5, ALL, marks=pytest.mark.exhaustive),
        pytest.param("postgresql", 2, ALL, marks=pytest.mark.exhaustive),
    ],
    indirect=["each_database"],
)
def test_generated_requests_get_documented_answers(server, examples, phases, tmp_path):
    url, key = server
    command = [sys.executable, "-m", "schemathesis.cli", f"--config-file={CONFIG}", "run"]
    command += [f"{url}/openapi.json", "--checks=all", f"--max-examples={examples}", "--seed=7"]
    command += [f"--phases={phases}"]
    command += [f"--header=Authorization: Bearer {key}", f"--exclude-path-regex={STREAMS}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    tested = [line for line in done.stdout.splitlines() if line.strip().startswith("Tested:")]
    paths = create_app(load_settings(data_dir=tmp_path)).openapi()["paths"]
    ended = [item for path, item in paths.items() if not re.search(STREAMS, path)]
    operations = sum(len({"get", "put", "post", "delete", "patch"} & set(i)) for i in ended)
    assert int(tested[0].split()[-1]) == operations
