"""32 writer processes at once: no error, no record and no update lost. The benchmark's own code."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from db.migrate import open_database
from db.records import MeasurementQuery
from db.store import SqlStore
from tests.db.conftest import BOTH, measurement, workload
from tilecore.tile_config import TileConfig

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CODE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import database
from tests.db.conftest import measurement
database.WRITES = 5
print(json.dumps(database.writers(sys.argv[2], measurement())))
"""


@pytest.mark.parametrize(
    "store_url",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.exhaustive)],
    indirect=True,
)
def test_32_writers_lose_nothing(store_url):
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(BENCHMARKS), store_url],
        capture_output=True, text=True, timeout=300, cwd=BENCHMARKS.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["writers"], found["errors"]) == (32, [])
    assert (found["records_lost"], found["updates_lost"]) == (0, 0)


@BOTH
def test_writers_of_the_same_new_things_in_opposite_orders_do_not_wait_in_turn(store_url):
    rounds, size = 6, 120
    start, faults = threading.Barrier(2), []

    def write(way):
        store = SqlStore(open_database(store_url))
        try:
            for turn in range(rounds):
                sizes = range(turn * size + 1, (turn + 1) * size + 1)[::way]
                batch = [
                    measurement(workload=workload(m), config=TileConfig.of(x=m)) for m in sizes
                ]
                start.wait(60)
                store.add_all(batch)
        except Exception as error:  # noqa: BLE001  any fault is one that a user would see
            faults.append(error)
            start.abort()
        finally:
            store.database.close()

    threads = [threading.Thread(target=write, args=(way,)) for way in (1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    store = SqlStore(open_database(store_url))
    assert store.count_measurements() == 2 * rounds * size
    won = {r.measurement.workload.key for r in store.log.stream(MeasurementQuery(winners=True))}
    assert len(won) == rounds * size
    store.database.close()
