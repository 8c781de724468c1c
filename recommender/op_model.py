"""Analytic time of a CPU program as the sum of its tile statements: anything but one lone product.

Every statement runs ``blocks * trips`` times; each run costs its arithmetic, the bytes of the tiles
it touches, and a constant. What all blocks read and write of tensors goes through memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from recommender.cpu.choices import Columns
from recommender.hardware import HardwareProfile
from tilecore.graph import TileGraph, evaluate
from tilecore.graph.graph import Launch
from tilecore.graph.nodes import Access, TileOp
from tilecore.inference.cpu.dots import DOTS
from tilecore.inference.cpu.in_place import is_float_copy
from tilecore.ir.nodes import Buffer, Copy, Reduce


@dataclass(frozen=True, slots=True, kw_only=True)
class OpConstants:
    """Properties of the generated code and of caches.

    Source: set by hand to three machines together, a Xeon with AMX, a Zen 3 and a Zen 4
    (benchmarks/results/op_spaces_2026-11-22.json, op_spaces_zen3_2026-11-23.json,
    op_spaces_zen4_2026-11-24.json), those of rows to the Zen 4 alone. Over 32 workloads of the
    library there, one thread, the model's choice reaches 0.964 of the fastest config measured; over
    the 23 that are not rows 0.955 on the Xeon and 0.949 on the Zen 3, all three seen. What to
    expect of a machine that was not, and why fused statements are counted one by one:
    op_model_2026-11-24.md there, benchmarks/calibrate_op_model.py.
    """

    product_efficiency: float = 0.7  # of the peak, tiles in the caches
    tile_efficiency: float = 0.35  # the same on tiles of AMX
    elementwise_efficiency: float = 0.7  # of one operation per lane and FMA slot
    special_operations: float = 12.0  # elementwise ones that exp and its like take
    l1_bytes_per_slot: float = 64.0  # of tiles, in FMA slots of a vector
    l2_bytes_per_slot: float = 40.0  # of blocks whose tiles exceed L1
    row_l2_bytes_per_slot: float = 20.0  # the same without products, where nothing is in L1
    row_l2_doublings: float = 4.0  # of L1, until nothing is: a row too many does not push out all
    far_factor: float = 12.0  # rate of blocks whose tiles exceed half of L2, relative to memory,
    far_doublings: float = 2.0  # of twice L2, until that of memory is left
    product_run_slots: float = 200.0  # starting a product: panels, edges, configuration of tiles
    run_slots: float = 4.0  # starting another statement, mostly while the one before ends
    block_slots: float = 150.0
    row_block_slots: float = 20.0  # the same without products: tiles are on the stack, few or none
    row_slots: float = 7.0  # closing the fold of a row
    again_factor: float = 3.0  # rate of tensors read again, relative to memory
    piece_s: float = 50e-9  # a row of a block that is narrower than its tensor: a stream begins


DEFAULT_OP_CONSTANTS = OpConstants()
HIDDEN = 0.5
HELD = 0.5  # of the registers: a smaller tile that a statement updates lies in them
JOINED = ("parallel", "copy", "fill")  # launches of these alone: their blocks become rows
ROWS_IN_TURN, SHORT_BYTES = 4, 1024  # of which HardwareProfile.turns_gain tells; of pieces
LEAST_GAIN = 1.1  # of reading in turn: less may be what else the machine did
NEAR = 0.25  # of L2: smaller tensors are read again from there, as their tiles are counted


@dataclass(frozen=True, slots=True)
class OpTerms:
    """Seconds of one thread that runs the whole program alone, by cause (arrays).

    Attributes:
        busiest: share of all this that the busiest of the cores runs.
    """

    products: np.ndarray
    work: np.ndarray
    tiles: np.ndarray
    runs: np.ndarray
    memory: np.ndarray
    busiest: np.ndarray

    @property
    def busy_s(self) -> np.ndarray:
        """Seconds that the core itself takes."""
        found: np.ndarray = self.products + self.work + self.tiles + self.runs
        return found

    @property
    def shares(self) -> dict[str, np.ndarray]:
        """What of each term counts: half of the shorter of core and memory is hidden."""
        core = np.where(self.busy_s >= self.memory, 1.0, HIDDEN)
        names = ("products", "work", "tiles", "runs")
        return {**dict.fromkeys(names, core), "memory": 1.0 + HIDDEN - core}

    @property
    def time_s(self) -> np.ndarray:
        """Seconds of all terms together."""
        shares = self.shares
        found: np.ndarray = self.busy_s * shares["work"] + self.memory * shares["memory"]
        return found


def op_terms(
    graph: TileGraph,
    columns: Columns,
    hardware: HardwareProfile,
    cores: int,
    constants: OpConstants = DEFAULT_OP_CONSTANTS,
) -> OpTerms:
    """Return where the time of one core goes for every config in ``columns``."""
    count = len(next(iter(columns.values())))
    zero = np.zeros(count)
    slot_s = _slot_s(hardware)
    products, work, tiles, runs, longest, before = zero, zero, zero, zero, zero, zero
    for launch in graph.launches:
        blocks = _column(evaluate(launch.blocks, columns), count)
        start = constants.row_block_slots if _is_of_rows(launch) else constants.block_slots
        runs = runs + blocks * start * slot_s
        left_out = [op for op in launch.ops if _is_left_out(op, launch)]
        rate = _tile_rate(launch, left_out, columns, hardware, constants, count)
        for op in launch.ops:
            if op in left_out:
                continue
            times = blocks * _column(evaluate(op.trips, columns), count)
            products = products + times * _product_s(op, columns, hardware, constants, count)
            work = work + times * _work_s(op, columns, hardware, constants, count)
            tiles = tiles + times * _bytes(op, columns, hardware, count) / rate
            runs = runs + times * _run_slots(op, columns, constants, count) * slot_s
        busy = products + work + tiles + runs
        longest, before = longest + (busy - before) * _largest_share(blocks, cores), busy
    memory = _memory_s(graph, columns, hardware, cores, constants, count)
    return OpTerms(products, work, tiles, runs, memory, longest / before)


def _largest_share(blocks: np.ndarray, cores: int) -> np.ndarray:
    """Return the share of all blocks that the busiest core runs (static contiguous chunks)."""
    some = np.maximum(blocks, 1.0)
    share: np.ndarray = np.ceil(some / cores) / some
    return share


def _is_of_rows(launch: Launch) -> bool:
    return all(op.kind != "gemm" for op in launch.ops)


def _is_left_out(op: TileOp, launch: Launch) -> bool:
    """Return whether a copy is not made: what reads it reads the tensor.

    Where its rows lie is not asked: an open size is no number yet.
    """
    if not isinstance(op.stmt, Copy) or op.stmt.src.buffer.scope != "global":
        return False
    tile = op.stmt.dst.buffer
    readers = (o for o in launch.ops if any(a.buffer is tile for a in o.reads))
    kinds = {o.kind for o in readers if not _is_copied_out(o)}
    return tile.scope != "global" and is_float_copy(op.stmt) and kinds <= {"parallel", "reduce"}


def _is_copied_out(op: TileOp) -> bool:
    return op.kind == "copy" and all(a.buffer.scope == "global" for a in op.writes)


def _slot_s(hardware: HardwareProfile) -> float:
    """Return the seconds of one float32 vector FMA."""
    return 2.0 * (hardware.vector_bytes // 4) / hardware.peak_flop_per_s.get("float32", 32e9)


def _column(values: np.ndarray, count: int) -> np.ndarray:
    return np.broadcast_to(values, (count,)).astype(np.float64)


def _product_s(
    op: TileOp, columns: Columns, hardware: HardwareProfile, c: OpConstants, count: int
) -> np.ndarray:
    found = np.zeros(count)
    for w in op.work:
        if w.unit == "fma":
            rate = _product_rate(str(w.dtype), hardware, c)
            found = found + _column(evaluate(w.amount, columns), count) / rate
    return found


def _product_rate(dtype: str, hardware: HardwareProfile, c: OpConstants) -> float:
    """Return the operations per second of products of a type."""
    vector = hardware.peak_flop_per_s.get("float32", 32e9) * c.product_efficiency
    for dot in DOTS:
        if dtype in dot.operands and not dot.obstacle(hardware.features, hardware.vector_bytes):
            if not dot.is_tiled:
                return vector * dot.group
            if dtype in hardware.peak_flop_per_s:
                return hardware.peak_flop_per_s[dtype] * c.tile_efficiency
    return vector


def _work_s(
    op: TileOp, columns: Columns, hardware: HardwareProfile, c: OpConstants, count: int
) -> np.ndarray:
    operations = np.zeros(count)
    for w in op.work:
        if w.unit != "fma":
            each = c.special_operations if w.unit == "special" else 1.0
            operations = operations + each * _column(evaluate(w.amount, columns), count)
    rate = hardware.peak_flop_per_s.get("float32", 32e9) / 2 * c.elementwise_efficiency
    return operations / rate


def _bytes(op: TileOp, columns: Columns, hardware: HardwareProfile, count: int) -> np.ndarray:
    """Return the bytes that a statement loads and stores; what registers hold stays in them."""
    updated = {a.buffer for a in op.reads} & {a.buffer for a in op.writes}
    most = HELD * hardware.vector_registers * hardware.vector_bytes
    found = np.zeros(count)
    for access in (*op.reads, *op.writes):
        size = _column(evaluate(access.tile_bytes, columns), count)
        if access.buffer in updated and access.buffer.scope != "global":
            size = np.where(size <= most, 0.0, size)
        found = found + size
    return found


def _tile_rate(
    launch: Launch, left_out: Sequence[TileOp], columns: Columns, hardware: HardwareProfile,
    c: OpConstants, count: int,
) -> np.ndarray:  # fmt: skip
    """Return the bytes per second that tiles come in with, by the cache that holds them.

    Beyond L2 cores differ in what they get, as they do in what they get from memory.
    """
    slot_s = _slot_s(hardware)
    held = _total((evaluate(size, columns) for size in launch.live_bytes.values()), count)
    for op in left_out:  # what it would copy, and what is fetched for the next block
        held = held + 2 * _total((evaluate(a.tile_bytes, columns) for a in op.reads), count)
    l1 = c.l1_bytes_per_slot / slot_s
    l2 = (c.row_l2_bytes_per_slot if _is_of_rows(launch) else c.l2_bytes_per_slot) / slot_s
    near = min(l2, c.far_factor * hardware.core_bandwidth_bytes_per_s)
    levels = [held <= hardware.l1d_bytes, held <= hardware.l2_bytes / 2]
    spilled = np.log2(np.maximum(held / (2 * hardware.l2_bytes), 1.0)) / c.far_doublings
    slow = 1.0 / hardware.core_bandwidth_bytes_per_s
    far = 1.0 / (1.0 / near + np.minimum(spilled, 1.0) * (slow - 1.0 / near))
    if not _is_of_rows(launch):
        return np.where(levels[0], l1, np.where(levels[1], l2, far))
    beyond = np.log2(np.maximum(held / hardware.l1d_bytes, 1.0)) / c.row_l2_doublings
    between = 1.0 / (1.0 / l1 + np.minimum(beyond, 1.0) * (1.0 / l2 - 1.0 / l1))
    return np.where(levels[1], between, far)


def _memory_s(
    graph: TileGraph, columns: Columns, hardware: HardwareProfile, cores: int, c: OpConstants,
    count: int,
) -> np.ndarray:  # fmt: skip
    """Return the seconds that tensors take: from memory once, from a cache when read again."""
    bandwidth = min(hardware.core_bandwidth_bytes_per_s, hardware.bandwidth_bytes_per_s / cores)
    sizes: dict[Buffer, np.ndarray] = {}
    moved: dict[Buffer, np.ndarray] = {}
    pieces: dict[Buffer, np.ndarray] = {}
    gains: dict[Buffer, np.ndarray] = {}
    zero, one = np.zeros(count), np.ones(count)
    for launch in graph.launches:
        is_joined = all(op.kind in JOINED for op in launch.ops)
        is_by_rows = not is_joined and all(map(_runs_along_rows, launch.ops))
        for writes in (False, True):
            for op, access in launch.accesses(writes=writes):
                size = _column(evaluate(access.footprint_bytes, columns), count)
                times = _column(evaluate(launch.repeats(op, access), columns), count)
                tensor = access.buffer
                sizes[tensor] = np.maximum(sizes.get(tensor, 0.0), size)
                moved[tensor] = moved.get(tensor, 0.0) + size * times
                in_turn = is_by_rows and not writes
                gain = _gain(access, columns, hardware, count) if in_turn else one
                begun = zero if is_joined else _pieces(access, size, columns, count)
                begun = np.where(gain > 1.0, 0.0, begun)
                gains[tensor] = np.maximum(gains.get(tensor, 1.0), gain)
                pieces[tensor] = np.maximum(pieces.get(tensor, 0.0), begun)
    once = {tensor: np.minimum(size, moved[tensor]) for tensor, size in sizes.items()}
    again = (
        np.where(size > NEAR * hardware.l2_bytes, moved[tensor] - once[tensor], 0.0)
        for tensor, size in sizes.items()
    )
    streams = (np.where(size > hardware.l2_bytes, pieces[t], 0.0) for t, size in sizes.items())
    arriving = (size / gains[tensor] for tensor, size in once.items())
    found: np.ndarray = _total(arriving, count) / bandwidth
    found = found + _total(streams, count) * c.piece_s
    return found + _total(again, count) / (bandwidth * c.again_factor)


def _pieces(access: Access, size: np.ndarray, columns: Columns, count: int) -> np.ndarray:
    """Return how many rows of blocks a tensor of ``size`` bytes is read by, 0 where they join.

    Rows join where a block has one, or where it is as wide as the tensor.
    """
    rows, row_bytes = _rows(access, columns, count)
    return np.where(rows > 1, size / row_bytes, 0.0)


def _runs_along_rows(op: TileOp) -> bool:
    """Return whether a statement goes through what it reads row by row."""
    if isinstance(op.stmt, Reduce):
        return len(op.stmt.src.extents) - 1 in op.stmt.axes
    return op.kind in JOINED


def _gain(
    access: Access, columns: Columns, hardware: HardwareProfile, count: int
) -> np.ndarray:  # fmt: skip
    """Return how much faster memory answers who reads a few rows in turn, by short pieces."""
    rows, row_bytes = _rows(access, columns, count)
    is_short = (rows > 1) & (row_bytes <= SHORT_BYTES)
    full = hardware.turns_gain if hardware.turns_gain >= LEAST_GAIN else 1.0
    half = np.sqrt(full)
    gain = np.where((rows <= ROWS_IN_TURN) & (row_bytes <= SHORT_BYTES / 2), full, half)
    found: np.ndarray = np.where(is_short & (rows <= 4 * ROWS_IN_TURN), gain, 1.0)
    return found


def _rows(access: Access, columns: Columns, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a block's part of a tensor, 1 where they join, and the bytes of each."""
    if not access.extents:
        return np.ones(count), np.ones(count)
    width = _column(evaluate(access.extents[-1], columns), count)
    whole = _column(evaluate(access.buffer.shape[-1], columns), count)
    row_bytes = width * access.buffer.dtype.itemsize
    rows = _column(evaluate(access.tile_bytes, columns), count) / row_bytes
    return np.where(width < whole, rows, 1.0), row_bytes


def _total(values: Iterable[np.ndarray], count: int) -> np.ndarray:
    return sum((_column(v, count) for v in values), np.zeros(count))


def _run_slots(op: TileOp, columns: Columns, c: OpConstants, count: int) -> np.ndarray:
    if op.kind == "gemm":
        return np.full(count, c.product_run_slots)
    slots = np.full(count, c.run_slots)
    if op.kind == "reduce":
        rows = evaluate(op.writes[0].tile_bytes, columns) / op.writes[0].buffer.dtype.itemsize
        slots = slots + c.row_slots * _column(rows, count)
    return slots
