"""Tiles that always hold a box of one global tensor: where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from tilecore.inference.cpu.plan import TileSource
from tilecore.inference.uses import (
    WRITES,
    Context,
    Use,
    grouped,
    limit_of,
    starts_inside,
    uses,
)
from tilecore.ir.analysis import covers_whole, kept_axes, pads
from tilecore.ir.expr import Load
from tilecore.ir.nodes import Buffer, Copy, KernelLaunch
from tilecore.ir.versions import Ranges
from tilecore.ir.visitor import walk_expr


@dataclass(frozen=True, slots=True)
class Sources:
    """Finds the sources of the tiles of a launch.

    Attributes:
        uses: of every buffer, in program order.
        order: position of every use in the program, by its id.
        padded: tensors whose edges are not 0: no operand may skip them.
    """

    uses: Mapping[Buffer, Sequence[Use]]
    order: Mapping[int, int]
    padded: frozenset[Buffer]

    def of(self, tile: Buffer) -> TileSource | None:
        """Return the global box that a tile always holds, None where there is none."""
        writes = [u for u in self.uses.get(tile, ()) if u.role in WRITES]
        is_viewed = any(b.base is tile for b in self.uses)
        if is_viewed or len(writes) != 1 or not isinstance(copy := writes[0].stmt, Copy):
            return None
        context, origin = writes[0].context, copy.src.buffer
        if origin.scope != "global" or self._is_written(origin) or origin in self.padded:
            return None
        if context.conditional and (context.loops or context.in_while):
            return None  # an iteration may find the box of an earlier one
        if not covers_whole(copy.dst) or not starts_inside(copy.src, context):
            return None
        loaded = (n for o in copy.src.offsets for n in walk_expr(o) if isinstance(n, Load))
        if any(self._is_written(load.buffer) for load in loaded):
            return None  # readers may find the box of another moment
        tile_axes, source_axes = kept_axes(copy.dst), kept_axes(copy.src)
        if len(tile_axes) != len(source_axes):
            return None
        readers = [u for u in self.uses[tile] if u.role not in WRITES]
        if not all(self._dominates(writes[0], reader) for reader in readers):
            return None
        axis_of = dict(zip(tile_axes, source_axes, strict=True))
        axes = tuple(axis_of.get(i) for i in range(len(tile.shape)))
        limits = tuple(None if a is None else limit_of(copy.src, a, context) for a in axes)
        return TileSource(copy, axes, limits, context)

    def _is_written(self, buffer: Buffer) -> bool:
        """Return whether the launch writes the memory of ``buffer``, by whatever name."""
        family = (found for b, found in self.uses.items() if b.root is buffer.root)
        return any(u.role in WRITES for u in chain.from_iterable(family))

    def _dominates(self, write: Use, read: Use) -> bool:
        """Return whether ``read`` always sees what ``write`` wrote in the same iteration."""
        outer, inner = write.context.loops, read.context.loops
        loops = zip(outer, inner, strict=False)
        nested = len(outer) <= len(inner) and all(a is b for a, b in loops)
        return nested and self.order[id(write)] < self.order[id(read)]


def of_launch(
    launch: KernelLaunch, ranges: Ranges
) -> tuple[Mapping[Buffer, Sequence[Use]], Mapping[Buffer, TileSource]]:
    """Return the uses of all buffers of a launch, and the sources of its tiles that have one."""
    found = list(uses(launch, Context(ranges=dict(ranges))))
    by_buffer = grouped(found)
    order = {id(use): position for position, use in enumerate(found)}
    known = Sources(by_buffer, order, frozenset(pads(launch)))
    sources = {b: s for b in by_buffer if b.scope != "global" and (s := known.of(b)) is not None}
    return by_buffer, sources
