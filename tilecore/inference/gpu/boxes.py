"""Copies by the tensor memory accelerator: which it can do, and in what boxes.

Limits (CUDA driver API, cuTensorMapEncodeTiled): at most 5 axes, boxes of at most 256 along each,
inner rows of a multiple of 16 bytes and no longer than the swizzle, strides of a multiple of 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilecore.inference.gpu.plan import CHUNK_BYTES, Box, Pipeline, SharedLayout
from tilecore.ir import nodes
from tilecore.ir.analysis import covers_whole, kept_axes, pads, read_buffers
from tilecore.ir.expr import Load, int_value
from tilecore.ir.nodes import Buffer, Copy, For, KernelLaunch, Region, Stmt
from tilecore.ir.visitor import children, expressions, walk, walk_expr

MAX_AXES = 5
MAX_EXTENT = 256


def with_boxes(
    launch: KernelLaunch,
    pipelines: Mapping[Stmt, Pipeline],
    layouts: Mapping[Buffer, SharedLayout],
) -> dict[Stmt, Pipeline]:
    """Return the pipelines with boxes, if all copies of the launch can be had in boxes.

    A warpgroup of its own then issues them: it must find its way to the loops without what the
    others compute.
    """
    plain = dict(pipelines)
    flat = all(int_value(t) == 1 for t in launch.threads[1:])
    if launch.thread_vars or not flat:
        return plain
    made: dict[Stmt, Pipeline] = {}
    padded = pads(launch)
    for loop, pipeline in pipelines.items():
        boxes = [box_of(c.src, c.dst, layouts[c.dst.buffer]) for c in pipeline.copies]
        is_padded = any(c.src.buffer in padded for c in pipeline.copies)
        if is_padded or None in boxes or not _reachable(launch.body, pipeline.loop):
            return plain
        nested = _is_nested(launch.body, pipeline.loop, False)
        made[loop] = replace(
            pipeline, boxes=tuple(b for b in boxes if b is not None), is_nested=nested
        )
    return made


def stores_of(
    launch: KernelLaunch, layouts: Mapping[Buffer, SharedLayout], stages: Mapping[Buffer, int]
) -> dict[Stmt, Box]:
    """Return the copies of whole shared tiles to tensors that one thread hands over as boxes.

    Only tensors that nothing in the launch reads: what arrives is not waited for by other blocks.
    """
    read = {b.root for b in read_buffers(launch.body)}
    found: dict[Stmt, Box] = {}
    for stmt in walk(launch.body):
        if not isinstance(stmt, Copy) or stmt.src.buffer not in layouts:
            continue
        tensor, tile = stmt.dst.buffer, stmt.src.buffer
        is_plain = tensor.scope == "global" and tensor.base is None and tensor.address is None
        if not is_plain or tensor.dtype != tile.dtype or tensor.dtype.is_packed or tile in stages:
            continue
        if tensor in read or not covers_whole(stmt.src):
            continue
        box = box_of(stmt.dst, stmt.src, layouts[tile])
        if box is not None:
            found[stmt] = box
    return found


def box_of(there: Region, here: Region, layout: SharedLayout) -> Box | None:
    """Return the box that a whole shared tile has in a tensor, or None where there can be none.

    Args:
        there: of the tensor.
        here: of the tile.
        layout: of the tile.
    """
    tensor, kept = there.buffer, kept_axes(there)
    itemsize = tensor.dtype.itemsize
    root = tensor.root
    if tensor.ndim > MAX_AXES or root.strides is not None or root.address is not None or not kept:
        return None  # maps are made before the launch, of contiguous tensors
    if kept[-1] != tensor.ndim - 1 or kept_axes(here)[-1] != len(layout.shape) - 1:
        return None
    row = int_value(tensor.shape[-1])  # a multiple of 16 bytes makes all strides such multiples
    if row is None or row * itemsize % CHUNK_BYTES:
        return None
    known = [int_value(e) for e in there.extents]
    extents = [e for e in known if e is not None]
    width = layout.swizzle_bytes // itemsize or layout.shape[-1]
    rows = layout.elements // layout.shape[-1]
    if not layout.swizzle_bytes and layout.leading != layout.shape[-1]:
        return None
    if layout.swizzle_bytes and rows % 8:
        return None  # panels would not begin where a swizzle does
    if len(extents) < len(known) or extents[-1] % width or width * itemsize % CHUNK_BYTES:
        return None
    box = (*extents[:-1], width)
    return Box(tensor, box, extents[-1] // width) if max(box) <= MAX_EXTENT else None


def _is_nested(stmt: Stmt, loop: For, inside: bool) -> bool:
    """Return whether ``loop`` stands in another loop."""
    if stmt is loop:
        return inside
    deeper = inside or isinstance(stmt, (For, nodes.While))
    return any(_is_nested(child, loop, deeper) for child in children(stmt))


def _reachable(stmt: Stmt, loop: For) -> bool:
    """Return whether what leads to ``loop`` depends on nothing that the launch computes."""
    if not any(s is loop for s in walk(stmt)):
        return True
    if stmt is loop:
        return not _reads(stmt)
    if isinstance(stmt, nodes.Seq):
        lets = all(not _reads(s) for s in stmt.stmts if isinstance(s, nodes.Let))
        return lets and all(_reachable(s, loop) for s in stmt.stmts)
    if isinstance(stmt, (For, nodes.If)):
        return not _reads(stmt) and all(_reachable(s, loop) for s in children(stmt))
    return False


def _reads(stmt: Stmt) -> bool:
    """Return whether a statement's own expressions load anything."""
    return any(isinstance(n, Load) for e in expressions(stmt) for n in walk_expr(e))
