"""Candidates around given configs: what is worth a look beside a config that was measured.

They are found without the space they belong to: nothing is enumerated but they themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from recommender.cpu_choices import Columns
from recommender.space import SearchSpace
from tilecore.tile_config import KnobValue, TileConfig

SEED = 1
Values = tuple[tuple[str, tuple[KnobValue, ...]], ...]


@dataclass(frozen=True, slots=True)
class Around:
    """Legal configs of a space, each a step or two away from one of some configs.

    A step changes one knob: a number to the next smaller or larger value, a choice to any other.

    Attributes:
        codes: their numbers in the space (``SearchSpace.codes``), ascending.
        columns: knob values per config.
    """

    codes: np.ndarray
    columns: Columns

    def __len__(self) -> int:
        return len(self.codes)


def around(space: SearchSpace, configs: Sequence[TileConfig], sample: int = 0) -> Around:
    """Return what is around ``configs``, which need not be in the space themselves.

    ``sample``: so many places of the whole space are looked at, too, the same ones every time.
    """
    axes = _axes(tuple(space.values.items()))
    defaults = {k.name: k.default for k in space.definition.knobs}
    near = [axes.near(axes.places(c, defaults)) for c in configs]
    codes = np.unique(np.concatenate([*near, axes.sample(sample)]))
    columns = axes.columns(codes)
    kept = np.ones(len(codes), bool)
    for limit in space.limits:
        kept &= np.asarray(limit.holds(columns))
    return Around(codes[kept], {knob: column[kept] for knob, column in columns.items()})


class _Axes:
    """The values of all knobs; a config's place along an axis is that of its value."""

    def __init__(self, values: Values) -> None:
        self._knobs = [knob for knob, _ in values]
        self._options = [options for _, options in values]
        self._choices = [np.array(options) for options in self._options]
        self._sizes = [len(options) for options in self._options]
        self._sample: np.ndarray | None = None
        self._strides = [math.prod(self._sizes[i + 1 :]) for i in range(len(values))]

    def places(
        self, config: Mapping[str, KnobValue], defaults: Mapping[str, KnobValue]
    ) -> list[int]:
        """Return the places of a config; of a number that is none of the values, the nearest."""
        return [
            _place(options, config.get(knob, defaults.get(knob, options[0])))
            for knob, options in zip(self._knobs, self._options, strict=True)
        ]

    def near(self, places: Sequence[int]) -> np.ndarray:
        """Return the codes of what is at most two steps away from a place, itself included."""
        axes, changes = [], []
        for axis, (place, options) in enumerate(zip(places, self._options, strict=True)):
            is_choice = isinstance(options[0], str)
            others = range(len(options)) if is_choice else (place - 1, place + 1)
            for other in others:
                if other != place and 0 <= other < len(options):
                    axes.append(axis)
                    changes.append((other - place) * self._strides[axis])
        code = sum(p * stride for p, stride in zip(places, self._strides, strict=True))
        steps, of = np.array(changes, dtype=np.int64), np.array(axes)
        first, second = np.nonzero(of[:, None] < of[None, :])
        pairs = steps[first] + steps[second]
        return code + np.concatenate([np.zeros(1, np.int64), steps, pairs])

    def sample(self, count: int) -> np.ndarray:
        """Return the codes of some places all over the space."""
        if self._sample is None or len(self._sample) != count:
            places = math.prod(self._sizes)
            self._sample = np.random.default_rng(SEED).integers(places, size=count)
        return self._sample

    def columns(self, codes: np.ndarray) -> Columns:
        """Return the knob values of some codes."""
        parts = zip(self._knobs, self._choices, self._strides, self._sizes, strict=True)
        return {knob: values[codes // stride % size] for knob, values, stride, size in parts}


@lru_cache(maxsize=64)
def _axes(values: Values) -> _Axes:
    return _Axes(values)


def _place(options: tuple[KnobValue, ...], value: KnobValue) -> int:
    if value in options:
        return options.index(value)
    if isinstance(value, str) or isinstance(options[0], str):
        return 0
    return min(range(len(options)), key=lambda i: abs(int(options[i]) - int(value)))
