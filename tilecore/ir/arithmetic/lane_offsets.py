"""How far an index grows from the first lane of a vector to each other one.

Lanes are neighbours of a loop variable, and the first one is a multiple of their number. Quotients
and remainders by numbers that go together with that are the same in every vector. Of 16 lanes
``j``, ``j // 2`` grows by 0, 0, 1, 1, 2, ..., ``j % 2`` by 0, 1, 0, 1, ..., and
``(k * 128 + j) // 32`` not at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilecore.ir.arithmetic.bounds import is_narrow, mentions
from tilecore.ir.expr import Binary, Cast, Expr, Unary, Var, int_value

Offsets = tuple[int, ...]
MOST_REMAINDERS = 1024  # of a first lane that are looked at


def lane_offsets(expr: Expr, var: Var, lanes: int) -> Offsets | None:
    """Return what ``expr`` is in each lane more than in the first one; None: that is not known."""
    if not mentions(expr, var):
        return (0,) * lanes
    if isinstance(expr, (Binary, Unary, Cast)) and is_narrow(expr):
        return None
    match expr:
        case Var():
            return tuple(range(lanes))
        case Cast(a=a) if a.dtype.is_integer and not is_narrow(a):
            return lane_offsets(a, var, lanes)
        case Binary(op="add" | "sub", a=a, b=b):
            x, y = lane_offsets(a, var, lanes), lane_offsets(b, var, lanes)
            if x is None or y is None:
                return None
            sign = 1 if expr.op == "add" else -1
            return tuple(p + sign * q for p, q in zip(x, y, strict=True))
        case Binary(op="mul", a=a, b=b):
            factor, rest = (int_value(a), b) if int_value(a) is not None else (int_value(b), a)
            inner = lane_offsets(rest, var, lanes)
            return None if factor is None or inner is None else tuple(factor * x for x in inner)
        case Binary(a=a):
            divisor = _divisor(expr)
            return None if divisor is None else _divided(expr, a, divisor, var, lanes)
    return None


def lane_values(expr: Expr, var: Var, lanes: int) -> Offsets | None:
    """Return what ``expr`` is in each lane of every vector; None: that differs, or is not known."""
    first, step = _remainder(expr, var, lanes)
    apart = lane_offsets(expr, var, lanes) if step == 0 else None
    return None if apart is None else tuple(first + x for x in apart)


def _divisor(expr: Binary) -> int | None:
    """Return the number that a quotient or remainder is by, as shifts and masks write it, too."""
    number = int_value(expr.b)
    if number is None:
        return None
    if expr.op in ("floordiv", "mod"):
        return number if number > 0 else None
    if expr.op == "shr":
        return 1 << number if 0 <= number < 31 else None
    is_mask = expr.op == "bitand" and number >= 0 and number & (number + 1) == 0
    return number + 1 if is_mask else None


def _divided(expr: Binary, a: Expr, divisor: int, var: Var, lanes: int) -> Offsets | None:
    inner = lane_offsets(a, var, lanes)
    if inner is None:
        return None
    rest, step = _remainder(a, var, lanes)
    step = math.gcd(step, divisor)
    if divisor > MOST_REMAINDERS * step:
        return None
    is_quotient = expr.op in ("floordiv", "shr")
    grown: Callable[[int, int], int] = (
        (lambda r, x: (r + x) // divisor) if is_quotient else (lambda r, x: (r + x) % divisor - r)
    )
    found = {tuple(grown(r, x) for x in inner) for r in range(rest % step, divisor, step)}
    return found.pop() if len(found) == 1 else None


def _remainder(expr: Expr, var: Var, lanes: int) -> tuple[int, int]:
    """Return (r, m): in the first lane an expression is r plus a multiple of m (m = 0: it is r)."""
    number = int_value(expr)
    if number is not None:
        return number, 0
    match expr:
        case Var() if expr is var:
            return 0, lanes
        case Cast(a=a) if a.dtype.is_integer and not is_narrow(a) and not is_narrow(expr):
            return _remainder(a, var, lanes)
        case Binary(op="add" | "sub" | "mul", a=a, b=b) if not is_narrow(expr):
            (x, m), (y, n) = _remainder(a, var, lanes), _remainder(b, var, lanes)
            if expr.op == "mul":
                return x * y, math.gcd(m * n, m * y, n * x)
            return x + (y if expr.op == "add" else -y), math.gcd(m, n)
        case Binary(a=a) if not is_narrow(expr) and (divisor := _divisor(expr)) is not None:
            rest, step = _remainder(a, var, lanes)
            if step % divisor:
                is_rest = expr.op in ("mod", "bitand")
                return (rest, math.gcd(step, divisor)) if is_rest else (0, 1)
            is_quotient = expr.op in ("floordiv", "shr")
            return (rest // divisor, step // divisor) if is_quotient else (rest % divisor, 0)
    return 0, 1
