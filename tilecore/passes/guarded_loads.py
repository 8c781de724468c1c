"""guarded_loads: what a load does by itself need not be asked before it.

Outside of its tensor a load gives 0. ``T.if_then_else(0 <= y and y < h, X[y], 0)`` is ``X[y]``: the
condition would be computed and chosen by once more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tilecore.ir.analysis import pads
from tilecore.ir.arithmetic.polynomial import is_equal
from tilecore.ir.expr import Binary, Cast, Expr, Load, Select, binary, is_plus_zero, select
from tilecore.ir.nodes import Buffer, KernelLaunch, PrimFunc, Stmt
from tilecore.ir.substitute import Rebuilder
from tilecore.ir.visitor import per_launch


def run(func: PrimFunc) -> PrimFunc:
    """Return the function without such conditions."""
    return per_launch(func, _unguarded)


def _unguarded(launch: KernelLaunch) -> Stmt:
    """Return a launch without such conditions."""
    body = _Choices(frozenset(pads(launch))).stmt(launch.body)
    return launch if body is launch.body else dataclasses.replace(launch, body=body)


class _Choices(Rebuilder):
    """``padded`` tensors give something else than 0."""

    def __init__(self, padded: frozenset[Buffer]) -> None:
        super().__init__()
        self.padded = padded

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return ``buffer``: statements that stay as they are name it, too."""
        return buffer

    def expr(self, expr: Expr) -> Expr:
        """Return ``expr`` without choices that its loads make."""
        if isinstance(expr, Select) and is_plus_zero(expr.b):
            load = _load(expr.a)
            if load is not None and load.buffer not in self.padded:
                conditions = list(_conjuncts(expr.cond))
                left = [one for one in conditions if not _is_bound(one, load)]
                if len(left) < len(conditions):
                    return self.expr(_chosen(left, expr))
        return super().expr(expr)


def _load(expr: Expr) -> Load | None:
    """Return the load from a tensor whose value, perhaps converted, an expression is."""
    while isinstance(expr, Cast):
        expr = expr.a
    return expr if isinstance(expr, Load) and expr.buffer.root.scope == "global" else None


def _conjuncts(cond: Expr) -> Iterator[Expr]:
    if isinstance(cond, Binary) and cond.op == "and":
        yield from _conjuncts(cond.a)
        yield from _conjuncts(cond.b)
    else:
        yield cond


def _chosen(left: list[Expr], choice: Select) -> Expr:
    if not left:
        return choice.a
    cond = left[0]
    for one in left[1:]:
        cond = binary("and", cond, one)
    return select(cond, choice.a, choice.b)


def _is_bound(cond: Expr, load: Load) -> bool:
    """Return whether a condition says that an index is not beyond one of the ends of its axis."""
    if not isinstance(cond, Binary) or cond.op not in ("lt", "le", "gt", "ge"):
        return False
    small, large = (cond.a, cond.b) if cond.op in ("lt", "le") else (cond.b, cond.a)
    if not all(
        x.dtype.is_integer and x.dtype.is_signed and x.dtype.bits >= 32 for x in (small, large)
    ):
        return False
    room = binary("sub", large, small)  # what is not negative where the condition holds
    if cond.op in ("lt", "gt"):
        room = binary("sub", room, 1)
    return any(
        is_equal(room, index) or is_equal(room, binary("sub", binary("sub", extent, index), 1))
        for index, extent in zip(load.indices, load.buffer.shape, strict=True)
    )
