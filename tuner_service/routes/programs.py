"""/v1/programs: programs of anybody's, sent as data, to ask about and to tune by their digest."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Path, Request, Response

from db.records import ProgramEntry, ProgramRecord
from tuner_service.program_schemas import (
    REQUEST,
    OpenKnobOut,
    ProgramBrief,
    ProgramDocumentOut,
    ProgramOut,
    ProgramPage,
)
from tuner_service.routes.context import (
    BIGINT,
    AppAnswers,
    CreatedBy,
    Cursor,
    Limit,
    Sender,
    Store,
    page_of,
)
from tuner_service.web.problems import documented
from tuner_service.wiring import program_desk
from workers.program_desk import ReadProgram

router = APIRouter(prefix="/programs", tags=["programs"])
Digest = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]


@router.post(
    "",
    status_code=201,
    openapi_extra=REQUEST,
    responses={
        200: {"model": ProgramOut, "description": "The program came before"},
        **documented(413, 422),
    },
)
async def create_program(
    request: Request, response: Response, store: Store, answers: AppAnswers, sender: Sender
) -> ProgramOut:
    """Store a program; the same one again changes nothing."""
    body = await request.body()
    read = await answers.looked_at(partial(program_desk().read, body), program=True)
    record, is_new = await run_sync(
        store.programs.add, read.digest, read.name, read.document, sender.author
    )
    response.headers["Location"] = f"/v1/programs/{record.digest}"
    if not is_new:
        response.status_code = 200
    return ProgramOut(**_described(record, read))


@router.get("")
def list_programs(
    store: Store, created_by: CreatedBy = None, limit: Limit = 50, cursor: Cursor = None
) -> ProgramPage:
    """Return programs, newest first."""
    found, more = page_of(
        f"programs:{created_by!r}", limit, cursor,
        lambda count, last: store.programs.list(created_by=created_by, limit=count, before=last),
        most=BIGINT,
    )  # fmt: skip
    return ProgramPage(items=[_brief(record) for record in found], next_cursor=more)


@router.get("/{digest:name}", responses=documented(404))
async def get_program(digest: Digest, store: Store, answers: AppAnswers) -> ProgramDocumentOut:
    """Return a program as it came first."""
    record = await run_sync(store.programs.get, digest)
    read = await answers.looked_at(partial(program_desk().read, record.document), program=True)
    described = _described(record, read)
    return ProgramDocumentOut(**described, document=json.loads(record.document))


def _brief(record: ProgramEntry) -> ProgramBrief:
    return ProgramBrief(
        digest=record.digest,
        name=record.name,
        size_bytes=record.size_bytes,
        created_by=record.created_by,
        created_at=record.created_at,
    )


def _described(record: ProgramRecord, read: ReadProgram) -> dict[str, Any]:
    return {
        **_brief(record).model_dump(),
        "sizes": list(read.sizes),
        "knobs": [OpenKnobOut(name=n, default=d, values=None if v is None else list(v))
                  for n, d, v in read.knobs],
        "variants": read.variants,
        "can_be_tuned": not read.unfit,
    }  # fmt: skip
