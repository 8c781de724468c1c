"""POST /v1/dispatch-tables: a table from what is known, in bounded time."""

from __future__ import annotations

import json

from db.store import SqlStore
from recommender.errors import InvalidShapes
from recommender.shapes import parse_sizes
from tuner_service.answering import Answer
from tuner_service.dispatch_evidence import LoggedSessions
from tuner_service.dispatch_schemas import MAX_WIRE_SHAPES, DispatchTableRequest
from tuner_service.dispatch_sent import StoredForDispatch
from tuner_service.dispatch_shapes import AskedTable, understand_table
from tuner_service.errors import InvalidRequest

TABLE = "table "  # before the JSON of a request, where others are of recommendations
SOLVER_S = 2.0  # of each step: HiGHS proves what the service takes in much less


def work_out_table(store: SqlStore, request: DispatchTableRequest) -> Answer:
    """Return the table that a request asks for.

    Raises:
        InvalidRequest: neither a kernel nor a program is named, or both are (SV901).
        InvalidShapes: more shapes than are answered at once, or none that can be used (RC611).
        TileError: what ``dispatch_shapes.understand_table`` and ``known_times`` raise.
    """
    # They load XGBoost and SciPy, which most processes need not.
    from recommender.dispatch import Choice, dispatch_table
    from recommender.dispatch_times import known_times

    sent = _sent(request)
    name = request.kernel or f"program {request.program}"
    asked = AskedTable(
        kernel=name,
        problem=request.problem,
        sizes={dim: parse_sizes(dim, text) for dim, text in request.sizes.items()},
        counts=[(counted.sizes, counted.weight) for counted in request.shapes],
        weighting=request.weighting,
        samples=request.samples,
        threads=request.threads,
        hardware=request.hardware,
        program=sent,
    )
    question = understand_table(store, asked)
    if len(question.shapes.shapes) > MAX_WIRE_SHAPES:
        raise InvalidShapes(
            where="shapes", expected=f"at most {MAX_WIRE_SHAPES} in one request",
            found=len(question.shapes.shapes),
        )  # fmt: skip
    times = known_times(
        question, store, evidence=LoggedSessions(store, question),
        trust_predictions=request.trust_predictions,
    )  # fmt: skip
    choice = Choice(
        tolerance=request.tolerance, max_configs=request.max_configs, time_limit_s=SOLVER_S
    )
    table = dispatch_table(question, times, choice)
    body = json.dumps(table.to_json(), allow_nan=False).encode()
    return Answer(body, "program" if sent else name, "table")


def _sent(request: DispatchTableRequest) -> StoredForDispatch | None:
    """Return the program that a request is about; None: it is about a kernel of the library.

    Raises:
        InvalidRequest: both are named, or none, or knobs of a library kernel are fixed (SV901).
    """
    if (request.kernel is None) == (request.program is None):
        raise InvalidRequest(message="expected either kernel or program, found both or none")
    if request.program is not None:
        return StoredForDispatch(request.program, request.fixed or {})
    if request.fixed:
        raise InvalidRequest(message="expected `fixed` with a program, found it with a kernel")
    return None
