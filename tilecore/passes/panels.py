"""panels: the order of blocks that a program leaves open, by what they read.

Blocks that run at the same time share the L2 cache. Where the tiles that a block multiplies depend
on its column, or on its row, those running together should be as many rows as columns, in bytes:
a panel of rows is swept from column to column (``T.use_swizzle``, which programs may say).

Blocks that loop longer begin first, as those of the last rows of causal attention do: what is left
at the end, when multiprocessors run out of blocks, are short ones. Those of equal length follow
each other, of as many heads as have their keys and values in L2 together: head by head the last one
would begin with its long blocks at the end.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilecore.gpu_target import GpuTarget
from tilecore.ir import nodes
from tilecore.ir.expr import Call, Expr, Load, Var, binary, int_value
from tilecore.ir.nodes import (
    Annotate,
    Copy,
    For,
    Gemm,
    KernelLaunch,
    PrimFunc,
    Stmt,
    read_only,
)
from tilecore.ir.substitute import Substitution
from tilecore.ir.values.evaluate import evaluate
from tilecore.ir.visitor import flat, per_launch, walk, walk_expr

SWIZZLE = "swizzle"
TYPICAL = 4096  # what a size is taken for that is known at the call alone
L2_PARTS = 3  # of L2: what one section reads, what the next one does, all else
# Blocks that wait for others may count on those before them having begun.
WAITING = (nodes.Atomic, nodes.Sync, nodes.Wait, nodes.While)


def run(func: PrimFunc, target: GpuTarget) -> PrimFunc:
    """Return the function with panels of blocks where products say which are best."""
    return per_launch(func, lambda launch: _in_panels(launch, target))


def _in_panels(launch: KernelLaunch, target: GpuTarget) -> KernelLaunch:
    launch = longest_first(launch)
    rows = rows_of_section(launch, target) or rows_of_panel(launch, target)
    if rows < 2:
        return launch
    value = read_only({"panel_size": rows, "order": "row", "enable": True})
    stmts = (Annotate(SWIZZLE, value, launch.span), *flat([launch.body]))
    body = nodes.Seq(stmts, launch.span)
    return dataclasses.replace(launch, body=body)


def longest_first(launch: KernelLaunch) -> KernelLaunch:
    """Return a launch that begins with the blocks that loop longest."""
    if launch.cluster or any(isinstance(s, WAITING) for s in walk(launch.body)):
        return launch
    found = uneven(launch)
    if found is None or found.first > found.last:
        return launch
    var, extent = launch.block_vars[found.axis], launch.grid[found.axis]
    place = (extent - 1) - var
    if int_value(extent) is None:
        place = binary("max", place, 0)  # which bounds of index expressions do not tell
    return dataclasses.replace(launch, body=Substitution({var: place}).stmt(launch.body))


@dataclass(frozen=True, slots=True)
class Uneven:
    """How blocks loop.

    Attributes:
        loop: with stages, the only such one of a block.
        axis: of the grid along which its length varies.
        first: how often the first blocks of the axis loop, of sizes that are typical.
        last: how often the last ones do.
    """

    loop: For
    axis: int
    first: int
    last: int


def uneven(launch: KernelLaunch) -> Uneven | None:
    """Return along which axis of the grid blocks loop more or less often, None if along none."""
    stmts = list(walk(launch.body))
    loops = [s for s in stmts if isinstance(s, For) and s.kind == "pipelined"]
    if len(loops) != 1:
        return None
    (loop,) = loops
    steps = loop.stop - loop.start
    names = _names(steps)
    inner = {s.var for s in stmts if isinstance(s, nodes.Let)}
    inner |= {s.loop_var for s in stmts if isinstance(s, For)}
    axes = [axis for axis, var in enumerate(launch.block_vars) if var in names]
    is_open = any(isinstance(n, (Load, Call)) for n in walk_expr(steps))
    if len(axes) != 1 or names & inner or is_open:
        return None
    (axis,) = axes
    var, extent = launch.block_vars[axis], _typical(launch.grid[axis])
    first, last = (_typical(steps, {var: place}) for place in (0, extent - 1))
    return Uneven(loop, axis, first, last) if first != last else None


def rows_of_section(launch: KernelLaunch, target: GpuTarget) -> int:
    """Return how many rows of the grid run together where blocks along it loop more or less often.

    As many as have what they read in L2 together; 0: the program says it, or all loop alike.
    """
    found = uneven(launch)
    if found is None or found.axis != 0 or not _is_open(launch):
        return 0
    sources = [s.src for s in walk(found.loop) if isinstance(s, Copy)]
    tensors = {
        r.buffer.root for r in sources
        if r.buffer.scope == "global" and any(launch.block_vars[1] in _names(e) for e in r.offsets)
    }  # fmt: skip
    rows, *others = (_typical(e) for e in launch.grid[1:])
    read = sum(math.prod(map(_typical, t.shape)) * t.dtype.itemsize for t in tensors)
    if not read or rows < 2:
        return 0
    sections = -(-read * L2_PARTS // (math.prod(others) * target.l2_bytes))
    return -(-rows // sections)


def _names(expr: Expr) -> set[Var]:
    return {n for n in walk_expr(expr) if isinstance(n, Var)}


def _typical(expr: Expr, known: Mapping[Var, int] | None = None) -> int:
    """Return the value of an expression; sizes that are known at the call alone are TYPICAL."""
    return int(evaluate(expr, dict.fromkeys(_names(expr), TYPICAL) | dict(known or {})))


def rows_of_panel(launch: KernelLaunch, target: GpuTarget) -> int:
    """Return how many rows of the grid run together; 0: the program says it, or it is not clear."""
    if not _is_open(launch):
        return 0
    extents = [int_value(e) for e in launch.grid]
    if any(e == 1 for e in extents[:2]):
        return 0
    across, down = bytes_by_axis(launch)
    if not across or not down:
        return 0
    rows = round(math.sqrt(target.multiprocessors * across / down))
    return max(1, min(rows, extents[1] or rows))


def _is_open(launch: KernelLaunch) -> bool:
    """Return whether blocks of a grid of several axes may run in any order."""
    if len(launch.block_vars) < 2 or launch.cluster or launch.thread_vars:
        return False
    return not any(_says_order(s) for s in walk(launch.body))


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
        used = set[Var]().union(*map(_names, copy.src.offsets))
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
