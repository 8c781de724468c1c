"""Access: who sends a request, whether they may, and how often.

``Access`` (pure ASGI) knows the sender before a body is read; ``Needs`` holds routes to a role;
``Keyring`` knows keys, which requests bear in a header or, to read, in the dashboard's cookie.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Annotated

import limits
from anyio.to_thread import run_sync
from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from db.errors import DatabaseError
from db.records import ROLES, KeyRecord
from db.store import SqlStore
from tilecore.errors import TileError
from tuner_service.answers.answers import REFUSE_AFTER_S
from tuner_service.errors import (
    Forbidden,
    RateLimited,
    TooManyWrongKeys,
    Unauthenticated,
)
from tuner_service.metrics import Metrics
from tuner_service.settings import LOOPBACK, Settings
from tuner_service.web.guessing import Guesses
from tuner_service.web.origins import SAFE, refuse_other_hosts, refuse_other_sites
from tuner_service.web.problems import problem_response

OPEN_PATHS = (
    "/healthz", "/readyz", "/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc",
    "/dashboard/login", "/dashboard/logout", "/dashboard/dashboard.css",
    "/dashboard/dashboard.js", "/dashboard/icon.svg",
)  # fmt: skip
COOKIE = "tilecore_key"  # what the dashboard keeps a key in; it can read and nothing else
REMEMBERED_S = 5.0  # a revoked key is refused after so long at the latest
MAX_REMEMBERED = 4096
MAX_KEY_LENGTH = 128

bearer = HTTPBearer(auto_error=False, description="an API key: `tilecore keys create NAME`")


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sends a request: the public prefix of a key and its name, or nobody in particular."""

    name: str
    role: str
    key_name: str | None = None

    @property
    def author(self) -> str:
        """Who studies and programs are said to be of."""
        return self.key_name or self.name


ANONYMOUS = Principal("anonymous", "admin")


class Needs:
    """The dependency of routes for keys with a role, or a higher one.

    ``to_read`` is needed for GET, ``to_change`` (default: the same) for every other method.
    """

    def __init__(self, to_read: str, to_change: str | None = None) -> None:
        self._to_read, self._to_change = to_read, to_change or to_read

    async def __call__(
        self,
        request: Request,
        _documented: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)],
    ) -> None:
        """Refuse the request unless its sender may do this."""
        sender: Principal = request.state.principal
        role = self._to_read if request.method == "GET" else self._to_change
        if ROLES.index(sender.role) < ROLES.index(role):
            hint = f"ask an operator for a key: `tilecore keys create NAME --role {role}`"
            raise Forbidden(expected=role, found=sender.role, hint=hint)


class Keyring:
    """The keys of a store, a few seconds behind it at most, and how often each was used."""

    def __init__(self, store: SqlStore, settings: Settings, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._rate = limits.parse(settings.rate_limit)
        self._guesses = Guesses(settings.wrong_key_limit)
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._remembered: dict[bytes, tuple[float, KeyRecord | None]] = {}
        self._renewed: dict[bytes, asyncio.Task[KeyRecord | None]] = {}

    async def owner(self, given: str, client: str) -> Principal:
        """Return whom the value of an ``Authorization`` header names, and count the use.

        Args:
            given: the value, "" without the header.
            client: the address that it came from.

        Raises:
            Unauthenticated: it names nobody, or nobody any more (SV920).
            RateLimited: the key was used too often (SV922).
            TooManyWrongKeys: the client has tried too many keys that nobody has (SV926).
            DatabaseError: the database cannot be asked.
        """
        kind, _, secret = given.partition(" ")
        if kind.lower() != "bearer" or not 0 < len(secret) <= MAX_KEY_LENGTH:
            raise Unauthenticated(found="no key" if not given else "another form")
        key = await self._find(secret, client)
        if key is None or not key.is_valid:
            found = "an unknown key" if key is None else f"{key.prefix}, expired or revoked"
            raise Unauthenticated(found=found)
        if not await self._limiter.hit(self._rate, key.prefix):
            stats = await self._limiter.get_window_stats(self._rate, key.prefix)
            error = RateLimited(limit=str(self._rate))
            error.retry_after_s = max(1, ceil(stats.reset_time - time.time()))
            raise error
        return Principal(key.prefix, key.role, key.name)

    async def still_lets_in(self, secret: str) -> bool:
        """Return whether a key that was let in is valid yet; so is it while nobody can say."""
        digest = hashlib.sha256(secret.encode()).digest()
        known = self._remembered.get(digest)
        if known is None or known[0] <= time.monotonic():
            try:
                key = await self._ask(secret, digest)
            except DatabaseError:
                return True
        else:
            key = known[1]
        return key is not None and key.is_valid

    async def _find(self, secret: str, client: str) -> KeyRecord | None:
        digest = hashlib.sha256(secret.encode()).digest()  # keys themselves are not kept
        known = self._remembered.get(digest)
        left_s = 0.0 if known is None else known[0] - time.monotonic()
        if known is None or known[1] is None:
            return None if left_s > 0 else await self._try(secret, digest, client)
        if left_s <= 0:
            return await self._ask(secret, digest)
        if left_s < REMEMBERED_S / 2 and digest not in self._renewed:  # nobody waits for that
            task = asyncio.create_task(self._ask(secret, digest))
            self._renewed[digest] = task
            task.add_done_callback(lambda done: self._forget(digest, done))
        return known[1]

    async def _try(self, secret: str, digest: bytes, client: str) -> KeyRecord | None:
        """Return whose a key is that nobody has used here yet."""
        try:
            async with self._guesses.turn(client):
                key = await self._ask(secret, digest)
                if key is None:
                    await self._guesses.count(client)
        except TooManyWrongKeys:
            self._metrics.wrong_key("limited")
            await asyncio.sleep(REFUSE_AFTER_S)  # or refusals alone would take a core
            raise
        if key is None:
            self._metrics.wrong_key("unknown")
        return key

    def _forget(self, digest: bytes, done: asyncio.Task[KeyRecord | None]) -> None:
        del self._renewed[digest]
        if not done.cancelled():
            done.exception()  # who comes when the time is over asks, and is told

    async def _ask(self, secret: str, digest: bytes) -> KeyRecord | None:
        key = await run_sync(self._store.keys.find, secret)
        if len(self._remembered) >= MAX_REMEMBERED:
            known = {d: r for d, r in self._remembered.items() if r[1] is not None}
            self._remembered = known if len(known) < MAX_REMEMBERED // 2 else {}
        self._remembered[digest] = (time.monotonic() + REMEMBERED_S, key)
        return key


class Access:
    """Lets in whom a valid key names (anybody, where keys are not needed), within the limits."""

    def __init__(self, app: ASGIApp, settings: Settings, keyring: Keyring) -> None:
        self._app = app
        self._needs_key = settings.needs_key
        self._is_local = settings.host in LOOPBACK
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["state"]["principal"] = ANONYMOUS
        scope["state"]["may_stay"] = _anybody
        if scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            scope["state"]["principal"] = await self._sender(scope)
        except TileError as error:  # no entry, or the database cannot be asked
            refusal = problem_response(scope["path"], error, headers=refusal_headers(error))
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _sender(self, scope: Scope) -> Principal:
        headers = Headers(scope=scope)
        given = headers.get("authorization", "")
        if not given and not self._needs_key:
            if self._is_local:
                refuse_other_hosts(headers)
            if scope["method"] not in SAFE:
                refuse_other_sites(headers)
            return ANONYMOUS
        if not given and scope["method"] == "GET":  # other sites can let a browser send the rest
            kept = HTTPConnection(scope).cookies.get(COOKIE, "")
            given = f"Bearer {kept}" if kept else ""
        sender = await self._keyring.owner(given, address_of(scope))
        secret = given.partition(" ")[2]
        scope["state"]["may_stay"] = partial(self._keyring.still_lets_in, secret)
        return sender


async def _anybody() -> bool:
    return True


def address_of(scope: Scope) -> str:
    """Return the address that a request came from, "" where the server does not know it."""
    return scope["client"][0] if scope.get("client") else ""


def refusal_headers(error: TileError) -> dict[str, str]:
    """Return the headers that go with a refusal."""
    if isinstance(error, Unauthenticated):
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, (RateLimited, TooManyWrongKeys)):
        return {"Retry-After": str(error.retry_after_s)}
    return {}
