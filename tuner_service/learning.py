"""What follows a tuning run: train the kernel's cost model and promote it if it earned that."""

from __future__ import annotations

import structlog

from db.records import RunRecord
from db.store import SqlStore
from recommender.cost_model import CostModel
from recommender.errors import InvalidModel, NotEnoughMeasurements
from recommender.features import SCHEMA
from recommender.hardware import HardwareProfile
from recommender.prior import prior
from recommender.training import TrainingOutcome, train
from recommender.workload import digest_of
from tilecore import kernels

log = structlog.get_logger()
TRAINING_LIMIT = 20_000  # newest measurements looked at


def train_after(store: SqlStore, run: RunRecord) -> TrainingOutcome | None:
    """Train on all measurements of the run's kernel; None where there are too few yet.

    There is no model of a program that came as data.

    The model is stored either way; it answers only if it beat the analytic model, the nearest
    lookup and the incumbent on workloads that it had not seen. Models are of CPUs: a run on a GPU
    teaches them nothing.
    """
    if run.hardware.kind != "cpu" or digest_of(run.workload.kernel) is not None:
        return None  # models learn from problems of one kernel: a program is its own kernel
    definition = kernels.get(run.workload.kernel)
    measurements = store.measurements(kernel=definition.name, only_ok=True, limit=TRAINING_LIMIT)
    try:
        incumbent = incumbent_of(store, definition.name, run.hardware)
        outcome = train(measurements, definition, incumbent=incumbent)
    except NotEnoughMeasurements as error:
        log.info("no model trained", why=error.message)
        return None
    store.models.save(
        kernel=definition.name,
        blob=outcome.model.to_bytes(),
        feature_schema=SCHEMA,
        metrics=outcome.metrics,
        trained_on=len(measurements),
        promote=outcome.is_promoted,
        reason=outcome.reason,
    )
    log.info("model trained", promoted=outcome.is_promoted, why=outcome.reason)
    return outcome


def incumbent_of(store: SqlStore, kernel: str, hardware: HardwareProfile) -> CostModel | None:
    """Return the model that a new one has to beat: the active one, else the one that ships.

    None where this version can use neither.
    """
    stored = store.active_model(kernel)
    if stored is not None:
        try:
            return CostModel.from_bytes(stored.blob, feature_schema=SCHEMA)
        except InvalidModel as error:  # of an older feature schema: it has no vote
            log.info("incumbent not used", why=error.message)
    return prior(kernel, hardware)
