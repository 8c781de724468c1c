"""Opening databases: new, current, newer, foreign, locked, away."""

import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from db.errors import (
    DatabaseLocked,
    DatabaseUnreachable,
    NotADatabase,
    SchemaTooNew,
)
from db.migrate import HEAD, REVISIONS, alembic_config, copy_aside, open_database, revision
from db.session import Database
from db.store import SqlStore


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
    with pytest.raises(NotADatabase, match="DB805"):
        open_database(f"sqlite:///{path}")
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


def test_a_url_that_is_none_is_refused():
    with pytest.raises(DatabaseUnreachable, match="not a database URL"):
        Database("nonsense")


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
