"""Products of elements and their factors, which one instruction multiplies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from tvm import tirx as tir

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.plan import Operand
from tilecore.inference.gpu.scaled import SELECTED
from tilecore.ir.expr import Load, Var
from tilecore.ir.scaled_gemm import WORD, word_at
from tilecore.lowering.cpu.tir import add, index, mul, quotient, remainder
from tilecore.lowering.cuda.products import WARP, MmaLowering


class ScaledLowering(MmaLowering):
    """A product of elements and their factors: a word of each lane is enough for several tiles."""

    def multiply(self) -> None:
        """Emit sums += (A factors) (B factors)."""
        counts = [self._tiles(side) for side in (0, 1)]
        self.words = [
            self.builder.local(-(-count // each), "uint32", f"{name}_factors")
            for count, each, name in zip(counts, SELECTED, "ab", strict=True)
        ]
        super().multiply()

    def _tiles(self, side: int) -> int:
        """Return how many rows (or columns) of instructions a warp has."""
        plan = self.plan
        return plan.size[side] // (plan.shape[side] * plan.warps[side])

    def _multiply(self, arrays: Sequence[Any], turn: Any) -> None:
        builder = self.builder
        for side, operand in ((0, self.plan.a), (1, self.plan.b)):
            self._load_words(side, operand, turn)
        for first, rows, a_tiles in self._groups(0):
            for start, columns, b_tiles in self._groups(1):
                with builder.turns(rows) as row, builder.turns(columns) as column:
                    groups = add(first, row), add(start, column)
                    self._multiply_group(arrays, groups, (a_tiles, b_tiles))

    def _groups(self, side: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first, how many, tiles in one) of the groups of tiles that share a word."""
        whole, rest = divmod(self._tiles(side), SELECTED[side])
        if whole:
            yield 0, whole, SELECTED[side]
        if rest:
            yield whole, 1, rest

    def _multiply_group(
        self, arrays: Sequence[Any], groups: Sequence[Any], tiles: tuple[int, int]
    ) -> None:
        """Multiply the tiles of a group of rows and of one of columns."""
        builder, (m, n, k), columns = self.builder, self.plan.shape, self._tiles(1)
        words = [builder.load(w, g) for w, g in zip(self.words, groups, strict=True)]
        for a_selector, b_selector in itertools.product(*map(range, tiles)):
            row = add(mul(groups[0], SELECTED[0]), a_selector)
            column = add(mul(groups[1], SELECTED[1]), b_selector)
            sums = mul(add(mul(row, columns), column), m * n // WARP)
            builder.evaluate(
                ptx.mma_scaled(a_selector, b_selector).call(
                    builder.address(self.sums, sums),
                    builder.address(arrays[0], mul(row, m * k // WARP)),
                    builder.address(arrays[1], mul(column, n * k // WARP)),
                    *words,
                )
            )

    def _load_words(self, side: int, operand: Operand, turn: Any) -> None:
        """Load the factors of a step: each lane those of its row of the tile that it stands for."""
        builder, accessor, factors = self.builder, self.accessor, self.stmt.factors[side]
        atom, each, count = self.plan.shape[side], SELECTED[side], self._tiles(side)
        lanes = 4 // each  # that give the factors of a tile's rows
        first = self._warp_start(operand.distribution)
        quad, number = remainder(self.lane, 4), quotient(self.lane, 4)
        within = builder.bind(add(mul(remainder(quad, lanes), 8), number))
        names = (Var("row"), Var("word"))
        indices = word_at(factors, *names, in_chunks=self.stmt.in_chunks)
        with builder.turns(-(-count // each)) as group:
            tile = add(mul(group, each), quotient(quad, lanes))
            if count % each:  # lanes beyond the last tile read its factors, which nothing selects
                tile = tir.min(index(tile), index(count - 1))
            row = add(first, add(mul(tile, atom), within))
            with accessor.bound(names[0], row, None), accessor.bound(names[1], turn, None):
                word = accessor.load(Load(factors.buffer, indices, WORD))
                builder.store(self.words[side], word, group)
