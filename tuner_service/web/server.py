"""The HTTP server: uvicorn, which waits for no client for ever and ends requests well."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tuner_service.errors import RequestTooSlow
from tuner_service.settings import Settings
from tuner_service.web.problems import MEDIA_TYPE, problem_response

CLOSING_S = 2  # for connections, when no request is under way any more
THREADS_S = 2.0  # for threads of requests that were ended
STARTUP_FAILURE = 3  # what ``uvicorn.run`` ends with
LOG = logging.getLogger(__name__)


class _Config(uvicorn.Config):
    """The configuration of uvicorn, and what its protocol has no option for."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        super().__init__(
            app,
            host=settings.host,
            port=settings.port,
            log_level=settings.log_level,
            log_config=None,  # its lines go where all go (log_lines)
            access_log=False,
            http=BoundedHeader,
            # By default as long as httpx keeps connections: a request that comes when one is closed
            # is answered by a reset.
            timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]  # a delay
            timeout_graceful_shutdown=CLOSING_S,
        )
        self.header_timeout_s = settings.header_timeout_s


class BoundedHeader(HttpToolsProtocol):
    """Closes connections whose next request has no whole header in time.

    One that keeps alive, and sends nothing, is closed by uvicorn.
    """

    def __init__(self, config: _Config, *args: Any, **named: Any) -> None:
        super().__init__(config, *args, **named)
        self._header_s = config.header_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._has_begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a header."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a header, where it does not come at once."""
        super().data_received(data)
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._wait()

    def on_message_begin(self) -> None:
        """Know that a request has begun."""
        super().on_message_begin()
        self._has_begun = True

    def on_headers_complete(self) -> None:
        """Have a header."""
        self._stop_waiting()
        self._has_begun = False
        super().on_headers_complete()

    def _wait(self) -> None:
        self._timer = self.loop.call_later(self._header_s, self._is_late)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_late(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._has_begun:
            error = RequestTooSlow(what="header", limit_s=self._header_s)
            self.transport.write(_written(error))
        self.transport.close()


def _written(error: RequestTooSlow) -> bytes:
    """Return the answer to what is no request yet, as it goes over the wire."""
    body = json.dumps(json.loads(bytes(problem_response("/", error).body)) | {"instance": None})
    lines = [
        "HTTP/1.1 408 Request Timeout", f"content-type: {MEDIA_TYPE}",
        f"content-length: {len(body)}", "connection: close", "", body,
    ]  # fmt: skip
    return "\r\n".join(lines).encode()


class Server(uvicorn.Server):
    """A server that ends what is under way in bounded time, with an answer."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        super().__init__(_Config(app, settings))
        self._streams = app.state.streams
        self._under_way = app.state.under_way
        self._grace_s = settings.stop_grace_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Refuse requests from the moment of the signal on."""
        self._under_way.refuse_more()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: streams of events end by themselves, requests within their grace or by 503.

        The port stays open meanwhile, for refusals that say when to come again.
        """
        self._streams.end()
        await self._under_way.end(self._grace_s, lambda: self.force_exit)
        await super().shutdown(sockets)


def serve(app: FastAPI, settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM.

    uvicorn gives the process the signal again when it has stopped: it would end at once, and the
    caller could not stop what it has started.
    """
    signal.signal(signal.SIGTERM, _end)
    server = Server(app, settings)
    try:
        server.run()
    except KeyboardInterrupt:
        return
    except SystemExit as end:
        if end.code:
            raise
    if not server.started:
        sys.exit(STARTUP_FAILURE)


def leave_threads() -> None:
    """End the process, as a success, if threads still work on requests that were ended.

    Python waits for them as long as they take; nobody waits for what they find.
    """
    until = time.monotonic() + THREADS_S
    others = [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    for thread in others:
        thread.join(max(0.0, until - time.monotonic()))
    busy = [thread.name for thread in others if thread.is_alive()]
    if busy:
        LOG.warning("ended with %d threads at work: %s", len(busy), ", ".join(busy))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _end(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)
