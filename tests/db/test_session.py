"""What the database layer says where the server hangs, is cut off, or is migrated underneath."""

import os
import signal
import time

import psycopg
import pytest
from sqlalchemy import func, literal, select, text

from db.errors import (
    DatabaseError,
    DatabaseLocked,
    DatabaseUnreachable,
    SchemaChanged,
    SchemaTooNew,
    SchemaTooOld,
    ValueOutOfRange,
)
from db.file_url import with_password_file
from db.migrate import HEAD, REVISIONS
from db.session import OVERFLOW, PING_S, POOL, Database
from db.store import SqlStore
from tests import postgres
from tests.db.conftest import BOTH

SERVER = pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)


@SERVER
def test_who_finds_no_free_connection_is_told_so(store_url):
    """It was an internal error."""
    database = Database(store_url, busy_timeout_s=0.2)
    held = [database.read() for _ in range(POOL + OVERFLOW)]
    for one in held:
        one.__enter__().execute(text("select 1"))
    with (
        pytest.raises(DatabaseUnreachable, match=r"DB804.*none of 15 connections was free"),
        database.read() as session,
    ):
        session.execute(text("select 1"))
    for one in held:
        one.__exit__(None, None, None)
    with database.read() as session:
        assert session.execute(text("select 1")).scalar() == 1
    database.close()


@SERVER
def test_a_server_behind_a_cut_link_is_not_waited_for_for_long(store_url):
    def limits(url):
        database = Database(url, busy_timeout_s=30.0)
        with database.engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)
            found = driver.info.get_parameters()
        database.close()
        return [found[n] for n in ("tcp_user_timeout", "keepalives_idle", "connect_timeout")]

    assert limits(store_url) == ["30000", "10", "10"]
    assert limits(f"{store_url}&tcp_user_timeout=7000&connect_timeout=3") == ["7000", "10", "3"]


@pytest.mark.exhaustive
def test_a_password_that_is_changed_under_an_open_database_is_taken(tmp_path):
    """It was read once: after a rotation no process of the service could connect any more."""
    if not postgres.PROGRAMS:
        pytest.skip("no PostgreSQL here: install it")
    secret = tmp_path / "pass word"
    secret.write_text("first\n")
    with postgres.postgres_folder() as folder:
        cluster = postgres.Cluster(folder, postgres.free_port(), postgres.UNSAFE, password="first")
        cluster.start()
        try:
            cluster.wait()
            database = Database(with_password_file(cluster.url("postgres"), secret))

            def answer() -> int:
                with database.read() as session:
                    return session.execute(text("select 1")).scalar_one()

            assert answer() == 1
            with database.write() as session:
                session.execute(text("alter role tilecore password 'next'"))
            database.close()  # as when the server ends its connections
            with pytest.raises(DatabaseUnreachable, match="password authentication failed"):
                answer()
            secret.write_text("next\n")
            assert answer() == 1
            database.close()
            secret.unlink()
            with pytest.raises(DatabaseUnreachable, match="the password cannot be read"):
                answer()
        finally:
            cluster.stop()


@SERVER
def test_a_server_that_hangs_is_not_waited_for_for_ever(store_url):
    """Its system still answers: neither TCP nor the server ended a request that was under way."""
    database = Database(store_url, busy_timeout_s=1.0)
    told = r"DB804.*the server has not answered for 2 s"
    began = time.monotonic()
    with pytest.raises(DatabaseUnreachable, match=told), database.read() as session:
        session.execute(text("select pg_sleep(60)"))
    with pytest.raises(DatabaseUnreachable, match=told), database.write() as session:
        session.execute(text("select pg_sleep(60)"))
    with pytest.raises(DatabaseUnreachable, match=told):  # on a connection as it lies in the pool
        database.ask(select(func.pg_sleep(literal(60.0)).label("slept")), {})
    assert time.monotonic() - began < 20
    with database.read() as session:
        assert session.execute(text("select 1")).scalar() == 1
    with database.engine.connect() as connection:  # a migration may take long
        assert connection.execute(text("select 7 from pg_sleep(3)")).scalar() == 7
    database.close()


@pytest.mark.exhaustive
@SERVER
def test_a_pooled_connection_that_hangs_is_replaced_after_some_seconds(store_url):
    database = Database(store_url, busy_timeout_s=30.0)
    with database.read() as session:
        backend = session.execute(text("select pg_backend_pid()")).scalar_one()
    try:
        os.kill(backend, signal.SIGSTOP)
    except OSError as error:
        pytest.skip(f"the server is another user's or another machine's: {error}")
    try:
        began = time.monotonic()
        with database.read() as session:
            other = session.execute(text("select pg_backend_pid()")).scalar_one()
        assert other != backend
        assert time.monotonic() - began < 2 * PING_S
    finally:
        os.kill(backend, signal.SIGCONT)
        database.close()


@SERVER
def test_what_a_server_refuses_is_told(store, store_url):
    """A number beyond its column, and a change where it only reads, were internal errors."""
    store.keys.create("a", "read")
    with pytest.raises(ValueOutOfRange, match=r"DB831.*integer out of range"):
        store.keys.list(after=2**40)
    database = Database(f"{store_url}&options=-c%20default_transaction_read_only%3Don")
    with pytest.raises(DatabaseError, match=r"DB800.*read-only transaction"):
        SqlStore(database).keys.create("a", "read")
    assert len(SqlStore(database).keys.list()) == 1
    database.close()


@SERVER
def test_a_deadlock_is_told_as_what_can_be_sent_again(store):
    """It was told as a database that cannot be reached."""
    ended = "do $$ begin raise exception 'deadlock detected' using errcode = '40P01'; end $$"
    with (
        pytest.raises(DatabaseLocked, match=r"DB832(.|\n)*deadlock detected(.|\n)*send it again"),
        store.database.write() as session,
    ):
        session.execute(text(ended))
    assert store.keys.list() == []


@BOTH
def test_a_schema_that_was_changed_underneath_is_told(store):
    with store.database.write() as session:
        session.execute(text("alter table study rename to moved"))
        session.execute(text("alter table hardware rename column name to label"))
    with pytest.raises(SchemaChanged, match="DB829"):
        store.studies.list()
    with pytest.raises(SchemaChanged, match="DB829"):
        store.runs.list()


@BOTH
@pytest.mark.parametrize(
    ("revision", "error"), [("9999", SchemaTooNew), (REVISIONS[-2], SchemaTooOld)]
)
def test_nobody_leads_or_goes_on_leading_with_another_schema(store, revision, error):
    """An old coordinator would write rows that lack what the new schema's queries need."""
    epoch = store.leader.acquire("me", 60)
    with store.database.write() as session:
        session.execute(text(f"update alembic_version set version_num = '{revision}'"))
    for call in (
        lambda: store.leader.acquire("other", 60),
        lambda: store.leader.renew(epoch, 60),
    ):
        with pytest.raises(error, match=f"expected schema revision {HEAD}"):
            call()
