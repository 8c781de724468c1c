"""Search strategies over a value-only interface: rows of a table, told times, asked for more rows.

A strategy is a function of what is known, so a search resumes from its records alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from recommender.cost_model import MIN_ROWS
from recommender.process import gains, spread
from recommender.surrogate import Told, plausible_times

AFAR_SAMPLE = 4096  # candidates among which those unlike all that was told are looked for
MANY_TOLD, AT_ONCE = 2000, 500  # from how many on that is done for so many of them at once
AFAR_QUANTILE = 0.75  # of the distance from what was told, beyond which candidates are afar
PROCESS_SAMPLE = 20_000  # candidates that a process looks at


@dataclass(frozen=True, slots=True)
class Landscape:
    """What a search may know before it starts; all arrays have one entry per candidate.

    Attributes:
        prior_s: expected time (analytic, or analytic x cost model), in any monotone unit.
        features: for a surrogate to learn from.
        neighbours: row -> rows one step away.
        evidence: log times by several sources, a column each, which what is told will weigh
            against each other; None: the prior's alone.
        places: candidates as points of a unit cube, in which the prior is about as wrong of near
            ones; None: no process is asked.
    """

    prior_s: np.ndarray
    features: np.ndarray
    neighbours: Callable[[int], list[int]]
    evidence: np.ndarray | None = None
    places: np.ndarray | None = None

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
    """Thompson sampling: picks of an ensemble of surrogates, some neighbours, some surprises.

    An ensemble comes to know one region and looks at no other: the longer a search takes, the more
    of its picks are the best expected of candidates unlike all that was told.

    Where candidates have places, the next picks after the first are those of a Gaussian process,
    which learns from fewer times; an ensemble finds what a process smoothes over. The first are
    the prior's; where nothing is known before, they are spread.

    Attributes:
        members: of the ensemble; a smaller batch meets some of them, the next one others.
        local_share: of a batch taken from the neighbours of the fastest rows.
        random_share: of a batch drawn from the better half of a member's order; more where
            candidates fail, or a prior that favours what cannot run would never be left.
        afar_share: of a batch taken from afar in the end.
        afar_from, afar_until: trials at which that share begins and ends to grow.
        process_share: of a batch that a process picks, once the ensemble picks as well.
        process_alone: trials up to which a process picks all; the last ones of it, where other
            devices are known.
        process_until: trials from which it picks none, for what it costs grows with their cube.
    """

    members: int = 8
    local_share: float = 0.15
    random_share: float = 0.05
    afar_share: float = 0.5
    afar_from: int = 64
    afar_until: int = 160
    process_share: float = 0.5
    process_alone: int = 80
    process_until: int = 224

    def ask(self, count: int, landscape: Landscape, seen: Observations, seed: int) -> list[int]:
        """Return a batch; single asks cycle through the kinds so that shares hold over time."""
        rng = _generator(seed, seen)
        rows = self._without_ensemble(count, landscape, seen, rng)
        return rows + self._with_ensemble(count - len(rows), landscape, _with(seen, rows), rng)

    def _without_ensemble(
        self, count: int, landscape: Landscape, seen: Observations, rng: np.random.Generator
    ) -> list[int]:
        """Return picks for which nothing but places and the prior is needed."""
        told, knows_others = len(seen.times_s), landscape.evidence is not None
        until = self.process_alone if knows_others else self.process_until
        if landscape.places is None or told >= until:
            return []
        if knows_others and not seen.good:
            return []  # the ensemble's are the prior's
        share = 1.0 if told < self.process_alone else self.process_share
        wanted = int(np.count_nonzero(rng.random(count) < share))
        if not wanted:
            return []
        taken = sorted({*seen.times_s, *seen.pending})
        order = rng.permutation(len(landscape))
        open_rows = order[~np.isin(order, taken)]
        if not knows_others and (told < MIN_ROWS or not seen.good):
            return spread(landscape.places, taken, open_rows, wanted)
        looked_at = np.sort(open_rows[:PROCESS_SAMPLE])
        expected = np.log(landscape.prior_s)
        running = sorted(seen.pending)
        return gains(_told(seen), landscape.places, expected, running, looked_at, wanted)

    def _with_ensemble(
        self, count: int, landscape: Landscape, seen: Observations, rng: np.random.Generator
    ) -> list[int]:
        if count <= 0:
            return []
        members = list(self._scores(count, landscape, seen, rng))
        orders = [np.lexsort((rng.permutation(len(s)), s)) for s in members]  # ties at random
        rows = self._afar(count, landscape, seen, members[-1], rng)
        random_share = max(self.random_share, 0.6 * seen.failure_share)
        for number in range(count - len(rows)):
            scores, order = members[number % len(members)], orders[number % len(members)]
            taken = _with(seen, rows)
            dice = rng.random()
            pick: list[int] = []
            if dice < random_share:
                pick = _take(rng.permutation(order[: max(8, len(order) // 2)]), 1, taken)
            elif dice < random_share + self.local_share:
                pick = self._local(landscape, taken, scores)
            rows += pick or _take(order, 1, taken)
        return rows

    def _scores(
        self, count: int, landscape: Landscape, seen: Observations, rng: np.random.Generator
    ) -> Iterator[np.ndarray]:
        """Yield the log time of every row as each member sees it: the prior's at first."""
        prior = np.log(landscape.prior_s)
        if len(seen.times_s) < MIN_ROWS or not seen.good:
            yield prior
            return
        evidence = prior[:, None] if landscape.evidence is None else landscape.evidence
        first = len(seen.times_s) + len(seen.pending)  # small batches meet all members in turn
        members = [(first + i) % self.members for i in range(min(self.members, count))]
        yield from plausible_times(_told(seen), evidence, landscape.features, members, rng)

    def _afar(
        self, count: int, landscape: Landscape, seen: Observations, scores: np.ndarray,
        rng: np.random.Generator,
    ) -> list[int]:  # fmt: skip
        """Return picks from afar: the more, the more was told."""
        grown = (len(seen.times_s) - self.afar_from) / (self.afar_until - self.afar_from)
        wanted = int(np.count_nonzero(rng.random(count) < self.afar_share * min(1.0, grown)))
        if not wanted:
            return []
        told = np.array(sorted({*seen.times_s, *seen.pending}))
        others = np.setdiff1d(np.arange(len(landscape)), told)
        others = np.sort(rng.permutation(others)[:AFAR_SAMPLE])
        places = _ranks(landscape.features[np.concatenate([told, others])])
        known, open_ = places[: len(told)], places[len(told) :]
        apart = _distances(open_, known)
        rows: list[int] = []
        for _ in range(min(wanted, len(others))):
            afar = np.flatnonzero(apart >= np.quantile(apart, AFAR_QUANTILE))
            pick = int(afar[np.argmin(scores[others[afar]])])
            rows.append(int(others[pick]))
            np.minimum(apart, np.abs(open_ - open_[pick]).sum(axis=1), out=apart)
            apart[pick] = -1.0  # it is taken
        return rows

    def _local(self, landscape: Landscape, seen: Observations, scores: np.ndarray) -> list[int]:
        for parent in seen.good[:3]:
            near = sorted(landscape.neighbours(parent), key=lambda row: float(scores[row]))
            pick = _take(near, 1, seen)
            if pick:
                return pick
        return []


def _distances(places: NDArray[np.float32], known: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return how far each place is from the nearest known one, summed over the axes."""
    apart = np.full(len(places), np.inf)
    if len(known) > MANY_TOLD:
        from scipy.spatial.distance import cdist  # slow to import, and needed by few

        for start in range(0, len(known), AT_ONCE):
            part = cdist(known[start : start + AT_ONCE], places, "cityblock")
            np.minimum(apart, part.min(axis=0), out=apart)
        return apart
    for place in known:
        np.minimum(apart, np.abs(places - place).sum(axis=1), out=apart)
    return apart


def _told(seen: Observations) -> Told:
    rows = sorted(seen.times_s)  # whatever the order in which they were told
    times = [seen.times_s[row] for row in rows]
    return Told(np.array(rows), np.array([np.nan if t is None else np.log(t) for t in times]))


def _ranks(features: np.ndarray) -> NDArray[np.float32]:
    """Return features as ranks of their values, from 0 to 1."""
    ranks = [np.unique(column, return_inverse=True)[1] for column in features.T]
    return np.stack([r / max(1, r.max()) for r in ranks], axis=1, dtype=np.float32)


def _with(seen: Observations, rows: list[int]) -> Observations:
    return Observations(seen.times_s, seen.pending | set(rows))


STRATEGIES: Mapping[str, Strategy] = {
    "model": ModelGuidedSearch(),
    "evolutionary": EvolutionarySearch(),
    "random": RandomSearch(),
    "exhaustive": ExhaustiveSearch(),
}
