"""ShortWay: questions that can be read are answered past routing and dependencies. Pure ASGI.

These take several times what is left to do for an answer from memory. What cannot be read goes on
to the route and what stands before it, which say why; so it validates as they do.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tilecore.errors import TileError
from tilecore.utils.json_once import once
from tuner_service.answers.answers import Answers
from tuner_service.routes.recommendations import PATH
from tuner_service.schemas import RecommendationRequest
from tuner_service.web.middleware import replay
from tuner_service.web.problems import problem_response

ADDRESS = f"/v1{PATH}"
ROUTE = SimpleNamespace(path=PATH)  # what telemetry calls it


class ShortWay:
    """Answers ``POST /v1/recommendations``, which any key may send that is let in.

    It comes behind what refuses requests by who sends them, and behind what joins their bodies.
    """

    def __init__(self, app: ASGIApp, answers: Answers) -> None:
        self._app = app
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        is_http = scope["type"] == "http"
        is_question = is_http and scope["path"] == ADDRESS and scope["method"] == "POST"
        if not is_question or scope["query_string"]:  # the route says that it takes none
            await self._app(scope, receive, send)
            return
        body = (await receive())["body"]
        request = _read(Headers(scope=scope).get("content-type", ""), body)
        if request is None:
            await self._app(scope, replay(body, receive), send)
            return
        scope["route"] = ROUTE
        response: Response
        try:
            found = await self._answers.of(request)
            response = Response(found, media_type="application/json")
        except TileError as error:
            response = problem_response(scope["path"], error)
        await response(scope, receive, send)


def _read(kind: str, body: bytes) -> RecommendationRequest | None:
    if kind.partition(";")[0].strip().lower() != "application/json":
        return None
    try:
        return RecommendationRequest.model_validate(json.loads(body, object_pairs_hook=once))
    except (ValueError, RecursionError):  # no JSON, a field twice, or no question
        return None
