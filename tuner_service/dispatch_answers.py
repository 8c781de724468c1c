"""POST /v1/dispatch-tables: a table from what is known, in bounded time."""

from __future__ import annotations

import json

from db.store import SqlStore
from recommender.errors import InvalidShapes
from recommender.shapes import parse_sizes
from tuner_service.answering import Answer
from tuner_service.dispatch_evidence import LoggedSessions
from tuner_service.dispatch_schemas import MAX_WIRE_SHAPES, DispatchTableRequest
from tuner_service.dispatch_shapes import AskedTable, understand_table

TABLE = "table "  # before the JSON of a request, where others are of recommendations
SOLVER_S = 2.0  # of each step: HiGHS proves what the service takes in much less


def work_out_table(store: SqlStore, request: DispatchTableRequest) -> Answer:
    """Return the table that a request asks for.

    Raises:
        InvalidShapes: more shapes than are answered at once, or none that can be used (RC611).
        TileError: what ``dispatch_shapes.understand_table`` and ``known_times`` raise.
    """
    # They load XGBoost and SciPy, which most processes need not.
    from recommender.dispatch import Choice, dispatch_table
    from recommender.dispatch_times import known_times

    asked = AskedTable(
        kernel=request.kernel,
        problem=request.problem,
        sizes={dim: parse_sizes(dim, text) for dim, text in request.sizes.items()},
        counts=[(counted.sizes, counted.weight) for counted in request.shapes],
        weighting=request.weighting,
        samples=request.samples,
        threads=request.threads,
        hardware=request.hardware,
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
    return Answer(body, request.kernel, "table")
