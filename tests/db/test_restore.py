"""Databases that are filled from a file: all rows or none, and what goes on in them after that."""

import json
from contextlib import closing
from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from db.backup import back_up
from db.errors import DatabaseUnreachable, NotADatabase, NotEmpty, SchemaTooOld
from db.migrate import downgrade, open_database
from db.models import Base
from db.restore import restore
from db.session import Database
from db.store import SqlStore
from tests.db import full_database
from tests.db.conftest import BOTH, measurement


@pytest.fixture
def backup(tmp_path):
    """A backup of an embedded database with rows in every table."""
    origin = tmp_path / "origin" / "tilecore.db"
    with closing(open_database(f"sqlite:///{origin}")) as database:
        full_database.fill(SqlStore(database))
        back_up(origin, tmp_path / "copy.db")
    return tmp_path / "copy.db"


def _rows(database):
    """Return the rows of all tables as both kinds of database tell them, in one order."""
    with database.read() as session:
        return {
            table.name: sorted(
                json.dumps(list(row), sort_keys=True, default=_told)
                for row in session.execute(table.select())
            )
            for table in Base.metadata.sorted_tables
            if table.name != "installation"
        }


def _told(value):
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else repr(value)


@BOTH
def test_a_backup_of_a_file_fills_either_kind_of_database(store, backup):
    counts = restore(backup, store.database)
    with closing(Database(f"sqlite:///{backup}")) as given:
        expected = _rows(given)
    assert _rows(store.database) == expected
    assert counts == {name: len(found) for name, found in expected.items()}
    assert all(counts.values())
    assert store.leader.acquire("another", 60) is None  # it is led by whom it was led by
    store.add(measurement(7e-3))  # new rows come after the others
    assert store.count_measurements() == counts["measurement"] + 1
    assert store.keys.create("carol", "read")[0].id > 2
    full = _rows(store.database)
    with pytest.raises(NotEmpty, match="expected a database without rows"):
        restore(backup, store.database)
    assert _rows(store.database) == full


@BOTH
def test_a_file_that_breaks_off_leaves_the_database_empty(store, backup):
    with closing(Database(f"sqlite:///{backup}")) as given, given.write() as session:
        session.execute(text("drop table measurement_sample"))
    with pytest.raises(Exception, match="measurement_sample"):
        restore(backup, store.database)
    assert not any(_rows(store.database).values())


def test_what_is_no_file_of_this_schema_is_refused(store, backup, tmp_path):
    with pytest.raises(DatabaseUnreachable, match="no such file"):
        restore(tmp_path / "none", store.database)
    other = tmp_path / "log.csv"
    other.write_text("id,run" * 400)
    with pytest.raises(NotADatabase):
        restore(other, store.database)
    other.write_text("")  # it was to be migrated
    with pytest.raises(NotADatabase, match="found no tables"):
        restore(other, store.database)
    with closing(Database(f"sqlite:///{backup}")) as given:
        downgrade(given, "0015")
    with pytest.raises(SchemaTooOld, match="tilecore migrate"):
        restore(backup, store.database)
    assert not any(_rows(store.database).values())
