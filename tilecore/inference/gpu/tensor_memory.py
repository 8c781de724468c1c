"""Tensor memory (sm_100): which tiles lie in it, and which products are summed up there.

Tensor memory has 128 lanes of 512 columns of 32 bits. A tile of 128 rows has row ``m`` in lane
``m``; 128 further rows are further columns; one of 64 rows has 16 rows in each quarter of the
lanes. A warp reaches the quarter that its number within its warpgroup names, so that warpgroups
share out the columns. Source: PTX ISA 9.0, section 9.7.16 (tcgen05, data path layouts D and F).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.distribution import Distribution, by_slot, by_thread
from tilecore.inference.gpu.matrix_units import FLOAT8, INTEGERS
from tilecore.inference.gpu.options import GpuOptions
from tilecore.inference.gpu.plan import (
    GemmPlan,
    Operand,
    Pipeline,
    TensorTile,
    TensorTransfer,
)
from tilecore.inference.gpu.products import WARPGROUP, size_of
from tilecore.inference.gpu.teams import Team, Teams
from tilecore.ir import nodes
from tilecore.ir.analysis import covers_whole, reads, writes
from tilecore.ir.expr import int_value
from tilecore.ir.gemm_shape import accumulator_dtype
from tilecore.ir.nodes import Buffer, Copy, Fill, Gemm, KernelLaunch, Region, Stmt
from tilecore.ir.visitor import buffers_of, children, walk

LANES, COLUMNS = 128, 512
HALF_LANES = 64  # rows of the smaller product
LEAST_COLUMNS = 32  # of an allocation, which is a power of two
WIDEST = 256  # columns of one instruction
UNIT = 8  # columns of a thread that are moved as one where there are 64 rows
# Operand types -> type of the sums; one instruction sums up 32 bytes of each operand.
SUMS = {
    "float16": "float32", "bfloat16": "float32", "float8_e4m3fn": "float32",
    "float8_e5m2": "float32", "int8": "int32", "uint8": "int32", "float32": "float32",
}  # fmt: skip
KEPT = ("float32", "int32", "float16", "bfloat16")  # types of tiles; those of 16 bits as float32
PANEL_BYTES = 128  # of the widest swizzle


@dataclass(frozen=True, slots=True)
class TensorMemory:
    """What of a launch lies in tensor memory.

    Attributes:
        tiles: where.
        transfers: the statements that move elements between tiles and registers.
        columns: that the block asks for.
        notes: why tiles that should lie there do not.
    """

    tiles: Mapping[Buffer, TensorTile] = field(default_factory=dict)
    transfers: Mapping[Stmt, TensorTransfer] = field(default_factory=dict)
    columns: int = 0
    notes: tuple[str, ...] = ()

    def wanted(self, statements: Iterable[Stmt]) -> list[tuple[Buffer, Distribution]]:
        """Return the fragments that transfers fill or read, with how they must be spread."""
        mine = set(statements)
        return [
            (t.other.buffer, t.held)
            for s, t in self.transfers.items()
            if s in mine and t.other is not None and t.held is not None
        ]

    def words(self, gemms: Iterable[GemmPlan]) -> int:
        """Return the 64-bit words of shared memory that the tiles need."""
        return tensor_words(gemms) if self.tiles else 0


def tensor_words(gemms: Iterable[GemmPlan]) -> int:
    """Return the 64-bit words of shared memory beside tensor memory.

    One has the address of the columns, one per product is a barrier.
    """
    return 1 + sum(plan.kind == "tcgen05" for plan in gemms)


def find_tensor_memory(
    launch: KernelLaunch, teams: Teams, target: GpuTarget, options: GpuOptions
) -> TensorMemory:
    """Return which tiles that ask for tensor memory lie there: all of a launch, or none."""
    asked = [
        s.buffer
        for s in walk(launch.body)
        if isinstance(s, nodes.Alloc) and s.buffer.in_tensor_memory
    ]
    if not asked or not target.has_tcgen05:
        return TensorMemory()
    reasons = {t.name: r for t in asked if (r := _why_not(t, launch, teams, options))}
    tiles: dict[Buffer, TensorTile] = {}
    column = 0
    for tile in asked if not reasons else ():
        shape = tile.static_shape
        assert shape is not None
        tiles[tile] = _tile(tile, shape, column, launch)
        column += tiles[tile].columns
    if column > COLUMNS:
        reasons = {asked[-1].name: f"{column} columns, there are {COLUMNS}"}
    if reasons:
        return TensorMemory(
            notes=tuple(f"{n}: shared instead of tensor memory ({r})" for n, r in reasons.items())
        )
    transfers: dict[Stmt, TensorTransfer] = {
        stmt: _transfer(stmt, tiles, teams.team(stmt))
        for stmt in walk(launch.body)
        if isinstance(stmt, (Copy, Fill)) and _tile_side(stmt, tiles) is not None
    }
    return TensorMemory(tiles, transfers, max(LEAST_COLUMNS, 1 << (column - 1).bit_length()))


def _tile(tile: Buffer, shape: tuple[int, ...], column: int, launch: KernelLaunch) -> TensorTile:
    if _is_operand(tile, launch):
        return TensorTile(shape, column, str(tile.dtype), 4 // tile.dtype.itemsize)
    return TensorTile(shape, column, "int32" if tile.dtype == "int32" else "float32")


def _is_operand(tile: Buffer, launch: KernelLaunch) -> bool:
    return any(isinstance(s, Gemm) and s.a.buffer is tile for s in walk(launch.body))


def misfit(gemm: Gemm, options: GpuOptions) -> str:
    """Return why tensor cores cannot sum up a product in tensor memory, or ""."""
    m, n, k = size_of(gemm)
    a, b, c = str(gemm.a.dtype), str(gemm.b.dtype), str(accumulator_dtype(gemm))
    itemsize = gemm.a.dtype.itemsize
    if a == "float32" and options.float32_products == "exact":
        return "float32_products is exact"
    are_mixed = {a, b} in ({*FLOAT8}, {*INTEGERS})
    if (a != b and not are_mixed) or SUMS.get(a) != c:
        return f"no product of {a} x {b} into {c}"
    if m != HALF_LANES and m % LANES:
        return f"{m} rows are neither 64 nor a multiple of 128"
    if n % 16 or _columns(m, n) > COLUMNS:
        return f"{m} x {n} sums are no multiple of 16 columns within the {COLUMNS} there are"
    if k * itemsize % 32:
        return f"K = {k} is no multiple of {32 // itemsize}"
    for region, name, k_first in (
        (gemm.a, "A", gemm.transpose_a), (gemm.b, "B", not gemm.transpose_b),
    ):  # fmt: skip
        if name == "A" and (region.buffer.in_tensor_memory or _can_move(gemm)):
            continue
        reason = _operand_misfit(region, name, k_first, itemsize)
        if reason:
            return reason
    panel = PANEL_BYTES // itemsize
    if not gemm.transpose_b and n > WIDEST and _width(n) % panel:
        return f"{n} columns cannot be cut between panels of {panel}"
    return ""


def _can_move(gemm: Gemm) -> bool:
    """Return whether A is a fragment that can lie in tensor memory: rows, contiguous along K."""
    a, rows = gemm.a, size_of(gemm)[0]
    is_fragment = a.buffer.scope == "fragment" and covers_whole(a) and a.buffer.ndim == 2
    is_packed = a.dtype.itemsize <= 2
    return is_fragment and is_packed and not gemm.transpose_a and rows % LANES == 0


def _operand_misfit(region: Region, name: str, k_first: bool, itemsize: int) -> str:
    tile, shape = region.buffer, region.buffer.static_shape
    if tile.scope != "shared" or tile.in_tensor_memory or shape is None:
        return f"{name} does not lie in shared memory"
    if tile.base is not None or not _is_whole_matrix(region, shape):
        return f"{name} is a part or a view of a shared tile"
    if shape[-1] * itemsize % 32 or shape[-2] % 8:
        return f"{name} has rows of {shape[-1] * itemsize} bytes, not of a multiple of 32"
    if k_first and itemsize != 2:
        return f"{name} has {8 * itemsize}-bit elements that are not contiguous along K"
    return ""


def _is_whole_matrix(region: Region, shape: tuple[int, ...]) -> bool:
    """Return whether a region is all of the last two axes of a tile, at one place of the others."""
    if len(shape) < 2 or any(int_value(e) != 1 for e in region.extents[:-2]):
        return False
    pairs = zip(region.offsets[-2:], region.extents[-2:], shape[-2:], strict=True)
    return all(int_value(o) == 0 and int_value(e) == s for o, e, s in pairs)


def refusal(gemm: Gemm, launch: KernelLaunch, options: GpuOptions) -> str:
    """Return why a product whose sums are a fragment is not summed up in tensor memory, or "".

    The sums would be spread by rows, which instructions of warps cannot read: all products of a
    launch must suit.
    """
    if gemm.c.buffer.in_tensor_memory:
        return "see the tile it sums up in"
    threads = math.prod(int_value(t) or 0 for t in launch.threads)
    if threads % WARPGROUP:
        return f"{threads} threads are no whole warpgroups"
    own = misfit(gemm, options)
    if own:
        return own
    if gemm.c.buffer.scope != "fragment" or not covers_whole(gemm.c):
        return "the sums are not a whole fragment"
    branches = [s for s in walk(launch.body) if isinstance(s, (nodes.If, nodes.While))]
    if launch.thread_vars and any(any(g is gemm for g in walk(s)) for s in branches):
        return "a branch multiplies, which may be a role of warps"
    gemms = [s for s in walk(launch.body) if isinstance(s, Gemm)]
    sizes = {g.c.buffer: _columns(*size_of(g)[:2]) for g in gemms}
    sizes |= {
        g.a.buffer: _columns(size_of(g)[0], size_of(g)[2]) * g.a.dtype.itemsize // 4
        for g in gemms
        if g.a.buffer.scope == "fragment"
    }
    if sum(sizes.values()) > COLUMNS:
        return f"all sums need {sum(sizes.values())} columns of tensor memory, of {COLUMNS}"
    for other in gemms:
        why = misfit(other, options)
        if why:
            return f"the product of line {other.span.line} uses other instructions: {why}"
    return ""


def plan_tensor_product(gemm: Gemm, team: Team) -> GemmPlan:
    """Return a product whose sums lie in tensor memory; one thread issues it."""
    m, n, k = size_of(gemm)
    step = 32 // gemm.a.dtype.itemsize
    c = spread_rows(m, n, max(team.count, WARPGROUP))
    source = "tensor memory" if gemm.a.buffer.in_tensor_memory else "descriptor"
    a = Operand(c, source, gemm.transpose_a)
    b = Operand(c, "descriptor", not gemm.transpose_b)
    shape = (min(m, LANES), _width(n), step)
    sums = SUMS[str(gemm.a.dtype)]
    return GemmPlan(gemm, "tcgen05", shape, (m, n, k), (1, 1), a, b, c, keeps_c=False, sums=sums)


def with_reason(plan: GemmPlan, launch: KernelLaunch, options: GpuOptions) -> GemmPlan:
    """Return a plan that says why it is not one of tensor memory."""
    if plan.kind == "tcgen05" or plan.reason:
        return plan
    return replace(plan, reason=f"not tcgen05: {refusal(plan.stmt, launch, options)}")


def with_waits(
    gemms: Mapping[Stmt, GemmPlan], pipelines: Mapping[Stmt, Pipeline]
) -> dict[Stmt, GemmPlan]:
    """Return the plans, those marked that nobody has to wait for: the program does.

    In a loop whose copies run ahead only asynchronous products may read the tiles of one that is
    still running: its completion then frees them.
    """
    found = dict(gemms)
    for stmt, plan in gemms.items():
        if plan.kind == "tcgen05" and isinstance(stmt, Gemm) and stmt.is_async:
            is_free = all(_frees_tiles(stmt, p) for p in pipelines.values())
            found[stmt] = replace(plan, is_async=is_free)
    return found


def _frees_tiles(gemm: Gemm, pipeline: Pipeline) -> bool:
    if not any(s is gemm for s in walk(pipeline.loop)):
        return True
    body = pipeline.loop.body
    stmts = body.stmts if isinstance(body, nodes.Seq) else (body,)
    tiles = {c.dst.buffer for c in pipeline.copies} & {gemm.a.buffer, gemm.b.buffer}
    users = [s for s in stmts if s not in pipeline.copies and buffers_of(s) & tiles]
    return bool(pipeline.boxes) and all(isinstance(s, Gemm) and s.is_async for s in users)


def only_product(pipeline: Pipeline, gemms: Mapping[Stmt, GemmPlan]) -> Gemm | None:
    """Return the product in tensor memory that is all that a loop does with its tiles, or None."""
    body = pipeline.loop.body
    stmts = body.stmts if isinstance(body, nodes.Seq) else (body,)
    rest = [s for s in stmts if s not in pipeline.copies and not isinstance(s, nodes.Annotate)]
    if len(rest) != 1 or not isinstance(rest[0], Gemm) or gemms[rest[0]].kind != "tcgen05":
        return None
    tiles = {c.dst.buffer for c in pipeline.copies}
    is_all = {rest[0].a.buffer, rest[0].b.buffer} == tiles
    return rest[0] if is_all and not gemms[rest[0]].is_async else None


def spread_rows(rows: int, columns: int, threads: int, packed: int = 1) -> Distribution:
    """Return who moves which elements between tensor memory and registers.

    ``packed``: elements of one register.
    """
    groups = threads // WARPGROUP
    if columns % (groups * UNIT * packed) or threads % (groups * WARPGROUP):
        groups = 1
    each = columns // groups
    if rows == HALF_LANES:  # as mma's accumulators, of four warps below each other
        across = (by_thread(4, 32), by_slot(2, 2), by_thread(8, 4))
        along = (by_thread(groups, WARPGROUP), by_slot(each // UNIT, 4), by_thread(4, 1),
                 by_slot(2, 1))  # fmt: skip
        return Distribution((rows, columns), (across, along), threads)
    axes = (
        (by_slot(rows // LANES, each), by_thread(LANES, 1)),
        (by_thread(groups, WARPGROUP), by_slot(each, 1)),
    )
    return Distribution((rows, columns), axes, threads)


def _columns(m: int, n: int) -> int:
    return max(1, m // LANES) * n


def _width(n: int) -> int:
    """Return the columns of one instruction."""
    return next(w for w in range(min(n, WIDEST) // 16 * 16, 0, -16) if n % w == 0)


# --- tiles ----------------------------------------------------------------------------------------


def _why_not(tile: Buffer, launch: KernelLaunch, teams: Teams, options: GpuOptions) -> str:
    """Return why a tile cannot lie in tensor memory, or ""."""
    shape = tile.static_shape
    is_operand = _is_operand(tile, launch)
    kinds = SUMS if is_operand else KEPT
    if shape is None or len(shape) < 2 or str(tile.dtype) not in kinds:
        return f"{tile.dtype} elements of {len(tile.shape)} axes"
    if is_operand and any(isinstance(s, Gemm) and s.c.buffer is tile for s in walk(launch.body)):
        return "the sums of one product are an operand of another"
    if shape[-2] != HALF_LANES and shape[-2] % LANES:
        return f"{shape[-2]} rows are neither 64 nor a multiple of 128"
    if shape[-1] % (4 * UNIT if is_operand else UNIT):
        return f"{shape[-1]} columns are no multiple of {4 * UNIT if is_operand else UNIT}"
    for stmt in walk(launch.body):
        if isinstance(stmt, nodes.Alloc):
            if stmt.buffer.base is tile:
                return "a view shows it in another shape"
        elif tile in (*reads(stmt), *writes(stmt)):
            reason = _use_misfit(stmt, tile, teams.team(stmt), options)
            if reason:
                return f"line {stmt.span.line}: {reason}"
    return ""


def _use_misfit(stmt: Stmt, tile: Buffer, team: Team, options: GpuOptions) -> str:
    """Return why a statement cannot use a tile of tensor memory, or ""."""
    if isinstance(stmt, Gemm):
        if tile is stmt.b.buffer:
            return "B of a product"
        if tile is stmt.a.buffer and (tile is stmt.c.buffer or stmt.transpose_a):
            return "A is transposed, or also the sums"
        if tile is stmt.a.buffer and (size_of(stmt)[0] % LANES or tile.dtype.itemsize > 2):
            return "A of fewer than 128 rows, or of elements of more than 16 bits"
        own = stmt.a if tile is stmt.a.buffer else stmt.c
        return misfit(stmt, options) or _region_misfit(own, 16)
    if not isinstance(stmt, (Copy, Fill)) or children(stmt):
        return "elements are accessed one by one"
    if (
        isinstance(stmt, Copy)
        and stmt.src.buffer.in_tensor_memory
        and (stmt.dst.buffer.in_tensor_memory)
    ):
        return "a copy within tensor memory"
    if team.first % WARPGROUP or team.count % WARPGROUP or not team.count:
        return f"{team.count} threads from {team.first} on are no whole warpgroups"
    side = _tile_side(stmt, {tile})
    assert side is not None
    reason = _region_misfit(side, UNIT)
    if reason or not isinstance(stmt, Copy):
        return reason
    other = stmt.dst if side is stmt.src else stmt.src
    if other.buffer.scope == "local":
        return "a local array"
    if other.buffer.scope != "fragment" or _is_all_of(other, side):
        return ""
    return "a part of a fragment" if _part_start(other, side) is None else ""


def _region_misfit(region: Region, unit: int) -> str:
    """Return why a region is not some columns of all rows of a tile, or ""."""
    shape = region.buffer.static_shape
    assert shape is not None
    if any(int_value(e) != 1 for e in region.extents[:-2]):
        return "several matrices at once"
    if int_value(region.offsets[-2]) != 0 or int_value(region.extents[-2]) != shape[-2]:
        return "not all rows"
    columns = int_value(region.extents[-1])
    return f"expected a multiple of {unit} columns" if not columns or columns % unit else ""


def _tile_side(stmt: Copy | Fill, tiles: Iterable[Buffer]) -> Region | None:
    sides = [stmt.dst] if isinstance(stmt, Fill) else [stmt.src, stmt.dst]
    return next((side for side in sides if side.buffer in tiles), None)


def _is_all_of(other: Region, side: Region) -> bool:
    """Return whether a fragment is the matrix that ``side`` is."""
    extents = tuple(int_value(e) for e in side.extents[-2:])
    return covers_whole(other) and other.buffer.static_shape == extents


def _part_start(other: Region, side: Region) -> int | None:
    """Return the first column of a part of a fragment of two axes that has all rows, or None."""
    shape, start = other.buffer.static_shape, int_value(other.offsets[-1])
    rows = shape is not None and len(shape) == 2 and int_value(other.extents[0]) == shape[0]
    rows = rows and int_value(side.extents[-2]) != HALF_LANES
    return start if rows and shape is not None else None


def _transfer(stmt: Copy | Fill, tiles: Mapping[Buffer, TensorTile], team: Team) -> TensorTransfer:
    side = _tile_side(stmt, tiles)
    assert side is not None
    rows, columns = (int_value(e) for e in side.extents[-2:])
    assert rows is not None
    assert columns is not None
    tile = tiles[side.buffer]
    spread, held, start = spread_rows(rows, columns, team.count, tile.packed), None, 0
    other = None
    if isinstance(stmt, Copy):
        other = stmt.dst if side is stmt.src else stmt.src
        shape = other.buffer.static_shape
        if other.buffer.scope == "fragment" and _is_all_of(other, side):
            held = spread
        elif other.buffer.scope == "fragment" and shape is not None and len(shape) == 2:
            spread = replace(spread_rows(rows, columns, WARPGROUP), threads=team.count)
            held = replace(spread_rows(rows, shape[1], WARPGROUP), threads=team.count)
            start = _part_start(other, side) or 0
    return TensorTransfer(side, other, side is stmt.dst, spread, held, start)
