"""Products with a sparse matrix: T.gemm_sp and the layout of its metadata.

Of every four neighbours in a row of A (two, for elements of 32 bits) at most two (one) are not 0.
A is stored without the others; for each group 4 bits of metadata, the first group lowest, hold the
places of what is left: the lower two bits that of the first element, the upper two that of the
second. Places count 16 bits in groups of 32-bit elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilecore.errors import ShapeMismatch, TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.arithmetic.polynomial import is_equal
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Load, Var, binary, cast, const
from tilecore.ir.indexing import format_shape, whole
from tilecore.ir.nodes import Alloc, Buffer, Fill, Parallel, Region, Seq, Store
from tilecore.language.copy import region
from tilecore.language.gemm import GemmWarpPolicy, gemm

__all__ = [
    "GROUP_CONFIG", "gemm_sp", "get_e_factor", "get_e_replicate_factor", "tcgen05_gemm_sp",
    "wgmma_gemm_sp",
]  # fmt: skip

BITS_PER_GROUP = 4
# Elements kept, and elements of a group.
GROUP_CONFIG: Mapping[DType, tuple[int, int]] = {
    DType("float32"): (1, 2), DType("float16"): (2, 4), DType("bfloat16"): (2, 4),
    DType("int8"): (2, 4), DType("uint8"): (2, 4), DType("float8_e4m3fn"): (2, 4),
    DType("float8_e5m2"): (2, 4),
}  # fmt: skip


def get_e_factor(a_dtype: Any, meta_dtype: Any) -> int:
    """Return how many elements of A one element of metadata tells of.

    Raises:
        TypeMismatch: A's element type has no sparse products (TC202).
    """
    return DType(meta_dtype).bits // BITS_PER_GROUP * _group(DType(a_dtype))[1]


def get_e_replicate_factor(a_dtype: Any) -> int:
    """Return how many neighbouring threads of a GPU hold the same metadata."""
    return 1 if DType(a_dtype).bits <= 8 else 2


def _group(kind: DType) -> tuple[int, int]:
    if kind not in GROUP_CONFIG:
        known = ", ".join(GROUP_CONFIG)
        raise TypeMismatch(expected=f"a sparse matrix of {known}", found=kind)
    return GROUP_CONFIG[kind]


def gemm_sp(
    A_sparse: Any,
    E: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_E: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square,
    clear_accum: Any = False,
    **options: Any,
) -> None:
    """Compute ``C (+)= op(A) @ op(B)``, where A is stored without its zeros.

    Args:
        A_sparse: tile [M, K / 2], or [K / 2, M] with ``transpose_A``.
        E: metadata, tile [M, K / factor] (see get_e_factor), or transposed with ``transpose_E``.
        B: tile [K, N], or [N, K] with ``transpose_B``.
        C: tile [M, N].
        transpose_A: whether A_sparse is stored transposed.
        transpose_E: whether E is stored transposed.
        transpose_B: whether B is stored transposed.
        policy: how warps divide C; a hint.
        clear_accum: drop the old value of C; a bool or an expression such as ``k == 0``.
        options: hints of T.gemm.

    Raises:
        ShapeMismatch: the extents do not fit each other (TC201).
        TypeMismatch: an argument is no tile, or A has an element type without sparse products
            (TC202).
    """
    sparse, meta = region(A_sparse, "A_sparse of T.gemm_sp"), region(E, "E of T.gemm_sp")
    dense = _dense(sparse, meta, bool(transpose_A), bool(transpose_E))
    gemm(dense, B, C, False, transpose_B, policy, clear_accum, **options)


def _dense(sparse: Region, meta: Region, is_turned: bool, is_meta_turned: bool) -> Buffer:
    """Return a new tile [M, K] with the zeros of A put back."""
    builder, kind = current(), sparse.buffer.dtype
    kept, size = _group(kind)
    (m, stored), (rows, words) = _matrix(sparse, is_turned), _matrix(meta, is_meta_turned)
    columns = binary("mul", stored, size // kept)
    chunks = meta.buffer.dtype.bits // BITS_PER_GROUP
    factor = get_e_factor(kind, meta.buffer.dtype)
    if not (is_equal(rows, m) and is_equal(binary("mul", words, factor), columns)):
        raise ShapeMismatch(
            what=f"metadata `{meta.buffer.name}` of T.gemm_sp",
            expected=format_shape((m, binary("floordiv", columns, factor))),
            found=format_shape((rows, words)),
        )
    tile = Buffer("dense", (m, columns), kind, "shared", span=builder.span)
    builder.emit(Alloc(tile, builder.span))
    builder.emit(Fill(whole(tile), const(0, kind), builder.span))
    row, group = Var("i"), Var("g")
    word = _element(meta, row, binary("floordiv", group, chunks), is_meta_turned)
    shift = binary("mul", binary("mod", group, chunks), BITS_PER_GROUP)
    bits = cast(binary("shr", word, cast(shift, word.dtype)), "int32")
    stores = []
    for number in range(kept):
        place = binary("bitand", binary("shr", bits, 2 * number), 3)
        place = binary("floordiv", place, 4 // size)
        at = binary("add", binary("mul", group, size), place)
        source = binary("add", binary("mul", group, kept), number)
        value = _element(sparse, row, source, is_turned)
        stores.append(Store(tile, (row, at), value, builder.span))
    groups = binary("floordiv", columns, size)
    body = Seq(tuple(stores), builder.span)
    builder.emit(Parallel((row, group), (m, groups), body, span=builder.span))
    return tile


def _matrix(box: Region, is_turned: bool) -> tuple[Expr, Expr]:
    """Return the extents of the last two axes, rows first."""
    if len(box.extents) < 2:
        found = format_shape(box.extents)
        raise ShapeMismatch(what=f"`{box.buffer.name}` of T.gemm_sp", expected="rows", found=found)
    first, second = box.extents[-2:]
    return (second, first) if is_turned else (first, second)


def _element(box: Region, row: Expr, column: Expr, is_turned: bool) -> Load:
    """Return an element of the last two axes."""
    pair = (column, row) if is_turned else (row, column)
    offsets = (binary("add", o, i) for o, i in zip(box.offsets[-2:], pair, strict=True))
    return Load(box.buffer, (*box.offsets[:-2], *offsets), box.buffer.dtype)


wgmma_gemm_sp = tcgen05_gemm_sp = gemm_sp
