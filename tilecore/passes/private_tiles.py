"""private_tiles: in programs written per thread, tile operations on private arrays are loops.

Where a program knows its threads, an array of T.alloc_local is each one's own, and a copy or
fill of it is done by every thread for itself. The threads of a block share out all others.
"""

from __future__ import annotations

from tilecore.errors import UnsupportedOnTarget
from tilecore.ir import nodes
from tilecore.ir.expr import const
from tilecore.ir.nodes import Copy, Fill, For, KernelLaunch, Parallel, PrimFunc, Stmt
from tilecore.ir.plain.nests import copy_nest, fill_nest
from tilecore.ir.visitor import Rewriter, per_launch, regions, walk


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with such copies and fills as loops over elements.

    Raises:
        UnsupportedOnTarget: a reduction or scan of a private array (TC302).
    """
    return per_launch(func, _with_loops)


def _with_loops(launch: KernelLaunch) -> Stmt:
    knows = launch.thread_vars or any(isinstance(s, nodes.EXCHANGES) for s in walk(launch.body))
    return _Loops().rebuild(launch) if knows else launch


class _Loops(Rewriter):
    def visit_copy(self, stmt: Copy) -> Stmt:
        return element_loops(copy_nest(stmt)) if _is_private(stmt) else stmt

    def visit_fill(self, stmt: Fill) -> Stmt:
        return element_loops(fill_nest(stmt)) if _is_private(stmt) else stmt

    def visit_reduce(self, stmt: nodes.Reduce) -> Stmt:
        return _shared_out(stmt)

    def visit_scan(self, stmt: nodes.Scan) -> Stmt:
        return _shared_out(stmt)


def _is_private(stmt: Stmt) -> bool:
    return any(r.buffer.root.scope == "local" for r in regions(stmt))


def _shared_out(stmt: Stmt) -> Stmt:
    if _is_private(stmt):
        raise UnsupportedOnTarget(
            what=f"a {type(stmt).__name__} of an array that is each thread's own", target="a GPU",
            reason="threads share out reductions and scans of what all of them hold",
            span=stmt.span, hint="loop over the elements with T.unroll",
        )  # fmt: skip
    return stmt


def element_loops(nest: Parallel) -> Stmt:
    """Return a nest as loops that one thread runs, unrolled: arrays stay in registers."""
    body = nest.body
    for name, extent in reversed(list(zip(nest.loop_vars, nest.extents, strict=True))):
        body = For(name, const(0), extent, const(1), "unroll", body, span=nest.span)
    return body
