"""Studies: kernels that others run; the list, and one study with its trials and its chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from markupsafe import Markup

from db.records import StudyOutline
from tuner_service.dashboard.charts import Point, best_over_trials
from tuner_service.dashboard.rendering import HOME, address, page
from tuner_service.dashboard.texts import first_line
from tuner_service.dashboard.trials import Start, trial_table
from tuner_service.routes.context import CreatedBy, Cursor, Store
from tuner_service.routes.studies import get_study, list_studies

router = APIRouter(prefix=f"{HOME}/studies")
ON_A_PAGE = 50
CAUSES = 40
Order = Literal["given", "time"]


@router.get("")
def studies(
    request: Request, store: Store, created_by: CreatedBy = None, cursor: Cursor = None
) -> Response:
    """Return a page of studies, newest first."""
    found = list_studies(store, created_by, ON_A_PAGE, cursor)
    given = dict(request.query_params)
    more = found.next_cursor
    return page(
        request, "studies.html",
        studies=found.items, given=given,
        first=address(request.url.path, given, cursor=None) if cursor else None,
        more=address(request.url.path, given, cursor=more) if more else None,
    )  # fmt: skip


@router.get("/{study_id}")
def study(
    request: Request,
    study_id: str,
    store: Store,
    order: Order = "given",
    start: Start = 0,
) -> Response:
    """Return a study."""
    found = get_study(study_id, store)
    trials = store.studies.outlines(store.studies.get(study_id))
    table = trial_table(request, trials, _by_time, order, start)
    table["trials"] = store.studies.some([t.id for t in table["trials"]])
    return page(
        request, "study.html",
        study=found, chart=_chart(trials, found.max_trials), causes=_causes(trials), **table,
    )  # fmt: skip


def _by_time(trial: StudyOutline) -> tuple[bool, float]:
    return trial.time_s is None, trial.time_s or 0.0


def _causes(trials: Sequence[StudyOutline]) -> list[tuple[str, str, int]]:
    """Return state, cause and count of trials, the most frequent first."""
    counted = Counter(
        (t.state, first_line(t.detail) if t.state == "failed" else "") for t in trials
    )
    return [(state, cause, count) for (state, cause), count in counted.most_common(CAUSES)]


def _chart(trials: Sequence[StudyOutline], planned: int) -> Markup | None:
    """Return the best time over the trials, None where none has one."""
    points = [Point(turn, t.time_s * 1e6, t.config) for turn, t in enumerate(trials, 1) if t.time_s]
    if not points:
        return None
    return best_over_trials("Best time over trials", points, {}, planned)
