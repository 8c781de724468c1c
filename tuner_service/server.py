"""The HTTP server: uvicorn, which ends streams of events when it stops."""

from __future__ import annotations

import signal
import socket
import sys
from types import FrameType

import uvicorn
from fastapi import FastAPI

from tuner_service.settings import Settings

GRACE_S = 5  # for requests under way
STARTUP_FAILURE = 3  # what ``uvicorn.run`` ends with


class Server(uvicorn.Server):
    """A server that waits for no client which follows a run."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                log_level=settings.log_level,
                log_config=None,  # its lines go where all go (log_lines)
                access_log=False,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._streams = app.state.streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, with streams ending by themselves: uvicorn would cancel them with a traceback."""
        self._streams.end()
        await super().shutdown(sockets)


def serve(app: FastAPI, settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM; after the latter SystemExit is raised.

    uvicorn gives the process the signal again when it has stopped: it would end at once, and the
    caller could not stop what it has started.
    """
    signal.signal(signal.SIGTERM, _end)
    server = Server(app, settings)
    try:
        server.run()
    except KeyboardInterrupt:
        return
    if not server.started:
        sys.exit(STARTUP_FAILURE)


def _end(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)
