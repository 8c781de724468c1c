"""Launches that stand in versions: one for few elements along a dimension, one for all others.

``If(rows <= 16, KernelLaunch, KernelLaunch)`` stands outside of any launch; what its condition says
of the dimension holds inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilecore.ir.arithmetic.bounds import Interval, narrowed
from tilecore.ir.expr import Var
from tilecore.ir.nodes import If, KernelLaunch, Seq, Stmt

Ranges = Mapping[Var, Interval]


def launches(stmt: Stmt, ranges: Ranges) -> Iterator[tuple[KernelLaunch, Ranges]]:
    """Yield the launches in ``stmt``, in order, with the bounds of dimensions where they run."""
    match stmt:
        case KernelLaunch():
            yield stmt, ranges
        case Seq(stmts=stmts):
            for child in stmts:
                yield from launches(child, ranges)
        case If(then_body=then, else_body=other):
            yield from launches(then, narrowed(stmt.cond, ranges, holds=True))
            if other is not None:
                yield from launches(other, narrowed(stmt.cond, ranges, holds=False))
