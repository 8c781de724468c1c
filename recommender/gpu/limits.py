"""Limits of a search space on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from recommender.cpu.choices import needed_extents
from recommender.factored import may_hold
from recommender.gpu.columns import Columns, Floats, Mask, numbers
from recommender.gpu.products import Product, products
from recommender.gpu.resources import BlockResources, block_resources, target_of
from recommender.hardware import HardwareProfile
from recommender.limits import Limit, with_sizes
from tilecore.graph import Contraction, TileGraph
from tilecore.passes.persistent import LEAST_STAGES
from tilecore.tile_config import KnobValue

MANY_PRODUCTS = 3  # of a launch


class _Blocks:
    """What blocks take, computed once for all limits that look at the same configs."""

    def __init__(
        self, graph: TileGraph, hardware: HardwareProfile, sizes: Mapping[str, int]
    ) -> None:
        self.graph, self.target, self._sizes = graph, target_of(hardware), sizes
        self._key: tuple[int, ...] = ()
        self._found: list[tuple[BlockResources, list[Product]]] = []
        self._kept: Columns = {}

    def of(self, columns: Columns) -> Sequence[tuple[BlockResources, list[Product]]]:
        """Return resources and products of every launch."""
        key = tuple(id(c) for c in columns.values())
        if key != self._key:
            self._key, self._kept, self._found = key, columns, []
            known = with_sizes(columns, self._sizes)
            for launch in self.graph.launches:
                made = products(launch, known, self.target)
                self._found.append((block_resources(launch, known, self.target, made), made))
        return self._found


def gpu_limits(
    graph: TileGraph, site: Contraction | None, values: Mapping[str, Iterable[KnobValue]],
    hardware: HardwareProfile, sizes: Mapping[str, int],
) -> list[Limit]:  # fmt: skip
    """Return what a config must keep on a GPU (hard), and what makes one worth a measurement.

    ``sizes``: of the problem, where they are symbols in the graph.
    """
    blocks, target = _Blocks(graph, hardware, sizes), target_of(hardware)
    warp, most = target.threads_per_warp, target.threads_per_block
    knob = "threads" if "threads" in values else next(iter(values))
    deep = "num_stages" if "num_stages" in values else next(iter(values))

    def every(test: object) -> object:
        def holds(columns: Columns) -> Mask:
            kept = np.ones(len(next(iter(columns.values()))), bool)
            for resources, made in blocks.of(columns):
                kept &= test(resources, made)  # type: ignore[operator]
            return kept

        return holds

    def rule(knob: str, expected: str, test: object, *, is_hard: bool) -> Limit:
        return Limit(knob, expected, every(test), is_hard)  # type: ignore[arg-type]

    registers = target.registers_per_thread
    limits = [
        rule(
            knob, f"threads of whole warps of {warp}, at most {most} with those that copy",
            lambda b, p: (b.threads % warp == 0) & (b.threads <= most), is_hard=True,
        ),
        rule(
            deep, f"tiles of a block, stages counted, within {target.shared_per_block} B shared",
            lambda b, p: b.shared_bytes <= target.shared_per_block, is_hard=True,
        ),
        rule(
            knob, f"sums and operands of a thread within {registers} registers",
            lambda b, p: _registers_of(b, p) <= registers, is_hard=False,
        ),
        rule(
            knob, "a block that a multiprocessor can hold: fewer registers or threads",
            lambda b, p: b.resident > 0, is_hard=False,
        ),
        rule(
            knob, "warps that tensor cores can serve: each a part of the tile of C",
            lambda b, p: _are_served(p), is_hard=False,
        ),
    ]  # fmt: skip
    # Blocks that stay load the next tile's first step meanwhile, by TMA and into another stage.
    least = LEAST_STAGES if target.kind == "cuda" and target.has_tma else 1
    limits += _no_deeper_than_needed(graph, deep, values, sizes, least)
    if site is not None and site.a.source is not None and site.b.source is not None:
        limits += _no_larger_than_needed(site, values, sizes)
    return limits


def _registers_of(block: BlockResources, made: Sequence[Product]) -> Floats:
    """Return the registers that a block worth trying must have.

    A product runs at its best where the operands of the next step are there; the sums of many
    products leave no room for that, and their other work hides the wait.
    """
    return block.least_registers if len(made) >= MANY_PRODUCTS else block.registers


def _are_served(made: Sequence[Product]) -> Mask | bool:
    """Return whether products are by tensor cores wherever another config could have them so."""
    kept: Mask | bool = True
    for product in made:
        if may_hold(product.is_tensor):
            kept = kept & product.is_tensor & product.is_busy
    return kept


def _no_deeper_than_needed(
    graph: TileGraph, knob: str, values: Mapping[str, Iterable[KnobValue]],
    sizes: Mapping[str, int], least: int,
) -> list[Limit]:  # fmt: skip
    """Return the limit that a pipeline has no more stages than its loop has steps, or ``least``."""
    if knob != "num_stages":
        return []

    def holds(columns: Columns) -> Mask:
        known = with_sizes(columns, sizes)
        steps = numbers(1, known)
        for launch in graph.launches:
            for op in launch.ops:
                for loop in op.loops:
                    if loop.kind == "pipelined":
                        steps = np.maximum(steps, numbers(loop.trip_count, known))
        fewest = max(least, min(int(v) for v in values[knob]))
        found: Mask = columns[knob] <= np.maximum(steps, fewest)
        return found

    return [Limit(knob, "no more stages than steps of the loop", holds, False)]


def _no_larger_than_needed(
    site: Contraction, values: Mapping[str, Iterable[KnobValue]], sizes: Mapping[str, int]
) -> list[Limit]:
    """Return the limits that a block covers the problem with the smallest value that does."""
    found = []
    for knob, (_, needed) in needed_extents(site, sizes).items():
        if knob in values:
            known = sorted(int(v) for v in values[knob])
            largest = next((v for v in known if v >= needed), known[-1])
            found.append(
                Limit(
                    knob, f"{knob} <= {largest} (extent {needed:.0f})",
                    lambda c, knob=knob, largest=largest: c[knob] <= largest, False,  # type: ignore[misc]
                )
            )  # fmt: skip
    return found
