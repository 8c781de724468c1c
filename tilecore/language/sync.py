"""Threads that wait for each other: T.sync_threads, T.sync_warp, T.sync_grid."""

from __future__ import annotations

from typing import Any

from tilecore.errors import ScopeError
from tilecore.frontend.builder import current
from tilecore.ir.nodes import Sync


def sync_threads(barrier_id: Any = None, arrive_count: Any = None) -> None:
    """Make all threads of the block wait for each other.

    Args:
        barrier_id: names a barrier of its own, at which only the threads in this branch meet.
        arrive_count: how many those are; they are known from the branch.
    """
    _ = arrive_count
    builder = current()
    builder.emit(Sync("block" if barrier_id is None else "group", builder.span))


def sync_grid() -> None:
    """Make all blocks of the grid wait for each other.

    Tiles and variables lose their values; tensors keep theirs.

    Raises:
        ScopeError: inside a loop or branch (TC104).
    """
    builder = current()
    if builder.frame.kind != "kernel":
        raise ScopeError(
            message="T.sync_grid stands inside a loop or branch",
            hint="blocks run one after the other here; launch a T.Kernel per step instead",
        )
    builder.emit(Sync("grid", builder.span))


def sync_warp(mask: Any = None) -> None:
    """Make the threads of a warp wait for each other."""
    _ = mask
    builder = current()
    builder.emit(Sync("warp", builder.span))
