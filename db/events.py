"""Events: what happened in a run, written with the change that it tells of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from db.models import EventRow
from db.session import Database


def add_event(
    session: Session, database: Database, run_id: int, kind: str, payload: Mapping[str, Any]
) -> None:
    """Insert an event in the transaction of the change that it tells of."""
    add_events(session, database.now(session), kind, [(run_id, payload)])


def add_events(
    session: Session, at: datetime, kind: str, told: Sequence[tuple[int, Mapping[str, Any]]]
) -> None:
    """Insert events of runs, in this order, in the transaction of the changes they tell of."""
    rows = [
        {"run_id": run_id, "at": at, "kind": kind, "payload": dict(payload)}
        for run_id, payload in told
    ]
    if rows:
        session.connection().execute(insert(EventRow.__table__), rows)  # type: ignore[arg-type]
