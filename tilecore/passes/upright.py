"""upright: a tile whose transpose is the left operand of products becomes that operand.

A product reads its left operand by rows. Of a transposed one it would read columns, whose elements
lie a whole row of the tensor apart, and instructions that multiply tiles (``tdpbf16ps``) take rows
only. The copy that fills the tile transposes instead, once per tile. Products of few rows read the
tensor where it lies (few_rows).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilecore.inference.cpu.plan import TileSource
from tilecore.inference.cpu.sources import of_launch
from tilecore.inference.uses import Use
from tilecore.ir.analysis import covers_whole, kept_axes
from tilecore.ir.arithmetic.bounds import narrowed
from tilecore.ir.dims import value_ranges
from tilecore.ir.expr import Load, Var
from tilecore.ir.nodes import (
    Alloc,
    Buffer,
    Copy,
    Gemm,
    If,
    KernelLaunch,
    Parallel,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
)
from tilecore.ir.plain.nests import shifted
from tilecore.ir.versions import Ranges
from tilecore.ir.visitor import Rewriter, buffers_of, children, walk, with_body
from tilecore.passes.few_rows import FEW


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with such tiles the other way round."""
    return with_body(func, _changed(func.body, value_ranges(func)))


def _changed(stmt: Stmt, ranges: Ranges) -> Stmt:
    """Return what stands for a statement outside of launches, or for a launch."""
    match stmt:
        case Seq(stmts=stmts):
            return replace(stmt, stmts=tuple(_changed(s, ranges) for s in stmts))
        case If(then_body=then, else_body=other):
            then = _changed(then, narrowed(stmt.cond, ranges, holds=True))
            if other is not None:
                other = _changed(other, narrowed(stmt.cond, ranges, holds=False))
            return replace(stmt, then_body=then, else_body=other)
        case KernelLaunch():
            return _upright(stmt, ranges)
    return stmt


def _upright(launch: KernelLaunch, ranges: Ranges) -> KernelLaunch:
    """Return a launch whose left operands are tiles of rows."""
    gemms = [s for s in walk(launch.body) if isinstance(s, Gemm)]
    if not any(gemm.transpose_a for gemm in gemms):
        return launch
    by_buffer, sources = of_launch(launch, ranges)
    turned = {
        tile: replace(tile, shape=tile.shape[::-1])
        for tile in dict.fromkeys(gemm.a.buffer for gemm in gemms)
        if tile in sources and _is_turned(tile, gemms, by_buffer, sources[tile], launch)
    }
    return replace(launch, body=_Turned(turned).visit(launch.body)) if turned else launch


def _is_turned(
    tile: Buffer, gemms: Sequence[Gemm], by_buffer: Mapping[Buffer, Sequence[Use]],
    source: TileSource, launch: KernelLaunch,
) -> bool:  # fmt: skip
    """Return whether only products read a tile, all of them its transpose, with many rows."""
    readers = [gemm for gemm in gemms if gemm.a.buffer is tile]
    stmts = (s for s in walk(launch.body) if not children(s) and not isinstance(s, Alloc))
    users = {id(s) for s in stmts if tile in buffers_of(s)}
    known = {id(source.copy), *map(id, readers)}
    is_plain = len(tile.shape) == 2 and len(kept_axes(source.copy.src)) == 2
    return (
        is_plain
        and users <= known
        and all(use.role in ("copy-dst", "gemm-a") for use in by_buffer[tile])
        and all(gemm.transpose_a and covers_whole(gemm.a) for gemm in readers)
        and _rows(source) > FEW[0]
    )


def _rows(source: TileSource) -> float:
    """Return how many rows a product may have in all; ``source``: of its left operand."""
    limit = source.limits[-1]
    bounds = None if limit is None else source.context.bounds(limit)
    return math.inf if bounds is None else bounds[1]


class _Turned(Rewriter):
    """``turned``: the tile that each becomes."""

    def __init__(self, turned: Mapping[Buffer, Buffer]) -> None:
        self.turned = turned

    def visit_alloc(self, alloc: Alloc) -> Stmt:
        """Return the allocation of the tile that one becomes."""
        found = self.turned.get(alloc.buffer)
        return alloc if found is None else replace(alloc, buffer=found)

    def visit_copy(self, copy: Copy) -> Stmt:
        """Return a copy that transposes."""
        tile = self.turned.get(copy.dst.buffer)
        if tile is None:
            return copy
        down, right = Var("i0"), Var("i1")
        source = copy.src.buffer
        load = Load(source, shifted(copy.src, (right, down)), source.dtype)
        store = Store(tile, (down, right), load, copy.span)
        return Parallel((down, right), tile.shape, store, span=copy.span)

    def visit_gemm(self, gemm: Gemm) -> Stmt:
        """Return a product that reads rows."""
        tile = self.turned.get(gemm.a.buffer)
        if tile is None:
            return gemm
        rows = Region(tile, gemm.a.offsets[::-1], gemm.a.extents[::-1])
        return replace(gemm, a=rows, transpose_a=False)
