"""What lies in tiles while blocks wait for each other: it waits in main memory.

A launch whose blocks all wait for each other is several launches (ir.grid_sync). A tile that a
later one reads is copied to a workspace with a place for each block (for each thread, where the
tile is a thread's own) at the end of the launch that wrote it, and back where the next one starts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tilecore.ir import nodes
from tilecore.ir.expr import Expr, Load, Var, const
from tilecore.ir.nodes import Buffer, Region, Stmt


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Who has a place of its own in a workspace: the blocks of a grid and their threads.

    ``thread_vars`` is empty in a program that never asks for its thread.
    """

    block_vars: tuple[Var, ...]
    grid: tuple[Expr, ...]
    thread_vars: tuple[Var, ...]
    threads: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A tile and the workspace that keeps it, of shape (owners..., *tile.shape)."""

    tile: Buffer
    workspace: Buffer
    owner: tuple[Expr, ...]

    def save(self) -> Stmt:
        """Return the statement that copies the tile to its workspace."""
        return self._moved(is_back=False)

    def restore(self) -> Stmt:
        """Return the statement that copies the tile back from its workspace."""
        return self._moved(is_back=True)

    def _moved(self, *, is_back: bool) -> Stmt:
        if self.tile.scope == "local":
            return self._one_by_one(is_back=is_back)
        start, one = tuple(const(0) for _ in self.tile.shape), tuple(const(1) for _ in self.owner)
        tile = Region(self.tile, start, self.tile.shape)
        place = Region(self.workspace, (*self.owner, *start), (*one, *self.tile.shape))
        src, dst = (place, tile) if is_back else (tile, place)
        return nodes.Copy(src, dst, span=self.tile.span)

    def _one_by_one(self, *, is_back: bool) -> Stmt:
        tile, span = self.tile, self.tile.span
        loops = [Var(f"kept_{axis}", const(0).dtype) for axis in range(tile.ndim)]
        index: tuple[Expr, ...] = (const(0),) if tile.is_var else tuple(loops)
        place = (*self.owner, *index)
        body: Stmt = nodes.Store(self.workspace, place, Load(tile, index, tile.dtype), span)
        if is_back:
            body = nodes.Store(tile, index, Load(self.workspace, place, tile.dtype), span)
        if tile.is_var:
            return body
        for var, size in zip(reversed(loops), reversed(tile.shape), strict=True):
            body = nodes.For(var, const(0), size, const(1), "serial", body, span=span)
        return body


def may_be_kept(tile: Buffer, places: Places) -> bool:
    """Return whether a tile can lie in main memory for a while.

    Shared tiles and fragments can, and what is private to a thread of a program written per
    thread; barriers, views and sums of reducers that are not told yet cannot.
    """
    if tile.arrive_counts is not None or tile.in_tensor_memory or tile.base is not None:
        return False
    if tile.scope == "local":
        return bool(places.thread_vars)
    return tile.scope == "shared" or (tile.scope == "fragment" and tile.reducer is None)


def kept(tiles: Sequence[Buffer], places: Places) -> list[Kept]:
    """Return a workspace for each of ``tiles``."""
    return [_workspace(tile, places) for tile in tiles]


def _workspace(tile: Buffer, places: Places) -> Kept:
    owner: tuple[Expr, ...] = tuple(reversed(places.block_vars))
    sizes = tuple(reversed(places.grid))
    if tile.scope == "local":
        owner += tuple(reversed(places.thread_vars))
        sizes += tuple(itertools.islice(reversed(places.threads), len(places.thread_vars)))
    shape = (*sizes, *tile.shape)
    workspace = Buffer(f"{tile.name}_kept", shape, tile.dtype, span=tile.span)
    return Kept(tile, workspace, owner)
