"""Analytic time of a GPU program: waves of blocks, each bound by what it asks most of.

Blocks on one multiprocessor share its units; blocks come in waves, the last one partly filled, or
stay for one tile after another. ``gpu_block`` says what one asks for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from recommender.factored import may_hold
from recommender.gpu.block import (
    DEFAULT_GPU_CONSTANTS,
    BlockModel,
    BlockTimes,
    GpuConstants,
    side_by_side,
)
from recommender.gpu.columns import Columns, Floats, numbers
from recommender.gpu.resources import BlockResources
from recommender.hardware import HardwareProfile
from recommender.straight_line import called, place_of_largest
from tilecore.graph import TileGraph
from tilecore.graph.graph import Launch
from tilecore.graph.nodes import Access
from tilecore.ir.nodes import Buffer


@dataclass(frozen=True, slots=True)
class GpuTerms:
    """Seconds of a program on the whole device, by cause (arrays).

    ``terms`` add up to the time; ``resources`` are what each unit alone would need.
    """

    terms: dict[str, Floats]
    resources: dict[str, Floats]
    blocks: list[BlockResources]


def gpu_terms(
    graph: TileGraph, columns: Columns, hardware: HardwareProfile,
    constants: GpuConstants = DEFAULT_GPU_CONSTANTS,
) -> GpuTerms:  # fmt: skip
    """Return where the time of a program goes on a GPU, for every config."""
    terms: dict[str, Floats] = {}
    resources: dict[str, Floats] = {}
    blocks = []
    for launch in graph.launches:
        model = _LaunchModel(launch, columns, hardware, constants)
        found, needed = model.terms()
        blocks.append(model.block)
        for total, part in ((terms, found), (resources, needed)):
            for name, seconds in part.items():
                total[name] = total.get(name, 0.0) + seconds
    return GpuTerms(terms, resources, blocks)


class _LaunchModel:
    def __init__(
        self, launch: Launch, columns: Columns, hardware: HardwareProfile, constants: GpuConstants
    ) -> None:
        self.launch, self.columns, self.hardware, self.k = launch, columns, hardware, constants
        model = BlockModel(launch, columns, hardware, constants)
        self.block, self.multiplies = model.block, bool(model.products)
        self.one = model.times()
        self.count = numbers(launch.blocks, columns)

    def terms(self) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Return (terms of the time, what each resource alone needs)."""
        wave = self.hardware.cores * np.maximum(1.0, self.block.resident)
        memory, leaving = self._memory_s(np.minimum(self.count, wave))
        started = self.count * self.k.block_interval_s
        grid, even = self._grid_s(wave, memory, leaving)
        fits = self.block.resident > 0
        time_s = np.where(fits, side_by_side(grid, memory, started), np.inf)
        tail = np.where(grid >= memory, np.maximum(0.0, grid - even), 0.0)
        resources = self._resources(self.one, wave) | {"memory": memory}
        resources["waiting"] = np.maximum(resources["waiting"], started)
        slowest = place_of_largest(list(resources.values()))
        terms = {
            name: np.where(slowest == i, time_s - tail, 0.0) for i, name in enumerate(resources)
        }
        terms["tail"] = tail
        terms["launch"] = np.full(len(time_s), self.hardware.launch_s)
        return terms, resources

    def _resources(self, one: BlockTimes, wave: Floats) -> dict[str, Floats]:
        scale = self.count / self.hardware.cores
        return {
            "tensor": one.tensor * scale, "fma": one.fma * scale, "work": one.work * scale,
            "shared": one.shared * scale,
            "l2": np.maximum(one.load + one.store, one.added) * scale,
            "waiting": (one.waiting + one.begin + one.each_step) * self.count / wave,
        }  # fmt: skip

    def _grid_s(self, wave: Floats, memory: Floats, leaving: Floats) -> tuple[Floats, Floats]:
        """Return the time of all waves, and what it were if the last one were full."""
        one, cores = self.one, self.hardware.cores
        share = cores / self.count  # of a block in what the device's memory needs
        resident, full = wave / cores, np.floor(self.count / wave)
        # What a block alone has to bear: its first step's way from memory, its sums' way back. L2
        # takes these at its own rate while memory is not busy.
        alone = side_by_side(one.own + one.once + one.store, resident * one.most)
        busy = np.minimum(1.0, memory / (self.count / wave * alone))
        way_in = np.maximum(0.0, (memory - leaving) * share - one.load) / np.maximum(1, one.steps)
        way_out = np.maximum(one.store, leaving * share)
        way = one.store + busy * (way_in + way_out - one.store)
        moving = np.maximum(one.load + one.store, memory * share)

        def together(blocks: Floats) -> Floats:
            if self.multiplies:
                mine = _in_turns(blocks, way, one.own + one.once)
                return side_by_side(mine, blocks * one.most)
            found = side_by_side(one.own + one.store + one.begin, blocks * one.most)
            if may_hold(~one.is_ahead):
                # Their loads pass the way from L2 behind the queue: counted without that, first
                # choices of split K fall from 0.99 to 0.84 of the fastest (p10;
                # benchmarks/data/h200).
                mine = _in_turns(blocks, moving, one.thinking)
                computed = blocks * (one.fma + one.work)
                found = np.where(one.is_ahead, found, side_by_side(mine, computed))
            return found

        rest = np.ceil((self.count - full * wave) / cores)
        wave_s = together(resident)
        grid = full * wave_s + np.where(rest > 0, together(rest), 0.0)
        even = self.count / wave * wave_s
        stays = self.block.stays
        if may_hold(stays):
            tile_s, tiles = side_by_side(one.own, one.most), self.count / cores
            first = one.once + busy * way_in  # those of later tiles run beside the one before
            grid = np.where(stays, first + np.ceil(tiles) * tile_s, grid)
            even = np.where(stays, first + tiles * tile_s, even)
        return grid, even

    # --- memory -------------------------------------------------------------------------------

    def _memory_s(self, wave: Floats) -> tuple[Floats, Floats]:
        """Return the time that memory needs, and that of it for what leaves at blocks' ends.

        ``wave``: blocks that run at a time.
        """
        reads = [(op, a) for op in self.launch.ops for a in op.reads if a.buffer.scope == "global"]
        unique = [numbers(a.footprint_bytes, self.columns) for _, a in reads]
        held = self.k.l2_share * self.hardware.l2_bytes
        fits = reduce(np.add, [numbers(0, self.columns), *unique]) <= held
        waves = np.ceil(self.count / wave)
        total = out = numbers(0, self.columns)
        written: dict[Buffer, bool] = {}  # whether in a loop
        for op, access in self.launch.accesses(writes=True):
            written[access.buffer] = bool(op.loops)
        for buffer, is_hidden in written.items():
            stored = numbers(self.launch.tensor_bytes(buffer, writes=True), self.columns)
            size = reduce(np.multiply, [numbers(n, self.columns) for n in buffer.shape])
            size = size * buffer.dtype.itemsize
            # What is written again and again stays in L2 meanwhile.
            stored = np.where(size <= held, np.minimum(stored, size), stored)
            total, out = total + stored, out + (0.0 if is_hidden else stored)
        seen: set[tuple[Buffer, tuple[int, ...]]] = set()
        for (op, access), once in zip(reads, unique, strict=True):
            of_block = numbers(access.tile_bytes, self.columns) * numbers(op.trips, self.columns)
            moved = of_block * self.count
            boxes = self._boxes_of_wave(access, wave)
            # Blocks share boxes, and boxes overlap, where all together are more than the tensor.
            several = self._boxes_of_wave(access, self.count) * of_block / np.maximum(1.0, once)
            of_wave = np.maximum(1.0, boxes / np.maximum(1.0, several)) * of_block
            again = of_wave * waves
            read = np.where(fits, once, np.clip(again, once, np.maximum(once, moved)))
            key = access.buffer, tuple(access.block_axes)
            is_there = (of_wave <= held) & (key in seen)  # a walk before has left it in L2
            seen.add(key)
            total = total + np.where(is_there, 0.0, read)
        rate = self.hardware.bandwidth_bytes_per_s * self.k.memory_efficiency
        return total / rate, out / rate

    def _boxes_of_wave(self, access: Access, wave: Floats) -> Floats:
        """Return how many different boxes the blocks of a wave read; the first axis is fastest."""
        left, boxes = wave, numbers(1, self.columns)
        for axis, extent in enumerate(self.launch.grid):
            size = numbers(extent, self.columns)
            span = np.minimum(size, np.ceil(left))
            left = np.maximum(1.0, left / size)
            if axis in access.block_axes:
                boxes = boxes * span
        return boxes


def _in_turns(blocks: Floats, moving: Floats, thinking: Floats) -> Floats:
    """Return the time of blocks that share the way to memory, and wait for themselves between.

    Mean value analysis of one queue: a block finds those in it that are there on average.
    """
    noted: Any = called(_in_turns_of_one, 1, blocks, moving, thinking)
    if noted is not None:
        return noted[0]  # type: ignore[no-any-return]
    queue = found = np.zeros(np.broadcast(blocks, moving, thinking).shape)
    most = int(np.max(np.ceil(blocks), initial=1))
    for count in range(1, most + 1):
        took, queue = _with_another(count, queue, moving, thinking)
        found = np.where(blocks > count - 1, took * blocks / count, found)
    return found


def _in_turns_of_one(blocks: float, moving: float, thinking: float) -> tuple[float]:
    queue = found = 0.0
    for count in range(1, max(1, math.ceil(blocks)) + 1):
        took, queue = _with_another(count, queue, moving, thinking)
        found = took * blocks / count
    return (found,)


def _with_another(count: int, queue: Any, moving: Any, thinking: Any) -> tuple[Any, Any]:
    """Return the time of one of ``count`` blocks, and how many are in the queue on average.

    ``queue``: that of one block less.
    """
    passing = moving * (1.0 + queue)
    took = passing + thinking
    return took, count * passing / took
