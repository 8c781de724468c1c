"""Integer bounds of index expressions: linear forms and intervals, no prover.

A linear form is ``constant + sum(coefficient * var)`` with integer coefficients. Intervals follow
from the ranges of loop and block variables. What is not linear is bounded by interval arithmetic
or, failing that, unknown (None): callers then guard the access.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from tilecore.ir.arithmetic.polynomial import is_equal
from tilecore.ir.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    Var,
    binary,
    const,
    int_value,
)
from tilecore.ir.visitor import distinct

Interval = tuple[int, int]  # inclusive on both ends
NON_NEGATIVE: Interval = (0, 2**31 - 1)  # an index whose end is known only at run time


def ends(values: range) -> Interval:
    """Return the least and the greatest of some numbers, however many, without counting them."""
    return (min(values[0], values[-1]), max(values[0], values[-1]))


@dataclass(frozen=True, slots=True)
class Linear:
    """``constant + sum(coefficients[var] * var)``."""

    coefficients: Mapping[Var, int]
    constant: int

    def coefficient(self, var: Var) -> int:
        """Return the factor of ``var`` (0 where absent)."""
        return self.coefficients.get(var, 0)

    def without(self, var: Var) -> Linear:
        """Return the form with ``var`` set to 0."""
        return Linear({v: c for v, c in self.coefficients.items() if v is not var}, self.constant)

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """Return ``self + factor * other``."""
        merged = dict(self.coefficients)
        for var, value in other.coefficients.items():
            merged[var] = merged.get(var, 0) + factor * value
        nonzero = {v: c for v, c in merged.items() if c}
        return Linear(nonzero, self.constant + factor * other.constant)

    def scaled(self, factor: int) -> Linear:
        """Return ``factor * self``."""
        return Linear({}, 0).plus(self, factor)

    def quotient(self, divisor: int) -> Linear | None:
        """Return ``self // divisor``; None: it is not linear."""
        if divisor < 1 or any(c % divisor for c in self.coefficients.values()):
            return None
        whole = {v: c // divisor for v, c in self.coefficients.items()}
        return Linear(whole, self.constant // divisor)

    def to_expr(self) -> Expr:
        """Return the form as an expression."""
        total: Expr = const(0)
        for var, value in self.coefficients.items():
            total = binary("add", total, binary("mul", var, value))
        return binary("add", total, self.constant)


def linear(expr: Expr, bindings: Mapping[Var, Expr] | None = None) -> Linear | None:
    """Return ``expr`` as a linear form, or None; ``bindings`` replaces let-bound variables.

    Integers of less than 32 bits and unsigned ones wrap around: what is computed in them is not
    linear.
    """
    if isinstance(expr, (Binary, Unary, Cast)) and is_narrow(expr):
        return None
    if isinstance(expr, Const) and not expr.dtype.is_float:
        return Linear({}, int(expr.value))
    if isinstance(expr, Var):
        if bindings is not None and expr in bindings:
            return linear(bindings[expr], bindings)
        return Linear({expr: 1}, 0)
    if isinstance(expr, Cast) and expr.dtype.is_integer and expr.a.dtype.is_integer:
        return linear(expr.a, bindings)
    if isinstance(expr, Unary) and expr.op == "neg":
        inner = linear(expr.a, bindings)
        return inner.scaled(-1) if inner else None
    return _linear_binary(expr, bindings) if isinstance(expr, Binary) else None


def _linear_binary(expr: Binary, bindings: Mapping[Var, Expr] | None) -> Linear | None:
    if expr.op in ("floordiv", "shr", "shl"):
        return _linear_quotient(expr, bindings)
    if expr.op not in ("add", "sub", "mul"):
        return None
    a, b = linear(expr.a, bindings), linear(expr.b, bindings)
    if a is None or b is None:
        return None
    if expr.op != "mul":
        return a.plus(b, 1 if expr.op == "add" else -1)
    if not a.coefficients:
        return b.scaled(a.constant)
    return a.scaled(b.constant) if not b.coefficients else None


def _linear_quotient(expr: Binary, bindings: Mapping[Var, Expr] | None) -> Linear | None:
    """Return a quotient, or a shift by a known number, as a linear form, or None."""
    number = int_value(expr.b)
    if number is None or (expr.op != "floordiv" and not 0 <= number < expr.dtype.bits):
        return None
    form = linear(expr.a, bindings)
    if form is None or expr.op == "shl":
        return form and form.scaled(1 << number)
    return form.quotient(number if expr.op == "floordiv" else 1 << number)


def is_narrow(expr: Expr) -> bool:
    """Return whether an integer is of a type whose sums may wrap around."""
    return expr.dtype.is_integer and (expr.dtype.bits < 32 or not expr.dtype.is_signed)


def interval(
    expr: Expr, ranges: Mapping[Var, Interval], bindings: Mapping[Var, Expr] | None = None
) -> Interval | None:
    """Return inclusive bounds of an integer expression, or None where they are unknown."""
    found = _interval(expr, ranges, bindings)
    if not is_narrow(expr):
        return found
    low, high = expr.dtype.ends
    fits = found is not None and low <= found[0] and found[1] <= high
    return found if fits else (low, high)


def _interval(
    expr: Expr, ranges: Mapping[Var, Interval], bindings: Mapping[Var, Expr] | None
) -> Interval | None:
    form = linear(expr, bindings)
    if form is not None:
        return _of_form(form, ranges)
    if isinstance(expr, Var) and bindings is not None and expr in bindings:
        return interval(bindings[expr], ranges, bindings)
    if isinstance(expr, Cast) and expr.dtype.is_integer:
        found = interval(expr.a, ranges, bindings)
        turns = expr.a.dtype.is_integer and not expr.a.dtype.is_signed and expr.dtype.is_signed
        return None if turns and found and found[1] > expr.dtype.ends[1] else found
    if isinstance(expr, Select):
        a, b = interval(expr.a, ranges, bindings), interval(expr.b, ranges, bindings)
        return (min(a[0], b[0]), max(a[1], b[1])) if a and b else None
    if isinstance(expr, Binary):
        a, b = interval(expr.a, ranges, bindings), interval(expr.b, ranges, bindings)
        return _of_binary(expr.op, a, b)
    return None


def _of_form(form: Linear, ranges: Mapping[Var, Interval]) -> Interval | None:
    """Return bounds of a linear form, None where a variable of it has none."""
    low = high = form.constant
    for var, factor in form.coefficients.items():
        bounds = ranges.get(var)
        if bounds is None:
            return None
        ends = (factor * bounds[0], factor * bounds[1])
        low, high = low + min(ends), high + max(ends)
    return low, high


def _of_binary(op: str, a: Interval | None, b: Interval | None) -> Interval | None:
    """Return bounds of the result of an operation by those of its operands, as far as they do."""
    if op == "mod" and a is None and b is not None and b[0] > 0:
        return 0, b[1] - 1  # floored: never negative
    if op == "bitand":
        masks = [x[1] for x in (a, b) if x is not None and x[0] >= 0]
        return (0, min(masks)) if masks else None
    rule = _INTERVAL_RULES.get(op)
    return rule(a, b) if rule and a and b else None


def _floordiv(a: Interval, b: Interval) -> Interval | None:
    if b[0] <= 0:
        return None
    ends = [x // y for x in a for y in b]
    return min(ends), max(ends)


def _mod(a: Interval, b: Interval) -> Interval | None:
    if b[0] <= 0:
        return None
    if a[0] >= 0 and a[1] < b[0]:
        return a
    return 0, b[1] - 1


def _mul(a: Interval, b: Interval) -> Interval:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def _shr(a: Interval, b: Interval) -> Interval | None:
    if b[0] < 0 or b[1] > 64:
        return None
    ends = [x >> y for x in a for y in b]
    return min(ends), max(ends)


_INTERVAL_RULES: dict[str, Callable[[Interval, Interval], Interval | None]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _mul,
    "floordiv": _floordiv,
    "mod": _mod,
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "shr": _shr,
}


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of variables where an expression stands.

    Attributes:
        ranges: inclusive bounds.
        tops: for loop and block variables an expression that they stay below.
        lets: values of let-bound variables.
    """

    ranges: Mapping[Var, Interval]
    tops: Mapping[Var, Expr]
    lets: Mapping[Var, Expr]

    def bounds(self, expr: Expr) -> Interval | None:
        """Return inclusive bounds of an integer expression, or None."""
        return interval(expr, self.ranges, self.lets)

    def is_below(self, index: Expr, extent: Expr | int) -> bool:
        """Return whether ``index < extent`` is known."""
        size = int_value(extent)
        if size is not None:
            bounds = self.bounds(index)
            return bounds is not None and bounds[1] < size
        while isinstance(index, Cast):
            index = index.a
        top = self.tops.get(index) if isinstance(index, Var) else None
        return top is not None and is_equal(top, extent)


def begins_inside(
    offsets: Sequence[Expr], shape: Sequence[Expr | int], axes: Container[int], known: Known
) -> bool:
    """Return whether a box is known to begin inside a tensor, wherever it ends.

    Args:
        offsets: of its first element.
        shape: of the tensor.
        axes: along which the box extends: it may begin behind the tensor there, and be empty.
        known: of the variables in ``offsets``.
    """
    for axis, (offset, extent) in enumerate(zip(offsets, shape, strict=True)):
        bounds = known.bounds(offset)
        if bounds is None or bounds[0] < 0:
            return False
        if axis not in axes and not known.is_below(offset, extent):
            return False
    return True


def begins_anew(expr: Expr, known: Known) -> bool:
    """Return whether an integer keeps the low bits of one that may grow beyond them.

    Of remainders, bit masks and conversions to narrow integers those of variables may.
    """
    match expr:
        case Cast(a=a) if is_narrow(expr) and a.dtype.is_integer:
            bounds, (low, high) = known.bounds(a), expr.dtype.ends
        case Binary(op="mod" | "bitand", a=a, b=b):
            number = int_value(b)
            high = -1 if number is None else number - (expr.op == "mod")
            if high < 1 or high & (high + 1):  # no power of two: LLVM divides
                return False
            bounds, low = _rest(a, high + 1, known), 0
        case _:
            return False
    fits = bounds is not None and low <= bounds[0] and bounds[1] <= high
    return not fits and any(var is not _UNKNOWN for var in variables(a))


def _rest(expr: Expr, factor: int, known: Known) -> Interval | None:
    """Return bounds of what is left of a sum without the multiples of ``factor``."""
    form = linear(expr, known.lets)
    if form is None:
        return known.bounds(expr)
    left = {v: c for v, c in form.coefficients.items() if c % factor}
    return known.bounds(Linear(left, form.constant % factor).to_expr())


def narrowed(cond: Expr, ranges: Mapping[Var, Interval], *, holds: bool) -> dict[Var, Interval]:
    """Return ``ranges`` where a condition that compares variables with numbers holds, or not."""
    if isinstance(cond, Unary) and cond.op == "not":
        return narrowed(cond.a, ranges, holds=not holds)
    if not isinstance(cond, Binary):
        return dict(ranges)
    if cond.op == ("and" if holds else "or"):
        return narrowed(cond.b, narrowed(cond.a, ranges, holds=holds), holds=holds)
    var, number = cond.a, int_value(cond.b)
    while isinstance(var, Cast) and var.a.dtype.is_integer:
        var = var.a
    if not isinstance(var, Var) or number is None or var not in ranges:
        return dict(ranges)
    low, high = ranges[var]
    opposite = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
    op = cond.op if holds else opposite.get(cond.op, "")
    low = {"ge": max(low, number), "gt": max(low, number + 1), "eq": number}.get(op, low)
    high = {"le": min(high, number), "lt": min(high, number - 1), "eq": number}.get(op, high)
    return {**ranges, var: (low, high)} if low <= high else dict(ranges)


def step_of(expr: Expr, var: Var) -> int | None:
    """Return how ``expr`` grows with ``var``; None: not by a known number.

    What does not mention ``var`` is constant, whatever it is made of.
    """
    if not mentions(expr, var):
        return 0
    match expr:
        case Var():
            return 1
        case Cast(a=a) if not is_narrow(a) and not is_narrow(expr):
            return step_of(a, var)
        case Binary(op="add" | "sub", a=a, b=b):
            x, y = step_of(a, var), step_of(b, var)
            if x is None or y is None:
                return None
            return x + y if expr.op == "add" else x - y
        case Binary(op="mul", a=a, b=b):
            factor, rest = (int_value(a), b) if int_value(a) is not None else (int_value(b), a)
            step = step_of(rest, var)
            return None if factor is None or step is None else factor * step
        case _:
            return None


def mentions(expr: Expr, var: Var) -> bool:
    """Return whether ``var`` stands anywhere in ``expr``, in the index of a load, too."""
    return any(node is var for node in distinct(expr))


def variables(expr: Expr) -> set[Var]:
    """Return the Vars that ``expr`` mentions outside of loads; loads count as an unknown Var."""
    found: set[Var] = set()
    stack: list[Expr] = [expr]
    while stack:
        node = stack.pop()
        match node:
            case Var():
                found.add(node)
            case Binary(a=a, b=b):
                stack += [a, b]
            case Unary(a=a) | Cast(a=a):
                stack.append(a)
            case Select(cond=c, a=a, b=b):
                stack += [c, a, b]
            case Call(args=args):
                stack += args
            case Load():
                found.add(_UNKNOWN)
            case _:
                pass
    return found


_UNKNOWN = Var("<memory>")
