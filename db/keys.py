"""Keys: who may use the REST service. The database knows only digests of keys."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import func, select, update

from db.errors import UnknownKey
from db.idempotency import Once, made_once
from db.records import KeyRecord
from db.service_models import ApiKeyRow
from db.session import Database, change

PREFIX_BYTES, SECRET_BYTES = 4, 32


class Keys:
    """The API keys of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self, name: str, role: str, *, lifetime: timedelta | None = None, once: Once | None = None
    ) -> tuple[KeyRecord, str]:
        """Make a key; return its record and the key itself, which nothing can tell again.

        ``lifetime``: for how long it is valid; None: until it is revoked.

        Raises:
            AlreadyMade: the idempotency key of ``once`` came before (DB830).
            IdempotencyConflict: it came with another request (DB807).
        """
        if once is not None:
            once.check(self._database)
        prefix = f"tc_{secrets.token_hex(PREFIX_BYTES)}"
        secret = f"{prefix}_{secrets.token_urlsafe(SECRET_BYTES)}"
        with made_once(self._database, once), self._database.write() as session:
            now = self._database.now(session)
            row = ApiKeyRow(
                prefix=prefix,
                digest=_digest(secret),
                name=name,
                role=role,
                created_at=now,
                expires_at=None if lifetime is None else now + lifetime,
            )
            session.add(row)
            session.flush()
            if once is not None:
                once.note(session, prefix, now)
            return _record(row, now), secret

    def find(self, secret: str) -> KeyRecord | None:
        """Return the record of a key, whether or not it is still valid; None: nobody made it."""
        query = select(ApiKeyRow).where(ApiKeyRow.digest == _digest(secret))
        with self._database.read() as session:
            row = session.scalars(query).first()
            return None if row is None else _record(row, self._database.now(session))

    def list(self, *, limit: int | None = None, after: int | None = None) -> Sequence[KeyRecord]:
        """Return keys, oldest first; ``after`` is the id to go on from."""
        query = select(ApiKeyRow).order_by(ApiKeyRow.id).limit(limit)
        if after is not None:
            query = query.where(ApiKeyRow.id > after)
        with self._database.read() as session:
            now = self._database.now(session)
            return [_record(row, now) for row in session.scalars(query)]

    def count(self) -> int:
        """Return how many keys were made, those that are no longer valid included."""
        with self._database.read() as session:
            return session.execute(select(func.count(ApiKeyRow.id))).scalar_one()

    def revoke(self, prefix: str) -> KeyRecord:
        """Refuse a key from now on; one that was revoked before keeps its date.

        Raises:
            UnknownKey: there is none with this prefix (DB820).
        """
        with self._database.write() as session:
            now = self._database.now(session)
            change(
                session,
                update(ApiKeyRow)
                .where(ApiKeyRow.prefix == prefix, ApiKeyRow.revoked_at.is_(None))
                .values(revoked_at=now),
            )
            row = session.scalars(select(ApiKeyRow).where(ApiKeyRow.prefix == prefix)).first()
            if row is None:
                raise UnknownKey(found=prefix)
            return _record(row, now)


def _digest(secret: str) -> str:
    """Return what is stored of a key. 256 random bits need neither salt nor a slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _record(row: ApiKeyRow, now: datetime) -> KeyRecord:
    return KeyRecord(
        id=row.id,
        prefix=row.prefix,
        name=row.name,
        role=row.role,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        is_valid=row.revoked_at is None and (row.expires_at is None or row.expires_at > now),
    )
