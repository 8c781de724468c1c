"""safe_quotients: integers divided by what data says trap nowhere.

CPUs stop a process that divides by 0, or the least integer by -1, also where nobody asks for the
result: in lanes that a condition leaves out, or on the right of an ``and``. As in the oracle what
is divided by 0 stays what it is, without a rest.
"""

from __future__ import annotations

from tilecore.ir.arithmetic.bounds import interval
from tilecore.ir.expr import Binary, Expr, Load, Var, binary, const, int_value, select, unary
from tilecore.ir.nodes import Buffer, Let, PrimFunc, Stmt
from tilecore.ir.substitute import Rebuilder
from tilecore.ir.visitor import distinct, with_body

DIVIDED = ("floordiv", "mod")


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with divisors that are neither 0 nor -1 in the place of loaded ones."""
    scalars = frozenset(p for p in func.params if isinstance(p, Var))
    return with_body(func, _Divisors(scalars).stmt(func.body))


class _Divisors(Rebuilder):
    def __init__(self, scalars: frozenset[Var]) -> None:
        super().__init__()
        self.scalars = scalars
        self.lets: dict[Var, Expr] = {}
        self.loaded: set[Var] = set()
        self.known: dict[int, tuple[Expr, Expr]] = {}

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return ``buffer``: no tensor's shape is data."""
        return buffer

    def stmt(self, stmt: Stmt) -> Stmt:
        """Return a statement, after noting what it names."""
        made = super().stmt(stmt)
        if isinstance(made, Let):
            self.lets[made.var] = made.value
            if self.is_loaded(made.value):
                self.loaded.add(made.var)
        return made

    def is_loaded(self, expr: Expr) -> bool:
        """Return whether an element of a tensor or tile is part of a value."""
        return any(isinstance(part, Load) or part in self.loaded for part in distinct(expr))

    def may_trap(self, expr: Binary) -> bool:
        """Return whether data divides an integer, or a parameter does that is data.

        Sizes, and parameters that divide indices, are taken for what programs mean by them.
        """
        if not expr.dtype.is_integer or int_value(expr.b) is not None:
            return False
        is_scalar = any(part in self.scalars for part in distinct(expr.b))
        return self.is_loaded(expr.b) or (is_scalar and self.is_loaded(expr.a))

    def expr(self, expr: Expr) -> Expr:
        """Return an expression of which no quotient traps."""
        if isinstance(expr, Var):
            return expr
        if id(expr) not in self.known:
            self.known[id(expr)] = (expr, self._safe(super().expr(expr)))
        return self.known[id(expr)][1]

    def _safe(self, expr: Expr) -> Expr:
        if not isinstance(expr, Binary) or expr.op not in DIVIDED or not self.may_trap(expr):
            return expr
        bounds = interval(expr.b, {}, self.lets)
        if bounds is not None and bounds[0] > 0:
            return expr
        one, is_zero = const(1, expr.dtype), binary("eq", expr.b, 0)
        if not expr.dtype.is_signed:
            return binary(expr.op, expr.a, select(is_zero, one, expr.b))
        is_minus = binary("eq", expr.b, -1)
        found = binary(expr.op, expr.a, select(binary("or", is_zero, is_minus), one, expr.b))
        return found if expr.op == "mod" else select(is_minus, unary("neg", expr.a), found)
