"""Transfer: which configs of a measured space to take, or to try first, on a device never measured.

What was measured on other devices is evidence of two kinds: the speed of a config itself, which is
lucky where it is the best of thousands, and the speed of configs like it, which trees smooth out of
all of them. Their geometric mean is expected: a config must be fast, and be among fast ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recommender.cost_model import CostModel
from recommender.recorded import Config, RecordedSpace
from recommender.search import Landscape

LEAST_SPEED = 0.02  # of the best: slower ones, and failures, are all alike to the trees
SMOOTHING_ROUNDS, SMOOTHING_RATE = 200, 0.15
DEFINITE = 1e-3  # weight of the expectation among covers that are equally good


@dataclass(frozen=True, eq=False)
class Sources:
    """Spaces of one kernel and problem, measured on several devices.

    Attributes:
        configs: those that any of the spaces has.
        speeds: of the best on that device; a row per config, a column per device; 0: it failed or
            was not measured there.
        features: knob values as numbers.
    """

    configs: tuple[Config, ...]
    speeds: NDArray[np.float64]
    features: NDArray[np.float64]

    @classmethod
    def of(cls, spaces: Sequence[RecordedSpace]) -> Sources:
        """Return the evidence in spaces that have the same knobs.

        Raises:
            ValueError: there is none, or their knobs differ.
        """
        if not spaces or any(s.knobs != spaces[0].knobs for s in spaces):
            raise ValueError("expected spaces with the same knobs")
        order: dict[Config, int] = {}
        merged: list[NDArray[np.float64]] = []
        for space in spaces:
            for config, row in zip(space.configs, space.features, strict=True):
                if config not in order:
                    order[config] = len(order)
                    merged.append(row)
        speeds = np.zeros((len(order), len(spaces)))
        for column, space in enumerate(spaces):
            speeds[[order[c] for c in space.configs], column] = space.speed
        return cls(tuple(order), speeds, np.stack(merged))

    @property
    def portable(self) -> NDArray[np.float64]:
        """The mean speed of each config: the lookup that a model has to beat."""
        found: NDArray[np.float64] = self.speeds.mean(axis=1)
        return found

    @cached_property
    def smoothed(self) -> NDArray[np.float64]:
        """The speeds as trees see them from the knobs, device by device."""
        inputs = np.log2(np.maximum(self.features, 0.0) + 1.0).astype(np.float32)
        columns = []
        for speed in self.speeds.T:
            target = np.log(np.maximum(speed, LEAST_SPEED))
            model = CostModel.fit(
                inputs, target, np.zeros(len(target)), feature_schema="transfer",
                rounds=SMOOTHING_ROUNDS, rate=SMOOTHING_RATE, feature_share=1.0,
                with_interval=False,
            )  # fmt: skip
            columns.append(model.predict(inputs).factor)
        return np.stack(columns, axis=1)

    @cached_property
    def trusted(self) -> NDArray[np.float64]:
        """The speeds that count: measured and smoothed, their geometric mean."""
        found: NDArray[np.float64] = np.sqrt(np.maximum(self.speeds, 0.0) * self.smoothed)
        return found

    @cached_property
    def expected(self) -> NDArray[np.float64]:
        """The speed to expect of each config on another device."""
        logs = np.log(np.maximum(self.trusted, LEAST_SPEED**2))
        found: NDArray[np.float64] = np.exp(logs.mean(axis=1))
        return found

    def cover(self, count: int) -> list[Config]:
        """Return configs of which one is fast on each device, the most promising one first."""
        rows = [int(np.argmax(self.expected))]
        best = self.trusted[rows[0]]
        while len(rows) < min(count, len(self.configs)):
            gain = np.maximum(self.trusted, best).mean(axis=1) + DEFINITE * self.expected
            gain[rows] = -1.0
            rows.append(int(np.argmax(gain)))
            best = np.maximum(best, self.trusted[rows[-1]])
        return [self.configs[row] for row in rows]

    def landscape(self, space: RecordedSpace) -> Landscape:
        """Return a space as a search sees it that knows these sources."""
        number = {config: row for row, config in enumerate(self.configs)}
        rows = [number.get(config, -1) for config in space.configs]
        known = np.array(rows) >= 0
        expected = np.where(known, self.expected[rows], LEAST_SPEED)
        there = np.where(known[:, None], np.log(self.smoothed[rows]), np.nan)
        own = space.landscape()
        features: NDArray[Any] = np.concatenate([own.features, there], axis=1).astype(np.float32)
        trusted = np.where(known[:, None], self.trusted[rows], LEAST_SPEED)
        evidence = -np.log(np.maximum(trusted, LEAST_SPEED**2))
        prior_s = 1.0 / np.maximum(expected, LEAST_SPEED**2)
        return Landscape(prior_s, features, own.neighbours, evidence)
