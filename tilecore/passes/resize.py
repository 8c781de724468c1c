"""Resizer: a program whose tiles, and the loops over them, have other extents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilecore.ir.expr import Expr
from tilecore.ir.nodes import (
    Annotate,
    Buffer,
    Copy,
    Fill,
    Gemm,
    Parallel,
    Reduce,
    Region,
    Scan,
    Stmt,
)
from tilecore.ir.substitute import Rebuilder

Axis = tuple[Buffer | Parallel, int]  # an axis of a tile, a loop of a nest
TileOp = Copy | Fill | Gemm | Reduce | Scan
Regions = Mapping[str, Region]  # of a statement, by field


class Resizer(Rebuilder):
    """Rebuilds a program; say in ``extents`` and ``resized`` what has which extents."""

    def extents(self, thing: Buffer | Parallel, old: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the extents of a tile or nest: ``old`` itself where they stay."""
        raise NotImplementedError

    def resized(self, stmt: TileOp, found: Regions) -> Regions:
        """Return the regions of a statement of tiles."""
        raise NotImplementedError

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return the tile with its extents."""
        shape = self.extents(buffer, buffer.shape)
        if shape is not buffer.shape and id(buffer) not in self._buffers:
            self._buffers[id(buffer)] = buffer, replace(buffer, shape=shape)
        return super().buffer(buffer)

    def stmt(self, stmt: Stmt) -> Stmt:
        """Return the statement with its extents; layouts of other extents are forgotten."""
        match stmt:
            case Parallel():
                stmt = replace(stmt, extents=self.extents(stmt, stmt.extents))
            case Annotate(key="layout", value=layouts):
                kept = {b: v for b, v in layouts.items() if self.extents(b, b.shape) is b.shape}
                stmt = replace(stmt, value=kept)
            case Copy() | Fill() | Gemm() | Reduce() | Scan():
                names = ("a", "b", "c") if isinstance(stmt, Gemm) else ("src", "dst")
                found = {name: getattr(stmt, name) for name in names if hasattr(stmt, name)}
                stmt = replace(stmt, **self.resized(stmt, found))  # type: ignore[arg-type]
            case _:
                pass
        return super().stmt(stmt)
