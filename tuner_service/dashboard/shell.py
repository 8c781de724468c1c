"""Shell: what all pages have in common. Pure ASGI.

Problems that any part of the service answers to a page's address become pages in the same words;
without a valid key that page asks for one. What a form leaves empty is not asked.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner_service.dashboard.rendering import HOME, render
from tuner_service.schemas import Problem
from tuner_service.web.problems import MEDIA_TYPE

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",  # beside it browsers say which site sent a form
    "Cross-Origin-Opener-Policy": "same-origin",
}
NOT_KEPT = {"Cache-Control": "no-store"}


class Shell:
    """Wraps everything below ``/dashboard``, and ``/``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or not is_page(scope["path"]):
            await self._app(scope, receive, send)
            return
        scope["query_string"] = _without_blanks(scope["query_string"])
        problem: Message | None = None

        async def answer(message: Message) -> None:
            nonlocal problem
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                for name, value in NOT_KEPT.items():
                    headers.setdefault(name, value)
                if headers.get("content-type") == MEDIA_TYPE:
                    problem = message  # held back: its body is to be a page
                    return
            elif problem is not None:
                told = Problem.model_validate_json(message["body"])
                body = problem_page(scope, told).encode()
                headers = MutableHeaders(scope=problem)
                headers["Content-Type"] = "text/html; charset=utf-8"
                headers["Content-Length"] = str(len(body))
                await send(problem)
                problem, message = None, {"type": "http.response.body", "body": body}
            await send(message)

        await self._app(scope, receive, answer)


def is_page(path: str) -> bool:
    """Whether an address is one of the dashboard's."""
    return path in ("/", HOME) or path.startswith(f"{HOME}/")


def problem_page(scope: Scope, problem: Problem) -> str:
    """Return the page that tells a problem; without a valid key it asks for one."""
    if problem.status != 401:
        return render(scope, "problem.html", problem=problem)
    query = scope["query_string"].decode("latin-1")
    wanted = scope["path"] + (f"?{query}" if query else "")
    return render(scope, "login.html", problem=problem, wanted=wanted)


def _without_blanks(query: bytes) -> bytes:
    """Return a query without the fields that a form leaves empty."""
    if b"=&" not in query + b"&":
        return query
    return urlencode(parse_qsl(query.decode("latin-1"))).encode()
