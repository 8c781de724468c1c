"""What is done before routes read a request: HEAD as GET; what is refused (long bodies, NULs, ...).

Pure ASGI: a ``BaseHTTPMiddleware`` costs a factor of four in throughput (5,800 to 1,350 requests/s,
measured on 2026-11-20).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tilecore.errors import TileError
from tilecore.utils.json_once import ComesTwice, once
from tuner_service.errors import BodyTooLarge, InvalidRequest, RequestTooSlow
from tuner_service.web.access import Principal
from tuner_service.web.problems import problem_response

CLOSED = {"Connection": "close"}  # the rest of a request is not waited for
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
OF_JSON = frozenset({b"{", b"[", b" ", b"\n", b"\r", b"\t"})  # that have fields may begin so


class HeadAsGet:
    """Answers HEAD with the status and headers of GET, as RFC 9110 (9.3.2) wants it everywhere."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                # Streams hear by this that the client is gone: nothing is made in vain.
                await send({"type": "http.response.body", "body": b""})

        asked = {**scope, "method": "GET"}
        try:
            await self._app(asked, receive, answer)
        finally:
            scope["route"] = asked.get("route")  # for the metrics


class BodyLimit:
    """Answers 413 to a body of more than ``limit_bytes``, announced or streamed, 408 to a slow one.

    ``longer``: other limits of some paths; ``of_administrators``: of paths where only
    administrators may send more.
    """

    def __init__(
        self, app: ASGIApp, limit_bytes: int, within_s: float,
        of_administrators: Mapping[str, int] | None = None,
        longer: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self._app = app
        self._within_s = within_s
        self._limit = limit_bytes
        self._of_administrators = of_administrators or {}
        self._longer = longer or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        announced = headers.get(b"content-length", b"0")
        limit = self._limit_of(scope)
        if announced.isdigit() and int(announced) > limit:
            error: TileError = BodyTooLarge(limit=limit, found=int(announced))
            await problem_response(scope["path"], error)(scope, receive, send)
            return
        has_body = b"content-length" in headers or b"transfer-encoding" in headers
        try:
            async with asyncio.timeout(self._within_s if has_body else None):
                body = await _whole(limit, receive)
        except TimeoutError:
            error = RequestTooSlow(what="body", limit_s=self._within_s)
            await problem_response(scope["path"], error, headers=CLOSED)(scope, receive, send)
        except BodyTooLarge as error:
            await problem_response(scope["path"], error)(scope, receive, send)
        else:
            await self._app(scope, replay(body, receive), send)

    def _limit_of(self, scope: Scope) -> int:
        sender: Principal | None = scope["state"].get("principal")
        usual = self._longer.get(scope["path"], self._limit)
        if sender is None or sender.role != "admin":
            return usual
        return self._of_administrators.get(scope["path"], usual)


async def _whole(limit: int, receive: Receive) -> bytes:
    """Return a whole body.

    Raises:
        BodyTooLarge: as soon as it is (SV904).
        TimeoutError: its sender went away: nobody hears why there is no answer.
    """
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise TimeoutError
        body += message.get("body", b"")
        if len(body) > limit:
            raise BodyTooLarge(limit=limit, found=limit + 1)
        if not message.get("more_body", False):
            return bytes(body)


class PlainAddress:
    """Answers 422 to a path or query with a NUL, which PostgreSQL takes in no text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "http":
            in_path, in_query = "\0" in scope["path"], b"%00" in scope["query_string"]
            if in_path or in_query:
                where = "path" if in_path else "query"
                error = InvalidRequest(message=f"{where}: expected a text without NUL (%00)")
                await problem_response(scope["path"], error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class FieldsOnce:
    """Answers 422 to JSON in which a field of an object comes twice: which one was meant?

    Programs, which are read in a process of their own, are not looked at.
    """

    def __init__(self, app: ASGIApp, but: str) -> None:
        self._app = app
        self._but = but

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        has_body = scope["type"] == "http" and scope["method"] in WITH_BODY
        if not has_body or scope["path"] == self._but:
            await self._app(scope, receive, send)
            return
        body = (await receive()).get("body", b"")
        fault = _twice(body) if body[:1] in OF_JSON else None
        if fault is not None:
            error = InvalidRequest(message=f"body: expected every field once, found {fault}")
            await problem_response(scope["path"], error)(scope, receive, send)
            return
        await self._app(scope, replay(body, receive), send)


def _twice(body: bytes) -> str | None:
    """Return which field comes twice; None: none does, or it is no JSON, as others will say."""
    try:
        json.loads(body, object_pairs_hook=once)
    except ComesTwice as error:
        return str(error)
    except (ValueError, RecursionError):
        return None
    return None


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that gives the body once, then what follows (a disconnect)."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
