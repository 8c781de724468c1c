"""Loops in which threads meet and that they run a different number of times.

All threads take turns until none is left in the loop; who has left takes no part in a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilecore.ir import nodes
from tilecore.ir.expr import Expr, Load, as_bool, binary, cast, const, int_value
from tilecore.ir.nodes import Seq, Stmt

if TYPE_CHECKING:
    from tilecore.passes.threads.serialize_threads import Predicate, Serializer


def uneven_loop(
    owner: Serializer, stmt: nodes.For | nodes.While, predicate: Predicate
) -> list[Stmt]:
    """Return a loop whose condition threads meet differently, as one that runs for any of them."""
    active = owner.kept("active", "int32")
    first, again, condition = _head(owner, stmt)
    mine = (owner.thread,)
    check = nodes.Store(active, mine, cast(condition, "int32"), stmt.span)
    start = [
        owner.for_each([nodes.Store(active, mine, const(0), stmt.span)]),
        owner.for_each([*first, check], predicate),
    ]
    inside = (*predicate, (active, True))
    body = owner.sequence([stmt.body], inside)
    anyone, zero = owner.kept("anyone", "int32"), (const(0),)
    count = [
        nodes.Store(anyone, zero, const(0), stmt.span),
        owner.for_each([nodes.Store(anyone, zero, const(1), stmt.span)], inside),
    ]
    turn = Seq((*body, owner.for_each([*again, check], inside), *count), stmt.span)
    cond = as_bool(Load(anyone, zero, anyone.dtype))
    return [*start, *count, nodes.While(cond, turn, stmt.span)]


def _head(
    owner: Serializer, stmt: nodes.For | nodes.While
) -> tuple[Sequence[Stmt], Sequence[Stmt], Expr]:
    """Return what a thread does before the loop and after each turn, and what keeps it inside."""
    mine = (owner.thread,)
    if isinstance(stmt, nodes.While):
        return [], [], owner.each.expr(stmt.cond)
    var, dtype = stmt.loop_var, stmt.loop_var.dtype
    place, stop = owner.kept(var.name, dtype), owner.kept(f"{var.name}_stop", dtype)
    step = owner.kept(f"{var.name}_step", dtype)
    first = [
        nodes.Store(tile, mine, cast(owner.each.expr(value), dtype), stmt.span)
        for tile, value in ((place, stmt.start), (stop, stmt.stop), (step, stmt.step))
    ]
    owner.values[var] = place
    now, end, by = (Load(tile, mine, dtype) for tile in (place, stop, step))
    again = [nodes.Store(place, mine, binary("add", now, by), stmt.span)]
    size = int_value(stmt.step)
    return first, again, binary("gt" if size is not None and size < 0 else "lt", now, end)
