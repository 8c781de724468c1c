"""Search strategies over a value-only interface: rows of a table, told times, asked for more rows.

A strategy is a function of what is known, so a search resumes from its records alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from recommender.cost_model import MIN_ROWS, CostModel

FAILURE_PENALTY = 1.5  # added to the log time of a failed candidate when the surrogate learns
REFIT_EVERY = 2


@dataclass(frozen=True, slots=True)
class Landscape:
    """What a search may know before it starts; all arrays have one entry per candidate.

    Attributes:
        prior_s: expected time (analytic, or analytic x cost model), in any monotone unit.
        features: for a surrogate to learn from.
        neighbours: row -> rows one step away.
    """

    prior_s: np.ndarray
    features: np.ndarray
    neighbours: Callable[[int], list[int]]

    def __len__(self) -> int:
        return len(self.prior_s)


@dataclass(slots=True)
class Observations:
    """What has been measured: ``times_s[row]`` is None for a failure."""

    times_s: dict[int, float | None] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)

    @property
    def good(self) -> list[int]:
        """Rows with a time, fastest first."""
        timed = [(t, row) for row, t in self.times_s.items() if t is not None]
        return [row for _, row in sorted(timed)]

    @property
    def failure_share(self) -> float:
        """Share of the told rows that failed (0 while nothing is known)."""
        failed = sum(time_s is None for time_s in self.times_s.values())
        return failed / max(1, len(self.times_s))

    def is_taken(self, row: int) -> bool:
        """Whether a row was measured or is being measured."""
        return row in self.times_s or row in self.pending


class Strategy(Protocol):
    """Proposes candidates."""

    def ask(self, count: int, landscape: Landscape, seen: Observations, seed: int) -> list[int]:
        """Return up to ``count`` rows that were neither told nor are pending."""
        ...


def _generator(seed: int, seen: Observations) -> np.random.Generator:
    return np.random.default_rng([seed, len(seen.times_s), len(seen.pending)])


def _take(order: np.ndarray | list[int], count: int, seen: Observations) -> list[int]:
    rows: list[int] = []
    for row in order:
        if len(rows) == count:
            break
        if not seen.is_taken(int(row)) and int(row) not in rows:
            rows.append(int(row))
    return rows


@dataclass(frozen=True, slots=True)
class RandomSearch:
    """Uniform without replacement: the baseline."""

    def ask(self, count: int, landscape: Landscape, seen: Observations, seed: int) -> list[int]:
        """Return rows drawn uniformly."""
        return _take(_generator(seed, seen).permutation(len(landscape)), count, seen)


@dataclass(frozen=True, slots=True)
class ExhaustiveSearch:
    """Every candidate, the most promising first."""

    def ask(self, count: int, landscape: Landscape, seen: Observations, seed: int) -> list[int]:
        """Return the next rows in order of the prior."""
        return _take(np.argsort(landscape.prior_s, kind="stable"), count, seen)


@dataclass(frozen=True, slots=True)
class EvolutionarySearch:
    """Steps from the fastest rows, with random restarts."""

    parents: int = 6
    restart_share: float = 0.2

    def ask(self, count: int, landscape: Landscape, seen: Observations, seed: int) -> list[int]:
        """Return mutated rows of the fastest known, or random ones while nothing is known."""
        rng = _generator(seed, seen)
        pool = seen.good[: self.parents]
        rows: list[int] = []
        for _ in range(8 * count):
            if len(rows) == count or not pool:
                break
            row = int(rng.integers(len(landscape)))
            if rng.random() >= self.restart_share:
                row = _walk(pool[int(rng.integers(len(pool)))], landscape, rng)
            if not seen.is_taken(row) and row not in rows:
                rows.append(row)
        return rows + _take(
            [r for r in rng.permutation(len(landscape)) if r not in rows], count - len(rows), seen
        )


def _walk(row: int, landscape: Landscape, rng: np.random.Generator) -> int:
    for _ in range(1 + int(rng.integers(2))):
        near = landscape.neighbours(row)
        if near:
            row = near[int(rng.integers(len(near)))]
    return row


@dataclass(frozen=True, slots=True)
class ModelGuidedSearch:
    """Surrogate on the residual to the prior; mostly its best, some neighbours, some surprises.

    Attributes:
        local_share: of a batch taken from the neighbours of the fastest rows.
        random_share: of a batch drawn from the better half of the surrogate's order; more where
            candidates fail, or a prior that favours what cannot run would never be left.
    """

    local_share: float = 0.15
    random_share: float = 0.05

    def ask(self, count: int, landscape: Landscape, seen: Observations, seed: int) -> list[int]:
        """Return a batch; single asks cycle through the kinds so that shares hold over time."""
        rng = _generator(seed, seen)
        scores = np.log(landscape.prior_s) + _residual(landscape, seen, seed)
        order = np.lexsort((rng.permutation(len(scores)), scores))  # ties in random order
        rows: list[int] = []
        random_share = max(self.random_share, 0.6 * seen.failure_share)
        for _ in range(count):
            dice = rng.random()
            if dice < random_share:
                pick = _take(
                    rng.permutation(order[: max(8, len(order) // 2)]), 1, _with(seen, rows)
                )
            elif dice < random_share + self.local_share:
                pick = self._local(landscape, seen, scores, rows)
            else:
                pick = _take(order, 1, _with(seen, rows))
            rows += pick or _take(order, 1, _with(seen, rows))
        return rows

    def _local(
        self, landscape: Landscape, seen: Observations, scores: np.ndarray, rows: list[int]
    ) -> list[int]:
        for parent in seen.good[:3]:
            near = sorted(landscape.neighbours(parent), key=lambda row: float(scores[row]))
            pick = _take(near, 1, _with(seen, rows))
            if pick:
                return pick
        return []


def _with(seen: Observations, rows: list[int]) -> Observations:
    return Observations(seen.times_s, seen.pending | set(rows))


def _residual(landscape: Landscape, seen: Observations, seed: int) -> np.ndarray:
    """Return what the told times add to the log of the prior (0 while too few are known)."""
    known = list(seen.times_s)
    usable = len(known) - len(known) % REFIT_EVERY
    known = known[:usable]
    if len(known) < MIN_ROWS or all(seen.times_s[row] is None for row in known):
        return np.zeros(len(landscape))
    rows = np.array(known)
    prior = np.log(landscape.prior_s[rows])
    times = [seen.times_s[row] for row in known]
    target = np.array(
        [np.nan if t is None else np.log(t) - p for t, p in zip(times, prior, strict=True)]
    )
    slow = float(np.nanmax(target)) + FAILURE_PENALTY
    target = np.where(np.isnan(target), slow, target)
    offset = float(np.median(target))
    model = CostModel.fit(
        landscape.features[rows], target - offset, np.zeros(len(rows)),
        feature_schema="session", seed=seed, rounds=50, with_interval=False,
    )  # fmt: skip
    learned: np.ndarray = np.log(model.predict(landscape.features).factor)
    return learned


STRATEGIES: Mapping[str, Strategy] = {
    "model": ModelGuidedSearch(),
    "evolutionary": EvolutionarySearch(),
    "random": RandomSearch(),
    "exhaustive": ExhaustiveSearch(),
}
