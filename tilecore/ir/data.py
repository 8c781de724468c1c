"""Values that only data tells: what depends on an element that is loaded when a kernel runs."""

from __future__ import annotations

from collections.abc import Mapping

from tilecore.ir.expr import Expr, Load, Var
from tilecore.ir.visitor import walk_expr

NOTHING: Mapping[Var, Expr] = {}


def is_data(expr: Expr, lets: Mapping[Var, Expr] = NOTHING) -> bool:
    """Return whether ``expr``, or a variable in it that ``lets`` binds, loads from memory."""
    return any(
        isinstance(e, Load) or (isinstance(e, Var) and e in lets and is_data(lets[e], lets))
        for e in walk_expr(expr)
    )
