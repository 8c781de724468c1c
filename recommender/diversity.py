"""Lists of configs that differ: neighbours of the best one say little that it does not say."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator

from tilecore.tile_config import TileConfig


def different(
    configs: Iterable[TileConfig], least: int, accepts: Callable[[TileConfig], bool] | None = None
) -> Iterator[tuple[int, TileConfig]]:
    """Yield (position, config) of those that differ from all before them in ``least`` knobs.

    Args:
        configs: the best first.
        least: knobs.
        accepts: whether a config can be had; it is asked of different ones only.
    """
    chosen: list[TileConfig] = []
    for position, config in enumerate(configs):
        if all(_differences(config, other) >= least for other in chosen):
            if accepts is not None and not accepts(config):
                continue
            chosen.append(config)
            yield position, config


def _differences(a: TileConfig, b: TileConfig) -> int:
    if len(a) == len(b):  # of one space: the same knobs in the same order
        return sum(map(operator.ne, a.items_, b.items_))
    return sum(b.get(knob) != value for knob, value in a.items())
