"""Block-scaled products: every few neighbours along K share a factor, four factors to a uint32.

The operands are multiplied by their factors, which bfloat16 holds exactly (4 significant bits by 4
at most), and then by each other. What prepares factors for the tensor memory of a GPU moves the
same words here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from tilecore.errors import ShapeMismatch, TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.dtype import DType
from tilecore.ir.expr import (
    Expr,
    ExprLike,
    Load,
    Var,
    as_bool,
    as_expr,
    binary,
    cast,
    const,
    int_value,
    reinterpret,
)
from tilecore.ir.indexing import format_shape, varying_axes
from tilecore.ir.nodes import Alloc, Buffer, For, Parallel, Region, Store
from tilecore.ir.polynomial import is_equal
from tilecore.language.barrier import alone
from tilecore.language.copy import copy, region
from tilecore.language.gemm import GemmWarpPolicy, gemm

__all__ = [
    "mma_gemm_blockscaled", "tcgen05_cp_warpx4", "tcgen05_gemm_blockscaled",
    "tcgen05_sf_warp_transpose",
]  # fmt: skip
WORD = DType("uint32")
LANES, COLUMNS = 32, 4  # a chunk of factors: one word for each of 128 rows
CHUNK = LANES * COLUMNS
GRANULE = 16  # elements along K that share a factor: 16 or 32 of an instruction
STEP = 32  # elements along K that are multiplied by their factors at a time
ROW_MAJOR, CHUNKS = "rowmajor", "blockscaled_chunk_kmajor"
Place = Callable[[Expr, Expr], Expr]  # (row, place along K) -> the word that holds the factor


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
            return _factor(word, number, "float8_e8m0fnu")

        return place

    sfa, sfb = region(SFA_tmem, "SFA_tmem"), region(SFB_tmem, "SFB_tmem")
    kind = _kind(region(C, "C of T.tcgen05_gemm_blockscaled"))
    left = _Scaled.of(A, "A", bool(transpose_A), factor(sfa, sf_a_granularity_k))
    right = _Scaled.of(B, "B", not transpose_B, factor(sfb, sf_b_granularity_k))
    a, b = left.tile(kind, left.depth), right.tile(kind, right.depth)
    left.fill(a, const(0))
    right.fill(b, const(0))
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
) -> None:
    """Compute ``C (+)= op(A sfa) @ op(B sfb)`` with factors of float8_e4m3fn.

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

    Raises:
        ShapeMismatch: M, N or K differ between the tiles (TC201).
        TypeMismatch: an argument is not a tile, or an unknown layout (TC202).
    """
    _ = k_start
    layout = sf_layout or ROW_MAJOR
    if layout not in (ROW_MAJOR, CHUNKS):
        raise TypeMismatch(expected=f"sf_layout {ROW_MAJOR} or {CHUNKS}", found=repr(layout))

    def factor(factors: Region, granularity: int) -> Place:
        _check_granularity(granularity, "mma_gemm_blockscaled")

        def place(row: Expr, k: Expr) -> Expr:
            number = binary("floordiv", k, granularity)
            at = (row, binary("floordiv", number, 4))
            if layout == CHUNKS:
                at = _in_chunks(*at, factors.extents[-1])
            indices = (binary("add", o, i) for o, i in zip(factors.offsets[-2:], at, strict=True))
            word = Load(factors.buffer, (*factors.offsets[:-2], *indices), WORD)
            return _factor(word, number, "float8_e4m3fn")

        return place

    sfa, sfb = region(SFA, "SFA"), region(SFB, "SFB")
    builder, kind = current(), _kind(region(C, "C of T.mma_gemm_blockscaled"))
    left = _Scaled.of(A, "A", bool(transpose_A), factor(sfa, sf_a_granularity_k))
    right = _Scaled.of(B, "B", not transpose_B, factor(sfb, sf_b_granularity_k))
    depth = int_value(left.depth)
    step = STEP if depth is not None and depth % STEP == 0 else left.depth
    a, b = (side.tile(kind, as_expr(step)) for side in (left, right))
    turn = Var("step")
    with builder.open("loop") as frame:
        left.fill(a, binary("mul", turn, step))
        right.fill(b, binary("mul", turn, step))
        is_first = binary("and", as_bool(clear_accum), binary("eq", turn, 0))
        gemm(a, b, C, False, True, policy, is_first)
    bounds = (const(0), binary("floordiv", left.depth, step), const(1))
    builder.emit(For(turn, *bounds, "serial", frame.body(), span=builder.span))


def _check_granularity(given: Any, what: str) -> None:
    """Check how many elements along K share a factor: instructions read K in steps of 16.

    Raises:
        TypeMismatch: no multiple of 16 (TC202).
    """
    count = int_value(given)
    if count is None or count < GRANULE or count % GRANULE:
        raise TypeMismatch(
            expected=f"a multiple of {GRANULE} elements that share a factor in T.{what}",
            found=given,
        )


def _in_chunks(row: Expr, word: Expr, words: Expr) -> tuple[Expr, Expr]:
    """Return where a word lies in a tile of chunks."""
    chunk, inside = binary("floordiv", row, CHUNK), binary("mod", row, CHUNK)
    first = binary("mul", binary("add", binary("mul", chunk, words), word), CHUNK)
    lane = binary("mul", binary("mod", inside, LANES), COLUMNS)
    flat = binary("add", binary("add", first, lane), binary("floordiv", inside, LANES))
    return binary("floordiv", flat, words), binary("mod", flat, words)


def _factor(word: Expr, number: Expr, kind: str) -> Expr:
    """Return byte ``number % 4`` of a word as a number."""
    shift = cast(binary("mul", binary("mod", number, 4), 8), WORD)
    byte = binary("bitand", binary("shr", word, shift), const(0xFF, WORD))
    return cast(reinterpret(cast(byte, "uint8"), kind), "float32")


def _kind(sums: Region) -> DType:
    """Return the type in which operands are multiplied by their factors."""
    return DType("bfloat16") if sums.buffer.dtype == "float32" else sums.buffer.dtype


@dataclass(frozen=True, slots=True)
class _Scaled:
    """An operand with its factors.

    Attributes:
        box: the operand's tile.
        name: of the operand.
        is_turned: whether K is the first of its axes.
        rows: how many there are.
        depth: how many elements along K.
        factor: what an element is multiplied by.
    """

    box: Region
    name: str
    is_turned: bool
    rows: Expr
    depth: Expr
    factor: Place

    @classmethod
    def of(cls, operand: Any, name: str, is_turned: bool, factor: Place) -> Self:
        what = f"{name} of a block-scaled product"
        box = region(operand, what)
        if len(box.extents) < 2:
            raise ShapeMismatch(what=what, expected="rows", found=format_shape(box.extents))
        first, second = box.extents[-2:]
        rows, depth = (second, first) if is_turned else (first, second)
        return cls(box, name, is_turned, rows, depth, factor)

    def tile(self, kind: DType, depth: Expr) -> Buffer:
        """Return a new tile [rows, depth] for elements times their factors."""
        builder, shape = current(), (self.rows, depth)
        made = Buffer(f"{self.name}_scaled", shape, kind, "shared", span=builder.span)
        builder.emit(Alloc(made, builder.span))
        return made

    def fill(self, tile: Buffer, start: Expr) -> None:
        """Multiply elements from ``start`` along K by their factors."""
        row, k = Var("row"), Var("k")
        there = binary("add", start, k)
        pair = (there, row) if self.is_turned else (row, there)
        box = self.box
        offsets = (binary("add", o, i) for o, i in zip(box.offsets[-2:], pair, strict=True))
        value = Load(box.buffer, (*box.offsets[:-2], *offsets), box.buffer.dtype)
        product = binary("mul", cast(value, "float32"), self.factor(row, there))
        store = Store(tile, (row, k), cast(product, tile.dtype), current().span)
        _emit((row, k), tile.shape, store)
