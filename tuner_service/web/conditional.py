"""ConditionalGet: ETags of whole JSON answers, and 304 to who has them already. Pure ASGI."""

from __future__ import annotations

import hashlib

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ConditionalGet:
    """Gives every JSON answer of GET a weak ETag; streams pass untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        given = ",".join(Headers(scope=scope).getlist("if-none-match"))
        known = {tag.strip().removeprefix("W/") for tag in given.split(",")}  # compared weakly
        start: Message | None = None

        async def answer(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _is_whole_json(message):
                start = message  # held back: the body decides about the status
                return
            if start is None:
                await send(message)
                return
            headers = MutableHeaders(scope=start)
            tag = f'"{hashlib.blake2b(message["body"], digest_size=12).hexdigest()}"'
            headers["ETag"] = f"W/{tag}"
            if tag in known or "*" in known:
                start["status"] = 304
                del headers["content-length"], headers["content-type"]
                message = {"type": "http.response.body", "body": b""}
            await send(start)
            start = None
            await send(message)

        await self._app(scope, receive, answer)


def _is_whole_json(message: Message) -> bool:
    """Whether the one body message that follows is all of a good JSON answer."""
    headers = Headers(raw=message["headers"])
    is_json = headers.get("content-type", "").startswith("application/json")
    return message["status"] == 200 and is_json and "content-length" in headers
