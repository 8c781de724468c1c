"""Cost models that administrators upload, and going back to earlier ones.

Nothing that was uploaded reaches XGBoost in this process before a child process has loaded it,
written it anew as JSON and predicted with it, and the structure of that JSON was checked here.
"""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import threading

import structlog

from db.errors import AlreadyMade, IllegalTransition
from db.idempotency import Once
from db.records import ModelRecord
from db.store import SqlStore
from recommender.errors import InvalidModel
from recommender.families import CPU, family_of_schema, feature_names, schema_of
from recommender.model_file import check_names, check_structure, parse
from recommender.model_trial import REFUSED
from tilecore import kernels
from tilecore.tile_config import digest
from tuner_service.coordinator.learning import TRAINING_LIMIT, incumbent_of
from tuner_service.errors import ModelsBusy
from tuner_service.wiring import detected_host

log = structlog.get_logger()
TRIAL_S = 60.0
PICKLES = (b"\x80", b"cxgboost", b"c__builtin__")


class ModelUploads:
    """Takes in models, one at a time: each costs a process and a look at all measurements."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._lock = threading.Lock()

    def add(
        self,
        kernel: str,
        raw: bytes,
        *,
        sha256: str,
        feature_schema: str,
        created_by: str | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[ModelRecord, bool]:
        """Store a model of XGBoost (UBJ or JSON); it answers from now on if it earned that.

        Its target is the logarithm of measured over analytic time, its features are those of
        ``recommender.features``, for GPUs of ``recommender.gpu.features``; their version says of
        which devices it is. It is held to what trained models are held to.

        Returns it and whether it is new (False: the idempotency key came again).

        Raises:
            UnknownKernel: no such kernel (TC501).
            InvalidModel: another hash, other features, damaged, or not what it should be (RC604).
            ModelsBusy: another one is being looked at (SV924).
            IdempotencyConflict: the idempotency key came before with another model (DB807).
        """
        once = None
        if idempotency_key is not None:
            asked = digest([kernel, sha256.lower(), feature_schema])
            once = Once("model", idempotency_key, asked)
        try:
            if once is not None:
                once.check(self._store.database)
            new = self._add(kernel, raw, sha256, feature_schema, created_by, once)
        except AlreadyMade as before:
            return self._store.models.get(int(before.fields["made"])), False
        return self._store.models.get(new), True

    def _add(
        self, kernel: str, raw: bytes, sha256: str, feature_schema: str, created_by: str | None,
        once: Once | None,
    ) -> int:  # fmt: skip
        definition = kernels.get(kernel)
        family = _checked(raw, sha256, feature_schema)
        if not self._lock.acquire(blocking=False):
            raise ModelsBusy()
        try:
            names = feature_names(family)
            document = tried(raw, len(names))
            check_names(parse(document), names)
            from recommender.cost_model import CostModel
            from recommender.training import judge

            found = self._store.measurements(
                kernel=definition.name, only_ok=True, limit=TRAINING_LIMIT
            )
            model = CostModel.of_json(document, feature_schema=feature_schema)
            arch = detected_host().arch if family == CPU else family
            incumbent = incumbent_of(self._store, definition.name, family, arch)
            judged = judge(model, found, definition, family=family, incumbent=incumbent)
            new = self._store.models.save(
                kernel=definition.name,
                family=family,
                blob=judged.model.to_bytes(),
                feature_schema=feature_schema,
                metrics=judged.metrics,
                trained_on=0,
                promote=judged.is_promoted,
                origin="uploaded",
                created_by=created_by,
                reason=judged.reason,
                once=once,
            )
        finally:
            self._lock.release()
        log.info("model uploaded", model=new, promoted=judged.is_promoted, why=judged.reason)
        return new

    def activate(self, model_id: int) -> ModelRecord:
        """Let a version answer again that was active before.

        Raises:
            UnknownModel: there is none with this id (DB825).
            ModelCorrupt: its bytes are not those that were saved (DB808).
            IllegalTransition: it never was active, or is of other features than are computed now
                (DB811).
        """
        stored = self._store.models.load(model_id)
        if family_of_schema(stored.feature_schema) is None:
            state = f"of features {stored.feature_schema}, which this version does not compute"
            raise IllegalTransition(run=f"model {model_id}", verb="activated", state=state)
        return self._store.models.activate(model_id)


def _checked(raw: bytes, sha256: str, feature_schema: str) -> str:
    """Refuse what need not be looked into; return the family of devices that a model is of."""
    found = hashlib.sha256(raw).hexdigest()
    if found != sha256.lower():
        hint = "send the file as it is, with `sha256sum FILE`"
        raise InvalidModel(expected=f"a file with sha256 {sha256}", found=found, hint=hint)
    family = family_of_schema(feature_schema)
    if family is None:
        hint = "train on the features of this version: recommender.features.NAMES, or gpu_features"
        known = f"feature_schema {schema_of(CPU)}, or for GPUs as {schema_of('sm_90a')}"
        raise InvalidModel(expected=known, found=feature_schema, hint=hint)
    if not raw:
        raise InvalidModel(expected="a UBJ or JSON model", found="an empty file")
    if raw.startswith(PICKLES):
        hint = "a pickle runs code when it is read: save the model by Booster.save_model"
        raise InvalidModel(expected="a UBJ or JSON model", found="a pickle", hint=hint)
    return family


def tried(raw: bytes, features: int) -> bytes:
    """Return a model as JSON that is safe to load, after a child process has lived through it.

    Raises:
        InvalidModel: why it is refused; it crashed or hung the child, for one (RC604).
    """
    command = [sys.executable, "-m", "recommender.model_trial", str(features)]
    environment = {"PYTHONPATH": ":".join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, input=raw, capture_output=True, timeout=TRIAL_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise InvalidModel(
            expected="a model that loads", found=f"one that takes more than {TRIAL_S:g} s"
        ) from error
    if done.returncode == REFUSED:
        raise _Refused(said=done.stdout.decode(errors="replace")[:500])
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        found = f"one on which the process that tried died ({name})"
        raise InvalidModel(expected="a model that loads", found=found)
    if done.returncode:
        log.error("model trial failed", said=done.stderr.decode(errors="replace")[-2000:])
        found = f"one on which the process that tried failed ({done.returncode})"
        raise InvalidModel(expected="a model that loads", found=found)
    check_structure(parse(done.stdout), features)
    return done.stdout


class _Refused(InvalidModel):
    """What the child process said of a model."""

    template = "{said}"
