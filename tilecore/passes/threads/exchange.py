"""Exchanges between threads (shuffles, votes, reductions) as two loops: tell, then be told."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilecore.ir import nodes
from tilecore.ir.expr import Expr, Load, Var, binary, cast, const, select
from tilecore.ir.nodes import Buffer, Stmt
from tilecore.passes.threads.lane_gemm import lane_gemm

if TYPE_CHECKING:
    from tilecore.passes.threads.serialize_threads import Predicate, Serializer


def exchange(
    owner: Serializer, stmt: nodes.Exchange | nodes.LaneGemm, predicate: Predicate
) -> list[Stmt]:
    """Return the two thread loops of an exchange: tell, then be told."""
    if isinstance(stmt, nodes.LaneGemm):
        return lane_gemm(owner, stmt, predicate)
    width = min(stmt.width or owner.count, owner.count)
    value = owner.each.expr(stmt.args[0])
    told = owner.kept("told", "int32" if value.dtype == "bool" else value.dtype)
    stored = cast(value, told.dtype)
    if predicate:
        stored = select(owner.holds(predicate), stored, _identity(stmt.op, told.dtype))
    tell = owner.for_each([nodes.Store(told, (owner.thread,), stored, stmt.span)])
    dst = owner.private[stmt.dst]
    place = (owner.thread, *(const(0) for _ in stmt.dst.shape))
    base = binary("mul", binary("floordiv", owner.thread, width), width)
    if stmt.op in nodes.SHUFFLES:
        source = _source_lane(stmt.op, owner.thread, base, width, owner.each.expr(stmt.args[1]))
        source = binary("min", source, owner.count - 1)
        store = nodes.Store(dst, place, Load(told, (source,), told.dtype), stmt.span)
        return [tell, owner.for_each([store], predicate)]
    return [tell, owner.for_each(_combined(owner, stmt, told, dst, place, base, width), predicate)]


def _combined(
    owner: Serializer, stmt: nodes.Exchange, told: Buffer, dst: Buffer, place: tuple[Expr, ...],
    base: Expr, width: int,
) -> list[Stmt]:  # fmt: skip
    """Return the statements by which a thread combines what its group told."""
    lane = Var("lane", owner.thread.dtype)
    other = Load(told, (binary("add", base, lane),), told.dtype)
    total = owner.kept("combined", "int64" if stmt.op == "ballot" else told.dtype)
    here = (owner.thread,)
    now = Load(total, here, total.dtype)
    step = _COMBINE[stmt.op](now, cast(other, total.dtype), lane)
    start = nodes.Store(total, here, _identity(stmt.op, total.dtype), stmt.span)
    again = nodes.For(
        lane, const(0), const(width), const(1), "serial",
        nodes.Store(total, here, step, stmt.span), span=stmt.span,
    )  # fmt: skip
    return [start, again, nodes.Store(dst, place, cast(now, dst.dtype), stmt.span)]


def _source_lane(op: str, thread: Expr, base: Expr, width: int, given: Expr) -> Expr:
    """Return the thread that a shuffle reads; the own one outside the group."""
    given = cast(given, thread.dtype)
    lane = binary("mod", thread, width)
    if op == "shfl":
        return binary("add", base, binary("mod", given, width))
    op_name = {"shfl_xor": "bitxor", "shfl_up": "sub", "shfl_down": "add"}[op]
    source = binary(op_name, lane, given)
    parts = [x for n in (given, source) for x in (binary("ge", n, 0), binary("lt", n, width))]
    inside = functools.reduce(lambda a, b: binary("and", a, b), parts)
    return binary("add", base, select(inside, source, lane))


def _identity(op: str, dtype: Any) -> Expr:
    """Return the value that changes nothing, in a group's combination."""
    if op in ("max", "min"):
        low, high = (-math.inf, math.inf) if dtype.is_float else dtype.ends
        return const(low if op == "max" else high, dtype)
    return const({"all": 1, "prod": 1, "bitand": -1}.get(op, 0), dtype)


_Combine = Callable[[Expr, Expr, Expr], Expr]
_COMBINE: dict[str, _Combine] = {
    "sum": lambda a, b, _: binary("add", a, b),
    "prod": lambda a, b, _: binary("mul", a, b),
    "count": lambda a, b, _: binary("add", a, b),
    "max": lambda a, b, _: binary("max", a, b),
    "min": lambda a, b, _: binary("min", a, b),
    "bitand": lambda a, b, _: binary("bitand", a, b),
    "all": lambda a, b, _: binary("bitand", a, b),
    "bitor": lambda a, b, _: binary("bitor", a, b),
    "any": lambda a, b, _: binary("bitor", a, b),
    "bitxor": lambda a, b, _: binary("bitxor", a, b),
    "ballot": lambda a, b, lane: binary(
        "bitor", a, binary("shl", b, cast(lane, b.dtype))
    ),
}  # fmt: skip
