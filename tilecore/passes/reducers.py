"""reducers: what all points of a nest update in a reducer is folded after the nest.

Points of several threads may update one element of ``T.alloc_reducer``: by an atomic update of
shared memory each, in any order. A tile of what each point adds, and a reduction of it, do the same
in registers, and always in one order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilecore.ir.expr import Expr, Load, Var, binary, cast, const, int_value
from tilecore.ir.fold import identity, reducer_update
from tilecore.ir.indexing import whole
from tilecore.ir.nodes import (
    Alloc,
    Buffer,
    Fill,
    KernelLaunch,
    Parallel,
    PrimFunc,
    Reduce,
    Seq,
    Stmt,
    Store,
)
from tilecore.ir.substitute import Rebuilder
from tilecore.ir.visitor import Rewriter, flat, loads, per_launch, walk

FOLDS = {"add": "sum", **{op: op for op in ("max", "min", "bitand", "bitor", "bitxor")}}
MOST_REGISTERS = 128  # of a thread, for what its points add


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with reductions in the place of what nests add to reducers."""
    return per_launch(func, _with_folds)


def _with_folds(launch: KernelLaunch) -> Stmt:
    """Return a launch whose reducers are plain tiles, as far as all their updates allow it."""
    threads = math.prod(int_value(e) or 0 for e in launch.threads)
    nests = [s for s in walk(launch.body) if isinstance(s, Parallel)]
    plain = {
        s.buffer for s in walk(launch.body) if isinstance(s, Alloc) and s.buffer.reducer is not None
    }
    plain -= _updated_elsewhere(launch, nests)
    for nest in nests:
        for reducer in plain & _reducers_of(nest):
            if _kept(nest, reducer, threads) is None:
                plain.discard(reducer)
    if not plain:
        return launch
    folds = _Folds(plain, threads)
    body = _Plain(plain).stmt(folds.visit(launch.body))
    return replace(launch, body=Seq((*folds.allocs, body), launch.span))


def _reducers_of(nest: Parallel) -> set[Buffer]:
    return {s.buffer for s in walk(nest.body) if isinstance(s, Store) and s.buffer.reducer}


def _updated_elsewhere(launch: KernelLaunch, nests: list[Parallel]) -> set[Buffer]:
    """Return the reducers that statements outside of nests store to."""
    inside = {id(s) for nest in nests for s in walk(nest.body)}
    return {s.buffer for s in walk(launch.body) if isinstance(s, Store) and id(s) not in inside}


@dataclass(frozen=True)
class _Kept:
    """How a nest updates a reducer: by which operation, and which of its loops are folded."""

    op: str
    folded: tuple[int, ...]


def _kept(nest: Parallel, reducer: Buffer, threads: int) -> _Kept | None:
    """Return how a nest updates a reducer; None: by more than one element for each point."""
    extents = [int_value(e) or 0 for e in nest.extents]
    points = math.prod(extents)
    if not threads or not 0 < points <= MOST_REGISTERS * threads or reducer.dtype == "bool":
        return None
    updates = [s for s in walk(nest.body) if isinstance(s, Store) and s.buffer is reducer]
    found = [reducer_update(s) for s in updates]
    read = sum(x.buffer is reducer for s in walk(nest.body) for x in loads(s))
    loops = {_loops_of(nest, s.indices, reducer) for s in updates}
    ops = {None if f is None or f[0] not in FOLDS else f[0] for f in found}
    if read != len(updates) or len(loops) != 1 or len(ops) != 1:
        return None
    (kept,), (op,) = loops, ops
    if kept is None or op is None or isinstance(nest.body, Parallel):
        return None
    return _Kept(op, tuple(p for p in range(len(extents)) if p not in kept))


def _loops_of(nest: Parallel, indices: tuple[Expr, ...], reducer: Buffer) -> tuple[int, ...] | None:
    """Return the loops, in order, that run through the axes of a reducer; None: something else."""
    found: list[int] = []
    for index, extent in zip(indices, reducer.shape, strict=True):
        size = int_value(extent)
        if size == 1 and int_value(index) == 0:
            continue
        position = next((p for p, v in enumerate(nest.loop_vars) if v is index), None)
        if position is None or int_value(nest.extents[position]) != size:
            return None
        found.append(position)
    return tuple(found) if found == sorted(set(found)) else None


class _Folds(Rewriter):
    def __init__(self, plain: set[Buffer], threads: int) -> None:
        self.plain, self.threads = plain, threads
        self.allocs: list[Alloc] = []

    def visit_seq(self, stmt: Seq) -> Stmt:
        """Return the statements, with those of nests among them."""
        new = [self.visit(s) for s in stmt.stmts]
        same = all(a is b for a, b in zip(new, stmt.stmts, strict=True))
        return stmt if same else replace(stmt, stmts=tuple(flat(new)))

    def visit_parallel(self, nest: Parallel) -> Stmt:
        """Return a nest that stores what each point adds, between clears and reductions."""
        before: list[Stmt] = []
        after: list[Stmt] = []
        tiles: dict[Buffer, Buffer] = {}
        top = {id(s) for s in flat([nest.body])}
        for reducer in sorted(self.plain & _reducers_of(nest), key=lambda b: b.name):
            kept = _kept(nest, reducer, self.threads)
            assert kept is not None
            if not kept.folded:  # each point has an element of its own
                continue
            tile = Buffer(f"{reducer.name}_points", nest.extents, reducer.dtype, "fragment")
            tiles[reducer] = tile
            self.allocs.append(Alloc(tile, nest.span))
            updates = [s for s in walk(nest.body) if isinstance(s, Store) and s.buffer is reducer]
            op, span = FOLDS[kept.op], nest.span
            if len(updates) > 1 or id(updates[0]) not in top:
                start = const(identity(op, reducer.dtype), reducer.dtype)
                before.append(Fill(whole(tile), start, span))
            after.append(
                Reduce(op, whole(tile), whole(reducer), kept.folded, clear=False, span=span)
            )
        if not tiles:
            return nest
        filled = {f.dst.buffer for f in before if isinstance(f, Fill)}
        made = _Points(nest.loop_vars, tiles, filled).visit(nest)
        return Seq((*before, made, *after), nest.span)


class _Points(Rewriter):
    """Updates of reducers as those of tiles that have an element for each point."""

    def __init__(
        self, names: tuple[Var, ...], tiles: dict[Buffer, Buffer], filled: set[Buffer]
    ) -> None:
        self.names, self.tiles, self.filled = names, tiles, filled

    def visit_store(self, stmt: Store) -> Stmt:
        """Return the store of what a point adds."""
        tile, found = self.tiles.get(stmt.buffer), reducer_update(stmt)
        if tile is None or found is None:
            return stmt
        op, value = found
        if tile in self.filled:
            value = binary(op, Load(tile, self.names, tile.dtype), value)
        return Store(tile, self.names, cast(value, tile.dtype), stmt.span)


class _Plain(Rebuilder):
    """Reducers as tiles that are none."""

    def __init__(self, plain: set[Buffer]) -> None:
        super().__init__()
        self.plain = {buffer: replace(buffer, reducer=None) for buffer in plain}

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return the tile in the place of a reducer."""
        return self.plain[buffer] if buffer in self.plain else super().buffer(buffer)
