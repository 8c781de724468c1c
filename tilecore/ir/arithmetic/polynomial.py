"""Integer expressions as polynomials: the normal form that decides whether extents are equal.

``(by + 1) * 128 - by * 128`` and ``128`` have the same polynomial; so do extents that differ only
in the order of their terms. Subexpressions that are not sums or products are atoms.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilecore.ir.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    ExprLike,
    Load,
    Select,
    Unary,
    as_expr,
    const,
    int_value,
)

Key = tuple[object, ...]
Monomial = tuple[Key, ...]


def structural_key(expr: Expr) -> Key:
    """Return a hashable value that is equal for structurally equal expressions of the same Vars."""
    if isinstance(expr, Const):
        return ("const", expr.value, str(expr.dtype))
    if isinstance(expr, Binary):
        return (expr.op, structural_key(expr.a), structural_key(expr.b), str(expr.dtype))
    if isinstance(expr, Unary):
        return (expr.op, structural_key(expr.a))
    if isinstance(expr, Select):
        return ("select", *(structural_key(e) for e in (expr.cond, expr.a, expr.b)))
    if isinstance(expr, Cast):
        return ("cast", structural_key(expr.a), str(expr.dtype))
    if isinstance(expr, Load):
        return ("load", id(expr.buffer), *(structural_key(i) for i in expr.indices))
    if isinstance(expr, Call):
        return ("call", expr.name, *(structural_key(a) for a in expr.args))
    return ("var", id(expr))


class Polynomial:
    """A sum of integer multiples of products of atoms."""

    def __init__(self, terms: dict[Monomial, int], atoms: dict[Key, Expr]) -> None:
        self.terms = {m: c for m, c in terms.items() if c != 0}
        self.atoms = atoms

    @classmethod
    def of(cls, value: ExprLike) -> Polynomial:
        """Return the polynomial of an integer expression."""
        expr = as_expr(value)
        number = int_value(expr)
        if number is not None:
            return cls({(): number}, {})
        if isinstance(expr, Binary) and expr.op in ("add", "sub", "mul"):
            a, b = cls.of(expr.a), cls.of(expr.b)
            if expr.op == "mul":
                return a.times(b)
            return a.plus(b, 1 if expr.op == "add" else -1)
        if isinstance(expr, Unary) and expr.op == "neg":
            return cls({}, {}).plus(cls.of(expr.a), -1)
        if isinstance(expr, Cast) and expr.dtype.is_integer and expr.a.dtype.is_integer:
            return cls.of(expr.a)
        key = structural_key(expr)
        return cls({(key,): 1}, {key: expr})

    def plus(self, other: Polynomial, sign: int = 1) -> Polynomial:
        """Return ``self + sign * other``."""
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            terms[monomial] = terms.get(monomial, 0) + sign * coefficient
        return Polynomial(terms, {**self.atoms, **other.atoms})

    def times(self, other: Polynomial) -> Polynomial:
        """Return ``self * other``."""
        terms: dict[Monomial, int] = {}
        for m, c in self.terms.items():
            for n, d in other.terms.items():
                product = tuple(sorted((*m, *n), key=repr))
                terms[product] = terms.get(product, 0) + c * d
        return Polynomial(terms, {**self.atoms, **other.atoms})

    def expr(self) -> Expr:
        """Return the polynomial as an expression, terms in the order they were met."""
        total: Expr = const(0)
        for monomial, coefficient in self.terms.items():
            factor: Expr = const(1)
            for key in monomial:
                factor = factor * self.atoms[key]
            if coefficient < 0:
                total = total - factor * -coefficient
            else:
                total = total + factor * coefficient
        return total


def subtract(a: ExprLike, b: ExprLike) -> Expr:
    """Return ``a - b`` with equal terms cancelled (the extent of a slice)."""
    return Polynomial.of(a).plus(Polynomial.of(b), -1).expr()


def is_equal(a: ExprLike, b: ExprLike) -> bool:
    """Return whether ``a`` and ``b`` are provably equal for all values of their variables."""
    first, second = int_value(a), int_value(b)
    if first is not None and second is not None:
        return first == second
    return not Polynomial.of(a).plus(Polynomial.of(b), -1).terms


def is_one(value: ExprLike) -> bool:
    """Return whether an extent is known to be 1."""
    return int_value(value) == 1


def product(values: Iterable[ExprLike]) -> Expr:
    """Return the product of ``values`` (1 if there are none)."""
    result: Expr = const(1)
    for value in values:
        result = result * value
    return result
