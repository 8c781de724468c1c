"""Folds of what the threads of a GPU program hold, as arrays over configs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recommender.gpu.columns import Columns, Floats, Mask, block_threads, numbers
from tilecore.graph.graph import Launch
from tilecore.graph.nodes import TileOp
from tilecore.inference.gpu.products.choice import WARP
from tilecore.ir.nodes import Reduce

TOGETHER_HELD = 4  # float32 of a row in a thread: 16 bytes


def folds(launch: Launch, columns: Columns) -> Iterator[tuple[TileOp, Floats, Mask]]:
    """Yield folds of what threads hold, how many a warp makes, and whether warps join theirs."""
    threads = block_threads(launch, columns)
    for op in launch.ops:
        if isinstance(op.stmt, Reduce):
            _, rows = _folded(op.stmt, columns)
            made = is_along_lanes(op.stmt) * np.maximum(1.0, rows * WARP / threads)
            yield op, made, is_told_across(op.stmt, columns, threads)


def is_told_across(stmt: Reduce, columns: Columns, threads: Floats) -> Mask:
    """Return where warps tell each other what they have folded."""
    folded, rows = _folded(stmt, columns)
    if not is_along_lanes(stmt):  # each holds some neighbours of one row
        return TOGETHER_HELD * threads > rows
    found: Mask = (rows * WARP < threads) & (np.minimum(folded, threads) > WARP)
    return found


def is_along_lanes(stmt: Reduce) -> bool:
    """Return whether lanes side by side have elements that are folded into one."""
    return len(stmt.src.extents) - 1 in stmt.axes


def _folded(stmt: Reduce, columns: Columns) -> tuple[Floats, Floats]:
    """Return how many elements are folded into one, and into how many."""
    folded = rows = numbers(1, columns)
    for axis, extent in enumerate(stmt.src.extents):
        if axis in stmt.axes:
            folded = folded * numbers(extent, columns)
        else:
            rows = rows * numbers(extent, columns)
    return folded, rows
