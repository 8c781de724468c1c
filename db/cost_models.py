"""Cost models: their versions, which one of a kernel answers, and going back to an earlier one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session, defer

from db.errors import IllegalTransition, ModelCorrupt, UnknownModel
from db.idempotency import Once, made_once
from db.records import ModelRecord
from db.rows import model_of
from db.service_models import ModelRow
from db.session import Database, change
from recommender.ports import StoredModel

ADVISORY_LOCKS = 746153  # the first number of those that are taken here


class CostModels:
    """The cost models of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def active(self, kernel: str, family: str) -> StoredModel | None:
        """Return the promoted cost model of a kernel for devices of a family.

        Raises:
            ModelCorrupt: its bytes are not those that were saved (DB808).
        """
        query = select(ModelRow).where(*_is_active(kernel, family))
        with self._database.read() as session:
            row = session.scalars(query).first()
        return None if row is None else _checked(row)

    def load(self, model_id: int) -> StoredModel:
        """Return a version with its bytes.

        Raises:
            UnknownModel: there is none with this id (DB825).
            ModelCorrupt: its bytes are not those that were saved (DB808).
        """
        with self._database.read() as session:
            row = session.get(ModelRow, model_id)
        if row is None:
            raise UnknownModel(found=model_id)
        return _checked(row)

    def save(
        self,
        *,
        kernel: str,
        family: str,
        blob: bytes,
        feature_schema: str,
        metrics: Mapping[str, Any],
        trained_on: int,
        promote: bool,
        origin: str = "trained",
        created_by: str | None = None,
        reason: str | None = None,
        once: Once | None = None,
    ) -> int:
        """Store a model of devices of a family; with ``promote`` it replaces the active one.

        Returns its id.

        Raises:
            AlreadyMade: the idempotency key of ``once`` came before (DB830).
            IdempotencyConflict: it came with another request (DB807).
        """
        with made_once(self._database, once), self._database.write() as session:
            now = self._database.now(session)
            if promote:
                _lock(session, kernel, family)
                _retire(session, kernel, family)
            row = ModelRow(
                kernel=kernel,
                family=family,
                state="active" if promote else "candidate",
                feature_schema=feature_schema,
                sha256=hashlib.sha256(blob).hexdigest(),
                blob=blob,
                metrics=dict(metrics),
                trained_on=trained_on,
                origin=origin,
                created_by=created_by,
                reason=reason,
                created_at=now,
            )
            session.add(row)
            session.flush()
            if once is not None:
                once.note(session, str(row.id), now)
            return row.id

    def get(self, model_id: int) -> ModelRecord:
        """Return a version.

        Raises:
            UnknownModel: there is none with this id (DB825).
        """
        found = self._records(ModelRow.id == model_id)
        if not found:
            raise UnknownModel(found=model_id)
        return found[0]

    def list(
        self, *, kernel: str | None = None, limit: int = 50, before: int | None = None
    ) -> Sequence[ModelRecord]:
        """Return versions, newest first; ``before`` is the id to go on from."""
        where = [] if kernel is None else [ModelRow.kernel == kernel]
        if before is not None:
            where.append(ModelRow.id < before)
        return self._records(*where, limit=limit)

    def activate(self, model_id: int) -> ModelRecord:
        """Let a version answer (again) that was active before.

        Raises:
            UnknownModel: there is none with this id (DB825).
            IllegalTransition: it never was active: it did not earn that (DB811).
        """
        with self._database.write() as session:
            row = ModelRow.id == model_id
            found = session.execute(select(ModelRow.kernel, ModelRow.family).where(row)).first()
            if found is None:
                raise UnknownModel(found=model_id)
            _lock(session, found.kernel, found.family)
            state = session.execute(select(ModelRow.state).where(row)).scalar_one()
            if state == "candidate":
                raise IllegalTransition(
                    run=f"model {model_id}", verb="activated", state="a candidate that lost",
                    hint="only what beat the incumbent and the lookup answers; upload a better one",
                )  # fmt: skip
            if state == "retired":
                _retire(session, found.kernel, found.family)
                change(session, update(ModelRow).where(row).values(state="active"))
        return self.get(model_id)

    def _records(self, *where: Any, limit: int = 1) -> Sequence[ModelRecord]:
        query = (
            select(ModelRow, func.length(ModelRow.blob))
            .where(*where)
            .options(defer(ModelRow.blob))
            .order_by(ModelRow.id.desc())
            .limit(limit)
        )
        with self._database.read() as session:
            return [_record(row, size) for row, size in session.execute(query)]


def _is_active(kernel: str, family: str) -> Sequence[ColumnElement[bool]]:
    return ModelRow.kernel == kernel, ModelRow.family == family, ModelRow.state == "active"


def _lock(session: Session, kernel: str, family: str) -> None:
    """Let one transaction at a time say which version answers; SQLite has one writer anyhow.

    A lock of the active row would not do: another one is active once that is free.
    """
    if session.get_bind().dialect.name == "postgresql":
        which = func.hashtext(f"{kernel} {family}")
        session.execute(select(func.pg_advisory_xact_lock(ADVISORY_LOCKS, which)))


def _retire(session: Session, kernel: str, family: str) -> None:
    active = update(ModelRow).where(*_is_active(kernel, family))
    change(session, active.values(state="retired"))


def _checked(row: ModelRow) -> StoredModel:
    found = hashlib.sha256(row.blob).hexdigest()
    if found != row.sha256:
        raise ModelCorrupt(id=row.id, expected=row.sha256[:12], found=found[:12])
    return model_of(row)


def _record(row: ModelRow, size: int) -> ModelRecord:
    return ModelRecord(
        id=row.id,
        kernel=row.kernel,
        family=row.family,
        state=row.state,
        feature_schema=row.feature_schema,
        sha256=row.sha256,
        size_bytes=size,
        metrics=row.metrics,
        trained_on=row.trained_on,
        origin=row.origin,
        created_by=row.created_by,
        reason=row.reason,
        created_at=row.created_at,
    )
