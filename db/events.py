"""Events: what happened in a run, written with the change that it tells of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from db.models import EventRow
from db.session import Database


def add_event(
    session: Session, database: Database, run_id: int, kind: str, payload: Mapping[str, Any]
) -> None:
    """Insert an event in the transaction of the change that it tells of."""
    session.execute(
        insert(EventRow).values(
            run_id=run_id, at=database.now(session), kind=kind, payload=dict(payload)
        )
    )
