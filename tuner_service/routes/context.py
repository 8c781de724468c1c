"""What every route needs: the store and the settings of its application."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Annotated, Any, Protocol, TypeVar

from anyio import CapacityLimiter
from fastapi import Depends, Header, Query, Request
from fastapi.dependencies.models import Dependant
from starlette.convertors import StringConvertor, register_url_convertor

from db.records import MAX_INTEGER
from db.store import SqlStore
from tuner_service.answers.answers import Answers
from tuner_service.errors import InvalidCursor, InvalidRequest
from tuner_service.metrics import Metrics
from tuner_service.model_uploads import ModelUploads
from tuner_service.settings import Settings
from tuner_service.studies.ask_tell import StudyEngine
from tuner_service.web.access import Principal
from tuner_service.web.streams import OpenStreams


class _Name(StringConvertor):
    """A segment of a path before its verb, so that GET on ``x:cancel`` is not GET on ``x``."""

    regex = "[^/:]+"


register_url_convertor("name", _Name())


def _of_app(name: str) -> Any:
    """Return the dependency on what the application holds under ``name``; without a thread."""

    async def held(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(held)


async def known_query(request: Request) -> None:
    """Refuse parameters that a route does not know, or gets twice (SV901).

    A misspelt filter would filter nothing, and of two the first.

    Raises:
        InvalidRequest: there is one.
    """
    if not request.query_params:
        return
    known = set(_query_names(request.scope["route"].dependant))
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        expected = f"one of {', '.join(sorted(known))}" if known else "no parameters"
        message = f"/query/{unknown[0][:40]}: expected {expected}, found an unknown parameter"
        raise InvalidRequest(message=message)
    given = request.query_params.multi_items()
    if len(given) > len(request.query_params):
        names = [name for name, _ in given]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(message=f"/query/{twice}: expected it once, found it several times")


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_names(inner)


async def _sender(request: Request) -> Principal:
    sender: Principal = request.state.principal
    return sender


async def _may_stay(request: Request) -> MayStay:
    found: MayStay = request.state.may_stay
    return found


MayStay = Callable[[], Awaitable[bool]]
Sender = Annotated[Principal, Depends(_sender)]
# Whether the sender is let in yet, of what lasts: keys are revoked meanwhile.
Stay = Annotated[MayStay, Depends(_may_stay)]
Store = Annotated[SqlStore, _of_app("store")]
AppAnswers = Annotated[Answers, _of_app("answers")]
Engine = Annotated[StudyEngine, _of_app("engine")]
AppModels = Annotated[ModelUploads, _of_app("models")]
AppMetrics = Annotated[Metrics, _of_app("metrics")]
Probes = Annotated[CapacityLimiter, _of_app("probes")]
Streams = Annotated[OpenStreams, _of_app("streams")]
AppSettings = Annotated[Settings, _of_app("settings")]
Limit = Annotated[int, Query(ge=1, le=200, description="how many items at most")]
Cursor = Annotated[
    str | None,
    Query(max_length=400, pattern="^[A-Za-z0-9_-]+$", description="next_cursor of the last page"),
]
CreatedBy = Annotated[
    str | None, Query(max_length=64, description="name of the API key that asked for it")
]
IdempotencyKey = Annotated[
    str | None, Header(max_length=128, pattern="^[!-~]+$", examples=["my-run-1"])
]


class Numbered(Protocol):
    """A record that has its place in a list."""

    @property
    def id(self) -> int:
        """Number in the order of creation."""


BIGINT = 2**62  # more than any number in a column of BIGINT gets
Item = TypeVar("Item", bound=Numbered)
Part = TypeVar("Part")


def page_of(
    query: str,
    limit: int,
    cursor: str | None,
    find: Callable[[int, int | None], Sequence[Item]],
    most: int = MAX_INTEGER,
) -> tuple[Sequence[Item], str | None]:
    """Return a page of records, and the cursor of the next one if there is one.

    Args:
        query: what is asked for; a cursor is tied to it.
        limit: items of a page.
        cursor: that the page before gave, None at first.
        find: (count, number of the last item before the page) -> records in the list's order.
        most: what the database can hold of a number of these items.

    Raises:
        InvalidCursor: the cursor is damaged or belongs to another query (SV908).
    """
    key = decode_cursor(query, cursor, [most])
    found = find(limit + 1, int(key[0]) if key else None)
    more = encode_cursor(query, [found[limit - 1].id]) if len(found) > limit else None
    return found[:limit], more


def part_of(
    query: str, limit: int, cursor: str | None, items: Sequence[Part], name: Callable[[Part], str]
) -> tuple[Sequence[Part], str | None]:
    """Return a page of what is at hand as a whole, and the cursor of the next one if there is one.

    A cursor names the last item of its page: items that come before it meanwhile move nothing.

    Raises:
        InvalidCursor: the cursor is damaged, of another query, or its item is gone (SV908).
    """
    key, start = decode_cursor(query, cursor, [BIGINT]), 0
    if key is not None:
        numbers = [_number(name(item)) for item in items]
        if key[0] not in numbers:
            raise InvalidCursor(found=str(cursor)[:40])
        start = numbers.index(int(key[0])) + 1
    found = items[start : start + limit]
    is_last = start + limit >= len(items)
    return found, None if is_last else encode_cursor(query, [_number(name(found[-1]))])


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6])


def encode_cursor(query: str, key: list[float]) -> str:
    """Return an opaque cursor: the sort key to go on from, tied to its query."""
    text = json.dumps({"q": query, "k": key})
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(query: str, cursor: str | None, most: Sequence[int]) -> list[float] | None:
    """Return the sort key of a cursor, in which no part is beyond that of ``most``.

    Raises:
        InvalidCursor: it is damaged, forged or belongs to another query (SV908).
    """
    if cursor is None:
        return None
    try:
        value = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        key = value["k"]
        pairs = zip(key, most, strict=True)  # a ValueError where the lengths differ
        fits = all(isinstance(k, (int, float)) and abs(k) <= limit for k, limit in pairs)
        if fits and value["q"] == query:
            return list(key)
    except (binascii.Error, ValueError, KeyError, TypeError):
        pass
    raise InvalidCursor(found=cursor[:40])
