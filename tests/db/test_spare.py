"""Tests get PostgreSQL's database as if it were new, whatever the one before left in it."""

import psycopg
import pytest
from sqlalchemy import make_url

from db.migrate import HEAD, open_database
from db.store import SqlStore
from tests.db import full_database
from tests.db.conftest import measurement

LEFT = (
    "update alembic_version set version_num = '0001'",
    "drop index ix_drift_open",
    "alter table measurement disable trigger measurement_no_update",
    "alter table trial drop constraint ck_trial_state",
    "alter table study alter column name drop not null",
    "drop table tile_program",
)


def connected(url):
    wanted = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(wanted, autocommit=True)


def test_a_spare_database_is_given_out_empty(postgres_spare):
    with postgres_spare.empty() as url:
        store = SqlStore(open_database(url))
        full_database.fill(store)
        busy = connected(url)
        busy.execute("begin; update hardware set name = 'held'")
    with pytest.raises(psycopg.OperationalError):
        busy.execute("select 1")
    with postgres_spare.empty() as again:
        assert again == url  # emptied, not copied
        fresh = SqlStore(open_database(again))
        with fresh.database.engine.connect() as connection:
            found = full_database.rows(connection)
        assert {name for name, rows in found.items() if rows} == {"installation"}
        assert fresh.add(measurement()) == 1
        fresh.database.close()
    store.database.close()


@pytest.mark.few(2)
@pytest.mark.parametrize("left", LEFT)
def test_one_with_another_schema_is_not_given_out_again(postgres_spare, left):
    with postgres_spare.empty() as url, connected(url) as connection:
        connection.execute(left)
    with postgres_spare.empty() as again:
        assert again != url
        with connected(again) as connection:
            assert connection.execute("select version_num from alembic_version").fetchone() == (
                HEAD,
            )
