"""32 writer processes at once: no error, no record and no update lost. The benchmark's own code."""

import json
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from db.migrate import open_database
from db.records import MeasurementQuery
from db.store import SqlStore
from tests.db.conftest import BOTH, measurement, run, workload
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


def write_in_opposite_orders(store_url, prepare, rounds, size):
    """Let two writers write what ``prepare(store, sizes, way)`` returns, at once in each round."""
    start = threading.Barrier(2)

    def write(way):
        store = SqlStore(open_database(store_url))
        try:
            for turn in range(rounds):
                sizes = range(turn * size + 1, (turn + 1) * size + 1)[::way]
                ready = prepare(store, sizes, way)
                start.wait(60)
                ready()
        except BaseException:
            start.abort()
            raise
        finally:
            store.database.close()

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, way) for way in (1, -1)]
    # any fault is one that a user would see
    faults = [f.exception() for f in writers if f.exception() is not None]
    assert faults == []


@BOTH
def test_groups_of_the_same_new_workloads_in_opposite_orders_do_not_wait_in_turn(store_url):
    """PostgreSQL ended one of them as a deadlock, which its client saw as 503."""
    rounds, size = 6, 40

    def queue(store, sizes, way):
        group = [run(workload=workload(m), group=f"{sizes.start} {way}") for m in sizes]
        return lambda: store.runs.create_all(group)

    write_in_opposite_orders(store_url, queue, rounds, size)
    store = SqlStore(open_database(store_url))
    runs = store.runs.list(limit=1000)
    assert len(runs) == 2 * rounds * size
    assert {r.workload for r in runs} == {workload(m) for m in range(1, rounds * size + 1)}
    store.database.close()


@BOTH
def test_models_that_are_promoted_at_once_leave_one_active(store_url):
    """PostgreSQL refused the second active one of two, which its client saw as 500."""
    store = SqlStore(open_database(store_url))
    start = threading.Barrier(4)

    def promote(number):
        mine = SqlStore(open_database(store_url))
        ids = []
        for turn in range(6):
            start.wait(60)
            if turn % 2 and number % 2:
                mine.models.activate(ids[-1])
                continue
            ids.append(mine.models.save(
                kernel="gemm", family="cpu", blob=bytes([number, turn]), feature_schema="s",
                metrics={}, trained_on=1, promote=True,
            ))  # fmt: skip
        mine.database.close()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(promote, number) for number in range(4)]:
            done.result(120)
    models = store.models.list(limit=100)
    assert Counter(m.state for m in models)["active"] == 1
    assert len(models) == 4 * 6 - 2 * 3
    store.database.close()


@BOTH
def test_writers_of_the_same_new_things_in_opposite_orders_do_not_wait_in_turn(store_url):
    rounds, size = 6, 120

    def add(store, sizes, _way):
        batch = [measurement(workload=workload(m), config=TileConfig.of(x=m)) for m in sizes]
        return lambda: store.add_all(batch)

    write_in_opposite_orders(store_url, add, rounds, size)
    store = SqlStore(open_database(store_url))
    assert store.count_measurements() == 2 * rounds * size
    won = {r.measurement.workload.key for r in store.log.stream(MeasurementQuery(winners=True))}
    assert len(won) == rounds * size
    store.database.close()
