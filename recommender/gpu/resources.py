"""What a block of a GPU program takes, as arrays over configs.

Mirrors ``tilecore.inference.gpu`` in closed form: shared memory, what registers fragments need, and
how many blocks a multiprocessor holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from recommender.factored import may_hold
from recommender.gpu.columns import Columns, Floats, Mask, block_threads, numbers
from recommender.gpu.products import REGISTER_BYTES, Product
from recommender.gpu.shared_memory import (
    added_tiles,
    all_shared_bytes,
    operands_in_memory,
    outgoing,
    scratch_bytes,
    sectors_written,
    shared_bytes,
    stages_of,
    tile_bytes,
    vectors_in_memory,
)
from recommender.gpu.tensor_memory import in_tensor_memory
from recommender.hardware import HardwareProfile
from tilecore.gpu_target import GpuTarget
from tilecore.graph.graph import Launch
from tilecore.graph.nodes import TileOp
from tilecore.inference.gpu.products.choice import WARP, WARPGROUP
from tilecore.inference.gpu.products.registers import MANY, TRADED
from tilecore.ir.expr import Var
from tilecore.ir.nodes import Atomic, Buffer, For, Gemm, Parallel
from tilecore.passes.persistent import LEAST_STAGES, OPERANDS
from tilecore.passes.persistent import OTHER_REGISTERS as OTHERS_OF_A_THREAD
from tilecore.passes.stage_outputs import in_place
from tilecore.target import parse_gpu_target

# Registers of a thread beside fragments and operands: addresses, counters, temporaries.
# Source: the median over programs built on 2026-11-22.
OTHER_REGISTERS = 22
# The same where registers are short, operands included. Source: of 180 configs with this room left
# whose estimate was near the limit, built on 2026-11-22, 171 spill nothing.
LEAST_REGISTERS = 46
PRODUCER_THREADS = WARPGROUP  # the warpgroup that issues TMA copies
MOST_SUMS = 512  # a longer vector lies along the columns
REGISTER_STEP = 8  # registers of a thread come in eights
BARRIERS_OF_STAGE_BYTES = 16  # two mbarriers: full and empty


@dataclass(frozen=True, slots=True)
class BlockResources:
    """What one block of a launch takes, per config.

    Attributes:
        threads: of a block, with a warpgroup that only copies.
        shared_bytes: of tiles, by liveness, stages counted.
        sectors: for each sector of memory that sums fill, how many are written: more than one
            where the shared tile through which whole rows go out has no room.
        by_tiles: whether sums are added to tensors as whole shared tiles.
        registers: of a thread, estimated.
        least_registers: of a thread whose operands come as late as they can.
        resident: blocks that a multiprocessor holds at a time; 0: none fits.
        stays: whether a block computes one tile after another, and loads the next meanwhile.
        stages: of the deepest pipelined loop.
    """

    threads: Floats
    shared_bytes: Floats
    sectors: Floats
    by_tiles: Mask
    registers: Floats
    least_registers: Floats
    resident: Floats
    stays: Mask
    stages: Floats


def target_of(hardware: HardwareProfile) -> GpuTarget:
    """Return the limits of a GPU.

    Raises:
        UnknownTarget: the profile names no target (TC304).
    """
    return parse_gpu_target(hardware.target or hardware.arch)


def block_resources(
    launch: Launch, columns: Columns, target: GpuTarget, found: Sequence[Product]
) -> BlockResources:
    """Return what a block takes; ``found``: its products."""
    threads = block_threads(launch, columns)
    stages = stages_of(launch, columns, target)
    deepest = reduce(np.maximum, [np.ones_like(threads), *stages.values()])
    tensor = in_tensor_memory(launch, columns, target, found)
    beside_tiles = scratch_bytes(launch, columns, target, found, tensor)
    if target.has_tma:
        all_stages = reduce(np.add, [0 * threads, *stages.values()])
        beside_tiles = beside_tiles + BARRIERS_OF_STAGE_BYTES * all_stages
    leaving, added = list(outgoing(launch, columns)), list(added_tiles(launch, columns, target))
    kept = operands_in_memory(launch, columns, target, found, tensor)
    kept |= vectors_in_memory(launch, found, tensor, kept)
    shared = shared_bytes(launch, columns, stages, kept, [*leaving, *added]) + beside_tiles
    by_tiles = np.full(len(shared), bool(added)) & (shared <= target.shared_per_block)
    if added and may_hold(~by_tiles):
        without = shared_bytes(launch, columns, stages, kept, leaving) + beside_tiles
        shared = np.where(by_tiles, shared, without)
    whole = all_shared_bytes(launch, columns, stages) + beside_tiles
    stays = _stays(launch, columns, target, stages, threads) & (whole <= target.shared_per_block)
    shared = np.where(stays, whole, shared)
    is_direct, sectors = shared > target.shared_per_block, np.ones_like(shared)
    if may_hold(is_direct):
        direct = shared_bytes(launch, columns, stages, kept, ()) + beside_tiles
        shared = np.where(is_direct, direct, shared)
        sectors = np.where(is_direct, sectors_written(launch, columns), sectors)
    held = _fragment_registers(launch, columns, threads)
    operands = [p.operand_registers for p in found]
    beside = OTHER_REGISTERS + reduce(np.maximum, [0 * threads, *operands])
    registers, least = held + beside, held + np.minimum(beside, LEAST_REGISTERS)
    total = threads + (PRODUCER_THREADS if stages and target.has_tma else 0)
    resident = _resident(threads, total, held, registers, shared, target)
    return BlockResources(
        total, shared, sectors, by_tiles, registers, least, resident, stays, deepest
    )


def _stays(
    launch: Launch, columns: Columns, target: GpuTarget, stages: Mapping[Buffer, Floats],
    threads: Floats,
) -> NDArray[np.bool_]:  # fmt: skip
    """Return where blocks stay for further tiles (``tilecore.passes.persistent``)."""
    never = np.zeros(len(threads), dtype=bool)
    loops = {loop.var: loop for op in launch.ops for loop in op.loops}
    outputs = [a for op in launch.ops for a in op.writes if a.buffer.scope == "global"]
    gemms = [op for op in launch.ops if isinstance(op.stmt, Gemm)]
    if target.kind != "cuda" or not target.has_wgmma or len(loops) != 1 or len(outputs) != 1:
        return never
    (loop,) = loops.values()
    if loop.kind != "pipelined" or loop.varies or not gemms or len(stages) != OPERANDS:
        return never
    if not all(op.loops for op in gemms) or any(isinstance(op.stmt, Atomic) for op in launch.ops):
        return never
    if not all(isinstance(op.outermost, For) for op in gemms):
        return never  # they stand under a condition
    flying = reduce(np.add, [tile_bytes(t, columns, stages) for t in stages])
    held = [t for t in launch.tiles if t.scope == "fragment"]
    bytes_held = reduce(np.add, [numbers(0, columns), *[tile_bytes(t, columns, {}) for t in held]])
    by_thread = np.floor(bytes_held / (REGISTER_BYTES * threads)) + OTHERS_OF_A_THREAD
    is_full = (2 * flying > target.shared_per_multiprocessor) | (
        2 * threads * by_thread > target.registers_per_multiprocessor
    )
    found: NDArray[np.bool_] = (
        is_full
        & (numbers(loop.num_stages, columns) >= LEAST_STAGES)
        & (numbers(launch.blocks, columns) > target.multiprocessors)
    )
    return found


def _fragment_registers(launch: Launch, columns: Columns, threads: Floats) -> Floats:
    """Return the most registers of a thread that fragments alive at once take."""
    sizes: dict[Buffer, Floats] = {}
    for tile in launch.tiles:
        itemsize = max(tile.dtype.itemsize, 2)
        size = numbers(1, columns) * itemsize / REGISTER_BYTES
        for extent in tile.shape:
            size = size * numbers(extent, columns)
        if tile.scope == "fragment":
            # Sums over rows lie once in each of the four lanes that share a row.
            is_sum = (tile.ndim == 1) & (size * REGISTER_BYTES / itemsize <= MOST_SUMS)
            lanes = np.where(is_sum, np.minimum(threads, 8 * threads / WARP), threads)
            sizes[tile] = np.maximum(size / lanes, 1.0)
        elif tile.scope == "local":
            sizes[tile] = size
    spans = _register_spans(launch, sizes)
    for op in launch.ops:
        made, taken = in_place(op.stmt) if isinstance(op.stmt, Parallel) else (set(), set())
        if any(t in spans and spans[t].stop == op.index + 1 for t in taken - made):
            begins = {t for t in made & spans.keys() if spans[t].start == op.index}
            spans |= {t: range(op.index + 1, max(spans[t].stop, op.index + 2)) for t in begins}
    moments = {frozenset(t for t in spans if n in spans[t]) for n in range(len(launch.ops))}
    zero = numbers(0, columns)
    found: Floats = reduce(np.maximum, [zero, *(sum((sizes[t] for t in m), zero) for m in moments)])
    return found


def _register_spans(launch: Launch, tiles: Collection[Buffer]) -> dict[Buffer, range]:
    """Return between which ops a tile holds something; a tile from outside lasts a whole loop.

    Beside no products a compiler loads what it needs as late as it can, and hands on to the next op
    what only that needs.
    """
    users: dict[Buffer, list[TileOp]] = {}
    loops: dict[Var, list[int]] = {}
    multiplies = any(isinstance(op.stmt, Gemm) for op in launch.ops)
    for op in launch.ops:
        for loop in op.loops:
            loops.setdefault(loop.var, []).append(op.index)
        for buffer in {a.buffer.root for a in (*op.reads, *op.writes)} & set(tiles):
            users.setdefault(buffer, []).append(op)
    found = {}
    for tile, ops in users.items():
        places = [op.index for op in ops]
        around = [frozenset(loop.var for loop in op.loops) for op in ops]
        outer = frozenset[Var]().union(*around) - around[0].intersection(*around)
        for var in outer:
            places += loops[var]
        if multiplies or outer:
            found[tile] = range(min(places), max(places) + 1)
            continue
        is_loaded = any(a.buffer.scope == "global" for a in ops[0].reads)
        first = places[1] if is_loaded and len(places) > 1 else places[0]
        found[tile] = range(first, places[-1] if places[-1] > first + 1 else first)
    return found


def _resident(
    threads: Floats, total: Floats, held: Floats, registers: Floats, shared: Floats,
    target: GpuTarget,
) -> Floats:  # fmt: skip
    """Return how many blocks a multiprocessor holds."""
    # Warps that only copy are launched with as many as those that compute, unless these take over
    # some of theirs. Nothing was measured of sm_100, whose sums lie in tensor memory.
    kept = np.minimum(registers, target.registers_per_thread)
    mean = kept + 0.0
    for count, (_, left) in TRADED.items():
        taken = (threads == count) & (total > threads) & (held >= MANY)
        taken |= (total > threads) & target.has_tcgen05
        shared_out = (kept * threads + left * (total - threads)) / np.maximum(total, 1)
        mean = np.where(taken, shared_out, mean)
    rounded = np.ceil(mean / REGISTER_STEP) * REGISTER_STEP
    whole = (x.astype(np.int64) for x in (total, rounded, shared))
    blocks: Floats = target.resident(*whole).astype(np.float64)
    return blocks
