"""Races that can be proven: what a program leaves undefined although it looks well formed.

Iterations of T.Parallel and blocks of a grid have no order. A program is refused only where two of
them surely meet: code under a condition, accumulation in a fragment or reducer, and indices that
are not linear are never judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tilecore.errors import DataRace
from tilecore.inference.tile_bounds import sure_loads
from tilecore.ir import nodes
from tilecore.ir.analysis import reads, writes
from tilecore.ir.arithmetic.bounds import Linear, linear
from tilecore.ir.expr import Expr, Load, Select, Var, int_value
from tilecore.ir.nodes import Buffer, PrimFunc, Stmt
from tilecore.ir.visitor import children, expr_children, expressions, loads, walk, walk_expr

HINTS = {
    "iterations": "index it by every loop variable, or use T.reduce_sum, T.alloc_reducer or "
    "T.atomic_add",
    "order": "write to another tile, or use T.serial",
    "blocks": "index it by every block variable, or use T.atomic_add",
}


def check_races(func: PrimFunc) -> None:
    """Raise for the first provable race.

    Raises:
        DataRace: two iterations or blocks write one element, or one reads what another writes
            (TC204).
    """
    for launch in walk(func.body):
        if isinstance(launch, nodes.KernelLaunch):
            facts = _Facts()
            facts.learn(launch)
            _check_blocks(launch, facts)
            for nest in walk(launch):
                if isinstance(nest, nodes.Parallel):
                    _check_nest(nest, facts)


@dataclass(slots=True)
class _Facts:
    """What values depend on: variables, through names, loop bounds and the contents of tiles."""

    lets: dict[Var, Expr] = field(default_factory=dict)
    loops: dict[Var, frozenset[Var]] = field(default_factory=dict)
    contents: dict[Buffer, frozenset[Var]] = field(default_factory=dict)

    def learn(self, launch: Stmt) -> None:
        """Follow all statements until nothing new depends on anything."""
        while True:
            before = (dict(self.loops), dict(self.contents), len(self.lets))
            for stmt in walk(launch):
                self._learn_one(stmt)
            if before == (self.loops, self.contents, len(self.lets)):
                return

    def _learn_one(self, stmt: Stmt) -> None:
        if isinstance(stmt, nodes.Let):
            self.lets[stmt.var] = stmt.value
        elif isinstance(stmt, nodes.For):
            self.loops[stmt.loop_var] = self.all_of((stmt.start, stmt.stop, stmt.step))
        written = writes(stmt)
        if written:
            found = self.all_of(expressions(stmt))
            for buffer in reads(stmt):
                found |= self.contents.get(buffer, frozenset())
            for buffer in written:
                self.contents[buffer] = self.contents.get(buffer, frozenset()) | found

    def of(self, expr: Expr) -> frozenset[Var]:
        """Return the variables on which the value of ``expr`` may depend."""
        found: set[Var] = set()
        named: set[Var] = set()  # a name may stand in many places: what it is bound to is seen once
        waiting = [expr]
        while waiting:
            for node in walk_expr(waiting.pop()):
                if isinstance(node, Var):
                    found.add(node)
                    found |= self.loops.get(node, frozenset())
                    if node in self.lets and node not in named:
                        named.add(node)
                        waiting.append(self.lets[node])
                elif isinstance(node, Load):
                    found |= self.contents.get(node.buffer, frozenset())
        return frozenset(found)

    def all_of(self, exprs: tuple[Expr, ...]) -> frozenset[Var]:
        """Return the variables on which any of ``exprs`` may depend."""
        return frozenset().union(*(self.of(e) for e in exprs))


def _always(stmt: Stmt) -> Iterator[Stmt]:
    """Yield what runs whenever ``stmt`` runs: nothing under a condition or in a ``while``."""
    yield stmt
    if not isinstance(stmt, (nodes.If, nodes.While)):
        for child in children(stmt):
            yield from _always(child)


# --- blocks -----------------------------------------------------------------------------------


def _check_blocks(launch: nodes.KernelLaunch, facts: _Facts) -> None:
    many = [
        var
        for var, extent in zip(launch.block_vars, launch.grid, strict=True)
        if (int_value(extent) or 0) > 1
    ]
    if any(isinstance(s, nodes.Jump) or _waits_for_blocks(s) for s in walk(launch)):
        return
    for stmt in _always(launch.body):
        target, at, value = _global_write(stmt, facts)
        for var in many:
            if target is not None and var not in at and var in value:
                raise DataRace(
                    what=f"all blocks along `{var.name}` write the same part of `{target.name}`",
                    hint=HINTS["blocks"], span=stmt.span,
                )  # fmt: skip


def _waits_for_blocks(stmt: Stmt) -> bool:
    """Return whether ``stmt`` is a loop around an atomic access: blocks may take turns by it."""
    if not isinstance(stmt, nodes.While):
        return False
    atomics = (s for s in walk(stmt) if isinstance(s, nodes.Atomic))
    return any(s.buffer.scope == "global" for s in atomics)


def _global_write(
    stmt: Stmt, facts: _Facts
) -> tuple[Buffer | None, frozenset[Var], frozenset[Var]]:
    """Return the tensor a statement writes, what the place depends on, and what the value does."""
    if isinstance(stmt, nodes.Store) and stmt.buffer.scope == "global":
        return stmt.buffer, facts.all_of(stmt.indices), facts.of(stmt.value)
    if isinstance(stmt, nodes.Copy) and stmt.dst.buffer.scope == "global":
        place = (*stmt.dst.offsets, *stmt.dst.extents)
        source = facts.all_of(stmt.src.offsets)
        content = facts.contents.get(stmt.src.buffer, frozenset())
        return stmt.dst.buffer, facts.all_of(place), source | content
    return None, frozenset(), frozenset()


# --- iterations -------------------------------------------------------------------------------


def _check_nest(nest: nodes.Parallel, facts: _Facts) -> None:
    inside = list(walk(nest.body))
    if any(isinstance(s, (nodes.Jump, nodes.Atomic)) for s in inside):
        return
    private = {s.buffer for s in inside if isinstance(s, nodes.Alloc)}
    extents = {
        var: int_value(extent) or 0
        for var, extent in zip(nest.loop_vars, nest.extents, strict=True)
    }
    always = list(_always(nest.body))
    stores = [
        s
        for s in always
        if isinstance(s, nodes.Store)
        and s.buffer not in private
        and s.buffer.scope in ("global", "shared", "fragment")
        and s.buffer.reducer is None
    ]
    for store in stores:
        _check_one_place(store, extents, facts)
        for stmt in always:
            for load in sure_loads(stmt):
                if load.buffer is store.buffer:
                    _check_order(store, load, extents, facts)


def _check_one_place(store: nodes.Store, extents: dict[Var, int], facts: _Facts) -> None:
    accumulates = any(load.buffer is store.buffer for load in loads(store))
    if accumulates and store.buffer.scope == "fragment":
        return
    place = facts.all_of(store.indices)
    for var, extent in extents.items():
        if extent > 1 and var not in place and _varies(store.value, var, facts):
            raise DataRace(
                what=f"all iterations along `{var.name}` write the same element of "
                f"`{store.buffer.name}`",
                hint=HINTS["iterations"], span=store.span,
            )  # fmt: skip


def _varies(value: Expr, var: Var, facts: _Facts) -> bool:
    """Return whether ``value`` reads an element that surely moves with ``var``."""
    if isinstance(value, Select):
        return False
    if isinstance(value, Load):
        forms = [linear(i, facts.lets) for i in value.indices]
        return any(f is not None and f.coefficient(var) != 0 for f in forms)
    if isinstance(value, Var):
        return value is var or (value in facts.lets and _varies(facts.lets[value], var, facts))
    return any(_varies(part, var, facts) for part in expr_children(value))


def _check_order(store: nodes.Store, load: Load, extents: dict[Var, int], facts: _Facts) -> None:
    """Refuse a load of an element that another iteration writes."""
    shift: dict[Var, int] = {}
    for written, read in zip(store.indices, load.indices, strict=True):
        a, b = linear(written, facts.lets), linear(read, facts.lets)
        step = None if a is None or b is None else _step(a, b, extents)
        if step is None:
            return
        for var, distance in step.items():
            if shift.setdefault(var, distance) != distance:
                return
    moved = {var: distance for var, distance in shift.items() if distance}
    if moved and all(abs(distance) < extents[var] for var, distance in moved.items()):
        names = ", ".join(f"`{var.name}`" for var in moved)
        raise DataRace(
            what=f"`{store.buffer.name}` is read where another iteration along {names} writes it",
            hint=HINTS["order"], span=store.span,
        )  # fmt: skip


def _step(a: Linear, b: Linear, extents: dict[Var, int]) -> dict[Var, int] | None:
    """Return how many iterations lie between equal indices ``a`` and ``b``; None: unknown."""
    difference = b.plus(a, -1)
    moving = [var for var in extents if a.coefficient(var)]
    if difference.coefficients or len(moving) > 1:
        return None
    if not moving:
        return None if difference.constant else {}
    distance, rest = divmod(difference.constant, a.coefficient(moving[0]))
    return None if rest else {moving[0]: distance}
