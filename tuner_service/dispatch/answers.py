"""POST /v1/dispatch-tables: a table from what is known, in bounded time, or from tuned shapes."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING

from pydantic import BaseModel

from db.store import SqlStore
from recommender.dispatch.question import DispatchQuestion
from recommender.errors import InvalidShapes
from recommender.shapes import parse_sizes
from tilecore.tile_config import digest
from tuner_service.answers.memory import Answer, Basis
from tuner_service.dispatch.evidence import LoggedSessions
from tuner_service.dispatch.schemas import (
    MAX_WIRE_SHAPES,
    DispatchTableRequest,
    DispatchTuningOut,
    DispatchTuningRequest,
    TableQuestion,
)
from tuner_service.dispatch.sent import StoredForDispatch
from tuner_service.dispatch.shapes import AskedTable, understand_table
from tuner_service.errors import InvalidRequest
from tuner_service.jobs import Effort
from tuner_service.wiring import host_toolchain

if TYPE_CHECKING:
    from recommender.dispatch.times import Times

TABLE = "table "  # before the JSON of a request, where others are of recommendations
ORDER = "order "  # before that of a TuningOrder
WAITING = "waiting"  # source of an answer that is no table yet
SOLVER_S = 2.0  # of each step: HiGHS proves what the service takes in much less


class TuningOrder(BaseModel):
    """A table that is to be tuned, by whom, and with what effort."""

    request: DispatchTuningRequest
    effort: Effort
    idempotency_key: str | None = None
    created_by: str | None = None


def work_out_table(store: SqlStore, request: DispatchTableRequest) -> Answer:
    """Return the table that a request asks for.

    Raises:
        InvalidRequest: neither a kernel nor a program is named, or both are (SV901).
        InvalidShapes: more shapes than are answered at once, or none that can be used (RC611).
        TileError: what ``dispatch_shapes.understand_table`` and ``known_times`` raise.
    """
    # They load XGBoost and SciPy, which most processes need not.
    from recommender.dispatch.times import known_times

    question = understand_table(store, _asked(request))
    _check_size(question)
    times = known_times(
        question, store, evidence=LoggedSessions(store, question),
        trust_predictions=request.trust_predictions,
    )  # fmt: skip
    return _table(request, question, times)


def advance_table(store: SqlStore, order: TuningOrder) -> Answer:
    """Return the table of an order whose shapes are measured, or where that stands.

    Raises:
        TileError: what ``work_out_table`` and ``TableTuning.advance`` raise.
    """
    from tuner_service.dispatch.tuning import TableTuning, Waiting

    asked = _asked(order.request)
    state = [order.request.model_dump(), order.idempotency_key, host_toolchain().key]
    tuning = TableTuning(store, asked, order.effort, digest(state), order.created_by)
    now = tuning.advance(_check_size)
    if not isinstance(now, Waiting):
        return _table(order.request, now.question, now.times)
    trials: Counter[str] = Counter()
    for run in now.runs:
        trials.update(store.trials.count_by_status(run.id))
    progress = DispatchTuningOut(
        stage=now.stage, runs_by_state=dict(Counter(run.state for run in now.runs)),
        trials=dict(trials), planned_trials=sum(run.planned_trials for run in now.runs),
        runs=[run.public_id for run in now.runs],
    )  # fmt: skip
    body = progress.model_dump_json().encode()
    return Answer(body, asked.kernel, WAITING, Basis(asked.kernel), until=-math.inf)


def _asked(request: TableQuestion) -> AskedTable:
    sent = _sent(request)
    return AskedTable(
        kernel=request.kernel or f"program {request.program}",
        problem=request.problem,
        sizes={dim: parse_sizes(dim, text) for dim, text in request.sizes.items()},
        counts=[(counted.sizes, counted.weight) for counted in request.shapes],
        weighting=request.weighting,
        samples=request.samples,
        threads=request.threads,
        hardware=request.hardware,
        program=sent,
    )


def _check_size(question: DispatchQuestion) -> None:
    if len(question.shapes.shapes) > MAX_WIRE_SHAPES:
        raise InvalidShapes(
            where="shapes", expected=f"at most {MAX_WIRE_SHAPES} in one request",
            found=len(question.shapes.shapes),
        )  # fmt: skip


def _table(request: TableQuestion, question: DispatchQuestion, times: Times) -> Answer:
    from recommender.dispatch.table import Choice, dispatch_table

    choice = Choice(
        tolerance=request.tolerance, max_configs=request.max_configs, time_limit_s=SOLVER_S
    )
    table = dispatch_table(question, times, choice)
    body = json.dumps(table.to_json(), allow_nan=False).encode()
    kernel = "program" if request.program else str(request.kernel)
    return Answer(body, kernel, "table", Basis(question.logged), math.inf)


def _sent(request: TableQuestion) -> StoredForDispatch | None:
    """Return the program that a request is about; None: it is about a kernel of the library.

    Raises:
        InvalidRequest: both are named, or none, or knobs of a library kernel are fixed (SV901).
    """
    if (request.kernel is None) == (request.program is None):
        found = "both" if request.program else "none"
        raise InvalidRequest(message=f"expected either kernel or program, found {found}")
    if request.program is not None:
        return StoredForDispatch(request.program, request.fixed or {})
    if request.fixed:
        raise InvalidRequest(message="expected `fixed` with a program, found it with a kernel")
    return None
