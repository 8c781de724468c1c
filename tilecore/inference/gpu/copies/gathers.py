"""Nests that fill a shared tile with elements of a tensor whose place tensors tell."""

from __future__ import annotations

from collections.abc import Iterator

from tilecore.inference.gpu.plan import Gather, NestPlan
from tilecore.ir.expr import Expr, Load, Select, Var, int_value, is_plus_zero, unary
from tilecore.ir.nodes import If, Let, Parallel, Stmt, Store
from tilecore.ir.substitute import substitute_expr
from tilecore.ir.visitor import flat

Element = tuple[Store, Load, Expr | None]  # a store, what it loads, under which condition


def gather_of(stmt: Stmt, plan: NestPlan | None, widths: tuple[int, ...]) -> Gather | None:
    """Return what a nest gathers, if it does nothing else, and each thread by wide accesses.

    Args:
        stmt: the nest.
        plan: how it runs.
        widths: bytes that may move at once.
    """
    if not isinstance(stmt, Parallel) or not stmt.loop_vars or plan is None:
        return None
    names: dict[Var, Expr] = {}
    *lets, last = flat([stmt.body])
    for let in lets:
        if not isinstance(let, Let):
            return None
        names[let.var] = substitute_expr(let.value, names)
    found = _element(last)
    if found is None:
        return None
    store, load, cond = found
    tile, tensor = store.buffer, load.buffer
    if (tile.scope, tensor.scope) != ("shared", "global") or tile.dtype != tensor.dtype:
        return None
    if any(b.base is not None or b.address is not None for b in (tile, tensor)):
        return None
    is_point = list(map(id, store.indices)) == list(map(id, stmt.loop_vars))
    if not is_point or tuple(map(int_value, stmt.extents)) != tile.static_shape:
        return None
    if tile.dtype.is_packed or plan.lanes * tile.dtype.itemsize not in widths:
        return None
    if not _is_wide(plan, load):
        return None
    source = substitute_expr(load, names)
    assert isinstance(source, Load)
    return Gather(stmt, tile, source, None if cond is None else substitute_expr(cond, names))


def expressions_of(gather: Gather) -> Iterator[Expr]:
    """Yield what says which elements a nest gathers, and where it does."""
    yield from gather.source.indices
    if gather.cond is not None:
        yield gather.cond


def _element(stmt: Stmt) -> Element | None:
    """Return what a statement stores, if it is an element, or 0 where there is none."""
    match stmt:
        case Store(value=Load() as load):
            return stmt, load, None
        case Store(value=Select(cond=cond, a=Load() as load, b=other)) if is_plus_zero(other):
            return stmt, load, cond
        case Store(value=Select(cond=cond, a=other, b=Load() as load)) if is_plus_zero(other):
            return stmt, load, unary("not", cond)
        case If(cond=cond, then_body=then, else_body=other) if other is not None:
            return _of_branches(cond, flat([then]), flat([other]))
        case _:
            return None


def _of_branches(cond: Expr, then: list[Stmt], other: list[Stmt]) -> Element | None:
    match then, other:
        case [Store(value=Load() as load) as store], [Store() as empty]:
            pass
        case [Store() as empty], [Store(value=Load() as load) as store]:
            cond = unary("not", cond)
        case _:
            return None
    places = [(s.buffer, *map(id, s.indices)) for s in (store, empty)]
    return (store, load, cond) if places[0] == places[1] and is_plus_zero(empty.value) else None


def _is_wide(plan: NestPlan, load: Load) -> bool:
    """Return whether neighbours are brought by one access and stored by one."""
    accesses = plan.points.accesses
    needed = {
        n
        for n, a in enumerate(accesses)
        if a.is_store or (a.buffer is load.buffer and a.indices is load.indices)
    }
    if plan.lanes == 1:
        return True
    whole = [w for w in plan.wide if (w.step, w.per_move) == (1, plan.lanes) and w.in_rows]
    moved = {n for w in whole for n, _ in w.parts}
    return needed <= moved
