"""API keys: made once, known by digest, revoked for good."""

from datetime import timedelta

import pytest
from sqlalchemy import text

from db.errors import UnknownKey
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
    first, _ = store.keys.create("never", "read")
    now = first.created_at
    short, secret = store.keys.create("short", "read", expires_at=now + timedelta(hours=1))
    assert short.is_valid(now)
    assert not short.is_valid(now + timedelta(hours=1))
    revoked = second_store.keys.revoke(short.prefix)
    assert not store.keys.find(secret).is_valid(now)
    assert second_store.keys.revoke(short.prefix) == revoked  # the first date stays
    assert [key.name for key in store.keys.list()] == ["never", "short"]
    assert store.keys.count() == 2


def test_revoking_an_unknown_key_says_so(store):
    with pytest.raises(UnknownKey, match="tc_none"):
        store.keys.revoke("tc_none")
