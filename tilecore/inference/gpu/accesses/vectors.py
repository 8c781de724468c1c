"""Loops of one thread over neighbours in memory: what they load and store moves at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.distribution import Distribution, by_slot
from tilecore.inference.gpu.fragments import Fragments, nest_plan
from tilecore.inference.gpu.loops import Points, points_of
from tilecore.inference.gpu.plan import NestPlan
from tilecore.inference.uses import Context, enter
from tilecore.ir import nodes
from tilecore.ir.arithmetic.alike import alike_stores
from tilecore.ir.expr import int_value
from tilecore.ir.fold import reducer_update
from tilecore.ir.nodes import For, KernelLaunch, Stmt
from tilecore.ir.visitor import children


def wide_loops(launch: KernelLaunch, target: GpuTarget) -> dict[Stmt, NestPlan]:
    """Return how loops run that each thread has for itself, where that is by wide accesses.

    Loops that are written out, over stores and atomic updates alone. What a loop both reads and
    writes stays single: a turn may need what the one before has written.
    """
    if not launch.thread_vars:
        return {}
    alike = alike_stores(launch)
    found: dict[Stmt, NestPlan] = {}
    for loop, context in _loops(launch.body, enter(launch, Context())):
        extent = _extent(loop)
        body = loop.body.stmts if isinstance(loop.body, nodes.Seq) else (loop.body,)
        own = [
            s
            for s in body
            if (isinstance(s, nodes.Store) and reducer_update(s) is None)
            or (isinstance(s, nodes.Atomic) and s.prev is None)
        ]
        if extent < 2 or len(own) < len(body) or any(id(s) in alike for s in own):
            continue
        nest = nodes.Parallel((loop.loop_var,), (loop.stop,), loop.body, span=loop.span)
        points = points_of(nest, context)
        assert points is not None
        points = replace(points, stmt=loop, added_bytes=target.added_bytes)
        made = _plan(points, extent)
        if made.wide:
            found[loop] = made
    return found


def _plan(points: Points, extent: int) -> NestPlan:
    spread = Distribution((extent,), ((by_slot(extent, 1),),), 1)
    made = nest_plan(points, spread, Fragments(1))
    stored = {a.buffer.root for a in points.accesses if a.is_store}
    loaded = {a.buffer.root for a in points.accesses if not a.is_store}
    both = stored & loaded
    if stored and any(b.address is not None for b in stored | loaded):
        both = stored | loaded  # they may be one memory
    wide = (w for w in made.wide if points.accesses[w.parts[0][0]].buffer.root not in both)
    return replace(made, wide=tuple(wide))


def _extent(loop: For) -> int:
    start, stop, step = (int_value(e) for e in (loop.start, loop.stop, loop.step))
    is_plain = loop.kind in ("unroll", "vectorized") and (start, step) == (0, 1)
    return stop if is_plain and stop is not None else 0


def _loops(stmt: Stmt, context: Context) -> Iterator[tuple[For, Context]]:
    """Yield the loops of threads, with what surrounds them."""
    if isinstance(stmt, For):
        yield stmt, context
    if isinstance(stmt, nodes.Parallel):
        return
    inner = context if isinstance(stmt, nodes.Seq) else enter(stmt, context)
    for child in children(stmt):
        yield from _loops(child, inner)
        if isinstance(child, nodes.Let):
            inner = replace(inner, lets={**inner.lets, child.var: child.value})
