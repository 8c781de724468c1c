"""What a block of a GPU program keeps in shared memory, as arrays over configs.

Mirrors ``tilecore.inference.gpu`` in closed form: which tiles lie in how many stages, what sums go
out through, and what warps tell each other there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

import numpy as np

from recommender.gpu.columns import Columns, Floats, Mask, block_threads, numbers
from recommender.gpu.folds import is_along_lanes, is_told_across
from recommender.gpu.products import Product
from recommender.gpu.tensor_memory import WORD_BYTES, groups_of, is_split_apart
from tilecore.gpu_target import GpuTarget
from tilecore.graph.graph import Launch
from tilecore.graph.nodes import Loop, TileOp
from tilecore.inference.gpu.products.choice import WARP
from tilecore.inference.gpu.products.tensor_products import HALF_LANES
from tilecore.ir.expr import Load, Var
from tilecore.ir.nodes import Atomic, Buffer, Copy, Gemm, If, Parallel, Reduce, Seq, Store
from tilecore.ir.visitor import walk_expr
from tilecore.passes.stage_outputs import SECTOR_BYTES, TOGETHER, sums_of

FOLDED_BYTES = 4  # of what lanes that have one value tell others of a fold across warps
HALF_BYTES = 2  # of the operands that lanes hold as they hold sums
QUAD = 4  # lanes of NVIDIA's GPUs that have one row of a product's sums
PREFETCHED = 2  # tiles of each kind on AMD, whose next ones come through registers


def stages_of(launch: Launch, columns: Columns, target: GpuTarget) -> dict[Buffer, Floats]:
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


def operands_in_memory(
    launch: Launch, columns: Columns, target: GpuTarget, found: Sequence[Product], tensor: Mask
) -> dict[Buffer, Mask]:
    """Return the fragments that products multiply out of shared memory, and in which configs.

    Scalar multiply-adds read nothing else, and products of quads hold sums otherwise than operands;
    so do products of other than 16 bits, and warps that have parts of one row of what another
    product has summed up, or other rows than it. ``tensor``: where tensor memory has them.
    """
    sums = {p.op.stmt.c.buffer: p for p in found if isinstance(p.op.stmt, Gemm)}
    origins = {
        write.buffer: sums[read.buffer]
        for op in launch.ops
        for read in op.reads
        for write in op.writes
        if read.buffer in sums
    } | sums
    threads = block_threads(launch, columns)
    kept: dict[Buffer, Mask] = {}
    for product in found:
        assert isinstance(product.op.stmt, Gemm)
        a, b = product.op.stmt.a.buffer, product.op.stmt.b.buffer
        for operand in (a, b):
            if operand.scope != "fragment":
                continue
            is_kept = ~product.is_tensor | target.multiplies_by_quads
            if operand is a and a in origins:
                is_kept = is_kept | product.shares_rows
                is_kept = is_kept | (product.division != origins[a].division)
                is_kept = is_kept | (a.dtype.itemsize != HALF_BYTES)
            is_kept = np.where(tensor, is_split_apart(product, columns, threads), is_kept)
            kept[operand] = kept[operand] | is_kept if operand in kept else is_kept
    return kept


def vectors_in_memory(
    launch: Launch, found: Sequence[Product], tensor: Mask, operands: Mapping[Buffer, Mask]
) -> dict[Buffer, Mask]:
    """Return the fragments of a value per row that lie in shared memory, and in which configs.

    What is computed of the sums of one product and used with those of another is held by threads
    that have the row of both, if the products divide rows alike (as in tensor memory, ``tensor``);
    else it lies in shared memory. Sums that lie there themselves (``operands``) fix nothing.
    """
    kept: dict[Buffer, Mask] = {}
    made = {p.op.stmt.c.buffer: p for p in found if isinstance(p.op.stmt, Gemm)}
    homes: dict[Buffer, set[Buffer]] = {}  # of a vector: the sums that it is used with
    kin: dict[Buffer, set[Buffer]] = {}  # what is computed of one another, sums aside
    for op in launch.ops:
        used = {a.buffer.root for a in (*op.reads, *op.writes)}
        vectors = {b for b in used if b.scope == "fragment" and b.ndim == 1}
        sums = used & made.keys()
        for vector in vectors:
            homes.setdefault(vector, set()).update(sums)
        if not sums and len(vectors) > 1:
            together = vectors.union(*(kin.get(v, ()) for v in vectors))
            kin |= dict.fromkeys(together, together)
    order = list(made)
    for vector, own in homes.items():
        around = own.union(*(homes[v] for v in kin.get(vector, ())))
        first = min(around, key=order.index) if around else vector
        for other in own - {first}:
            is_moved = (made[first].division != made[other].division) & ~tensor
            for one in (first, other):
                is_moved = is_moved & ~operands[one] if one in operands else is_moved
            kept[vector] = kept[vector] | is_moved if vector in kept else is_moved
    return kept


def shared_bytes(
    launch: Launch, columns: Columns, stages: Mapping[Buffer, Floats],
    kept: Mapping[Buffer, Mask], staged: Sequence[tuple[TileOp, Floats]],
) -> Floats:  # fmt: skip
    """Return the most bytes of shared tiles alive at once.

    ``kept``: fragments that lie there in some configs (``operands_in_memory``). ``staged``: sums on
    their way out that are among them, with their bytes.
    """
    tiles = [t for t in launch.tiles if t.scope == "shared" or t in kept]
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
                size = tile_bytes(tile, columns, stages)
                alive = alive + (kept[tile] * size if tile in kept else size)
        for when, size in outgoing:
            alive = alive + (when == moment) * size
        moments.append(alive)
    found: Floats = reduce(np.maximum, [numbers(0, columns), *moments])
    return found


def all_shared_bytes(launch: Launch, columns: Columns, stages: Mapping[Buffer, Floats]) -> Floats:
    """Return the bytes of all shared tiles: of a block that computes one tile after another."""
    tiles = [t for t in launch.tiles if t.scope == "shared" and t.root is t]
    sizes = [tile_bytes(t, columns, stages) for t in tiles]
    sizes += [size for _, size in outgoing(launch, columns)]
    found: Floats = reduce(np.add, [numbers(0, columns), *sizes])
    return found


def tile_bytes(tile: Buffer, columns: Columns, stages: Mapping[Buffer, Floats]) -> Floats:
    """Return the bytes of a tile in all its stages."""
    size = numbers(1, columns) * tile.dtype.itemsize
    for extent in tile.shape:
        size = size * numbers(extent, columns)
    return np.ceil(size / 16) * 16 * stages.get(tile, 1.0)


def outgoing(launch: Launch, columns: Columns) -> Iterator[tuple[TileOp, Floats]]:
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


def sectors_written(launch: Launch, columns: Columns) -> float:
    """Return how many sectors are written for one if threads store the sums that they hold."""
    sizes = [op.writes[0].buffer.dtype.itemsize for op, _ in outgoing(launch, columns)]
    return max((max(1.0, SECTOR_BYTES / (TOGETHER * size)) for size in sizes), default=1.0)


def added_tiles(
    launch: Launch, columns: Columns, target: GpuTarget
) -> Iterator[tuple[TileOp, Floats]]:
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


def scratch_bytes(
    launch: Launch, columns: Columns, target: GpuTarget, found: Sequence[Product], tensor: Mask
) -> Floats:
    """Return the bytes behind the tiles by which warps tell each other of what they have folded.

    Where sums lie in tensor memory (``tensor``), also those of the words that it takes.
    """
    threads = block_threads(launch, columns)
    total = 0 * threads
    sums = {p.op.stmt.c.buffer: p for p in found if isinstance(p.op.stmt, Gemm)}
    for op in launch.ops:
        if not isinstance(op.stmt, Reduce):
            continue
        product = sums.get(op.stmt.src.buffer)
        if product is not None:
            by_groups = groups_of(product, columns, threads) > 1
            is_told = np.where(tensor, by_groups, product.shares_rows)
            rows = numbers(op.stmt.src.extents[0], columns)
            by_lane = tensor & (rows != HALF_LANES) if target.kind == "cuda" else True
            lanes = np.where(by_lane, 1, QUAD)
        else:
            is_told = is_told_across(op.stmt, columns, threads)
            lanes = numbers(WARP if is_along_lanes(op.stmt) else 1, columns)
        total = np.maximum(total, is_told * threads // lanes * FOLDED_BYTES)
    found_words: Floats = total + tensor * (WORD_BYTES * (1 + len(found)))
    return found_words
