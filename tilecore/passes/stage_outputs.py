"""stage_outputs: sums of products go to tensors by way of shared memory.

The threads of a tensor core instruction hold pairs of elements of many rows; written from there,
half of each 32-byte sector goes to memory at a time. From a shared tile whole rows are written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from tilecore.ir import nodes
from tilecore.ir.analysis import covers_whole, kept_axes
from tilecore.ir.arithmetic.bounds import step_of
from tilecore.ir.arithmetic.polynomial import is_equal
from tilecore.ir.expr import Expr, Load, Var, int_value
from tilecore.ir.indexing import whole
from tilecore.ir.nodes import Buffer, Copy, Gemm, If, KernelLaunch, Parallel, PrimFunc, Stmt, Store
from tilecore.ir.substitute import Substitution
from tilecore.ir.visitor import Rewriter, flat, loads, per_launch, walk, walk_expr

CHUNK_BYTES, SECTOR_BYTES = 16, 32
TOGETHER = 8  # neighbours of a row that the threads of an instruction hold


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with a shared tile between accumulators and the tensors they go to."""
    return per_launch(func, _staged)


def _conditional(stmt: Stmt) -> tuple[list[Expr], Stmt]:
    """Return a statement without what stands around it, and the conditions that do."""
    match stmt:
        case nodes.Seq(stmts=(only,)):
            return _conditional(only)
        case If(cond=cond, then_body=then, else_body=None):
            conditions, body = _conditional(then)
            return [cond, *conditions], body
        case _:
            return [], stmt


def _under(conditions: Sequence[Expr], stmt: Stmt) -> Stmt:
    for cond in reversed(conditions):
        stmt = If(cond, stmt, span=stmt.span)
    return stmt


def _is_held(value: Expr, nest: Parallel) -> bool:
    """Return whether a value is made of fragments' elements at the indices of a nest alone."""
    names = list(map(id, nest.loop_vars))
    taken = [part for part in walk_expr(value) if isinstance(part, Load)]
    return all(p.buffer.scope == "fragment" and list(map(id, p.indices)) == names for p in taken)


def _staged(launch: KernelLaunch) -> Stmt:
    return _Stager(sums_of(walk(launch.body))).rebuild(launch)


def sums_of(stmts: Iterable[Stmt]) -> set[Buffer]:
    """Return the sums of products, and the fragments that nests make of them in place."""
    found: set[Buffer] = set()
    for stmt in stmts:
        match stmt:
            case Gemm(c=c):
                found.add(c.buffer)
            case Parallel():
                made, taken = in_place(stmt)
                found |= made if taken & found else set()
            case _:
                pass
    return found


def in_place(nest: Parallel) -> tuple[set[Buffer], set[Buffer]]:
    """Return the fragments that a nest fills whole, and those whose elements it takes for that.

    Each element is made of those at its own place: registers may be the same.
    """

    def is_whole(buffer: Buffer, indices: Sequence[Expr]) -> bool:
        is_point = list(map(id, indices)) == list(map(id, nest.loop_vars))
        return is_point and all(map(is_equal, buffer.shape, nest.extents))

    read = [p for s in walk(nest.body) for p in loads(s)]
    stored = [s for s in flat([nest.body]) if isinstance(s, Store)]
    made, taken = (
        {x.buffer for x in found if x.buffer.scope == "fragment" and is_whole(x.buffer, x.indices)}
        for found in (stored, read)
    )
    return made, taken


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

    def visit_parallel(self, nest: Parallel) -> Stmt:
        """Split a nest that stores what it makes of sums: it fills a tile, another one stores."""
        conditions, body = _conditional(nest.body)
        if not isinstance(body, Store) or not self._is_of_sums(nest, body):
            return nest
        again = [part for e in (*conditions, *body.indices) for part in walk_expr(e)]
        if any(isinstance(p, Load) and p.buffer.scope not in ("global", "shared") for p in again):
            return nest  # the threads that store would have to hold it, too
        name, dtype = f"{body.buffer.name}_tile", body.buffer.dtype
        tile = Buffer(name, nest.extents, dtype, "shared", span=nest.span)
        names = tuple(Var(var.name, var.dtype) for var in nest.loop_vars)
        there = Substitution(dict(zip(nest.loop_vars, names, strict=True)))
        value = Load(tile, names, tile.dtype)
        filled = Store(tile, nest.loop_vars, body.value, body.span)
        stored = Store(body.buffer, tuple(map(there.expr, body.indices)), value, body.span)
        # What registers hold may fill the tile whole, which matrix instructions do.
        to_tile = filled if _is_held(body.value, nest) else _under(conditions, filled)
        to_tensor = _under([there.expr(cond) for cond in conditions], stored)
        stmts = (
            nodes.Alloc(tile, nest.span),
            dataclasses.replace(nest, body=to_tile),
            dataclasses.replace(nest, loop_vars=names, body=to_tensor),
        )
        return nodes.Seq(stmts, nest.span)

    def _is_of_sums(self, nest: Parallel, store: Store) -> bool:
        """Return whether a nest goes through all of some sums, row by row of a tensor."""
        target, names = store.buffer, nest.loop_vars
        if len(names) != 2 or target.scope != "global" or target.dtype.is_packed:
            return False
        if TOGETHER * target.dtype.itemsize >= SECTOR_BYTES:
            return False
        taken = {
            part.buffer
            for part in walk_expr(store.value)
            if isinstance(part, Load) and list(map(id, part.indices)) == list(map(id, names))
        }
        extents = tuple(map(int_value, nest.extents))
        if not any(b.scope == "fragment" and b.static_shape == extents for b in taken & self.sums):
            return False
        *rows, last = store.indices
        is_row = step_of(last, names[1]) == 1 and all(step_of(i, names[1]) == 0 for i in rows)
        return is_row and (extents[-1] or 0) * target.dtype.itemsize % CHUNK_BYTES == 0

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
