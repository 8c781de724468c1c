"""Whether iterations of a loop nest may have the same element of a buffer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tilecore.errors import ScopeError
from tilecore.ir.arithmetic.bounds import linear
from tilecore.ir.arithmetic.length import LONGEST, length
from tilecore.ir.arithmetic.trips import trip_count
from tilecore.ir.expr import Binary, Expr, Load, Var, int_value
from tilecore.ir.nodes import Alloc, Buffer, For, If, Let, Parallel, Seq, Stmt, Store
from tilecore.ir.substitute import substitute_expr
from tilecore.ir.values.evaluate import Evaluator
from tilecore.ir.visitor import children, distinct, loads, walk

MAX_TABLE = 1 << 20  # iterations whose elements are written down to see whether two are the same
Table = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Place:
    """The element that each iteration of a nest has.

    Attributes:
        names: the loop variables.
        indices: the element, without names that the nest gives values.
        own: variables of loops inside the nest, which each iteration runs through by itself.
    """

    names: tuple[Var, ...]
    indices: tuple[Expr, ...]
    own: frozenset[Var] = frozenset()

    @cached_property
    def apart(self) -> dict[int, int]:
        """The loops (by position) whose iterations surely have elements of their own.

        With each loop the number of its consecutive iterations that may share one: 1 where an
        axis moves with it alone, ``n`` where it does with ``loop // n``.
        """
        found: dict[int, int] = {}
        if self.is_long:
            return found
        for index in self.indices:
            parts = set(distinct(index))
            used = [p for p, n in enumerate(self.names) if n in parts]
            if len(used) != 1 or parts & self.own:
                continue
            run = 1
            if isinstance(index, Binary) and index.op == "floordiv":
                run, form = int_value(index.b) or 0, linear(index.a)
                is_plain = form is not None and (form.constant, len(form.coefficients)) == (0, 1)
                if run < 1 or not is_plain:
                    continue
            else:
                form = linear(index)
            step = 0 if form is None else form.coefficient(self.names[used[0]])
            if step and (run == 1 or step == 1):
                found[used[0]] = min(run, found.get(used[0], run))
        return found

    @cached_property
    def is_long(self) -> bool:
        """Whether the element follows from too much to look at, as from the rounds of a hash."""
        return any(length(index, {}) > LONGEST for index in self.indices)

    @cached_property
    def is_looked_up(self) -> bool:
        """Whether data says which element it is, by a load that is another one per iteration."""
        inner = {*self.names, *self.own}
        return any(
            isinstance(n, Load) and any(inner & set(distinct(i)) for i in n.indices)
            for index in self.indices
            for n in distinct(index)
        )

    def may_collide(self, shape: Sequence[int]) -> bool:
        """Return whether two iterations may have the same element."""
        if all(n <= 1 or self.apart.get(p) == 1 for p, n in enumerate(shape)):
            return False
        if math.prod(shape) > MAX_TABLE:
            return True
        grids = np.meshgrid(*(np.arange(n) for n in shape), indexing="ij", sparse=True)
        table = self.table(grids)
        if table is None:
            return True
        rows = np.stack([np.broadcast_to(t, shape).ravel() for t in table], axis=1)
        return len(np.unique(rows, axis=0)) < len(rows)

    def table(self, values: Sequence[Table]) -> list[Table] | None:
        """Return the indices where the loop variables have ``values``.

        What is the same for all iterations is left out. None: they depend on more.
        """
        if self.is_long:
            return None
        inner = set(self.names)
        evaluator = Evaluator(dict(zip(self.names, values, strict=True)))
        found = []
        for index in self.indices:
            parts = set(distinct(index))
            form = linear(index)
            if not parts & inner:
                found.append(np.zeros((), np.int64))
            elif parts & self.own:
                return None
            elif form is not None:
                steps = [(n, c) for n, c in form.coefficients.items() if n in inner]
                terms = [np.asarray(evaluator(n), np.int64) * c for n, c in steps]
                found.append(np.asarray(sum(terms, np.int64(0))))
            elif any(isinstance(n, Load) or (isinstance(n, Var) and n not in inner) for n in parts):
                return None
            else:
                try:
                    found.append(np.asarray(evaluator(index), np.int64))
                except ScopeError:
                    return None
        return found


def place_of(nest: Parallel, indices: tuple[Expr, ...]) -> Place:
    """Return the element at ``indices`` of each iteration of a nest."""
    stmts = list(walk(nest.body))
    own = frozenset(s.loop_var for s in stmts if isinstance(s, For))
    lets = {s.var: s.value for s in stmts if isinstance(s, Let)}
    return Place(nest.loop_vars, _without_names(indices, lets), own)


def updated_places(nest: Parallel) -> Iterable[tuple[Buffer, Place]]:
    """Yield the elements that a nest stores to and also reads, reducers aside.

    Of variables and local arrays those that an iteration reads before it gives them a value.
    """
    stmts = list(walk(nest.body))
    private = {s.buffer for s in stmts if isinstance(s, Alloc)}
    loaded = {load.buffer for stmt in stmts for load in loads(stmt)} - private
    loaded -= {b for b in loaded if b.scope == "local"} - carried_by(nest)
    for stmt in stmts:
        if isinstance(stmt, Store) and stmt.buffer in loaded and stmt.buffer.reducer is None:
            yield stmt.buffer, place_of(nest, stmt.indices)


def carried_by(nest: Parallel) -> set[Buffer]:
    """Return the local tiles and variables that an iteration reads before it sets them."""
    carried: set[Buffer] = set()
    _find_carried(nest.body, set(), carried)
    return carried


def set_by(nest: Parallel) -> set[Buffer]:
    """Return the local tiles and variables that a nest surely gives a value."""
    if any((int_value(e) or 0) < 1 for e in nest.extents):
        return set()
    return _find_carried(nest.body, set(), set())


def _find_carried(stmt: Stmt, known: set[Buffer], carried: set[Buffer]) -> set[Buffer]:
    """Add the local tiles read before a value is given; return those that have got one."""
    carried |= {load.buffer for load in loads(stmt) if load.buffer.scope == "local"} - known
    match stmt:
        case Store(buffer=buffer):
            return known | {buffer}
        case If(then_body=then, else_body=other):
            both = _find_carried(then, known, carried)
            return both & (known if other is None else _find_carried(other, known, carried))
        case Seq(stmts=stmts):
            for child in stmts:
                known = _find_carried(child, known, carried)
            return known
        case For(body=body) if (int_value(trip_count(stmt)) or 0) > 0:
            return _find_carried(body, known, carried)
        case _:
            for child in children(stmt):
                _find_carried(child, known, carried)
            return known


def _without_names(indices: tuple[Expr, ...], lets: Mapping[Var, Expr]) -> tuple[Expr, ...]:
    """Return ``indices`` without names; ``lets`` is in the order of the program."""
    named: dict[Var, Expr] = {}
    for var, value in lets.items():
        named[var] = substitute_expr(value, named)
    return tuple(substitute_expr(i, named) for i in indices)


def updates_in_turn(nest: Parallel, shape: Sequence[int]) -> bool:
    """Return whether an iteration may update an element that another one has updated before."""
    return any(place.may_collide(shape) for _, place in updated_places(nest))
