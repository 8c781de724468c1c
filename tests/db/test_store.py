"""SqlStore keeps measurements whole and finds the right ones."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import CheckConstraint, insert, inspect, select, text, update
from sqlalchemy import exc as sa_exc

from db.errors import ModelCorrupt
from db.models import Base, MeasurementRow
from db.records import MeasurementQuery
from db.service_models import CompactionRow, ModelRow
from db.snapshot import Snapshot
from recommender.hardware import HardwareProfile
from recommender.measurement import MeasureStatus, Protocol, Toolchain
from recommender.workload import Workload
from tests.db.conftest import BOTH
from tilecore.tile_config import TileConfig

HARDWARE = HardwareProfile(name="bench CPU", kind="cpu", arch="x86-64-avx2", cores=2)
TOOLCHAIN = Toolchain(tilecore="t1", tvm="0.27", llvm="22")

pytestmark = BOTH


def test_round_trip_keeps_every_field(store, make_measurement):
    written = make_measurement(
        compile_s=0.1, max_error=0.25, worker="w0", threads=2, driver="kernel 6.1"
    )
    store.add(written)
    assert store.measurements() == [written]


def test_of_two_who_import_the_same_one_stores_it(store, second_store, make_measurement):
    """Both found it missing, then both stored it."""
    one = make_measurement()

    def bring(into):
        def look():
            known = into.measurements()
            time.sleep(0.2)
            return [] if known else [one]

        return into.add_unknown(look)

    with ThreadPoolExecutor(2) as pool:
        stored = list(pool.map(bring, (store, second_store)))
    assert sorted(stored, key=len) == [[], [one]]
    assert store.count_measurements() == 1


def test_a_failure_has_no_time_and_keeps_its_cause(store, make_measurement):
    store.add(make_measurement(None))
    (read,) = store.measurements()
    assert (read.status, read.time_s, read.detail) == (
        MeasureStatus.COMPILE_ERROR,
        None,
        "no such register",
    )
    assert store.measurements(only_ok=True) == []


def test_a_repeated_query_sees_new_records(store, make_measurement, second_store):
    store.add(make_measurement(1e-3))
    assert len(store.measurements()) == len(store.measurements()) == 1
    second_store.add(make_measurement(2e-3))  # another process
    assert len(store.measurements()) == 2


def test_best_prefers_confirmed_times_and_needs_the_exact_key(store, make_measurement):
    fast = make_measurement(1e-4, config=TileConfig.of(block_M=1))
    confirmed = make_measurement(2e-4, protocol=Protocol.CONFIRM, config=TileConfig.of(block_M=2))
    slower = make_measurement(3e-4, protocol=Protocol.CONFIRM, config=TileConfig.of(block_M=3))
    key = (fast.workload, HARDWARE.key, "p1", TOOLCHAIN.key)
    assert store.best(*key) is None
    store.add(fast)
    assert store.best(*key) == fast
    for other in (slower, confirmed, make_measurement(None, config=TileConfig.of(block_M=4))):
        store.add(other)
    assert store.best(*key) == confirmed
    assert store.best(fast.workload, HARDWARE.key, "p2", TOOLCHAIN.key) is None
    assert store.best(fast.workload, HARDWARE.key, "p1", "other") is None
    assert store.best(fast.workload, "other", "p1", TOOLCHAIN.key) is None


def test_what_databases_refuse_costs_no_record(store, make_measurement, new_run):
    """A candidate's NUL, or half a surrogate pair of its file name, made its result unstorable."""
    odd = "a\0b\udcffc"
    name = Workload.of(f"{odd}.py:f", {"m": 4, "odd": odd})
    numbers = {"clock": float("nan"), "load": float("inf"), "pairs": 2.0}
    stored = make_measurement(
        None, detail=odd, worker=odd, driver=odd, workload=name, metrics=numbers,
        config=TileConfig.of(mode=odd),
    )  # fmt: skip
    store.add(stored)
    store.add(stored)
    assert store.count_measurements() == 2
    (found,) = {str(m.detail) for m in store.measurements()}
    assert found == "a\N{SYMBOL FOR NULL}b\N{REPLACEMENT CHARACTER}c"
    for m in store.measurements():
        assert (m.worker, m.driver, m.config["mode"]) == (found, found, found)
        assert (m.workload.kernel, dict(m.metrics)) == (f"{found}.py:f", {"pairs": 2.0})
    assert [r.measurement.detail for r in store.page(MeasurementQuery(kernel=name.kernel), limit=9)
            .items] == [found] * 2  # fmt: skip
    run = new_run(spec={"max_trials": 4, "note": odd, "weights": [1.5, float("nan")]})
    assert store.runs.get(run.public_id).spec["note"] == found
    assert store.runs.get(run.public_id).spec["weights"] == [1.5, None]


def test_fastest_begins_with_the_best_and_names_each_config_once(store, make_measurement):
    def add(time_s, block, protocol=Protocol.CONFIRM, driver="d1"):
        config = TileConfig.of(block_M=block)
        store.add(make_measurement(time_s, protocol=protocol, config=config, driver=driver))

    workload = make_measurement().workload
    key = (workload, HARDWARE.key, "p1", TOOLCHAIN.key, "d1")
    assert not store.is_known(workload)
    assert store.fastest(*key, count=5) == []
    add(1e-4, 1, Protocol.SCREEN)
    assert store.is_known(workload)
    assert store.fastest(*key, count=5) == [store.best(*key)]
    add(5e-5, 2, driver="d2")
    assert store.fastest(*key, count=5) == [store.best(*key)]
    for time_s, block in ((3e-4, 3), (2e-4, 4), (2.5e-4, 4), (4e-4, 5)):
        add(time_s, block)
    found = store.fastest(*key, count=5)
    assert found[0] == store.best(*key)
    assert [(m.config["block_M"], m.time_s) for m in found] == [(4, 2e-4), (3, 3e-4), (5, 4e-4)]
    assert store.fastest(workload, HARDWARE.key, "p2", TOOLCHAIN.key, "d1", count=5) == []


def test_a_snapshot_reads_devices_and_models_once_and_measurements_always(store, make_measurement):
    snapshot = Snapshot(store)
    first = make_measurement(2e-4, protocol=Protocol.CONFIRM)
    key = (first.workload, HARDWARE.key, "p1", TOOLCHAIN.key)
    assert snapshot.hardware(HARDWARE.key) is None
    assert (snapshot.active_model("gemm", "cpu"), snapshot.best(*key)) == (None, None)
    store.add(first)
    model = {"blob": b"m", "feature_schema": "s", "metrics": {}, "trained_on": 1}
    store.models.save(kernel="gemm", family="cpu", promote=True, **model)
    assert snapshot.best(*key) == first
    assert (snapshot.hardware(HARDWARE.key), snapshot.active_model("gemm", "cpu")) == (None, None)
    later = Snapshot(store)
    assert later.hardware(HARDWARE.key) == store.hardware(HARDWARE.key) is not None
    assert later.active_model("gemm", "cpu").blob == b"m"


def test_best_prefers_times_of_this_driver(store, make_measurement):
    def confirmed(time_s, driver):
        found = make_measurement(
            time_s, protocol=Protocol.CONFIRM, config=TileConfig.of(t=driver), driver=driver
        )
        store.add(found)
        return found

    key = (make_measurement().workload, HARDWARE.key, "p1", TOOLCHAIN.key)
    old = confirmed(1e-4, "d1")
    assert store.best(*key) == store.best(*key, "d1") == store.best(*key, "d2") == old
    store.add(make_measurement(5e-5, driver="d2"))  # only screened
    assert store.best(*key, "d2") == old
    new = confirmed(2e-4, "d2")
    assert (store.best(*key, "d2"), store.best(*key, "d1"), store.best(*key)) == (new, old, old)
    unknown = confirmed(1.5e-4, "")
    assert store.best(*key, "d2") == unknown


def test_filters(store, make_measurement, make_workload):
    store.add(make_measurement(1e-3))
    store.add(make_measurement(2e-3, workload=make_workload(128)))
    store.add(make_measurement(None, workload=make_workload(128, "float64")))

    def count(**filters):
        return len(store.page(MeasurementQuery(**filters), limit=10).items)

    assert count() == 3
    assert count(m=128) == 2
    assert count(m=128, dtype="float64") == 1
    assert count(status=MeasureStatus.OK) == 2
    assert count(kernel="conv") == 0
    assert count(hardware_key=HARDWARE.key) == 3
    assert count(protocol=Protocol.CONFIRM) == 0
    assert count(best_first=True) == 2


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(limit=st.integers(1, 7), best_first=st.booleans())
def test_pages_show_every_record_once(store, make_measurement, limit, best_first):
    if store.count_measurements() == 0:
        for i in range(12):  # equal times: the id must break the tie
            store.add(make_measurement(1e-3 * (1 + i % 3), config=TileConfig.of(block_M=i)))
    query, seen, after = MeasurementQuery(best_first=best_first), [], None
    while True:
        page = store.page(query, limit=limit, after=after)
        seen += [(r.measurement.time_s, r.id) for r in page.items]
        after = page.next_after
        if after is None:
            break
    assert len(set(seen)) == len(seen) == 12
    assert seen == (sorted(seen) if best_first else sorted(seen, key=lambda r: -r[1]))


@pytest.mark.parametrize("table", ["measurement", "measurement_sample"])
def test_measurements_cannot_be_changed_or_deleted(store, make_measurement, table):
    written = [make_measurement(), make_measurement(None)]
    store.add_all(written)
    column = {"measurement": "threads", "measurement_sample": "measurement_id"}[table]
    changes = [f"update {table} set {column} = {column}", f"delete from {table}"]
    if store.database.path is None:
        changes.append(f"truncate {table} cascade")
    for change in changes:
        refused = pytest.raises(sa_exc.IntegrityError, match="append-only")
        with refused, store.database.write() as session:
            session.execute(text(change))
    assert store.measurements() == written[::-1]


def test_only_in_the_transaction_of_an_open_compaction_is_anything_deleted(
    store, second_store, make_measurement
):
    store.add(make_measurement())
    opened = "update compaction set is_open = "
    now, gone = store.measurements()[0].measured_at, "delete from measurement_sample"
    with store.database.write() as session:
        session.add(CompactionRow(at=now, policy={}, is_open=False))
    with store.database.write() as session:
        session.execute(text(opened + "true"))
        refused = pytest.raises(sa_exc.IntegrityError, match="append-only")
        with refused, session.begin_nested():
            session.execute(text("update measurement set threads = 9"))
        if store.database.path is None:  # SQLite has one writer at a time
            with refused, second_store.database.write() as other:
                other.execute(text(gone))
        session.execute(text(gone))
        session.execute(text(opened + "false"))
        with refused:
            session.execute(text("delete from measurement"))


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ({"status": "OK", "time_s": None}, "time_or_failure"),
        ({"status": "COMPILE_ERROR", "time_s": 1.0}, "time_or_failure"),
        ({"status": "ODD", "time_s": None}, "status"),
        ({"protocol": "guess"}, "protocol"),
    ],
)
def test_the_database_itself_refuses_impossible_rows(store, make_measurement, change, constraint):
    store.add(make_measurement())
    table = MeasurementRow.__table__
    with store.database.read() as session:
        row = dict(session.execute(select(table)).one()._mapping)
    del row["id"]
    with store.database.write() as session:
        session.execute(insert(table).values(row))  # a possible one
    refused = pytest.raises(sa_exc.IntegrityError, match=f"ck_measurement_{constraint}")
    with refused, store.database.write() as session:
        session.execute(insert(table).values(row | change))
    assert store.count_measurements() == 2


def test_checks_name_the_closed_sets_of_their_columns(store):
    """Alembic does not see changed CHECK constraints, so this test does."""
    found = inspect(store.database.engine)
    for table in Base.metadata.sorted_tables:
        checks = {c["name"]: c["sqltext"] for c in found.get_check_constraints(table.name)}
        wanted = [c for c in table.constraints if isinstance(c, CheckConstraint)]
        assert set(checks) == {str(c.name) for c in wanted}
        for check in wanted:
            words = re.findall(r"'[^']*'", str(check.sqltext))
            assert words == re.findall(r"'[^']*'", checks[str(check.name)]) != []


def test_hardware_profile_is_replaced_by_a_measured_one(store):
    store.save_hardware(HARDWARE)
    measured = HardwareProfile(
        name="bench CPU",
        kind="cpu",
        arch="x86-64-avx2",
        cores=2,
        peak_flop_per_s={"float32": 1e11},
        features=(),
        source="measured 2026-11-20",
    )
    store.save_hardware(measured)
    assert store.hardware(HARDWARE.key) == measured
    assert store.all_hardware() == [measured]


def test_one_model_is_active_and_damage_is_noticed(store, caplog):
    def save(blob, promote, family="cpu"):
        return store.models.save(
            kernel="gemm", family=family, blob=blob, feature_schema="f1", metrics={"r": 1.0},
            trained_on=9, promote=promote,
        )  # fmt: skip

    assert store.active_model("gemm", "cpu") is None
    save(b"one", True)
    save(b"candidate", False)
    assert store.active_model("gemm", "cpu").blob == b"one"
    newest = save(b"two", True)
    save(b"of GPUs", True, "sm_90a")
    found = store.active_model("gemm", "cpu")
    assert (found.id, found.blob) == (newest, b"two")
    assert store.active_model("gemm", "sm_90a").blob == b"of GPUs"
    assert store.active_model("gemm", "gfx942") is None
    with store.database.write() as session:
        session.execute(update(ModelRow).where(ModelRow.state == "active").values(blob=b"0"))
    with pytest.raises(ModelCorrupt, match="DB808"):
        store.models.active("gemm", "cpu")
    with caplog.at_level("WARNING"):  # whatever other tests have set
        assert store.active_model("gemm", "cpu") is None
    assert "DB808" in caplog.text


def test_points_in_time_come_back_in_utc(store, make_measurement):
    east = timezone(timedelta(hours=5, minutes=30))
    dates = [
        datetime(2026, 11, 28, 1, 2, 3, 456789, tzinfo=UTC),
        datetime(2026, 11, 28, tzinfo=UTC),
        datetime(1999, 12, 31, 23, 59, 59, 1, tzinfo=east),
    ]
    for at in dates:
        store.add(make_measurement(1e-3, measured_at=at))
    found = [m.measured_at for m in store.measurements()]
    assert found == dates
    assert [at.utcoffset() for at in found] == [timedelta(0)] * len(dates)
