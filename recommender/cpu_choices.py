"""What the CPU lowering uses where a config leaves a choice open, and tile counts that follow.

Mirrors ``tilecore.inference.cpu``: micro_n = 0 means 2 vectors, micro_m = 0 the most rows that stay
in registers, pack "auto" means A by groups of rows where enough panels use them, else per block,
and B once per call where blocks share it; few rows read B in place; on tiles (AMX) two by two of
them take the place of the register tile, whatever micro_m and micro_n say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recommender.hardware import HardwareProfile
from tilecore.graph import Contraction, evaluate
from tilecore.inference import few_rows, gemm_order, plan
from tilecore.inference.dots import DOTS, TILE_ROWS, Dot
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Var

Columns = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tile counts of every candidate (arrays of one length) around its main contraction.

    ``m``, ``n``, ``k`` are the extents of the whole problem; ``block_*`` those of one tile.
    """

    m: float
    n: float
    k: float
    block_m: Floats
    block_n: Floats
    block_k: Floats
    micro_m: Floats
    micro_n: Floats
    lanes: int
    is_a_packed: Mask
    is_a_staged: Mask
    is_b_hoisted: Mask
    is_b_in_place: Mask
    a_reuse: Floats
    b_reuse: Floats
    dot: Dot | None = None

    @property
    def grid_m(self) -> Floats:
        """Block rows."""
        return np.ceil(self.m / self.block_m)

    @property
    def grid_n(self) -> Floats:
        """Block columns."""
        return np.ceil(self.n / self.block_n)

    @property
    def blocks(self) -> Floats:
        """Blocks in the grid (two-dimensional part)."""
        return self.grid_m * self.grid_n

    @property
    def steps(self) -> Floats:
        """Steps along k."""
        return np.ceil(self.k / self.block_k)

    @property
    def panel(self) -> Floats:
        """Columns of one packed panel of B."""
        return self.micro_n * self.lanes

    @property
    def panels(self) -> Floats:
        """Panels in all block columns, partly filled ones included."""
        full, last = self._panels_of_blocks
        return (self.grid_n - 1) * full + last

    @property
    def panels_per_block(self) -> Floats:
        """Panels of one tile of B."""
        return np.maximum(1.0, np.ceil(np.minimum(self.block_n, self.n) / self.panel))

    def takes_rows_first(self, size: float) -> Mask:
        """Whether each group of rows meets all panels of B, of elements of ``size`` bytes."""
        tile = np.ceil(self.block_n / self.panel) * self.panel * self.block_k * size
        fits = (tile > gemm_order.L1_BYTES) & (tile <= gemm_order.L2_BYTES)
        several = (self.block_n > self.panel) & (self.block_m > self.micro_m)
        return self.is_a_staged | (several & fits & (self.dot is None))

    @property
    def row_tiles(self) -> Floats:
        """Register tiles along m in all block rows; rows beyond the edge are skipped."""
        full, last = self._row_tiles_of_blocks
        return (self.grid_m - 1) * full + last

    @property
    def rows_per_tile(self) -> Floats:
        """Average rows of a register tile (tiles of a block are balanced)."""
        return self.m / self.row_tiles

    @property
    def _panels_of_blocks(self) -> tuple[Floats, Floats]:
        """Panels of a block column, and of the last one."""
        last = self.n - (self.grid_n - 1) * self.block_n
        full = np.ceil(np.minimum(self.block_n, self.n) / self.panel)
        return full, np.ceil(last / self.panel)

    @property
    def _row_tiles_of_blocks(self) -> tuple[Floats, Floats]:
        """Register tiles along m of a block row, and of the last one."""
        last = self.m - (self.grid_m - 1) * self.block_m
        full = np.ceil(np.minimum(self.block_m, self.m) / self.micro_m)
        return full, np.ceil(last / self.micro_m)

    def busiest_share(self, cores: int, grids: Floats) -> Floats:
        """Share of all work that the busiest core has.

        Cores run neighbouring blocks, as many as each other but for the last; block columns follow
        each other within a block row. The first core's blocks are the fullest, since what is cut
        off at the edges of a problem lies at the ends of its rows and columns.

        Args:
            cores: how many run.
            grids: two-dimensional grids of every candidate, one after the other.
        """
        whole, blocks = divmod(np.ceil(self.blocks * grids / cores), self.blocks)
        rows, columns = divmod(blocks, self.grid_n)
        (wide, _), (high, low) = self._panels_of_blocks, self._row_tiles_of_blocks
        begun = columns * wide * np.where(rows < self.grid_m - 1, high, low)
        grid = self.row_tiles * self.panels
        work = whole * grid + rows * high * self.panels + begun
        share: Floats = np.minimum(1.0, work / (grids * grid))
        return share

    @property
    def depth(self) -> Floats:
        """Average length of one run of the micro-kernel along k."""
        return self.k / self.steps


def tiling(site: Contraction, columns: Columns, hardware: HardwareProfile) -> Tiling:
    """Return the tile counts of every candidate in ``columns`` (one value per knob each)."""
    count = len(next(iter(columns.values())))

    def values(expr: Expr) -> Floats:
        return np.broadcast_to(evaluate(expr, columns), (count,)).astype(np.float64)

    block_m, block_n, block_k = values(site.m), values(site.n), values(site.k)
    m, n, k = whole_extents(site)
    lanes = hardware.vector_bytes // DType(site.accum_dtype).itemsize
    zeros, autos = np.zeros(count), np.full(count, "auto")
    micro_n = np.asarray(columns.get("micro_n", zeros), dtype=np.float64)
    micro_n = np.minimum(np.where(micro_n == 0, 2, micro_n), np.ceil(block_n / lanes))
    micro_m = np.asarray(columns.get("micro_m", zeros), dtype=np.float64)
    most = (hardware.vector_registers - micro_n - 1) // micro_n
    micro_m = np.minimum(np.where(micro_m == 0, most, micro_m), block_m)
    dot = instruction(site, hardware)
    if dot is not None and dot.is_tiled:
        micro_m = np.minimum(2.0 * TILE_ROWS, block_m)
        micro_n = np.minimum(2.0, np.ceil(block_n / lanes))
    pack_a, pack_b = columns.get("pack_a", autos), columns.get("pack_b", autos)
    pays = np.ceil(block_n / (micro_n * lanes)) >= gemm_order.FEW_PANELS
    is_staged = (pack_a == "rows") | ((pack_a == "auto") & pays & (dot is None))
    is_staged &= (dot is None or dot.is_tiled) and not site.a.is_transposed
    most_in_place = few_rows.MOST_ROWS[plan.DOTS if site.b.is_transposed else plan.SUMS]
    if dot is not None and dot.is_tiled and site.b.is_transposed:
        most_in_place = few_rows.MOST_ROWS_BESIDE_TILES
    a_reuse, b_reuse = values(site.a.reuse), values(site.b.reuse)
    return Tiling(
        m=m, n=n, k=k, block_m=block_m, block_n=block_n, block_k=block_k,
        micro_m=micro_m, micro_n=micro_n, lanes=lanes,
        is_a_packed=(pack_a != "none") & ~is_staged, is_a_staged=is_staged,
        is_b_hoisted=(pack_b != "block") & (b_reuse > 1),
        is_b_in_place=np.isin(pack_b, ("auto", "none")) & (b_reuse <= 1) & (m <= most_in_place),
        a_reuse=a_reuse, b_reuse=b_reuse, dot=dot,
    )  # fmt: skip


def instruction(site: Contraction, hardware: HardwareProfile) -> Dot | None:
    """Return the instruction that sums up several products of the operands, if there is one."""
    return next(
        (
            dot
            for dot in DOTS
            if site.dtype in dot.operands
            and site.accum_dtype == dot.accum
            and dot.features <= set(hardware.features)
            and not (dot.is_tiled and site.a.is_transposed)
        ),
        None,
    )


def whole_extents(site: Contraction) -> tuple[float, float, float]:
    """Return M, N, K of the whole problem from the shapes of the tensors behind the operands."""
    a, b = site.a.source, site.b.source
    if a is None or b is None:
        raise ValueError("a contraction of computed operands has no tensor extents")
    a_shape = [float(evaluate(e, {})) for e in a.buffer.shape[-2:]]
    b_shape = [float(evaluate(e, {})) for e in b.buffer.shape[-2:]]
    m, k = reversed(a_shape) if site.a.is_transposed else a_shape
    n = b_shape[0] if site.b.is_transposed else b_shape[1]
    return m, n, k


def needed_extents(site: Contraction) -> dict[str, tuple[str, float]]:
    """Return by knob the axis that its block has to cover, and the extent of the problem along it.

    A knob that is itself an extent of the tile covers that one, whatever its author calls it;
    where none is, names say which.
    """
    blocks = (("block_M", site.m), ("block_N", site.n), ("block_K", site.k))
    names = [e.name if isinstance(e, Var) else name for name, e in blocks]
    found: dict[str, tuple[str, float]] = {}
    for name, axis, extent in zip(names, "mnk", whole_extents(site), strict=True):
        if name not in found or extent > found[name][1]:  # one knob may be two extents
            found[name] = axis, extent
    return found
