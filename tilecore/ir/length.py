"""How long expressions are, written out: what names are bound to may stand in many places.

Each round of a hash names two values that the next one reads twice: written out, of ten rounds
there are millions of operations.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilecore.ir.expr import Expr, Var
from tilecore.ir.visitor import expr_children

LONGEST = 256  # operations that may stand in the place of a name


def length(expr: Expr, of_names: Mapping[Var, int]) -> int:
    """Return how many operations and operands an expression has.

    ``of_names``: those of what stands in the place of names.
    """
    known: dict[int, int] = {}

    def of(node: Expr) -> int:
        if isinstance(node, Var):
            return of_names.get(node, 1)
        if id(node) not in known:
            known[id(node)] = 1 + sum(of(part) for part in expr_children(node))
        return known[id(node)]

    return of(expr)


def is_kept(var: Var, value: Expr, of_names: dict[Var, int]) -> bool:
    """Return whether an integer is too long to be written in the place of its name, and note it."""
    size = length(value, of_names)
    is_long = size > LONGEST and var.dtype.is_integer and var.dtype.bits >= 8
    of_names[var] = 1 if is_long else size
    return is_long
