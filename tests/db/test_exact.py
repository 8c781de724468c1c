"""What is asked of exactly one key: the same as counting by hand, and on a connection that died."""

import random
import time
from itertools import product
from pathlib import Path

import pytest
from sqlalchemy import text

from db.changes import NUMBERS, STATE, TOLD, Follower
from db.errors import DatabaseUnreachable
from db.exact import BEST, FASTEST, KNOWN
from db.migrate import upgrade
from db.records import MeasurementQuery
from db.session import Database
from db.shape import Shape, fastest, merged
from db.store import LOG_STATE, SqlStore
from recommender.measurement import Protocol
from tests import postgres
from tests.db.conftest import BOTH, HARDWARE, TOOLCHAIN, measurement, workload
from tilecore.tile_config import TileConfig

DRIVERS = ("", "d1", "d2")


def random_log(rng, count):
    """Return measurements of few keys, many of them equally fast."""
    return [
        measurement(
            None if rng.random() < 0.1 else rng.randint(1, 9) * 1e-4,
            workload=workload(rng.choice((64, 128))),
            config=TileConfig.of(block_M=rng.randint(1, 6)),
            program_digest=rng.choice(("p1", "p2")), driver=rng.choice(DRIVERS),
            protocol=Protocol.CONFIRM if rng.random() < 0.2 else Protocol.SCREEN,
        )
        for _ in range(count)
    ]  # fmt: skip


def in_turn(log, protocol, driver):
    """Return the OK ones of a protocol, fastest first; ``driver``: "" or unknown is any."""
    found = [m for m in log if m.protocol is protocol and m.time_s is not None]
    found = [m for m in found if not driver or m.driver in ("", driver)]
    return sorted(found, key=lambda m: m.time_s)  # stable: the first one stored of equal ones


@BOTH
def test_best_and_fastest_are_those_of_a_count_by_hand(store):
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    log = random_log(rng, 60)
    for m in log:
        store.add(m)
    asked = product((64, 128, 256), ("p1", "p2", "p3"), DRIVERS)
    for m, program, driver in asked:
        own = [x for x in log if x.workload == workload(m) and x.program_digest == program]
        key = (workload(m), HARDWARE.key, program, TOOLCHAIN.key, driver)
        ways = product((Protocol.CONFIRM, Protocol.SCREEN), (driver, ""))
        best = next((found[0] for way in ways if (found := in_turn(own, *way))), None)
        assert store.best(*key) == best, seed
        unique = {}
        for found in in_turn(own, Protocol.CONFIRM, driver)[:5]:
            unique.setdefault(found.config, found)
        expected = list(unique.values()) or ([] if best is None else [best])
        assert store.fastest(*key, count=5) == expected, seed


@BOTH
@pytest.mark.parametrize("query", [BEST, FASTEST, KNOWN, LOG_STATE, STATE, NUMBERS, TOLD])
def test_prepared_queries_give_what_sqlalchemy_does(store, query):
    for m in random_log(random.Random(1), 60):
        store.add(m)
    values = {
        "workload": workload(64).key, "kernel": "gemm", "hardware": HARDWARE.key, "digest": "p1",
        "toolchain": TOOLCHAIN.key, "driver": "d1", "count": 5, "closed": 7, "most": 50,
        "first": 7, "last": 20,
    }  # fmt: skip
    wanted = query.compile(store.database.engine).params
    asked = {name: value for name, value in values.items() if name in wanted}
    expected = [tuple(row) for row in store.database.execute(query, asked)]
    assert expected
    for _ in range(8):  # psycopg prepares a statement that comes again
        assert [tuple(row) for row in store.database.ask(query, asked)] == expected


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_server_plans_what_is_asked_once_not_for_every_value(store):
    """Plans for a value took longer than the answer, and those of the first ten were bad ones."""
    store.add_all(random_log(random.Random(1), 60))
    for m in (64, 128, 256):
        for query in (MeasurementQuery(kernel="gemm", m=m), MeasurementQuery(m=m, winners=True)):
            store.page(query, limit=5)
        store.best(workload(m), HARDWARE.key, "p1", TOOLCHAIN.key)
    plans = "select custom_plans, generic_plans from pg_prepared_statements where statement like "
    with store.database.read() as session:
        found = session.execute(text(f"{plans} '%measurement%'")).all()
        assert session.execute(text("show jit")).scalar() == "off"
    assert sorted(custom for custom, _ in found) == [0] * len(found)
    assert sum(generic for _, generic in found) >= 9


WINNERS = fastest(Shape(frozenset({"kernel", "hardware_key"}), "sqlite", only_ok=True))


@pytest.mark.parametrize(
    ("query", "names"),
    [(BEST, ["m"]), (FASTEST, ["m"]), (WINNERS, ["part"])],
    ids=["best", "fastest", "winners"],
)
def test_the_index_of_times_is_read_not_the_log_of_the_workload(store, query, names):
    compiled = query.compile(dialect=store.database.engine.dialect)
    with store.database.read() as session:
        plan = session.connection().exec_driver_sql(
            f"explain query plan {compiled}", tuple(None for _ in compiled.positiontup)
        )
        steps = [row[3] for row in plan if row[3].startswith("SEARCH ")]
    for name in names:
        own = [step for step in steps if step.startswith(f"SEARCH {name} ")]
        assert own
        assert all("ix_measurement_workload_times" in step for step in own)
    pairs = [step for step in steps if step.startswith("SEARCH workload_facet ")]
    assert len(pairs) == (query is WINNERS)
    assert all("USING PRIMARY KEY (workload_id=?" in step for step in pairs)


def test_the_fastest_of_some_days_are_not_looked_for_among_all_times(store):
    """The first row of each part was: 144 ms in a log of a million, as the days' rows lay last."""
    shape = Shape(
        frozenset({"kernel", "since", "until"}), "sqlite",
        by_time=True, only_ok=True, walked="facet",
    )  # fmt: skip
    compiled = merged(shape).compile(dialect=store.database.engine.dialect)
    with store.database.read() as session:
        plan = session.connection().exec_driver_sql(
            f"explain query plan {compiled}", tuple(None for _ in compiled.positiontup)
        )
        steps = [row[3] for row in plan if row[3].startswith("SEARCH part ")]
    assert steps
    assert all("ix_measurement_facet_log (facet_id=? AND measured_at>?" in step for step in steps)


def test_the_fastest_of_a_workload_are_read_in_order_facet_by_facet(store):
    """All times of a workload were read and sorted for its fastest ten."""
    names = frozenset({"kernel", "m", "n", "k", "hardware_key"})
    shape = Shape(names, "sqlite", by_time=True, only_ok=True, walked="workload_facet")
    compiled = merged(shape).compile(dialect=store.database.engine.dialect)
    with store.database.read() as session:
        plan = session.connection().exec_driver_sql(
            f"explain query plan {compiled}", tuple(None for _ in compiled.positiontup)
        )
        steps = [row[3] for row in plan if row[3].startswith("SEARCH part ")]
    assert steps
    index = "ix_measurement_workload_times (workload_id=? AND facet_id=?"
    assert all(index in step for step in steps)


@pytest.mark.skipif(not postgres.PROGRAMS, reason="no PostgreSQL here: install it")
def test_a_server_that_was_killed_and_came_back_answers_the_next_question():
    with postgres.postgres_folder() as folder:
        cluster = postgres.Cluster(folder, postgres.free_port(), postgres.SYSTEM_STAYS)
        cluster.start()
        cluster.wait()
        store = SqlStore(Database(cluster.url("postgres")))
        try:
            upgrade(store.database)
            stored = measurement(protocol=Protocol.CONFIRM)
            store.add(stored)
            key = (stored.workload, HARDWARE.key, "p1", TOOLCHAIN.key)
            assert store.best(*key) == stored
            follower = Follower(store.database)
            follower.look()
            for ask in (
                lambda: store.best(*key),
                lambda: follower.look().kernels,
                store.all_hardware,
            ):
                expected = ask()
                restart(cluster)  # nobody asks meanwhile
                assert ask() == expected
                end(cluster)
                with pytest.raises(DatabaseUnreachable):
                    ask()
                begin(cluster)
                assert ask() == expected
        finally:
            store.database.close()
            cluster.stop()


def restart(cluster):
    end(cluster)
    begin(cluster)


def end(cluster):
    """Kill the server with SIGKILL, and wait until its processes, which notice, have ended."""
    pid = cluster.process.pid
    serving = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert serving
    cluster.process.kill()
    cluster.process.wait(60)
    deadline = time.monotonic() + 60
    while any(map(is_alive, serving)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def begin(cluster):
    """Start the server again, as soon as those of its processes that still end let it."""
    for _ in range(100):
        cluster.start()
        time.sleep(0.1)
        if cluster.process.poll() is None:
            cluster.wait()
            return
    raise AssertionError("PostgreSQL does not start again")
