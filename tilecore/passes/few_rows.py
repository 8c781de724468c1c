"""Products of few rows: a version of the launch for them, and steps along K that run together.

A product that has few rows reads its vector operand where it lies (inference.few_rows), and only a
launch that knows how few they are can do so. Where a dynamic dimension decides, the launch gets
versions, for one element along it and for a few; which one runs is asked before the grid.

Where that operand is transposed, lanes run along K, and a step of the 32 or 64 elements that suit a
GPU's shared memory is over before the sums of a row are worth adding up: loops whose iterations do
nothing but copy two tiles and multiply them take steps of up to DEEP elements. Elements beyond a
tensor's end are zeros in longer steps as in short ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilecore.inference.cpu import few_rows
from tilecore.inference.cpu.options import CpuOptions
from tilecore.inference.cpu.plan import SUMS, TileSource
from tilecore.inference.cpu.regions import gemm_extents
from tilecore.inference.cpu.sources import of_launch
from tilecore.inference.uses import Use
from tilecore.ir.dims import dimensions, value_ranges
from tilecore.ir.expr import Var
from tilecore.ir.nodes import Buffer, Gemm, If, KernelLaunch, PrimFunc, Seq, Stmt
from tilecore.ir.versions import Ranges
from tilecore.ir.visitor import walk, with_body
from tilecore.passes import live_rows, wide_blocks
from tilecore.passes.long_steps import with_long_steps
from tilecore.target import Target

# Rows of the version for few: the first number that inference takes.
FEW = (64, 32, 16, 8, 4)
ON_THEIR_OWN = ("auto", "none")  # ``pack_b`` of products that may read it in place


def run(func: PrimFunc, target: Target, options: CpuOptions) -> PrimFunc:
    """Return ``func`` with launches for products of few rows."""
    if options.keep or options.pack_b not in ON_THEIR_OWN:
        return func
    return with_body(func, _Versions(func, target, options).stmt(func.body))


class _Versions:
    def __init__(self, func: PrimFunc, target: Target, options: CpuOptions) -> None:
        self.target, self.options = target, options
        self.ranges = value_ranges(func)
        self.dimensions = dimensions(func)

    def stmt(self, stmt: Stmt) -> Stmt:
        """Return what stands for a statement outside of launches, or for a launch."""
        if isinstance(stmt, Seq):
            return replace(stmt, stmts=tuple(self.stmt(s) for s in stmt.stmts))
        if not isinstance(stmt, KernelLaunch) or stmt.cluster:
            return stmt
        gemms = [s for s in walk(stmt) if isinstance(s, Gemm)]
        if not gemms:
            return stmt
        found = self._for_few(stmt, self.ranges)
        if found is not None:
            return found
        for dimension, tallest in self._rows_of(stmt, gemms):
            least, most = self.ranges[dimension]
            for number in (n for n in FEW if least <= n <= tallest):
                found = self._version(stmt, dimension, number)
                if found is not None:
                    few = (
                        found if most <= number else If(dimension <= number, found, stmt, stmt.span)
                    )
                    one = self._version(stmt, dimension, 1) if least <= 1 else None
                    return few if one is None else If(dimension <= 1, one, few, stmt.span)
        return stmt

    def _version(self, launch: KernelLaunch, dimension: Var, most: int) -> Stmt | None:
        """Return the launch for at most so many elements along a dimension; None: it has none."""
        ranges = {**self.ranges, dimension: (0, most)}
        return self._for_few(replace(live_rows.cut(launch, ranges)), ranges)

    def _for_few(self, launch: KernelLaunch, ranges: Ranges) -> Stmt | None:
        """Return the launch as it suits products of few rows, perhaps in versions; None: not so."""
        gemms = [s for s in walk(launch) if isinstance(s, Gemm)]
        by_buffer, sources = of_launch(launch, ranges)
        if all(few_rows.most_rows(gemm, sources) > FEW[0] for gemm in gemms):
            return None
        longer = with_long_steps(launch, ranges)
        if longer is not None:
            found = self._in_blocks(longer, *of_launch(longer, ranges))
            if found is not None:
                return found
        return self._in_blocks(launch, by_buffer, sources)

    def _in_blocks(
        self,
        launch: KernelLaunch,
        by_buffer: Mapping[Buffer, Sequence[Use]],
        sources: Mapping[Buffer, TileSource],
    ) -> Stmt | None:
        """Return the launch in the blocks that suit its products of few rows; None: it has none."""
        gemms = [s for s in walk(launch) if isinstance(s, Gemm)]
        forms = few_rows.choose(gemms, by_buffer, sources, launch, self.target, self.options)
        if not forms:
            return None
        sums = [gemm for gemm, form in forms.items() if form == SUMS]
        others = (gemm for gemm in gemms if gemm not in forms)
        if any(few_rows.is_used_again(gemm, by_buffer, sources) for gemm in others):
            return launch  # their tiles are packed: wider ones leave the cache
        return wide_blocks.widened(launch, sums, sources) or launch

    def _rows_of(self, launch: KernelLaunch, gemms: Sequence[Gemm]) -> Iterator[tuple[Var, int]]:
        """Yield the dimensions that rows of a product run along, and the rows of its tile."""
        _, sources = of_launch(launch, self.ranges)
        for gemm in gemms:
            source = sources.get(gemm.a.buffer)
            if source is None or len(source.axes) < 2:
                continue
            axis = source.axes[-1 if gemm.transpose_a else -2]
            extent = None if axis is None else source.copy.src.buffer.shape[axis]
            if isinstance(extent, Var) and any(extent is d for d in self.dimensions):
                yield extent, gemm_extents(gemm.c)[0]
