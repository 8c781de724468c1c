"""Fragments that are registers of single threads.

On a GPU a fragment lies in registers, so what one thread writes into it element by element only
that thread sees. In a program written per thread, a fragment that no tile operation and no
T.Parallel touches is therefore private to each thread, as T.alloc_local is.
"""

from __future__ import annotations

import dataclasses

from tilecore.ir import nodes
from tilecore.ir.nodes import Buffer, Stmt
from tilecore.ir.substitute import Rebuilder
from tilecore.ir.visitor import buffers_of, regions, walk


def with_private_fragments(body: Stmt) -> Stmt:
    """Return the body of a launch written per thread, with fragments of one thread made local."""
    together: set[Buffer] = set()
    found: set[Buffer] = set()
    for stmt in walk(body):
        if isinstance(stmt, nodes.Alloc) and stmt.buffer.scope == "fragment":
            found.add(stmt.buffer)
            together |= {stmt.buffer.root} - {stmt.buffer}
        if isinstance(stmt, nodes.Parallel):
            together |= buffers_of(stmt)
        together |= {r.buffer for r in regions(stmt)}
    private = {b for b in found - together if b.base is None and b.reducer is None}
    return _Local(private).stmt(body) if private else body


class _Local(Rebuilder):
    def __init__(self, private: set[Buffer]) -> None:
        super().__init__()
        for buffer in private:
            self._buffers[id(buffer)] = (buffer, dataclasses.replace(buffer, scope="local"))
