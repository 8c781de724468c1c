"""persistent: blocks that stay, and compute one tile of a product after another.

Where copies run ahead of the products (warps that do nothing but load), those of the next tile fly
while the sums of the last one are stored. A block per multiprocessor goes through the tiles in the
order that the grid had, panels and all. Of a grid that needs no second wave nothing is gained; one
whose sizes are known at the call alone has as many blocks as tiles then.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilecore.gpu_target import GpuTarget
from tilecore.ir import nodes
from tilecore.ir.analysis import writes
from tilecore.ir.arithmetic.bounds import NON_NEGATIVE, interval
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Call, Expr, ExprLike, Load, Var, binary, const, int_value
from tilecore.ir.nodes import (
    RESIDENT,
    RUNS_ON,
    Alloc,
    Annotate,
    Copy,
    For,
    Gemm,
    If,
    KernelLaunch,
    PrimFunc,
    Seq,
    Stmt,
)
from tilecore.ir.values.evaluate import evaluate
from tilecore.ir.visitor import flat, per_launch, walk, walk_expr
from tilecore.passes.panels import SWIZZLE, copies_of_products

# What a body may consist of: nothing that a block does once, or that other blocks wait for.
KNOWN = (
    Alloc, Annotate, Copy, For, Gemm, If, Seq, nodes.Fill, nodes.Let, nodes.Parallel, nodes.Reduce,
    nodes.Store,
)  # fmt: skip
LAYOUT = "layout"
LEAST_STAGES = 2
OPERANDS = 2  # tiles in flight: of one product, or of attention's two
OTHER_REGISTERS = 24  # of a thread, beside fragments
STEPS_OF_TILE = 1.5  # what a tile takes beside its loop, in steps of it
MOST_UNEVEN = 1.035  # the most that a block has to do, of the mean
KEPT_PARTS = 3  # L2 keeps two of these between tiles that read it
MOST_WAVES = 64  # of which it is worked out when the last one ends
INT32 = DType("int32")


def run(func: PrimFunc, target: GpuTarget) -> PrimFunc:
    """Return the function with launches of resident blocks where tiles are products."""
    return per_launch(func, lambda launch: _with_resident_blocks(launch, target))


def _with_resident_blocks(launch: KernelLaunch, target: GpuTarget) -> Stmt:
    workers, total = target.multiprocessors, int_value(_product(launch.grid))
    if (total is not None and total <= workers) or not _is_product(launch, target):
        return launch
    order = order_of(launch, target)
    return launch if order is None else _resident(launch, workers, order)


def _is_product(launch: KernelLaunch, target: GpuTarget) -> bool:
    """Return whether a block does nothing but a pipelined loop of products, and stores sums."""
    if launch.thread_vars or launch.cluster:
        return False
    stmts = list(walk(launch.body))
    if not all(isinstance(s, KNOWN) for s in stmts) or any(map(_is_awaited, stmts)):
        return False
    gemms = [s for s in stmts if isinstance(s, Gemm)]
    loops = [s for s in stmts if isinstance(s, For)]
    if len(loops) != 1 or not gemms or any(g.is_async or g.in_group for g in gemms):
        return False
    stages = loops[0].annotations.get("num_stages")
    known = int_value(stages) if isinstance(stages, Expr) else stages
    if loops[0].kind != "pipelined" or not isinstance(known, int) or known < LEAST_STAGES:
        return False
    if any(g not in walk(loops[0]) for g in gemms):
        return False
    top = flat([launch.body])
    if loops[0] not in top or not _fills(launch, known, target):
        return False
    allocated = [s for s in stmts if isinstance(s, Alloc)]
    if any(a not in top or _is_kept(a.buffer) for a in allocated):
        return False
    outputs = [b for s in stmts for b in writes(s) if b.root.scope == "global"]
    return len(outputs) == 1


def _fills(launch: KernelLaunch, stages: int, target: GpuTarget) -> bool:
    """Return whether tiles in flight, or sums, leave no room for another block."""
    tiles = {c.dst.buffer.root: c.dst.buffer for c in copies_of_products(launch)}
    threads = math.prod(int_value(t) or 0 for t in launch.threads)
    if len(tiles) != OPERANDS or not threads:
        return False
    held = [
        s.buffer for s in walk(launch.body)
        if isinstance(s, Alloc) and s.buffer.scope == "fragment"
    ]  # fmt: skip
    used, registers = (_bytes(found) for found in (list(tiles.values()), held))
    if used is None or registers is None:
        return False
    by_thread = registers // (4 * threads) + OTHER_REGISTERS
    return (
        2 * stages * used > target.shared_per_multiprocessor
        or 2 * threads * by_thread > target.registers_per_multiprocessor
    )


def _is_awaited(stmt: Stmt) -> bool:
    """Return whether a statement is one of those that the program waits for, or such a wait."""
    is_hint = isinstance(stmt, Annotate) and stmt.key in (SWIZZLE, LAYOUT, nodes.LAUNCHES)
    runs_on = isinstance(stmt, Copy) and RUNS_ON in stmt.annotations
    return runs_on or (isinstance(stmt, Annotate) and not is_hint)


def _bytes(buffers: Sequence[nodes.Buffer]) -> int | None:
    """Return the bytes of tiles, None if one has no known shape."""
    shapes = [b.static_shape for b in buffers]
    if any(shape is None for shape in shapes):
        return None
    return sum(math.prod(b.static_shape or ()) * b.dtype.itemsize for b in buffers)


def _is_kept(buffer: nodes.Buffer) -> bool:
    """Return whether a block makes something of its own of memory when it begins."""
    is_open = any(int_value(e) is None for e in buffer.shape)
    return buffer.arrive_counts is not None or buffer.scope == "global" or is_open


@dataclass(frozen=True, slots=True)
class Order:
    """In which order workers go through the tiles of a grid.

    Attributes:
        rows: of a panel, as ``T.use_swizzle`` has it; 0: row by row; below 0: columns.
        is_across: the first block index is the slowest, not the fastest.
        is_turning: every other wave goes backwards.
    """

    rows: int = 0
    is_across: bool = False
    is_turning: bool = False

    def axes(self, count: int) -> tuple[int, ...]:
        """Return the axes of a grid, the fastest first."""
        return (*range(1, count), 0) if self.is_across else tuple(range(count))


def order_of(launch: KernelLaunch, target: GpuTarget) -> Order | None:
    """Return in which order workers that stay have as much to do as those that take what is next.

    None: in none. Tiles of causal attention loop the longer the later their rows are: those of one
    length, of all heads, are a few waves, if their keys and values stay in L2. Else heads follow
    each other.
    """
    stmts = list(walk(launch.body))
    (loop,) = (s for s in stmts if isinstance(s, For))
    steps = loop.stop - loop.start
    if _is_of_sizes(steps, stmts, launch):
        return Order(_rows(launch))
    grid, first = [int_value(e) or 0 for e in launch.grid], launch.block_vars[0]
    names = {n for n in walk_expr(steps) if isinstance(n, Var)}
    is_open = any(isinstance(n, (Call, Load)) for n in walk_expr(steps))
    if not all(grid) or names != {first} or is_open:
        return None
    costs = np.asarray(evaluate(steps, {first: np.arange(grid[0])})) + STEPS_OF_TILE
    read = _bytes(list({s.src.buffer.root for s in walk(loop) if isinstance(s, Copy)}))
    is_kept = read is not None and read * KEPT_PARTS <= target.l2_bytes * 2
    orders = [
        Order(is_across=across, is_turning=turns)
        for across in ((True, False) if is_kept else (False,)) for turns in (False, True)
    ]  # fmt: skip
    workers = target.multiprocessors
    most = [busiest(costs, grid, workers, order) for order in orders]
    best, tiles = int(np.argmin(most)), sequence(costs, grid, _rows(launch))
    mean = float(tiles.sum()) / workers
    if most[best] <= MOST_UNEVEN * mean or most[best] <= end_of_last(tiles, workers):
        return orders[best]
    return None


def busiest(costs: Any, grid: Sequence[int], workers: int, order: Order) -> float:
    """Return what the worker with most to do has to; ``costs`` are by the first index."""
    others = math.prod(grid[1:])
    tiles = np.repeat(costs, others) if order.is_across else np.tile(costs, others)
    waves = np.zeros((-(-len(tiles) // workers), workers))
    waves.ravel()[: len(tiles)] = tiles
    if order.is_turning:
        waves[1::2] = waves[1::2, ::-1].copy()
    return float(waves.sum(0).max())


def sequence(costs: Any, grid: Sequence[int], rows: int) -> Any:
    """Return the costs of the blocks of a grid in the order in which they begin."""
    if rows <= 0:
        return np.tile(costs, math.prod(grid[1:]))
    panels = [np.repeat(costs, min(rows, grid[1] - r)) for r in range(0, grid[1], rows)]
    return np.tile(np.concatenate(panels), math.prod(grid[2:]))


def end_of_last(tiles: Any, workers: int) -> float:
    """Return when the last of tiles ends, of which each goes to the worker that is free first."""
    if len(tiles) > MOST_WAVES * workers:
        return 0.0  # they end together
    free = [0.0] * workers
    for cost in tiles.tolist():
        heapq.heapreplace(free, free[0] + cost)
    return max(free)


def _is_of_sizes(expr: Expr, stmts: Sequence[Stmt], launch: KernelLaunch) -> bool:
    """Return whether a number follows from what is known before the launch."""
    named = {s.var for s in stmts if isinstance(s, nodes.Let)}
    named |= {s.loop_var for s in stmts if isinstance(s, For)} | set(launch.block_vars)
    return not any(isinstance(n, (Call, Load)) or n in named for n in walk_expr(expr))


def _product(extents: Sequence[Expr]) -> Expr:
    return functools.reduce(lambda a, b: a * b, extents)


def _resident(launch: KernelLaunch, workers: int, order: Order) -> KernelLaunch:
    """Return a launch of at most so many blocks that go through the tiles of another one."""
    top = flat([launch.body])
    before = [s for s in top if isinstance(s, Alloc) or _is_layout(s)]
    after = [s for s in top if s not in before]
    worker, wave, tile = (Var(name, INT32) for name in ("worker", "wave", "tile"))
    total = _product(launch.grid)
    axes = order.axes(len(launch.grid))
    grid = [launch.grid[axis] for axis in axes]
    places = _inside(_places(tile, grid, order.rows), grid, tile)
    lets = [
        nodes.Let(launch.block_vars[axis], value, launch.span)
        for axis, value in zip(axes, places, strict=True)
    ]
    place = wave * workers + worker
    if order.is_turning:
        place = place + binary("mod", wave, 2) * (workers - 1 - worker * 2)
    number = nodes.Let(tile, place, launch.span)
    guarded = If(tile < total, Seq((*lets, *_fed(after)), launch.span), span=launch.span)
    waves = binary("floordiv", binary("max", total, 0) + (workers - 1), workers)
    loop = For(
        wave, const(0, "int32"), waves, const(1, "int32"), "serial",
        Seq((number, guarded), launch.span), span=launch.span,
    )  # fmt: skip
    return dataclasses.replace(
        launch, block_vars=(worker,), grid=(binary("min", total, workers),),
        body=Seq((Annotate(RESIDENT, True, launch.span), *before, loop), launch.span),
    )  # fmt: skip


def _fed(stmts: Sequence[Stmt]) -> list[Stmt]:
    """Return the statements of a tile; what its loop multiplies all the time is brought ahead, too.

    The copies before the loop and the loop are a pipeline of one turn: they begin as soon as the
    tile before is done with.
    """
    places = [n for n, s in enumerate(stmts) if isinstance(s, For)]
    operands = {r.buffer.root for s in walk(stmts[places[0]]) if isinstance(s, Gemm)
                for r in (s.a, s.b)}  # fmt: skip
    copies = [
        n for n, s in enumerate(stmts[: places[0]])
        if isinstance(s, Copy) and s.src.buffer.scope == "global" and s.dst.buffer in operands
    ]  # fmt: skip
    if not copies:
        return list(stmts)
    first, end = copies[0], places[0] + 1
    span = stmts[first].span
    once = For(
        Var("once", INT32), const(0, "int32"), const(1, "int32"), const(1, "int32"), "pipelined",
        Seq(tuple(stmts[first:end]), span), nodes.read_only({"num_stages": 1}), span=span,
    )  # fmt: skip
    return [*stmts[:first], once, *stmts[end:]]


def _inside(places: Sequence[Expr], grid: Sequence[Expr], tile: Var) -> list[Expr]:
    """Return block indices that are seen to be of a grid whose sizes are known.

    That a tile's number is below their product stands in a condition, which bounds of index
    expressions do not follow from: accesses would be guarded that are inside their tensors.
    """
    extents = [int_value(e) for e in grid]
    found = []
    for place, extent in zip(places, extents, strict=True):
        bounds = None if extent is None else interval(place, {tile: NON_NEGATIVE})
        is_open = extent is not None and (bounds is None or bounds[1] >= extent)
        found.append(binary("min", place, (extent or 1) - 1) if is_open else place)
    return found


def _is_layout(stmt: Stmt) -> bool:
    return isinstance(stmt, Annotate) and stmt.key == LAYOUT


def _rows(launch: KernelLaunch) -> int:
    """Return the rows of a panel; 0: row by row; below 0: columns."""
    for stmt in walk(launch.body):
        if isinstance(stmt, Annotate) and stmt.key == SWIZZLE and stmt.value.get("enable", True):
            size = stmt.value.get("panel_size", 1)
            rows = (int_value(size) if isinstance(size, Expr) else size) or 1
            return rows if str(stmt.value.get("order", "row")).startswith("row") else -rows
    return 0


def _places(tile: Var, grid: Sequence[Expr], rows: int) -> list[Expr]:
    """Return the block indices of a tile's number, panel by panel as ``T.use_swizzle`` says."""

    def div(a: ExprLike, b: ExprLike) -> Expr:
        return binary("floordiv", a, b)

    def mod(a: ExprLike, b: ExprLike) -> Expr:
        return binary("mod", a, b)

    if len(grid) == 1:
        return [tile]
    grid = [e if int_value(e) is not None else binary("max", e, 1) for e in grid]  # there is a tile
    layer = grid[0] * grid[1]
    within = tile if len(grid) == 2 else mod(tile, layer)
    more = [] if len(grid) == 2 else [div(tile, layer)]
    if rows == 0:
        return [mod(within, grid[0]), div(within, grid[0]), *more]
    along, across = (0, 1) if rows > 0 else (1, 0)
    known = int_value(grid[across])
    panel = abs(rows) if known is None else min(abs(rows), known)
    size = grid[along] * panel
    first = div(within, size) * panel
    rest = mod(within, size)
    height: ExprLike = panel
    if known is None:
        height = binary("max", binary("min", panel, grid[across] - first), 1)
    elif known % panel:
        height = binary("min", panel, grid[across] - first)
    found: list[Expr] = [tile, tile]
    found[along] = div(rest, height)
    found[across] = first + mod(rest, height)
    return [*found, *more]
