"""Which tensors are written past the caches: large ones that the program itself never reads.

A normal store reads the line it writes to from memory first. For an output that no cache holds that
is a third of all traffic of an elementwise program. Where all tensors together fit well in an L3,
it takes the output, and has it for whoever reads it next (benchmarks/streamed_stores.py).
"""

from __future__ import annotations

import math

from tilecore.ir.analysis import read_buffers, reads, writes, written_buffers
from tilecore.ir.nodes import (
    Alloc,
    Annotate,
    Atomic,
    Buffer,
    Copy,
    Fill,
    For,
    Gemm,
    If,
    KernelLaunch,
    Let,
    Pad,
    Parallel,
    PrimFunc,
    Reduce,
    Scan,
    Seq,
    Stmt,
    Store,
)
from tilecore.ir.visitor import walk

LEAST_BYTES = 8 << 20  # of an output: four times the L2 of today's server cores
MOST_CACHED_BYTES = 20 << 20  # of all tensors: what an L3 of 32 MiB still has at the next call
# Nothing among these lets one block see what another one wrote.
PLAIN = (
    Alloc, Annotate, Copy, Fill, For, Gemm, If, KernelLaunch, Let, Pad, Parallel, Reduce, Scan,
    Seq, Store,
)  # fmt: skip


def streamed_tensors(func: PrimFunc) -> frozenset[Buffer]:
    """Return the parameters whose whole vectors are to be stored past the caches."""
    stmts = list(walk(func.body))
    sums = [stmt for stmt in stmts if isinstance(stmt, Atomic)]
    if not all(isinstance(stmt, PLAIN) or _only_adds(stmt) for stmt in stmts):
        return frozenset()
    others = {b.root for s in stmts if not isinstance(s, Atomic) for b in reads(s)}
    if any(stmt.buffer.root in others for stmt in sums):
        return frozenset()
    unfit = {b.root for b in read_buffers(func.body)}
    for stmt in stmts:
        if not isinstance(stmt, (Copy, Store)):
            unfit |= {b.root for b in writes(stmt)}
    written = {b.root for b in written_buffers(func.body)} - unfit
    sizes = {p: size_bytes(p) for p in func.params if isinstance(p, Buffer)}
    if sum(sizes.values()) <= MOST_CACHED_BYTES:
        return frozenset()
    return frozenset(p for p, size in sizes.items() if p in written and size >= LEAST_BYTES)


def _only_adds(stmt: Stmt) -> bool:
    """Return whether a statement is an update that tells its block nothing of the others."""
    return isinstance(stmt, Atomic) and stmt.prev is None and stmt.order == "relaxed"


def size_bytes(buffer: Buffer) -> int:
    """Return the size of a tensor of known shape, 0 for others and those of strides."""
    shape = buffer.static_shape
    if shape is None or buffer.strides is not None or buffer.dtype.is_packed:
        return 0
    return math.prod(shape) * buffer.dtype.itemsize
