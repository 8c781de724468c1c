"""Block-scaled products: every few neighbours along K share a factor, four factors to a uint32.

``T.mma_gemm_blockscaled`` is a product with factors, which the matrix units of some GPUs multiply
themselves (``ir/scaled_gemm.py`` says what it means everywhere else). The operands of
``T.tcgen05_gemm_blockscaled`` are multiplied by their factors, which bfloat16 holds exactly (4
significant bits by 4 at most), and then by each other. What prepares factors for the tensor memory
of a GPU moves the same words here.
"""

from __future__ import annotations

from typing import Any

from tilecore.errors import ScopeError, ShapeMismatch, TypeMismatch
from tilecore.frontend.builder import current
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
from tilecore.ir.nodes import Alloc, Buffer, Gemm, Parallel, Region, Store
from tilecore.ir.polynomial import is_equal
from tilecore.ir.scaled_gemm import (
    CHUNK,
    COLUMNS,
    FACTORS,
    LANES,
    WORD,
    Place,
    Scaled,
    factor_in,
    kind_of,
)
from tilecore.language.barrier import alone
from tilecore.language.copy import copy, region
from tilecore.language.gemm import GemmWarpPolicy, gemm

__all__ = [
    "mma_gemm_blockscaled", "tcgen05_cp_warpx4", "tcgen05_gemm_blockscaled",
    "tcgen05_sf_warp_transpose",
]  # fmt: skip
GRANULE = 16  # elements along K that share a factor: 16 or 32 of an instruction
ROW_MAJOR, CHUNKS = "rowmajor", "blockscaled_chunk_kmajor"


def _emit(names: tuple[Var, ...], extents: tuple[Expr, ...], store: Store) -> None:
    builder = current()
    builder.emit(Parallel(names, extents, store, span=builder.span))


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
    _emit(names, (chunks, const(LANES), const(COLUMNS)), store)


def tcgen05_cp_warpx4(
    smem_src: Any, tmem_dst: Any, tmem_col_offset: ExprLike = 0, *, use_2cta: bool = False
) -> None:
    """Copy each chunk of 128 words to four columns of 32 lanes, four times below each other.

    Args:
        smem_src: a row of uint32 words in shared memory.
        tmem_dst: tile of uint32 in tensor memory, 128 rows.
        tmem_col_offset: column at which the first chunk goes.
        use_2cta: for two blocks of a cluster, which is refused.

    Raises:
        ShapeMismatch: no row, or no multiple of 128 words (TC201).
        TypeMismatch: no tile of uint32 (TC202).
        UnknownPrimitive: a copy to two blocks (TC102).
    """
    if use_2cta:
        alone("tcgen05_cp_warpx4(use_2cta=True)")
    row, target = region(smem_src, "T.tcgen05_cp_warpx4"), region(tmem_dst, "its destination")
    axis, chunks = _words(row, "T.tcgen05_cp_warpx4")
    names = chunk, part, lane, column = Var("chunk"), Var("part"), Var("lane"), Var("column")
    source = binary("add", binary("mul", chunk, CHUNK), binary("mul", lane, COLUMNS))
    value = Load(row.buffer, _at(row, axis, binary("add", source, column)), WORD)
    below = binary("add", binary("mul", part, LANES), lane)
    beside = binary("add", binary("add", tmem_col_offset, binary("mul", chunk, COLUMNS)), column)
    rows, columns = (binary("add", o, i) for o, i in zip(target.offsets, (below, beside),
                                                         strict=True))  # fmt: skip
    store = Store(target.buffer, (rows, columns), value, current().span)
    _emit(names, (chunks, const(COLUMNS), const(LANES), const(COLUMNS)), store)


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
) -> None:
    """Compute ``C (+)= op(A sfa) @ op(B sfb)`` with factors 2 ** (byte - 127), then arrive.

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
        use_2cta: for two blocks of a cluster, which is refused.

    Raises:
        ShapeMismatch: M, N or K differ between the tiles (TC201).
        TypeMismatch: an argument is not a tile, or no granularity (TC202).
        UnknownPrimitive: a product of two blocks of a cluster (TC102).
    """
    _ = wg_wait
    if use_2cta:
        alone("tcgen05_gemm_blockscaled(use_2cta=True)")

    def factor(factors: Region, granularity: int) -> Place:
        _check_granularity(granularity, "tcgen05_gemm_blockscaled")

        def place(row: Expr, k: Expr) -> Expr:
            chunk, inside = binary("floordiv", row, CHUNK), binary("mod", row, CHUNK)
            column = binary("add", binary("mul", chunk, COLUMNS), binary("floordiv", inside, LANES))
            at = (binary("mod", inside, LANES), column)
            indices = (binary("add", o, i) for o, i in zip(factors.offsets, at, strict=True))
            word = Load(factors.buffer, tuple(indices), WORD)
            number = binary("floordiv", binary("add", as_expr(k_start), k), granularity)
            return factor_in(word, number, "float8_e8m0fnu")

        return place

    sfa, sfb = region(SFA_tmem, "SFA_tmem"), region(SFB_tmem, "SFB_tmem")
    kind = kind_of(region(C, "C of T.tcgen05_gemm_blockscaled"))
    places = factor(sfa, sf_a_granularity_k), factor(sfb, sf_b_granularity_k)
    left = _scaled(A, "A", bool(transpose_A), places[0])
    right = _scaled(B, "B", not transpose_B, places[1])
    a, b = left.tile(kind, left.depth), right.tile(kind, right.depth)
    builder = current()
    for tile in (a, b):
        builder.emit(Alloc(tile, builder.span))
    builder.emit(left.fill(a, const(0)))
    builder.emit(right.fill(b, const(0)))
    gemm(a, b, C, False, True, clear_accum=clear_accum, mbar=mbar)


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
    if str(sf_dtype) not in FACTORS:
        raise TypeMismatch(expected=f"sf_dtype {' or '.join(FACTORS)}", found=sf_dtype)
    factors = [region(words, name) for words, name in ((SFA, "SFA"), (SFB, "SFB"))]
    for words in factors:
        if words.buffer.dtype != WORD or len(words.extents) < 2:
            raise TypeMismatch(
                expected=f"rows of uint32 words in `{words.buffer.name}`",
                found=f"{words.buffer.dtype} {format_shape(words.extents)}",
            )
    given = (sf_a_granularity_k, sf_b_granularity_k)
    sharing = tuple(_check_granularity(count, "mma_gemm_blockscaled") for count in given)
    builder = current()
    if builder.find("parallel") is not None:
        raise ScopeError(
            message="T.mma_gemm_blockscaled stands inside T.Parallel", hint="use T.serial around it"
        )
    a, b = _matrix(A, "A"), _matrix(B, "B")
    c = region(C, "C of T.mma_gemm_blockscaled")
    check_gemm_shape(a, b, c, bool(transpose_A), bool(transpose_B))
    name = policy.value if isinstance(policy, GemmWarpPolicy) else str(policy)
    product = Gemm(
        a, b, c, bool(transpose_A), bool(transpose_B), as_bool(clear_accum), name, builder.span,
        factors=tuple(factors), sharing=sharing, factor_type=str(sf_dtype),
        in_chunks=layout == CHUNKS,
    )  # fmt: skip
    builder.emit(product)


def _matrix(operand: Any, name: str) -> Region:
    what = f"{name} of a block-scaled product"
    box = region(operand, what)
    if len(box.extents) < 2:
        raise ShapeMismatch(what=what, expected="rows", found=format_shape(box.extents))
    return box


def _scaled(operand: Any, name: str, is_turned: bool, factor: Place) -> Scaled:
    return Scaled(_matrix(operand, name), name, is_turned, factor, span=current().span)


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
