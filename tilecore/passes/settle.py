"""settle: what the ranges of loops say of a condition is not asked where the program runs.

Programs guard the ends of tensors whether blocks divide them or not: where they do, the guards
always hold, and what they choose between, or whether something is stored, need not be looked at
element by element.
"""

from __future__ import annotations

from dataclasses import replace

from tilecore.inference.uses import Context, enter
from tilecore.ir.arithmetic.bounds import Interval, Known, linear, narrowed
from tilecore.ir.dims import value_ranges
from tilecore.ir.expr import (
    COMPARISONS,
    Binary,
    Cast,
    Const,
    Expr,
    Unary,
    Var,
    binary,
    const,
    holds,
)
from tilecore.ir.nodes import (
    Buffer,
    For,
    If,
    KernelLaunch,
    Let,
    Parallel,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    While,
)
from tilecore.ir.substitute import Rebuilder
from tilecore.ir.visitor import flat, walk_expr, with_body


def run(func: PrimFunc) -> PrimFunc:
    """Return the function without the conditions that always or never hold."""
    return with_body(func, _settled(func.body, Context(ranges=value_ranges(func))))


def _settled(stmt: Stmt, context: Context) -> Stmt:
    match stmt:
        case Seq(stmts=stmts):
            found = []
            for one in stmts:
                found.append(_settled(one, context))
                if isinstance(one, Let):
                    context = replace(context, lets={**context.lets, one.var: one.value})
            if all(a is b for a, b in zip(found, stmts, strict=True)):
                return stmt
            return replace(stmt, stmts=tuple(flat(found)))
        case KernelLaunch(body=body) | Parallel(body=body) | For(body=body) | While(body=body):
            new = _settled(body, enter(stmt, context))
            if _is_empty(new) and isinstance(stmt, (Parallel, For)):
                return Seq((), stmt.span)
            return stmt if new is body else replace(stmt, body=new)
        case If():
            return _branch(stmt, context)
        case Store(value=value) | Let(value=value):
            settled = _Conditions(context.known).expr(value)
            return stmt if settled is value else replace(stmt, value=settled)
        case _:
            return stmt


def _branch(stmt: If, context: Context) -> Stmt:
    cond = _Conditions(context.known).expr(stmt.cond)
    if isinstance(cond, Const):
        chosen = stmt.then_body if cond.value else stmt.else_body
        return Seq((), stmt.span) if chosen is None else _settled(chosen, context)

    def inside(body: Stmt, *, is_met: bool) -> Stmt:
        ranges = narrowed(cond, context.ranges, holds=is_met)
        return _settled(body, replace(enter(stmt, context), ranges=ranges))

    then = inside(stmt.then_body, is_met=True)
    other = None if stmt.else_body is None else inside(stmt.else_body, is_met=False)
    if _is_empty(then) and (other is None or _is_empty(other)):
        return Seq((), stmt.span)
    if cond is stmt.cond and then is stmt.then_body and other is stmt.else_body:
        return stmt
    return replace(stmt, cond=cond, then_body=then, else_body=other)


def _is_empty(stmt: Stmt) -> bool:
    return isinstance(stmt, Seq) and not stmt.stmts


class _Conditions(Rebuilder):
    """Expressions with the comparisons that are known as constants, and what follows folded."""

    def __init__(self, known: Known) -> None:
        super().__init__()
        self.known = known

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return ``buffer``: statements that stay as they are name it, too."""
        return buffer

    def expr(self, expr: Expr) -> Expr:
        """Return ``expr`` with fewer conditions."""
        if isinstance(expr, Binary) and expr.op in COMPARISONS:
            outcome = _outcome(expr, self.known)
            if outcome is not None:
                return const(outcome, "bool")
        if isinstance(expr, Binary) and expr.op in ("and", "or"):
            one, other = self.expr(expr.a), self.expr(expr.b)
            for part, rest in ((one, other), (other, one)):
                if isinstance(part, Const):
                    return part if bool(part.value) is (expr.op == "or") else rest
        return super().expr(expr)


def _outcome(comparison: Binary, known: Known) -> bool | None:
    """Return what comes of a comparison of signed integers, None if ranges do not say it."""
    a, b = comparison.a, comparison.b
    if not (a.dtype.is_integer and a.dtype.is_signed and a.dtype.bits >= 32):
        return None
    found = _difference(a, b, known)
    if found is None or not (_fits(a, known) and _fits(b, known)):
        return None
    low, high = found
    always, never = {
        "lt": (high < 0, low >= 0),
        "le": (high <= 0, low > 0),
        "gt": (low > 0, high <= 0),
        "ge": (low >= 0, high < 0),
        "eq": (low == high == 0, low > 0 or high < 0),
        "ne": (low > 0 or high < 0, low == high == 0),
    }[comparison.op]
    return True if always else False if never else None


def _fits(expr: Expr, known: Known) -> bool:
    """Return whether nothing that an integer is computed by wraps around: hashes do."""
    for node in walk_expr(expr):
        if isinstance(node, Var) and node in known.lets and not _fits(known.lets[node], known):
            return False
        if isinstance(node, (Binary, Unary, Cast)):
            bounds = known.bounds(node)
            if bounds is None or not all(holds(node.dtype, end) for end in bounds):
                return False
    return True


def _difference(a: Expr, b: Expr, known: Known) -> Interval | None:
    """Return inclusive bounds of ``a - b``; what both have in common cancels."""
    one, other = linear(a, known.lets), linear(b, known.lets)
    if one is not None and other is not None:
        return known.bounds(one.plus(other, -1).to_expr())
    return known.bounds(binary("sub", a, b))
