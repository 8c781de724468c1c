"""Telemetry: every request gets an id, a log line and a place in the metrics. Pure ASGI."""

from __future__ import annotations

import re
import secrets
import time
from typing import Literal

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner_service.metrics import Metrics

log = structlog.get_logger()
API = "/v1"  # which the routes of a router that is put there do not know of
CONVERTER = re.compile(r":[a-z]+\}")
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
AccessLog = Literal["all", "errors", "off"]
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


def route_of(scope: Scope) -> str:
    """Return the template of a request's address as the API's description has it."""
    template = getattr(scope.get("route"), "path", "unknown")
    if template == "unknown":
        return template
    is_below = scope["path"].startswith(f"{API}/") and not template.startswith(f"{API}/")
    return (API if is_below else "") + CONVERTER.sub("}", template)


class Telemetry:
    """Takes over ``X-Request-ID`` or makes one, and tells what became of the request."""

    def __init__(self, app: ASGIApp, metrics: Metrics, access_log: AccessLog) -> None:
        self._app = app
        self._metrics = metrics
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        identity = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = identity
        started, status = time.perf_counter(), 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = identity
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        # Bound for as long as the request's task lasts: the server may have something to say too.
        structlog.contextvars.bind_contextvars(request=identity)
        with self._metrics.in_flight():
            try:
                await self._app(scope, receive, answer)
            finally:
                self._tell(scope, status, time.perf_counter() - started)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        self._metrics.request(scope["method"], route_of(scope), status, seconds)
        if self._access_log == "off" or (self._access_log == "errors" and status < 400):
            return
        principal = scope["state"].get("principal")
        log.info(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=status,
            ms=round(seconds * 1e3, 2),
            key=principal.name if principal is not None else None,
        )
