"""panels: the order of blocks that a program leaves open, by what they read.

Blocks that run at the same time share the L2 cache. Where the tiles that a block multiplies depend
on its column, or on its row, those running together should be as many rows as columns, in bytes:
a panel of rows is swept from column to column (``T.use_swizzle``, which programs may say).

Blocks that loop longer begin first, as those of the last rows of causal attention do: what is left
at the end, when multiprocessors run out of blocks, are short ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from tilecore.gpu_target import GpuTarget
from tilecore.ir import nodes
from tilecore.ir.evaluate import evaluate
from tilecore.ir.expr import Call, Expr, Load, Var, binary, const, int_value
from tilecore.ir.nodes import Annotate, Copy, For, Gemm, KernelLaunch, PrimFunc, Stmt, read_only
from tilecore.ir.substitute import Substitution
from tilecore.ir.visitor import Rewriter, flat, walk, walk_expr

SWIZZLE = "swizzle"
# Blocks that wait for others may count on those before them having begun.
WAITING = (nodes.Atomic, nodes.Sync, nodes.Wait, nodes.While)


def run(func: PrimFunc, target: GpuTarget) -> PrimFunc:
    """Return the function with panels of blocks where products say which are best."""
    return dataclasses.replace(func, body=_Panels(target).visit(func.body))


class _Panels(Rewriter):
    def __init__(self, target: GpuTarget) -> None:
        self.target = target

    def visit_kernellaunch(self, launch: KernelLaunch) -> Stmt:
        launch = longest_first(launch)
        rows = rows_of_panel(launch, self.target)
        if rows < 2:
            return launch
        value = read_only({"panel_size": rows, "order": "row", "enable": True})
        stmts = (Annotate(SWIZZLE, value, launch.span), *flat([launch.body]))
        body = nodes.Seq(stmts, launch.span)
        return dataclasses.replace(launch, body=body)


def longest_first(launch: KernelLaunch) -> KernelLaunch:
    """Return a launch whose first axis runs backwards if the later of its blocks loop longer."""
    first, extent = launch.block_vars[0], int_value(launch.grid[0])
    stmts = list(walk(launch.body))
    if extent is None or launch.cluster or any(isinstance(s, WAITING) for s in stmts):
        return launch
    lengths = [s.stop for s in stmts if isinstance(s, For) and s.kind == "pipelined"]
    if len(lengths) != 1:
        return launch
    short, long = (_length(lengths[0], launch, place) for place in (0, extent - 1))
    if short is None or long is None or short >= long:
        return launch
    there = Substitution({first: binary("sub", const(extent - 1, "int32"), first)})
    return dataclasses.replace(launch, body=there.stmt(launch.body))


def _length(stop: Expr, launch: KernelLaunch, place: int) -> int | None:
    """Return where a loop ends in a block of a row of the first axis, None if that varies."""
    if any(isinstance(n, (Load, Call)) for n in walk_expr(stop)):
        return None
    used = {n for n in walk_expr(stop) if isinstance(n, Var)}
    if used != {launch.block_vars[0]}:
        return None
    return int(evaluate(stop, {launch.block_vars[0]: place}))


def rows_of_panel(launch: KernelLaunch, target: GpuTarget) -> int:
    """Return how many rows of the grid run together; 0: the program says it, or it is not clear."""
    if len(launch.block_vars) < 2 or launch.cluster or launch.thread_vars:
        return 0
    if any(_says_order(s) for s in walk(launch.body)):
        return 0
    extents = [int_value(e) for e in launch.grid]
    if any(e == 1 for e in extents[:2]):
        return 0
    across, down = bytes_by_axis(launch)
    if not across or not down:
        return 0
    rows = round(math.sqrt(target.multiprocessors * across / down))
    return max(1, min(rows, extents[1] or rows))


def _says_order(stmt: Stmt) -> bool:
    """Return whether a statement asks for an order of blocks, or may wait for those before."""
    is_hint = isinstance(stmt, Annotate) and stmt.key == SWIZZLE
    is_of_grid = isinstance(stmt, nodes.Sync) and stmt.scope == "grid"
    return is_hint or is_of_grid or isinstance(stmt, nodes.While)


def bytes_by_axis(launch: KernelLaunch) -> tuple[int, int]:
    """Return the bytes of tiles of products that depend on the first block index, or the second.

    Tiles that depend on both, or on a number that is not known, count for neither.
    """
    found = [0, 0]
    for copy in copies_of_products(launch):
        extents = [int_value(e) for e in copy.dst.extents]
        used = {v for e in copy.src.offsets for v in walk_expr(e) if isinstance(v, Var)}
        axes = [axis for axis, var in enumerate(launch.block_vars[:2]) if var in used]
        if len(axes) == 1 and all(extents):
            found[axes[0]] += math.prod(e or 1 for e in extents) * copy.dst.dtype.itemsize
    return found[0], found[1]


def copies_of_products(launch: KernelLaunch) -> Iterator[Copy]:
    """Yield the copies from tensors to operands of products in loops."""
    for loop in walk(launch.body):
        if not isinstance(loop, For):
            continue
        gemms = [s for s in walk(loop.body) if isinstance(s, Gemm)]
        operands = {r.buffer.root for g in gemms for r in (g.a, g.b)}
        for stmt in nodes_directly_in(loop):
            if not isinstance(stmt, Copy) or stmt.src.buffer.scope != "global":
                continue
            if stmt.dst.buffer.root in operands:
                yield stmt


def nodes_directly_in(loop: For) -> Iterator[Stmt]:
    """Yield the statements of a loop's body that are in no loop inside it."""
    pending = [loop.body]
    while pending:
        stmt = pending.pop()
        yield stmt
        match stmt:
            case nodes.Seq(stmts=stmts):
                pending += stmts
            case nodes.If(then_body=then, else_body=other):
                pending += [then] if other is None else [then, other]
            case _:
                pass
