"""Nests whose elements are entries of a table of 16, named by 4 bits of a word."""

from __future__ import annotations

from dataclasses import dataclass

from tilecore.inference.cpu.entries import entry
from tilecore.ir.arithmetic.bounds import linear
from tilecore.ir.expr import Binary, Cast, Expr, Load, Var, binary, const, int_value
from tilecore.ir.nodes import Parallel, Seq, Store
from tilecore.ir.substitute import substitute_expr
from tilecore.lowering.cpu.access import Accessor

PERIOD = 8  # rows of one step: the 4-bit elements of a 32-bit word


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """Elements that are ``table[(word >> shifts[k % PERIOD]) & 15]``.

    ``together``: so many neighbouring rows have one word.
    """

    table: Load
    word: Load
    shifts: tuple[int, ...]
    together: int

    @property
    def is_paired(self) -> bool:
        """Whether the bits of every second row lie 16 above those of the row before."""
        pairs = zip(self.shifts[::2], self.shifts[1::2], strict=True)
        return self.together >= 2 and all(b - a == 16 and 0 <= a <= 12 for a, b in pairs)


def find_lookup(nest: Parallel, accessor: Accessor) -> Lookup | None:
    """Return the table and the words that the elements of ``nest`` come from, if they do."""
    row, column = nest.loop_vars
    rows, found = int_value(nest.extents[0]) or 0, entry(nest)
    if found is None or rows % PERIOD:
        return None
    table, word, shift = found
    if accessor.stride_of(word.buffer, word.indices, column) != 1:
        return None
    shifts = [linear(fold(shift, row, k)) for k in range(rows)]
    if any(s is None or s.coefficients for s in shifts):
        return None
    known = tuple(s.constant for s in shifts if s is not None)
    if any(s != known[k % PERIOD] or s % 4 or not 0 <= s <= 28 for k, s in enumerate(known)):
        return None
    together = PERIOD
    for k in range(rows):
        while not all(
            _is_same(fold(i, row, k), fold(i, row, k - k % together)) for i in word.indices
        ):
            together //= 2
    return Lookup(table, word, known[:PERIOD], together)


def fold(expr: Expr, var: Var, value: int) -> Expr:
    """Return an index with ``var`` known, its constant parts computed."""
    return _folded(substitute_expr(expr, {var: const(value, var.dtype)}))


def _folded(expr: Expr) -> Expr:
    if isinstance(expr, Cast) and expr.dtype.is_integer:
        return _folded(expr.a)
    if not isinstance(expr, Binary):
        return expr
    a, b = _folded(expr.a), _folded(expr.b)
    x, y = int_value(a), int_value(b)
    if x is not None and y:
        if expr.op == "floordiv":
            return const(x // y)
        if expr.op == "mod":
            return const(x % y)
    return binary(expr.op, a, b)


def _is_same(a: Expr, b: Expr) -> bool:
    x, y = linear(a), linear(b)
    if x is None or y is None:
        return False
    difference = x.plus(y, -1)
    return not difference.coefficients and difference.constant == 0


def last_store(nest: Parallel) -> Store:
    """Return the store that the body of a nest ends with."""
    last = nest.body.stmts[-1] if isinstance(nest.body, Seq) else nest.body
    assert isinstance(last, Store)
    return last
