"""How often a loop runs."""

from __future__ import annotations

from tilecore.ir.expr import Expr, int_value, select
from tilecore.ir.nodes import For


def trip_count(stmt: For) -> Expr:
    """Return how often a loop runs (not above 0: never)."""
    up, down = stmt.stop - stmt.start, stmt.start - stmt.stop
    step = int_value(stmt.step)
    if step is not None:
        return ((up if step > 0 else down) + (abs(step) - 1)) // abs(step)
    forward, backward = (up + stmt.step - 1) // stmt.step, (down - stmt.step - 1) // -stmt.step
    return select(stmt.step > 0, forward, backward)
