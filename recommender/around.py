"""Candidates around given configs: what is worth a look beside a config that was measured.

They are found without the space they belong to: nothing is enumerated but they themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from recommender.cpu.choices import Columns
from recommender.limits import Limit
from recommender.space import SearchSpace
from tilecore.tile_config import KnobValue, TileConfig

SEED = 1
FAR = 16
Values = tuple[tuple[str, tuple[KnobValue, ...]], ...]
Step = tuple[int, int]  # an axis, and how far along it


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
    axes, all_places = _places_of(space, configs)
    near = [axes.near(places, axes.steps(places)) for places in all_places]
    codes = np.unique(np.concatenate([*near, axes.sample(sample)]))
    return _legal(space, axes, codes, space.limits)


def far_around(
    space: SearchSpace, configs: Sequence[TileConfig], *, only_hard: bool = False
) -> Around:
    """Return what differs from ``configs`` in one knob, or by a step each in two.

    A number may be any of the next ``FAR`` values; a step goes to the next that is legal, too.

    Args:
        space: theirs.
        configs: which need not be in the space themselves.
        only_hard: whether what can run, but is not worth trying, is legal.
    """
    limits = [limit for limit in space.limits if limit.is_hard or not only_hard]
    axes, all_places = _places_of(space, configs)
    found = []
    for places in all_places:
        steps = axes.steps(places, FAR)
        code = axes.code(places)
        kept = set(_legal(space, axes, axes.apart(code, steps), limits).codes.tolist())
        legal = [step for step in steps if code + axes.distance(*step) in kept]
        found.append(axes.near(places, [*dict.fromkeys([*axes.steps(places), *_nearest(legal)])]))
        found.append(np.array(sorted(kept), np.int64))
    return _legal(space, axes, np.unique(np.concatenate(found)), limits)


def _places_of(
    space: SearchSpace, configs: Sequence[TileConfig]
) -> tuple[_Axes, list[list[int]]]:  # fmt: skip
    axes = _axes(tuple(space.values.items()))
    defaults = {k.name: k.default for k in space.definition.knobs}
    return axes, [axes.places(config, defaults) for config in configs]


def _legal(
    space: SearchSpace, axes: _Axes, codes: np.ndarray, limits: Iterable[Limit]
) -> Around:  # fmt: skip
    columns = axes.columns(codes)
    kept = np.ones(len(codes), bool)
    for limit in limits:
        kept &= np.asarray(limit.holds(columns))
    return Around(codes[kept], {knob: column[kept] for knob, column in columns.items()})


def _nearest(steps: Sequence[Step]) -> list[Step]:
    """Return the shortest step along each axis, in each direction."""
    found: dict[tuple[int, bool], Step] = {}
    for axis, step in sorted(steps, key=lambda s: abs(s[1])):
        found.setdefault((axis, step > 0), (axis, step))
    return list(found.values())


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

    def code(self, places: Sequence[int]) -> int:
        """Return the number of a config."""
        return sum(p * stride for p, stride in zip(places, self._strides, strict=True))

    def distance(self, axis: int, step: int) -> int:
        """Return by how much a step changes the number of a config."""
        return step * self._strides[axis]

    def steps(self, places: Sequence[int], far: int = 1) -> list[Step]:
        """Return the steps from a place that change one knob, a number by up to ``far`` values."""
        found = []
        for axis, (place, options) in enumerate(zip(places, self._options, strict=True)):
            is_choice = isinstance(options[0], str)
            others = range(len(options)) if is_choice else range(place - far, place + far + 1)
            found += [(axis, at - place) for at in others if at != place and 0 <= at < len(options)]
        return found

    def apart(self, code: int, steps: Sequence[Step]) -> np.ndarray:
        """Return the codes of what is a step away from a place."""
        return code + np.array([self.distance(*step) for step in steps], dtype=np.int64)

    def near(self, places: Sequence[int], steps: Sequence[Step]) -> np.ndarray:
        """Return the codes of what is at most two of the steps away from a place, and its own."""
        code, axes = self.code(places), np.array([axis for axis, _ in steps])
        ones = self.apart(0, steps)
        first, second = np.nonzero(axes[:, None] < axes[None, :])
        pairs = ones[first] + ones[second]
        return code + np.concatenate([np.zeros(1, np.int64), ones, pairs])

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
