"""Every error of the service as ``application/problem+json`` (RFC 9457) with a stable code."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from db.storable import storable_text
from tilecore.errors import TileError
from tuner_service.errors import (
    FaultyParts,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    http_status,
)
from tuner_service.schemas import MAX_NESTING, FieldFault, Problem
from tuner_service.web.streams import NothingFollows
from tuner_service.wording import told

MEDIA_TYPE = "application/problem+json"
COMPONENTS = "#/components/schemas/"
SECONDS = {"description": "Seconds to wait", "schema": {"type": "integer", "minimum": 1}}
RETRY_AFTER = {"headers": {"Retry-After": SECONDS}}
UNREADABLE = (  # what Python's reader refuses, but for what pydantic tells better
    f"expected a body of JSON in UTF-8, nested at most {MAX_NESTING} deep, with integers of at "
    "most 4300 digits"
)
FOR_CURL = "with curl: -H 'content-type: application/json'"
log = structlog.get_logger()


def problem_response(
    path: str,
    error: TileError,
    *,
    status: int | None = None,
    faults: list[FieldFault] | None = None,
    detail: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return the response for an error; ``detail`` takes the place of its message."""
    code = status or http_status(error)
    detail = _detail(error) if detail is None else detail
    body = Problem(
        type=f"urn:tilecore:error:{error.code}",
        title=error.title,
        status=code,
        detail=storable_text(detail),
        code=error.code,
        instance=path,
        hint=error.hint or None,
        errors=faults,
    )
    extra = dict(headers or {}) | ({"Retry-After": "5"} if code == 503 else {})
    return JSONResponse(
        body.model_dump(exclude_none=True), code, headers=extra, media_type=MEDIA_TYPE
    )


def _detail(error: TileError) -> str:
    return error.message if error.span is None else f"{error.span}: {error.message}"


def install(app: FastAPI) -> None:
    """Let ``app`` answer every error as a problem."""
    app.openapi = partial(_openapi, app.openapi)  # type: ignore[method-assign]
    app.add_exception_handler(TileError, _tile_error)
    app.add_exception_handler(NothingFollows, _nothing_follows)
    app.add_exception_handler(FaultyParts, _faulty_parts)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _internal_error)


def _openapi(describe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the OpenAPI document with the schema of problems, which no route returns itself."""
    document = describe()
    schemas = document["components"]["schemas"]
    if "Problem" not in schemas:
        problem = Problem.model_json_schema(ref_template=COMPONENTS + "{model}")
        schemas |= problem.pop("$defs") | {"Problem": problem}
    return document


async def _tile_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TileError)
    return problem_response(request.url.path, error)


async def _nothing_follows(request: Request, error: Exception) -> Response:
    return Response(status_code=204)


async def _faulty_parts(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, FaultyParts)
    faults = [
        FieldFault(pointer=where, detail=storable_text(_detail(fault)), code=fault.code)
        for where, fault in error.parts
    ]
    more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
    summary = "; ".join(f"{f.pointer}: {f.detail}" for f in faults[:3]) + more
    first = error.parts[0][1]
    return problem_response(request.url.path, first, faults=faults, detail=summary)


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    told_once = {  # what two dependencies of a route read is refused by both
        (tuple(e["loc"]), e["type"]): FieldFault(
            pointer="/" + "/".join(map(str, e["loc"])), detail=told(e), code=e["type"]
        )
        for e in error.errors()
    }
    faults = list(told_once.values())
    summary = "; ".join(f"{f.pointer}: {f.detail}" for f in faults[:3])
    fault = InvalidRequest(message=summary)
    if isinstance(error.body, bytes):  # it was not read as JSON
        found = request.headers.get("content-type") or "none"
        expected = "expected the header `Content-Type: application/json`"
        fault = InvalidRequest(message=f"{expected}, found {found}", hint=FOR_CURL)
    return problem_response(request.url.path, fault, faults=faults)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 404:
        return problem_response(path, NotFound(path=path))
    if error.status_code == 405:
        allowed = {"Allow": ", ".join(_methods(request.app, path))}
        known = MethodNotAllowed(method=request.method, path=path)
        return problem_response(path, known, headers=allowed)
    message = UNREADABLE if error.status_code == 400 else str(error.detail)
    return problem_response(path, InvalidRequest(message=message))


def _methods(app: FastAPI, path: str) -> list[str]:
    """Return what the document says of a path (a router knows only its first route that fits)."""
    operations: dict[str, dict[str, Any]] = app.openapi()["paths"]
    for template, methods in operations.items():
        pattern = re.escape(re.sub(r"\{\w+\}", "\0", template)).replace("\0", "[^/:]+")
        if re.fullmatch(pattern, path):
            found = sorted(method.upper() for method in methods)
            return [*found, "HEAD"] if "GET" in found else found
    return ["GET", "HEAD"]  # pages, which the document does not list


async def _internal_error(request: Request, error: Exception) -> JSONResponse:
    identity = request.state.request_id
    log.error("unexpected error", request=identity, path=request.url.path, exc_info=error)
    problem = InternalError(request_id=identity)
    return problem_response(request.url.path, problem, headers={"X-Request-ID": identity})


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of error responses."""
    titles = {
        401: "No valid API key",
        403: "The key's role does not reach that far, or a page of another site sent it",
        404: "Unknown kernel, program, hardware, run or node",
        405: "Method not allowed",
        408: "The body did not come in time",
        409: "Not possible in the present state",
        413: "Body too large",
        422: "The request cannot be understood",
        429: "The key was used more often than it may, or the client tried too many unknown keys",
        500: "A fault of the service",
        503: "The database cannot be used right now, or too many requests wait",
    }
    late = (408,) if 413 in statuses else ()  # who may send too much may send too slowly
    return {
        status: {
            "description": titles[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": f"{COMPONENTS}Problem"}}},
            **(RETRY_AFTER if status in (429, 503) else {}),
        }
        for status in (*statuses, *late)
    }
