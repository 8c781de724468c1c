"""Block-scaled products: every few neighbours along K share a factor, four factors to a uint32.

The matrix units of some GPUs multiply elements and factors themselves: ``T.mma_gemm_blockscaled``
has its factors in shared memory, ``T.tcgen05_gemm_blockscaled`` in tensor memory, where
``T.tcgen05_cp_warpx4`` places them. Everywhere else elements are multiplied by their factors, which
bfloat16 holds exactly (4 significant bits by 4 at most), and then by each other
(``ir/plain/scaled_gemm.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilecore.errors import ScopeError, ShapeMismatch, TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.arithmetic.polynomial import is_equal
from tilecore.ir.expr import (
    Expr,
    ExprLike,
    Load,
    Var,
    as_bool,
    as_expr,
    binary,
    const,
    int_value,
)
from tilecore.ir.gemm_shape import check_gemm_shape
from tilecore.ir.indexing import format_shape, varying_axes
from tilecore.ir.nodes import Alloc, Buffer, ChunkCopy, Gemm, Parallel, Region, Store
from tilecore.ir.plain.scaled_gemm import CHUNK, COLUMNS, FACTORS, LANES, WORD, check_chunks
from tilecore.language.barrier import arrive
from tilecore.language.copy import copy, region
from tilecore.language.gemm import GemmWarpPolicy
from tilecore.language.kernel import launch_of

__all__ = [
    "mma_gemm_blockscaled", "tcgen05_cp_warpx4", "tcgen05_gemm_blockscaled",
    "tcgen05_sf_warp_transpose",
]  # fmt: skip
GRANULE = 16  # elements along K that share a factor: 16 or 32 of an instruction
ROW_MAJOR, CHUNKS = "rowmajor", "blockscaled_chunk_kmajor"


def _words(row: Region, what: str) -> tuple[int, Expr]:
    """Return (the axis of a row of words, how many chunks it holds)."""
    axes = varying_axes(row)
    if row.buffer.dtype != WORD:
        raise TypeMismatch(expected=f"uint32 words in {what}", found=row.buffer.dtype)
    axis = axes[0] if axes else len(row.extents) - 1
    count = row.extents[axis]
    chunks = binary("floordiv", count, CHUNK)
    if len(axes) > 1 or not is_equal(binary("mul", chunks, CHUNK), count):
        found = format_shape(row.extents)
        raise ShapeMismatch(what=what, expected=f"one axis, a multiple of {CHUNK}", found=found)
    return axis, chunks


def _at(row: Region, axis: int, index: Expr) -> tuple[Expr, ...]:
    return tuple(binary("add", o, index) if a == axis else o for a, o in enumerate(row.offsets))


def tcgen05_sf_warp_transpose(smem_src: Any) -> None:
    """Transpose each chunk of 128 words in place: word 32 j + l moves to 4 l + j.

    Args:
        smem_src: a row of uint32 words in shared memory.

    Raises:
        ShapeMismatch: no row, or no multiple of 128 words (TC201).
        TypeMismatch: no tile of uint32 (TC202).
    """
    row, builder = region(smem_src, "T.tcgen05_sf_warp_transpose"), current()
    axis, chunks = _words(row, "T.tcgen05_sf_warp_transpose")
    before = Buffer("words", (row.extents[axis],), WORD, "shared", span=builder.span)
    builder.emit(Alloc(before, builder.span))
    copy(row, before)
    names = chunk, lane, column = Var("chunk"), Var("lane"), Var("column")
    first = binary("mul", chunk, CHUNK)
    source = binary("add", binary("add", first, binary("mul", column, LANES)), lane)
    target = binary("add", binary("add", first, binary("mul", lane, COLUMNS)), column)
    value = Load(before, (source,), WORD)
    store = Store(row.buffer, _at(row, axis, target), value, builder.span)
    extents = (chunks, const(LANES), const(COLUMNS))
    builder.emit(Parallel(names, extents, store, span=builder.span))


def tcgen05_cp_warpx4(
    smem_src: Any, tmem_dst: Any, tmem_col_offset: ExprLike = 0, *, use_2cta: bool = False
) -> None:
    """Copy each chunk of 128 words to four columns of 32 lanes, four times below each other.

    A product that reads the factors may follow at once; what the words lay in is free when that is
    complete.

    Args:
        smem_src: a row of uint32 words in shared memory.
        tmem_dst: tile of uint32 in tensor memory, 128 rows.
        tmem_col_offset: column at which the first chunk goes.
        use_2cta: of the blocks of ranks 2 i and 2 i + 1 of a cluster each copies its own words, for
            products of both together; the first one begins it.

    Raises:
        ShapeMismatch: no row, or no multiple of 128 words, or no 128 rows (TC201).
        TypeMismatch: no tile of uint32 (TC202).
    """
    row, target = region(smem_src, "T.tcgen05_cp_warpx4"), region(tmem_dst, "its destination")
    _, chunks = _words(row, "T.tcgen05_cp_warpx4")
    column = binary("add", target.offsets[-1], tmem_col_offset)
    offsets = (*target.offsets[:-1], column)
    extents = (*(const(1) for _ in target.extents[:-2]), const(CHUNK))
    builder = current()
    there = Region(target.buffer, offsets, (*extents, binary("mul", chunks, COLUMNS)))
    copied = ChunkCopy(row, there, builder.span, _in_pair("tcgen05_cp_warpx4", use_2cta))
    check_chunks(copied)
    builder.emit(copied)


def tcgen05_gemm_blockscaled(
    A: Any,
    B: Any,
    C: Any,
    SFA_tmem: Any,
    SFB_tmem: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    clear_accum: Any = False,
    wg_wait: int = 0,
    mbar: Any = None,
    *,
    k_start: ExprLike,
    sf_a_granularity_k: int,
    sf_b_granularity_k: int,
    use_2cta: bool = False,
    sf_dtype: str = "float8_e8m0fnu",
) -> None:
    """Compute ``C (+)= op(A sfa) @ op(B sfb)``, then arrive.

    A row's word holds four factors; where the tile needs several words along K, those of the second
    lie four columns for every 128 rows behind those of the first, and so on.

    Args:
        A: tile [M, K], or [K, M] with ``transpose_A``.
        B: tile [K, N], or [N, K] with ``transpose_B``.
        C: tile [M, N].
        SFA_tmem: factors of A as T.tcgen05_cp_warpx4 places them.
        SFB_tmem: factors of B.
        transpose_A: whether A is stored transposed.
        transpose_B: whether B is stored transposed.
        clear_accum: drop the old value of C.
        wg_wait: accepted for compatibility.
        mbar: a barrier at which to arrive, once, when C is complete.
        k_start: where the tile begins along K; decides which byte of a word counts.
        sf_a_granularity_k: elements along K that share a factor of A.
        sf_b_granularity_k: the same of B.
        use_2cta: the blocks of ranks 2 i and 2 i + 1 of a cluster multiply together, as with
            ``T.tcgen05_gemm``: ``A``, ``C`` and the factors of A have the rows of the block, ``B``
            half of the columns of ``C``; the factors of B are those of all of them.
        sf_dtype: type of the factors: float8_e8m0fnu (2 ** (byte - 127)), or float8_e4m3fn (of
            NVFP4), which TileLang's has not.

    Raises:
        ShapeMismatch: M, N or K differ between the tiles (TC201).
        TypeMismatch: an argument is not a tile, no granularity, or an unknown type of factors
            (TC202).
    """
    _ = wg_wait
    what = "tcgen05_gemm_blockscaled"
    in_pair = _in_pair(what, use_2cta)
    _emit_product(
        what, (A, B, C), (bool(transpose_A), bool(transpose_B)), clear_accum,
        _factors(what, (SFA_tmem, SFB_tmem), (sf_a_granularity_k, sf_b_granularity_k), sf_dtype),
        is_async=mbar is not None, in_lanes=True, start=as_expr(k_start), in_pair=in_pair,
    )  # fmt: skip
    if mbar is not None:
        arrive(mbar, "gemm", once=True, after_products=True, in_pair=in_pair)


def mma_gemm_blockscaled(
    A: Any,
    B: Any,
    C: Any,
    SFA: Any,
    SFB: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square,
    clear_accum: Any = False,
    *,
    k_start: ExprLike,
    sf_a_granularity_k: int,
    sf_b_granularity_k: int,
    sf_layout: str | None = None,
    sf_dtype: str = "float8_e4m3fn",
) -> None:
    """Compute ``C (+)= op(A sfa) @ op(B sfb)`` with factors of 8 bits, none negative.

    Args:
        A: tile [M, K], or [K, M] with ``transpose_A``.
        B: tile [K, N], or [N, K] with ``transpose_B``.
        C: tile [M, N].
        SFA: tile of uint32 with the factors of A's tile, four to a word.
        SFB: the same of B.
        transpose_A: whether A is stored transposed.
        transpose_B: whether B is stored transposed.
        policy: how warps divide C; a hint.
        clear_accum: drop the old value of C.
        k_start: accepted for compatibility: the factors are those of the tile.
        sf_a_granularity_k: elements along K that share a factor of A.
        sf_b_granularity_k: the same of B.
        sf_layout: "rowmajor" (also None), [rows, words]; or "blockscaled_chunk_kmajor": for each
            128 rows and each word the words of rows 0, 32, 64, 96, then 1, 33, ...
        sf_dtype: type of the factors: float8_e4m3fn (of NVFP4), or float8_e8m0fnu (of MXFP4 and
            MXFP8), which TileLang's has not.

    Raises:
        ShapeMismatch: M, N or K differ between the tiles (TC201).
        TypeMismatch: an argument is not a tile, or an unknown layout or type of factors (TC202).
    """
    _ = k_start
    layout = sf_layout or ROW_MAJOR
    if layout not in (ROW_MAJOR, CHUNKS):
        raise TypeMismatch(expected=f"sf_layout {ROW_MAJOR} or {CHUNKS}", found=repr(layout))
    what = "mma_gemm_blockscaled"
    name = policy.value if isinstance(policy, GemmWarpPolicy) else str(policy)
    _emit_product(
        what, (A, B, C), (bool(transpose_A), bool(transpose_B)), clear_accum,
        _factors(what, (SFA, SFB), (sf_a_granularity_k, sf_b_granularity_k), sf_dtype),
        policy=name, in_chunks=layout == CHUNKS,
    )  # fmt: skip


def _emit_product(
    what: str, tiles: Sequence[Any], turned: tuple[bool, bool], clear_accum: Any,
    factors: Mapping[str, Any], **options: Any,
) -> None:  # fmt: skip
    """Emit a product with ``factors`` and further fields of ``Gemm``."""
    builder = current()
    if builder.find("parallel") is not None:
        raise ScopeError(
            message=f"T.{what} stands inside T.Parallel", hint="use T.serial around it"
        )
    a, b = _matrix(tiles[0], "A"), _matrix(tiles[1], "B")
    c = region(tiles[2], f"C of T.{what}")
    check_gemm_shape(a, b, c, *turned, in_pair=options.get("in_pair", False))
    product = Gemm(a, b, c, turned[0], turned[1], as_bool(clear_accum), span=builder.span)
    builder.emit(replace(product, **factors, **options))


def _factors(
    what: str, words: tuple[Any, Any], sharing: tuple[Any, Any], kind: Any
) -> Mapping[str, Any]:
    """Return what a Gemm holds of factors.

    Raises:
        TypeMismatch: no words, no granularity, or an unknown type of factors (TC202).
    """
    if str(kind) not in FACTORS:
        raise TypeMismatch(expected=f"sf_dtype {' or '.join(FACTORS)}", found=kind)
    found = tuple(region(w, name) for w, name in zip(words, ("SFA", "SFB"), strict=True))
    for box in found:
        if box.buffer.dtype != WORD or len(box.extents) < 2:
            raise TypeMismatch(
                expected=f"rows of uint32 words in `{box.buffer.name}`",
                found=f"{box.buffer.dtype} {format_shape(box.extents)}",
            )
    shared = tuple(_check_granularity(count, what) for count in sharing)
    return {"factors": found, "sharing": shared, "factor_type": str(kind)}


def _in_pair(what: str, use_2cta: bool) -> bool:
    """Return whether two blocks of a cluster work together: one of a single block is alone."""
    return bool(use_2cta) and launch_of(what).cluster_size > 1


def _matrix(operand: Any, name: str) -> Region:
    what = f"{name} of a block-scaled product"
    box = region(operand, what)
    if len(box.extents) < 2:
        raise ShapeMismatch(what=what, expected="rows", found=format_shape(box.extents))
    return box


def _check_granularity(given: Any, what: str) -> int:
    """Return how many elements along K share a factor: instructions read K in steps of 16.

    Raises:
        TypeMismatch: no multiple of 16 (TC202).
    """
    count = int_value(given)
    if count is None or count < GRANULE or count % GRANULE:
        raise TypeMismatch(
            expected=f"a multiple of {GRANULE} elements that share a factor in T.{what}",
            found=given,
        )
    return count
