"""Programs that came as data, by digest: written once, never changed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from sqlalchemy import exc as sa_exc
from sqlalchemy import select
from sqlalchemy.orm import defer

from db.errors import UnknownProgram
from db.records import ProgramEntry, ProgramRecord
from db.service_models import TileProgramRow
from db.session import Database


class Programs:
    """The programs of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self, digest: str, name: str, document: bytes, created_by: str
    ) -> tuple[ProgramRecord, bool]:
        """Store a program; return it and whether it is new (else as it came first)."""
        known = self.find(digest)
        if known is not None:
            return known, False
        try:
            with self._database.write() as session:
                row = TileProgramRow(
                    digest=digest,
                    name=name,
                    document=zlib.compress(document),
                    size_bytes=len(document),
                    created_by=created_by,
                    created_at=self._database.now(session),
                )
                session.add(row)
                session.flush()
                return _program(row), True
        except sa_exc.IntegrityError:  # somebody else sent it just now
            return self.get(digest), False

    def get(self, digest: str) -> ProgramRecord:
        """Return a program.

        Raises:
            UnknownProgram: there is none with this digest (DB827).
        """
        found = self.find(digest)
        if found is None:
            raise UnknownProgram(found=digest)
        return found

    def find(self, digest: str) -> ProgramRecord | None:
        """Return a program, None where there is none with this digest."""
        query = select(TileProgramRow).where(TileProgramRow.digest == digest)
        with self._database.read() as session:
            row = session.scalars(query).first()
            return None if row is None else _program(row)

    def has_name(self, name: str) -> bool:
        """Return whether there is a program of a function with this name."""
        query = select(TileProgramRow.id).where(TileProgramRow.name == name).limit(1)
        with self._database.read() as session:
            return session.scalars(query).first() is not None

    def list(
        self, *, created_by: str | None = None, limit: int = 50, before: int | None = None
    ) -> Sequence[ProgramEntry]:
        """Return programs without documents, newest first; ``before`` is the id to go on from."""
        query = select(TileProgramRow).options(defer(TileProgramRow.document))
        query = query.order_by(TileProgramRow.id.desc()).limit(limit)
        if created_by is not None:
            query = query.where(TileProgramRow.created_by == created_by)
        if before is not None:
            query = query.where(TileProgramRow.id < before)
        with self._database.read() as session:
            return [ProgramEntry(**_entry(row)) for row in session.scalars(query)]


def _program(row: TileProgramRow) -> ProgramRecord:
    return ProgramRecord(**_entry(row), document=zlib.decompress(row.document))


def _entry(row: TileProgramRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "digest": row.digest,
        "name": row.name,
        "size_bytes": row.size_bytes,
        "created_by": row.created_by,
        "created_at": row.created_at,
    }
