"""What the CPU lowering uses where a config leaves a choice open, and tile counts that follow.

Mirrors ``tilecore.inference.cpu.infer``: micro_n = 0 means 2 vectors, micro_m = 0 the most rows
that stay in registers, pack "auto" means A by groups of rows where enough panels use them, else
per block, and B once per call where blocks share it; few rows read B in place; on tiles (AMX) two
by two of them take the place of the register tile, whatever micro_m and micro_n say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recommender.factored import constant, may_hold
from recommender.hardware import HardwareProfile
from recommender.straight_line import same_for_all
from tilecore.graph import Contraction, Loop, evaluate, free_vars, product
from tilecore.inference.cpu import few_rows, gemm_order, plan
from tilecore.inference.cpu.dots import DOTS, TILE_ROWS, Dot
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Var
from tilecore.lazy import cached_property

Columns = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Tiling:
    """Tile counts of every candidate (arrays of one length) around its main contraction.

    Computed when asked for, so that who asks little looks at few knobs.

    Attributes:
        m, n, k: extents of one product (its average, where rows or depth are data).
        products: how many products of this kind the program computes.
        lanes: sums in a vector register.
        dot: the instruction that sums up several products, if there is one.
    """

    def __init__(self, site: Contraction, columns: Columns, hardware: HardwareProfile) -> None:
        self._row_loop = site.row_loop
        self.lanes = hardware.vector_bytes // DType(site.accum_dtype).itemsize
        self.dot = instruction(site, hardware)
        self._site, self._columns, self._hardware = site, columns, hardware
        self._like = next(iter(columns.values()))
        self.m, self.n, self.k = whole_extents(site, columns)
        if self._row_loop is not None:
            self.m = self._walked(self._row_loop, site.m)
        if site.depth_loop is not None:
            self.k = self._walked(site.depth_loop, site.k)
        self.products = max((self._known(x, {}) for x in site.products), default=1.0)
        if self._row_loop is not None:  # products of no rows read nothing
            share = -np.expm1(-self.m)  # of those that have some, where chance deals rows out
            self.m, self.products = self.m / share, self.products * share

    @cached_property
    def row_stride_bytes(self) -> int:
        """Distance between rows of the tensor behind operand a."""
        source = self._site.a.source
        assert source is not None
        extent = evaluate(source.buffer.shape[-1], self._columns)
        stride: int = same_for_all(extent) * source.buffer.dtype.itemsize
        return stride

    @property
    def is_tiled(self) -> bool:
        """Whether products are by tiles (AMX)."""
        return self.dot is not None and self.dot.is_tiled

    @property
    def is_plain(self) -> bool:
        """Whether operands are kept in the order of vectors of sums: rows can be staged."""
        return self.dot is None or bool(self.dot.stored)

    @property
    def packed_bytes(self) -> int:
        """Bytes of an element of A or B where it is packed."""
        if self.dot is None:
            return self._site.accum_dtype.itemsize
        return DType(self.dot.stored or self._site.dtype).itemsize

    @cached_property
    def block_m(self) -> Floats:
        """Rows of a tile of C."""
        return self._values(self._site.m)

    @cached_property
    def block_n(self) -> Floats:
        """Columns of a tile of C."""
        return self._values(self._site.n)

    @cached_property
    def block_k(self) -> Floats:
        """Products per element of C in one step."""
        return self._values(self._site.k)

    @cached_property
    def rows_of_block(self) -> Floats:
        """Rows of a tile of C that are not beyond the problem's."""
        return np.minimum(self.block_m, self.m)

    @cached_property
    def columns_of_block(self) -> Floats:
        """The same of columns."""
        return np.minimum(self.block_n, self.n)

    @cached_property
    def row_runs(self) -> Floats:
        """Register tiles along m of a tile of C."""
        return np.maximum(1.0, self._full_row_tiles)

    @cached_property
    def _full_row_tiles(self) -> Floats:
        return np.ceil(self.rows_of_block / self.micro_m)

    @cached_property
    def micro_n(self) -> Floats:
        """Vectors of a register tile."""
        widest = np.ceil(self.block_n / self.lanes)
        if self.is_tiled:
            return np.minimum(2.0, widest)
        asked = self._knob("micro_n")
        return np.minimum(np.where(asked == 0, 2, asked), widest)

    @cached_property
    def micro_m(self) -> Floats:
        """Rows of a register tile."""
        if self.is_tiled:
            return np.minimum(2.0 * TILE_ROWS, self.block_m)
        asked = self._knob("micro_m")
        if may_hold(asked == 0):
            most = (self._hardware.vector_registers - self.micro_n - 1) // self.micro_n
            asked = np.where(asked == 0, most, asked)
        return np.minimum(asked, self.block_m)

    @cached_property
    def is_a_packed(self) -> Mask:
        """Whether a block copies its tile of A."""
        always = self._site.a.is_transposed or (self.dot is not None and bool(self.dot.stored))
        found: Mask = ((self._choice("pack_a") != "none") | always) & ~self.is_a_staged
        return found

    @cached_property
    def is_a_staged(self) -> Mask:
        """Whether groups of rows of A are copied when their turn comes."""
        asked = self._choice("pack_a")
        pays = self.whole_panels >= gemm_order.FEW_PANELS
        staged = (asked == "rows") | ((asked == "auto") & pays & self.is_plain)
        is_possible = (self.is_plain or self.is_tiled) and not self._site.a.is_transposed
        found: Mask = staged & is_possible
        return found

    @cached_property
    def is_b_hoisted(self) -> Mask:
        """Whether B is packed once per call."""
        found: Mask = (self._choice("pack_b") != "block") & (self.b_reuse > 1)
        return found

    @cached_property
    def has_few_rows(self) -> Mask:
        """Whether so few rows use B at a time that it may be read where it lies."""
        form = plan.DOTS if self._site.b.is_transposed else plan.SUMS
        most = few_rows.most_in_place(form, self._hardware.vector_registers)
        if self.is_tiled and self._site.b.is_transposed:
            most = few_rows.MOST_ROWS_BESIDE_TILES
        rows = constant(self.m, self._like) if self._row_loop is None else self.block_m
        found: Mask = (rows <= most) & (self._site.accum_dtype == "float32")
        return found

    @cached_property
    def is_b_in_place(self) -> Mask:
        """Whether B is read where it lies."""
        asked = self._choice("pack_b") == "none"
        if self._row_loop is None:  # otherwise rows use a tile of B again and again
            asked = asked | (self._choice("pack_b") == "auto")
        found: Mask = asked & (self.b_reuse <= 1) & self.has_few_rows
        return found

    @cached_property
    def a_reuse(self) -> Floats:
        """Blocks that read the same tile of A."""
        return self._values(self._site.a.reuse)

    @cached_property
    def b_reuse(self) -> Floats:
        """Blocks that read the same tile of B."""
        return self._values(self._site.b.reuse)

    def _values(self, expr: Expr) -> Floats:
        found = evaluate(expr, self._columns)
        column: Floats = (found if found.ndim else constant(found, self._like)).astype(float)
        return column

    def _walked(self, loop: Loop, step: Expr) -> float:
        """Return how far a loop of data length goes: what it takes in steps of one element."""
        ones = dict.fromkeys((var.name for var in free_vars(step)), 1)
        return self._known(product((loop.trip_count, step)), ones)

    def _known(self, expr: Expr, values: Mapping[str, int]) -> float:
        found = evaluate(expr, {**self._columns, **values})
        known: float = same_for_all(found) * 1.0
        return known

    def _knob(self, name: str) -> Floats:
        asked = self._columns.get(name)
        column: Floats = constant(0.0, self._like) if asked is None else asked.astype(float)
        return column

    def _choice(self, name: str) -> NDArray[np.str_]:
        asked = self._columns.get(name)
        return constant("auto", self._like) if asked is None else asked

    @cached_property
    def grid_m(self) -> Floats:
        """Rows of tiles of C."""
        if self._row_loop is not None:
            trips: Floats = np.maximum(1.0, self._values(self._row_loop.trip_count))
            return trips
        return np.ceil(self.m / self.block_m)

    @cached_property
    def block_rows(self) -> Floats:
        """Rows of tiles that blocks of their own compute."""
        return self.grid_m if self._row_loop is None else constant(1.0, self._like)

    @cached_property
    def grid_n(self) -> Floats:
        """Block columns."""
        return np.ceil(self.n / self.block_n)

    @cached_property
    def blocks(self) -> Floats:
        """Blocks in the grid (two-dimensional part)."""
        return self.block_rows * self.grid_n

    @cached_property
    def steps(self) -> Floats:
        """Steps along k."""
        return np.ceil(self.k / self.block_k)

    @cached_property
    def panel(self) -> Floats:
        """Columns of one packed panel of B."""
        return self.micro_n * self.lanes

    @cached_property
    def panels(self) -> Floats:
        """Panels in all block columns, partly filled ones included."""
        full, last = self._panels_of_blocks
        return (self.grid_n - 1) * full + last

    @cached_property
    def whole_panels(self) -> Floats:
        """Panels of a tile of B as wide as its block, beyond the problem's columns too."""
        return np.ceil(self.block_n / self.panel)

    @cached_property
    def _full_panels(self) -> Floats:
        return np.ceil(self.columns_of_block / self.panel)

    @cached_property
    def panels_per_block(self) -> Floats:
        """Panels of one tile of B."""
        return np.maximum(1.0, self._full_panels)

    @cached_property
    def takes_rows_first(self) -> Mask:
        """Whether each group of rows meets all panels of B."""
        if not self.is_plain:
            return self.is_a_staged
        tile = self.whole_panels * self.panel * self.block_k * self.packed_bytes
        fits = (tile > gemm_order.L1_BYTES) & (tile <= gemm_order.L2_BYTES)
        several_panels, several_rows = self.block_n > self.panel, self.block_m > self.micro_m
        return self.is_a_staged | (several_panels & fits & several_rows)

    @cached_property
    def row_tiles(self) -> Floats:
        """Register tiles along m in all block rows; rows beyond the edge are skipped."""
        full, last = self._row_tiles_of_blocks
        return (self.block_rows - 1) * full + last

    @cached_property
    def rows(self) -> Floats:
        """Rows that are computed: where their number is data, whole tiles."""
        all_rows: Floats = constant(self.m, self._like)
        return all_rows if self._row_loop is None else self.grid_m * self.block_m

    @cached_property
    def rows_per_tile(self) -> Floats:
        """Average rows of a register tile (tiles of a block are balanced)."""
        return self.rows / self.row_tiles

    @cached_property
    def _panels_of_blocks(self) -> tuple[Floats, Floats]:
        """Panels of a block column, and of the last one."""
        last = self.n - (self.grid_n - 1) * self.block_n
        return self._full_panels, np.ceil(last / self.panel)

    @cached_property
    def _row_tiles_of_blocks(self) -> tuple[Floats, Floats]:
        """Register tiles along m of a block row, and of the last one."""
        if self._row_loop is not None:
            found = self.grid_m * np.ceil(self.block_m / self.micro_m)
            return found, found
        last = self.m - (self.grid_m - 1) * self.block_m
        return self._full_row_tiles, np.ceil(last / self.micro_m)

    def busiest_share(self, cores: int, grids: Floats, joined: Floats | None = None) -> Floats:
        """Share of all work that the busiest core has.

        Cores run neighbouring blocks, as many as each other but for the last; block columns follow
        each other within a block row. The first core's blocks are the fullest, since what is cut
        off at the edges of a problem lies at the ends of its rows and columns.

        Args:
            cores: how many run.
            grids: two-dimensional grids of every candidate, one after the other.
            joined: how many neighbours along n are one block (None: each is one).
        """
        whole, blocks = divmod(np.ceil(self.blocks * grids / cores), self.blocks)
        rows, columns = divmod(blocks, self.grid_n)
        (wide, _), (high, low) = self._panels_of_blocks, self._row_tiles_of_blocks
        begun = columns * wide * np.where(rows < self.block_rows - 1, high, low)
        grid = self.row_tiles * self.panels
        work = whole * grid + rows * high * self.panels + begun
        share: Floats = np.minimum(1.0, work / (grids * grid))
        if joined is None:
            return share
        each = np.ceil(np.ceil(self.grid_n / joined) * grids / cores)
        columns = each * joined * self.block_n
        return np.where(joined > 1, np.minimum(1.0, columns / (self.n * grids)), share)

    @cached_property
    def depth(self) -> Floats:
        """Average length of one run of the micro-kernel along k."""
        return self.k / self.steps


def instruction(site: Contraction, hardware: HardwareProfile) -> Dot | None:
    """Return the instruction that sums up several products of the operands, if there is one."""
    return next(
        (
            dot
            for dot in DOTS
            if site.dtype in dot.operands
            and site.accum_dtype == dot.accum
            and not dot.obstacle(hardware.features, hardware.vector_bytes)
        ),
        None,
    )


def whole_extents(site: Contraction, sizes: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return M, N, K of the whole problem from the shapes of the tensors behind the operands.

    ``sizes``: values of what is a symbol in these.
    """
    a, b = site.a.source, site.b.source
    if a is None or b is None:
        raise ValueError("a contraction of computed operands has no tensor extents")
    a_shape = [same_for_all(evaluate(e, sizes)) * 1.0 for e in a.buffer.shape[-2:]]
    b_shape = [same_for_all(evaluate(e, sizes)) * 1.0 for e in b.buffer.shape[-2:]]
    m, k = reversed(a_shape) if site.a.is_transposed else a_shape
    n = b_shape[0] if site.b.is_transposed else b_shape[1]
    return m, n, k


def needed_extents(site: Contraction, sizes: Mapping[str, Any]) -> dict[str, tuple[str, float]]:
    """Return by knob the axis that its block has to cover, and the extent of the problem along it.

    A knob that is itself an extent of the tile covers that one, whatever its author calls it;
    where none is, names say which. ``sizes``: values of what is a symbol in the tensors' shapes.
    """
    blocks = (("block_M", site.m), ("block_N", site.n), ("block_K", site.k))
    names = [e.name if isinstance(e, Var) else name for name, e in blocks]
    found: dict[str, tuple[str, float]] = {}
    for name, axis, extent in zip(names, "mnk", whole_extents(site, sizes), strict=True):
        if name not in found or extent > found[name][1]:  # one knob may be two extents
            found[name] = axis, extent
    return found
