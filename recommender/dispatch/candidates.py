"""What the models say of the configs at one shape: of a library's kernel, of a program sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol as TypingProtocol

import numpy as np
from numpy.typing import NDArray

from recommender.analytic import ANALYTIC_SPREAD, estimate_each
from recommender.predict import Learned, forecast, forecast_configs
from recommender.program_table import ProgramTable
from recommender.space import SearchSpace
from tilecore.tile_config import TileConfig

FAVOURITES = 24  # configs of a shape that may have a place
Floats = NDArray[np.float64]


class ShapeCandidates(TypingProtocol):
    """The configs at one shape."""

    @property
    def source(self) -> str:
        """Return what predicts: "predicted", "prior" or "analytic"."""
        ...

    def can_run(self, configs: Sequence[TileConfig]) -> list[bool]:
        """Return of each config whether it can run."""
        ...

    def expected_s(self, configs: Sequence[TileConfig]) -> tuple[Floats, Floats, Floats]:
        """Return expected times of configs that can run, and the ends of their intervals."""
        ...

    def favourites(self) -> Sequence[TileConfig]:
        """Return the configs that are expected to be the fastest."""
        ...

    def ratio(self, config: TileConfig, threads: int) -> float:
        """Return the expected time with the cores asked for over that with ``threads``."""
        ...


class KernelCandidates:
    """Configs of a kernel of the library."""

    def __init__(self, space: SearchSpace, cores: int, learned: Learned | None) -> None:
        self._space, self._cores, self._learned = space, cores, learned

    @property
    def source(self) -> str:
        """Return what predicts."""
        return "analytic" if self._learned is None else self._learned.source

    def can_run(self, configs: Sequence[TileConfig]) -> list[bool]:
        """Return of each config whether it can run."""
        return self._space.can_run(configs)

    def expected_s(self, configs: Sequence[TileConfig]) -> tuple[Floats, Floats, Floats]:
        """Return expected times of configs that can run, and the ends of their intervals."""
        return forecast_configs(self._space, configs, self._cores, self._learned)

    def favourites(self) -> Sequence[TileConfig]:
        """Return the configs that are expected to be the fastest."""
        found = forecast(self._space, self._cores, self._learned)
        return [found.config(place) for place in range(min(FAVOURITES, len(found.codes)))]

    def ratio(self, config: TileConfig, threads: int) -> float:
        """Return the expected time with the cores asked for over that with ``threads``."""
        if self._space.hardware.kind != "cpu":
            return 1.0
        (wanted,), (given,) = (
            estimate_each(self._space, [config], threads=n) for n in (self._cores, threads)
        )
        return wanted.time_s / given.time_s


class TableCandidates:
    """Configs of a program that came as data: those of its table; the analytic model predicts."""

    source = "analytic"

    def __init__(self, table: ProgramTable) -> None:
        self._table = table

    def can_run(self, configs: Sequence[TileConfig]) -> list[bool]:
        """Return of each config whether it is in the table: what is not is slow, or illegal."""
        return [self._table.row(config) is not None for config in configs]

    def expected_s(self, configs: Sequence[TileConfig]) -> tuple[Floats, Floats, Floats]:
        """Return expected times of configs that can run, and the ends of their intervals."""
        rows = [row for c in configs if (row := self._table.row(c)) is not None]
        time_s = np.asarray(self._table.time_s, np.float64)[rows]
        return time_s, time_s * ANALYTIC_SPREAD[0], time_s * ANALYTIC_SPREAD[1]

    def favourites(self) -> Sequence[TileConfig]:
        """Return the configs expected to be the fastest of those that the compiler takes."""
        return [self._table.configs[row] for row in self._table.accepted[:FAVOURITES]]

    def ratio(self, config: TileConfig, threads: int) -> float:
        """Return the expected time with the cores asked for over that with one thread."""
        return self._table.scale(config) if threads == 1 else 1.0
