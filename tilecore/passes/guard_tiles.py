"""guard_tiles: what leaves a tile if it runs at all stops the program there instead."""

from __future__ import annotations

import dataclasses

from tilecore.errors import ShapeMismatch
from tilecore.inference.tile_bounds import conditional_faults
from tilecore.ir.expr import const
from tilecore.ir.nodes import Assert, PrimFunc, Seq, Stmt
from tilecore.ir.visitor import Rewriter


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with a failing assertion before each access that leaves its tile."""
    faults = conditional_faults(func)
    return dataclasses.replace(func, body=_Guard(faults).visit(func.body)) if faults else func


class _Guard(Rewriter):
    def __init__(self, faults: dict[int, ShapeMismatch]) -> None:
        self.faults = faults

    def visit(self, stmt: Stmt) -> Stmt:
        fault = self.faults.get(id(stmt))
        if fault is None:
            return super().visit(stmt)
        stop = Assert(const(False), fault.message, stmt.span)
        return Seq((stop, super().visit(stmt)), stmt.span)
