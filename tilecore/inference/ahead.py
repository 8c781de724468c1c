"""Which nests fetch what the next block reads.

Where a block reads its rows more than once, only the first pass waits for memory, and nothing is
read while it computes: the last pass fetches the rows of the next block meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilecore.inference.plan import Ahead, FusedNest, TilePlan, TileSource
from tilecore.inference.uses import WRITES, Use
from tilecore.ir.bounds import linear
from tilecore.ir.expr import Expr, Var, int_value
from tilecore.ir.nests import shifted
from tilecore.ir.nodes import Buffer, KernelLaunch, Reduce
from tilecore.ir.visitor import loads

L1_BYTES, L2_BYTES = 8 << 10, 128 << 10  # of the next block's rows, beside what a block works on


def last_readers(
    tiles: Mapping[Buffer, TilePlan], uses: Mapping[Buffer, Sequence[Use]]
) -> dict[Buffer, Use]:
    """Return the last of two or more readers of each tile that nests read in place."""
    found: dict[Buffer, Use] = {}
    for buffer, plan in tiles.items():
        readers = [u for u in uses.get(buffer, ()) if u.role not in WRITES]
        is_nests = all(u.role in ("load", "fold-src") for u in readers)
        if plan.placement == "in_place" and is_nests and len({u.stmt for u in readers}) > 1:
            found[buffer] = readers[-1]
    return found


def fetched(
    nest: FusedNest, launch: KernelLaunch, readers: Mapping[Buffer, TilePlan]
) -> tuple[Ahead, ...]:
    """Return what a nest fetches of the tensors that tiles are read in place from."""
    found = []
    for tile, plan in readers.items():
        assert plan.source is not None
        var, step = _next(plan.source, launch)
        indices = _indices(tile, nest)
        moves = any(_moves(offset, var) for offset in plan.source.copy.src.offsets)
        size = math.prod(tile.static_shape or (L2_BYTES,))
        size_bytes = size * plan.source.copy.src.buffer.dtype.itemsize
        if moves and step and indices is not None and size_bytes <= L2_BYTES:
            found.append(Ahead(tile, indices, var, step, size_bytes <= L1_BYTES))
    return tuple(found)


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
