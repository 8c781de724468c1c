"""shared_operands: operands that a loop with stages copies from tensors lie in shared memory.

The threads of a matrix instruction hold pairs of elements of many rows. A fragment that is copied
straight from a tensor is loaded four bytes at a time, and the product waits for it; a shared tile
comes in whole rows, while the product before runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilecore.ir.analysis import covers_whole
from tilecore.ir.nodes import (
    Alloc,
    Annotate,
    Buffer,
    Copy,
    For,
    Gemm,
    KernelLaunch,
    PrimFunc,
    Stmt,
)
from tilecore.ir.substitute import Rebuilder
from tilecore.ir.visitor import buffers_of, children, flat, loads, per_launch, walk


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with such fragments as shared tiles."""
    return per_launch(func, _in_shared)


def _in_shared(launch: KernelLaunch) -> Stmt:
    """Return a launch; one that knows its threads says itself what they hold."""
    found = set() if launch.thread_vars else operands_of(launch)
    return _InShared(found).stmt(launch) if found else launch


class _InShared(Rebuilder):
    def __init__(self, fragments: set[Buffer]) -> None:
        super().__init__()
        for buffer in fragments:
            self._buffers[id(buffer)] = (buffer, replace(buffer, scope="shared"))


def operands_of(launch: KernelLaunch) -> set[Buffer]:
    """Return the fragments that one copy of a loop fills, and that only products read.

    Those along whose last axis they sum up, which every instruction can read in shared memory.
    """
    copies = {
        copy.dst.buffer: copy
        for loop in walk(launch.body)
        if isinstance(loop, For) and loop.kind == "pipelined"
        for copy in flat([loop.body])
        if isinstance(copy, Copy) and _fills(copy)
    }
    others: set[Buffer] = set()
    for stmt in walk(launch.body):
        if isinstance(stmt, Copy) and copies.get(stmt.dst.buffer) is stmt:
            continue
        if isinstance(stmt, Gemm):
            others |= set(buffers_of(stmt)) - set(_read_in_rows(stmt))
        elif isinstance(stmt, Alloc):
            others |= set() if stmt.buffer.base is None else {stmt.buffer.root}
        elif isinstance(stmt, Annotate) and isinstance(stmt.value, Mapping):
            others |= {key for key in stmt.value if isinstance(key, Buffer)}
        else:
            others |= {x.buffer for x in loads(stmt)} if children(stmt) else buffers_of(stmt)
    return copies.keys() - others


def _fills(copy: Copy) -> bool:
    """Return whether a copy fills a fragment with elements of a tensor as they are."""
    source, tile = copy.src.buffer, copy.dst.buffer
    return (
        (source.scope, tile.scope) == ("global", "fragment")
        and source.dtype == tile.dtype
        and not tile.dtype.is_packed
        and (tile.ndim, tile.base) == (2, None)
        and covers_whole(copy.dst)
    )


def _read_in_rows(gemm: Gemm) -> Iterator[Buffer]:
    """Yield the operands of a product that lie whole in a tile, rows along K."""
    for region, is_upright in ((gemm.a, not gemm.transpose_a), (gemm.b, gemm.transpose_b)):
        if is_upright and covers_whole(region) and region.buffer is not gemm.c.buffer:
            yield region.buffer
