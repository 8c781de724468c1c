"""Places: how many requests may wait for the beginning of their answers at once. Pure ASGI."""

from __future__ import annotations

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner_service.answers.answers import REFUSE_AFTER_S
from tuner_service.errors import Overloaded
from tuner_service.settings import Settings
from tuner_service.web.access import OPEN_PATHS
from tuner_service.web.problems import problem_response


class Places:
    """Answers 503 to those for whom there is no place.

    It comes behind what reads bodies: who sends slowly keeps nobody out.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._places = settings.max_in_flight
        self._taken = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        if self._taken >= self._places:
            await anyio.sleep(REFUSE_AFTER_S)
            error = Overloaded(limit=self._places)
            await problem_response(scope["path"], error)(scope, receive, send)
            return
        waiting = True
        self._taken += 1

        async def answer(message: Message) -> None:
            nonlocal waiting
            if waiting and message["type"] == "http.response.start":
                waiting = False
                self._taken -= 1
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            if waiting:
                self._taken -= 1
