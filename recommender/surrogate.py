"""Surrogate: what told times say of all candidates, as an ensemble of plausible times.

Each member sees a bootstrap of what was told, so that its best candidate is one that may well be
the best: a batch takes a pick of each (Thompson sampling). A member is a line through what was
known before (other devices, a model), whose slopes are drawn from their posterior, and trees on
what the line leaves. The trees learn the head of the times only: how slow the slow ones are says
nothing of the fast, and takes splits away from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recommender.cost_model import CostModel

HEAD = 0.7  # quantile of the told times above which all are alike
FAILURE_PENALTY = 0.45  # log time added to the slowest of the head for what failed
ROUNDS, RATE = 50, 0.15  # of the trees
RIDGE = 0.2  # variance of the noise over that of a slope: prior beliefs are about right
NOISE = 0.15  # of a log time around the line
TIE = 1e-6  # weight of the unbounded line among candidates that trees see alike


@dataclass(frozen=True, eq=False)
class Told:
    """Times of some candidates.

    Attributes:
        rows: the candidates.
        log_time: their logarithms; NaN: it failed.
    """

    rows: NDArray[np.intp]
    log_time: NDArray[np.float64]

    @property
    def worked(self) -> NDArray[np.bool_]:
        """Which of them have a time."""
        return ~np.isnan(self.log_time)

    @property
    def limit(self) -> float:
        """The log time above which all are alike."""
        return float(np.nanquantile(self.log_time, HEAD))

    def target(self, limit: float) -> NDArray[np.float64]:
        """Return what is to be learnt: log times up to a limit, failures beyond it."""
        slow = limit + FAILURE_PENALTY
        found: NDArray[np.float64] = np.where(self.worked, np.minimum(self.log_time, limit), slow)
        return found

    def bootstrap(self, rng: np.random.Generator) -> Told:
        """Return as many drawn with replacement; all as they are if none drawn has a time."""
        drawn = rng.integers(len(self.rows), size=len(self.rows))
        if np.isnan(self.log_time[drawn]).all():
            return self
        return Told(self.rows[drawn], self.log_time[drawn])


def plausible_times(
    told: Told,
    evidence: NDArray[np.float64],
    features: NDArray[Any],
    members: Sequence[int],
    rng: np.random.Generator,
) -> Iterator[NDArray[np.float64]]:
    """Yield the log time of every candidate as each member sees it.

    Args:
        told: at least MIN_ROWS of the cost model, at least one with a time.
        evidence: log times by what was known before, a column per source.
        features: a row per candidate.
        members: numbers of members; number 0 sees everything as it was told.
        rng: of bootstraps, slopes and trees.
    """
    for number in members:
        seen = told if number == 0 else told.bootstrap(rng)
        line = _line(seen, evidence, rng if number else None)
        reference = np.minimum(line, seen.limit)
        target = seen.target(seen.limit)
        model = CostModel.fit(
            features[seen.rows], target - reference[seen.rows], np.zeros(len(target)),
            feature_schema="session", seed=int(rng.integers(1 << 30)), rounds=ROUNDS, rate=RATE,
            with_interval=False,
        )  # fmt: skip
        yield reference + np.log(model.predict(features).factor) + TIE * line


def _line(
    seen: Told, evidence: NDArray[np.float64], rng: np.random.Generator | None
) -> NDArray[np.float64]:
    """Return log times of all candidates by a line through the evidence, as Bayes draws it.

    Before anything is told all sources weigh alike, 1 together.
    """
    sources = evidence.shape[1]
    centred = evidence - evidence.mean(axis=0)
    known, time = centred[seen.rows[seen.worked]], seen.log_time[seen.worked]
    middle, offset = known.mean(axis=0), time.mean()
    known = known - middle
    weights = np.full(sources, 1.0 / sources)
    precision = known.T @ known + RIDGE * np.eye(sources)
    weights += np.linalg.solve(precision, known.T @ (time - offset - known @ weights))
    if rng is not None:
        spread = np.linalg.cholesky(np.linalg.inv(precision))
        weights += NOISE * spread @ rng.normal(size=sources)
    line: NDArray[np.float64] = offset + (centred - middle) @ weights
    return line
