"""T.sync_grid: a launch whose blocks all wait for each other is two launches, one after the other.

What lies in tiles and variables would be lost between them, so the second one must set whatever it
reads. Values bound before the wait are computed again, unless they depend on memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilecore.errors import ScopeError
from tilecore.ir import nodes
from tilecore.ir.analysis import covers_whole, reads, writes
from tilecore.ir.expr import Var, int_value
from tilecore.ir.nodes import Buffer, Seq, Stmt
from tilecore.ir.visitor import children, expressions, has_loads, regions, walk, walk_expr

Path = tuple[Stmt, ...]  # the statements around one


def parts_between_syncs(body: Seq) -> list[Seq]:
    """Return the statements between the grid-wide waits at the top of a launch.

    Raises:
        ScopeError: a tile or a value would have to survive a wait (TC104).
    """
    cuts = [i for i, s in enumerate(body.stmts) if isinstance(s, nodes.Sync) and s.scope == "grid"]
    if not cuts:
        return [body]
    found = []
    for start, stop in zip([0, *(c + 1 for c in cuts)], [*cuts, len(body.stmts)], strict=True):
        before, own = body.stmts[:start], body.stmts[start:stop]
        again = tuple(s for s in before if _may_be_repeated(s))
        part = Seq((*again, *own), body.span)
        if start:
            _check_tiles(Seq(before, body.span), Seq(own, body.span))
            _check_values(before, again, own)
        found.append(part)
    return found


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


def _check_tiles(before: Stmt, own: Stmt) -> None:
    tiles = {s.buffer for s in walk(before) if isinstance(s, nodes.Alloc)}
    tiles = {b for b in tiles if b.scope != "global"}
    settled: dict[Buffer, list[Path]] = {}
    for stmt, path in _with_paths(own, ()):
        for buffer in reads(stmt):
            known = settled.get(buffer.root, [])
            if buffer.root in tiles and not any(p == path[: len(p)] for p in known):
                raise _survives(buffer.name, stmt)
        for buffer in writes(stmt):
            where = _set_whole(stmt, buffer, path)
            if where is not None:
                settled.setdefault(buffer.root, []).append(where)


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
        hint="set it again after the wait, or keep it in a tensor of T.alloc_global",
        span=stmt.span,
    )
