"""Nodes of the fused tile graph: tile ops with their loops, their accesses and their work.

Grammar::

    graph  = TileGraph(func, launches)
    launch = Launch(block_vars, grid, threads, ops, tiles)     one KernelLaunch of the program
    op     = TileOp(kind, outermost, loops, reads, writes, work)   in program order; kind is one of
             copy, fill, gemm, reduce, scan, parallel, scalar
    access = Access(buffer, offsets, extents, block_axes, loops)
    loop   = Loop(var, trip_count, kind, num_stages)
    work   = Work(unit, dtype, amount)                         unit in UNITS, per execution

An op and the next one that touches the same tile are joined by that tile: ``Launch.edges``.
Closed forms of a node are made once: a graph is asked for them at every shape of its program.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilecore.errors import SourceSpan
from tilecore.graph.closed_form import minimum, product, size_bytes
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Var
from tilecore.ir.nodes import NO_SPAN, Buffer, Stmt
from tilecore.lazy import cached_property

UNITS = ("fma", "elementwise", "special")


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop around a tile op.

    Attributes:
        trip_count: free of block variables (see build).
        is_data: whether the length is data: ``trip_count`` is what is expected of it.
        varies: whether blocks differ in it.
        span: where it stands in the program.
    """

    var: Var
    trip_count: Expr
    kind: str  # serial | pipelined | unroll | vectorized | while
    num_stages: Expr
    is_data: bool = False
    span: SourceSpan = NO_SPAN
    varies: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Work of one execution: FLOP for unit fma (1 FMA = 2 FLOP), scalar operations otherwise."""

    unit: str
    dtype: DType
    amount: Expr


@dataclass(frozen=True, eq=False)
class Access:
    """A box of a buffer that a tile op reads or writes.

    Attributes:
        offsets: first element per axis.
        extents: elements per axis, before clipping at the tensor's edge.
        block_axes: positions in ``Launch.block_vars`` on which the offsets depend. An access of a
            tensor is the same for all blocks that differ only along the other axes.
        loops: the loops around the op on whose variables the offsets depend.
        axis_steps: per axis the number of boxes that lie side by side along it.
        most: elements that one execution touches at most; None: those of the box.
    """

    buffer: Buffer
    offsets: tuple[Expr, ...]
    extents: tuple[Expr, ...]
    block_axes: frozenset[int]
    loops: tuple[Loop, ...]
    axis_steps: tuple[Expr, ...]
    most: Expr | None = None

    @cached_property
    def tile_bytes(self) -> Expr:
        """Bytes that one execution touches."""
        if self.most is None:
            return size_bytes(self.extents, self.buffer.dtype)
        return size_bytes([minimum(product(self.extents), self.most)], self.buffer.dtype)

    @cached_property
    def footprint_bytes(self) -> Expr:
        """Bytes of the tensor that all boxes together touch, clipped at its edges."""
        axes = zip(self.buffer.shape, self.extents, self.axis_steps, strict=True)
        covered = [minimum(size, extent * steps) for size, extent, steps in axes]
        return size_bytes(covered, self.buffer.dtype)


@dataclass(frozen=True, eq=False)
class TileOp:
    """One tile statement with everything around it that decides how often it runs.

    Attributes:
        outermost: the statement of the launch's body that it is, or that it stands in.
    """

    index: int
    kind: str
    stmt: Stmt
    outermost: Stmt
    loops: tuple[Loop, ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    work: tuple[Work, ...]

    @cached_property
    def trips(self) -> Expr:
        """How often one block executes the op."""
        return product(loop.trip_count for loop in self.loops)


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """``source`` writes ``tile`` and ``sink`` reads it next."""

    source: TileOp
    sink: TileOp
    tile: Buffer
