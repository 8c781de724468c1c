"""What follows a tuning run: train the kernel's cost model and promote it if it earned that."""

from __future__ import annotations

import structlog

from db.records import RunRecord
from db.store import SqlStore
from recommender.cost_model import CostModel
from recommender.errors import InvalidModel, NotEnoughMeasurements
from recommender.families import schema_of
from recommender.hardware import HardwareProfile
from recommender.prior import prior_of
from recommender.training import TrainingOutcome, train
from recommender.workload import digest_of
from tilecore import kernels

log = structlog.get_logger()
TRAINING_LIMIT = 20_000  # newest measurements looked at


def train_after(store: SqlStore, run: RunRecord) -> TrainingOutcome | None:
    """Train on measurements of the run's kernel; None where there are too few yet.

    There is no model of a program that came as data.

    The model is stored either way; it answers only if it beat the analytic model, the nearest
    lookup and the incumbent on workloads that it had not seen. It learns from the family of the
    run's device alone: from all CPUs, or from GPUs of the same architecture.
    """
    if digest_of(run.workload.kernel) is not None:
        return None  # models learn from problems of one kernel: a program is its own kernel
    try:
        outcome = train_for(store, run.workload.kernel, run.hardware)
    except NotEnoughMeasurements as error:
        log.info("no model trained", why=error.message)
        return None
    log.info("model trained", promoted=outcome.is_promoted, why=outcome.reason)
    return outcome


def train_for(store: SqlStore, kernel: str, hardware: HardwareProfile) -> TrainingOutcome:
    """Train a model of a kernel of the library for the family of a device, and store it.

    Raises:
        NotEnoughMeasurements: there are too few yet (RC606).
    """
    definition, family = kernels.get(kernel), hardware.family
    measurements = store.training(definition.name, family, limit=TRAINING_LIMIT)
    incumbent = incumbent_of(store, definition.name, family, hardware.arch)
    outcome = train(measurements, definition, family=family, incumbent=incumbent)
    store.models.save(
        kernel=definition.name,
        family=family,
        blob=outcome.model.to_bytes(),
        feature_schema=schema_of(family),
        metrics=outcome.metrics,
        trained_on=int(outcome.metrics["rows"]),
        promote=outcome.is_promoted,
        reason=outcome.reason,
    )
    return outcome


def incumbent_of(store: SqlStore, kernel: str, family: str, arch: str) -> CostModel | None:
    """Return the model that a new one has to beat: the active one, else the one that ships.

    None where this version can use neither.
    """
    stored = store.active_model(kernel, family)
    if stored is not None:
        try:
            return CostModel.from_bytes(stored.blob, feature_schema=schema_of(family))
        except InvalidModel as error:  # of an older feature schema: it has no vote
            log.info("incumbent not used", why=error.message)
    return prior_of(kernel, family, arch)
