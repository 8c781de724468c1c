"""Idempotency keys of requests whose rows do not bear them: what was made the first time.

No answer is kept: that of a new API key holds a secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import exc as sa_exc
from sqlalchemy import select
from sqlalchemy.orm import Session

from db.errors import AlreadyMade, IdempotencyConflict
from db.service_models import IdempotencyRow
from db.session import Database


@dataclass(frozen=True, slots=True)
class Once:
    """A request that is to make something once.

    Attributes:
        what: it makes: "API key" or "model"; each has its own idempotency keys.
        key: that the client sent.
        body_hash: digest of the request, compared when the key comes again.
    """

    what: str
    key: str
    body_hash: str

    def check(self, database: Database) -> None:
        """Complain if the key came before.

        Raises:
            AlreadyMade: with this request (DB830).
            IdempotencyConflict: with another one (DB807).
        """
        query = select(IdempotencyRow).where(
            IdempotencyRow.what == self.what, IdempotencyRow.key == self.key
        )
        with database.read() as session:
            found = session.scalars(query).first()
        if found is None:
            return
        if found.body_hash != self.body_hash:
            raise IdempotencyConflict(key=self.key)
        raise AlreadyMade(what=self.what, key=self.key, made=found.made)

    def note(self, session: Session, made: str, now: datetime) -> None:
        """Remember what was made, in the transaction that makes it."""
        session.add(
            IdempotencyRow(
                what=self.what, key=self.key, body_hash=self.body_hash, made=made, created_at=now
            )
        )
        session.flush()


@contextmanager
def made_once(database: Database, once: Once | None) -> Iterator[None]:
    """Let the writer of a transaction fail as ``check`` does where another one was faster."""
    try:
        yield
    except sa_exc.IntegrityError:
        if once is not None:
            once.check(database)
        raise
