"""What operators do: compact the log by REST and by command line."""

import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import text

from db.migrate import open_database
from db.store import SqlStore
from tests.tuner_service.serving import TestClient
from tests.tuner_service.test_access import bearer  # noqa: F401
from tests.tuner_service.test_app import GEMM, problem
from tests.tuner_service.test_cli import cli  # noqa: F401
from tests.tuner_service.test_remeasure import measured, question  # noqa: F401
from tuner_service.app import create_app

BARE = {"keep_days": 0, "keep_best": 1, "keep_recent": 0, "keep_training": 0}


@pytest.fixture
def filled(store, question):  # noqa: F811
    store.add_all([measured(question, times_s=(1e-6 * i,)) for i in range(1, 9)])


def test_an_administrator_compacts_the_log(settings, store, filled, bearer):  # noqa: F811
    app = create_app(settings.model_copy(update={"auth": "required"}), store)
    client, admin = TestClient(app), bearer("admin")
    url = "/v1/database:compact"
    problem(client.post(url, json=BARE, headers=bearer("tune")), 403, "SV921")
    problem(client.post(url, json=BARE | {"keep_best": 0}, headers=admin), 422, "SV901")
    planned = client.post(url, json=BARE | {"dry_run": True}, headers=admin).json()
    assert (planned["measurements"], planned["removed"]) == (8, {"OK": 6})
    assert planned["is_dry_run"]
    assert store.count_measurements() == 8
    before = client.get("/v1/measurements?best=true&limit=1", headers=admin).json()["items"]
    asked = [GEMM, GEMM | {"problem": {"m": 128, "n": 64, "k": 64}}]
    answered = [
        client.post("/v1/recommendations", json=q, headers=admin).json()["recommendations"]
        for q in asked
    ]
    done = client.post(url, json=BARE, headers=admin).json()
    assert (done["removed"], done["is_complete"], done["note"]) == ({"OK": 6}, True, "")
    after = client.get("/v1/measurements?best=true", headers=admin).json()["items"]
    assert after[0] == before[0]
    assert len(after) == 2
    assert [
        client.post("/v1/recommendations", json=q, headers=admin).json()["recommendations"]
        for q in asked
    ] == answered
    gone = client.get("/v1/database/removed", headers=bearer("read")).json()["items"]
    assert gone == [{"kernel": "gemm", "status": "OK", "cause": "", "count": 6}]
    assert client.post(url, json={}, headers=admin).json()["removed"] == {}


def test_compacting_from_the_command_line(cli, store, filled):  # noqa: F811
    options = ["--keep-days", "0", "--keep-best", "1", "--keep-recent", "0"]
    command = ["db", "compact", *options, "--keep-training", "0"]
    status, out, _ = cli(*command, "--dry-run")
    assert status == 0
    assert "6 of 8 measurements would be removed (6 OK), 0 events" in out
    status, out, _ = cli(*command)
    assert "6 of 8 measurements removed (6 OK)" in out
    assert "MiB after" in out
    status, _, err = cli("db", "compact", "--keep-best", "0")
    assert status == 2
    assert "keep-best" in err


def test_a_copy_is_whole_while_others_write(cli, store, settings, filled, tmp_path):  # noqa: F811
    """To copy the file loses what its log has yet."""
    target = tmp_path / "copy.db"
    target.write_text("an older one")
    with store.database.write() as session:  # somebody else is in the middle of a change
        session.execute(text("delete from config where id < 0"))
        status, out, _ = cli("db", "backup", str(target))
    assert (status, out[:8]) == (0, "written:")
    assert sorted(p.name for p in tmp_path.iterdir() if "copy" in p.name) == ["copy.db"]
    copy = SqlStore(open_database(f"sqlite:///{target}"))
    assert copy.count_measurements() == 8
    copy.database.close()
    own = settings.data_dir / "tilecore.db"
    for path, why in ((own, "the database itself"), (tmp_path / "none" / "x", "unable to open")):
        status, _, err = cli("db", "backup", str(path))
        assert (status, err[:12]) == (2, "error: DB833")
        assert why in err
    assert store.count_measurements() == 8


def test_a_copy_fills_an_empty_database(cli, filled, monkeypatch, tmp_path):  # noqa: F811
    copy = tmp_path / "copy.db"
    assert cli("db", "backup", str(copy))[0] == 0
    monkeypatch.setenv("TILECORE_DATABASE_URL", f"sqlite:///{tmp_path}/new/tilecore.db")
    status, out, _ = cli("db", "restore", str(copy))
    assert status == 0
    assert "new/tilecore.db: 8 measurements, " in out
    status, _, err = cli("db", "restore", str(copy))
    assert (status, err[:12]) == (2, "error: DB835")


def test_what_is_no_embedded_database_is_not_copied(cli, monkeypatch, tmp_path):  # noqa: F811
    for url, why in (
        ("postgresql+psycopg://me:secret@db/x", "pg_dump"),
        (f"sqlite:///{tmp_path}/absent.db", "there is no such database"),
    ):
        monkeypatch.setenv("TILECORE_DATABASE_URL", url)
        status, _, err = cli("db", "backup", str(tmp_path / "copy"))
        assert status == 2
        assert why in err
        assert "secret" not in err
    assert list(tmp_path.glob("*copy*")) + list(tmp_path.glob("absent*")) == []


def test_a_file_without_our_tables_is_not_copied(cli, monkeypatch, tmp_path):  # noqa: F811
    """A file of no bytes is a database to SQLite: its copy was "written"."""
    empty, other, copy = (tmp_path / name for name in ("empty.db", "other.db", "copy.db"))
    empty.touch()
    with closing(sqlite3.connect(other)) as file:
        file.execute("create table t (x)")
    for path in (empty, other):
        monkeypatch.setenv("TILECORE_DATABASE_URL", f"sqlite:///{path}")
        status, _, err = cli("db", "backup", str(copy))
        assert (status, err[:12]) == (2, "error: DB833")
        assert f"{path}: it has no table of tilecore's" in err
    assert not copy.exists()
