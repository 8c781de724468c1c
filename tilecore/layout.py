"""``tilelang.layout``: layouts that programs build by hand. Hints: they never change a result."""

from __future__ import annotations

from enum import Enum
from typing import Any

from tilecore.errors import ShapeMismatch
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, const, int_value
from tilecore.ir.fragment import Fragment
from tilecore.ir.layout import Layout, panels, row_major
from tilecore.ir.nodes import Buffer

__all__ = [
    "Fragment", "Layout", "SwizzleMode", "get_swizzle_layout", "make_full_bank_swizzled_layout",
    "make_fully_replicated_layout_fragment", "make_half_bank_swizzled_layout",
    "make_linear_layout", "make_mma_swizzle_layout",
    "make_quarter_bank_swizzled_layout", "make_swizzled_layout",
    "make_tcgen05mma_swizzled_layout", "make_wgmma_swizzled_layout", "panels",
    "row_major",
]  # fmt: skip

BANK_BYTES = 16  # shared memory is swizzled in chunks of one 128-bit access
ROWS = 8


class SwizzleMode(Enum):
    """How the tensor memory accelerator and matrix units permute rows; the value is in bytes."""

    NONE = 1
    SWIZZLE_32B = 32
    SWIZZLE_64B = 64
    SWIZZLE_128B = 128

    def is_none(self) -> bool:
        """Return whether rows stay as they are."""
        return self is SwizzleMode.NONE

    def is_swizzle_32b(self) -> bool:
        """Return whether 32 bytes are permuted among each other."""
        return self is SwizzleMode.SWIZZLE_32B

    def is_swizzle_64b(self) -> bool:
        """Return whether 64 bytes are permuted among each other."""
        return self is SwizzleMode.SWIZZLE_64B

    def is_swizzle_128b(self) -> bool:
        """Return whether 128 bytes are permuted among each other."""
        return self is SwizzleMode.SWIZZLE_128B

    def swizzle_byte_size(self) -> int:
        """Return the bytes that are permuted among each other."""
        return self.value

    def swizzle_atom_size(self) -> int:
        """Return the same in accesses of 16 bytes, at least 1."""
        return max(1, self.value // BANK_BYTES)

    def smem_alignment(self) -> int:
        """Return the alignment in shared memory, in bytes: eight permuted rows."""
        return 128 if self.is_none() else ROWS * self.value


def make_fully_replicated_layout_fragment(buffer: Any, threads: int) -> Fragment:
    """Return the layout of a fragment that each of ``threads`` threads holds as a whole."""
    extents = _extents(buffer)

    def forward(*indices: Any) -> tuple[Any, Any]:
        *point, copy = indices if threads > 1 else (*indices, const(0))
        return copy, row_major(extents).offset(point)

    return Fragment(extents, forward, replicate=threads)


def make_linear_layout(*shape: Any) -> Layout:
    """Return the row-major layout of a shape, or of a buffer."""
    return row_major(_extents(shape[0] if len(shape) == 1 else shape))


def make_swizzled_layout(buffer: Any, k_major: bool = True, allow_pad: bool = True) -> Layout:
    """Return the XOR swizzle over 128-byte rows that avoids bank conflicts of ldmatrix.

    Args:
        buffer: a tile of at least two axes; the last one is contiguous.
        k_major: accepted for compatibility.
        allow_pad: accepted for compatibility: no padding is needed.
    """
    _ = k_major, allow_pad
    return _swizzled(buffer, 128)


def make_mma_swizzle_layout(buffer: Any, is_smooth: bool = False) -> Layout:
    """Return the XOR swizzle for ldmatrix; the row-major layout where ``is_smooth``."""
    return row_major(_extents(buffer)) if is_smooth else _swizzled(buffer, 128)


def get_swizzle_layout(
    row_idx: Any, col_idx: Any, row_size: Any, dtype: Any, swizzle_bytes: int | None = None
) -> tuple[Any, Any]:
    """Return where an element of a shared tile lies: its row, and a column without conflicts.

    Args:
        row_idx: its row.
        col_idx: its column.
        row_size: elements of a row.
        dtype: element type.
        swizzle_bytes: bytes that are permuted among each other, at most 128.

    Raises:
        ShapeMismatch: rows that are no multiple of 32 bytes (TC201).
    """
    bits = DType(dtype).bits
    row_bytes = (int_value(row_size) or 0) * bits // 8
    if row_bytes < 32 or row_bytes % 32:
        what = "row of a swizzled layout"
        raise ShapeMismatch(what=what, expected="a multiple of 32 bytes", found=row_bytes)
    chunks = (swizzle_bytes or next(s for s in (128, 64, 32) if row_bytes % s == 0)) // BANK_BYTES
    chunk = 8 * BANK_BYTES // bits
    moved = (col_idx // chunk) ^ (row_idx % ROWS * chunks // ROWS)
    return row_idx, moved * chunk + col_idx % chunk


def make_full_bank_swizzled_layout(*tile: Any, **_: Any) -> Layout:
    """Return the XOR swizzle over 128 bytes of a tile, or of (rows, columns, element bits)."""
    return _swizzled(_tile(tile), 128, _itemsize(tile))


def make_half_bank_swizzled_layout(*tile: Any, **_: Any) -> Layout:
    """Return the XOR swizzle over 64 bytes; see make_full_bank_swizzled_layout."""
    return _swizzled(_tile(tile), 64, _itemsize(tile))


def make_quarter_bank_swizzled_layout(*tile: Any, **_: Any) -> Layout:
    """Return the XOR swizzle over 32 bytes; see make_full_bank_swizzled_layout."""
    return _swizzled(_tile(tile), 32, _itemsize(tile))


def make_wgmma_swizzled_layout(
    buffer: Any, continuity: int | None = None, k_major: bool = True
) -> Layout:
    """Return the XOR swizzle for the matrix units of NVIDIA GPUs from sm_90 on.

    Args:
        buffer: a tile of at least two axes; the last one is contiguous.
        continuity: elements of a row that a swizzle may span; without it those of the tile.
        k_major: accepted for compatibility.
    """
    _ = k_major
    span = (continuity or _extents(buffer)[-1]) * _itemsize((buffer,))
    return _swizzled(buffer, next((s for s in (128, 64) if span % s == 0), 32))


make_tcgen05mma_swizzled_layout = make_wgmma_swizzled_layout


def _tile(given: tuple[Any, ...]) -> Any:
    return given[:2] if len(given) == 3 else given[0]


def _itemsize(given: tuple[Any, ...]) -> int:
    bits = int_value(given[2]) if len(given) == 3 else None
    if bits is not None:
        return max(1, bits // 8)
    return given[0].dtype.itemsize if isinstance(given[0], Buffer) else 2


def _swizzled(buffer: Any, row_bytes: int, itemsize: int | None = None) -> Layout:
    """Chunk c of row r lies at chunk c ^ (r mod the chunks of a swizzle row)."""
    extents = _extents(buffer)
    chunk = max(1, BANK_BYTES // (itemsize or _itemsize((buffer,))))
    columns = extents[-1]
    chunks = min(row_bytes // BANK_BYTES, columns // chunk)
    if chunks < 2 or chunks & (chunks - 1) or columns % (chunk * chunks):
        return row_major(extents)

    def forward(*indices: Expr) -> tuple[Expr, ...]:
        *outer, column = indices
        row = outer[-1]
        swizzled = (column // chunk) ^ (row % ROWS * chunks // ROWS)
        return (*outer, swizzled * chunk + column % chunk)

    return Layout(extents, forward, f"{row_bytes} B swizzle")


def _extents(shape: Any) -> tuple[int, ...]:
    given = shape.shape if isinstance(shape, Buffer) else shape
    values = [int_value(e) for e in given]
    return tuple(v for v in values if v is not None)
