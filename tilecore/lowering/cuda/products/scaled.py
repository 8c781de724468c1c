"""Products of elements and their factors, which one instruction multiplies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from tvm import tirx as tir

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.plan import Operand
from tilecore.inference.gpu.products.scaled import SELECTED, unit_of
from tilecore.ir.expr import Load, Var
from tilecore.ir.plain.scaled_gemm import WORD, word_at
from tilecore.lowering.cuda.products.mma import WARP, MmaLowering
from tilecore.lowering.tir import add, index, mul, quotient, remainder

Part = tuple[int, int, int]


class ScaledLowering(MmaLowering):
    """A product of elements and their factors.

    A word of each lane is enough for several tiles, and for one or more steps along K.
    """

    def multiply(self) -> None:
        """Emit sums += (A factors) (B factors)."""
        plan, builder = self.plan, self.builder
        unit = unit_of(self.stmt)
        assert unit is not None
        self.lane = builder.bind(remainder(self.accessor.thread, WARP))
        sides = ((plan.a, self.stmt.a, "a"), (plan.b, self.stmt.b, "b"))
        arrays = [self._array(*side) for side in sides]
        self.words = [
            builder.local(-(-self._tiles(side) // each), "uint32", f"{name}_factors")
            for (side, each), name in zip(enumerate(SELECTED), "ab", strict=True)
        ]
        step = plan.shape[2]
        for first, count, steps in _parts(plan.size[2] // step, unit.steps):
            with builder.turns(count) as turn:
                word = add(first, turn)
                for side, operand in ((0, plan.a), (1, plan.b)):
                    self._load_words(side, operand, word)
                for number in range(steps):
                    depth = mul(add(mul(word, unit.steps), number), step)
                    self._load(plan.a, self.stmt.a, arrays[0], depth, plan.shape[0])
                    self._load(plan.b, self.stmt.b, arrays[1], depth, plan.shape[1])
                    self._multiply_step(arrays, number * 4 // unit.steps)

    def _tiles(self, side: int) -> int:
        """Return how many rows (or columns) of instructions a warp has."""
        plan = self.plan
        return plan.size[side] // (plan.shape[side] * plan.warps[side])

    def _multiply_step(self, arrays: Sequence[Any], byte: int) -> None:
        """Multiply all tiles; the factors of this step begin at a byte of their words."""
        builder = self.builder
        parts = (_parts(self._tiles(side), each) for side, each in enumerate(SELECTED))
        for (first, rows, a_tiles), (start, columns, b_tiles) in itertools.product(*parts):
            with builder.turns(rows) as row, builder.turns(columns) as column:
                groups = add(first, row), add(start, column)
                self._multiply_group(arrays, groups, (a_tiles, b_tiles), byte)

    def _multiply_group(
        self, arrays: Sequence[Any], groups: Sequence[Any], tiles: tuple[int, int], byte: int
    ) -> None:
        """Multiply the tiles of a group of rows and of one of columns."""
        builder, (m, n, k), columns = self.builder, self.plan.shape, self._tiles(1)
        words = [builder.load(w, g) for w, g in zip(self.words, groups, strict=True)]
        kinds = [self.stmt.pairs_of or str(r.dtype) for r in (self.stmt.a, self.stmt.b)]
        for selectors in itertools.product(*map(range, tiles)):
            row = add(mul(groups[0], SELECTED[0]), selectors[0])
            column = add(mul(groups[1], SELECTED[1]), selectors[1])
            sums = mul(add(mul(row, columns), column), m * n // WARP)
            builder.evaluate(
                ptx.mma_scaled(*kinds, self.stmt.factor_type, *selectors, byte).call(
                    builder.address(self.sums, sums),
                    builder.address(arrays[0], mul(row, m * k // WARP)),
                    builder.address(arrays[1], mul(column, n * k // WARP)),
                    *words,
                )
            )

    def _load_words(self, side: int, operand: Operand, number: Any) -> None:
        """Load the words of a number along K: each lane that of its row of the tile it is for."""
        builder, accessor, factors = self.builder, self.accessor, self.stmt.factors[side]
        atom, each, count = self.plan.shape[side], SELECTED[side], self._tiles(side)
        lanes = 4 // each  # that give the factors of a tile's rows
        first = self._warp_start(operand.distribution)
        quad = remainder(self.lane, 4)
        within = builder.bind(add(mul(remainder(quad, lanes), 8), quotient(self.lane, 4)))
        names = (Var("row"), Var("word"))
        indices = word_at(factors, *names, in_chunks=self.stmt.in_chunks)
        with builder.turns(-(-count // each)) as group:
            tile = add(mul(group, each), quotient(quad, lanes))
            if count % each:  # lanes beyond the last tile read its factors, which nothing selects
                tile = tir.min(index(tile), index(count - 1))
            row = add(first, add(mul(tile, atom), within))
            with accessor.bound(names[0], row, None), accessor.bound(names[1], number, None):
                word = accessor.load(Load(factors.buffer, indices, WORD))
                builder.store(self.words[side], word, group)


def _parts(count: int, each: int) -> Iterator[Part]:
    """Yield (first group, how many groups, how many in one): whole groups, then the rest."""
    whole, rest = divmod(count, each)
    if whole:
        yield 0, whole, each
    if rest:
        yield whole, 1, rest
