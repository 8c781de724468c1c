"""Products of elements times factors: what a Gemm with ``factors`` means, as plain statements.

``c (+)= (op(a) fa) @ (op(b) fb)``. Neighbours along K share a factor, float8_e4m3fn or
float8_e8m0fnu; four factors, the first one lowest, are a word. Elements are multiplied by their
factors in bfloat16, which holds exactly what has 4 significant bits each, and then by each other:
on every target but those whose matrix unit does it all (``passes/scaled_products.py``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilecore.errors import SourceSpan
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
from tilecore.ir.nodes import (
    NO_SPAN,
    Alloc,
    Buffer,
    For,
    Gemm,
    Parallel,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
)
from tilecore.ir.visitor import Rewriter, walk

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


def written_out(gemm: Gemm) -> tuple[Stmt, ...]:
    """Return the statements that a product with factors stands for."""

    def factor(factors: Region, sharing: int) -> Place:
        def place(row: Expr, k: Expr) -> Expr:
            number = binary("floordiv", k, sharing)
            at = binary("floordiv", number, PER_WORD)
            indices = word_at(factors, row, at, in_chunks=gemm.in_chunks)
            return factor_in(Load(factors.buffer, indices, WORD), number, gemm.factor_type)

        return place

    places = [factor(f, n) for f, n in zip(gemm.factors, gemm.sharing, strict=True)]
    sides = (
        Scaled(gemm.a, "A", gemm.transpose_a, places[0], gemm.pairs_of, gemm.span),
        Scaled(gemm.b, "B", not gemm.transpose_b, places[1], gemm.pairs_of, gemm.span),
    )
    depth = int_value(sides[0].depth)
    step = STEP if depth is not None and depth % STEP == 0 else sides[0].depth
    tiles = [side.tile(kind_of(gemm.c), as_expr(step)) for side in sides]
    turn = Var("step")
    start = binary("mul", turn, step)
    a, b = (_whole(tile) for tile in tiles)
    clear = binary("and", gemm.clear_accum, binary("eq", turn, 0))
    product = replace(
        gemm, a=a, b=b, transpose_a=False, transpose_b=True, clear_accum=clear, factors=(),
        sharing=(), in_chunks=False, pairs_of="",
    )  # fmt: skip
    filled = (s.fill(tile, start) for s, tile in zip(sides, tiles, strict=True))
    body = Seq((*filled, product), gemm.span)
    stop = binary("floordiv", sides[0].depth, step)
    loop = For(turn, const(0), stop, const(1), "serial", body, span=gemm.span)
    return (*(Alloc(tile, gemm.span) for tile in tiles), loop)


def _whole(tile: Buffer) -> Region:
    return Region(tile, tuple(const(0) for _ in tile.shape), tile.shape)


class WriteOut(Rewriter):
    """Puts plain statements in the place of products with factors, but for those kept."""

    def __init__(self, kept: frozenset[Gemm] = frozenset()) -> None:
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

    def _found(self, stmt: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(stmt, Gemm):
            return (self.visit(stmt),)
        return written_out(stmt) if stmt.factors and stmt not in self.kept else (stmt,)


def without_factors(func: PrimFunc, kept: frozenset[Gemm] = frozenset()) -> PrimFunc:
    """Return ``func`` with plain statements for products with factors, but for those ``kept``."""
    if not any(isinstance(s, Gemm) and s.factors and s not in kept for s in walk(func.body)):
        return func
    return replace(func, body=WriteOut(kept).visit(func.body))
