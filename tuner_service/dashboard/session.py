"""Logging in and out: an API key kept in a cookie that scripts and other sites cannot use."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from tilecore.errors import TileError
from tuner_service.dashboard.rendering import HOME, page
from tuner_service.errors import http_status
from tuner_service.web.access import COOKIE, Keyring, address_of, refusal_headers
from tuner_service.web.origins import refuse_other_sites
from tuner_service.web.problems import problem_response

router = APIRouter(prefix=HOME)
KEPT_S = 12 * 3600
LOGIN = f"{HOME}/login"


@router.get("/login")
async def show_login(request: Request) -> Response:
    """Return the page that asks for a key."""
    return page(request, "login.html", problem=None, wanted=HOME)


@router.post("/login")
async def log_in(request: Request) -> Response:
    """Keep a valid key in a cookie; a wrong one is answered as REST answers it."""
    form = parse_qs((await request.body()).decode("utf-8", "replace"))
    secret, wanted = (form.get(name, [""])[0] for name in ("key", "wanted"))
    keyring: Keyring = request.app.state.keyring
    try:
        refuse_other_sites(request.headers)
        given = f"Bearer {secret.strip()}" if secret.strip() else ""
        await keyring.owner(given, address_of(request.scope))
    except TileError as error:
        if http_status(error) != 401:
            return problem_response(LOGIN, error, headers=refusal_headers(error))
        answer = page(
            request,
            "login.html",
            401,
            problem={"code": error.code, "detail": error.message},
            wanted=_own(wanted),
        )
        answer.headers.update(refusal_headers(error))
        return answer
    response = RedirectResponse(_own(wanted), 303)
    response.set_cookie(
        COOKIE, secret.strip(), max_age=KEPT_S, path="/", httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip
    return response


@router.post("/logout")
async def log_out(request: Request) -> Response:
    """Forget the key."""
    refuse_other_sites(request.headers)
    response = RedirectResponse(LOGIN, 303)
    response.delete_cookie(
        COOKIE, path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )
    return response


def _own(wanted: str) -> str:
    """Return an address of the dashboard to go to, whatever a form asks for."""
    path = urlsplit(wanted).path
    inside = wanted.startswith((f"{HOME}/", f"{HOME}?")) or wanted == HOME
    is_login = path in (LOGIN, f"{HOME}/logout")
    return wanted if inside and not is_login and wanted.isprintable() else HOME
