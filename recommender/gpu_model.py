"""Analytic time of a GPU program: waves of blocks, each bound by what it asks most of.

A block takes the longer of what runs side by side (products, loads that pipelines fetch ahead,
shared memory) plus what does not overlap (filling the pipeline, the way of the sums to memory).
Blocks on one multiprocessor share its units; blocks come in waves, the last one partly filled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from recommender.factored import may_hold
from recommender.gpu_resources import (
    BlockResources,
    Columns,
    Floats,
    Product,
    block_resources,
    folds,
    numbers,
    products,
    target_of,
    updates,
)
from recommender.hardware import HardwareProfile
from tilecore.graph import TileGraph
from tilecore.graph.graph import Launch
from tilecore.graph.nodes import Access, TileOp
from tilecore.inference.gpu.products import WARPGROUP
from tilecore.ir.nodes import Buffer, Copy, Gemm

SHARED_BYTES_PER_CLOCK = 128  # of a multiprocessor (CUDA C++ Programming Guide, "Shared Memory")
SPECIAL_PER_CLOCK = (
    16  # exp2, rsqrt, ...: of a multiprocessor (the same, "Arithmetic Instructions")
)


FOLD_STEPS = 5  # of the 32 values of a warp
LINE_BYTES = 128  # of a cache, and the most of a row that a box brings at a time
ADDED_BYTES = 4  # of a float32
OVERLAP = 8.0  # of the norm that joins times which overlap; infinity would be their maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConstants:
    """Properties of the generated code and of devices.

    Source: published microbenchmarks, and what benchmarks/calibrate_gpu_model.py fits to what was
    measured on an H200 (benchmarks/data/h200, 2026-11-26).
    """

    tensor_efficiency: float = 0.97  # of the peak of wgmma and of sm_80's mma, operands at hand
    warp_efficiency: float = 0.62  # of mma.sync where warpgroups have instructions of their own
    fma_efficiency: float = 0.7
    work_efficiency: float = 0.65  # of one operation per lane and clock
    special_operations: float = 1.8  # ordinary ones around an exp2 or its like
    memory_latency_s: float = 0.7e-6  # from a load to its data, under load
    box_latency_s: float = 0.25e-6  # the same of boxes (TMA) that a warp of its own asks for
    store_latency_s: float = 0.35e-6  # from sums to the end of their block, beside their way
    group_overlap: float = 0.95  # of the shorter of products and work, where warpgroups take turns
    own_overlap: float = 0.4  # the same within a warpgroup
    block_overlap: float = 0.8  # the same between blocks, which take no turns
    step_clocks: float = 75.0  # barriers and addresses of one step of a loop
    issue_clocks: float = 110.0  # of a warpgroup in a step, which no other block can use meanwhile
    exchange_clocks: float = 150.0  # until warps have what others of their block computed
    fold_operations: float = 4.0  # of a lane, by which it folds its value and another lane's
    join_operations: float = 60.0  # of a lane, by which warps join what each has folded
    fold_clocks: float = 150.0  # until the lanes of a warp have folded what they hold
    block_clocks: float = 600.0  # starting a block, and its end
    block_interval_s: float = 0.62e-9  # from the start of a block to that of the next, anywhere
    added: float = 1.2  # float32 that a multiprocessor adds to tensors in a clock, one by one
    added_by_tiles: float = 4.4  # the same by whole tiles: at least
    memory_efficiency: float = 0.83
    l2_share: float = 0.7  # of its bytes that tensors read again may fill


DEFAULT_GPU_CONSTANTS = GpuConstants()


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
        self.target = target_of(hardware)
        self.products = products(launch, columns, self.target)
        self.block = block_resources(launch, columns, self.target, self.products)
        self.count = numbers(launch.blocks, columns)

    def terms(self) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Return (terms of the time, what each resource alone needs)."""
        k, hardware, block = self.k, self.hardware, self.block
        tensor, fma, work = self._tensor_s(), self._fma_s(), self._work_s(in_loops=True)
        after = self._work_s(in_loops=False)
        shared = self._shared_bytes() / (SHARED_BYTES_PER_CLOCK * hardware.clock_hz)
        updated = self._added_bytes()  # which the graph has among what is read and written
        loaded = numbers(self.launch.block_bytes(writes=False), self.columns) - updated
        loaded = loaded + self._cut_bytes()
        stored = numbers(self.launch.block_bytes(writes=True), self.columns) - updated
        per_core = hardware.l2_bandwidth_bytes_per_s / hardware.cores
        load = loaded / per_core
        store = (stored * block.sectors + self._local_bytes()) / per_core
        rate = np.where(block.by_tiles, k.added_by_tiles, k.added) * hardware.clock_hz
        added = updated / ADDED_BYTES / rate
        steps = self._steps()
        overhead = (k.block_clocks + steps * k.step_clocks) / hardware.clock_hz
        # A loop of one product of warpgroups keeps the tiles of the product that runs.
        ahead = block.stages - 1 - self._is_kept_running()
        latency = k.box_latency_s if self._has_boxes() else k.memory_latency_s
        waiting = (steps * latency + load) / np.maximum(1.0, ahead) + latency
        computed = fma + work
        hidden = np.minimum(tensor, computed) * self._overlap()
        # A block of fewer warps than there are schedulers leaves some of them idle; ordinary
        # operations wait for each other, so that a warp gives its scheduler half of what it could.
        filling = WARPGROUP if self.products else 2 * WARPGROUP
        share = np.minimum(1.0, self._threads() / filling)
        busy, moved = (tensor + computed - hidden) / share, shared / share
        is_ahead = ahead >= 1
        inner = np.where(
            is_ahead, _side_by_side(busy, moved, load, waiting, added),
            _side_by_side(busy, moved, added) + _side_by_side(load, waiting),
        )  # fmt: skip
        resident = np.maximum(1.0, block.resident)
        wave = hardware.cores * resident
        memory, leaving = self._memory_s(np.minimum(self.count, wave))
        # What a block alone has to bear: its first step's way from memory, its sums' way back.
        way_out = np.maximum(store, leaving * hardware.cores / self.count)
        way_in = (memory - leaving) * hardware.cores / self.count
        way_in = np.maximum(0.0, way_in - load) / np.maximum(1.0, steps)
        once = k.block_clocks / hardware.clock_hz + (k.memory_latency_s - latency) + k.store_latency_s
        each = steps * k.step_clocks / hardware.clock_hz
        told = self._exchanges() * k.exchange_clocks / hardware.clock_hz
        told = told + self._tiles_added() * k.store_latency_s
        alone = inner + after / share + store + overhead
        kept = inner + after / share + each + told
        each_step = k.issue_clocks * self._threads() / WARPGROUP / hardware.clock_hz
        folded = self._fold_clocks() / hardware.clock_hz
        issued = computed + after + steps * each_step
        least = np.minimum(tensor, computed + after)
        both = np.maximum(tensor + each, issued) + (1 - np.maximum(k.block_overlap, self._overlap())) * least
        most = _side_by_side(both, shared + each, load + store, added)

        moving = np.maximum(load + store, memory * hardware.cores / self.count)
        # Its load passes the way from L2 behind the queue: counted without that, first choices of
        # split K fall from 0.99 to 0.84 of the fastest (p10; benchmarks/data/h200).
        thinking = _side_by_side(busy, added) + after + waiting + overhead + folded
        takes_turns = not self.products and may_hold(~is_ahead)

        def together(blocks: Floats) -> Floats:
            if self.products:
                mine = _in_turns(blocks, way_in + way_out, kept + once)
                return _side_by_side(mine, blocks * most)
            found = _side_by_side(alone, blocks * most)
            if takes_turns:
                mine = _in_turns(blocks, moving, thinking)
                found = np.where(is_ahead, found, _side_by_side(mine, blocks * computed))
            return found

        full = np.floor(self.count / wave)
        rest = np.ceil((self.count - full * wave) / hardware.cores)
        wave_s = together(resident)
        grid_s = full * wave_s + np.where(rest > 0, together(rest), 0.0)
        even_s = self.count / wave * wave_s
        if may_hold(block.stays):
            tile_s = _side_by_side(kept, most)
            grid_s = np.where(block.stays, once + way_in + np.ceil(self.count / hardware.cores) * tile_s, grid_s)
            even_s = np.where(block.stays, once + way_in + self.count / hardware.cores * tile_s, even_s)
        started = self.count * k.block_interval_s
        time_s = np.where(block.resident > 0, _side_by_side(grid_s, memory, started), np.inf)
        scale = self.count / hardware.cores
        resources = {
            "tensor": tensor * scale, "fma": fma * scale, "work": (work + after) * scale,
            "shared": shared * scale, "l2": np.maximum(load + store, added) * scale,
            "waiting": np.maximum((waiting + overhead) * self.count / wave, started),
            "memory": memory,
        }  # fmt: skip
        tail = np.where(grid_s >= memory, np.maximum(0.0, grid_s - even_s), 0.0)
        names = list(resources)
        slowest = np.argmax(np.stack(list(resources.values())), axis=0)
        terms = {n: np.where(slowest == i, time_s - tail, 0.0) for i, n in enumerate(names)}
        terms["tail"] = tail
        terms["launch"] = np.full(len(time_s), hardware.launch_s)
        return terms, resources

    # --- one block, in seconds of the multiprocessor that it has to itself --------------------

    def _has_boxes(self) -> bool:
        return self.target.kind == "cuda" and self.target.has_tma

    def _is_kept_running(self) -> Floats:
        """Return 1 where a loop leaves its only product running while it asks for the next."""
        if len(self.products) != 1 or not self._has_boxes():
            return numbers(0, self.columns)
        found: Floats = numbers(1, self.columns) * self.products[0].is_grouped
        return found

    def _overlap(self) -> Floats:
        """Return which share of the shorter of products and work other warps hide."""
        grouped = [p.is_grouped for p in self.products]
        if not grouped:
            return numbers(0, self.columns)
        groups = self._threads() / WARPGROUP
        is_grouped = reduce(np.logical_and, grouped)
        is_free = (groups > 1) & (self._exchanges() == 0)  # to take turns
        hidden = np.where(is_free, self.k.group_overlap, self.k.own_overlap)
        found: Floats = np.where(is_grouped, hidden, 0.0)
        return found

    def _threads(self) -> Floats:
        """Return the threads of a block that compute."""
        found: Floats = reduce(np.multiply, [numbers(t, self.columns) for t in self.launch.threads])
        return found

    def _exchanges(self) -> Floats:
        """Return how often warps wait for each other, for what they tell products in loops.

        That is a shared tile that they fill, or one through which they add to a tensor.
        """
        total = numbers(0, self.columns)
        if not self.products:
            return total
        for op in self.launch.ops:
            is_computed = not any(a.buffer.scope == "global" for a in op.reads)
            if op.loops and is_computed and any(a.buffer.scope == "shared" for a in op.writes):
                total = total + self._trips(op)
        return total + self._tiles_added()

    def _tiles_added(self) -> Floats:
        """Return how often a block waits until a tile that is added to a tensor has left."""
        total = numbers(0, self.columns)
        for op, _ in updates(self.launch):
            total = total + self.block.by_tiles * self._trips(op)
        return total

    def _trips(self, op: TileOp) -> Floats:
        return numbers(op.trips, self.columns)

    def _tensor_s(self) -> Floats:
        total = numbers(0, self.columns)
        for p in self.products:
            rate = self._rate(p)
            total = total + np.where(p.is_tensor, p.flop * self._trips(p.op) / rate, 0.0)
        return total

    def _rate(self, p: Product) -> Floats:
        """Return the FLOP per second that tensor cores of a multiprocessor reach."""
        peaks, k = self.hardware.peak_flop_per_s, self.k
        name = "float8" if p.dtype.startswith("float8") else p.dtype.removeprefix("u")
        peak = peaks.get(name, peaks.get("float16", peaks["float32"])) / self.hardware.cores
        by_warps = k.warp_efficiency if self.target.has_wgmma else k.tensor_efficiency
        found: Floats = peak * np.where(p.is_grouped, k.tensor_efficiency, by_warps)
        return found

    def _fma_s(self) -> Floats:
        total = numbers(0, self.columns)
        peaks = self.hardware.peak_flop_per_s
        for p in self.products:
            wide = p.dtype == "float64"
            peak = peaks.get("float64_fma", peaks["float32"] / 32) if wide else self._lanes_flop()
            rate = peak / self.hardware.cores * self.k.fma_efficiency
            total = total + np.where(p.is_tensor, 0.0, p.flop * self._trips(p.op) / rate)
        return total

    def _lanes_flop(self) -> float:
        peaks = self.hardware.peak_flop_per_s
        return peaks.get("float32_fma", peaks["float32"])

    def _work_s(self, *, in_loops: bool) -> Floats:
        """Return the time of what is neither a product nor a copy: folds, exponentials, sums.

        Operands that threads convert for a product are part of it. Beside no products all of it is
        as in loops.
        """
        lanes = self._lanes_flop() / 2 / self.hardware.cores * self.k.work_efficiency
        special_rate = SPECIAL_PER_CLOCK * self.hardware.clock_hz
        plain = special = numbers(0, self.columns)
        for p in self.products:
            if bool(p.op.loops) == in_loops:
                plain = plain + p.conversions * self._trips(p.op)
        for op in self.launch.ops:
            if (bool(op.loops) or not self.products) != in_loops:
                continue
            if isinstance(op.stmt, Copy) and op.stmt.src.dtype == op.stmt.dst.dtype:
                continue  # moved, not computed
            for work in op.work:
                amount = numbers(work.amount, self.columns) * self._trips(op)
                plain = plain + amount * (work.unit == "elementwise")
                special = special + amount * (work.unit == "special")
        if in_loops and not self.products:
            for op, made, is_told in folds(self.launch, self.columns):
                own = made * FOLD_STEPS * self.k.fold_operations + is_told * self.k.join_operations
                plain = plain + self._trips(op) * self._threads() * own
        return (plain + self.k.special_operations * special) / lanes + special / special_rate

    def _fold_clocks(self) -> Floats:
        """Return how long a block waits for lanes and warps that fold what they hold, in clocks."""
        total = numbers(0, self.columns)
        if self.products:
            return total
        for op, made, is_told in folds(self.launch, self.columns):
            total = total + self._trips(op) * (made > 0) * self.k.fold_clocks
            total = total + self._trips(op) * is_told * self.k.exchange_clocks
        return total

    def _shared_bytes(self) -> Floats:
        """Return the bytes that products read of shared memory, and all else moves in and out."""
        total = numbers(0, self.columns)
        for p in self.products:
            total = total + p.read_bytes * self._trips(p.op)
        for op in self.launch.ops:
            if isinstance(op.stmt, Gemm):
                continue
            for access in (*op.reads, *op.writes):
                if access.buffer.scope == "shared":
                    total = total + numbers(access.tile_bytes, self.columns) * self._trips(op)
        return total

    def _local_bytes(self) -> Floats:
        """Return the bytes that move between threads and local memory, for want of registers."""
        most = self.target.registers_per_thread
        share = np.clip(self.block.registers / most - 1.0, 0.0, 1.0)
        total = numbers(0, self.columns)
        if may_hold(share > 0):
            for op in self.launch.ops:
                for access in (*op.reads, *op.writes):
                    if access.buffer.scope == "fragment" and not isinstance(op.stmt, Gemm):
                        moved = numbers(access.tile_bytes, self.columns) * self._trips(op)
                        total = total + moved * share
        return total

    def _cut_bytes(self) -> Floats:
        """Return what rows of boxes take more of the way from L2 where lines cut them, in bytes.

        Rows whose distance is no multiple of a line's bytes begin anywhere in one. Each piece takes
        the time of a whole line: on an H200 steps of 64 bytes took 1.4 times as long as those of
        128, of rows of 4112 (benchmarks/data/h200, c6).
        """
        total = numbers(0, self.columns)
        if not self._has_boxes():
            return total
        for op in self.launch.ops:
            for access in op.reads:
                if not isinstance(op.stmt, Copy) or access.buffer.scope != "global":
                    continue
                if op.stmt.dst.buffer.scope != "shared" or access.buffer.ndim < 2:
                    continue
                size = access.buffer.dtype.itemsize
                distance = numbers(access.buffer.shape[-1], self.columns) * size
                place = np.gcd(distance.astype(np.int64), LINE_BYTES)
                row = np.minimum(numbers(access.extents[-1], self.columns) * size, LINE_BYTES)
                spent = LINE_BYTES + np.maximum(0.0, row - place)
                moved = numbers(access.tile_bytes, self.columns) * self._trips(op)
                total = total + np.where(place < row, moved * (spent / row - 1.0), 0.0)
        return total

    def _added_bytes(self) -> Floats:
        """Return the bytes of the float32 that a block adds to elements of tensors."""
        total = numbers(0, self.columns)
        for op, atomic in updates(self.launch):
            if atomic.buffer.scope == "global" and str(atomic.buffer.dtype) == "float32":
                size = numbers(op.writes[0].tile_bytes, self.columns)
                total = total + size * self._trips(op)
        return total

    def _steps(self) -> Floats:
        """Return how often a block fetches from memory and goes on."""
        trips = [
            self._trips(op)
            for op in self.launch.ops
            if op.loops and any(a.buffer.scope == "global" for a in op.reads)
        ]
        found: Floats = reduce(np.maximum, [numbers(0, self.columns), *trips])
        return found

    # --- memory -------------------------------------------------------------------------------

    def _memory_s(self, wave: Floats) -> Floats:
        """Return the time that the device's memory needs; ``wave``: blocks that run at a time."""
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
            of_block = numbers(access.tile_bytes, self.columns) * self._trips(op)
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
    queue = found = np.zeros(np.broadcast(blocks, moving, thinking).shape)
    most = int(np.max(np.ceil(blocks), initial=1))
    for count in range(1, most + 1):
        passing = moving * (1.0 + queue)
        took = passing + thinking
        queue = count * passing / took
        found = np.where(blocks > count - 1, took * blocks / count, found)
    return found


def _side_by_side(*times: Floats) -> Floats:
    """Return the time of what overlaps: the longest, and more where several are nearly as long."""
    found: Floats = reduce(np.add, [t**OVERLAP for t in times]) ** (1 / OVERLAP)
    return found
