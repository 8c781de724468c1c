"""Pages from templates: everything is escaped, nothing is inline."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.types import Scope

from tuner_service.dashboard import texts
from tuner_service.web.access import ANONYMOUS, Principal

HOME = "/dashboard"
PAGES = {
    "Overview": HOME,
    "Runs": f"{HOME}/runs",
    "Studies": f"{HOME}/studies",
    "Tuning log": f"{HOME}/log",
    "Recommend": f"{HOME}/recommend",
}


@cache
def environment() -> Environment:
    """Return the templates with the filters that they use."""
    made = Environment(
        loader=PackageLoader("tuner_service.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "micro": texts.micro, "number": texts.number, "percent": texts.percent,
        "times": texts.times, "seconds": texts.seconds, "moment": texts.moment,
        "config": texts.config_text, "workload": texts.workload_text,
        "kernel": texts.kernel_text, "first_line": texts.first_line, "query": urlencode,
    }  # fmt: skip
    return made


def render(scope: Scope, template: str, **context: Any) -> str:
    """Return a page as text; ``context`` are the template's values."""
    sender: Principal = scope.get("state", {}).get("principal", ANONYMOUS)
    page = environment().get_template(template)
    return page.render(
        pages=PAGES, path=scope["path"], reader=sender.key_name, **context
    )  # fmt: skip


def page(request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
    """Return a page as an answer."""
    return HTMLResponse(render(request.scope, template, **context), status)


def address(path: str, given: Mapping[str, str], **changes: str | None) -> str:
    """Return an address with a query: what was given, with changes (None: left out)."""
    merged = {**given, **changes}
    query = urlencode({name: value for name, value in merged.items() if value})
    return f"{path}?{query}" if query else path
