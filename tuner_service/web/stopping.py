"""Stopping: requests under way get some seconds, new ones are refused, long ones end as problems.

Pure ASGI. Without it uvicorn cancels what lasts longer than its patience, and clients see a
connection that breaks off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner_service.errors import ServiceStopping
from tuner_service.web.problems import problem_response

POLL_S = 0.05
ENDING_S = 2.0  # for the answers of requests that are ended
LIVES = "/healthz"  # the process lives until it has ended, and is not to be killed before
CLOSED = {"Connection": "close"}


@dataclass(eq=False, slots=True)
class _Request:
    """A request under way."""

    task: asyncio.Task[object]
    has_begun: bool = False  # its answer
    is_ended: bool = False  # by us


class UnderWay:
    """The requests under way in one process of the service."""

    def __init__(self) -> None:
        self.is_stopping = False
        self._requests: set[_Request] = set()

    def refuse_more(self) -> None:
        """Refuse requests that come from now on."""
        self.is_stopping = True

    async def end(self, within_s: float, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Refuse new requests; return when none is under way.

        Args:
            within_s: what is under way then is ended: 503 where no answer has begun, else its
                connection breaks off.
            is_hurried: whether to end it at once.
        """
        self.refuse_more()
        await self._wait(within_s, is_hurried)
        for request in self._requests:
            request.is_ended = True
            request.task.cancel()
        await self._wait(ENDING_S, is_hurried)

    async def _wait(self, seconds: float, is_hurried: Callable[[], bool]) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while self._requests and clock() < until and not is_hurried():
            await asyncio.sleep(POLL_S)

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let ``app`` handle a request."""
        task = asyncio.current_task()
        assert task is not None
        request = _Request(task)

        async def answer(message: Message) -> None:
            request.has_begun = True
            await send(message)

        self._requests.add(request)
        try:
            await app(scope, receive, answer)
        except asyncio.CancelledError:
            if not request.is_ended:
                raise
            task.uncancel()
            if not request.has_begun:
                await _refuse(scope, receive, send)
        finally:
            self._requests.discard(request)


class Stopping:
    """Counts requests, and refuses those that come while the service stops."""

    def __init__(self, app: ASGIApp, under_way: UnderWay) -> None:
        self._app = app
        self._under_way = under_way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._under_way.is_stopping and scope["path"] != LIVES:
            await _refuse(scope, receive, send)
        else:
            await self._under_way.run(self._app, scope, receive, send)


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await problem_response(scope["path"], ServiceStopping(), headers=CLOSED)(scope, receive, send)
