"""Stores of sums by warpgroups that wait for none of the others.

A warpgroup holds rows of its own of the sums of a product. Where they go to memory through a shared
tile, it fills its rows of the tile and hands them over when its own threads have; what others do
does not matter to it. So one warpgroup multiplies while another one stores.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace

from tilecore.inference.gpu.copies.boxes import SWIZZLE_ROWS, running_stores
from tilecore.inference.gpu.plan import (
    BOX_ALIGNMENT,
    Box,
    BoxUpdate,
    NestPlan,
    OwnRows,
    SharedLayout,
)
from tilecore.inference.gpu.shared import sharing_memory
from tilecore.inference.gpu.threads.teams import Teams
from tilecore.ir import nodes
from tilecore.ir.analysis import covers_whole, kept_axes
from tilecore.ir.nodes import RESIDENT, Buffer, Copy, KernelLaunch, Stmt
from tilecore.ir.plain.named_barriers import MOST, named
from tilecore.ir.visitor import flat, roots_of, walk

WARPGROUP = 128
BEFORE = 2  # named barriers: of the block, of the threads that compute


def own_rows(
    launch: KernelLaunch, teams: Teams, nests: Mapping[Stmt, NestPlan],
    places: Mapping[Buffer, SharedLayout], stores: Mapping[Stmt, Box],
    updates: Mapping[Stmt, BoxUpdate],
) -> OwnRows | None:  # fmt: skip
    """Return the tile of a launch that warpgroups store by themselves, if there is one."""
    groups, rest = divmod(teams.whole.count, WARPGROUP)
    if rest or groups < 2 or teams.all or launch.thread_vars or BEFORE + groups > MOST:
        return None
    stmts = list(walk(launch.body))
    if named(stmts):
        return None
    inside = {s for n in stmts if isinstance(n, (nodes.For, nodes.While)) for s in walk(n)}
    if any(isinstance(s, nodes.Annotate) and s.key == RESIDENT for s in stmts):
        inside.clear()
    found = running_stores(launch, stores, updates, teams) - inside
    memory = sharing_memory(places)
    for filled, stored in _pairs(stmts):
        if stored not in found or not _is_alone(filled, stored, stmts, memory):
            continue
        rows, box = _rows(nests.get(filled), groups), stores[stored]
        layout = places[stored.src.buffer]
        axis, *others = kept_axes(stored.dst)
        width = layout.swizzle_bytes or layout.leading * layout.itemsize
        if rows is None or not others or box.extents[axis] % groups:
            continue
        if rows % SWIZZLE_ROWS or rows * width % BOX_ALIGNMENT:
            continue
        step = box.extents[axis] // groups
        extents = tuple(step if a == axis else e for a, e in enumerate(box.extents))
        part = replace(box, extents=extents)
        return OwnRows(filled, stored, rows, axis, step, BEFORE, part)
    return None


def _pairs(stmts: Iterable[Stmt]) -> Iterator[tuple[Copy, Copy]]:
    """Yield the copies that fill a tile, with those right behind them that take it further."""
    for node in stmts:
        for one, other in itertools.pairwise(flat([node]) if isinstance(node, nodes.Seq) else []):
            if not (isinstance(one, Copy) and isinstance(other, Copy)):
                continue
            if one.dst.buffer.root is other.src.buffer:
                yield one, other


def _is_alone(
    filled: Copy, stored: Copy, stmts: Iterable[Stmt], memory: Mapping[Buffer, Set[Buffer]]
) -> bool:
    """Return whether nothing but two copies of all of it is done with a tile."""
    tile = stored.src.buffer
    if memory.get(tile, {tile}) != {tile} or filled.src.buffer.scope != "fragment":
        return False
    if not covers_whole(filled.dst) or not covers_whole(stored.src):
        return False
    around = (nodes.Alloc, nodes.Seq, nodes.For, nodes.While, nodes.If)
    users = [s for s in stmts if not isinstance(s, around) and tile in roots_of(s)]
    return len(users) == 2 and {id(u) for u in users} == {id(filled), id(stored)}


def _rows(nest: NestPlan | None, groups: int) -> int | None:
    """Return how many rows in a row each warpgroup fills, None: not so."""
    if nest is None or nest.points.nest is None or len(nest.distribution.shape) != 2:
        return None
    spread = nest.distribution
    if not spread.axes[0] or spread.is_padded(0):
        return None
    first, *rest = spread.axes[0]
    others = [d for d in (*rest, *spread.axes[1]) if d.in_thread]
    is_first = first.in_thread and (first.stride, first.extent) == (WARPGROUP, groups)
    if not is_first or any(d.stride >= WARPGROUP for d in others):
        return None
    return spread.shape[0] // groups
