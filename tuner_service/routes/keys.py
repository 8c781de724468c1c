"""/v1/keys: API keys, for administrators."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Response

from db.records import KeyRecord
from tuner_service.problems import documented
from tuner_service.routes.context import Store
from tuner_service.schemas import KeyOut, KeyRequest, NewKeyOut

router = APIRouter(prefix="/keys", tags=["keys"])
Prefix = Annotated[str, Path(max_length=16)]


@router.get("")
def list_keys(store: Store) -> list[KeyOut]:
    """Return all keys, oldest first, without their secrets."""
    return [_to_wire(key) for key in store.keys.list()]


@router.post("", status_code=201, responses=documented(413, 422))
def create_key(request: KeyRequest, response: Response, store: Store) -> NewKeyOut:
    """Make a key. The answer is the only one that ever tells it."""
    lifetime = request.expires_in_days
    expires_at = None if lifetime is None else datetime.now(UTC) + timedelta(days=lifetime)
    record, secret = store.keys.create(request.name, request.role, expires_at=expires_at)
    response.headers["Cache-Control"] = "no-store"
    return NewKeyOut(key=secret, **_to_wire(record).model_dump())


@router.post("/{prefix:name}:revoke", responses=documented(404))
def revoke_key(prefix: Prefix, store: Store) -> KeyOut:
    """Refuse a key from now on (seconds later, where a process remembers it)."""
    return _to_wire(store.keys.revoke(prefix))


def _to_wire(key: KeyRecord) -> KeyOut:
    return KeyOut(
        prefix=key.prefix,
        name=key.name,
        role=key.role,  # type: ignore[arg-type]  # the database closes the set
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
    )
