"""Factors in shared memory, for products in tensor memory: they are copied there before each one.

A product reads its factors in lanes (``plain/scaled_gemm.py``). Chunks in shared memory are copied
as they lie; other words are put into chunks by threads first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilecore.ir.expr import Expr, Load, Var, binary, const, int_value
from tilecore.ir.indexing import whole
from tilecore.ir.nodes import (
    Alloc,
    Buffer,
    ChunkCopy,
    Gemm,
    KernelLaunch,
    Parallel,
    Region,
    Seq,
    Stmt,
    Store,
)
from tilecore.ir.plain.scaled_gemm import (
    CHUNK,
    COLUMNS,
    LANES,
    WORD,
    columns_of_word,
    sides_of,
    word_at,
    words_along_k,
)
from tilecore.ir.visitor import Rewriter


class InLanes(Rewriter):
    """Puts copies of factors to tensor memory before the products that have them elsewhere."""

    def __init__(self) -> None:
        self.made: list[Buffer] = []

    def visit_kernellaunch(self, stmt: KernelLaunch) -> Stmt:
        """Return the launch, with the tiles that it needs at its beginning."""
        before, self.made = self.made, []
        body = self.visit(stmt.body)
        allocs = [Alloc(tile, stmt.span) for tile in self.made]
        self.made = before
        if not allocs:
            return stmt
        stmts = body.stmts if isinstance(body, Seq) else (body,)
        return replace(stmt, body=Seq((*allocs, *stmts), stmt.body.span))

    def visit_seq(self, stmt: Seq) -> Stmt:
        """Return the sequence: copies and products are statements of its own."""
        found: list[Stmt] = []
        for child in stmt.stmts:
            rewritten = self.visit(child)
            is_split = isinstance(child, Gemm) and isinstance(rewritten, Seq)
            found += rewritten.stmts if is_split and isinstance(rewritten, Seq) else [rewritten]
        return replace(stmt, stmts=tuple(found))

    def visit_gemm(self, stmt: Gemm) -> Stmt:
        """Return a product with its factors in lanes, behind the copies of these."""
        if not stmt.factors or stmt.in_lanes:
            return stmt
        nests: list[Stmt] = []
        copies: list[Stmt] = []
        tiles: list[Buffer] = []
        for side, operand in enumerate(sides_of(stmt)):
            words = words_along_k(operand.depth, stmt.sharing[side])
            columns = int_value(columns_of_word(operand.rows))
            assert columns is not None
            name = f"{stmt.factors[side].buffer.name}_lanes"
            tile = self._tile(name, (CHUNK, columns * words), stmt, in_tensor_memory=True)
            tiles.append(tile)
            found = list(_as_they_lie(stmt, side, tile, words, columns))
            if not found:
                chunks = self._tile(f"{name}_chunks", (columns * words * LANES,), stmt)
                nests.append(_into_chunks(stmt, side, chunks, operand.rows, words))
                found = [ChunkCopy(whole(chunks), whole(tile), stmt.span)]
            copies += found
        factors = tuple(whole(tile) for tile in tiles)
        product = replace(stmt, factors=factors, in_lanes=True, in_chunks=False)
        return Seq((*nests, *copies, product), stmt.span)

    def _tile(
        self, name: str, shape: tuple[int, ...], stmt: Gemm, *, in_tensor_memory: bool = False
    ) -> Buffer:
        extents = tuple(const(e) for e in shape)
        tile = Buffer(
            name, extents, WORD, "shared", span=stmt.span, in_tensor_memory=in_tensor_memory
        )
        self.made.append(tile)
        return tile


def _as_they_lie(
    gemm: Gemm, side: int, tile: Buffer, words: int, columns: int
) -> Iterator[ChunkCopy]:
    """Yield the copies of the chunks of an operand; none where its factors lie otherwise.

    In shared memory all chunks of 128 rows lie next to each other, in tensor memory all of a word.
    """
    box, groups = gemm.factors[side], columns // COLUMNS
    shape = box.buffer.static_shape
    is_whole = shape is not None and all(
        int_value(o) == 0 and int_value(e) == s
        for o, e, s in zip(box.offsets[-2:], box.extents[-2:], shape[-2:], strict=True)
    )
    if not (gemm.in_chunks and is_whole and shape is not None) or CHUNK % words:
        return
    if shape[-2:] != (groups * CHUNK, words) or box.buffer.base is not None:
        return
    rows = CHUNK // words  # of the tile that a chunk takes
    together = groups if words == 1 else words if groups == 1 else 1
    for first in range(0, groups * words, together):
        group, word = divmod(first, words)
        start = (*box.offsets[:-2], const(first * rows), const(0))
        extents = (*box.extents[:-2], const(together * rows), const(words))
        source = Region(box.buffer, start, extents)
        corner = (const(0), const(word * columns + group * COLUMNS))
        target = Region(tile, corner, (const(CHUNK), const(together * COLUMNS)))
        yield ChunkCopy(source, target, gemm.span)


def _into_chunks(gemm: Gemm, side: int, chunks: Buffer, rows: Expr, words: int) -> Parallel:
    """Return the nest that puts the words of an operand into chunks, those of a word together."""
    names = word, row = Var("word"), Var("row")
    at = word_at(gemm.factors[side], row, word, in_chunks=gemm.in_chunks)
    value = Load(gemm.factors[side].buffer, at, WORD)
    inside = binary("mod", row, CHUNK)
    chunk = binary("mul", word, columns_of_word(rows) * LANES)
    place = binary("add", chunk, binary("mul", binary("floordiv", row, CHUNK), CHUNK))
    within = binary("mul", binary("mod", inside, LANES), COLUMNS)
    place = binary("add", place, binary("add", within, binary("floordiv", inside, LANES)))
    store = Store(chunks, (place,), value, gemm.span)
    return Parallel(names, (const(words), rows), store, span=gemm.span)
