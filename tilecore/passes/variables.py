"""variables: what nests assign to variables becomes names, a new one per assignment.

``v = T.alloc_var("float32"); v = X[i]; v = v + 1`` makes of each element what ``a = X[i]`` and
``b = a + 1`` make of it, and nests that name values run in vectors. What branches assign becomes a
choice. Variables that loops assign stay, and so do those that outlive an element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from tilecore.ir.expr import Const, Expr, Load, Var, cast, select
from tilecore.ir.nodes import (
    Alloc,
    Buffer,
    If,
    KernelLaunch,
    Let,
    Parallel,
    PrimFunc,
    Seq,
    Stmt,
    Store,
)
from tilecore.ir.substitute import Rebuilder
from tilecore.ir.visitor import (
    Rewriter,
    buffers_of,
    children,
    flat,
    loads,
    per_launch,
    walk,
    walk_expr,
)

MOST_CHOSEN = 64  # nodes of a value that a branch assigns: it stands in the choice


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with names for what variables of nests hold."""
    return per_launch(func, _with_names)


def _with_names(launch: KernelLaunch) -> Stmt:
    """Return a launch whose nests name values."""
    stmts = list(walk(launch.body))
    if not any(isinstance(s, Store) and s.buffer.is_var for s in stmts):
        return launch
    reads = Counter(b for s in stmts for b in _loaded(s))
    shared = {b for s in stmts if not children(s) for b in buffers_of(s) - _touched(s)}
    found = _Nests(reads, shared).visit(launch.body)
    return launch if found is launch.body else replace(launch, body=found)


class _Nests(Rewriter):
    """``reads``: how many statements load from each buffer; ``shared``: used otherwise, too."""

    def __init__(self, reads: Mapping[Buffer, int], shared: Set[Buffer]) -> None:
        self.reads, self.shared = reads, shared

    def visit_parallel(self, nest: Parallel) -> Stmt:
        """Return a nest without the variables that can be names."""
        stmts = list(walk(nest))
        inside = Counter(b for s in stmts for b in _loaded(s))
        assigned = {b for b in _assigned_in(nest) if b.is_var}
        left = {b for b in assigned - self.shared if inside[b] == self.reads[b]}
        while left:
            try:
                return replace(nest, body=_Named(left).body(nest.body))
            except _StaysError as stays:
                if not left & stays.variables:
                    break
                left -= stays.variables
        return nest


class _StaysError(Exception):
    """Variables that names cannot stand for."""

    def __init__(self, variables: set[Buffer]) -> None:
        super().__init__(variables)
        self.variables = variables


class _Named:
    """Gives names to the values of some variables."""

    def __init__(self, variables: set[Buffer]) -> None:
        self.variables = variables

    def body(self, body: Stmt) -> Stmt:
        """Return the body of a nest without the variables."""
        return self._part(body, {}, set())

    def _part(self, body: Stmt, values: Mapping[Buffer, Expr], later: Set[Buffer]) -> Stmt:
        return Seq(tuple(self._stmts(flat([body]), dict(values), later)), body.span)

    def _stmts(
        self, stmts: list[Stmt], values: dict[Buffer, Expr], later: Set[Buffer]
    ) -> Iterator[Stmt]:
        """Yield statements that name what variables hold; ``values`` says what they do.

        ``later``: what is used after these statements.
        """
        for at, stmt in enumerate(stmts):
            if isinstance(stmt, Alloc) and stmt.buffer in self.variables:
                continue
            if isinstance(stmt, Store) and stmt.buffer in self.variables:
                yield from self._assigned(stmt, values)
            elif isinstance(stmt, If):
                behind = set(later).union(*(buffers_of(s) for s in stmts[at + 1 :]))
                yield from self._branches(stmt, values, behind)
            else:
                if assigned := _assigned_in(stmt) & self.variables:
                    raise _StaysError(assigned)
                is_reader = bool(buffers_of(stmt) & self.variables)
                yield _Values(values, self.variables).stmt(stmt) if is_reader else stmt

    def _assigned(self, stmt: Store, values: dict[Buffer, Expr]) -> Iterator[Stmt]:
        value = cast(_Values(values, self.variables).expr(stmt.value), stmt.buffer.dtype)
        if isinstance(value, Const):
            values[stmt.buffer] = value
            return
        name = Var(stmt.buffer.name, stmt.buffer.dtype)
        values[stmt.buffer] = name
        yield Let(name, value, stmt.span)

    def _branches(self, stmt: If, values: dict[Buffer, Expr], later: Set[Buffer]) -> Iterator[Stmt]:
        """Yield a branch; what it assigns to variables that are used later becomes choices."""
        cond, other = _Values(values, self.variables).expr(stmt.cond), stmt.else_body
        assigned = _assigned_in(stmt) & self.variables
        if not assigned & later:
            then = self._part(stmt.then_body, values, set())
            rest = None if other is None else self._part(other, values, set())
            yield replace(stmt, cond=cond, then_body=then, else_body=rest)
            return
        held = dict(values)
        self._choose(stmt, held)
        for variable in sorted(assigned & later, key=lambda b: b.name):
            values[variable] = name = Var(variable.name, variable.dtype)
            yield Let(name, held[variable], stmt.span)

    def _chosen(
        self, body: Stmt | None, before: Mapping[Buffer, Expr], assigned: set[Buffer]
    ) -> Mapping[Buffer, Expr]:
        """Return what variables hold after a branch that does nothing but assign to them."""
        values = dict(before)
        for stmt in [] if body is None else flat([body]):
            if isinstance(stmt, If) and set() < _assigned_in(stmt) <= assigned:
                self._choose(stmt, values)
                continue
            if not isinstance(stmt, Store) or stmt.buffer not in assigned:
                raise _StaysError(assigned)
            value = cast(_Values(values, self.variables).expr(stmt.value), stmt.buffer.dtype)
            if sum(1 for _ in walk_expr(value)) > MOST_CHOSEN:
                raise _StaysError(assigned)
            values[stmt.buffer] = value
        return values

    def _choose(self, stmt: If, values: dict[Buffer, Expr]) -> None:
        """Let variables hold what one or the other part of a branch assigns to them."""
        assigned = _assigned_in(stmt) & self.variables
        cond = _Values(values, self.variables).expr(stmt.cond)
        held = [self._chosen(b, values, assigned) for b in (stmt.then_body, stmt.else_body)]
        for variable in assigned:
            one, another = (side.get(variable) for side in held)
            if one is None or another is None:
                raise _StaysError({variable})
            values[variable] = select(cond, one, another)


class _Values(Rebuilder):
    """Expressions with what variables hold in their place."""

    def __init__(self, values: Mapping[Buffer, Expr], variables: set[Buffer]) -> None:
        super().__init__()
        self.values, self.variables = values, variables

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return ``buffer``: statements that stay as they are name it, too."""
        return buffer

    def expr(self, expr: Expr) -> Expr:
        """Return ``expr`` without loads of the variables."""
        if isinstance(expr, Load) and expr.buffer in self.variables:
            if expr.buffer not in self.values:
                raise _StaysError({expr.buffer})
            return self.values[expr.buffer]
        return super().expr(expr)


def _assigned_in(stmt: Stmt) -> set[Buffer]:
    return {s.buffer for s in walk(stmt) if isinstance(s, Store)}


def _touched(stmt: Stmt) -> set[Buffer]:
    """Return the buffers that a statement itself stores to, loads from, or brings into being."""
    return _loaded(stmt) | ({stmt.buffer} if isinstance(stmt, (Store, Alloc)) else set())


def _loaded(stmt: Stmt) -> set[Buffer]:
    return {load.buffer for load in loads(stmt)}
