"""Copies by the tensor memory accelerator: which it can do, and in what boxes.

Limits (CUDA driver API, cuTensorMapEncodeTiled): at most 5 axes, boxes of at most 256 along each,
inner rows of a multiple of 16 bytes and no longer than the swizzle, strides of a positive multiple
of 16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import replace

from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.accesses.signs import Signs
from tilecore.inference.gpu.copies.groups import group_of
from tilecore.inference.gpu.copies.pipelining import leads_to
from tilecore.inference.gpu.loops import divisor
from tilecore.inference.gpu.plan import (
    BOX_ALIGNMENT,
    CHUNK_BYTES,
    Box,
    BoxUpdate,
    Pipeline,
    SharedLayout,
)
from tilecore.inference.gpu.products.registers import PRODUCER_THREADS
from tilecore.inference.gpu.threads.teams import Teams
from tilecore.ir import nodes
from tilecore.ir.analysis import kept_axes, pads, read_buffers, writes, written_buffers
from tilecore.ir.expr import Load, int_value
from tilecore.ir.nodes import RUNS_ON, Buffer, Copy, For, KernelLaunch, Region, Stmt
from tilecore.ir.visitor import children, expressions, has_jump, walk, walk_expr

MAX_AXES = 5
MAX_EXTENT = 256
SWIZZLE_ROWS = 8  # after which a swizzle repeats
WARP = 32


def with_boxes(
    launch: KernelLaunch,
    pipelines: Mapping[Stmt, Pipeline],
    layouts: Mapping[Buffer, SharedLayout],
    target: GpuTarget,
) -> dict[Stmt, Pipeline]:
    """Return the pipelines with boxes, if all copies of the launch can be had in boxes.

    A warpgroup of its own then issues them: it must find its way to the loops without what the
    others compute, begin with a warp of its own, and fit in beside them. It runs ahead, so that
    it cannot leave an iteration where the others do.
    """
    plain = dict(pipelines)
    flat = all(int_value(t) == 1 for t in launch.threads[1:])
    threads = math.prod(int_value(t) or 0 for t in launch.threads)
    if launch.thread_vars or not flat or threads % WARP:
        return plain
    if any(p.gathers for p in pipelines.values()):
        return plain
    if threads + PRODUCER_THREADS > target.threads_per_block:
        return plain
    made: dict[Stmt, Pipeline] = {}
    padded = pads(launch)
    written = {b.root for b in written_buffers(launch.body)}
    for loop, pipeline in pipelines.items():
        boxes = [box_of(c.src, c.dst, layouts[c.dst.buffer]) for c in pipeline.copies]
        is_padded = any(c.src.buffer in padded for c in pipeline.copies)
        if is_padded or None in boxes or not _reachable(launch.body, pipeline.loop, written):
            return plain
        if has_jump(pipeline.loop.body):
            return plain
        nested = _is_nested(launch.body, pipeline.loop, False)
        groups = [
            group_of(c, pipeline.loop, launch) if target.tma_reaches_cluster else None
            for c in pipeline.copies
        ]
        made[loop] = replace(
            pipeline, boxes=tuple(b for b in boxes if b is not None), is_nested=nested,
            groups=tuple(groups) if any(groups) else (),
        )  # fmt: skip
    return made


def stores_of(
    launch: KernelLaunch, layouts: Mapping[Buffer, SharedLayout], stages: Mapping[Buffer, int]
) -> dict[Stmt, Box]:
    """Return the copies of shared tiles to tensors that one thread hands over as boxes.

    Only tensors that nothing in the launch reads: what arrives is not waited for by other blocks.
    A box that is stored may end outside its tensor, but not begin below 0 (PTX ISA 9.1, section
    9.7.9.27.1.1, restrictions on the direction .global.shared::cta).
    """
    read = {b.root for b in read_buffers(launch.body)}
    signs = Signs(launch)
    found: dict[Stmt, Box] = {}
    for stmt in walk(launch.body):
        if not isinstance(stmt, Copy) or stmt.src.buffer not in layouts:
            continue
        tensor, tile = stmt.dst.buffer, stmt.src.buffer
        if not is_plain(tensor, tile) or tile in stages or tensor in read:
            continue
        if not all(map(signs.never_negative, stmt.dst.offsets)):
            continue
        box = box_of(stmt.dst, stmt.src, layouts[tile])
        if box is not None:
            found[stmt] = box
    return found


def running_stores(
    launch: KernelLaunch,
    stores: Mapping[Stmt, Box],
    updates: Mapping[Stmt, BoxUpdate],
    teams: Teams,
) -> frozenset[Stmt]:
    """Return the stores and updates that may run on: the program waits, or nothing needs them soon.

    Stores are in no order. One that happens once, to a tensor that nothing else of the launch
    writes, need not be complete before the kernel ends. In a loop that is waited for where the
    threads meet next, if tiles are all that the launch writes and nothing reads them again. Roles
    may not tell each other of tiles. So it is with updates, whose order does not matter.
    """
    repeated = {s for n in walk(launch.body) if isinstance(n, (For, nodes.While)) for s in walk(n)}
    written = [b.root for s in walk(launch.body) for b in writes(s)]
    targets = {s.dst.buffer.root for s in stores if isinstance(s, Copy)}
    targets |= {u.there.buffer.root for u in updates.values()}
    is_all = all(b in targets for b in written if b.scope == "global")
    read = {b.root for b in read_buffers(launch.body)}
    told = {s for s in stores if isinstance(s, Copy) and RUNS_ON in s.annotations}
    found = set[Stmt]()
    for stmt in stores:
        if isinstance(stmt, Copy) and written.count(stmt.dst.buffer.root) == 1:
            is_needed = stmt.dst.buffer.root in read
            if stmt not in repeated or (is_all and not is_needed):
                found.add(stmt)
    for stmt, update in updates.items():
        tensor = update.there.buffer.root
        alike = [u for u in updates.values() if u.there.buffer.root is tensor and u.op == update.op]
        if written.count(tensor) == len(alike) and (stmt not in repeated or is_all):
            found.add(stmt)
    return frozenset(told | {s for s in found if teams.team(s) == teams.whole})


def loads_of(launch: KernelLaunch, layouts: Mapping[Buffer, SharedLayout]) -> dict[Stmt, Box]:
    """Return the copies on a barrier of the program's own that one thread asks for as boxes."""
    waited: dict[Stmt, Copy] = {
        s: s for s in walk(launch.body) if isinstance(s, Copy) and s.barrier is not None
    }
    return _incoming(launch, waited, layouts)


def multicasts_of(launch: KernelLaunch, layouts: Mapping[Buffer, SharedLayout]) -> dict[Stmt, Box]:
    """Return the copies to several blocks of a cluster that one of them asks for as boxes."""
    shared_out: dict[Stmt, Copy] = {
        s: s.copy for s in walk(launch.body) if isinstance(s, nodes.ClusterCopy) and s.block is None
    }
    return _incoming(launch, shared_out, layouts)


def _incoming(
    launch: KernelLaunch, copies: Mapping[Stmt, Copy], layouts: Mapping[Buffer, SharedLayout]
) -> dict[Stmt, Box]:
    """Return the boxes of copies to shared tiles, by the statements that ask for them.

    Not of tensors that the launch writes: threads' writes are not ordered with what the accelerator
    reads (PTX ISA 9.1, section 9.7.9.25.2, async proxy).
    """
    if not all(int_value(t) == 1 for t in launch.threads[1:]):
        return {}  # the thread is chosen by its warp
    padded = pads(launch)
    written = {b.root for b in written_buffers(launch.body)}
    found: dict[Stmt, Box] = {}
    for stmt, copy in copies.items():
        tensor, tile = copy.src.buffer, copy.dst.buffer
        if tile not in layouts or not is_plain(tensor, tile) or tensor in padded:
            continue
        if tensor.root in written:
            continue
        box = box_of(copy.src, copy.dst, layouts[tile])
        if box is not None:
            found[stmt] = box
    return found


def is_plain(tensor: Buffer, tile: Buffer) -> bool:
    """Return whether a tensor map can describe a tensor, and its elements are those of a tile."""
    base = tensor.base
    is_alike = base is None or (
        base.dtype == tensor.dtype
        and (base.ndim == tensor.ndim or (tensor.static_shape is not None and base.strides is None))
    )
    is_whole = tensor.scope == "global" and is_alike and tensor.address is None
    return is_whole and tensor.dtype == tile.dtype and not tensor.dtype.is_packed


def box_of(there: Region, here: Region, layout: SharedLayout) -> Box | None:
    """Return the box that a part of a shared tile has in a tensor, or None where there is none.

    Args:
        there: of the tensor.
        here: of the tile.
        layout: of the tile.
    """
    tensor, kept = there.buffer, kept_axes(there)
    itemsize = tensor.dtype.itemsize
    root = tensor.root
    if tensor.ndim > MAX_AXES or root.address is not None or not kept:
        return None  # maps are made before the launch
    if kept[-1] != tensor.ndim - 1 or kept_axes(here)[-1:] != (len(layout.shape) - 1,):
        return None
    if not _has_strides_of_maps(tensor):
        return None
    known = [int_value(e) for e in there.extents]
    extents = [e for e in known if e is not None]
    if len(extents) < len(known) or not _lies_in_boxes(here, layout):
        return None
    width = layout.swizzle_bytes // itemsize or extents[-1]
    if extents[-1] % width or width * itemsize % CHUNK_BYTES:
        return None
    box = (*extents[:-1], width)
    return Box(tensor, box, extents[-1] // width) if max(box) <= MAX_EXTENT else None


def _has_strides_of_maps(tensor: Buffer) -> bool:
    """Return whether rows are contiguous, and other strides known multiples of 16 bytes."""
    itemsize, strides = tensor.dtype.itemsize, tensor.strides
    if strides is None:
        row = divisor(tensor.shape[-1], {})  # such a multiple makes all strides multiples
        return tensor.root.strides is None and row > 0 and row * itemsize % CHUNK_BYTES == 0
    steps = [divisor(s, {}) for s in strides[:-1]]
    is_known = all(s > 0 and s * itemsize % CHUNK_BYTES == 0 for s in steps)
    return int_value(strides[-1]) == 1 and is_known


def _lies_in_boxes(here: Region, layout: SharedLayout) -> bool:
    """Return whether a part of a tile is rows side by side that begin where boxes may."""
    shape, rows = layout.shape, layout.elements // layout.shape[-1]
    known = [int_value(e) for e in here.extents]
    extents = [e for e in known if e is not None]
    if len(extents) < len(known):
        return False
    first = next((a for a, e in enumerate(extents) if e > 1), len(extents) - 1)
    if any(extents[a] != shape[a] for a in range(first + 1, len(shape) - 1)):
        return False  # rows with gaps between them
    column, row = divisor(here.offsets[-1], {}), 0  # 0: at the beginning
    for axis in range(len(shape) - 1):
        row = math.gcd(row, divisor(here.offsets[axis], {}) * math.prod(shape[axis + 1 : -1]))
    if layout.swizzle_bytes:  # panels begin where a swizzle does
        width = layout.swizzle_bytes // layout.itemsize
        return rows % SWIZZLE_ROWS == 0 and row % SWIZZLE_ROWS == 0 and column % width == 0
    if layout.leading != shape[-1] or layout.alignment % BOX_ALIGNMENT:
        return False  # small tiles lie side by side
    is_row = math.prod(extents[:-1]) == 1
    place = math.gcd(row * layout.leading, column) * layout.itemsize
    return place % BOX_ALIGNMENT == 0 and (is_row or extents[-1] == shape[-1])


def _is_nested(stmt: Stmt, loop: For, inside: bool) -> bool:
    """Return whether ``loop`` stands in another loop."""
    if stmt is loop:
        return inside
    deeper = inside or isinstance(stmt, (For, nodes.While))
    return any(_is_nested(child, loop, deeper) for child in children(stmt))


def _reachable(stmt: Stmt, loop: For, written: Set[Buffer]) -> bool:
    """Return whether what leads to ``loop`` depends on nothing that the launch computes."""
    if isinstance(stmt, nodes.Jump) or not leads_to(stmt, loop):
        return True
    if stmt is loop:
        return not _reads(stmt, written)
    if isinstance(stmt, nodes.Seq):
        lets = all(not _reads(s, written) for s in stmt.stmts if isinstance(s, nodes.Let))
        return lets and all(_reachable(s, loop, written) for s in stmt.stmts)
    if isinstance(stmt, (For, nodes.If)):
        inside = all(_reachable(s, loop, written) for s in children(stmt))
        return inside and not _reads(stmt, written)
    return False


def _reads(stmt: Stmt, written: Set[Buffer]) -> bool:
    """Return whether a statement's own expressions load what the launch computes."""
    loaded = {n.buffer for e in expressions(stmt) for n in walk_expr(e) if isinstance(n, Load)}
    return any(b.root.scope != "global" or b.root in written for b in loaded)
