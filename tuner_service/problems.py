"""Every error of the service as ``application/problem+json`` (RFC 9457) with a stable code."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tilecore.errors import TileError
from tuner_service.errors import (
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    ServiceError,
    http_status,
)
from tuner_service.schemas import FieldFault, Problem

MEDIA_TYPE = "application/problem+json"
log = structlog.get_logger()


def problem_response(
    path: str,
    error: TileError,
    *,
    status: int | None = None,
    faults: list[FieldFault] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return the response for an error."""
    code = status or http_status(error)
    body = Problem(
        type=f"urn:tilecore:error:{error.code}",
        title=error.title,
        status=code,
        detail=error.message,
        code=error.code,
        instance=path,
        hint=error.hint or None,
        errors=faults,
    )
    extra = dict(headers or {}) | ({"Retry-After": "5"} if code == 503 else {})
    return JSONResponse(
        body.model_dump(exclude_none=True), code, headers=extra, media_type=MEDIA_TYPE
    )


def install(app: FastAPI) -> None:
    """Let ``app`` answer every error as a problem."""
    app.add_exception_handler(TileError, _tile_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _internal_error)


async def _tile_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TileError)
    return problem_response(request.url.path, error)


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    faults = [
        FieldFault(pointer="/" + "/".join(map(str, e["loc"])), detail=e["msg"], code=e["type"])
        for e in error.errors()
    ]
    summary = "; ".join(f"{f.pointer}: {f.detail}" for f in faults[:3])
    return problem_response(request.url.path, InvalidRequest(message=summary), faults=faults)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    path, known = request.url.path, _known_http_error(request, error)
    return problem_response(path, known, status=error.status_code, headers=error.headers)


def _known_http_error(request: Request, error: HTTPException) -> ServiceError:
    if error.status_code == 404:
        return NotFound(path=request.url.path)
    if error.status_code == 405:
        return MethodNotAllowed(method=request.method, path=request.url.path)
    return InvalidRequest(message=str(error.detail))


async def _internal_error(request: Request, error: Exception) -> JSONResponse:
    request_id = uuid.uuid4().hex[:12]
    log.error("unexpected error", request=request_id, path=request.url.path, exc_info=error)
    return problem_response(request.url.path, InternalError(request_id=request_id))


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of error responses."""
    titles = {
        404: "Unknown kernel, hardware, run or node",
        405: "Method not allowed",
        409: "Not possible in the state in which it is",
        413: "Body too large",
        422: "The request cannot be understood",
        500: "A fault of the service",
        503: "The database cannot be used right now",
    }
    return {
        status: {
            "description": titles[status],
            "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}},
        }
        for status in statuses
    }
