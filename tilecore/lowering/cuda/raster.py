"""The order of blocks: which part of the grid runs together and shares the L2 cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilecore.ir import nodes
from tilecore.ir.expr import int_value
from tilecore.ir.nodes import KernelLaunch
from tilecore.ir.visitor import walk
from tilecore.lowering.cuda.builder import CudaBuilder
from tilecore.lowering.tir import add, minimum, mul, quotient, remainder


def rasterized(
    builder: CudaBuilder, launch: KernelLaunch, blocks: Sequence[Any], grid: Sequence[Any]
) -> list[Any]:
    """Return the block indices, in the order that ``T.use_swizzle`` asks for.

    Blocks that start one after the other go down ``panel_size`` rows of the grid (columns, for
    order "column"), then one step along it.
    """
    hint = next(
        (s.value for s in walk(launch.body)
         if isinstance(s, nodes.Annotate) and s.key == "swizzle"), None,
    )  # fmt: skip
    if launch.cluster:  # its blocks are neighbours in the grid
        return list(blocks)
    if hint is None or not hint.get("enable", True) or len(blocks) < 2:
        return list(blocks)
    panel = int_value(hint.get("panel_size", 1)) or 1
    is_row = str(hint.get("order", "row")).startswith("row")
    along, across = (0, 1) if is_row else (1, 0)
    number = builder.bind(add(blocks[0], mul(blocks[1], grid[0])))
    places = list(blocks)
    extent = int_value(launch.grid[across])
    if extent is not None and extent <= panel:  # there is one panel
        places[along] = builder.bind(quotient(number, extent))
        places[across] = builder.bind(remainder(number, extent))
        return places
    size = mul(grid[along], panel)
    which, within = builder.bind(quotient(number, size)), builder.bind(remainder(number, size))
    rows = builder.bind(minimum(panel, add(grid[across], mul(mul(which, panel), -1))))
    places[along] = builder.bind(quotient(within, rows))
    places[across] = builder.bind(add(mul(which, panel), remainder(within, rows)))
    return places
