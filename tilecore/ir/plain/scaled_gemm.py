"""Products of elements times factors: what a Gemm with ``factors`` means, as plain statements.

``c (+)= (op(a) fa) @ (op(b) fb)``. Neighbours along K share a factor, float8_e4m3fn or
float8_e8m0fnu; four factors, the first one lowest, are a word. Elements are multiplied by their
factors in bfloat16, which holds exactly what has 4 significant bits each, and then by each other:
on every target but those whose matrix unit does it all (``passes/scaled_products.py``).

Words lie in rows, in chunks, or in lanes: as a ChunkCopy places them in a tile of 128 rows, where
the matrix unit of sm_100 looks for them. There row ``r`` has its word in column ``r // 32`` of row
``r % 32``, and once more 32, 64 and 96 rows below. Where the elements of a tile have several words
along K, each has columns of its own, four for every 128 rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilecore.errors import ShapeMismatch, SourceSpan, TypeMismatch
from tilecore.ir.arithmetic.polynomial import is_equal, product
from tilecore.ir.dtype import DType
from tilecore.ir.expr import (
    Expr,
    Load,
    Var,
    as_expr,
    binary,
    cast,
    const,
    int_value,
    reinterpret,
)
from tilecore.ir.indexing import format_shape, varying_axes, whole
from tilecore.ir.nodes import (
    NO_SPAN,
    Alloc,
    Buffer,
    ChunkCopy,
    For,
    Gemm,
    Parallel,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
)
from tilecore.ir.visitor import Rewriter, walk, with_body

WORD = DType("uint32")
PER_WORD = 4  # factors
LANES, COLUMNS = 32, 4  # a chunk of factors: one word for each of 128 rows
CHUNK = LANES * COLUMNS
STEP = 32  # elements along K that are multiplied by their factors at a time
FACTORS = ("float8_e4m3fn", "float8_e8m0fnu")
Place = Callable[[Expr, Expr], Expr]  # (row, place along K) -> the factor there


@dataclass(frozen=True, slots=True)
class Scaled:
    """An operand with its factors.

    Attributes:
        box: the operand's tile; its last two axes are those of the matrix.
        name: of the operand.
        is_turned: whether K is the first of these axes.
        factor: what an element is multiplied by.
        pairs_of: the type of which a byte holds two elements along K, or "".
        span: of the product.
    """

    box: Region
    name: str
    is_turned: bool
    factor: Place
    pairs_of: str = ""
    span: SourceSpan = NO_SPAN

    @property
    def rows(self) -> Expr:
        """How many rows there are."""
        return self.box.extents[-1 if self.is_turned else -2]

    @property
    def depth(self) -> Expr:
        """How many elements there are along K."""
        extent = self.box.extents[-2 if self.is_turned else -1]
        return binary("mul", extent, 2) if self.pairs_of else extent

    def tile(self, kind: DType, depth: Expr) -> Buffer:
        """Return a new tile [rows, depth] for elements times their factors."""
        shape = (self.rows, depth)
        return Buffer(f"{self.name}_scaled", shape, kind, "shared", span=self.span)

    def fill(self, tile: Buffer, start: Expr) -> Parallel:
        """Return what multiplies elements from ``start`` along K by their factors."""
        row, k = Var("row"), Var("k")
        there = binary("add", start, k)
        product = binary("mul", cast(self._element(row, there), "float32"), self.factor(row, there))
        store = Store(tile, (row, k), cast(product, tile.dtype), self.span)
        return Parallel((row, k), tile.shape, store, span=self.span)

    def _element(self, row: Expr, k: Expr) -> Expr:
        place = binary("floordiv", k, 2) if self.pairs_of else k
        pair = (place, row) if self.is_turned else (row, place)
        box = self.box
        offsets = (binary("add", o, i) for o, i in zip(box.offsets[-2:], pair, strict=True))
        value = Load(box.buffer, (*box.offsets[:-2], *offsets), box.buffer.dtype)
        if not self.pairs_of:
            return value
        shift = cast(binary("mul", binary("mod", k, 2), 4), "uint8")
        code = binary("bitand", binary("shr", value, shift), const(0xF, "uint8"))
        return reinterpret(cast(code, "uint4"), self.pairs_of)


def kind_of(sums: Region) -> DType:
    """Return the type in which operands are multiplied by their factors."""
    return DType("bfloat16") if sums.buffer.dtype == "float32" else sums.buffer.dtype


def factor_in(word: Expr, number: Expr, kind: str) -> Expr:
    """Return byte ``number % 4`` of a word as a number."""
    shift = cast(binary("mul", binary("mod", number, PER_WORD), 8), WORD)
    byte = binary("bitand", binary("shr", word, shift), const(0xFF, WORD))
    return cast(reinterpret(cast(byte, "uint8"), kind), "float32")


def word_at(factors: Region, row: Expr, word: Expr, *, in_chunks: bool) -> tuple[Expr, ...]:
    """Return the indices of a word of factors: of a row, by its number along K."""
    at = (row, word)
    if in_chunks:
        at = _in_chunks(row, word, factors.extents[-1])
    indices = (binary("add", o, i) for o, i in zip(factors.offsets[-2:], at, strict=True))
    return (*factors.offsets[:-2], *indices)


def _in_chunks(row: Expr, word: Expr, words: Expr) -> tuple[Expr, Expr]:
    """Return where a word lies in a tile of chunks."""
    chunk, inside = binary("floordiv", row, CHUNK), binary("mod", row, CHUNK)
    first = binary("mul", binary("add", binary("mul", chunk, words), word), CHUNK)
    lane = binary("mul", binary("mod", inside, LANES), COLUMNS)
    flat = binary("add", binary("add", first, lane), binary("floordiv", inside, LANES))
    return binary("floordiv", flat, words), binary("mod", flat, words)


def words_along_k(depth: Expr, sharing: int) -> int:
    """Return how many words the elements of a row of a tile need."""
    count = int_value(depth)
    return 1 if count is None else max(1, -(-count // (sharing * PER_WORD)))


def columns_of_word(rows: Expr) -> Expr:
    """Return the columns that the words of one number along K take where they lie in lanes."""
    chunks = binary("floordiv", binary("add", rows, CHUNK - 1), CHUNK)
    return binary("mul", chunks, COLUMNS)


def word_in_lanes(factors: Region, row: Expr, word: Expr, rows: Expr) -> tuple[Expr, ...]:
    """Return the indices of a word of one of ``rows`` rows, by its number along K, in lanes."""
    across = binary("mul", word, columns_of_word(rows))
    at = (binary("mod", row, LANES), binary("add", across, binary("floordiv", row, LANES)))
    indices = (binary("add", o, i) for o, i in zip(factors.offsets[-2:], at, strict=True))
    return (*factors.offsets[:-2], *indices)


def chunk_words(region: Region, what: str) -> Expr:
    """Return how many chunks of 128 words a region has.

    Raises:
        ShapeMismatch: no multiple of 128 words (TC201).
        TypeMismatch: no tile of uint32 (TC202).
    """
    if region.buffer.dtype != WORD:
        raise TypeMismatch(expected=f"uint32 words in {what}", found=region.buffer.dtype)
    count = product(region.extents)
    chunks = binary("floordiv", count, CHUNK)
    if not is_equal(binary("mul", chunks, CHUNK), count):
        found = format_shape(region.extents)
        raise ShapeMismatch(what=what, expected=f"a multiple of {CHUNK} words", found=found)
    return chunks


def check_chunks(copy: ChunkCopy) -> None:
    """Check the shapes of a copy of chunks.

    Raises:
        ShapeMismatch: no multiple of 128 words, or other columns than these take (TC201).
        TypeMismatch: no tiles of uint32 (TC202).
    """
    chunks = chunk_words(copy.src, "the source of a copy of chunks")
    if copy.dst.buffer.dtype != WORD:
        raise TypeMismatch(expected="uint32 words in its destination", found=copy.dst.buffer.dtype)
    rows, columns = ([int_value(e) or e for e in copy.dst.extents[-2:]] + [0, 0])[:2]
    if rows != CHUNK or not is_equal(as_expr(columns), binary("mul", chunks, COLUMNS)):
        raise ShapeMismatch(
            what="the destination of a copy of chunks",
            expected=f"{CHUNK} rows of {COLUMNS} columns for each chunk",
            found=format_shape(copy.dst.extents),
        )


def chunks_written_out(copy: ChunkCopy) -> Parallel:
    """Return the nest that a copy of chunks stands for."""
    names = chunk, part, lane, column = Var("chunk"), Var("part"), Var("lane"), Var("column")
    flat = binary("add", binary("mul", chunk, CHUNK), binary("mul", lane, COLUMNS))
    source = _unraveled(copy.src, binary("add", flat, column))
    below = binary("add", binary("mul", part, LANES), lane)
    beside = binary("add", binary("mul", chunk, COLUMNS), column)
    target = copy.dst
    at = (binary("add", o, i) for o, i in zip(target.offsets[-2:], (below, beside), strict=True))
    value = Load(copy.src.buffer, source, WORD)
    store = Store(target.buffer, (*target.offsets[:-2], *at), value, copy.span)
    chunks = binary("floordiv", product(copy.src.extents), CHUNK)
    extents = (chunks, *map(const, (COLUMNS, LANES, COLUMNS)))
    return Parallel(names, extents, store, span=copy.span)


def _unraveled(region: Region, flat: Expr) -> tuple[Expr, ...]:
    """Return the indices of an element of a region, by its number row by row."""
    axes = varying_axes(region)
    indices = list(region.offsets)
    for axis in reversed(axes):
        inner = flat if axis == axes[0] else binary("mod", flat, region.extents[axis])
        indices[axis] = binary("add", indices[axis], inner)
        flat = binary("floordiv", flat, region.extents[axis])
    return tuple(indices)


def sides_of(gemm: Gemm) -> tuple[Scaled, Scaled]:
    """Return the operands of a product with their factors."""

    def factor(side: int, operand: Region, *, is_turned: bool) -> Scaled:
        factors, sharing = gemm.factors[side], gemm.sharing[side]

        def place(row: Expr, k: Expr) -> Expr:
            number = binary("floordiv", k, sharing)
            at = binary("floordiv", number, PER_WORD)
            if gemm.in_lanes:
                first = const(0) if gemm.start is None else gemm.start
                number = binary("floordiv", binary("add", first, k), sharing)
                words = words_along_k(made.depth, sharing)
                at = binary("mod", binary("floordiv", number, PER_WORD), words)
                indices = word_in_lanes(factors, row, at, made.rows)
            else:
                indices = word_at(factors, row, at, in_chunks=gemm.in_chunks)
            return factor_in(Load(factors.buffer, indices, WORD), number, gemm.factor_type)

        made = Scaled(operand, "AB"[side], is_turned, place, gemm.pairs_of, gemm.span)
        return made

    return (
        factor(0, gemm.a, is_turned=gemm.transpose_a),
        factor(1, gemm.b, is_turned=not gemm.transpose_b),
    )


def written_out(gemm: Gemm) -> tuple[Stmt, ...]:
    """Return the statements that a product with factors stands for."""
    sides = sides_of(gemm)
    if gemm.in_lanes:  # the program waits for all of it at once
        return _at_once(gemm, sides)
    depth = int_value(sides[0].depth)
    step = STEP if depth is not None and depth % STEP == 0 else sides[0].depth
    tiles = [side.tile(kind_of(gemm.c), as_expr(step)) for side in sides]
    turn = Var("step")
    start = binary("mul", turn, step)
    a, b = (whole(tile) for tile in tiles)
    clear = binary("and", gemm.clear_accum, binary("eq", turn, 0))
    multiplied = _plain(gemm, a, b, clear)
    filled = (s.fill(tile, start) for s, tile in zip(sides, tiles, strict=True))
    body = Seq((*filled, multiplied), gemm.span)
    stop = binary("floordiv", sides[0].depth, step)
    loop = For(turn, const(0), stop, const(1), "serial", body, span=gemm.span)
    return (*(Alloc(tile, gemm.span) for tile in tiles), loop)


def _at_once(gemm: Gemm, sides: tuple[Scaled, Scaled]) -> tuple[Stmt, ...]:
    tiles = [side.tile(kind_of(gemm.c), side.depth) for side in sides]
    filled = (s.fill(tile, const(0)) for s, tile in zip(sides, tiles, strict=True))
    a, b = (whole(tile) for tile in tiles)
    multiplied = _plain(gemm, a, b, gemm.clear_accum)
    return (*(Alloc(tile, gemm.span) for tile in tiles), *filled, multiplied)


def _plain(gemm: Gemm, a: Region, b: Region, clear: Expr) -> Gemm:
    """Return the product of operands that have been multiplied by their factors."""
    return replace(
        gemm, a=a, b=b, transpose_a=False, transpose_b=True, clear_accum=clear, factors=(),
        sharing=(), in_chunks=False, pairs_of="", in_lanes=False, start=None,
        factor_type=FACTORS[0],
    )  # fmt: skip


class WriteOut(Rewriter):
    """Puts plain statements in the place of products with factors, but for those kept."""

    def __init__(self, kept: frozenset[Stmt] = frozenset()) -> None:
        self.kept = kept

    def visit_seq(self, stmt: Seq) -> Stmt:
        """Return the sequence: what one of its products stands for are statements of its own."""
        found: list[Stmt] = []
        for child in stmt.stmts:
            found += self._found(child)
        same = len(found) == len(stmt.stmts) and all(map(operator.is_, found, stmt.stmts))
        return stmt if same else replace(stmt, stmts=tuple(found))

    def visit_gemm(self, stmt: Gemm) -> Stmt:
        """Return what a product stands for that is the whole body of a loop or a branch."""
        found = self._found(stmt)
        return found[0] if len(found) == 1 else Seq(found, stmt.span)

    def visit_chunkcopy(self, stmt: ChunkCopy) -> Stmt:
        """Return what a copy of chunks stands for."""
        return stmt if stmt in self.kept else chunks_written_out(stmt)

    def _found(self, stmt: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(stmt, Gemm):
            return (self.visit(stmt),)
        return written_out(stmt) if stmt.factors and stmt not in self.kept else (stmt,)


def has_factors(stmt: Stmt) -> bool:
    """Return whether a statement is about factors."""
    return isinstance(stmt, ChunkCopy) or (isinstance(stmt, Gemm) and bool(stmt.factors))


def without_factors(func: PrimFunc, kept: frozenset[Stmt] = frozenset()) -> PrimFunc:
    """Return ``func`` with plain statements for those about factors, but for those ``kept``."""
    if not any(has_factors(s) and s not in kept for s in walk(func.body)):
        return func
    return with_body(func, WriteOut(kept).visit(func.body))
