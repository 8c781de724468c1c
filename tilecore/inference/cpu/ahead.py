"""Which nests fetch what the next block reads.

Where a block reads its rows more than once, only the first pass waits for memory, and nothing is
read while it computes: the last pass fetches the rows of the next block meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilecore.inference.cpu.fusion import alone
from tilecore.inference.cpu.plan import Ahead, FusedNest, TilePlan, TileSource
from tilecore.inference.uses import WRITES, Use
from tilecore.ir.arithmetic.bounds import linear
from tilecore.ir.expr import Expr, Var, int_value
from tilecore.ir.nodes import Buffer, KernelLaunch, Reduce, Stmt
from tilecore.ir.plain.nests import shifted
from tilecore.ir.visitor import loads

NEAR_BYTES, MOST_BYTES = 8 << 10, 128 << 10  # of the next block's rows: to L1, to L2 at all


def fetching(
    nests: Sequence[FusedNest],
    launch: KernelLaunch,
    tiles: Mapping[Buffer, TilePlan],
    uses: Mapping[Buffer, Sequence[Use]],
) -> list[FusedNest]:
    """Return the nests with what they fetch, those of single statements too that do so.

    A reduction that reads a tensor in place is one, too: nests fetch short pieces of rows.
    """
    readers: dict[Stmt, list[TilePlan]] = {}
    for buffer, stmt in _last_readers(tiles, uses).items():
        readers.setdefault(stmt, []).append(tiles[buffer])
    known = {member for nest in nests for member in nest.members}
    storages = {buffer: plan.storage for buffer, plan in tiles.items()}
    folds = _folds_in_place(tiles, uses)
    alone_ones = dict.fromkeys(stmt for stmt in (*readers, *folds) if stmt not in known)
    single = (alone(stmt, storages) for stmt in alone_ones)
    found = []
    for nest in (*nests, *(nest for nest in single if nest is not None)):
        read = [plan for member in nest.members for plan in readers.get(member, ())]
        lines = tuple(line for plan in read if (line := _ahead(plan, nest, launch)) is not None)
        if lines or len(nest.members) > 1 or nest.members[0] in folds:
            found.append(replace(nest, ahead=lines))
    return found


def _folds_in_place(
    tiles: Mapping[Buffer, TilePlan], uses: Mapping[Buffer, Sequence[Use]]
) -> list[Stmt]:
    in_place = (buffer for buffer, plan in tiles.items() if plan.placement == "in_place")
    return [u.stmt for b in in_place for u in uses.get(b, ()) if u.role == "fold-src"]


def _last_readers(
    tiles: Mapping[Buffer, TilePlan], uses: Mapping[Buffer, Sequence[Use]]
) -> dict[Buffer, Stmt]:
    """Return the last of two or more nests that read a tile in place, for each such tile."""
    found: dict[Buffer, Stmt] = {}
    for buffer, plan in tiles.items():
        readers = [u for u in uses.get(buffer, ()) if u.role not in WRITES]
        is_nests = all(u.role in ("load", "fold-src") for u in readers)
        nests = dict.fromkeys(u.context.nest or u.stmt for u in readers)
        if plan.placement == "in_place" and is_nests and len(nests) > 1:
            found[buffer] = [*nests][-1]
    return found


def _ahead(plan: TilePlan, nest: FusedNest, launch: KernelLaunch) -> Ahead | None:
    """Return what a nest fetches of the tensor that a tile is read in place from."""
    assert plan.source is not None
    tile, region = plan.buffer, plan.source.copy.src
    var, step = _next(plan.source, launch)
    indices = _indices(tile, nest)
    if not step or indices is None or not any(_moves(offset, var) for offset in region.offsets):
        return None
    size_bytes = math.prod(tile.static_shape or (MOST_BYTES,)) * region.buffer.dtype.itemsize
    if size_bytes > MOST_BYTES:
        return None
    return Ahead(tile, indices, var, step, size_bytes <= NEAR_BYTES)


def _next(source: TileSource, launch: KernelLaunch) -> tuple[Var, int]:
    """Return what counts the boxes that are read one after the other, and by how much.

    0 where there is no other box, or its distance is not known.
    """
    if source.context.loops:
        loop = source.context.loops[-1]
        return loop.loop_var, int_value(loop.step) or 0
    return launch.block_vars[0], int(int_value(launch.grid[0]) != 1)


def _moves(offset: Expr, var: Var) -> bool:
    form = linear(offset)
    return var.dtype == "int32" and form is not None and form.coefficient(var) != 0


def _indices(tile: Buffer, nest: FusedNest) -> tuple[Expr, ...] | None:
    """Return the element of a tile that an iteration of the nest reads."""
    for step in nest.steps:
        if isinstance(step, Reduce):
            if step.src.buffer is tile:
                return shifted(step.src, nest.loop_vars)
            continue
        for load in loads(step):
            if load.buffer is tile:
                return load.indices
    return None
