"""/v1/models: versions of cost models; administrators upload them and go back to earlier ones."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from db.records import MAX_INTEGER, ModelRecord
from tilecore import kernels
from tuner_service.operation_schemas import ModelOut, ModelPage
from tuner_service.routes.context import (
    AppModels,
    Cursor,
    IdempotencyKey,
    Limit,
    Sender,
    Store,
    page_of,
)
from tuner_service.web.problems import documented

router = APIRouter(prefix="/models", tags=["models"])
ModelId = Annotated[int, Path(ge=1, le=MAX_INTEGER)]
Kernel = Annotated[str, Query(max_length=64, examples=["gemm"])]
FILE = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


async def _body(request: Request) -> bytes:
    return await request.body()


@router.get("", responses=documented(404))
def list_models(
    store: Store,
    kernel: Annotated[str | None, Query(max_length=64)] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> ModelPage:
    """Return versions of cost models, newest first."""
    name = None if kernel is None else kernels.get(kernel).name
    found, more = page_of(
        f"models:{name}", limit, cursor,
        lambda count, last: store.models.list(kernel=name, limit=count, before=last),
    )  # fmt: skip
    return ModelPage(items=[_to_wire(m) for m in found], next_cursor=more)


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": ModelOut, "description": "The key came before"},
        **documented(404, 413),
    },
    openapi_extra=FILE,
)
async def upload_model(
    models: AppModels,
    sender: Sender,
    kernel: Kernel,
    sha256: Annotated[str, Query(pattern="^[0-9a-fA-F]{64}$", description="of the file")],
    feature_schema: Annotated[str, Query(max_length=64, description="of its features")],
    raw: Annotated[bytes, Depends(_body)],
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> ModelOut:
    """Store a model of XGBoost (UBJ or JSON, never a pickle).

    It answers from now on if, on what was measured, its first choice is better than that of the
    analytic model, of the nearest lookup and of the incumbent; else it stays a candidate.
    """
    found, is_new = await run_in_threadpool(
        models.add, kernel, raw, sha256=sha256, feature_schema=feature_schema,
        created_by=sender.key_name, idempotency_key=idempotency_key,
    )  # fmt: skip
    if not is_new:
        response.status_code = 200
    return _to_wire(found)


@router.get("/{model_id:name}", responses=documented(404))
def get_model(model_id: ModelId, store: Store) -> ModelOut:
    """Return one version."""
    return _to_wire(store.models.get(model_id))


@router.post("/{model_id:name}:activate", responses=documented(404, 409))
def activate_model(model_id: ModelId, models: AppModels) -> ModelOut:
    """Go back to a version that was active before."""
    return _to_wire(models.activate(model_id))


def _to_wire(m: ModelRecord) -> ModelOut:
    return ModelOut(
        id=m.id,
        kernel=m.kernel,
        family=m.family,
        state=m.state,  # type: ignore[arg-type]  # the database closes the set
        origin=m.origin,  # type: ignore[arg-type]  # written by this program only
        feature_schema=m.feature_schema,
        sha256=m.sha256,
        size_bytes=m.size_bytes,
        metrics={k: v for k, v in m.metrics.items() if isinstance(v, (int, float))},
        trained_on=m.trained_on,
        created_by=m.created_by,
        reason=m.reason,
        created_at=m.created_at,
    )
