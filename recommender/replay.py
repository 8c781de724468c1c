"""Replay: a fully measured space stands in for the device, so that searches can be compared."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recommender.search import Landscape, Observations, Strategy

NOT_A_KNOB = ("status", "time_ms")


@dataclass(frozen=True, slots=True, eq=False)
class RecordedSpace:
    """Every configuration of a space with its time; NaN where it failed.

    Attributes:
        columns: per knob the value of every row (texts as codes).
        time_s: per row.
    """

    columns: Mapping[str, np.ndarray]
    time_s: np.ndarray

    @classmethod
    def load(cls, path: Path) -> RecordedSpace:
        """Return the space in a CSV file (plain or .gz): knobs, then ``status`` and ``time_ms``."""
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt") as file:
            rows = list(csv.DictReader(file))
        knobs = [name for name in rows[0] if name not in NOT_A_KNOB]
        good = [row["status"] == "ok" for row in rows]
        times = [
            float(r["time_ms"]) / 1e3 if ok else np.nan for r, ok in zip(rows, good, strict=True)
        ]
        return cls({k: _numbers([r[k] for r in rows]) for k in knobs}, np.array(times))

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def best_s(self) -> float:
        """The smallest time of all."""
        return float(np.nanmin(self.time_s))

    def landscape(self, prior_s: np.ndarray | None = None) -> Landscape:
        """Return what a search may see: knob values and neighbours, no times."""
        matrix = np.stack(list(self.columns.values()), axis=1)
        prior = np.ones(len(self)) if prior_s is None else prior_s
        ranks = np.stack([np.unique(c, return_inverse=True)[1] for c in matrix.T], axis=1)

        def neighbours(row: int) -> list[int]:
            distance = np.abs(ranks - ranks[row])
            near = (np.count_nonzero(distance, axis=1) == 1) & (distance.sum(axis=1) == 1)
            return [int(r) for r in np.flatnonzero(near)]

        return Landscape(prior, matrix.astype(np.float32), neighbours)


def replay(
    space: RecordedSpace,
    strategy: Strategy,
    *,
    trials: int,
    batch: int = 8,
    seed: int = 0,
    prior_s: np.ndarray | None = None,
) -> np.ndarray:
    """Return the fraction of the best speed reached after each of ``trials`` evaluations."""
    landscape, seen = space.landscape(prior_s), Observations()
    reached: list[float] = []
    best = np.inf
    while len(reached) < trials:
        rows = strategy.ask(min(batch, trials - len(reached)), landscape, seen, seed)
        if not rows:
            break
        for row in rows:
            time_s = float(space.time_s[row])
            seen.times_s[row] = None if np.isnan(time_s) else time_s
            best = min(best, np.inf if np.isnan(time_s) else time_s)
            reached.append(space.best_s / best)
    return np.array(reached)


def _numbers(texts: list[str]) -> np.ndarray:
    try:
        return np.array([float(t) for t in texts])
    except ValueError:
        return np.unique(texts, return_inverse=True)[1].astype(np.float64)
