"""Analytic time of one block of a GPU program, by what it asks of its multiprocessor.

A block takes the longer of what runs side by side (products, loads that pipelines fetch ahead,
shared memory) plus what does not overlap: filling the pipeline, what warps wait for each other,
what it makes of its sums behind the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from recommender.factored import may_hold
from recommender.gpu.columns import Columns, Floats, Mask, numbers
from recommender.gpu.folds import folds
from recommender.gpu.products import Product, products
from recommender.gpu.resources import block_resources, target_of
from recommender.gpu.shared_memory import updates
from recommender.hardware import HardwareProfile
from tilecore.graph.graph import Launch
from tilecore.graph.nodes import TileOp
from tilecore.inference.gpu.products.choice import WARPGROUP
from tilecore.ir.nodes import Copy, Gemm

SHARED_BYTES_PER_CLOCK = 128  # of a multiprocessor (CUDA C++ Programming Guide, "Shared Memory")
SPECIAL_PER_CLOCK = 16  # exp2, rsqrt, ...: the same, "Arithmetic Instructions"
FOLD_STEPS = 5  # of the 32 values of a warp
LINE_BYTES = 128  # of a cache, and the most of a row that a box brings at a time
ADDED_BYTES = 4  # of a float32
OVERLAP = 8.0  # of the norm that joins times which overlap; infinity would be their maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConstants:
    """Properties of the generated code and of devices.

    Source: published microbenchmarks, and what benchmarks/calibrate_gpu_model.py fits to what was
    measured on an H200 (benchmarks/data/h200, 2026-11-26 and 27). Of operators (c7): ways of stores
    from products of one step (batched_gemm), exchanges from those of attention_backward and
    linear_attention, folds and the pace of blocks from reductions.
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
    step_clocks: float = 60.0  # barriers and addresses of one step of a loop
    issue_clocks: float = 110.0  # of a warpgroup in a step, which no other block can use meanwhile
    exchange_clocks: float = 150.0  # until warps have what others of their block computed
    fold_operations: float = 4.0  # of a lane, by which it folds its value and another lane's
    join_operations: float = 60.0  # of a lane, by which warps join what each has folded
    fold_clocks: float = 150.0  # until the lanes of a warp have folded what they hold
    block_clocks: float = 300.0  # starting a block, and its end
    block_interval_s: float = 0.62e-9  # from the start of a block to that of the next, anywhere
    added: float = 1.2  # float32 that a multiprocessor adds to tensors in a clock, one by one
    added_by_tiles: float = 4.4  # the same by whole tiles: at least
    memory_efficiency: float = 0.87
    l2_share: float = 0.7  # of its bytes that tensors read again may fill


DEFAULT_GPU_CONSTANTS = GpuConstants()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTimes:
    """Seconds of a block on a multiprocessor that it has to itself (arrays).

    Attributes:
        tensor, fma, work, shared, load, store, added: what units alone need.
        waiting: for what it loads.
        steps: how often it loads, a number.
        each_step: barriers and addresses of all its steps.
        begin: from its start to its first operation, and its end.
        once: the same, its first tile's way from memory, and the end of its sums' way back.
        own: the rest of its time, but its stores.
        most: what blocks that share the multiprocessor need of it, each.
        thinking: its time but what it moves, where no load runs ahead.
        is_ahead: whether loads do.
    """

    tensor: Floats
    fma: Floats
    work: Floats
    shared: Floats
    load: Floats
    store: Floats
    added: Floats
    waiting: Floats
    steps: Floats
    each_step: Floats
    begin: float
    once: float
    own: Floats
    most: Floats
    thinking: Floats
    is_ahead: Mask


class BlockModel:
    """The blocks of a launch."""

    def __init__(
        self, launch: Launch, columns: Columns, hardware: HardwareProfile, constants: GpuConstants
    ) -> None:
        self.launch, self.columns, self.hardware, self.k = launch, columns, hardware, constants
        self.target = target_of(hardware)
        self.products = products(launch, columns, self.target)
        self.block = block_resources(launch, columns, self.target, self.products)
        self.threads = self._threads()
        self.tiles_added = self._tiles_added()
        self.exchanges = self._exchanges()

    def times(self) -> BlockTimes:
        """Return where the time of a block goes."""
        k, clock_hz = self.k, self.hardware.clock_hz
        tensor, fma = self._tensor_s(), self._fma_s()
        looped, behind = (self._work_s(in_loops=is_looped) for is_looped in (True, False))
        computed, overlap = fma + looped, self._overlap()
        shared = self._shared_bytes() / (SHARED_BYTES_PER_CLOCK * clock_hz)
        load, store, added = self._moved_s()
        steps = self._steps()
        each_step, begin = steps * k.step_clocks / clock_hz, k.block_clocks / clock_hz
        # A loop of one product of warpgroups keeps the tiles of the product that runs.
        ahead = self.block.stages - 1 - self._is_kept_running()
        latency = k.box_latency_s if self._has_boxes() else k.memory_latency_s
        waiting = (steps * latency + load) / np.maximum(1.0, ahead) + latency
        # A block of fewer warps than there are schedulers leaves some of them idle; ordinary
        # operations wait for each other, so that a warp gives its scheduler half of what it could.
        filling = WARPGROUP if self.products else 2 * WARPGROUP
        share = np.minimum(1.0, self.threads / filling)
        hidden = np.minimum(tensor, computed) * overlap
        busy, moved = (tensor + computed - hidden) / share, shared / share
        inner = np.where(
            ahead >= 1, side_by_side(busy, moved, load, waiting, added),
            side_by_side(busy, moved, added) + side_by_side(load, waiting),
        )  # fmt: skip
        told = self.exchanges * k.exchange_clocks / clock_hz
        told = told + self.tiles_added * k.store_latency_s
        issuing = steps * k.issue_clocks * self.threads / WARPGROUP / clock_hz
        bare = np.minimum(tensor, computed + behind) * (1 - np.maximum(overlap, k.block_overlap))
        # Between products of different warpgroups their unit runs dry.
        dry = np.zeros_like(each_step)
        for p in self.products:
            dry = np.where(p.is_grouped, each_step, dry)
        both = np.maximum(tensor + dry, computed + behind + issuing) + bare
        return BlockTimes(
            tensor=tensor, fma=fma, work=looped + behind, shared=shared, load=load, store=store,
            added=added, waiting=waiting, steps=steps, each_step=each_step, begin=begin,
            once=begin + k.memory_latency_s - latency + k.store_latency_s,
            own=inner + behind / share + each_step + told,
            most=side_by_side(both, shared + dry, load + store, added),
            thinking=side_by_side(busy, added) + waiting + begin + each_step + self._folding_s(),
            is_ahead=ahead >= 1,
        )  # fmt: skip

    def _moved_s(self) -> tuple[Floats, Floats, Floats]:
        """Return the time of what a block loads, stores and adds to tensors."""
        k, hardware = self.k, self.hardware
        updated = self._added_bytes()  # which the graph has among what is read and written
        loaded = numbers(self.launch.block_bytes(writes=False), self.columns) - updated
        stored = numbers(self.launch.block_bytes(writes=True), self.columns) - updated
        per_core = hardware.l2_bandwidth_bytes_per_s / hardware.cores
        rate = np.where(self.block.by_tiles, k.added_by_tiles, k.added) * hardware.clock_hz
        return (
            (loaded + self._cut_bytes()) / per_core,
            (stored * self.block.sectors + self._local_bytes()) / per_core,
            updated / ADDED_BYTES / rate,
        )

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
        groups = self.threads / WARPGROUP
        is_grouped = reduce(np.logical_and, grouped)
        is_free = (groups > 1) & (self.exchanges == 0)  # to take turns
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
        return total + self.tiles_added

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
                plain = plain + self._trips(op) * self.threads * own
        return (plain + self.k.special_operations * special) / lanes + special / special_rate

    def _folding_s(self) -> Floats:
        """Return how long a block waits for lanes and warps that fold what they hold."""
        total = numbers(0, self.columns)
        if self.products:
            return total
        for op, made, is_told in folds(self.launch, self.columns):
            total = total + self._trips(op) * (made > 0) * self.k.fold_clocks
            total = total + self._trips(op) * is_told * self.k.exchange_clocks
        return total / self.hardware.clock_hz

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


def side_by_side(*times: Floats) -> Floats:
    """Return the time of what overlaps: the longest, and more where several are nearly as long."""
    found: Floats = reduce(np.add, [t**OVERLAP for t in times]) ** (1 / OVERLAP)
    return found
