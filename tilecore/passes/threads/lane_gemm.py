"""Products of matrices that lanes hold in pieces, as two loops over threads: tell, then multiply.

Every thread writes its elements of A and B where its warp's matrices have them; then every thread
sums up its elements of C.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tilecore.ir import nodes
from tilecore.ir.expr import Expr, Load, Var, binary, cast, const
from tilecore.ir.lane_matrix import LANES, counts, place_in_a, place_in_b, place_in_c
from tilecore.ir.nodes import Buffer, Region, Stmt

if TYPE_CHECKING:
    from tilecore.passes.threads.serialize_threads import Predicate, Serializer


def lane_gemm(owner: Serializer, stmt: nodes.LaneGemm, predicate: Predicate) -> list[Stmt]:
    """Return the two thread loops of a product."""
    m, n, k = stmt.shape
    kind = str(stmt.c.dtype)
    kind = "float32" if kind == "float16" else kind  # a sum is rounded once
    warps = -(-owner.count // LANES)
    a, b = (owner.kept(name, kind, warps * size) for name, size in (("a", m * k), ("b", k * n)))
    tell = [
        nodes.Store(whole, (place,), cast(owner.each.expr(value), kind), stmt.span)
        for whole, place, value in itertools.chain(
            _told(owner, stmt, a, is_a=True), _told(owner, stmt, b, is_a=False)
        )
    ]
    sums = list(_summed(owner, stmt, a, b))
    return [owner.for_each(tell, predicate), owner.for_each(sums, predicate)]


def _told(
    owner: Serializer, stmt: nodes.LaneGemm, whole: Buffer, *, is_a: bool
) -> Iterator[tuple[Buffer, Expr, Expr]]:
    """Yield where a thread's elements of A, or of B, stand among those of all warps."""
    m, n, k = stmt.shape
    warp, lane = owner.thread // LANES, owner.thread % LANES
    region, size, width = (stmt.a, m * k, k) if is_a else (stmt.b, k * n, n)
    for element in range(counts(stmt.shape)[0 if is_a else 1]):
        row, column = (
            place_in_a(lane, element, stmt.shape, region.dtype)
            if is_a
            else place_in_b(lane, element, region.dtype)
        )
        yield whole, warp * size + row * width + column, _element(region, element)


def _summed(owner: Serializer, stmt: nodes.LaneGemm, a: Buffer, b: Buffer) -> Iterator[Stmt]:
    """Yield what adds up a thread's elements of C."""
    m, n, k = stmt.shape
    warp, lane = owner.thread // LANES, owner.thread % LANES
    total = owner.kept("total", a.dtype)
    here = (owner.thread,)
    now = Load(total, here, total.dtype)
    for element in range(counts(stmt.shape)[2]):
        row, column = place_in_c(lane, element)
        held = _element(stmt.c, element)
        assert isinstance(held, Load)
        depth = Var("depth")
        left = Load(a, (warp * (m * k) + row * k + depth,), a.dtype)
        right = Load(b, (warp * (k * n) + depth * n + column,), b.dtype)
        step = nodes.Store(total, here, now + left * right, stmt.span)
        yield nodes.Store(total, here, cast(owner.each.expr(held), total.dtype), stmt.span)
        yield nodes.For(depth, const(0), const(k), const(1), "serial", step, span=stmt.span)
        found = nodes.Store(held.buffer, held.indices, cast(now, held.dtype), stmt.span)
        yield owner.each.stmt(found)


def _element(region: Region, element: int) -> Expr:
    """Return an element of a thread's part of a matrix."""
    return Load(region.buffer, (binary("add", region.offsets[0], element),), region.dtype)
