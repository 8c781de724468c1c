"""T.sync_grid: a launch whose blocks all wait for each other is two launches, one after the other.

What lies in tiles and variables would be lost between them: a tile that the second one reads is
kept in main memory (ir.kept_tiles), and so is what is private to a thread of a program written per
thread. Values bound before the wait are computed again, unless they depend on memory. A T.Parallel
with a wait in it is one nest before it and one behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilecore.errors import ScopeError
from tilecore.ir import nodes
from tilecore.ir.analysis import covers_whole, reads, writes
from tilecore.ir.expr import Var, int_value
from tilecore.ir.nodes import Buffer, Seq, Stmt
from tilecore.ir.plain.kept_tiles import Kept, Places, kept, may_be_kept
from tilecore.ir.visitor import (
    buffers_of,
    children,
    expressions,
    has_loads,
    regions,
    walk,
    walk_expr,
)

Path = tuple[Stmt, ...]  # the statements around one


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The statements between two waits, and those before that may be repeated."""

    again: tuple[Stmt, ...]
    own: tuple[Stmt, ...]
    needs: dict[Buffer, Stmt]  # the tiles that it reads before it sets them, and where
    touches: frozenset[Buffer]
    sets: frozenset[Buffer]  # the tiles that it gives another content


def parts_between_syncs(body: Seq, places: Places) -> tuple[list[Buffer], list[Seq]]:
    """Return (workspaces, the statements between the grid-wide waits at the top of a launch).

    A workspace holds what lies in a tile while the blocks wait.

    Raises:
        ScopeError: a barrier, a reducer or a value would have to survive a wait (TC104).
    """
    body = Seq(tuple(s for stmt in body.stmts for s in _split(stmt)), body.span)
    cuts = [i for i, s in enumerate(body.stmts) if isinstance(s, nodes.Sync) and s.scope == "grid"]
    if not cuts:
        return [], [body]
    bounds = zip([0, *(c + 1 for c in cuts)], [*cuts, len(body.stmts)], strict=True)
    parts = [_part(body.stmts[:start], body.stmts[start:stop]) for start, stop in bounds]
    survivors: dict[Buffer, None] = {}
    for tile, reader in (item for part in parts for item in part.needs.items()):
        if not may_be_kept(tile, places):
            raise _survives(tile.name, reader)
        survivors.setdefault(tile)
    stores = kept(list(survivors), places)
    found = [
        Seq(_with_copies(parts, position, stores), body.span) for position in range(len(parts))
    ]
    return [s.workspace for s in stores], found


def _split(stmt: Stmt) -> Iterator[Stmt]:
    """Yield the nests between the waits in a nest, and the waits; else the statement itself."""
    body = stmt.body if isinstance(stmt, nodes.Parallel) else None
    inside = body.stmts if isinstance(body, Seq) else ()
    waits = [n for n, s in enumerate(inside) if isinstance(s, nodes.Sync) and s.scope == "grid"]
    if not waits:
        yield stmt
        return
    assert isinstance(stmt, nodes.Parallel)
    start = 0
    for stop in (*waits, len(inside)):
        before, own = inside[:start], inside[start:stop]
        again = tuple(s for s in before if isinstance(s, nodes.Let) and not has_loads(s.value))
        _check_values(before, again, own)
        private = {s.buffer for s in before if isinstance(s, nodes.Alloc)}
        for one in (s for o in own for s in walk(o)):
            for buffer in (b for b in buffers_of(one) if b.root in private):
                raise _survives(buffer.name, one)
        yield replace(stmt, body=Seq((*again, *own), stmt.span))
        yield from inside[stop : stop + 1]
        start = stop + 1


def _part(before: tuple[Stmt, ...], own: tuple[Stmt, ...]) -> _Part:
    again = tuple(s for s in before if _may_be_repeated(s))
    _check_values(before, again, own)
    stmts = [s for child in own for s in walk(child)]
    sets = frozenset(b.root for s in stmts for b in writes(s))
    touches = sets | {b.root for s in stmts for b in reads(s)}
    return _Part(again, own, _needed(Seq(before), Seq(own)), touches, sets)


def _with_copies(parts: list[_Part], position: int, stores: list[Kept]) -> tuple[Stmt, ...]:
    part = parts[position]
    back: list[Stmt] = []
    away: list[Stmt] = []
    for store in stores:
        tile = store.tile
        is_old = any(tile in p.sets for p in parts[:position])
        if is_old and tile in part.touches:
            back.append(store.restore())
        if tile in part.sets and any(tile in p.needs for p in parts[position + 1 :]):
            away.append(store.save())
    return (*part.again, *back, *part.own, *away)


def _may_be_repeated(stmt: Stmt) -> bool:
    if isinstance(stmt, nodes.Let):
        return not has_loads(stmt.value)
    return isinstance(stmt, (nodes.Alloc, nodes.Annotate, nodes.Pad))


def _check_values(before: tuple[Stmt, ...], again: tuple[Stmt, ...], own: tuple[Stmt, ...]) -> None:
    lost = {id(s.var) for s in before if isinstance(s, nodes.Let) and s not in again}
    for stmt in (s for child in own for s in walk(child)):
        for node in (n for e in expressions(stmt) for n in walk_expr(e)):
            if isinstance(node, Var) and id(node) in lost:
                raise _survives(node.name, stmt)


def _needed(before: Stmt, own: Stmt) -> dict[Buffer, Stmt]:
    """Return the tiles of ``before`` that ``own`` reads before it sets them, and where."""
    tiles = {s.buffer for s in walk(before) if isinstance(s, nodes.Alloc)}
    tiles = {b for b in tiles if b.scope != "global"}
    settled: dict[Buffer, list[Path]] = {}
    found: dict[Buffer, Stmt] = {}
    for stmt, path in _with_paths(own, ()):
        for buffer in reads(stmt):
            around = settled.get(buffer.root, [])
            if buffer.root in tiles and not any(p == path[: len(p)] for p in around):
                found.setdefault(buffer.root, stmt)
        for buffer in writes(stmt):
            where = _set_whole(stmt, buffer, path)
            if where is not None:
                settled.setdefault(buffer.root, []).append(where)
    return found


def _with_paths(stmt: Stmt, path: Path) -> Iterator[tuple[Stmt, Path]]:
    yield stmt, path
    for child in children(stmt):
        inner = path if isinstance(stmt, Seq) else (*path, stmt)
        if isinstance(stmt, nodes.If):
            inner = (*inner, child)
        yield from _with_paths(child, inner)


def _set_whole(stmt: Stmt, buffer: Buffer, path: Path) -> Path | None:
    """Return around what the buffer has a value once ``stmt`` has run, if it sets all of it."""
    if isinstance(stmt, nodes.Store):
        if buffer.is_var:
            return path
        nest = path[-1] if path else None
        if not isinstance(nest, nodes.Parallel) or len(nest.loop_vars) != len(stmt.indices):
            return None
        same = all(i is v for i, v in zip(stmt.indices, nest.loop_vars, strict=True))
        sizes = [int_value(e) for e in nest.extents]
        return path[:-1] if same and tuple(sizes) == buffer.static_shape else None
    whole = any(r.buffer is buffer and covers_whole(r) for r in regions(stmt))
    return path if whole else None


def _survives(name: str, stmt: Stmt) -> ScopeError:
    return ScopeError(
        message=f"`{name}` would have to keep its value across T.sync_grid",
        hint="set it again after the wait, or keep it in a tile",
        span=stmt.span,
    )
