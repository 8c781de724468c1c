"""What becomes of doubts in an answer; what follows them up is loaded where there are some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from db.store import SqlStore
from tuner_service.questions import Evidence, Question
from tuner_service.settings import Settings

if TYPE_CHECKING:
    from tuner_service.remeasure import Remeasurement


def remeasurement(
    store: SqlStore, settings: Settings, question: Question, evidence: Evidence
) -> Remeasurement | None:
    """Return what becomes of doubts in what was measured for a question; None: there are none."""
    best = evidence.best
    if best is None or not best.doubts:
        return None
    from tuner_service.drifting import doubt_of
    from tuner_service.remeasure import Doubt, follow_up

    if evidence.drift is not None:
        doubt = doubt_of(evidence.drift, best.config)
    else:
        doubt = Doubt(cause="stale", reasons=best.doubts, incumbents=(best.config,))
    return follow_up(store, settings, question, doubt)
