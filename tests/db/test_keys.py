"""API keys: made once, known by digest, revoked for good."""

import time
from datetime import timedelta

import pytest
from sqlalchemy import text

from db.errors import UnknownKey
from db.session import Database
from db.store import SqlStore
from tests.db.conftest import BOTH

pytestmark = BOTH


def test_a_key_is_found_by_its_secret_only(store):
    made, secret = store.keys.create("ci", "tune")
    assert store.keys.find(secret) == made
    assert secret.startswith(f"{made.prefix}_")
    assert len(secret) > len(made.prefix) + 40
    for other in (made.prefix, secret[:-1], secret + "x", ""):
        assert store.keys.find(other) is None


def test_the_database_does_not_hold_the_key(store):
    _, secret = store.keys.create("ci", "read")
    with store.database.read() as session:
        row = session.execute(text("select * from api_key")).one()
    assert not any(secret in str(value) or secret[12:] in str(value) for value in row)


def test_expired_and_revoked_keys_are_not_valid(store, second_store):
    store.keys.create("never", "read")
    short, secret = store.keys.create("short", "read", lifetime=timedelta(seconds=0.2))
    assert short.is_valid
    time.sleep(0.25)
    assert [key.is_valid for key in store.keys.list()] == [True, False]
    assert not store.keys.find(secret).is_valid
    long, secret = second_store.keys.create("short", "read", lifetime=timedelta(hours=1))
    assert store.keys.find(secret) == long
    revoked = second_store.keys.revoke(long.prefix)
    assert not store.keys.find(secret).is_valid
    assert second_store.keys.revoke(long.prefix) == revoked  # the first date stays
    assert [key.name for key in store.keys.list()] == ["never", "short", "short"]
    assert store.keys.count() == 3


def test_keys_expire_by_the_clock_of_the_database(store, store_url):
    """Made on one host and used at another one whose clock is wrong: it was refused at once."""

    class Behind(Database):
        def now(self, session):
            return super().now(session) - timedelta(days=2)

    other = SqlStore(Behind(store_url))
    made, secret = other.keys.create("ci", "read", lifetime=timedelta(days=1))
    assert made.expires_at - made.created_at == timedelta(days=1)
    assert other.keys.find(secret).is_valid
    assert not store.keys.find(secret).is_valid
    other.database.close()


def test_revoking_an_unknown_key_says_so(store):
    with pytest.raises(UnknownKey, match="tc_none"):
        store.keys.revoke("tc_none")
