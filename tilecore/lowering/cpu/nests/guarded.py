"""Nests under conditions that users test themselves: whether an element is one of a tensor's.

``if at < n`` holds in all lanes of most vectors. Where each part of such a condition compares
numbers that grow evenly from lane to lane, the first or the last lane tells for all of them: the
vector runs without conditions, or its lanes run one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilecore.ir.analysis import written_buffers
from tilecore.ir.arithmetic.bounds import mentions, step_of
from tilecore.ir.arithmetic.length import LONGEST, length
from tilecore.ir.expr import Binary, Expr, Load, Var, binary
from tilecore.ir.nodes import If, Let, Parallel, Seq, Stmt, Store
from tilecore.ir.substitute import substitute_expr, substitute_stmt
from tilecore.ir.visitor import flat, has_loads, walk, walk_expr

ORDERED = ("lt", "le", "gt", "ge")


@dataclass(frozen=True, slots=True, eq=False)
class Guarded:
    """A nest under conditions.

    Attributes:
        given: the nest as it is.
        nest: the nest without its conditions.
        shared: conditions of all that the nest does, the same for all of its last axis.
        terms: what else holds where all conditions do.
    """

    given: Parallel
    nest: Parallel
    shared: tuple[Expr, ...]
    terms: tuple[Binary, ...]

    def all_lanes(self, lanes: int) -> list[Expr]:
        """Return what tells, of the first lane, that every condition holds in all lanes."""
        return [self._at(term, lanes, is_last=self._grows(term)) for term in self.terms]

    def some_lanes(self, lanes: int) -> list[Expr]:
        """Return what holds if all conditions do in some lane."""
        return [self._at(term, lanes, is_last=not self._grows(term)) for term in self.terms]

    def _at(self, term: Expr, lanes: int, *, is_last: bool) -> Expr:
        """Return a condition as it is in the last lane, or in the first one."""
        var = self.given.loop_vars[-1]
        return substitute_expr(term, {var: binary("add", var, lanes - 1)}) if is_last else term

    def _grows(self, term: Binary) -> bool:
        """Return whether a condition holds in all lanes if it does in the last one."""
        steps = [step_of(side, self.given.loop_vars[-1]) or 0 for side in (term.a, term.b)]
        return (steps[0] > steps[1]) == (term.op in ("lt", "le"))


def guarded(nest: Parallel) -> Guarded | None:
    """Return a nest of stores under such conditions; None: it is none."""
    opened = _opened(nest)
    if opened is None:
        return None
    stmts, conds, is_whole = opened
    names, var = _values(nest), nest.loop_vars[-1]
    terms = [part for cond in conds for part in _parts(substitute_expr(cond, names))]
    if not _are_as_before(terms, nest):
        return None
    if not all(not mentions(t, var) or _is_ordered(t, var) for t in terms):
        return None
    is_shared = [is_whole and not mentions(t, var) for t in terms]
    shared = tuple(t for t, is_one in zip(terms, is_shared, strict=True) if is_one)
    rest = tuple(t for t, is_one in zip(terms, is_shared, strict=True) if not is_one)
    if not all(isinstance(t, Binary) for t in rest):
        return None
    body = stmts[0] if len(stmts) == 1 else Seq(tuple(stmts))
    return Guarded(nest, replace(nest, body=body), shared, rest)  # type: ignore[arg-type]


def _opened(nest: Parallel) -> tuple[list[Stmt], list[Expr], bool] | None:
    """Return what a nest does, the conditions around it, and whether all is under all of them.

    None: it has no conditions, or a branch that is taken otherwise; or it does not only store.
    """
    found = _without_lets(flat([nest.body]))
    if not any(isinstance(stmt, If) for stmt in found):
        return None
    is_whole, conds = len(found) == 1, list[Expr]()
    while any(isinstance(stmt, If) for stmt in found):
        inner: list[Stmt] = []
        for stmt in found:
            if isinstance(stmt, If) and stmt.else_body is None:
                conds.append(stmt.cond)
                inner.append(stmt.then_body)
            elif isinstance(stmt, If):
                return None
            else:
                inner.append(stmt)
        found = _without_lets(flat(inner))
        is_whole = is_whole and (len(found) == 1 or not any(isinstance(s, If) for s in found))
    stores = all(isinstance(stmt, (Let, Store)) for stmt in found)
    return (found, conds, is_whole) if stores else None


def _are_as_before(terms: Sequence[Expr], nest: Parallel) -> bool:
    """Return whether conditions may be asked before a nest: it sets nothing that they read."""
    names = [stmt.var for stmt in walk(nest.body) if isinstance(stmt, Let)]
    if any(mentions(term, name) for name in names for term in terms):
        return False
    changed = {buffer.root for buffer in written_buffers(nest)}
    read = {node.buffer.root for t in terms for node in walk_expr(t) if isinstance(node, Load)}
    return not changed & read


def _values(nest: Parallel) -> dict[Var, Expr]:
    """Return what the names of a nest are bound to, without such names in it, if it is short."""
    names = _Short()
    for stmt in walk(nest.body):
        if isinstance(stmt, Let):
            names.add(stmt)
    return names.values


def _without_lets(stmts: list[Stmt]) -> list[Stmt]:
    """Return statements in whose conditions names stand for what they are bound to."""
    names, has_conditions = _Short(), any(isinstance(s, If) for s in stmts)
    found: list[Stmt] = []
    for stmt in stmts:
        is_bound = has_conditions and isinstance(stmt, Let) and not has_loads(stmt.value)
        if isinstance(stmt, Let) and is_bound and names.add(stmt):
            continue
        found.append(substitute_stmt(stmt, names.values) if names.values else stmt)
    return found


class _Short:
    """Names and what may stand in their place: nothing that would be long."""

    def __init__(self) -> None:
        self.values: dict[Var, Expr] = {}
        self.lengths: dict[Var, int] = {}

    def add(self, stmt: Let) -> bool:
        """Return whether what a name is bound to is short, and note it."""
        size = length(stmt.value, self.lengths)
        if size > LONGEST:
            return False
        self.lengths[stmt.var] = size
        self.values[stmt.var] = substitute_expr(stmt.value, self.values)
        return True


def _parts(cond: Expr) -> list[Expr]:
    """Return what a condition is a conjunction of."""
    if isinstance(cond, Binary) and cond.op == "and":
        return [*_parts(cond.a), *_parts(cond.b)]
    return [cond]


def _is_ordered(term: Expr, var: Var) -> bool:
    """Return whether a comparison holds in all lanes if it does in the first, or the last, one."""
    if not isinstance(term, Binary) or term.op not in ORDERED or not term.a.dtype.is_integer:
        return False
    return step_of(term.a, var) is not None and step_of(term.b, var) is not None
