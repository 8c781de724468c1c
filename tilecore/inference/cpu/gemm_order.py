"""In which order a gemm brings panels of b and groups of rows of a together.

Panel after panel, each with all rows, a streams from L2 once per panel. Group of rows after group
of rows, each with all panels, b streams once per group: more bytes, but side by side, which are
fetched ahead, and a's rows need to lie together for the time of one group only.
"""

from __future__ import annotations

import math

from tilecore.inference.cpu.plan import GemmPlan, TilePlan, TileSource
from tilecore.inference.cpu.regions import gemm_extents, is_contiguous
from tilecore.ir.dtype import DType
from tilecore.ir.nodes import Gemm, KernelLaunch

L1_BYTES = 24 << 10  # what of a tile stays in L1 beside the rest: half of 48 KiB
L1_FULL_BYTES = 40 << 10  # of 48 KiB
L2_BYTES = 1280 << 10  # of 2 MiB
NEAR_BYTES = 160 << 10  # what stays in L2 however much else streams through it
FEW_PANELS = 4  # copying a group of rows for fewer takes as long as a good part of its products


def takes_rows_first(gemm: Gemm, tile: TilePlan | None, micro: tuple[int, int], lanes: int) -> bool:
    """Return whether each group of rows meets all panels before the next group does.

    ``tile``: that of b; ``micro``: rows and vectors of the register tile.
    """
    if tile is None or tile.storage.kind != "panels":
        return False
    groups = math.ceil(gemm_extents(gemm.c)[0] / micro[0])
    size = tile.storage.size * DType(tile.storage.dtype).itemsize
    return _panels(gemm, micro, lanes) > 1 and groups > 1 and L1_BYTES < size <= L2_BYTES


def can_stage(gemm: Gemm, source: TileSource) -> bool:
    """Return whether groups of a's rows can be copied from the tensor that its tile is a box of."""
    in_order = len(source.axes) == 2 and all(axis is not None for axis in source.axes)
    return in_order and not gemm.transpose_a and is_contiguous(source.copy.src)


def pays_staging(gemm: Gemm, micro: tuple[int, int], lanes: int) -> bool:
    """Return whether enough panels use a group of rows to copy it for them."""
    return _panels(gemm, micro, lanes) >= FEW_PANELS


def is_far(tile: TilePlan, launch: KernelLaunch) -> bool:
    """Return whether tiles that were packed before the grid are too many to stay in L2.

    Blocks that follow each other use the same ones again where the index that moves first does not
    choose among them.
    """
    if tile.placement != "grid":
        return False
    counts = {var: count for var, _, count in tile.hoist_vars}
    if launch.block_vars[0] not in counts:
        blocks = set(launch.block_vars)
        counts = {var: count for var, count in counts.items() if var not in blocks}
    size = tile.storage.size * DType(tile.storage.dtype).itemsize
    return math.prod(counts.values()) * size > NEAR_BYTES


def passing_operand(plan: GemmPlan, lanes: int) -> str:
    """Return the operand ("a", "b" or "") that passes by while the other one stays in L1.

    ``lanes``: columns of a tile. Neither does where all of both stays there.
    """
    width = plan.micro_n * lanes
    columns = math.ceil(plan.n / width) * width
    size = plan.gemm.b.buffer.dtype.itemsize * plan.k  # bytes of a row of a, or a column of b
    if plan.rows_first:
        return "b" if size * (plan.micro_m + columns) > L1_FULL_BYTES else ""
    return "a" if size * (plan.m + width) > L1_FULL_BYTES else ""


def _panels(gemm: Gemm, micro: tuple[int, int], lanes: int) -> int:
    return math.ceil(gemm_extents(gemm.c)[1] / (micro[1] * lanes))
