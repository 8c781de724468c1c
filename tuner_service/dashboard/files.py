"""The style sheet, the script and the icon: files of this package, as they are."""

from __future__ import annotations

from functools import cache
from importlib import resources

from fastapi import APIRouter
from fastapi.responses import Response

from tuner_service.dashboard.rendering import HOME

router = APIRouter(prefix=HOME)
KEPT = {"Cache-Control": "max-age=300"}


@router.get("/dashboard.css")
async def style_sheet() -> Response:
    """Return the style sheet."""
    return Response(_file("dashboard.css"), headers=KEPT, media_type="text/css")


@router.get("/dashboard.js")
async def script() -> Response:
    """Return the script; pages are whole without it."""
    return Response(_file("dashboard.js"), headers=KEPT, media_type="text/javascript")


@router.get("/icon.svg")
async def icon() -> Response:
    """Return the icon."""
    return Response(_file("icon.svg"), headers=KEPT, media_type="image/svg+xml")


@cache
def _file(name: str) -> bytes:
    return (resources.files("tuner_service.dashboard") / "assets" / name).read_bytes()
