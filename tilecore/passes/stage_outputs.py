"""stage_outputs: sums of products go to tensors by way of shared memory.

The threads of a tensor core instruction hold pairs of elements of many rows; written from there,
half of each 32-byte sector goes to memory at a time. From a shared tile whole rows are written.
"""

from __future__ import annotations

import dataclasses

from tilecore.ir import nodes
from tilecore.ir.analysis import covers_whole, kept_axes
from tilecore.ir.expr import int_value
from tilecore.ir.indexing import whole
from tilecore.ir.nodes import Buffer, Copy, Gemm, KernelLaunch, PrimFunc, Stmt
from tilecore.ir.visitor import Rewriter, walk

CHUNK_BYTES = 16


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with a shared tile between accumulators and the tensors they go to."""
    return dataclasses.replace(func, body=_Launches().visit(func.body))


class _Launches(Rewriter):
    def visit_kernellaunch(self, launch: KernelLaunch) -> Stmt:
        sums = {s.c.buffer for s in walk(launch.body) if isinstance(s, Gemm)}
        return _Stager(sums).rebuild(launch)


class _Stager(Rewriter):
    def __init__(self, sums: set[Buffer]) -> None:
        self.sums = sums

    def visit_copy(self, copy: Copy) -> Stmt:
        if not self._is_output(copy):
            return copy
        shape = tuple(copy.src.extents[a] for a in kept_axes(copy.src))
        name = f"{copy.dst.buffer.name}_tile"
        tile = Buffer(name, shape, copy.dst.buffer.dtype, "shared", span=copy.span)
        to_tile = dataclasses.replace(copy, dst=whole(tile))
        to_tensor = dataclasses.replace(copy, src=whole(tile))
        return nodes.Seq((nodes.Alloc(tile, copy.span), to_tile, to_tensor), copy.span)

    def _is_output(self, copy: Copy) -> bool:
        """Return whether a copy takes sums to rows of a tensor that are worth the way."""
        source, target = copy.src, copy.dst
        if source.buffer not in self.sums or target.buffer.scope != "global":
            return False
        if source.buffer.scope != "fragment" or not covers_whole(source):
            return False
        if len(kept_axes(source)) != 2 or kept_axes(target)[-1:] != (target.buffer.ndim - 1,):
            return False
        row = int_value(source.extents[-1])
        return row is not None and row * target.buffer.dtype.itemsize % CHUNK_BYTES == 0
