"""How many threads a launch is worth: each thread that joins costs about a microsecond.

OpenMP's and TVM's pools start and gather two threads in 1.1 us while both are awake, in 70 us and
more where other processes use the cores (AMD Zen 4, 2026-11-25). A thread should save several times
that. What a block takes is a coarse estimate, on the low side: of data in the caches.
"""

from __future__ import annotations

import math

from tilecore.ir.arithmetic.trips import trip_count
from tilecore.ir.expr import Call, Expr, Load, int_value
from tilecore.ir.nodes import (
    Alloc,
    Annotate,
    Assert,
    Copy,
    Fill,
    For,
    Gemm,
    If,
    KernelLaunch,
    Let,
    Pad,
    Parallel,
    Reduce,
    Region,
    Scan,
    Seq,
    Stmt,
    Store,
)
from tilecore.ir.visitor import expressions, walk_expr

SHARE_NS = 5000.0  # of work that a thread is started for
MOVE_NS, CALL_NS, PRODUCT_NS = 0.1, 1.0, 0.015  # an element in vectors, an exp or the like, a MAC
SCALAR = 8  # times as long: statements that no vectors are made of


def blocks_of_a_share(launch: KernelLaunch) -> int:
    """Return how many blocks of a launch a thread is started for; 1 if that cannot be told."""
    found = _time_ns(launch.body, SCALAR)
    return 1 if found is None else max(1, int(SHARE_NS // max(found, 1.0)))


def tiles_of_a_share(elements: int) -> int:
    """Return how many tiles of so many elements a thread is started for to pack them."""
    return max(1, int(SHARE_NS // (elements * 2 * MOVE_NS)))


def _time_ns(stmt: Stmt, factor: float) -> float | None:
    """Return about how long a statement takes, None if sizes known at run time decide that."""
    match stmt:
        case Seq(stmts=stmts):
            return _sum([_time_ns(child, factor) for child in stmts])
        case For(body=body):
            return _times(int_value(trip_count(stmt)), _time_ns(body, factor))
        case If(then_body=one, else_body=other):
            bodies = [one] if other is None else [one, other]
            return _sum([_time_ns(body, factor) for body in bodies])
        case Parallel(extents=extents, body=body):
            return _times(_count(extents), _time_ns(body, 1))
        case Copy(src=src):
            return _times(_elements(src), 2 * MOVE_NS)
        case Fill(dst=dst):
            return _times(_elements(dst), MOVE_NS)
        case Reduce(src=src) | Scan(src=src):
            return _times(_elements(src), 2 * MOVE_NS)
        case Gemm(a=a, c=c):
            columns = int_value(c.extents[-1])
            return _times(columns, _times(_elements(a), PRODUCT_NS))
        case Store() | Let():
            return factor * sum(_expr_ns(e) for e in expressions(stmt)) + factor * MOVE_NS
        case Alloc() | Annotate() | Assert() | Pad():
            return 0.0
    return None


def _expr_ns(expr: Expr) -> float:
    nodes = list(walk_expr(expr))
    calls = sum(isinstance(node, Call) for node in nodes)
    return MOVE_NS * sum(isinstance(node, Load) for node in nodes) + CALL_NS * calls


def _elements(region: Region) -> int | None:
    return _count(region.extents)


def _count(extents: tuple[Expr, ...]) -> int | None:
    sizes = [int_value(extent) for extent in extents]
    return None if None in sizes else math.prod(size for size in sizes if size is not None)


def _sum(times: list[float | None]) -> float | None:
    return None if None in times else sum(time for time in times if time is not None)


def _times(count: int | None, time: float | None) -> float | None:
    return None if count is None or time is None else count * time
