"""Where threads of a block meet in shared memory, so that one has to wait for the other."""

from __future__ import annotations

from collections.abc import Sequence

from tilecore.ir import nodes
from tilecore.ir.analysis import read_buffers, reads, written_buffers
from tilecore.ir.nodes import Buffer, Seq, Stmt
from tilecore.ir.visitor import flat, has_jump, loads, walk


def _shared(buffers: Sequence[Buffer]) -> set[Buffer]:
    return {b.root for b in buffers if b.scope in ("shared", "fragment")}


def conflict(before: Stmt, after: Stmt) -> bool:
    """Return whether threads must wait between two statements: they meet in a shared tile."""
    written = _shared(written_buffers(before))
    later = _shared(written_buffers(after))
    read = _shared(read_buffers(before))
    return bool(written & (later | _shared(read_buffers(after))) or read & later)


def has_conflict(stmt: Stmt) -> bool:
    """Return whether threads must wait for each other inside a loop or branch."""
    if isinstance(stmt, (nodes.For, nodes.While)):
        read = _read(stmt.body) if has_jump(stmt.body) else _shared(read_buffers(stmt.body))
        return bool(_shared(written_buffers(stmt.body)) & read)
    if isinstance(stmt, nodes.If):
        bodies = [b for b in (stmt.then_body, stmt.else_body) if b is not None]
        return any(_sequence_conflicts(flat([body])) for body in bodies)
    return False


def _read(body: Stmt) -> set[Buffer]:
    """Return what a body reads, but for updates of which nobody asks for the old value.

    In a loop that threads leave apart they may come in any order.
    """
    found: set[Buffer] = set()
    for stmt in walk(body):
        is_update = isinstance(stmt, nodes.Atomic) and stmt.prev is None and stmt.op != "store"
        found |= _shared([x.buffer for x in loads(stmt)] if is_update else reads(stmt))
    return found


def _sequence_conflicts(stmts: Sequence[Stmt]) -> bool:
    if any(has_conflict(s) for s in stmts):
        return True
    return any(
        conflict(Seq(tuple(stmts[:i]), stmts[i].span), stmts[i]) for i in range(1, len(stmts))
    )
