"""The log as users ask it: every filter, order and page against a plain list of what is stored."""

import csv
import io
import json
import random
import sys
import threading
import tracemalloc
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice, product
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text
from sqlalchemy.dialects import sqlite

from db.errors import FormatMissing, NotOneSpace
from db.exchange.csv_log import COLUMNS
from db.exchange.parquet import GROUP
from db.log import Log
from db.migrate import open_database
from db.models import MeasurementRow, WorkloadFacetRow
from db.records import MeasurementQuery
from db.scope import FEW_OF_DAYS, FEW_OF_OWN, PROBED, Scope, Ways, _farther
from db.shape import first_rows, merged
from db.storable import decoded_json
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from recommender.measurement import MeasureStatus, Protocol, Toolchain
from recommender.nearest import best_nearby, workload_distance
from recommender.recorded import RecordedSpace
from recommender.workload import Workload
from tests import postgres
from tests.db.conftest import BOTH, measurement
from tilecore.tile_config import TileConfig

WINNERS = MeasurementQuery(winners=True)
START = datetime(2026, 1, 1, tzinfo=UTC)
KERNELS, SIZES, DTYPES = ("gemm", "conv"), (64, 128, 4096), ("float32", "float16")
DEVICES = [
    HardwareProfile(name=name, kind="cpu", arch="x86-64-avx2", cores=2) for name in ("A", "B", "C")
]
TOOLCHAINS = [Toolchain(tilecore=name, tvm="0.27", llvm="22") for name in ("t1", "t2")]
STATUSES = (MeasureStatus.OK, MeasureStatus.OK, MeasureStatus.COMPILE_ERROR, MeasureStatus.UNSTABLE)


def some(seed, number):
    """Return a random measurement; times and dates repeat, so that ids must break ties."""
    rng = random.Random(f"{seed} {number}")
    status = rng.choice(STATUSES)
    problem = {"m": rng.choice(SIZES), "n": 64, "k": 32, "dtype": rng.choice(DTYPES)}
    ok = status is MeasureStatus.OK
    kernel = rng.choice(KERNELS)
    return measurement(
        rng.choice((1, 2, 3, 5, 8)) * 1e-3 if ok else None,
        workload=Workload.of(kernel, problem, rng.choice((0, 1))),
        config=TileConfig.of(block_M=number),
        hardware=rng.choice(DEVICES),
        toolchain=rng.choice(TOOLCHAINS),
        program_digest=rng.choice(("p1", "p2", f"{kernel}'s")),
        protocol=rng.choice(list(Protocol)),
        status=status,
        measured_at=START + timedelta(hours=rng.randrange(48)),
        driver=rng.choice(("", "d1", "d2")),
    )


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(request, tmp_path_factory):
    with ExitStack() as opened:
        url = f"sqlite:///{tmp_path_factory.mktemp('log') / 'tilecore.db'}"
        if request.param == "postgresql":
            template = request.getfixturevalue("postgres_template")
            if template is None:
                pytest.skip("no PostgreSQL here: install it, or set TILECORE_TEST_POSTGRES_URL")
            url = opened.enter_context(postgres.database(*template))
        store = SqlStore(open_database(url))
        records = [some("log", number) for number in range(400)]
        ids = store.add_all(records[::2], created_by="alice")  # even ones
        ids += store.add_all(records[1::2])
        yield store, dict(zip(ids, records[::2] + records[1::2], strict=True))
        store.database.close()


def matches(query, m):
    problem = dict(m.workload.problem)
    asked = {
        "kernel": m.workload.kernel, "threads": m.workload.threads, "status": m.status,
        "protocol": m.protocol, "hardware_key": m.hardware.key, "toolchain_key": m.toolchain.key,
        "program_digest": m.program_digest,
        "created_by": None if m.config["block_M"] % 2 else "alice",
        **{d: problem[d] for d in ("m", "n", "k", "dtype")},
    }  # fmt: skip
    return (
        all(getattr(query, name) in (None, value) for name, value in asked.items())
        and (query.since is None or m.measured_at >= query.since)
        and (query.until is None or m.measured_at < query.until)
        and (m.status is MeasureStatus.OK or not (query.best_first or query.winners))
    )


def all_ids(store, query, limit):
    seen, after = [], None
    while True:
        page = store.page(query, limit=limit, after=after)
        assert len(page.items) <= limit
        seen += [r.id for r in page.items]
        after = page.next_after
        if after is None:
            return seen
        assert len(page.items) == limit


def maybe(values):
    return st.none() | st.sampled_from(list(values))


FILTERS = {
    "kernel": maybe((*KERNELS, "softmax")),
    "m": maybe(SIZES),
    "dtype": maybe(DTYPES),
    "threads": maybe((0, 1)),
    "status": maybe((MeasureStatus.OK, MeasureStatus.COMPILE_ERROR, MeasureStatus.WRONG_RESULT)),
    "protocol": maybe(Protocol),
    "hardware_key": maybe(d.key for d in DEVICES),
    "toolchain_key": maybe([t.key for t in TOOLCHAINS] + ["unknown"]),
    "program_digest": maybe(("p1", "gemm's", "p3")),  # of both kernels, of one, of none
    "since": maybe(START + timedelta(hours=h) for h in (0, 12, 30)),
    "created_by": maybe(("alice", "bob")),
    "until": maybe(START + timedelta(hours=h) for h in (12, 31)),
}


@pytest.mark.few(1)
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    filters=st.fixed_dictionaries(FILTERS),
    best=st.booleans(),
    limit=st.sampled_from((3, 40, 500)),
    few=st.sampled_from((0, FEW_OF_OWN)),
    probed=st.sampled_from(((5, 15, 45), PROBED)),
)
def test_every_combination_of_filters_pages_like_a_list(filled, filters, best, limit, few, probed):
    store, stored = filled
    store.log._ways = Ways()
    query = MeasurementQuery(**filters, best_first=best)
    found = [number for number, m in stored.items() if matches(query, m)]
    if best:
        found.sort(key=lambda i: (stored[i].time_s, i))
    else:
        found.sort(key=lambda i: (stored[i].measured_at, i), reverse=True)
    with patch.multiple("db.scope", FEW_OF_OWN=few, PROBED=probed):
        assert all_ids(store, query, limit) == found


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    filters=st.fixed_dictionaries(FILTERS),
    limit=st.sampled_from((1, 7, 100)),
    few=st.sampled_from((0, FEW_OF_OWN)),
    dated=st.sampled_from((0, FEW_OF_DAYS)),
)
def test_winners_are_the_best_of_each_workload_and_device(filled, filters, limit, few, dated):
    store, stored = filled
    store.log._ways = Ways()
    query = MeasurementQuery(**filters, winners=True)
    best = {}
    for number, m in stored.items():
        if matches(query, m):
            order = (m.protocol is not Protocol.CONFIRM, m.time_s, number)
            key = (m.workload.key, m.hardware.key)
            best[key] = min(best.get(key, order), order)
    with patch.multiple("db.scope", FEW_OF_OWN=few, FEW_OF_DAYS=dated):
        found = all_ids(store, query, limit)
    assert sorted(found) == sorted(order[-1] for order in best.values())
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("walked", "by_time"),
    [("facet", False), ("facet", True), ("workload", False), ("workload_facet", True)],
)
def test_what_is_merged_of_many_parts_are_the_first_of_all(filled, walked, by_time):
    """There are more facets and workloads than rows are asked for: most give none, or not all."""
    store, stored = filled
    filters = {"kernel": "gemm"} if walked == "facet" else {"kernel": "gemm", "k": 32}
    query = MeasurementQuery(**filters, best_first=by_time)
    scope = Scope(query, store.database.engine.dialect.name)
    order = {
        i: (m.time_s if by_time else START - m.measured_at, i if by_time else -i)
        for i, m in stored.items()
        if m.workload.kernel == "gemm" and (m.time_s is not None or not by_time)
    }
    expected = sorted(order, key=order.get)
    for limit, start in product((1, 2, 7, 19), (0, 1, 30, len(expected) - 5)):
        shape = replace(scope.shape, walked=walked, goes_on=start > 0)
        values = scope.values | {"limit": limit}
        if start:
            last = stored[expected[start - 1]]
            values["after_id"] = expected[start - 1]
            values["after_value"] = last.time_s if by_time else last.measured_at
        found = [row.id for row in store.database.ask(merged(shape), values)]
        assert found == expected[start : start + limit]


@pytest.mark.parametrize("walked", ["facet", "workload", "workload_facet"])
@pytest.mark.parametrize("filters", [{}, {"until": START}, {"kernel": "gemm", "until": START}])
def test_sqlite_walks_parts_first(store, walked, filters):
    """For the fastest until some day it walked all measurements, and for each of them all facets.

    Of 5,000 measurements that took 1.5 s.
    """
    query = MeasurementQuery(best_first=True, **filters)
    shape = replace(Scope(query, "sqlite").shape, walked=walked)
    statement = str(merged(shape).compile(dialect=sqlite.dialect()))
    with store.database.read() as session:
        explained = f"explain query plan {statement}"
        given = (1,) * statement.count("?")
        plan = [row[-1] for row in session.connection().exec_driver_sql(explained, given)]
    assert not any(step.startswith("SCAN measurement") for step in plan), plan


@pytest.mark.parametrize("by_time", [False, True])
def test_records_are_read_with_a_probe_that_found_enough(filled, by_time):
    store, stored = filled
    scope = Scope(
        MeasurementQuery(kernel="gemm", best_first=by_time), store.database.engine.dialect.name
    )
    have = sum(
        m.workload.kernel == "gemm" and (m.time_s is not None or not by_time)
        for m in stored.values()
    )
    for limit, expected in ((7, 7), (have, have), (have + 1, have)):
        values = scope.values | {"limit": limit}
        found = store.database.ask(first_rows(scope.shape, 512, 1000), values)
        assert len(found) == expected
        assert [row.id for row in found] == [
            row.key_id if expected == limit else None for row in found
        ]


def test_what_one_page_found_out_about_filters_the_next_one_need_not(filled):
    """How many facets match was counted, and rows were looked at in vain, for every page."""
    store, _ = filled
    log, asked = Log(store.database), []

    class Counted:
        def __init__(self, database):
            self.engine, self.execute = database.engine, database.execute

        def ask(self, query, values):
            asked.append(set(query.selected_columns.keys()))
            return store.database.ask(query, values)

    log._database = Counted(store.database)
    for query in (
        MeasurementQuery(kernel="gemm"),
        MeasurementQuery(kernel="gemm", best_first=True),
        MeasurementQuery(status=MeasureStatus.UNSTABLE, dtype="float16"),
    ):
        first = log.page(query, limit=5)
        asked.clear()
        again = log.page(query, limit=5)
        log.page(query, limit=5, after=again.next_after)
        walks = [columns for columns in asked if "key_id" in columns]
        others = [columns for columns in asked if "key_id" not in columns]
        assert len(walks) == 2
        assert all("id" in columns for columns in others)  # what records refer to; no counts
        assert [r.id for r in again.items] == [r.id for r in first.items]


def test_the_last_page_of_a_filter_does_not_make_first_pages_slow(filled):
    """The end of the log is where probes find too little, whatever lies at its start."""
    store, _ = filled
    scope = Scope(MeasurementQuery(kernel="gemm"), store.database.engine.dialect.name)
    ways = Ways()
    way = ways.of(scope, store.database.ask)
    way.count = 1000  # so many that a look at the next rows comes first
    assert len(scope.rows(store.database.ask, None, 5, ways)) == 5
    at_end = scope.rows(store.database.ask, (START, 0), 5, ways)
    assert at_end == []
    assert way.probed == {False: PROBED[0], True: 0}
    way.probed[True] = PROBED[0]
    query = MeasurementQuery(kernel="gemm", until=START + timedelta(hours=30))
    days = Scope(query, store.database.engine.dialect.name)
    dated = ways.of(days, store.database.ask)
    dated.count = 1000
    assert days.rows(store.database.ask, (START, 0), 5, ways) == []
    assert dated.probed[True] == PROBED[0]  # other days may have more


@pytest.mark.parametrize(
    ("probed", "found", "merging", "farther"),
    [
        (2_000, 50, 9_000, 6_000),  # it was nearly enough
        (2_000, 20, 9_000, 20_000),
        (2_000, 0, 9_000, 0),
        (2_000, 20, 3_000, 0),  # to merge takes less
        (20_000, 50, 50_000, 0),
        (2_000, 0, None, 20_000),  # it cannot be merged
        (20_000, 0, None, 0),
    ],
)
def test_a_probe_is_followed_by_a_longer_one_where_that_pays(probed, found, merging, farther):
    assert _farther(probed, 51, found, merging) == farther


def test_every_facet_that_a_workload_has_a_time_of_is_noted_once(filled):
    store, _ = filled
    log, noted = MeasurementRow, WorkloadFacetRow
    with store.database.read() as session:
        pairs = session.execute(select(noted.workload_id, noted.facet_id)).all()
        timed = select(log.workload_id, log.facet_id).where(log.time_s.is_not(None)).distinct()
        assert sorted(map(tuple, pairs)) == sorted(map(tuple, session.execute(timed)))


def test_records_near_a_shape_come_with_their_distance(filled):
    store, stored = filled
    asked = Workload.of("gemm", {"m": 100, "n": 64, "k": 32, "dtype": "float32"})
    page = store.page(MeasurementQuery(near=asked, near_count=2, winners=True), limit=100)
    assert {dict(r.measurement.workload.problem)["m"] for r in page.items} == {128}
    distances = [r.distance for r in page.items]
    assert distances == sorted(distances)
    for r in page.items:
        assert r.distance == pytest.approx(workload_distance(r.measurement.workload, asked))
    log = store.page(MeasurementQuery(near=asked, near_count=2), limit=500).items
    near = {r.measurement.workload.key for r in page.items}
    assert len(log) == sum(m.workload.key in near for m in stored.values())
    elsewhere = Workload.of("softmax", {"m": 1})
    assert store.page(MeasurementQuery(near=elsewhere), limit=5).items == []


@pytest.mark.few(1)
@pytest.mark.parametrize("limit", [1, 5, 100])
@pytest.mark.parametrize(
    "filters",
    [{}, {"threads": 1}, {"m": 4096, "dtype": "float16"}, {"hardware_key": DEVICES[1].key}],
)
def test_winners_near_a_shape_pass_the_other_filters(filled, filters, limit):
    store, stored = filled
    asked = Workload.of("gemm", {"m": 4000, "n": 64, "k": 32, "dtype": "float32"})
    query = MeasurementQuery(near=asked, near_count=7, winners=True, **filters)
    log = store.page(MeasurementQuery(near=asked, near_count=7), limit=500).items
    near = {r.measurement.workload for r in log}
    matching = [m for m in stored.values() if m.workload in near and matches(query, m)]
    found = [stored[number] for number in all_ids(store, query, limit)]
    distances = [workload_distance(m.workload, asked) for m in found]
    assert distances == sorted(distances)
    pairs = [str((m.workload, m.hardware)) for m in found]
    assert sorted(pairs) == sorted({str((m.workload, m.hardware)) for m in matching})


@BOTH
def test_a_new_workload_is_found_near_by_at_once(store, make_measurement, make_workload):
    store.add(make_measurement(workload=make_workload(64)))
    query = MeasurementQuery(near=make_workload(1000), near_count=1)
    assert dict(store.page(query, limit=1).items[0].measurement.workload.problem)["m"] == 64
    store.add(make_measurement(workload=make_workload(1024)))
    assert dict(store.page(query, limit=1).items[0].measurement.workload.problem)["m"] == 1024


def test_what_lies_near_serves_recommendations_like_the_whole_log(filled):
    store, stored = filled
    asked = Workload.of("gemm", {"m": 100, "n": 64, "k": 32, "dtype": "float32"})
    key = {"program_digest": "p1", "toolchain_key": TOOLCHAINS[0].key}
    gemms = [m for m in stored.values() if m.workload.kernel == "gemm"]
    whole = best_nearby(gemms, asked, DEVICES[0], **key)
    near = best_nearby(store.nearest(asked, count=16), asked, DEVICES[0], **key)
    summary = [
        [(n.distance, n.is_stale, n.measurement.protocol, n.measurement.time_s) for n in found]
        for found in (whole, near)
    ]
    assert sorted(summary[0]) == sorted(summary[1])


@BOTH
def test_many_workloads_are_walked_as_one_log(store, make_measurement):
    ids = store.add_all(
        [
            make_measurement(workload=Workload.of("gemm", {"m": i, "dtype": "float32"}))
            for i in range(1, 1101)
        ]
    )
    assert all_ids(store, MeasurementQuery(dtype="float32"), 400) == ids[::-1]


def test_a_bad_key_shows_an_empty_page(filled):
    store, _ = filled
    for query in (MeasurementQuery(), MeasurementQuery(winners=True)):
        ends = [(2.0**61, 2**61), (-(2.0**61), -(2**61))]
        pages = [store.page(query, limit=5, after=end).items for end in ends]
        assert [] in pages
        assert sum(len(items) for items in pages) in (0, 5)


@BOTH
def test_winners_of_one_batch_come_in_the_order_of_their_first_measurements(
    store, make_measurement, make_workload
):
    sizes = [512, 64, 2048, 128, 1, 4096]
    store.add_all([make_measurement(workload=make_workload(m)) for m in (*sizes, *sizes[::-1])])
    found = [r.measurement.workload for r in store.page(WINNERS, limit=9).items]
    assert found == [make_workload(m) for m in sizes]


REFUSE = {
    "sqlite": (
        "create trigger refuse before insert on measurement when new.worker = 'bad' "
        "begin select raise(abort, 'refused'); end",
    ),
    "postgresql": (
        "create function refuse() returns trigger language plpgsql as "
        "$$ begin raise exception 'refused'; end $$",
        "create trigger refuse before insert on measurement for each row "
        "when (new.worker = 'bad') execute function refuse()",
    ),
}


@BOTH
def test_a_batch_is_stored_whole_or_not_at_all(store, make_measurement):
    with store.database.write() as session:
        for statement in REFUSE[session.get_bind().dialect.name]:
            session.execute(text(statement))
    batch = [make_measurement(worker=w, config=TileConfig.of(w=w)) for w in ("good", "bad")]
    with pytest.raises(Exception, match="refused"):
        store.add_all(batch)
    assert store.count_measurements() == 0
    store.add(batch[0])  # what it refers to was rolled back, too: nothing of it is remembered
    assert store.measurements() == [batch[0]]
    assert [r.measurement for r in store.page(WINNERS, limit=2).items] == [batch[0]]


@BOTH
def test_32_writers_lose_nothing(store, make_measurement, store_url):
    faults = []

    def write(name):
        own = SqlStore(open_database(store_url))
        try:
            for i in range(3):
                own.add(make_measurement(config=TileConfig.of(writer=name, i=i)))
        except Exception as error:  # noqa: BLE001  any fault is one that a user would see
            faults.append(error)
        finally:
            own.database.close()

    threads = [threading.Thread(target=write, args=(name,)) for name in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert len({m.config for m in store.measurements()}) == 96


def test_exports_come_in_long_pieces(store, make_measurement):
    """Each piece goes to a thread of the service and back: so did every line, most of the time."""
    store.add_all([make_measurement(config=TileConfig.of(i=i)) for i in range(1000)])
    for form in ("csv", "t4"):
        lengths = [len(piece) for piece in store.log.export(MeasurementQuery(), form)]
        assert min(lengths[:-1]) >= 65_536
        assert max(lengths) < 140_000


def test_csv_holds_every_record(filled):
    store, stored = filled
    query = MeasurementQuery(kernel="conv")
    lines = list(csv.DictReader(io.StringIO("".join(store.log.export(query, "csv")))))
    assert [int(line["id"]) for line in lines] == all_ids(store, query, 500)
    for line in lines:
        m = stored[int(line["id"])]
        assert json.loads(line["config"]) == dict(m.config)
        assert json.loads(line["repeats_us"]) == pytest.approx([t * 1e6 for t in m.times_s])
        assert (line["status"], line["time_us"] == "") == (m.status.value, m.time_s is None)
        assert datetime.fromisoformat(line["measured_at"]) == m.measured_at


def test_parquet_holds_every_record_with_its_types(filled):
    parquet = pytest.importorskip("pyarrow.parquet")
    store, stored = filled
    query = MeasurementQuery(kernel="conv")
    pieces = list(store.log.export(query, "parquet"))
    table = parquet.read_table(io.BytesIO(b"".join(pieces)))
    rows = table.to_pylist()
    assert [row["id"] for row in rows] == all_ids(store, query, 500)
    for row in rows:
        m = stored[row["id"]]
        assert json.loads(row["config"]) == dict(m.config)
        assert row["repeats_us"] == pytest.approx([t * 1e6 for t in m.times_s])
        assert row["measured_at"] == m.measured_at
        assert (row["status"], row["time_us"] is None) == (m.status.value, m.time_s is None)
        assert (row["driver"], row["hardware_key"]) == (m.driver, m.hardware.key)
    assert tuple(table.column_names) == COLUMNS
    empty = b"".join(store.log.export(MeasurementQuery(kernel="softmax"), "parquet"))
    assert parquet.read_table(io.BytesIO(empty)).num_rows == 0


@pytest.mark.few(1)
@BOTH
def test_parquet_is_written_in_groups(store, make_measurement):
    parquet = pytest.importorskip("pyarrow.parquet")
    store.add_all([make_measurement(config=TileConfig.of(i=i)) for i in range(2 * GROUP + 1)])
    pieces = list(store.log.export(MeasurementQuery(), "parquet"))
    assert len(pieces) == 4  # three groups and the end
    file = parquet.ParquetFile(io.BytesIO(b"".join(pieces)))
    assert [file.metadata.row_group(i).num_rows for i in range(3)] == [GROUP, GROUP, 1]


def test_parquet_without_its_package_says_what_to_install(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as where it is not installed
    with pytest.raises(FormatMissing, match=r"DB826.*pyarrow") as refused:
        store.log.export(MeasurementQuery(), "parquet")
    assert "tilecore[parquet]" in refused.value.hint


@BOTH
def test_t4_of_a_space_loads_again(store, make_measurement, tmp_path):
    times = [1e-3, 2e-3, None, 4e-3]
    records = [make_measurement(t, config=TileConfig.of(a=i, b="x")) for i, t in enumerate(times)]
    store.add_all([make_measurement(config=TileConfig.of(other=1)), *records])
    path = tmp_path / "space.t4.json"
    path.write_text("".join(store.log.export(MeasurementQuery(kernel="gemm"), "t4")))
    space = RecordedSpace.load(path)
    assert space.knobs == ("a", "b")
    assert set(space.configs) == {(str(i), "x") for i in range(4)}
    means = {c[0]: t for c, t in zip(space.configs, space.time_s, strict=True)}
    assert means["1"] == pytest.approx(sum(records[1].times_s) / 3)
    assert means["2"] != means["2"]
    document = json.loads(path.read_text())
    assert (document["metadata"]["results"], document["metadata"]["left_out"]) == (4, 1)
    assert document["results"][1]["invalidity"] == "compile"


def test_t4_wants_one_space(filled):
    store, _ = filled
    with pytest.raises(NotOneSpace, match=r"DB810.*found several"):
        store.log.export(MeasurementQuery(kernel="gemm"), "t4")
    with pytest.raises(NotOneSpace, match=r"DB810.*found none"):
        store.log.export(MeasurementQuery(kernel="softmax"), "t4")


@BOTH
def test_a_stream_holds_few_records_in_memory(store, make_measurement):
    for start in range(0, 2000, 1000):
        store.add_all(
            [make_measurement(config=TileConfig.of(i=i)) for i in range(start, start + 1000)]
        )
    peaks = []
    for count in (4, 40):
        tracemalloc.start()
        size = sum(
            len(piece) for piece in islice(store.log.export(MeasurementQuery(), "csv"), count)
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert size > 500_000
    assert peaks[1] < 1.5 * peaks[0]


def test_json_that_older_releases_stored_is_read():
    """Half a surrogate pair, which ``json`` takes and faster parsers refuse."""
    assert decoded_json('[{"a": 1.5}, "\\ud800"]') == [{"a": 1.5}, "\ud800"]
