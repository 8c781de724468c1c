"""Tensor memory (sm_100): which tiles lie in it, and what moves between it and registers.

How it is laid out says tilecore.inference.gpu.products.tensor_products.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.distribution import Distribution
from tilecore.inference.gpu.options import GpuOptions
from tilecore.inference.gpu.plan import GemmPlan, TensorTile, TensorTransfer
from tilecore.inference.gpu.products.choice import WARPGROUP, size_of
from tilecore.inference.gpu.products.tensor_products import (
    COLUMNS,
    HALF_LANES,
    LANES,
    SUMS,
    UNIT,
    is_folded,
    misfit,
    spread_rows,
)
from tilecore.inference.gpu.products.tensor_scaled import factors_misfit, is_of_factors
from tilecore.inference.gpu.threads.teams import Team, Teams
from tilecore.ir import nodes
from tilecore.ir.analysis import covers_whole, reads, writes
from tilecore.ir.expr import int_value
from tilecore.ir.nodes import Buffer, Copy, Fill, Gemm, KernelLaunch, Region, Stmt
from tilecore.ir.visitor import children, walk

LEAST_COLUMNS = 32  # of an allocation, which is a power of two
KEPT = ("float32", "int32", "float16", "bfloat16")  # types of tiles; those of 16 bits as float32


@dataclass(frozen=True, slots=True)
class TensorMemory:
    """What of a launch lies in tensor memory.

    Attributes:
        tiles: where.
        transfers: the statements that move elements between tiles and registers.
        columns: that the block asks for.
        reasons: why tiles that should lie there do not, by name.
    """

    tiles: Mapping[Buffer, TensorTile] = field(default_factory=dict)
    transfers: Mapping[Stmt, TensorTransfer] = field(default_factory=dict)
    columns: int = 0
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """The reasons, in words."""
        words = "shared instead of tensor memory"
        return tuple(f"{name}: {words} ({why})" for name, why in self.reasons.items())

    def wanted(self, statements: Iterable[Stmt]) -> list[tuple[Buffer, Distribution]]:
        """Return the fragments that transfers fill or read, with how they must be spread."""
        mine = set(statements)
        return [
            (t.other.buffer, t.held)
            for s, t in self.transfers.items()
            if s in mine and t.other is not None and t.held is not None
        ]

    @property
    def memory(self) -> dict[Buffer, set[Buffer]]:
        """The tiles that threads must meet for: what one thread does with factors is in order."""
        return {t: {t} for t, tile in self.tiles.items() if not tile.of_factors}

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
    reasons = {
        t.name: reason
        for t in asked
        if (
            reason := factors_misfit(t, launch, teams)
            if is_of_factors(t, launch)
            else _why_not(t, launch, teams, options, target)
        )
    }
    tiles: dict[Buffer, TensorTile] = {}
    column = 0
    # Factors go last: they begin with a multiple of four columns as sums do.
    for tile in sorted(asked, key=lambda t: is_of_factors(t, launch)) if not reasons else ():
        shape = tile.static_shape
        assert shape is not None
        tiles[tile] = _tile(tile, shape, column, launch)
        column += tiles[tile].columns
    if column > COLUMNS:
        reasons = {asked[-1].name: f"{column} columns, there are {COLUMNS}"}
    if reasons:
        return TensorMemory(reasons=reasons)
    transfers: dict[Stmt, TensorTransfer] = {
        stmt: _transfer(stmt, tiles, teams.team(stmt))
        for stmt in walk(launch.body)
        if isinstance(stmt, (Copy, Fill)) and _tile_side(stmt, tiles) is not None
    }
    return TensorMemory(tiles, transfers, max(LEAST_COLUMNS, 1 << (column - 1).bit_length()))


def _tile(tile: Buffer, shape: tuple[int, ...], column: int, launch: KernelLaunch) -> TensorTile:
    if is_of_factors(tile, launch):
        return TensorTile(shape, column, "uint32", of_factors=True)
    if _is_operand(tile, launch):
        return TensorTile(shape, column, str(tile.dtype), 4 // tile.dtype.itemsize)
    kind = "int32" if tile.dtype == "int32" else "float32"
    return TensorTile(shape, column, kind, is_folded=_is_folded(tile, launch))


def _is_operand(tile: Buffer, launch: KernelLaunch) -> bool:
    return any(isinstance(s, Gemm) and s.a.buffer is tile for s in walk(launch.body))


def _is_folded(tile: Buffer, launch: KernelLaunch) -> bool:
    """Return whether products of two blocks sum up 64 rows of each in a tile."""
    gemms = [s for s in walk(launch.body) if isinstance(s, Gemm)]
    return any(is_folded(g) and g.c.buffer is tile for g in gemms)


def _why_not(
    tile: Buffer, launch: KernelLaunch, teams: Teams, options: GpuOptions, target: GpuTarget
) -> str:
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
            reason = _use_misfit(stmt, tile, teams.team(stmt), options, target)
            if not reason and _is_folded(tile, launch):
                reason = _folded_misfit(stmt, tile)
            if reason:
                return f"line {stmt.span.line}: {reason}"
    return ""


def _use_misfit(
    stmt: Stmt, tile: Buffer, team: Team, options: GpuOptions, target: GpuTarget
) -> str:
    """Return why a statement cannot use a tile of tensor memory, or ""."""
    if isinstance(stmt, Gemm):
        if tile is stmt.b.buffer:
            return "B of a product"
        if tile is stmt.a.buffer and (tile is stmt.c.buffer or stmt.transpose_a):
            return "A is transposed, or also the sums"
        if tile is stmt.a.buffer and (size_of(stmt)[0] % LANES or tile.dtype.itemsize > 2):
            return "A of fewer than 128 rows, or of elements of more than 16 bits"
        own = stmt.a if tile is stmt.a.buffer else stmt.c
        return misfit(stmt, options, target) or _region_misfit(own, 16)
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


def _folded_misfit(stmt: Stmt, tile: Buffer) -> str:
    """Return why a statement cannot use sums of 64 rows of each of two blocks, or ""."""
    if isinstance(stmt, Gemm):
        return "" if stmt.in_pair else "it also holds sums of one block alone"
    if tile.ndim > 2:
        return "64 rows of each of two blocks are summed up in one matrix, not several"
    side = _tile_side(stmt, {tile}) if isinstance(stmt, (Copy, Fill)) else None
    assert side is not None
    return "" if covers_whole(side) else "64 rows of each of two blocks are copied as a whole"


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
    spread = spread_rows(rows, columns, team.count, tile.packed, is_folded=tile.is_folded)
    held, start = None, 0
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
