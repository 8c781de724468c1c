"""Recommend: a form for one question, and the ranked configs that REST answers to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from markupsafe import Markup
from pydantic import ValidationError

from db.snapshot import Snapshot
from db.store import SqlStore
from recommender.errors import UnknownHardware
from tilecore import kernels
from tilecore.errors import InvalidProblem, TileError, UnknownKernel
from tilecore.kernels.definition import KernelDefinition
from tuner_service.answers.answering import work_out
from tuner_service.dashboard.charts import Bar, bars
from tuner_service.dashboard.overview import MOST_DEVICES
from tuner_service.dashboard.rendering import HOME, page
from tuner_service.dashboard.texts import micro
from tuner_service.errors import TooManyThreads, http_status
from tuner_service.routes.catalog import list_hardware
from tuner_service.routes.context import AppSettings, Store
from tuner_service.schemas import RecommendationRequest, RecommendationResponse
from tuner_service.settings import Settings

router = APIRouter(prefix=HOME)
FIRST = "gemm"
FIELD = "problem."  # before the names of a problem's fields, which may be any
FIELD_OF = {UnknownHardware: "hardware", TooManyThreads: "threads", UnknownKernel: "kernel"}
OTHERS = ("kernel", "hardware", "threads", "top_k")  # fields of the form for any kernel
Faults = dict[str, str]  # by the name of the form's field; "": of the question as a whole


@router.get("/recommend")
def recommend(request: Request, store: Store, settings: AppSettings) -> Response:
    """Return the form and, where it was filled in, the answer. Nothing is queued."""
    given = dict(request.query_params)
    name = given.get("kernel", FIRST)
    definition = kernels.KERNELS.get(name)
    answer, faults, status = None, Faults(), 200
    is_asked = "show" not in given and any(field.startswith(FIELD) for field in given)
    if is_asked or definition is None:
        answer, faults, status = _answer(store, settings, _question(name, definition, given))
    shown = definition or kernels.get(FIRST)
    named = {*OTHERS, *(f"{FIELD}{f.name}" for f in shown.fields)}
    return page(
        request, "recommend.html", status,
        kernel=shown, given=given, prefix=FIELD, faults=faults, answer=answer,
        unplaced={n: text for n, text in faults.items() if n not in named},
        kernels=kernels.KERNELS, devices=list_hardware(store, limit=MOST_DEVICES).items,
        drawn=[] if answer is None else [_terms(r.terms_us) for r in answer.recommendations],
    )  # fmt: skip


def _answer(
    store: SqlStore, settings: Settings, body: Mapping[str, Any]
) -> tuple[RecommendationResponse | None, Faults, int]:
    """Return what REST answers, faults by the fields of the form, and the status."""
    try:
        question = RecommendationRequest.model_validate(body)
        quiet = settings.model_copy(update={"retune": "off"})
        found = work_out(Snapshot(store), quiet, question).body
        return RecommendationResponse.model_validate_json(found), {}, 200
    except ValidationError as error:
        return None, _of_form(error), 422
    except TileError as error:
        status = http_status(error)
        if status >= 500:
            raise
        return None, _of_question(error), status


def _question(
    name: str, definition: KernelDefinition | None, given: Mapping[str, str]
) -> dict[str, Any]:
    """Return the body that REST would get."""
    kinds = {} if definition is None else {f.name: f.kind for f in definition.fields}
    problem = {
        field.removeprefix(FIELD): _value(text, kinds.get(field.removeprefix(FIELD), ""))
        for field, text in given.items()
        if field.startswith(FIELD)
    }
    others = {n: _value(given[n], "dimension") for n in ("threads", "top_k") if n in given}
    return {"kernel": name, "problem": problem, "hardware": given.get("hardware"), **others}


def _value(text: str, kind: str) -> int | str | bool:
    """Return what a form means; what is no number stays a text, which REST refuses in its words."""
    if kind == "flag":
        return {"true": True, "false": False}.get(text, text)
    is_number = kind == "dimension" and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", text)
    return int(text) if is_number else text


def _of_form(error: ValidationError) -> Faults:
    found: Faults = {}
    for fault in error.errors():
        place = [str(part) for part in fault["loc"]]
        name = f"{FIELD}{place[1]}" if place[:1] == ["problem"] and len(place) > 1 else place[0]
        found.setdefault(name, fault["msg"])
    return found


def _of_question(error: TileError) -> Faults:
    text = f"{error.code} {error.message}"
    if isinstance(error, InvalidProblem):
        return {f"{FIELD}{error.fields['field']}": text}
    kinds = [field for kind, field in FIELD_OF.items() if isinstance(error, kind)]
    return {kinds[0] if kinds else "": text}


def _terms(terms_us: Mapping[str, float]) -> Markup | None:
    """Return the terms of an estimate as bars, the largest first; None: they are not known."""
    whole = sum(terms_us.values())
    largest = sorted(terms_us.items(), key=lambda term: -term[1])
    rows = [
        Bar(name, us, f"{micro(us)} µs, {us / whole:.0%}")
        for name, us in largest
        if us >= 0.005 * whole
    ]
    return bars("What the estimated time is made of", rows, 90.0) if rows else None
