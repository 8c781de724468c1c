"""32 writer processes at once: no error, no record and no update lost. The benchmark's own code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CODE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import database
from tests.db.conftest import measurement
database.WRITES = 5
print(json.dumps(database.writers(sys.argv[2], measurement())))
"""


@pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)
def test_32_writers_lose_nothing(store_url):
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(BENCHMARKS), store_url],
        capture_output=True, text=True, timeout=300, cwd=BENCHMARKS.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["writers"], found["errors"]) == (32, [])
    assert (found["records_lost"], found["updates_lost"]) == (0, 0)
