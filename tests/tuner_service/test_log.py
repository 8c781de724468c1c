"""The tuning log over REST and on the command line: filters, pages, winners, files."""

import base64
import csv
import io
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.recorded import RecordedSpace
from recommender.workload import Workload
from tests.tuner_service.conftest import gemm
from tests.tuner_service.serving import TestClient
from tests.tuner_service.table_measurer import HARDWARE, TOOLCHAIN
from tilecore.tile_config import TileConfig
from tuner_service.app import create_app
from tuner_service.cli.app import run_cli
from tuner_service.routes.context import BIGINT, decode_cursor, encode_cursor

START = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def client(settings, store):
    store.add_all(
        [
            Measurement(
                workload=gemm(m),
                config=TileConfig.of(block_M=i, block_N=64),
                hardware=HARDWARE,
                toolchain=TOOLCHAIN,
                program_digest="p1",
                protocol=Protocol.CONFIRM if i == 5 else Protocol.SCREEN,
                threads=1,
                status=MeasureStatus.OK if i else MeasureStatus.COMPILE_ERROR,
                times_s=(1e-3 * i * m,) * 3 if i else (),
                detail="" if i else 'no such "register", line 1\nline 2',
                measured_at=START + timedelta(days=i),
            )
            for m in (64, 128, 2048)
            for i in range(6)
        ]
    )
    with TestClient(create_app(settings, store), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def tilecore(settings, store, client, monkeypatch, capsys):
    monkeypatch.setenv("TILECORE_DATA_DIR", str(settings.data_dir))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        status = run_cli(list(arguments))
        return status, *capsys.readouterr()

    return run


def items(client, query, **params):
    response = client.get(f"/v1/measurements?{query}", params=params or None)
    assert response.status_code == 200, response.text
    return response.json()["items"]


def test_filters_by_date_toolchain_and_program(client):
    week = "since=2026-03-03T00:00:00Z&until=2026-03-05T00:00:00%2B00:00&limit=200"
    found = items(client, week)
    assert [i["measured_at"][:10] for i in found] == ["2026-03-04"] * 3 + ["2026-03-03"] * 3
    assert len(items(client, f"toolchain={TOOLCHAIN.key}&status=COMPILE_ERROR")) == 3
    assert items(client, "toolchain=unknown") == []
    assert len(items(client, "program=p1&m=64")) == 6
    assert items(client, "program=p2") == []


def test_programs_of_scripts_are_found_by_their_names(client, store):
    """What `@tilelang.autotune` measures is filed under script:function: a 404 (TC501)."""
    (m,) = store.measurements(kernel="gemm", limit=1)
    store.add(replace(m, workload=Workload.of("script:function", {"A[0]": 64})))
    found = items(client, "kernel=script:function")
    assert [i["kernel"] for i in found] == ["script:function"]
    assert items(client, "kernel=script:another") == []


def test_near_and_winners(client):
    near = items(client, "kernel=gemm&near=m=100,n=64,k=64&near_count=2&best_per=workload")
    assert [(i["problem"]["m"], i["protocol"]) for i in near] == [(128, "confirm"), (64, "confirm")]
    assert 0 < near[0]["distance"] < near[1]["distance"]
    winners, cursor = [], None
    while True:
        query = {"best_per": "workload", "limit": 1} | ({"cursor": cursor} if cursor else {})
        page = client.get("/v1/measurements", params=query).json()
        winners += [i["problem"]["m"] for i in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert winners == [64, 128, 2048]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("near=m=100,n=64,k=64", "TC502"),
        ("kernel=gemm&near=m", "TC502"),
        ("kernel=gemm&near=m=100", "TC502"),
        ("kernel=gemm&near=m=99999999999999999999,n=1,k=1", "TC502"),
        ("since=2026-03-03T00:00:00", "SV901"),
        ("since=0001-01-01T00:00:00%2B14:00", "SV901"),
        ("until=yesterday", "SV901"),
        ("best_per=kernel", "SV901"),
        ("near_count=0", "SV901"),
    ],
)
def test_bad_filters_are_refused_by_name(client, query, code):
    for path in ("/v1/measurements?", "/v1/measurements/export?format=csv&"):
        response = client.get(path + query)
        assert (response.status_code, response.json()["code"]) == (422, code), response.text


def test_a_forged_cursor_is_no_fault_of_the_service(client):
    for query in ("limit=1", "limit=1&best=true", "limit=1&best_per=workload"):
        cursor = client.get(f"/v1/measurements?{query}").json()["next_cursor"]
        padded = cursor + "=" * (-len(cursor) % 4)
        name = json.loads(base64.urlsafe_b64decode(padded))["q"]
        assert decode_cursor(name, cursor, [BIGINT, BIGINT])
        for key in ([2**31 - 1] * 2, [-(2**31)] * 2, [1.5, 0.5], [2**61, 2**61]):
            forged = client.get(f"/v1/measurements?{query}&cursor={encode_cursor(name, key)}")
            is_refused = "best_per" in query and abs(key[0]) > 2**31 - 1  # of ids of INTEGER
            assert forged.status_code == (422 if is_refused else 200)


def test_csv_over_rest(client):
    response = client.get("/v1/measurements/export?format=csv&m=64")
    assert response.headers["content-type"].startswith("text/csv")
    assert "measurements.csv" in response.headers["content-disposition"]
    lines = list(csv.DictReader(io.StringIO(response.text)))
    assert len(lines) == 6
    assert lines[-1]["detail"] == 'no such "register", line 1\nline 2'
    assert float(lines[0]["time_us"]) == pytest.approx(5 * 64e3)


def test_parquet_over_rest_and_into_a_file(client, tilecore, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    response = client.get("/v1/measurements/export?format=parquet&m=64")
    assert response.headers["content-type"] == "application/vnd.apache.parquet"
    assert "measurements.parquet" in response.headers["content-disposition"]
    sent = parquet.read_table(io.BytesIO(response.content)).to_pylist()
    assert sent[0]["time_us"] == pytest.approx(5 * 64e3)
    path = tmp_path / "log.parquet"
    assert tilecore("log", "--m", "64", "--export", str(path))[0] == 0
    assert parquet.read_table(path).to_pylist() == sent


def test_parquet_without_its_package_is_refused_by_name(client, tilecore, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    response = client.get("/v1/measurements/export?format=parquet")
    assert (response.status_code, response.json()["code"]) == (422, "DB826")
    assert "tilecore[parquet]" in response.json()["hint"]
    status, _, err = tilecore("log", "--export", str(tmp_path / "log.parquet"))
    assert (status, "DB826" in err) == (2, True)


def test_t4_over_rest_loads_again(client, tmp_path):
    response = client.get("/v1/measurements/export?format=t4&m=128&protocol=screen")
    assert response.headers["content-type"].startswith("application/json")
    path = tmp_path / "space.t4.json"
    path.write_text(response.text)
    space = RecordedSpace.load(path)
    assert (len(space), space.knobs) == (5, ("block_M", "block_N"))
    assert space.best_s == pytest.approx(128e-3)
    several = client.get("/v1/measurements/export?format=t4")
    assert (several.status_code, several.json()["code"]) == (422, "DB810")


def test_the_command_line_writes_files(tilecore, tmp_path):
    table, space = tmp_path / "log.csv", tmp_path / "space.t4.json"
    status, out, err = tilecore("log", "--export", str(table), "--since", "2026-03-02")
    assert (status, err) == (0, "")
    assert "written" in out
    with table.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 15
    assert tilecore("log", "--m", "64", "--export", str(space))[0] == 0
    assert RecordedSpace.load(space).best_s == pytest.approx(64e-3)
    assert sorted(p.name for p in tmp_path.glob("*log*")) == ["log.csv"]
    status, out, _ = tilecore("log", "--winners", "--kernel", "gemm", "--near", "m=99,n=64,k=64")
    assert (status, out.count("confirm")) == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("log", "--kernel", "softmax"), "no measurement in the tuning log"),
        (("runs", "--created-by", "nobody"), "no tuning run"),
        (("keys", "list"), "no API keys"),
        (("model", "list"), "no cost model"),
        (("node", "list"), "no machine has joined"),
    ],
)
def test_a_list_of_nothing_says_so(tilecore, arguments, said):
    status, out, err = tilecore(*arguments)
    assert (status, err) == (0, "")
    assert said in out


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--export", "log.txt"), "SV914"),
        (("--export", "/nowhere/log.csv"), "SV914"),
        (("--export", "all.t4.json"), "DB810"),
        (("--near", "m=1"), "TC502"),
        (("--hardware", "abacus"), "RC601"),
    ],
)
def test_what_cannot_be_written_or_asked_is_told(tilecore, arguments, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = tilecore("log", *arguments)
    assert (status, told in err) == (2, True), err
    assert list(tmp_path.glob("*.partial")) == []
    assert not (tmp_path / "all.t4.json").exists()
