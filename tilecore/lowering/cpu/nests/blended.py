"""Stores to tiles under a condition, as a choice between what is new and what is there.

One thread runs a block, so that nobody else is at its tiles meanwhile. What is stored everywhere
runs in vectors; under a condition it runs element by element, or as LLVM sees fit: with stores
under masks, which are slow (``TirBuilder.frozen``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilecore.ir.expr import Binary, Expr, Load, Select, Var, cast, int_value
from tilecore.ir.nodes import Buffer, If, Parallel, Seq, Stmt, Store
from tilecore.ir.visitor import flat, walk_expr

TRAPPING = ("floordiv", "mod")  # of integers: where the divisor is 0


def blended(nest: Parallel) -> Parallel | None:
    """Return a nest without its conditions; None: it has none, or needs them.

    Needed is a condition of what may not run where it does not hold: loads of tensors or beyond the
    ends of tiles, divisions of integers, stores to tensors.
    """
    stmts = flat([nest.body])
    if not any(isinstance(stmt, If) for stmt in stmts):
        return None
    extents = {v: int_value(e) for v, e in zip(nest.loop_vars, nest.extents, strict=True)}
    found: list[Stmt] = []
    for stmt in stmts:
        choices = _choices(stmt, extents) if isinstance(stmt, If) else [stmt]
        if choices is None:
            return None
        found += choices
    return replace(nest, body=found[0] if len(found) == 1 else Seq(tuple(found)))


def _choices(stmt: If, extents: Mapping[Var, int | None]) -> list[Store] | None:
    """Return the stores of both branches as choices, or None if one of them cannot be one."""
    read = {node.buffer for node in walk_expr(stmt.cond) if isinstance(node, Load)}
    found: list[Store] = []
    bodies = [(stmt.then_body, True)]
    bodies += [] if stmt.else_body is None else [(stmt.else_body, False)]
    stores = [(store, holds) for body, holds in bodies for store in flat([body])]
    for number, (store, holds) in enumerate(stores):
        if not isinstance(store, Store) or store.buffer.dtype.is_packed:
            return None
        if store.buffer in read and number < len(stores) - 1:  # the next would choose anew
            return None
        if not _may_always_run(store, extents):
            return None
        dtype = store.buffer.dtype
        old, new = Load(store.buffer, store.indices, dtype), cast(store.value, dtype)
        one, other = (new, old) if holds else (old, new)
        found.append(replace(store, value=Select(stmt.cond, one, other, dtype)))
    return found


def _may_always_run(store: Store, extents: Mapping[Var, int | None]) -> bool:
    nodes = list(walk_expr(store.value))
    if any(isinstance(n, Binary) and n.op in TRAPPING and not n.dtype.is_float for n in nodes):
        return False
    places = [(n.buffer, n.indices) for n in nodes if isinstance(n, Load)]
    return all(_is_inside(*place, extents) for place in [*places, (store.buffer, store.indices)])


def _is_inside(buffer: Buffer, indices: Sequence[Expr], extents: Mapping[Var, int | None]) -> bool:
    """Return whether an element of a tile is surely one: a loop variable or a number per axis."""
    shape = buffer.static_shape
    if buffer.scope == "global" or shape is None or len(shape) != len(indices):
        return False
    for index, size in zip(indices, shape, strict=True):
        number = int_value(index)
        last = extents.get(index) if isinstance(index, Var) else None
        inside = 0 <= number < size if number is not None else last is not None and last <= size
        if not inside:
            return False
    return True
