"""After a tuning run: did times of its workload drift? Then it is tuned again, once."""

from __future__ import annotations

import structlog

from db.records import DriftRecord, RunRecord
from db.store import SqlStore
from recommender.drift import RunTimes, find_drift, run_times
from recommender.workload import digest_of
from tilecore import kernels
from tilecore.tile_config import TileConfig
from tuner_service.questions import Question
from tuner_service.remeasure import Doubt, follow_up
from tuner_service.sent_programs import sent_program
from tuner_service.settings import Settings

log = structlog.get_logger()


def check_after(store: SqlStore, settings: Settings, run: RunRecord) -> DriftRecord | None:
    """End the drift that a run was to tune after, or note one that it shows and queue a run.

    Returns:
        The drift that was found.
    """
    if store.runs.get(run.public_id).state != "SUCCEEDED" or store.drifts.end(run):
        return None
    drift = find_drift(_history(store, run))
    if drift is None:
        return None
    found = store.drifts.add(run, drift)
    if found is None:
        return None
    log.warning("drift", run=run.public_id, workload=str(run.workload), why=found.explanation)
    question = _question(store, run)
    best = store.best(
        run.workload, run.hardware.key, run.program_digest, run.toolchain.key, run.hardware.driver
    )
    follow_up(store, settings, question, doubt_of(found, best.config if best else None))
    return found


def _question(store: SqlStore, run: RunRecord) -> Question:
    """Return what a run was to answer."""
    is_sent = digest_of(run.workload.kernel) is not None
    return Question(
        definition=None if is_sent else kernels.get(run.workload.kernel).on(run.hardware.kind),
        workload=run.workload,
        hardware=run.hardware,
        known_digest=run.program_digest,
        toolchain=run.toolchain,
        sent=sent_program(store, run) if is_sent else None,
    )


def doubt_of(drift: DriftRecord, incumbent: TileConfig | None) -> Doubt:
    """Return what a drift makes of the answers to a question."""
    return Doubt(
        cause="drift",
        reasons=(drift.explanation,),
        incumbents=() if incumbent is None else (incumbent,),
        name=str(drift.id),
    )


def _history(store: SqlStore, run: RunRecord) -> list[RunTimes]:
    """Return what the last runs like this one measured with the driver that it had."""
    history = store.drifts.history(run)
    drivers = {name: measured[0].driver for name, measured in history}
    mine = drivers.get(run.public_id)
    alike = [(name, measured) for name, measured in history if drivers[name] == mine]
    found = (run_times(name, measured) for name, measured in alike)
    return [times for times in found if times is not None]
