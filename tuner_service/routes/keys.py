"""/v1/keys: API keys, for administrators."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Response

from db.idempotency import Once
from db.records import KeyRecord
from tilecore.tile_config import digest
from tuner_service.routes.context import Cursor, IdempotencyKey, Limit, Store, page_of
from tuner_service.schemas import KeyOut, KeyPage, KeyRequest, NewKeyOut
from tuner_service.web.problems import documented

router = APIRouter(prefix="/keys", tags=["keys"])
Prefix = Annotated[str, Path(max_length=16)]


@router.get("", responses=documented(422))
def list_keys(store: Store, limit: Limit = 50, cursor: Cursor = None) -> KeyPage:
    """Return keys, oldest first, without their secrets."""
    found, more = page_of(
        "keys", limit, cursor, lambda count, last: store.keys.list(limit=count, after=last)
    )
    return KeyPage(items=[_to_wire(key) for key in found], next_cursor=more)


@router.post("", status_code=201, responses=documented(409, 413, 422))
def create_key(
    request: KeyRequest, response: Response, store: Store, idempotency_key: IdempotencyKey = None
) -> NewKeyOut:
    """Make a key. The answer is the only one that ever tells it.

    An Idempotency-Key that comes again is refused with the prefix of the key that it made.
    """
    once = None
    if idempotency_key is not None:
        once = Once("API key", idempotency_key, digest(request.model_dump(mode="json")))
    days = request.expires_in_days
    lifetime = None if days is None else timedelta(days=days)
    record, secret = store.keys.create(request.name, request.role, lifetime=lifetime, once=once)
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
