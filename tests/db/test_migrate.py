"""Opening databases: new, current, newer, foreign, locked, away."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, inspect, text

from db.errors import (
    DatabaseLocked,
    DatabaseUnreachable,
    NotADatabase,
    SchemaTooNew,
)
from db.migrate import (
    HEAD,
    REVISIONS,
    alembic_config,
    copy_aside,
    migrating,
    open_database,
    revision,
    upgrade,
)
from db.records import MeasurementQuery
from db.session import Database
from db.store import SqlStore
from tests.db.conftest import BOTH
from tests.db.test_studies import NEW


def test_revisions_are_those_of_the_scripts():
    scripts = ScriptDirectory.from_config(alembic_config())
    walked = [script.revision for script in scripts.walk_revisions()]
    assert tuple(reversed(walked)) == REVISIONS


def test_models_and_migrations_agree_and_go_back(store):
    config = alembic_config()
    with store.database.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.check(config)
        command.downgrade(config, "base")
        assert set(inspect(connection).get_table_names()) == {"alembic_version"}
        command.upgrade(config, "head")
    assert revision(store.database) == HEAD


@pytest.mark.few(1)
@pytest.mark.covering
@BOTH
@pytest.mark.parametrize("until", REVISIONS[:-1])
def test_every_schema_is_upgraded_and_gone_back_to_with_its_rows(
    store, make_measurement, new_run, until
):
    for time_s in (1e-3, 2e-3, None):
        store.add(make_measurement(time_s, detail="why" if time_s is None else ""))
    run = new_run()
    kept = [m.times_s for m in store.measurements()]
    winners = [r.id for r in store.page(MeasurementQuery(winners=True), limit=9).items]
    with migrating(store.database) as config:
        command.downgrade(config, until)
    assert revision(store.database) == until
    with store.database.engine.connect() as connection:
        before = {t.name: sorted(t.columns.keys()) for t in _tables(connection)}
        times = [t for (t,) in connection.execute(text("select time_s from measurement"))]
    assert sorted(map(str, times)) == ["0.001", "0.002", "None"]
    assert upgrade(store.database) == until
    assert revision(store.database) == HEAD
    assert [m.times_s for m in store.measurements()] == kept
    found = store.page(MeasurementQuery(winners=True), limit=9).items
    assert [r.id for r in found] == winners != []
    assert store.runs.get(run.public_id).workload == run.workload
    assert len(store.page(MeasurementQuery(kernel="gemm"), limit=9).items) == 3
    with migrating(store.database) as config:
        command.downgrade(config, until)
    with store.database.engine.connect() as connection:
        assert {t.name: sorted(t.columns.keys()) for t in _tables(connection)} == before


def _tables(connection):
    found = MetaData()
    found.reflect(connection)
    return found.tables.values()


@BOTH
def test_authors_get_the_names_of_their_keys(store):
    key, _ = store.keys.create("alice", "tune")
    with migrating(store.database) as config:
        command.downgrade(config, "0007")
    for number, author in enumerate((key.prefix, "anonymous")):
        store.studies.create(replace(NEW, created_by=author))
        store.programs.add(f"{number:032x}", "p", b"{}", author)
    upgrade(store.database)
    assert [s.created_by for s in store.studies.list()] == ["anonymous", "alice"]
    assert [p.created_by for p in store.programs.list(created_by="alice")] == ["alice"]
    assert len(store.studies.list(created_by="alice")) == 1
    assert store.studies.list(created_by=key.prefix) == []


def _released_0001(path):
    """Write a database as version 0.1.0 left it: its schema, three measurements."""
    database = Database(f"sqlite:///{path}")
    config = alembic_config()
    with database.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    database.close()
    columns = "id, workload_id, hardware_id, program_id, toolchain_id, config_id, protocol"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            f"""
            insert into hardware values (1, 'h', 'cpu', 'bench', '{{"name": "bench", "kind": "cpu",
              "arch": "x86-64-avx2", "cores": 2}}', '2026-11-20 12:00:00.000000');
            insert into toolchain values (1, 't',
              '{{"tilecore": "t", "tvm": "0", "llvm": "0", "linker": ""}}');
            insert into program values (1, 'gemm', 'p'), (2, 'conv', 'p');
            insert into workload values
              (1, 'w1', 'gemm', 'float32', 64, 64, 32, 0, '{{"m": 64}}'),
              (2, 'w2', 'conv', 'float32', null, null, null, 0, '{{"m": 64}}');
            insert into config values (1, 'c', '{{"block_M": 64}}');
            insert into measurement ({columns}, threads, status, time_s, detail, worker, metrics,
              measured_at) values
              (1, 1, 1, 1, 1, 1, 'screen', 1, 'OK', 0.5, '', 'w', '{{}}',
               '2026-11-20 12:00:00.000000'),
              (2, 1, 1, 1, 1, 1, 'confirm', 1, 'COMPILE_ERROR', null, 'why', 'w', '{{}}',
               '2026-11-20 12:00:01.000000'),
              (3, 2, 1, 2, 1, 1, 'screen', 1, 'OK', 0.25, '', 'w', '{{}}',
               '2026-11-20 12:00:02.000000');
            insert into measurement_sample values (1, '[0.5]', '[]'), (2, '[]', '[]'),
              (3, '[0.25]', '[]');
            """
        )


def _rows(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute("select * from measurement order by id").fetchall()
        samples = connection.execute("select * from measurement_sample").fetchall()
    added = ("facet_id", "driver_id", "created_by")
    kept = [{k: row[k] for k in row.keys() if k not in added} for row in rows]  # noqa: SIM118
    return kept, [tuple(sample) for sample in samples]


def test_a_released_database_is_upgraded_and_goes_back_with_its_rows(tmp_path):
    path = tmp_path / "tilecore.db"
    _released_0001(path)
    before = _rows(path)
    store = SqlStore(open_database(f"sqlite:///{path}"))
    assert revision(store.database) == HEAD
    assert _rows(path) == before
    assert [r.id for r in store.page(MeasurementQuery(), limit=9).items] == [3, 2, 1]
    assert [r.id for r in store.page(MeasurementQuery(kernel="gemm"), limit=9).items] == [2, 1]
    for change in ("update measurement set time_s = 1", "delete from measurement"):
        refused = pytest.raises(sqlite3.IntegrityError, match="append-only")
        with closing(sqlite3.connect(path)) as connection, refused:
            connection.execute(change)
    config = alembic_config()
    with store.database.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")
    store.database.close()
    assert _rows(path) == before
    with closing(sqlite3.connect(path)) as connection:
        names = {name for (name,) in connection.execute("select name from sqlite_master")}
        assert connection.execute("pragma foreign_key_check").fetchall() == []
    assert not {"facet", "driver"} & names
    assert {"ix_measurement_status", "measurement_no_update", "measurement_no_delete"} <= names
    SqlStore(open_database(f"sqlite:///{path}")).database.close()
    assert _rows(path) == before


def test_a_current_database_is_opened_without_alembic(store, database_path):
    code = (
        "import sys; from db.migrate import open_database; "
        f"open_database('sqlite:///{database_path}'); "
        "print(sorted({'alembic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_newer_schema_is_refused(store, database_path):
    with store.database.write() as session:
        session.execute(text("update alembic_version set version_num = '9999'"))
    with pytest.raises(SchemaTooNew, match=r"DB802.*found 9999"):
        open_database(f"sqlite:///{database_path}")


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, not a database " * 50)
    with pytest.raises(NotADatabase, match="DB805") as caught:
        open_database(f"sqlite:///{path}")
    assert caught.value.__suppress_context__  # a traceback shows no errors of the driver before it
    assert path.read_text().startswith("these are notes")


def test_a_database_of_another_program_is_refused(tmp_path):
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table songs (id integer)")
    with pytest.raises(NotADatabase, match="songs"):
        open_database(f"sqlite:///{path}")


def test_an_unusable_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseUnreachable, match="DB804"):
        open_database(f"sqlite:///{tmp_path}/file/tilecore.db")


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("nonsense", "not a database URL"),
        ("postgresql+psycopg://me:secret@host:port/x", "not a database URL"),
        ("mysql://me:secret@host/x", "expected a database of SQLite or PostgreSQL, found mysql"),
        ("sqlite://", "expected the path of a file, found none"),
        ("sqlite:///:memory:", "expected the path of a file, found none"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url, found):
    """A port that is no number was a ValueError, MySQL "No module named 'MySQLdb'", and a database
    in memory one to migrate, again and again."""
    with pytest.raises(DatabaseUnreachable) as caught:
        Database(url)
    told = str(caught.value)
    assert found in told
    assert "sqlite:////path/to/file.db or postgresql+psycopg://" in told
    assert "secret" not in told


def test_whoever_cannot_reach_a_server_is_not_told_of_folders():
    database = Database("postgresql+psycopg://me@127.0.0.1:1/x")
    with pytest.raises(DatabaseUnreachable) as caught, database.errors():
        database.engine.connect()
    assert "see whether its server runs" in str(caught.value)
    assert "folder" not in str(caught.value)


def test_a_locked_database_is_named(store, database_path):
    impatient_store = SqlStore(open_database(f"sqlite:///{database_path}", busy_timeout_s=0.1))
    with closing(sqlite3.connect(database_path, isolation_level=None)) as holder:
        holder.execute("begin exclusive")
        with pytest.raises(DatabaseLocked, match="DB801"):
            impatient_store.leader.acquire("me", 1)
    assert impatient_store.leader.acquire("me", 1) == 1


def test_the_copy_aside_holds_what_the_log_still_has(store, database_path):
    store.leader.acquire("me", 60)  # in the write-ahead log, not yet in the main file
    copy = copy_aside(database_path, "0000")
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("select owner from leader").fetchall() == [("me",)]


def test_concurrent_first_starts_make_one_schema(tmp_path):
    code = f"from db.migrate import open_database; open_database('sqlite:///{tmp_path}/a.db')"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [process.wait(60) for process in started] == [0, 0, 0]


def test_an_unknown_driver_is_refused_without_showing_the_password():
    with pytest.raises(DatabaseUnreachable) as caught:
        Database("postgresql+nodriver://me:secret@host/db")
    assert "DB804" in str(caught.value)
    assert "secret" not in str(caught.value)
