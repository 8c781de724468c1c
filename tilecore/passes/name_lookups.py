"""name_lookups: what variables and tables say of where a copy begins, or a store ends, gets names.

``T.copy(K[table[b, k], :, :], tile)``: what is at an offset that is a name can be known to be
aligned, and the copies of a pipeline may look the name up ahead of the loop. A variable
(``T.alloc_var``) that a loop leaves as it is has its name before that loop. A nest that stores to a
tensor has names for what all of its iterations look up in indices and conditions: of these the
accesses under them are known to be wide, or not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tilecore.ir.analysis import written_buffers
from tilecore.ir.arithmetic.length import is_same
from tilecore.ir.expr import Call, Expr, Load, Select, Var, int_value
from tilecore.ir.nodes import (
    Alloc,
    Buffer,
    Copy,
    For,
    If,
    Let,
    Parallel,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
)
from tilecore.ir.substitute import Rebuilder
from tilecore.ir.visitor import Rewriter, distinct, flat, walk, with_body

Question = Callable[[Load], bool]


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with names for what copies and nests look up."""
    return with_body(func, _Copies().visit(func.body))


class _Copies(Rewriter):
    def visit_seq(self, stmt: Seq) -> Stmt:
        """Return the statements, with names right before those that need them."""
        new = [self.visit(s) for s in stmt.stmts]
        if all(a is b for a, b in zip(new, stmt.stmts, strict=True)):
            return stmt
        return dataclasses.replace(stmt, stmts=tuple(flat(new)))

    def visit_for(self, stmt: For) -> Stmt:
        """Return a loop whose copies look up no variable that it leaves as it is."""
        changed = _changed(stmt)
        names = _Names(lambda load: is_variable(load) and load.buffer.root not in changed)
        named = _OfCopies(names).visit(stmt)
        return self.rebuild(named) if named is stmt else names.before(self.rebuild(named))

    def visit_copy(self, stmt: Copy) -> Stmt:
        """Return a copy whose offsets look nothing up, after what they did."""
        names = _Names(lambda load: is_variable(load) or load.buffer.scope == "global")
        return names.before(names.of_copy(stmt))

    def visit_parallel(self, stmt: Parallel) -> Stmt:
        """Return a nest after what all of its iterations look up, if it stores to a tensor."""
        inside = list(walk(stmt.body))
        if not any(isinstance(s, Store) and s.buffer.scope == "global" for s in inside):
            return stmt
        changed = _changed(stmt.body)
        own: set[Var] = {*stmt.loop_vars}
        own |= {s.var for s in inside if isinstance(s, Let)}
        own |= {s.loop_var for s in inside if isinstance(s, For)}

        def is_common(load: Load) -> bool:
            is_asked = is_variable(load) or load.buffer.scope == "global"
            return is_asked and load.buffer.root not in changed and _is_fixed(load, own)

        names = _Names(is_common)
        return names.before(_OfNest(names).visit(stmt))


def is_variable(load: Load) -> bool:
    """Return whether a load is of a variable, or of a place of a local tile that is a number."""
    is_local = load.buffer.scope == "local" and load.buffer.reducer is None
    return is_local and all(int_value(i) is not None for i in load.indices)


def _changed(stmt: Stmt) -> set[Buffer]:
    """Return the memory that a statement writes to, and what it declares."""
    declared = {s.buffer.root for s in walk(stmt) if isinstance(s, Alloc)}
    return declared | {b.root for b in written_buffers(stmt)}


def _is_fixed(load: Load, own: set[Var]) -> bool:
    """Return whether a load is the same one in all iterations, and looks nothing else up."""
    parts = [part for index in load.indices for part in distinct(index)]
    return not any(part in own or isinstance(part, (Load, Call)) for part in parts)


class _Names(Rebuilder):
    """Names for the loads that ``asks`` names."""

    def __init__(self, asks: Question) -> None:
        super().__init__()
        self.asks = asks
        self.found: list[tuple[Load, Var]] = []

    def before(self, stmt: Stmt) -> Stmt:
        """Return a statement after the names that it needs."""
        if not self.found:
            return stmt
        lets = (Let(var, load, stmt.span) for load, var in self.found)
        return Seq((*lets, stmt), stmt.span)

    def of_copy(self, copy: Copy) -> Copy:
        """Return a copy with names in its offsets; itself without."""
        src, dst = self.of_region(copy.src), self.of_region(copy.dst)
        is_same = src is copy.src and dst is copy.dst
        return copy if is_same else dataclasses.replace(copy, src=src, dst=dst)

    def of_region(self, region: Region) -> Region:
        """Return a region with names in its offsets."""
        offsets = self.all_of(region.offsets)
        return region if offsets is region.offsets else dataclasses.replace(region, offsets=offsets)

    def all_of(self, exprs: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return expressions with names in them; the same object where nothing changes."""
        new = tuple(self.expr(e) for e in exprs)
        return exprs if all(a is b for a, b in zip(new, exprs, strict=True)) else new

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return ``buffer``: other statements name it, too."""
        return buffer

    def expr(self, expr: Expr) -> Expr:
        """Return the name of an element, else the expression with names in it."""
        if not isinstance(expr, Load) or not self.asks(expr):
            return super().expr(expr)
        known = next((var for load, var in self.found if is_same(load, expr)), None)
        if known is None:
            known = Var(f"{expr.buffer.name}_at", expr.dtype)
            self.found.append((expr, known))
        return known


class _OfCopies(Rewriter):
    def __init__(self, names: _Names) -> None:
        self.names = names

    def visit_copy(self, stmt: Copy) -> Stmt:
        """Return a copy with names in its offsets."""
        return self.names.of_copy(stmt)


class _OfNest(Rewriter):
    """Names in the indices and conditions of a nest, not in what it computes."""

    def __init__(self, names: _Names) -> None:
        self.names = names
        self.places = _Places(names)

    def visit_if(self, stmt: If) -> Stmt:
        """Return a branch with names in its condition."""
        made = self.rebuild(stmt)
        assert isinstance(made, If)
        cond = self.names.expr(stmt.cond)
        return made if cond is stmt.cond else dataclasses.replace(made, cond=cond)

    def visit_store(self, stmt: Store) -> Stmt:
        """Return a store with names in its indices and those of its loads."""
        indices, value = self.names.all_of(stmt.indices), self.places.expr(stmt.value)
        is_same = indices is stmt.indices and value is stmt.value
        return stmt if is_same else dataclasses.replace(stmt, indices=indices, value=value)

    def visit_let(self, stmt: Let) -> Stmt:
        """Return a name of a value: an index or a condition may be made of it."""
        value = (self.names if stmt.var.dtype.is_integer else self.places).expr(stmt.value)
        return stmt if value is stmt.value else dataclasses.replace(stmt, value=value)


class _Places(Rebuilder):
    """Names in the indices of loads and in the conditions of selections."""

    def __init__(self, names: _Names) -> None:
        super().__init__()
        self.names = names

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return ``buffer``: other statements name it, too."""
        return buffer

    def expr(self, expr: Expr) -> Expr:
        """Return an expression with names where it says which element, or whether."""
        if isinstance(expr, Load):
            indices = self.names.all_of(expr.indices)
            return expr if indices is expr.indices else dataclasses.replace(expr, indices=indices)
        made = super().expr(expr)
        if isinstance(made, Select):
            cond = self.names.expr(made.cond)
            return made if cond is made.cond else dataclasses.replace(made, cond=cond)
        return made
