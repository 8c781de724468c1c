"""``tilelang.intrinsics``: products by tensor cores, written per thread (TensorCoreIntrinEmitter).

Its methods write what TileLang's of the same names write: each lane loads its pieces of A and B
from shared tiles, multiplies by ``T.ptx_mma`` and stores its pieces of C. The order of elements
in the arrays is that of the instruction's registers, so that programs may compute on them between
the steps.
"""

from __future__ import annotations

from typing import Any

import tilecore.language as T
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr
from tilecore.ir.lane_matrix import LANES, per_register, place_in_a, place_in_b, place_in_c
from tilecore.language.copy import region
from tilecore.layout import get_swizzle_layout, make_mma_swizzle_layout

__all__ = [
    "TensorCoreIntrinEmitter", "get_mma_micro_size", "get_swizzle_layout",
    "make_mma_swizzle_layout", "mma_store_index_map",
]  # fmt: skip
COLUMNS = 8  # of one instruction


def get_mma_micro_size(dtype: Any) -> tuple[int, int, int]:
    """Return rows, columns and depth of the tiles that products of a type are made of."""
    return 16, 16, min(32, 256 // DType(str(dtype)).bits)


def mma_store_index_map(thread_id: Any, local_id: Any) -> tuple[Any, Any]:
    """Return row and column, of 16 x 16, of an element of C that a lane holds."""
    row, column = place_in_c(thread_id, local_id % 4)
    return row, column + local_id // 4 * COLUMNS


class TensorCoreIntrinEmitter:
    """Writes products of a block's tiles by ``mma.sync``: loads, products and stores of its lanes.

    Args:
        a_dtype: element type of A.
        b_dtype: element type of B.
        accum_dtype: of C.
        a_transposed: A lies in memory as (K, M).
        b_transposed: B lies in memory as (N, K).
        block_row_warps: warps along M.
        block_col_warps: warps along N.
        warp_row_tiles: rows of a warp.
        warp_col_tiles: columns of a warp.
        chunk: depth of the tiles.
        reduce_k: parts of the depth that groups of warps share out.
        num_elems_per_byte: of operands in memory; only 1 is here.
        is_m_first: warps are numbered along N first.
        thread_var: the index of a thread; None: threadIdx.x.

    Attributes:
        warp_rows, warp_cols: tiles of a warp along M and N.
        micro_size_x, micro_size_y, micro_size_k: rows, columns and depth of a tile.
        local_size_a, local_size_b, local_size_out: elements of a tile that a lane holds.
        threads: of a block.
    """

    WARP_SIZE = LANES

    def __init__(
        self,
        a_dtype: Any = "float16",
        b_dtype: Any = "float16",
        accum_dtype: Any = "float16",
        a_transposed: bool = False,
        b_transposed: bool = False,
        block_row_warps: int = 2,
        block_col_warps: int = 2,
        warp_row_tiles: int = 8,
        warp_col_tiles: int = 8,
        chunk: int = 16,
        reduce_k: int = 1,
        num_elems_per_byte: int = 1,
        is_m_first: bool | None = False,
        thread_var: Expr | None = None,
    ) -> None:
        self.a_dtype, self.b_dtype, self.accum_dtype = (
            str(dtype) for dtype in (a_dtype, b_dtype, accum_dtype)
        )
        self.a_transposed, self.b_transposed = a_transposed, b_transposed
        self.block_row_warps, self.block_col_warps = block_row_warps, block_col_warps
        self.warp_row_tiles, self.warp_col_tiles = warp_row_tiles, warp_col_tiles
        self.chunk, self.reduce_k = chunk, reduce_k
        self.is_m_first, self.thread_var = bool(is_m_first), thread_var
        bits = DType(self.a_dtype).bits
        if num_elems_per_byte != 1 or bits < 8:
            raise ValueError(f"expected operands of 8 bits and more, found {self.a_dtype}")
        self.micro_size_x = self.M_DIM = 8 if bits == 64 else 16
        self.micro_size_k = self.k_dim = min(256 // bits, chunk)
        is_wide = bits != 64 and warp_col_tiles % 16 == 0
        self.micro_size_y = self.n_dim = 16 if is_wide else COLUMNS
        if warp_row_tiles % self.micro_size_x or warp_col_tiles % COLUMNS:
            raise ValueError(
                f"expected multiples of {self.micro_size_x} x {COLUMNS} elements for a warp, "
                f"found {warp_row_tiles} x {warp_col_tiles}"
            )
        self.warp_rows = warp_row_tiles // self.micro_size_x
        self.warp_cols = warp_col_tiles // self.micro_size_y
        self.local_size_a = self.micro_size_x * self.micro_size_k // LANES
        self.local_size_b = self.micro_size_y * self.micro_size_k // LANES
        self.local_size_out = self.micro_size_x * self.micro_size_y // LANES
        self.threads = LANES * block_row_warps * block_col_warps * reduce_k

    @property
    def mma_num_inst_m(self) -> int:
        """Tiles of a warp along M."""
        return self.warp_rows

    @property
    def mma_num_inst_n(self) -> int:
        """Tiles of a warp along N."""
        return self.warp_cols

    def get_thread_binding(self) -> Expr:
        """Return the index of the thread."""
        return T.get_thread_binding(0) if self.thread_var is None else self.thread_var

    def extract_thread_binding(
        self, thread_id: Expr, is_m_first: bool | None = None
    ) -> tuple[Any, Any, Any]:
        """Return lane, and the warp's place along N and along M."""
        warp, rows, columns = thread_id // LANES, self.block_row_warps, self.block_col_warps
        if self.is_m_first if is_m_first is None else is_m_first:
            return thread_id % LANES, warp % columns, warp // columns % rows
        return thread_id % LANES, warp // rows % columns, warp % rows

    def ldmatrix_a(
        self, A_local_buf: Any, A_shared_buf: Any, ki: Any, rk: Any = 0,
        thread_bindings: Any = None,
    ) -> None:  # fmt: skip
        """Load what a lane holds of its warp's rows of A, at step ``ki`` of the tile's depth."""
        lane, _, warp = self._places(thread_bindings)
        shape, dtype = (self.micro_size_x, COLUMNS, self.micro_size_k), DType(self.a_dtype)
        each = per_register(dtype)
        starts = [place_in_a(lane, e, shape, dtype) for e in range(0, self.local_size_a, each)]
        first = warp * self.warp_row_tiles, self.micro_size_x, self._depth(ki, rk)
        source = _Matrix(A_shared_buf, self.a_transposed)
        _load(A_local_buf, source, self.warp_rows, starts, each, first)

    def ldmatrix_b(
        self, B_local_buf: Any, B_shared_buf: Any, ki: Any, rk: Any = 0,
        thread_bindings: Any = None,
    ) -> None:  # fmt: skip
        """Load what a lane holds of its warp's columns of B, at step ``ki`` of the tile's depth."""
        lane, warp, _ = self._places(thread_bindings)
        dtype, count = DType(self.b_dtype), COLUMNS * self.micro_size_k // LANES
        each = per_register(dtype)
        starts = []
        for half in range(self.micro_size_y // COLUMNS):
            for element in range(0, count, each):
                depth, column = place_in_b(lane, element, dtype)
                starts.append((column + half * COLUMNS, depth))
        first = warp * self.warp_col_tiles, self.micro_size_y, self._depth(ki, rk)
        source = _Matrix(B_shared_buf, not self.b_transposed)
        _load(B_local_buf, source, self.warp_cols, starts, each, first)

    def mma(
        self, A_local_buf: Any, B_local_buf: Any, C_local_buf: Any, k_inner: Any = 0
    ) -> None:  # fmt: skip
        """Add the products of all tiles of a warp to C."""
        _ = k_inner
        _multiply(self, A_local_buf, B_local_buf, C_local_buf)

    def mma_atom(
        self, A_local_buf: Any, B_local_buf: Any, C_local_buf: Any,
        inst_m_idx: Any, inst_n_idx: Any, k_inner: Any = 0,
    ) -> None:  # fmt: skip
        """Add the product of one tile of A and one of B to C."""
        _ = k_inner
        size = f"m{self.micro_size_x}n{COLUMNS}k{self.micro_size_k}"
        halves = self.micro_size_y // COLUMNS
        tile = inst_m_idx * self.warp_cols + inst_n_idx
        for half in range(halves):
            T.ptx_mma(
                self.accum_dtype, size, "row", "col", self.a_dtype, self.b_dtype, self.accum_dtype,
                A_local_buf, inst_m_idx * self.local_size_a,
                B_local_buf, inst_n_idx * self.local_size_b + half * (self.local_size_b // halves),
                C_local_buf, tile * self.local_size_out + half * (self.local_size_out // halves),
            )  # fmt: skip

    def stmatrix(
        self, C_local_buf: Any, C_buf: Any, pid_m: Any = None, pid_n: Any = None,
        thread_bindings: Any = None,
    ) -> None:  # fmt: skip
        """Store what a lane holds of C to a shared tile, or to the tile of a tensor.

        Args:
            C_local_buf: a lane's elements.
            C_buf: (M, N), or (M / rows, N / columns, rows, columns) by tiles.
            pid_m: which tile of a tensor along M.
            pid_n: which tile of a tensor along N.
            thread_bindings: the index of the thread; None: as the emitter has it.
        """
        lane, warp_n, warp_m = self._places(thread_bindings)
        rows, columns = warp_m * self.warp_rows, warp_n * self.warp_cols
        if pid_m is not None and pid_n is not None:
            rows = rows + pid_m * (self.block_row_warps * self.warp_rows)
            columns = columns + pid_n * (self.block_col_warps * self.warp_cols)
        places = [mma_store_index_map(lane, e) for e in range(self.local_size_out)]
        _store(self, C_local_buf, C_buf, rows, columns, places)

    def _places(self, thread: Any) -> tuple[Any, Any, Any]:
        return self.extract_thread_binding(self.get_thread_binding() if thread is None else thread)

    def _depth(self, ki: Any, rk: Any) -> Any:
        return rk * self.chunk + ki * self.micro_size_k


class _Matrix:
    """A tile as rows (of A, columns of B) by depth."""

    def __init__(self, tile: Any, is_turned: bool) -> None:
        self._region, self._is_turned = region(tile, "an operand"), is_turned
        self.is_contiguous = not is_turned
        self.buffer = self._region.buffer

    def index(self, row: Any, depth: Any) -> tuple[Any, ...]:
        """Return the indices of an element."""
        *outer, first, second = self._region.offsets
        row, depth = (depth, row) if self._is_turned else (row, depth)
        return *outer, first + row, second + depth


@T.macro
def _load(local, source, tiles, starts, each, first):  # type: ignore[no-untyped-def]
    """Load registers: neighbours along the depth together where they lie so."""
    row, step, depth = first
    size = len(starts) * each
    for tile in T.unroll(tiles):
        for number, (down, along) in enumerate(starts):
            for e in T.vectorized(each) if source.is_contiguous else T.unroll(each):
                local[tile * size + number * each + e] = source.buffer[
                    source.index(row + tile * step + down, depth + along + e)
                ]


@T.macro
def _multiply(emitter, a, b, c):  # type: ignore[no-untyped-def]
    for i in T.unroll(emitter.warp_rows):
        for j in T.unroll(emitter.warp_cols):
            emitter.mma_atom(a, b, c, i, j)


@T.macro
def _store(emitter, local, c, rows, columns, places):  # type: ignore[no-untyped-def]
    """Store the elements of all tiles of a warp."""
    size = emitter.local_size_out
    for i in T.unroll(emitter.warp_rows):
        for j in T.unroll(emitter.warp_cols):
            for number, (row, column) in enumerate(places):
                value = local[(i * emitter.warp_cols + j) * size + number]
                if len(c.shape) == 2:
                    c[
                        (rows + i) * emitter.micro_size_x + row,
                        (columns + j) * emitter.micro_size_y + column,
                    ] = value
                else:
                    c[rows + i, columns + j, row, column] = value
