"""Replay: a fully measured space stands in for the device, so that searches can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recommender.recorded import RecordedSpace
from recommender.search import Landscape, Observations, Strategy


def replay(
    space: RecordedSpace,
    strategy: Strategy,
    *,
    trials: int,
    batch: int = 8,
    seed: int = 0,
    prior_s: NDArray[Any] | None = None,
    landscape: Landscape | None = None,
    first: Sequence[int] = (),
) -> NDArray[np.float64]:
    """Return the fraction of the best speed reached after each of ``trials`` evaluations.

    Args:
        space: what was measured.
        strategy: asked for batches, told their times.
        trials: evaluations.
        batch: candidates asked for at a time.
        seed: of the strategy.
        prior_s: expected times, in any unit.
        landscape: what the strategy sees, in place of the space's own with ``prior_s``.
        first: rows that are measured before the strategy is asked.
    """
    seen_by = landscape or space.landscape(prior_s)
    seen = Observations()
    reached: list[float] = []
    best = np.inf
    waiting = list(first)[:trials]
    while len(reached) < trials:
        rows = waiting or strategy.ask(min(batch, trials - len(reached)), seen_by, seen, seed)
        waiting = []
        if not rows:
            break
        for row in rows:
            time_s = float(space.time_s[row])
            seen.times_s[row] = None if np.isnan(time_s) else time_s
            best = min(best, np.inf if np.isnan(time_s) else time_s)
            reached.append(space.best_s / best)
    return np.array(reached)
