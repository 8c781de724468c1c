"""Drift: whether what is measured again differs from what is recorded, beyond the noise.

A tuning run measures the default, the recommendation and former winners again. What they have in
common in one run (the machine was warmer, a neighbour was loud) is one observation, however many
configs took part: the median over them of how far their times lie from what the earlier runs
recorded. Observations of several runs are compared with those of several earlier runs.

The limit is that of a t-test whose variance is moderated by what is known beforehand (as in limma:
Smyth 2004, doi:10.2202/1544-6115.1027): few runs say little of how much runs differ, so the scatter
of the repeats within each measurement speaks with PRIOR_RUNS votes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from recommender.measurement import Measurement, MeasureStatus

MIN_BEFORE, MIN_AFTER = 2, 3  # runs: one proves nothing, two may have met one loud neighbour
MAX_AFTER = 6
MIN_ANCHORS = 2  # measurements that a run repeats of earlier ones
MIN_SHIFT = math.log(1.05)  # what is less changes no choice
PRIOR_RUNS = 8
PRIOR_NOISE = 0.02  # between runs of a quiet machine, at least
REPEATS_TO_RUNS = 2.0  # how much more runs differ than the repeats of one measurement
T_LIMIT = 6.2  # of Student's t with 10 degrees of freedom: 1 in 10,000, both sides
OUTLIER = 5.0  # a loud neighbour in one run must not hide a drift in many
MAD_TO_SD = 1.4826  # of a normal distribution

Anchor = tuple[str, str, int]  # config, protocol, threads


@dataclass(frozen=True, slots=True)
class RunTimes:
    """What one run measured of a workload: log seconds by what can be measured again.

    Attributes:
        name: of the run.
        at: when its first measurement was taken.
        log_s: median over the run, by anchor.
        noise: relative standard deviation of the repeats within its measurements.
    """

    name: str
    at: datetime
    log_s: Mapping[Anchor, float]
    noise: float


@dataclass(frozen=True, slots=True)
class Drift:
    """Times that changed for good.

    Attributes:
        since: when the first measurement of the first changed run was taken.
        ratio: times now over times before.
        before: runs that agree on how it was.
        after: runs that agree on how it is.
    """

    since: datetime
    ratio: float
    before: int
    after: int

    def explain(self) -> str:
        """Return it in words."""
        change = f"{abs(self.ratio - 1.0):.0%} {'slower' if self.ratio > 1.0 else 'faster'}"
        return (
            f"since {self.since:%Y-%m-%d %H:%M} {self.after} runs measured times {change} than "
            f"{self.before} before"
        )


def run_times(name: str, measurements: Sequence[Measurement]) -> RunTimes | None:
    """Return the OK measurements of one run by what can be repeated; None if there are none."""
    found: dict[Anchor, list[float]] = {}
    spreads, dates = [], []
    for m in measurements:
        if m.status is not MeasureStatus.OK or m.time_s is None:
            continue
        anchor = (m.config.key, m.protocol.value, m.threads)
        found.setdefault(anchor, []).append(math.log(m.time_s))
        spreads.append(_scatter(np.log(m.times_s)))
        dates.append(m.measured_at)
    if not dates:
        return None
    log_s = {anchor: float(np.median(values)) for anchor, values in found.items()}
    return RunTimes(name, min(dates), log_s, float(np.median(spreads)))


def find_drift(runs: Sequence[RunTimes]) -> Drift | None:
    """Return the drift that the newest of some runs (of one workload and device) show, if any.

    Every way to split them into before and after (of MAX_AFTER runs at most) is looked at; all runs
    after must lie on one side, and the one nearest to what was before must be beyond the limit.
    """
    ordered = sorted(runs, key=lambda run: run.at)
    found: list[tuple[float, Drift]] = []
    for count in range(MIN_AFTER, min(MAX_AFTER, len(ordered) - MIN_BEFORE) + 1):
        before, after = ordered[:-count], ordered[-count:]
        drift = _compare(before, after)
        if drift is not None:
            found.append(drift)
    return max(found, key=lambda item: item[0])[1] if found else None


def _compare(before: Sequence[RunTimes], after: Sequence[RunTimes]) -> tuple[float, Drift] | None:
    """Return how sure a drift between two groups of runs is, and the drift; None: there is none."""
    level = _levels(before)
    new = [s for run in after if (s := _shift(run, level)) is not None]
    if len(new) < len(after) or max(min(new), -max(new)) <= MIN_SHIFT:
        return None
    others = ((run, [other for other in before if other is not run]) for run in before)
    old = [s for run, rest in others if (s := _shift(run, _levels(rest))) is not None]
    if len(old) < MIN_BEFORE:
        return None
    centre = float(np.median(old))
    apart = np.array(new) - centre
    if not (np.all(apart > 0) or np.all(apart < 0)):
        return None
    least = float(np.min(np.abs(apart)))
    deviation = _deviation(before, after, old, new)
    limit = T_LIMIT * deviation * math.sqrt(1 / len(old) + 1 / len(new))
    if least <= max(MIN_SHIFT, limit):
        return None
    ratio = math.exp(float(np.median(apart)))
    sureness = abs(float(np.mean(apart))) * math.sqrt(len(new)) / deviation
    return sureness, Drift(after[0].at, ratio, len(old), len(new))


def _levels(runs: Sequence[RunTimes]) -> dict[Anchor, float]:
    """Return the median over runs of what each anchor took."""
    values: dict[Anchor, list[float]] = {}
    for run in runs:
        for anchor, log_s in run.log_s.items():
            values.setdefault(anchor, []).append(log_s)
    return {anchor: float(np.median(found)) for anchor, found in values.items()}


def _shift(run: RunTimes, level: Mapping[Anchor, float]) -> float | None:
    """Return how far a run's times lie from a level, None where it repeated too little of it."""
    apart = [log_s - level[anchor] for anchor, log_s in run.log_s.items() if anchor in level]
    return float(np.median(apart)) if len(apart) >= MIN_ANCHORS else None


def _deviation(
    before: Sequence[RunTimes],
    after: Sequence[RunTimes],
    old: Sequence[float],
    new: Sequence[float],
) -> float:
    """Return the standard deviation between runs: as they show it, and as expected beforehand."""
    repeats = float(np.median([run.noise for run in (*before, *after)]))
    prior = max(PRIOR_NOISE, REPEATS_TO_RUNS * repeats)
    squares = sum(_squares(np.array(group), prior) for group in (old, new))
    votes = PRIOR_RUNS + len(old) - 1 + len(new) - 1
    return math.sqrt((PRIOR_RUNS * prior**2 + squares) / votes)


def _squares(shifts: np.ndarray, prior: float) -> float:
    """Return the sum of squared deviations; a run that lies far off counts as OUTLIER scatters."""
    apart = shifts - np.median(shifts)
    most = OUTLIER * max(prior, _scatter(shifts))
    return float(np.sum(np.clip(apart, -most, most) ** 2))


def _scatter(values: np.ndarray) -> float:
    """Return a robust standard deviation."""
    return MAD_TO_SD * float(np.median(np.abs(values - np.median(values))))
