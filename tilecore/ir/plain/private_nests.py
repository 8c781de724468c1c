"""T.Parallel over what each thread has for itself: every thread runs all of it.

In a program written per thread an array of T.alloc_local is each thread's own. A nest that stores
to such arrays alone, and touches no fragment, is not spread over threads: none would have the
elements that another one stored. It is a loop that each of them runs.

Source: TileLang, src/transform/lower_tile_op.cc ("thread partitioning is unnecessary when all
stores target local buffers and there are no fragment accesses"), commit a35008a.
"""

from __future__ import annotations

from tilecore.ir import nodes
from tilecore.ir.expr import const, int_value
from tilecore.ir.nodes import Parallel, Stmt
from tilecore.ir.visitor import Rewriter, buffers_of, walk

_PLAIN = (nodes.Seq, nodes.Let, nodes.Store, nodes.If, nodes.For, nodes.Alloc, Parallel)


def with_private_nests(body: Stmt) -> Stmt:
    """Return the body of a launch written per thread, with such nests as loops."""
    return _Loops().visit(body)


class _Loops(Rewriter):
    def visit_parallel(self, nest: Parallel) -> Stmt:
        if not nest.loop_vars or not _is_private(nest):
            return nest
        is_known = all(int_value(e) is not None for e in nest.extents)
        kind, body = "unroll" if is_known else "serial", nest.body
        for name, extent in reversed(list(zip(nest.loop_vars, nest.extents, strict=True))):
            body = nodes.For(name, const(0), extent, const(1), kind, body, span=nest.span)
        return body


def _is_private(nest: Parallel) -> bool:
    """Return whether a nest stores to private arrays alone and touches no fragment."""
    inside = list(walk(nest))
    own = {s.buffer for s in inside if isinstance(s, nodes.Alloc)}
    stored = {s.buffer for s in inside if isinstance(s, nodes.Store)} - own
    return (
        bool(stored)
        and all(b.root.scope == "local" and not b.is_var for b in stored)
        and all(isinstance(s, _PLAIN) for s in inside)
        and not any(b.root.scope == "fragment" for b in buffers_of(nest))
    )
