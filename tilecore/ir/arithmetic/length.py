"""How long expressions are, written out, and whether two are the same without writing them out.

What names are bound to may stand in many places.

Each round of a hash, or of z * z + c, names two values that the next one reads twice: written out,
of ten rounds there are millions of operations.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilecore.ir.expr import Call, Const, Expr, Load, Var
from tilecore.ir.visitor import expr_children

LONGEST = 256  # operations that may stand in the place of a name


def length(expr: Expr, of_names: Mapping[Var, int]) -> int:
    """Return how many operations and operands an expression has.

    ``of_names``: those of what stands in the place of names.
    """
    known: dict[int, int] = {}
    waiting = [expr]  # no recursion: the rounds of a hash are a deep expression
    while waiting:
        node = waiting[-1]
        parts = expr_children(node)
        left = [part for part in parts if id(part) not in known]
        if left:
            waiting += left
            continue
        waiting.pop()
        own = of_names.get(node, 1) if isinstance(node, Var) else 1
        known[id(node)] = own + sum(known[id(part)] for part in parts)
    return known[id(expr)]


def is_kept(var: Var, value: Expr, of_names: dict[Var, int]) -> bool:
    """Return whether a value is too long to be written in the place of its name, and note it."""
    size = length(value, of_names)
    is_long = size > LONGEST and var.dtype != "bool" and var.dtype.bits >= 8
    of_names[var] = 1 if is_long else size
    return is_long


def is_same(one: Expr, other: Expr) -> bool:
    """Return whether two expressions do the same operations to the same Vars and elements."""
    seen: set[tuple[int, int]] = set()
    waiting = [(one, other)]
    while waiting:
        a, b = waiting.pop()
        if a is b or (id(a), id(b)) in seen:
            continue
        seen.add((id(a), id(b)))
        parts, others = expr_children(a), expr_children(b)
        if type(a) is not type(b) or _itself(a) != _itself(b) or len(parts) != len(others):
            return False
        waiting += zip(parts, others, strict=True)
    return True


def _itself(expr: Expr) -> tuple[object, ...]:
    """Return what an expression is, but for its operands."""
    match expr:
        case Const(value=value):
            return (expr.dtype, repr(value))
        case Load(buffer=buffer):
            return (expr.dtype, id(buffer))
        case Call(name=name):
            return (expr.dtype, name)
        case Var():
            return (id(expr),)
        case _:
            return (expr.dtype, getattr(expr, "op", ""))
