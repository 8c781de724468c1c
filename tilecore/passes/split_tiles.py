"""split_tiles: a tile that a nest computes anew from a copy of a tensor is another tile from there.

``copy(X, x); ...; x = f(x); ...`` becomes ``copy(X, x); ...; x_new = f(x); ...``. What ``x`` holds
is then a box of X wherever it is read, so that the copy need not be made
(inference/cpu/in_place.py).
"""

from __future__ import annotations

import dataclasses

from tilecore.inference.cpu.in_place import is_as_cheap
from tilecore.ir.analysis import covers_whole, overwrites, written_buffers
from tilecore.ir.nodes import (
    Alloc,
    Annotate,
    Buffer,
    Copy,
    Gemm,
    KernelLaunch,
    Parallel,
    PrimFunc,
    Reduce,
    Seq,
    Stmt,
    Store,
)
from tilecore.ir.substitute import Rebuilder
from tilecore.ir.visitor import Rewriter, buffers_of, children, flat, loads, per_launch, walk


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with such tiles as two."""
    return per_launch(func, _split_launch)


def _split_launch(launch: KernelLaunch) -> Stmt:
    return _Splitter(launch).rebuild(launch)


class _Splitter(Rewriter):
    def __init__(self, launch: KernelLaunch) -> None:
        self.launch = launch
        self.viewed = {b.base for b in buffers_of(launch)}
        hints = [s.value for s in walk(launch) if isinstance(s, Annotate) and s.key == "layout"]
        self.annotated = {buffer for layouts in hints for buffer in layouts}
        gemms = [s for s in walk(launch) if isinstance(s, Gemm)]
        self.operands = {region.buffer for g in gemms for region in (g.a, g.b)}
        self.new: dict[Buffer, Buffer] = {}

    def visit_seq(self, stmt: Seq) -> Stmt:
        stmts = [self.visit(s) for s in stmt.stmts]
        for position, copy in enumerate(stmts):
            if isinstance(copy, Copy) and self._may_split(copy, stmt):
                _split(stmts, position, self.new)
        for position in reversed(range(len(stmts))):
            alloc = stmts[position]
            if isinstance(alloc, Alloc) and alloc.buffer in self.new:
                stmts.insert(position + 1, Alloc(self.new[alloc.buffer], alloc.span))
        same = len(stmts) == len(stmt.stmts) and all(
            a is b for a, b in zip(stmts, stmt.stmts, strict=True)
        )
        return stmt if same else dataclasses.replace(stmt, stmts=tuple(stmts))

    def _may_split(self, copy: Copy, seq: Seq) -> bool:
        """Return whether a copy sets a tile that nothing outside ``seq`` knows of."""
        tile = copy.dst.buffer
        if tile.scope == "global" or tile.base is not None or tile.reducer is not None:
            return False
        if tile in self.viewed | self.annotated | self.operands or copy.barrier is not None:
            return False
        is_box = copy.src.buffer.scope == "global" and covers_whole(copy.dst)
        is_known_here = 0 < users(seq, tile) == users(self.launch, tile)
        return is_box and is_as_cheap(copy) and is_known_here


def users(stmt: Stmt, tile: Buffer) -> int:
    """Return how many statements below ``stmt`` do something with a tile themselves."""
    count = 0
    for inside in walk(stmt):
        if any(load.buffer is tile for load in loads(inside)):
            count += 1
        elif not children(inside) and not isinstance(inside, Alloc):
            count += tile in buffers_of(inside)
    return count


def _split(stmts: list[Stmt], position: int, new: dict[Buffer, Buffer]) -> None:
    """Rename the tile that the copy at ``position`` sets from where a nest computes it anew."""
    copy = stmts[position]
    assert isinstance(copy, Copy)
    tile = copy.dst.buffer
    users = [i for i, s in enumerate(stmts) if tile in buffers_of(s) and not isinstance(s, Alloc)]
    if users[0] != position:
        return
    for user in users[1:]:
        stmt = stmts[user]
        if not isinstance(stmt, (Parallel, Reduce)):
            return
        if tile not in written_buffers(stmt):
            continue
        place = overwrites(stmt, tile) if isinstance(stmt, Parallel) else None
        if isinstance(stmt, Parallel) and place is not None:
            names = _Renaming(tile)
            stmts[user] = names.nest(stmt, place)
            stmts[user + 1 :] = [names.stmt(s) for s in stmts[user + 1 :]]
            new[tile] = names.new
        return


class _Renaming(Rebuilder):
    """Gives the memory of a tile another name."""

    def __init__(self, tile: Buffer) -> None:
        super().__init__()
        self.old, self.new = tile, dataclasses.replace(tile, name=f"{tile.name}_new")

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return the tile's new name for the tile."""
        return self.new if buffer is self.old else buffer

    def nest(self, nest: Parallel, place: int) -> Parallel:
        """Return a nest whose statement at ``place`` sets the new tile."""
        stmts = flat([nest.body])
        store = stmts[place]
        assert isinstance(store, Store)
        stmts[place] = dataclasses.replace(store, buffer=self.new)
        stmts[place + 1 :] = [self.stmt(s) for s in stmts[place + 1 :]]
        body = stmts[0] if len(stmts) == 1 else Seq(tuple(stmts), nest.body.span)
        return dataclasses.replace(nest, body=body)
