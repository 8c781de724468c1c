"""Shapes of matrix products: which two axes a tile has, and whether three tiles fit together."""

from __future__ import annotations

from tilecore.errors import ShapeMismatch
from tilecore.ir.arithmetic.polynomial import is_equal, is_one
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, binary, const
from tilecore.ir.indexing import format_shape
from tilecore.ir.nodes import Gemm, Region


def matrix_shape(tile: Region, what: str) -> tuple[Expr, Expr]:
    """Return the two extents of a tile used as a matrix: leading axes of size 1 are dropped.

    Raises:
        ShapeMismatch: it does not have two axes (TC201).
    """
    extents = list(tile.extents)
    while len(extents) > 2 and is_one(extents[0]):
        del extents[0]
    if len(extents) != 2:
        raise ShapeMismatch(
            what=f"{what} of T.gemm (`{tile.buffer.name}`)",
            expected="two axes, after leading axes of size 1",
            found=format_shape(tile.extents),
        )
    return extents[0], extents[1]


def accumulator_dtype(gemm: Gemm) -> DType:
    """Return the type in which one product is summed up: half types are rounded at its end."""
    dtype = gemm.c.buffer.dtype
    return DType("float32") if dtype.is_float and dtype.bits < 32 else dtype


def check_gemm_shape(
    a: Region, b: Region, c: Region, transpose_a: bool, transpose_b: bool, *, in_pair: bool = False
) -> None:
    """Check that the tiles of a matrix product fit together.

    ``in_pair``: B is that of one of two blocks, which has half the columns of C.

    Raises:
        ShapeMismatch: M, N or K differ between the tiles, or a tile is no matrix (TC201).
    """
    a_shape, b_shape = matrix_shape(a, "A"), matrix_shape(b, "B")
    c_shape = matrix_shape(c, "C")
    m, k = a_shape[::-1] if transpose_a else a_shape
    k_b, n = b_shape[::-1] if transpose_b else b_shape
    n = binary("mul", n, const(2)) if in_pair else n
    checks = (
        ("K", "A", k, "B", k_b),
        ("M", "A", m, "C", c_shape[0]),
        ("N", "both blocks' B" if in_pair else "B", n, "C", c_shape[1]),
    )
    for axis, first, x, second, y in checks:
        if not is_equal(x, y):
            raise ShapeMismatch(
                what=f"T.gemm: {axis} of {first} and of {second}",
                expected=f"one extent; {first} has {axis} = {x}",
                found=f"{axis} = {y}",
                hint="check the tile shapes and transpose_A / transpose_B"
                + ("; with use_2cta each block has half of B, along N" if in_pair else ""),
            )
