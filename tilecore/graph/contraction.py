"""Contraction: the matrix product at the heart of a program, with where its operands come from.

A backend packs, hoists and register-blocks around it; a cost model needs the same facts.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilecore.graph.closed_form import ceildiv, free_vars, product
from tilecore.graph.describe import gemm_extents
from tilecore.graph.graph import Launch, TileGraph
from tilecore.graph.nodes import Access, Loop, TileOp
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, int_value
from tilecore.ir.gemm_shape import accumulator_dtype
from tilecore.ir.nodes import Buffer, Gemm, Region
from tilecore.lazy import cached_property


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """One input of a gemm.

    Attributes:
        tile: the buffer that the gemm reads.
        source: the box of a tensor that was copied into the tile; None if it was computed.
        reuse: number of grid blocks that read the same box (1: none shares it).
        is_transposed: whether the box is stored transposed to its role.
    """

    tile: Buffer
    source: Access | None
    reuse: Expr
    is_transposed: bool


@dataclass(frozen=True, eq=False)
class Contraction:
    """``c[m, n] += a[m, k] @ b[k, n]`` for one tile, executed ``trips`` times per block."""

    launch: Launch
    op: TileOp
    m: Expr
    n: Expr
    k: Expr
    a: Operand
    b: Operand
    dtype: DType
    accum_dtype: DType

    @property
    def trips(self) -> Expr:
        """Executions per block."""
        return self.op.trips

    @cached_property
    def row_loop(self) -> Loop | None:
        """The loop of data length that takes a block through rows of a, if there is one."""
        return self._loop_along(-1 if self.a.is_transposed else -2)

    @cached_property
    def depth_loop(self) -> Loop | None:
        """The loop of data length along k, if there is one."""
        return self._loop_along(-2 if self.a.is_transposed else -1)

    @cached_property
    def products(self) -> tuple[Expr, ...]:
        """Per operand the number of matrices that its tensor holds."""
        sources = (self.a.source, self.b.source)
        return tuple(_matrices(source) for source in sources if source is not None)

    def _loop_along(self, axis: int) -> Loop | None:
        source = self.a.source
        used = frozenset() if source is None else free_vars(source.offsets[axis])
        return next((x for x in self.op.loops if x.is_data and x.var in used), None)


def sole_contraction(graph: TileGraph) -> Contraction | None:
    """Return the gemm of a program that has exactly one, else None.

    Forms of a product for as few rows as data may tell are the one that goes through all rows.
    """
    found = [
        _contraction(launch, op, op.stmt)
        for launch in graph.launches for op in launch.ops if isinstance(op.stmt, Gemm)
    ]  # fmt: skip
    if len(found) > 1 and len({_tensors(one) for one in found}) == 1:
        found = [one for one in found if one.row_loop is not None]
    return found[0] if len(found) == 1 else None


def _tensors(contraction: Contraction) -> tuple[Launch, Buffer | None, Buffer | None]:
    """Return the launch of a product, and the tensors that it multiplies."""
    sources = (contraction.a.source, contraction.b.source)
    a, b = (None if source is None else source.buffer for source in sources)
    return contraction.launch, a, b


def _contraction(launch: Launch, op: TileOp, stmt: Gemm) -> Contraction:
    m, n, k = gemm_extents(stmt)
    return Contraction(
        launch=launch,
        op=op,
        m=m,
        n=n,
        k=k,
        a=_operand(launch, op, stmt.a, stmt.transpose_a),
        b=_operand(launch, op, stmt.b, stmt.transpose_b),
        dtype=stmt.a.buffer.dtype,
        accum_dtype=accumulator_dtype(stmt),
    )


def _operand(launch: Launch, op: TileOp, region: Region, is_transposed: bool) -> Operand:
    producer = launch.producer(region.buffer, op)
    source = None
    if region.buffer.scope == "global":
        source = next(a for a in op.reads if a.buffer is region.buffer)
    elif producer is not None and producer.kind == "copy":
        source = next((a for a in producer.reads if a.buffer.scope == "global"), None)
    shared = set(range(len(launch.grid))) - (source.block_axes if source else set())
    reuse = product(launch.grid[i] for i in sorted(shared)) if source else product(())
    return Operand(region.buffer, source, reuse, is_transposed)


def _matrices(source: Access) -> Expr:
    """Return how many matrices lie along the leading axes through which blocks or loops go."""
    leading = zip(source.buffer.shape[:-2], source.extents, source.offsets, strict=False)
    return product(
        ceildiv(size, extent) for size, extent, offset in leading if int_value(offset) is None
    )
