"""CostModel: what measurements add to the analytic model. The only file that knows XGBoost.

It is loaded to train, to read files from elsewhere, and by those that answer all the time: to load
it takes longer than many an answer, which ``Trees`` give without it, to the bit as it does.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from recommender.errors import InvalidModel, NotEnoughMeasurements
from recommender.model_file import check_structure, parse
from recommender.trees import Trees

FORMAT = 2
MIN_ROWS = 8
MAX_BLOB_BYTES = 64 << 20
EXACT_ROWS = 1000  # up to here exact splits are as fast as histograms, and better


@dataclass(frozen=True, slots=True)
class Prediction:
    """Factors on the analytic time: expected, and the ends of the interval that holds 80 %."""

    factor: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class CostModel:
    """Gradient-boosted trees for ``log(measured time / analytic time)``.

    Attributes:
        booster: of XGBoost, or ``Trees``.
        feature_schema: version of the features it was trained with.
        spread: 10 % and 90 % quantiles of the residual on rows it was not trained on.
        rows: number of measurements behind it.
        dtypes: element types of the problems among them; none: not known.
    """

    booster: Any
    feature_schema: str
    spread: tuple[float, float]
    rows: int
    dtypes: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls,
        features: np.ndarray,
        log_ratio: np.ndarray,
        groups: np.ndarray,
        *,
        feature_schema: str,
        seed: int = 0,
        rounds: int = 200,
        rate: float = 0.08,
        feature_share: float = 0.3,
        with_interval: bool = True,
        dtypes: Sequence[str] = (),
    ) -> CostModel:
        """Return a model of ``log_ratio`` (measured over analytic time).

        Args:
            features: one row per measurement.
            log_ratio: natural logarithm of measured over analytic time.
            groups: workload of every row; the interval comes from rows of held-out workloads, or
                of held-out rows where there is only one.
            feature_schema: version of the features.
            seed: of the row and column sampling.
            rounds: number of trees.
            rate: of what a tree finds, the part that counts.
            feature_share: of the features, those that a split chooses among, on many rows.
            with_interval: False leaves the interval empty, which saves three trainings.
            dtypes: element types of the problems.

        Raises:
            NotEnoughMeasurements: fewer than MIN_ROWS rows (RC606).
        """
        if len(log_ratio) < MIN_ROWS:
            raise NotEnoughMeasurements(
                expected=f"{MIN_ROWS} measurements", found=str(len(log_ratio))
            )
        spread = (0.0, 0.0)
        train = partial(_train, seed=seed, rate=rate, feature_share=feature_share)
        if with_interval:
            spread = _held_out_spread(
                features, log_ratio, groups, partial(train, rounds=max(20, rounds // 2)), seed
            )
        booster = train(features, log_ratio, rounds=rounds)
        return cls(booster, feature_schema, spread, len(log_ratio), tuple(dtypes))

    def knows(self, dtype: str) -> bool:
        """Return whether it was trained on problems of an element type, as far as it is known.

        To trees, a type that they never met looks like the nearest one that they did.
        """
        return not self.dtypes or dtype in self.dtypes

    def predict(self, features: np.ndarray) -> Prediction:
        """Return factors on the analytic time for every row of ``features``."""
        is_read = isinstance(self.booster, Trees)
        ask = self.booster.predict if is_read else self.booster.inplace_predict
        log_ratio = ask(features).astype(np.float64)
        low, high = self.spread
        return Prediction(np.exp(log_ratio), np.exp(log_ratio + low), np.exp(log_ratio + high))

    def to_bytes(self) -> bytes:
        """Return the model as checked JSON bytes."""
        is_read = isinstance(self.booster, Trees)
        raw = self.booster.raw if is_read else bytes(self.booster.save_raw("json"))
        envelope = {
            "format": FORMAT,
            "feature_schema": self.feature_schema,
            "spread": list(self.spread),
            "rows": self.rows,
            "dtypes": list(self.dtypes),
            "sha256": hashlib.sha256(raw).hexdigest(),
            "booster": base64.b64encode(raw).decode(),
        }
        return json.dumps(envelope, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, blob: bytes, *, feature_schema: str) -> CostModel:
        """Return the model in ``blob``.

        XGBoost crashes on damaged files, so nothing reaches it before hash and structure fit.

        Raises:
            InvalidModel: damaged, of another format, or for other features (RC604).
        """
        envelope = _open_envelope(blob)
        found = envelope["feature_schema"]
        if found != feature_schema:
            raise InvalidModel(expected=f"feature schema {feature_schema}", found=str(found))
        booster = _loaded(_checked_booster(envelope))
        low, high = (float(x) for x in envelope["spread"])
        return cls(
            booster, feature_schema, (low, high), int(envelope["rows"]), tuple(envelope["dtypes"])
        )

    @classmethod
    def of_json(cls, raw: bytes, *, feature_schema: str) -> CostModel:
        """Return the model in JSON that ``reloaded`` wrote; its interval is yet to be found."""
        return cls(_loaded(raw), feature_schema, (0.0, 0.0), 0)


def reloaded(raw: bytes, features: int) -> bytes:
    """Return a model file of XGBoost (UBJ or JSON) as JSON that is safe to load and predicts.

    Call it in a process that may crash: only JSON can be checked before XGBoost reads it.

    Raises:
        InvalidModel: damaged, or no cost model over so many features (RC604).
    """
    import xgboost

    if raw[:1] == b"{" and raw[:2] != UBJ_OBJECT:
        check_structure(parse(raw), features)
    booster = xgboost.Booster({"nthread": 1})
    try:
        booster.load_model(bytearray(raw))
        document = bytes(booster.save_raw("json"))
    except (xgboost.core.XGBoostError, UnicodeDecodeError, ValueError) as error:
        raise InvalidModel(expected="a model of XGBoost", found=_damage(error)) from error
    check_structure(parse(document), features)
    rows = np.random.default_rng(0).normal(0.0, 4.0, (256, features)).astype(np.float32)
    rows[:8] = np.nan  # as features that a program lacks
    predicted = booster.inplace_predict(rows)
    if predicted.shape != (256,) or not np.all(np.abs(predicted) <= MAX_LOG_RATIO):
        raise InvalidModel(expected="logarithms of ratios", found="predictions beyond any")
    return document


def _damage(error: Exception) -> str:
    """Return what XGBoost says, without the time and the place in its sources."""
    lines = str(error).splitlines() or [type(error).__name__]
    said = re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", lines[0]).rstrip(" :")
    return f"a damaged one (XGBoost says: {said[:200]})"


UBJ_OBJECT = b"{L"  # how XGBoost begins a UBJ file: the length of the first name, 8 bytes
MAX_LOG_RATIO = 50.0


def _open_envelope(blob: bytes) -> dict[str, Any]:
    expected = f"a cost model of format {FORMAT}"
    if len(blob) > MAX_BLOB_BYTES:
        raise InvalidModel(expected=expected, found=f"{len(blob)} bytes")
    try:
        envelope = json.loads(blob)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidModel(expected=expected, found=f"no JSON ({error})") from error
    wanted = {"format", "feature_schema", "spread", "rows", "dtypes", "sha256", "booster"}
    if not isinstance(envelope, dict) or set(envelope) != wanted:
        raise InvalidModel(expected=expected, found="JSON of another structure")
    if envelope["format"] != FORMAT:
        raise InvalidModel(expected=expected, found=f"format {envelope['format']}")
    spread = envelope["spread"]
    numbers = isinstance(spread, list) and len(spread) == 2
    if not numbers or not all(isinstance(x, (int, float)) for x in [*spread, envelope["rows"]]):
        raise InvalidModel(expected="two numbers as spread", found=repr(spread))
    dtypes = envelope["dtypes"]
    if not isinstance(dtypes, list) or not all(isinstance(name, str) for name in dtypes):
        raise InvalidModel(expected="names of element types", found=repr(dtypes))
    return envelope


def _checked_booster(envelope: dict[str, Any]) -> bytes:
    try:
        raw = base64.b64decode(envelope["booster"], validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise InvalidModel(expected="base64 text as booster", found=str(error)) from error
    digest = hashlib.sha256(raw).hexdigest()
    if digest != envelope["sha256"]:
        raise InvalidModel(expected=f"booster with sha256 {envelope['sha256']}", found=digest)
    return raw


def _loaded(raw: bytes) -> Any:
    """Return what predicts: XGBoost where it is loaded already, which is faster, else ``Trees``."""
    if "xgboost" not in sys.modules:
        return Trees.of_json(raw)
    import xgboost

    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(raw))
    return booster


def _train(
    features: np.ndarray, target: np.ndarray, *, seed: int, rounds: int, rate: float,
    feature_share: float,
) -> Any:  # fmt: skip
    import xgboost

    is_small = len(target) <= EXACT_ROWS
    options = {
        "objective": "reg:pseudohubererror",  # outliers of noisy machines weigh less
        "huber_slope": 1.0,
        "base_score": float(np.median(target)),
        "max_depth": 5,
        "eta": rate,
        "subsample": 0.8,
        "min_child_weight": 1.0,
        "lambda": 1.0,
        "tree_method": "exact" if is_small else "hist",
        # Of features that say much the same, each gets its turn; "exact" cannot do that.
        "colsample_bynode": 1.0 if is_small else feature_share,
        "nthread": 1,  # two threads beside a busy neighbour cost 24 ms per prediction
        "seed": seed,
        "verbosity": 0,
    }
    matrix = xgboost.DMatrix(features, label=target, nthread=1)
    return xgboost.train(options, matrix, num_boost_round=rounds)


def _held_out_spread(
    features: np.ndarray, target: np.ndarray, groups: np.ndarray,
    train: Callable[[np.ndarray, np.ndarray], Any], seed: int,
) -> tuple[float, float]:  # fmt: skip
    """Return the 10 % and 90 % quantiles of the error on folds that were left out."""
    names = np.unique(groups)
    rng = np.random.default_rng(seed)
    if len(names) > 1:
        fold_of = dict(zip(names.tolist(), (rng.permutation(len(names)) % 3).tolist(), strict=True))
        folds = np.array([fold_of[g] for g in groups.tolist()])
    else:
        folds = rng.permutation(len(target)) % 3
    errors = []
    for fold in np.unique(folds):
        kept = folds != fold
        booster = train(features[kept], target[kept])
        errors.append(target[~kept] - booster.inplace_predict(features[~kept]))
    low, high = np.quantile(np.concatenate(errors), [0.1, 0.9])
    return float(min(low, 0.0)), float(max(high, 0.0))
