"""Which candidates of a workload to take to a device that can be used once, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from recommender.analytic import estimate
from recommender.hardware import HardwareProfile
from recommender.ports import MeasurementStore
from recommender.recommend import recommend
from recommender.space import SearchSpace
from recommender.workload import Workload
from tilecore.kernels.definition import KernelDefinition
from tilecore.tile_config import TileConfig

RECOMMENDED = 8  # that follow the default
EXPLORED = 4  # every so-manieth is drawn from the whole space: what models are to learn from


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate; ``purpose`` is "default", "recommended" or "search"."""

    config: TileConfig
    purpose: str
    predicted_s: float


def choose(
    workload: Workload,
    definition: KernelDefinition,
    hardware: HardwareProfile,
    store: MeasurementStore,
    count: int,
    *,
    program_digest: str = "",
    toolchain_key: str = "",
    seed: int = 0,
) -> list[Choice]:
    """Return up to ``count`` candidates, those first that promise most.

    The default, the recommendations, then the fastest by the analytic model, of which every
    ``EXPLORED``-th is replaced by one drawn at random from all legal configs.

    Raises:
        EmptySpace: no config of the kernel can run on the device (RC602).
    """
    space = SearchSpace.build(definition, dict(workload.problem), hardware)
    expected = estimate(space, threads=workload.threads)
    default = definition.default_config(hardware.kind)
    ranked = recommend(
        workload, definition, hardware, store, top_k=RECOMMENDED,
        program_digest=program_digest, toolchain_key=toolchain_key,
    )  # fmt: skip
    purposes = {default: "default", ranked[0].config: "recommended"}
    order = [default, *(r.config for r in ranked), *_spread(space, expected.time_s, seed)]
    unique = list(islice(dict.fromkeys(order), count))
    times = estimate(space, space.table(unique), threads=workload.threads).time_s
    return [
        Choice(config, purposes.get(config, "search"), float(time_s))
        for config, time_s in zip(unique, times, strict=True)
    ]


def _spread(space: SearchSpace, time_s: np.ndarray, seed: int) -> Iterator[TileConfig]:
    """Yield every config of a space once: by promise, now and then one from anywhere."""
    promising: Sequence[int] = np.argsort(time_s, kind="stable").tolist()
    anywhere: Sequence[int] = np.random.default_rng(seed).permutation(len(promising)).tolist()
    for position, row in enumerate(promising):
        if position % EXPLORED == EXPLORED - 1:
            yield space.config(anywhere[position // EXPLORED])
        yield space.config(row)
