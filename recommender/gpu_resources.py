"""What a block of a GPU program takes and how products run, as arrays over configs.

Mirrors ``tilecore.inference.gpu`` in closed form: which instruction a product gets, how warps
divide it, which tiles lie in how many stages, and what registers fragments need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recommender.factored import constant, may_hold
from recommender.hardware import HardwareProfile
from recommender.straight_line import Noted, called
from tilecore.amd_target import AmdTarget
from tilecore.gpu_target import GpuTarget
from tilecore.graph import Bindings, evaluate, gemm_extents
from tilecore.graph.graph import Launch
from tilecore.graph.nodes import Loop, TileOp
from tilecore.inference.gpu import quads
from tilecore.inference.gpu.matrix_units import (
    WGMMA_BYTES,
    has_wgmma_types,
    mma_shapes,
    operand_kind,
    sums_dtype,
)
from tilecore.inference.gpu.mfma import mfma_step, mfma_types
from tilecore.inference.gpu.products import WARP, WARPGROUP, WGMMA_COLUMNS, divide_warps
from tilecore.inference.gpu.registers import MANY, TRADED
from tilecore.inference.gpu.shared import panel_of
from tilecore.ir.expr import ExprLike, Load, Var
from tilecore.ir.gemm_shape import accumulator_dtype
from tilecore.ir.nodes import (
    Atomic,
    Buffer,
    Copy,
    For,
    Gemm,
    If,
    Parallel,
    Reduce,
    Seq,
    Store,
)
from tilecore.ir.visitor import walk_expr
from tilecore.passes.persistent import LEAST_STAGES, OPERANDS
from tilecore.passes.persistent import OTHER_REGISTERS as OTHERS_OF_A_THREAD
from tilecore.passes.stage_outputs import SECTOR_BYTES, TOGETHER, in_place, sums_of
from tilecore.target import parse_gpu_target

Columns = Mapping[str, NDArray[np.int64]]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
REGISTER_BYTES = 4
# Registers of a thread beside fragments and operands: addresses, counters, temporaries.
# Source: the median over what benchmarks/gpu_resources.py builds, 2026-11-22.
OTHER_REGISTERS = 22
# The same where registers are short, operands included. Source: of 180 configs with this room left
# whose estimate was near the limit, built on 2026-11-22, 171 spill nothing.
LEAST_REGISTERS = 46
PRODUCER_THREADS = WARPGROUP  # the warpgroup that issues TMA copies
MOST_SUMS = 512  # a longer vector lies along the columns
REGISTER_STEP = 8  # registers of a thread come in eights
BARRIERS_OF_STAGE_BYTES = 16  # two mbarriers: full and empty
TOGETHER_HELD = 4  # float32 of a row in a thread: 16 bytes
FOLDED_BYTES = 4  # of what a thread tells others of a fold across warps
# Vector instructions that bring an 8-bit float to bfloat16. Source: tests/tilecore/rocm/
# test_assembly.py counts those of gfx90a and gfx942; 5.4 to 7.5 on 2026-11-24.
CONVERSION_OPERATIONS = 7
MANY_CONFIGS = 8192  # beyond so many columns are held by combinations of knobs (``factored``)
PREFETCHED = 2  # tiles of each kind on AMD, whose next ones come through registers


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """How a T.gemm runs, per config.

    Attributes:
        flop: of one execution by a block, padded to whole instructions.
        is_tensor: by tensor cores; otherwise by multiply-adds.
        is_grouped: by warpgroups (wgmma), operands in shared memory.
        read_bytes: of shared memory, of one execution.
        operand_registers: of a thread.
        is_busy: every warp has a part of C, and rows of A that it computed stay with it.
        shares_rows: several warps have parts of one row of C.
        dtype: of the operands, as the unit reads them.
        conversions: operations by which threads bring operands to that type, of one execution.
    """

    op: TileOp
    flop: Floats
    is_tensor: Mask
    is_grouped: Mask
    read_bytes: Floats
    operand_registers: Floats
    is_busy: Mask
    shares_rows: Mask
    dtype: str
    conversions: Floats


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


def products(launch: Launch, columns: Columns, target: GpuTarget) -> list[Product]:
    """Return the products of a launch."""
    return [
        _product(op, op.stmt, launch, columns, target)
        for op in launch.ops
        if isinstance(op.stmt, Gemm)
    ]


def block_resources(
    launch: Launch, columns: Columns, target: GpuTarget, found: Sequence[Product]
) -> BlockResources:
    """Return what a block takes; ``found``: its products."""
    threads = _threads(launch, columns)
    stages = _stages(launch, columns, target)
    deepest = reduce(np.maximum, [np.ones_like(threads), *stages.values()])
    beside_tiles = _scratch_bytes(launch, columns, threads, found)
    if target.has_tma:
        all_stages = reduce(np.add, [0 * threads, *stages.values()])
        beside_tiles = beside_tiles + BARRIERS_OF_STAGE_BYTES * all_stages
    leaving, added = list(_outgoing(launch, columns)), list(_added(launch, columns, target))
    shared = _shared_bytes(launch, columns, stages, [*leaving, *added]) + beside_tiles
    by_tiles = np.full(len(shared), bool(added)) & (shared <= target.shared_per_block)
    if added and may_hold(~by_tiles):
        without = _shared_bytes(launch, columns, stages, leaving) + beside_tiles
        shared = np.where(by_tiles, shared, without)
    whole = _all_shared_bytes(launch, columns, stages) + beside_tiles
    stays = _stays(launch, columns, target, stages, threads) & (whole <= target.shared_per_block)
    shared = np.where(stays, whole, shared)
    is_direct, sectors = shared > target.shared_per_block, np.ones_like(shared)
    if may_hold(is_direct):
        direct = _shared_bytes(launch, columns, stages, ()) + beside_tiles
        shared = np.where(is_direct, direct, shared)
        sectors = np.where(is_direct, _sectors(launch, columns), sectors)
    held = _fragment_registers(launch, columns, threads)
    operands = [p.operand_registers for p in found]
    beside = OTHER_REGISTERS + reduce(np.maximum, [0 * threads, *operands])
    registers, least = held + beside, held + np.minimum(beside, LEAST_REGISTERS)
    total = threads + (PRODUCER_THREADS if stages and target.has_tma else 0)
    resident = _resident(threads, total, held, registers, shared, target)
    return BlockResources(
        total, shared, sectors, by_tiles, registers, least, resident, stays, deepest
    )


def numbers(expr: ExprLike, columns: Columns) -> Floats:
    """Return a closed form's value for every config; ``Bindings`` keep it, to be read only."""
    if type(columns) is not Bindings:
        return _column(expr, columns)
    key = id(expr), numbers
    if key not in columns.computed:
        columns.computed[key] = _column(expr, columns)
        columns.held.append(expr)
    found: Floats = columns.computed[key]
    return found


def _column(expr: ExprLike, columns: Columns) -> Floats:
    like: Any = next(iter(columns.values()))
    found: Any = evaluate(expr, columns)
    column: Floats
    if len(like) > MANY_CONFIGS:
        column = (found if found.ndim else constant(found, like)).astype(np.float64)
    elif isinstance(like, Noted):
        noted: Any = found if isinstance(found, Noted) else np.full(1, found)
        column = noted.astype(np.float64)
    else:
        column = np.array(np.broadcast_to(found, (len(like),)), np.float64)
        column.flags.writeable = False
    return column


def _threads(launch: Launch, columns: Columns) -> Floats:
    found = numbers(1, columns)
    for extent in launch.threads:
        found = found * numbers(extent, columns)
    return found


def _product(
    op: TileOp, stmt: Gemm, launch: Launch, columns: Columns, target: GpuTarget
) -> Product:
    m, n, k = (numbers(e, columns) for e in gemm_extents(stmt))
    threads = _threads(launch, columns)
    size = stmt.a.dtype.itemsize
    is_read = [region.buffer.scope == "shared" for region in (stmt.a, stmt.b)]
    grouped = np.zeros(len(m), bool)
    kinds, lanes = _kinds(stmt, target), target.threads_per_warp
    if target.kind == "cuda" and target.has_wgmma and has_wgmma_types(*kinds):
        grouped = (threads % WARPGROUP == 0) & (m % 64 == 0) & (n % 8 == 0)
        grouped &= (k * size % WGMMA_BYTES == 0) & is_read[1]
    shapes, step = _shapes(stmt, target), 1
    warped = np.zeros(len(m), bool)
    for rows_of, columns_of, depth_of in shapes:
        fits = (m % rows_of == 0) & (n % columns_of == 0) & (k % depth_of == 0)
        warped |= (threads % lanes == 0) & fits
        step = max(step, depth_of)
    atom = shapes[0][:2] if shapes else (16, 8)
    rows, cols = _divided(m, n, threads // lanes, stmt, grouped, atom)
    per_instruction = np.ceil(n / cols / WGMMA_COLUMNS)
    by_groups = is_read[0] * m * cols * per_instruction + n * m / 64
    by_warps = is_read[0] * m * cols + is_read[1] * n * rows
    by_threads = np.sqrt(m * n * threads) / 2  # a word that lanes share is read once
    read = k * size * np.where(grouped, by_groups, np.where(warped, by_warps, by_threads))
    is_chained = stmt.a.buffer.scope == "fragment"
    depth = 2 * step * size  # the next step's operands come while this one multiplies
    held = (m / rows + n / cols) * depth / lanes / REGISTER_BYTES
    is_converted = isinstance(target, AmdTarget) and kinds[0] != str(stmt.a.dtype)
    converted = is_converted * warped * k * (m * cols + n * rows)
    has_part = rows * cols * np.where(grouped, WARPGROUP, lanes) >= threads
    return Product(
        op=op, dtype=kinds[0], flop=2 * m * n * k, read_bytes=read,
        is_tensor=grouped | warped, is_grouped=grouped,
        operand_registers=np.where(grouped | ~warped, 8.0, held),
        is_busy=has_part & ((cols == 1) | (not is_chained)),
        shares_rows=(grouped | warped) & (cols > 1),
        conversions=CONVERSION_OPERATIONS * converted,
    )  # fmt: skip


def _kinds(stmt: Gemm, target: GpuTarget) -> tuple[str, str, str]:
    """Return what a unit reads A and B as, and the type of the sums."""
    a, b = str(stmt.a.dtype), str(stmt.b.dtype)
    if isinstance(target, AmdTarget):
        return *mfma_types(a, b, target), str(accumulator_dtype(stmt))
    return operand_kind(a), operand_kind(b), _sums(stmt)


def _shapes(stmt: Gemm, target: GpuTarget) -> list[tuple[int, int, int]]:
    """Return the instructions that whole warps have for a product, the preferred one first."""
    if isinstance(target, AmdTarget):
        step = mfma_step(*_kinds(stmt, target), target)
        return [] if step is None else [(16, 16, step)]
    if target.multiplies_by_quads:
        halves = stmt.a.dtype == stmt.b.dtype == "float16"
        return [(quads.ATOM, quads.ATOM, quads.STEP)] if halves else []
    return list(mma_shapes(*_kinds(stmt, target), target))


def _sums(stmt: Gemm) -> str:
    return sums_dtype(stmt, stmt.c.buffer.scope == "fragment")


def _divided(
    m: Floats, n: Floats, warps: Floats, stmt: Gemm, grouped: Mask, warped: tuple[int, int]
) -> tuple[Floats, Floats]:
    """Return how warps, or warpgroups, are divided over the rows and columns of C."""

    def of_one(rows: float, columns: float, warps: float, is_grouped: bool) -> tuple[int, int]:
        height, width, size, atom, widest = int(rows), int(columns), 1, warped, 8
        if is_grouped:
            # Tiles whose rows run along N are cut between panels only.
            unit = 8 if stmt.transpose_b else panel_of((width,), stmt.b.dtype.itemsize)
            unit = unit if unit and width % unit == 0 else width
            size, atom, widest = WARPGROUP // WARP, (64, unit), WGMMA_COLUMNS
        count = max(1, int(warps) // size)
        return _division(height, width, count, stmt.policy, atom, widest)

    noted: Any = called(of_one, 2, m, n, warps, grouped)
    if noted is not None:
        return noted[0], noted[1]
    distinct, where = _distinct(m, n, warps, grouped)
    made = [of_one(*map(int, row)) for row in distinct]  # type: ignore[arg-type]
    found = np.array(made, dtype=np.float64).reshape(-1, 2)[where]
    return found[:, 0], found[:, 1]


@lru_cache(maxsize=1 << 16)
def _division(
    rows: int, columns: int, warps: int, policy: str, atom: tuple[int, int], widest: int
) -> tuple[int, int]:
    try:
        return divide_warps(rows, columns, warps, policy, atom, widest)
    except ValueError:  # no division: the product is none of warps
        return 1, 1


def _stages(launch: Launch, columns: Columns, target: GpuTarget) -> dict[Buffer, Floats]:
    """Return in how many copies the tiles of pipelined loops lie."""
    found: dict[Buffer, Floats] = {}
    if target.kind == "cuda" and not target.has_cp_async:
        return found
    for op in launch.ops:
        loop = _pipelined(op)
        if loop is None or not isinstance(op.stmt, Copy):
            continue
        source, tile = op.stmt.src.buffer, op.stmt.dst.buffer
        if source.scope == "global" and tile.scope == "shared" and source.dtype == tile.dtype:
            stages = numbers(loop.num_stages, columns)
            if target.kind != "cuda":
                stages = np.where(stages > 1, PREFETCHED, stages)
            found[tile] = np.maximum(1.0, stages)
    return found


def _pipelined(op: TileOp) -> Loop | None:
    return next((loop for loop in op.loops if loop.kind == "pipelined"), None)


def _shared_bytes(
    launch: Launch, columns: Columns, stages: Mapping[Buffer, Floats],
    staged: Sequence[tuple[TileOp, Floats]],
) -> Floats:  # fmt: skip
    """Return the most bytes of shared tiles alive at once.

    ``staged``: sums on their way out that are among them, with their bytes.
    """
    tiles = [t for t in launch.tiles if t.scope == "shared"]
    spans: dict[Buffer, list[int]] = {}
    outgoing: list[tuple[int, Floats]] = []
    leaving = {id(op): size for op, size in staged}
    position, last = -1, None
    for op in launch.ops:
        position += op.outermost is not last
        last = op.outermost
        for access in (*op.reads, *op.writes):
            if access.buffer.root in tiles:
                span = spans.setdefault(access.buffer.root, [position, position])
                span[1] = position
        if id(op) in leaving:
            outgoing.append((position, leaving[id(op)]))
    moments = []
    for moment in range(position + 1):
        alive = numbers(0, columns)
        for tile, (first, end) in spans.items():
            if first <= moment <= end:
                alive = alive + _tile_bytes(tile, columns, stages)
        for when, size in outgoing:
            alive = alive + (when == moment) * size
        moments.append(alive)
    found: Floats = reduce(np.maximum, [numbers(0, columns), *moments])
    return found


def _outgoing(launch: Launch, columns: Columns) -> Iterator[tuple[TileOp, Floats]]:
    """Yield what takes sums to tensors, and the bytes of the tiles that they go through."""
    sums = sums_of(op.stmt for op in launch.ops)
    for op in launch.ops:
        match op.stmt:
            case Copy(src=source) if source.buffer in sums:
                extents = source.extents
            case Parallel() if _stores_sums(op.stmt, sums):
                extents = op.stmt.extents
            case _:
                continue
        target = op.writes[0].buffer
        if target.scope == "global" and len(extents) == 2:
            size = numbers(1, columns) * target.dtype.itemsize
            for extent in extents:
                size = size * numbers(extent, columns)
            yield op, size


def _stores_sums(nest: Parallel, sums: set[Buffer]) -> bool:
    """Return whether a nest stores what it makes of sums, in pieces smaller than sectors."""
    body = nest.body
    while isinstance(body, (If, Seq)):
        inner = (body.then_body,) if isinstance(body, If) else body.stmts
        if len(inner) != 1:
            return False
        (body,) = inner
    if not isinstance(body, Store) or TOGETHER * body.buffer.dtype.itemsize >= SECTOR_BYTES:
        return False
    return any(p.buffer in sums for p in walk_expr(body.value) if isinstance(p, Load))


def _added(launch: Launch, columns: Columns, target: GpuTarget) -> Iterator[tuple[TileOp, Floats]]:
    """Yield what adds sums to whole rows of tensors, and the bytes of the tiles they go through.

    See ``tilecore.passes.stage_updates``.
    """
    if target.kind != "cuda" or not target.has_tma:
        return
    sums = {op.stmt.c.buffer for op in launch.ops if isinstance(op.stmt, Gemm)}
    for op, atomic in updates(launch):
        value, nest = atomic.value, op.stmt
        if atomic.op != "add" or not isinstance(value, Load) or value.buffer not in sums:
            continue
        assert isinstance(nest, Parallel)
        names = {n for n in walk_expr(atomic.indices[-1]) if isinstance(n, Var)}
        if len(nest.loop_vars) == 2 and names <= set(nest.loop_vars):
            size = numbers(1, columns) * value.buffer.dtype.itemsize
            for extent in value.buffer.shape:
                size = size * numbers(extent, columns)
            yield op, size


def updates(launch: Launch) -> Iterator[tuple[TileOp, Atomic]]:
    """Yield the nests that update tensors element by element, as they are written."""
    for op in launch.ops:
        body = op.stmt.body if isinstance(op.stmt, Parallel) else None
        inner = body.stmts if isinstance(body, Seq) else (body,)
        if len(inner) == 1 and isinstance(inner[0], Atomic):
            yield op, inner[0]


def _sectors(launch: Launch, columns: Columns) -> float:
    """Return how many sectors are written for one if threads store the sums that they hold."""
    sizes = [op.writes[0].buffer.dtype.itemsize for op, _ in _outgoing(launch, columns)]
    return max((max(1.0, SECTOR_BYTES / (TOGETHER * size)) for size in sizes), default=1.0)


def _tile_bytes(tile: Buffer, columns: Columns, stages: Mapping[Buffer, Floats]) -> Floats:
    size = numbers(1, columns) * tile.dtype.itemsize
    for extent in tile.shape:
        size = size * numbers(extent, columns)
    return np.ceil(size / 16) * 16 * stages.get(tile, 1.0)


def _all_shared_bytes(launch: Launch, columns: Columns, stages: Mapping[Buffer, Floats]) -> Floats:
    """Return the bytes of all shared tiles: of a block that computes one tile after another."""
    tiles = [t for t in launch.tiles if t.scope == "shared" and t.root is t]
    sizes = [_tile_bytes(t, columns, stages) for t in tiles]
    sizes += [size for _, size in _outgoing(launch, columns)]
    found: Floats = reduce(np.add, [numbers(0, columns), *sizes])
    return found


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
    flying = reduce(np.add, [_tile_bytes(t, columns, stages) for t in stages])
    held = [t for t in launch.tiles if t.scope == "fragment"]
    bytes_held = reduce(np.add, [numbers(0, columns), *[_tile_bytes(t, columns, {}) for t in held]])
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


def _scratch_bytes(
    launch: Launch, columns: Columns, threads: Floats, found: Sequence[Product]
) -> Floats:
    """Return the bytes behind the tiles by which warps tell each other of what they have folded."""
    total = 0 * threads
    sums = {p.op.stmt.c.buffer: p for p in found if isinstance(p.op.stmt, Gemm)}
    for op in launch.ops:
        if not isinstance(op.stmt, Reduce):
            continue
        product = sums.get(op.stmt.src.buffer)
        if product is not None:
            is_told = product.shares_rows
        else:
            is_told = _is_told(op.stmt, columns, threads)
        total = np.maximum(total, is_told * threads * FOLDED_BYTES)
    return total


def folds(launch: Launch, columns: Columns) -> Iterator[tuple[TileOp, Floats, Mask]]:
    """Yield folds of what threads hold, how many a warp makes, and whether warps join theirs."""
    threads = _threads(launch, columns)
    for op in launch.ops:
        if isinstance(op.stmt, Reduce):
            _, rows = _folded(op.stmt, columns)
            made = _is_along_lanes(op.stmt) * np.maximum(1.0, rows * WARP / threads)
            yield op, made, _is_told(op.stmt, columns, threads)


def _is_along_lanes(stmt: Reduce) -> bool:
    return len(stmt.src.extents) - 1 in stmt.axes


def _is_told(stmt: Reduce, columns: Columns, threads: Floats) -> Mask:
    folded, rows = _folded(stmt, columns)
    if not _is_along_lanes(stmt):  # each holds some neighbours of one row
        return TOGETHER_HELD * threads > rows
    found: Mask = (rows * WARP < threads) & (np.minimum(folded, threads) > WARP)
    return found


def _folded(stmt: Reduce, columns: Columns) -> tuple[Floats, Floats]:
    """Return how many elements are folded into one, and into how many."""
    folded = rows = numbers(1, columns)
    for axis, extent in enumerate(stmt.src.extents):
        if axis in stmt.axes:
            folded = folded * numbers(extent, columns)
        else:
            rows = rows * numbers(extent, columns)
    return folded, rows


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


def _distinct(*columns: NDArray[Any]) -> tuple[list[tuple[int, ...]], NDArray[np.int64]]:
    """Return (the different rows of whole numbers, which of them each row is)."""
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        whole = column.astype(np.int64)
        key = key * (int(np.max(whole, initial=0)) + 1) + whole
    _, first, where = np.unique(key, return_index=True, return_inverse=True)
    rows = list(zip(*(column[first].astype(np.int64).tolist() for column in columns), strict=True))
    return rows, where
