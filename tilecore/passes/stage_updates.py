"""stage_updates: sums of products that are added to a tensor go there as whole shared tiles.

The tensor memory accelerator adds a tile to a tensor while threads go on (``inference/gpu/
updates.py``), in whole sectors of 32 bytes. From registers each thread adds element by element,
half of a sector's at a time: on an H200 gradients of attention did that at 2.3e11 to 2.6e11 float32
a second, whatever their tiles, about one a clock and multiprocessor (2026-11-27, measured with
benchmarks/gpu_peers.py), and waited for nothing else.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tilecore.inference.gpu.copies.updates import offset_of, takes_tile
from tilecore.ir import nodes
from tilecore.ir.expr import Expr, Load, Var, binary, const, int_value
from tilecore.ir.nodes import (
    Atomic,
    Buffer,
    Gemm,
    KernelLaunch,
    Parallel,
    PrimFunc,
    Region,
    Stmt,
)
from tilecore.ir.values.evaluate import evaluate
from tilecore.ir.visitor import Rewriter, per_launch, walk, walk_expr

MOST_COLUMNS = 1024  # of a tile whose places are computed one by one
UPDATED = "float32"  # what products sum up in


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with a shared tile between sums and the tensors they are added to."""
    return per_launch(func, _staged)


def _staged(launch: KernelLaunch) -> Stmt:
    if launch.thread_vars:
        return launch
    return _Stager(launch).rebuild(launch)


class _Stager(Rewriter):
    def __init__(self, launch: KernelLaunch) -> None:
        self.sums = {s.c.buffer for s in walk(launch.body) if isinstance(s, Gemm)}
        self.launch = launch

    def visit_parallel(self, nest: Parallel) -> Stmt:
        """Split a nest that adds all of some sums: it fills a tile, another one adds that."""
        inner = nest.body.stmts if isinstance(nest.body, nodes.Seq) else (nest.body,)
        atomic = inner[0]
        if len(inner) != 1 or not isinstance(atomic, Atomic) or not self._is_of_sums(nest, atomic):
            return nest
        place = _place(nest, atomic.indices[-1])
        if place is None:
            return nest
        column, start = place
        tensor, row, span = atomic.buffer, nest.loop_vars[0], nest.span
        tile = Buffer(f"{tensor.name}_tile", nest.extents, tensor.dtype, "shared", span=span)
        outer = atomic.indices[:-2]
        rows = offset_of(atomic.indices[-2], row)
        if rows is None or any(n is nest.loop_vars[1] for n in walk_expr(rows)):
            return nest
        first = (*outer, rows, const(start))
        sizes = (*(const(1) for _ in outer), *nest.extents)
        if not takes_tile(self.launch, Region(tensor, first, sizes), tile):
            return nest
        filled = nodes.Store(tile, (row, column), atomic.value, span)
        names = tuple(Var(v.name, v.dtype) for v in nest.loop_vars)
        there = (*outer, *(binary("add", o, n) for o, n in zip(first[-2:], names, strict=True)))
        added = dataclasses.replace(atomic, indices=there, value=Load(tile, names, tile.dtype))
        stmts = (
            nodes.Alloc(tile, span),
            dataclasses.replace(nest, body=filled),
            dataclasses.replace(nest, loop_vars=names, body=added),
        )
        return nodes.Seq(stmts, span)

    def _is_of_sums(self, nest: Parallel, atomic: Atomic) -> bool:
        """Return whether a nest adds all of some sums to rows of a tensor, in order."""
        value, names = atomic.value, nest.loop_vars
        if len(names) != 2 or atomic.op != "add" or atomic.prev is not None:
            return False
        if not isinstance(value, Load) or value.buffer not in self.sums:
            return False
        if value.buffer.scope != "fragment" or str(value.buffer.dtype) != UPDATED:
            return False
        if list(map(id, value.indices)) != list(map(id, names)):
            return False
        extents = tuple(map(int_value, nest.extents))
        if value.buffer.static_shape != extents or str(atomic.buffer.dtype) != UPDATED:
            return False
        if atomic.buffer.scope != "global" or atomic.buffer.ndim < 2:
            return False
        used = {n for e in atomic.indices[:-2] for n in walk_expr(e)}
        return not used & set(names)


def _place(nest: Parallel, index: Expr) -> tuple[Expr, int] | None:
    """Return (the column of the tile, the first of the tensor) that an index is in the last axis.

    None where it is not the columns side by side, in any order, of each row.
    """
    rows, columns = (int_value(e) for e in nest.extents)
    free = {n for n in walk_expr(index) if isinstance(n, Var)} - set(nest.loop_vars)
    loads = any(isinstance(n, Load) for n in walk_expr(index))
    if rows is None or columns is None or columns > MOST_COLUMNS or free or loads:
        return None
    row, column = nest.loop_vars
    names = {row: np.arange(rows)[:, None], column: np.arange(columns)[None, :]}
    places = np.broadcast_to(np.asarray(evaluate(index, names)), (rows, columns))
    start = int(places.min())
    if np.any(np.sort(places, axis=1) != np.arange(columns) + start):
        return None
    return (binary("sub", index, start) if start else index), start
