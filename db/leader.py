"""Leadership: one coordinator at a time, with an epoch that fences everything it writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from db.errors import LeadershipLost, SchemaTooNew, SchemaTooOld
from db.migrate import HEAD, REVISIONS
from db.models import LeaderRow
from db.records import LeaderRecord
from db.session import Database, change

NAME = "coordinator"
UNRENEWED = 3  # times its own lease after which a standby believes no date any more


class Leadership:
    """The leader lease of the coordinators of one database."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database, self._clock = database, clock
        self._seen: tuple[int, datetime] | None = None  # the lease of another, as it was last
        self._seen_at = 0.0

    def current(self) -> LeaderRecord | None:
        """Return the last leader; ``is_alive`` says whether its lease still runs."""
        with self._database.read() as session:
            row = session.get(LeaderRow, NAME)
            if row is None:
                return None
            alive = row.until > self._database.now(session)
            return LeaderRecord(owner=row.owner, epoch=row.epoch, until=row.until, is_alive=alive)

    def acquire(
        self, owner: str, ttl_s: float, is_gone: Callable[[str], bool] = lambda _owner: False
    ) -> int | None:
        """Return a new epoch if nobody leads, else None.

        A lease that nobody renews ends even if its date is far ahead: the database's clock may have
        been set back, or be that of another server by now.

        Args:
            owner: who asks, unique per process.
            ttl_s: how long the lease runs without a renewal.
            is_gone: tells of a leader whose lease still runs whether its process is known to be
                dead (same host); then there is no need to wait.

        Raises:
            SchemaTooNew, SchemaTooOld: somebody migrated the database meanwhile (DB802, DB803).
        """
        with self._database.write() as session:
            check_schema(session, self._database)
            now = self._database.now(session)
            row = session.get(LeaderRow, NAME, with_for_update=True)
            until = now + timedelta(seconds=ttl_s)
            if row is None:
                session.add(LeaderRow(name=NAME, owner=owner, epoch=1, until=until))
                return 1
            if row.until > now and not self._is_unrenewed(row, ttl_s) and not is_gone(row.owner):
                return None
            row.owner, row.epoch, row.until = owner, row.epoch + 1, until
            return row.epoch

    def _is_unrenewed(self, row: LeaderRow, ttl_s: float) -> bool:
        """Return whether a lease is what it was for long, by this process's own clock."""
        now, lease = self._clock(), (row.epoch, row.until)
        if lease != self._seen:
            self._seen, self._seen_at = lease, now
        return now - self._seen_at > UNRENEWED * ttl_s

    def renew(self, epoch: int, ttl_s: float) -> None:
        """Prolong the lease.

        Raises:
            LeadershipLost: another coordinator leads now (DB806).
            SchemaTooNew, SchemaTooOld: somebody migrated the database meanwhile (DB802, DB803).
        """
        with self._database.write() as session:
            check_schema(session, self._database)
            until = self._database.now(session) + timedelta(seconds=ttl_s)
            check_epoch(session, epoch)
            mine = update(LeaderRow).where(LeaderRow.name == NAME, LeaderRow.epoch == epoch)
            change(session, mine.values(until=until))

    def release(self, epoch: int) -> None:
        """Let the next coordinator lead at once."""
        with self._database.write() as session:
            mine = update(LeaderRow).where(LeaderRow.name == NAME, LeaderRow.epoch == epoch)
            change(session, mine.values(until=self._database.now(session)))


def check_schema(session: Session, database: Database) -> None:
    """Refuse to lead where the schema is not that of this process: what it wrote would lack parts.

    Raises:
        SchemaTooNew, SchemaTooOld: the schema is another (DB802, DB803).
    """
    found = session.execute(text("select version_num from alembic_version")).scalar()
    if found != HEAD:
        kind = SchemaTooOld if found in REVISIONS else SchemaTooNew
        raise kind(url=database.shown_url, expected=HEAD, found=found)


def check_epoch(session: Session, epoch: int) -> None:
    """Refuse to write for a coordinator that no longer leads.

    Raises:
        LeadershipLost: the epoch has passed (DB806).
    """
    query = select(LeaderRow.epoch).where(LeaderRow.name == NAME).with_for_update(read=True)
    found = session.execute(query).scalar()
    if found != epoch:
        raise LeadershipLost(expected=epoch, found=found)
