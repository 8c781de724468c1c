"""Gaussian process: what few told times say of all candidates, beside what was expected of them.

Trees find steps, and need dozens of times for it; a process takes near candidates for alike, and
how near is near it learns for each knob. What it learns is how far times are from what was expected
(a constant, where nothing was known before). Picks are those of the largest expected improvement on
the best time told, one after the other: what is running, and what was picked, is believed to take
what is expected of it, so that the next pick is elsewhere.

Sources: Matern 5/2 and automatic relevance, Rasmussen and Williams, Gaussian Processes for Machine
Learning (2006), 4.2.1 and 5.4.1; expected improvement, Jones et al. (1998); believing, Ginsbourger
et al. (2010); lengths that grow with the root of the number of knobs, Hvarfner et al. (2024).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from recommender.surrogate import Told

Floats = NDArray[np.float64]
LENGTH_SPREAD = 1.0  # of the logarithm of a length, around that of the root of the knobs
SIZE_SPREAD = 1.0  # of the logarithm of the variance of times, around 1 (they are scaled)
NOISE, NOISE_SPREAD = -4.0, 1.5  # logarithm of the variance of the noise, and how sure that is
LEAST_NOISE, LEAST_VARIANCE = 1e-4, 1e-10
LOWEST, HIGHEST = -8.0, 5.0  # logarithms of all of these
STEPS, FIRST_STEP = 30, 0.3  # of the ascent to the likeliest of them
LONGEST_STEP, SHORTEST_STEP = 1.0, 1e-3
FAR = -30.0  # deviations from the best, below which an improvement is told by its asymptote
SPREAD_SAMPLE = 512  # candidates among which the first are spread


def spread(
    places: Floats, taken: Sequence[int], open_rows: NDArray[np.intp], count: int
) -> list[int]:
    """Return up to ``count`` of ``open_rows``, each as far as can be from all taken before it.

    Args:
        places: a row per candidate.
        taken: rows that are told or running.
        open_rows: in random order; the first of them are looked at.
        count: how many.
    """
    looked_at = open_rows[:SPREAD_SAMPLE]
    here = places[looked_at]
    apart = np.full(len(looked_at), np.inf)
    for row in taken:
        np.minimum(apart, ((here - places[row]) ** 2).sum(axis=1), out=apart)
    picks: list[int] = []
    while len(picks) < min(count, len(looked_at)):
        pick = int(np.argmax(apart))
        picks.append(pick)
        np.minimum(apart, ((here - here[pick]) ** 2).sum(axis=1), out=apart)
        apart[picks] = -1.0
    return [int(row) for row in looked_at[picks]]


def gains(
    told: Told, places: Floats, expected: Floats, running: Sequence[int],
    open_rows: NDArray[np.intp], count: int,
) -> list[int]:  # fmt: skip
    """Return up to ``count`` of ``open_rows``, those that promise the largest improvement.

    Args:
        told: at least one with a time.
        places: a row per candidate, 0 to 1 in every column.
        expected: log times of candidates before anything was told, up to a constant.
        running: rows that are being measured.
        open_rows: the rows to choose from.
        count: how many.
    """
    target = told.target(told.limit) - expected[told.rows]
    middle, scale = float(target.mean()), float(target.std()) or 1.0
    process = Process.fit(places[told.rows], (target - middle) / scale)
    rows = np.concatenate([open_rows, np.array(running, dtype=np.intp)])
    belief = Belief(process, places[rows], expected[rows] / scale)
    for number in range(len(open_rows), len(rows)):
        belief.believe(number)
    best = (float(np.nanmin(told.log_time)) - middle) / scale
    promise_of = np.ones(len(rows), bool)
    promise_of[len(open_rows) :] = False
    picks: list[int] = []
    while len(picks) < min(count, len(open_rows)):
        promise = np.where(promise_of, belief.log_improvement(best), -np.inf)
        picks.append(int(np.argmax(promise)))
        promise_of[picks[-1]] = False
        if len(picks) < count:
            belief.believe(picks[-1])
    return [int(row) for row in rows[picks]]


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """A process that was told times, with the likeliest lengths for them.

    Attributes:
        places: where something was told.
        lengths: over which times are alike, a column each.
        size: variance of times.
        noise: variance of what is told around them.
        root: inverse of the Cholesky factor of what was told.
        weights: of what was told, for the mean.
    """

    places: Floats
    lengths: Floats
    size: float
    noise: float
    root: Floats
    weights: Floats

    @classmethod
    def fit(cls, places: Floats, times: Floats) -> Self:
        """Return the process of times (scaled to mean 0, deviation 1) at places."""
        lengths, (size, noise) = np.split(np.exp(_likeliest(places, times)), [places.shape[1]])
        noise = float(noise) + LEAST_NOISE
        told = float(size) * _alike(places / lengths, places / lengths)
        root = np.linalg.inv(np.linalg.cholesky(told + noise * np.eye(len(times))))
        return cls(places, lengths, float(size), noise, root, root.T @ (root @ times))

    def covariance(self, one: Floats, other: Floats) -> Floats:
        """Return the covariances of times at places and other places."""
        return self.size * _alike(one / self.lengths, other / self.lengths)


class Belief:
    """Mean and variance of the times of candidates.

    Args:
        process: of how far times are from what was expected.
        places: of the candidates.
        expected: of their times, before anything was told.
    """

    def __init__(self, process: Process, places: Floats, expected: Floats) -> None:
        self._process, self._places = process, places
        covariance = process.covariance(places, process.places)
        self.mean = expected + covariance @ process.weights
        self._known = covariance @ process.root.T  # its squares are what telling took away
        self._believed: list[Floats] = []
        self.variance = self._floored(process.size - (self._known**2).sum(axis=1))

    def believe(self, number: int) -> None:
        """Take the time that is expected of a candidate for told."""
        process = self._process
        shared = process.covariance(self._places, self._places[number : number + 1])[:, 0]
        shared -= self._known @ self._known[number]
        for column in self._believed:
            shared -= column * column[number]
        self._believed.append(shared / math.sqrt(self.variance[number] + process.noise))
        self.variance = self._floored(self.variance - self._believed[-1] ** 2)

    def log_improvement(self, best: float) -> Floats:
        """Return the logarithm of the expected improvement on a time."""
        from scipy.special import ndtr

        deviation = np.sqrt(self.variance)
        z = (best - self.mean) / deviation
        near = np.maximum(z, FAR)
        density = np.exp(-0.5 * near**2) / math.sqrt(2.0 * math.pi)
        found = np.log(np.maximum(density + near * ndtr(near), np.finfo(np.float64).tiny))
        afar = -0.5 * z**2 - 2.0 * np.log(-np.minimum(z, FAR)) - 0.5 * math.log(2.0 * math.pi)
        improvement: Floats = np.where(z > FAR, found, afar) + np.log(deviation)
        return improvement

    @staticmethod
    def _floored(variance: Floats) -> Floats:
        return np.maximum(variance, LEAST_VARIANCE)


def _alike(one: Floats, other: Floats) -> Floats:
    """Return Matern 5/2 of the distances between places and other places."""
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2.0 * one @ other.T
    distance = np.sqrt(5.0 * np.maximum(squares, 0.0))
    found: Floats = (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)
    return found


def _likeliest(places: Floats, times: Floats) -> Floats:
    """Return logarithms of lengths, size and noise: the likeliest, given times and what is usual.

    By resilient steps (Riedmiller and Braun 1993): signs of slopes alone, so that no scale matters.
    """
    columns = places.shape[1]
    apart = (places.T[:, :, None] - places.T[:, None, :]) ** 2
    usual = np.array([*[0.5 * math.log(columns)] * columns, 0.0, NOISE])
    width = np.array([*[LENGTH_SPREAD] * columns, SIZE_SPREAD, NOISE_SPREAD])
    point, step, last = usual, np.full(len(usual), FIRST_STEP), np.zeros(len(usual))
    best, least = point, math.inf
    for _ in range(STEPS):
        misfit, slope = _misfit(point, apart, times)
        off = (point - usual) / width
        misfit, slope = misfit + 0.5 * float(off @ off), slope + off / width
        if misfit < least:
            best, least = point, misfit
        turn = slope * last
        step = np.clip(step * np.where(turn < 0, 0.5, 1.2), SHORTEST_STEP, LONGEST_STEP)
        last = np.where(turn < 0, 0.0, slope)
        point = np.clip(point - np.sign(last) * step, LOWEST, HIGHEST)
    return best


def _misfit(point: Floats, apart: Floats, times: Floats) -> tuple[float, Floats]:
    """Return the negative logarithm of the likelihood of times, and its slopes.

    Args:
        point: logarithms of lengths, size and noise.
        apart: squared distances, column by column.
        times: scaled.
    """
    columns, count = len(apart), len(times)
    inverse = np.exp(-2.0 * point[:columns])
    size, noise = np.exp(point[columns:])
    distance = np.sqrt(5.0 * np.tensordot(inverse, apart, 1))
    decay = np.exp(-distance)
    alike = (1.0 + distance + distance**2 / 3.0) * decay
    told = size * alike + (noise + LEAST_NOISE) * np.eye(count)
    half_log_det = float(np.log(np.diag(np.linalg.cholesky(told))).sum())
    precision = np.linalg.inv(told)
    weights = precision @ times
    outer = 0.5 * (precision - np.outer(weights, weights))  # the slope by each entry of ``told``
    by_length = apart.reshape(columns, -1) @ (outer * (1.0 + distance) * decay).ravel()
    slopes = [*(5.0 / 3.0 * size * inverse * by_length), size * (outer * alike).sum()]
    slopes.append(noise * np.trace(outer))
    return 0.5 * float(times @ weights) + half_log_det, np.array(slopes)
