"""Transfer: which configs of a space to take, or to try first, on a device never measured.

What was measured on other devices is evidence of two kinds: the speed of a config itself, which is
lucky where it is the best of thousands, and the speed of configs like it, which trees smooth out of
all that worked. Their geometric mean is expected: a config must be fast, and be among fast ones.
Where a device was not asked about a config, the trees answer alone. The nearer a device, the more
it counts.

A search that knows other devices begins with what they lead to expect; a process (``process``)
corrects it by what is told. It takes for alike what is near in knobs and was about as fast
elsewhere: where one of such configs is faster than expected, the others may be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recommender.cost_model import MIN_ROWS, CostModel
from recommender.gpu_names import steps_between
from recommender.recorded import Config, RecordedSpace, numbers_of
from recommender.search import Landscape
from tilecore.lazy import cached_property

LEAST_SPEED = 0.02  # of the best: slower ones are all alike to the trees
ALIKE_SPEED = 0.05  # of the best: slower ones are in one place to a process
SMOOTHING_ROUNDS, SMOOTHING_RATE = 200, 0.15
FIRST = 4  # configs of the cover that a search begins with
DEFINITE = 1e-3  # weight of the expectation among covers that are equally good
PER_STEP = 0.5  # of a device's weight, for every step that it is farther away
PER_DOUBLING = 0.5  # steps, of a size of the problem
OTHER_FIELD = 1.0  # steps, of a field of the problem that is no size


@dataclass(frozen=True, eq=False)
class Sources:
    """What is known of one kernel and problem on several devices.

    Attributes:
        features: knob values as numbers, a row per config; the candidates come first.
        speeds: of the best on that device; a row per config, a column per device; 0: it failed,
            NaN: it was not measured there.
        weights: of the devices, 1 together.
        candidates: how many of the rows may be taken.
    """

    features: NDArray[np.float64]
    speeds: NDArray[np.float64]
    weights: NDArray[np.float64]
    candidates: int

    @classmethod
    def of(cls, target: RecordedSpace, others: Sequence[RecordedSpace]) -> Sources:
        """Return what recordings of other devices say of the configs of one.

        The times of ``target`` are not looked at; how near devices are their names tell.

        Raises:
            ValueError: there are no others, or their knobs differ.
        """
        if not others or any(space.knobs != target.knobs for space in others):
            raise ValueError("expected spaces with the same knobs")
        configs = list(target.configs)
        order: dict[Config, int] = {config: row for row, config in enumerate(configs)}
        for config in (config for space in others for config in space.configs):
            if config not in order:
                order[config] = len(configs)
                configs.append(config)
        speeds = np.full((len(configs), len(others)), np.nan)
        for column, space in enumerate(others):
            speeds[[order[c] for c in space.configs], column] = space.speed
        steps = [steps_between(target.device, space.device) for space in others]
        return cls(numbers_of(configs), speeds, weights(steps), len(target))

    @classmethod
    def told(
        cls,
        features: NDArray[np.float64],
        times_s: Sequence[dict[int, float | None]],
        steps: Sequence[float],
    ) -> Sources | None:
        """Return what was told of some rows of a space by others; None: too little to learn from.

        Args:
            features: a row per candidate.
            times_s: of each device, by row; None: it failed. A device counts where MIN_ROWS of the
                cost model worked.
            steps: how far each device is away.
        """
        columns, distances = [], []
        for times, distance in zip(times_s, steps, strict=True):
            worked = [t for t in times.values() if t is not None]
            if len(worked) < MIN_ROWS:
                continue
            best_s = min(worked)
            column = np.full(len(features), np.nan)
            column[list(times)] = [0.0 if t is None else best_s / t for t in times.values()]
            columns.append(column)
            distances.append(distance)
        if not columns:
            return None
        return cls(features, np.stack(columns, axis=1), weights(distances), len(features))

    @property
    def portable(self) -> NDArray[np.float64]:
        """The mean speed of each candidate: the lookup that a model has to beat."""
        found: NDArray[np.float64] = np.nan_to_num(self.speeds[: self.candidates]).mean(axis=1)
        return found

    @cached_property
    def smoothed(self) -> NDArray[np.float64]:
        """The speeds of candidates, if they work, as trees see them: a column per device.

        How slow failures are nobody knows: any number makes the trees wrong of their neighbours.

        Raises:
            NotEnoughMeasurements: fewer than MIN_ROWS of the cost model worked (RC606).
        """
        logs = np.log(np.maximum(self.speeds, LEAST_SPEED))
        worked = self.speeds > 0
        columns = [self._by_trees(worked[:, d], logs[:, d]) for d in range(len(self.weights))]
        return np.exp(np.stack(columns, axis=1))

    @cached_property
    def works(self) -> NDArray[np.float64]:
        """How likely candidates work, as trees see it: a column per device."""
        chance = np.ones((self.candidates, len(self.weights)))
        asked = ~np.isnan(self.speeds)
        for device, speed in enumerate(self.speeds.T):
            if (speed == 0).any() and not asked[: self.candidates, device].all():
                found = self._by_trees(asked[:, device], (speed > 0).astype(np.float64))
                chance[:, device] = np.clip(found, 0.0, 1.0)
        return chance

    def _by_trees(
        self, rows: NDArray[np.bool_], target: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return of every candidate what trees learn from some rows of a target."""
        inputs = np.log2(np.maximum(self.features, 0.0) + 1.0).astype(np.float32)
        model = CostModel.fit(
            inputs[rows], target[rows], np.zeros(np.count_nonzero(rows)),
            feature_schema="transfer", rounds=SMOOTHING_ROUNDS, rate=SMOOTHING_RATE,
            feature_share=1.0, with_interval=False,
        )  # fmt: skip
        found: NDArray[np.float64] = np.log(model.predict(inputs[: self.candidates]).factor)
        return found

    @cached_property
    def trusted(self) -> NDArray[np.float64]:
        """The speeds that count: measured and smoothed, their geometric mean."""
        measured = self.speeds[: self.candidates]
        unasked = np.minimum(self.smoothed, 1.0) * self.works
        both = np.sqrt(np.maximum(measured, 0.0) * self.smoothed)
        found: NDArray[np.float64] = np.where(np.isnan(measured), unasked, both)
        return found

    @cached_property
    def expected(self) -> NDArray[np.float64]:
        """The speed to expect of each candidate on another device."""
        logs = np.log(np.maximum(self.trusted, LEAST_SPEED**2))
        found: NDArray[np.float64] = np.exp(logs @ self.weights)
        return found

    def cover(self, count: int) -> list[int]:
        """Return rows of which one is fast on each device, the most promising one first."""
        rows = [int(np.argmax(self.expected))]
        best = self.trusted[rows[0]]
        while len(rows) < min(count, self.candidates):
            gain = np.maximum(self.trusted, best) @ self.weights + DEFINITE * self.expected
            gain[rows] = -1.0
            rows.append(int(np.argmax(gain)))
            best = np.maximum(best, self.trusted[rows[-1]])
        return rows

    def landscape(self, own: Landscape) -> Landscape:
        """Return the candidates, a search's ``own``, as one sees them that knows these sources."""
        there = np.log(self.smoothed)
        features: NDArray[Any] = np.concatenate([own.features, there], axis=1).astype(np.float32)
        evidence = -np.log(np.maximum(self.trusted, LEAST_SPEED**2))
        prior_s = 1.0 / np.maximum(self.expected, LEAST_SPEED**2)
        places = own.places
        if places is not None:
            slowness = np.clip(evidence / -math.log(ALIKE_SPEED), 0.0, 1.0)
            places = np.concatenate([places, slowness], axis=1)
        return Landscape(prior_s, features, own.neighbours, evidence, places)


def steps_of_problem(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return how far the problems of two searches are from each other, as devices are in steps."""
    return sum(
        _steps_of_field(one.get(name), other.get(name)) for name in one.keys() | other.keys()
    )


def _steps_of_field(one: Any, other: Any) -> float:
    if one == other:
        return 0.0
    if all(type(value) is int and value > 0 for value in (one, other)):
        return PER_DOUBLING * abs(math.log2(one / other))
    return OTHER_FIELD


def weights(steps: Sequence[float]) -> NDArray[np.float64]:
    """Return what devices so many steps away weigh, 1 together."""
    found = PER_STEP ** np.array(steps, dtype=np.float64)
    shares: NDArray[np.float64] = found / found.sum()
    return shares
