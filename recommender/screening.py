"""Screening: the search part of a tuning session, on rows of the space instead of configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from recommender.analytic import Estimates, estimate
from recommender.cpu.choices import Columns
from recommender.features import features
from recommender.ports import MeasurementStore
from recommender.predict import active_model
from recommender.search import Landscape, Observations, Strategy
from recommender.space import SearchSpace
from tilecore.tile_config import TileConfig

RENEWED = 8  # trials after which it is looked around the fastest again
CENTRES = 4  # of them
WORTHWHILE = 0.99  # a trial counts as progress if it takes at most this share of the best time


class Candidates(Protocol):
    """The configs to choose from, by row, and what is known of them before anything is measured."""

    @property
    def landscape(self) -> Landscape:
        """What a search may know before it starts."""
        ...

    def __len__(self) -> int: ...

    def config(self, row: int) -> TileConfig:
        """Return the config of a row."""
        ...

    def row(self, config: TileConfig) -> int | None:
        """Return the row of a config, None where it is none of the candidates."""
        ...

    def scale(self, config: TileConfig) -> float:
        """Return the expected time with all threads over that with one."""
        ...

    def predicted_s(self, config: TileConfig, threads: int) -> float | None:
        """Return the expected time on ``threads`` threads (0: the workload's), if it is known."""
        ...

    def look_around(self, fastest: Sequence[TileConfig], also: Sequence[TileConfig]) -> None:
        """Take in what is around some configs, and others, as further rows, where that is more."""
        ...


class SpaceCandidates:
    """The configs of a kernel's space, as the analytic model and the cost model see them."""

    def __init__(self, space: SearchSpace, threads: int, store: MeasurementStore) -> None:
        self._space, self._threads = space, threads
        whole = estimate(space, threads=threads)
        self._estimates = {1: whole.on(1), threads: whole}  # of all configs, by threads
        table = features(space, space.factored, whole)
        name, dtype = space.definition.name, str(space.problem["dtype"])
        self._learned = active_model(store, name, space.hardware, dtype)
        self._expected: dict[int, np.ndarray] = {}  # times of the space on a number of threads
        self.landscape = Landscape(self._expected_s(threads), table, self._neighbours)

    def __len__(self) -> int:
        return len(self._space)

    def config(self, row: int) -> TileConfig:
        """Return the config of a row."""
        return self._space.config(row)

    def row(self, config: TileConfig) -> int | None:
        """Return the row of a config, None where it is none of the candidates."""
        return self._space.index(config) if self._space.contains(config) else None

    def scale(self, config: TileConfig) -> float:
        """Return the expected time with all threads over that with one."""
        row, known = self.row(config), self._estimates
        if row is not None:
            return float(known[self._threads].time_s[row] / known[1].time_s[row])
        whole = estimate(self._space, self._space.table([config]), threads=self._threads)
        return float(whole.time_s[0] / whole.on(1).time_s[0])

    def predicted_s(self, config: TileConfig, threads: int) -> float | None:
        """Return the expected time on ``threads`` threads (0: the workload's)."""
        row, wanted = self.row(config), threads or self._threads
        if row is not None and wanted in self._estimates:
            return float(self._expected_s(wanted)[row])
        columns = self._space.table([config])
        return float(self._corrected(columns, estimate(self._space, columns, threads=wanted))[0])

    def look_around(self, fastest: Sequence[TileConfig], also: Sequence[TileConfig]) -> None:
        """Do nothing: all configs are here."""

    def _expected_s(self, threads: int) -> np.ndarray:
        """Return the expected times of all configs: thousands at once take as long as a few."""
        if threads not in self._expected:
            whole = self._estimates[threads]
            self._expected[threads] = self._corrected(self._space.factored, whole)
        return self._expected[threads]

    def _corrected(self, columns: Columns, estimates: Estimates) -> np.ndarray:
        """Return the times of the analytic model, with what the cost model learned, if any."""
        if self._learned is None:
            return estimates.time_s
        found = self._learned.factors(self._space, columns, estimates)
        corrected: np.ndarray = estimates.time_s * found.factor
        return corrected

    def _neighbours(self, row: int) -> list[int]:
        return self._space.neighbours(self._space.config(row))


class Screening:
    """Chooses configs to screen and ranks them by what they promise with all threads.

    SCREEN times are of one thread; what counts is the time with all threads of the workload, so
    each is multiplied with the predicted ratio of the two, which knows how blocks spread over
    cores.
    """

    def __init__(self, candidates: Candidates, strategy: Strategy, seed: int) -> None:
        self._candidates, self._strategy, self._seed = candidates, strategy, seed
        self._told: dict[TileConfig, float | None] = {}  # with one thread
        self._times: dict[TileConfig, float | None] = {}  # with all threads
        self._pending: dict[TileConfig, None] = {}
        self._looked_at = 0  # how many were told when it was last looked around the fastest
        self._sought: set[TileConfig] = set()  # that were no candidates when they were looked for
        self._order: list[float] = []  # best time so far after every told trial

    def __len__(self) -> int:
        return len(self._candidates)

    def expect(self, config: TileConfig) -> None:
        """Note that ``config`` is being measured."""
        self._pending[config] = None

    def tell(self, config: TileConfig, time_s: float | None) -> None:
        """Take in a SCREEN time of one thread, or None for a failure."""
        self._pending.pop(config, None)
        self._told[config] = time_s
        scaled = self._times[config] = self._scaled(config)
        best_s = self._order[-1] if self._order else np.inf
        self._order.append(best_s if scaled is None else min(scaled, best_s))

    def ask(self, count: int) -> list[TileConfig]:
        """Return new configs to screen.

        Every ``RENEWED`` trials it is looked around the fastest for candidates that were left out.
        """
        self._find_unknown()
        told = len(self._told) // RENEWED * RENEWED
        if told > self._looked_at:
            self._candidates.look_around(self.fastest(CENTRES), ())
            self._looked_at = told
        rows = self._strategy.ask(count, self._candidates.landscape, self._seen(), self._seed)
        configs = [self._candidates.config(row) for row in rows]
        self._pending.update(dict.fromkeys(configs))
        return configs

    def fastest(self, count: int) -> list[TileConfig]:
        """Return the configs with the smallest times with all threads, of those told so far."""
        self._find_unknown()
        timed = [(time_s, c.key, c) for c, time_s in self._times.items() if time_s is not None]
        return [config for _, _, config in sorted(timed)[:count]]

    def _scaled(self, config: TileConfig) -> float | None:
        """Return the time with all threads that follows from what was told of one."""
        time_s = self._told[config]
        return None if time_s is None else time_s * self._candidates.scale(config)

    def _seen(self) -> Observations:
        """Return what is known of candidates, by their rows."""
        found = Observations()
        for config, time_s in self._times.items():
            row = self._candidates.row(config)
            if row is not None:
                found.times_s[row] = time_s
        rows = map(self._candidates.row, self._pending)
        found.pending = {row for row in rows if row is not None} - found.times_s.keys()
        return found

    def _find_unknown(self) -> None:
        """Look for what an earlier session found around its fastest, and this one is told."""
        known = (*self._told, *self._pending)
        unknown = {c for c in known if self._candidates.row(c) is None} - self._sought
        if unknown:
            self._candidates.look_around((), sorted(unknown, key=lambda c: c.key))
            self._sought |= unknown
            self._times |= {c: self._scaled(c) for c in unknown & self._told.keys()}

    def has_stalled(self, patience: int) -> bool:
        """Return whether the last ``patience`` trials brought less than 1 %."""
        if patience <= 0 or len(self._order) <= patience:
            return False
        return self._order[-1] > WORTHWHILE * self._order[-1 - patience]

    def predicted_s(self, config: TileConfig, threads: int = 0) -> float | None:
        """Return the expected time of ``config`` on ``threads`` threads (0: the workload's)."""
        return self._candidates.predicted_s(config, threads)
