"""Accumulators whose only fate is to be copied out: where their sums may go at once.

Sums of the output's own type are accumulated in the output itself. Others, and those of tiles,
which lie badly at the output's strides, stay in scratch memory until the last step of their gemm,
which writes them; where there is one step only, they never reach scratch memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilecore.inference.cpu.regions import is_contiguous
from tilecore.inference.uses import Context, Use, starts_inside
from tilecore.ir.analysis import covers_whole, kept_axes
from tilecore.ir.arithmetic.bounds import variables
from tilecore.ir.expr import Binary, Const, Expr, binary, const, int_value
from tilecore.ir.nodes import Buffer, Copy, Gemm, KernelLaunch, Parallel, Region, Stmt, Store
from tilecore.ir.visitor import loads, walk


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """The region that an accumulator ends up in.

    ``last``: the condition of the step that writes it; None: it is accumulated there.
    """

    region: Region
    last: Expr | None = None


class Outputs:
    """Finds the outputs of the accumulators of one launch."""

    def __init__(
        self,
        launch: KernelLaunch,
        by_buffer: Mapping[Buffer, Sequence[Use]],
        order: Mapping[int, int],
    ) -> None:
        self.launch, self.by_buffer, self.order = launch, by_buffer, order

    def of(self, buffer: Buffer, is_tiled: bool, is_plain: bool) -> Output | None:
        """Return where the sums in ``buffer`` may go at once, or None.

        ``is_tiled``: they are sums of tiles; ``is_plain``: their gemm accumulates in memory of the
        accumulator's own type only.
        """
        found = self.by_buffer.get(buffer, ())
        region = self._copied_to(buffer, found)
        if region is None:
            return None
        same = region.buffer.dtype == buffer.dtype
        steps = self._steps(found)
        if steps is not None and not is_plain and (is_tiled or not same):
            return Output(region, steps)
        if not same and is_plain:
            return None
        if not same and not self._never_accumulates(found):
            return None
        return Output(region) if all(self._is_elementwise(u) for u in found[:-1]) else None

    def _copied_to(self, buffer: Buffer, found: Sequence[Use]) -> Region | None:
        """Return the global region that the last use of an accumulator copies it to."""
        copies = [u for u in found if u.role == "copy-src"]
        if len(copies) != 1 or copies[0] is not found[-1]:
            return None
        if not any(u.role == "gemm-c" for u in found):
            return None
        last, copy = copies[0], copies[0].stmt
        assert isinstance(copy, Copy)
        target, tile = copy.dst.buffer, copy.src
        top_level = not last.context.loops and not last.context.conditional
        if not (top_level and target.scope == "global"):
            return None
        if not covers_whole(tile) or len(buffer.shape) != 2 or len(kept_axes(tile)) != 2:
            return None
        family = [u for b, us in self.by_buffer.items() if b.root is target.root for u in us]
        if any(u.stmt is not copy for u in family):
            return None
        if len(kept_axes(copy.dst)) != 2 or not is_contiguous(copy.dst):
            return None
        inside = starts_inside(copy.dst, last.context)
        block_vars = set(self.launch.block_vars)
        moves = any(not variables(o) <= block_vars for o in copy.dst.offsets)
        return copy.dst if inside and not moves else None

    def _steps(self, found: Sequence[Use]) -> Expr | None:
        """Return the condition of the last of several steps of the only gemm that sums up."""
        sums = [u for u in found if u.role == "gemm-c"]
        if len(sums) != 1 or any(u.role not in ("gemm-c", "copy-src", "fill") for u in found):
            return None
        use = sums[0]
        if len(use.context.loops) != 1 or use.context.conditional or not _is_whole(use):
            return None
        if any(u.role == "fill" and self.order[id(u)] > self.order[id(use)] for u in found):
            return None
        loop = use.context.loops[0]
        start, stop = int_value(loop.start), int_value(loop.stop)
        if start is None or stop is None or int_value(loop.step) != 1 or stop - start < 2:
            return None
        return binary("eq", loop.loop_var, const(stop - 1))

    def _never_accumulates(self, found: Sequence[Use]) -> bool:
        """Return whether one gemm, which clears the sums first, is all that happens to them."""
        if [u.role for u in found] != ["gemm-c", "copy-src"]:
            return False
        use = found[0]
        assert isinstance(use.stmt, Gemm)
        return not use.context.conditional and _always(use.stmt.clear_accum, use.context)

    def _is_elementwise(self, use: Use) -> bool:
        """Return whether a use of an accumulator stays right if elements outside are lost."""
        if use.role in ("gemm-c", "fill"):
            return _is_whole(use)
        if use.role not in ("load", "store"):
            return False
        nest = self._nest_of(use.stmt)
        if nest is None or len(nest.loop_vars) != len(use.buffer.shape):
            return False
        inside = list(walk(nest))
        stores = [s for s in inside if isinstance(s, Store)]
        own = [load for s in inside for load in loads(s) if load.buffer is use.buffer]
        indices = [s.indices for s in stores] + [load.indices for load in own]
        at_vars = all(
            all(i is v for i, v in zip(index, nest.loop_vars, strict=True)) for index in indices
        )
        return at_vars and all(s.buffer is use.buffer for s in stores)

    def _nest_of(self, stmt: Stmt) -> Parallel | None:
        for nest in walk(self.launch):
            if isinstance(nest, Parallel) and any(s is stmt for s in walk(nest)):
                return nest
        return None


def _is_whole(use: Use) -> bool:
    return use.region is not None and covers_whole(use.region)


def _always(cond: Expr, context: Context) -> bool:
    """Return whether a condition is known to hold."""
    if isinstance(cond, Const):
        return bool(cond.value)
    if isinstance(cond, Binary) and cond.op == "eq":
        return context.bounds(cond.a - cond.b) == (0, 0)
    return False
