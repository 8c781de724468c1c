"""Clusters of blocks: their extents, a block's place in them, and their barrier."""

from __future__ import annotations

from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.expr import Expr, binary, const, int_value
from tilecore.ir.nodes import Sync
from tilecore.language.barrier import mbarrier_arrive
from tilecore.language.kernel import launch_of
from tilecore.language.math import ceildiv

AXES = 3


def get_cluster_dims() -> list[int]:
    """Return the blocks of a cluster along x, y and z."""
    dims = launch_of("get_cluster_dims").cluster_dims
    return [*dims, *(1 for _ in range(AXES - len(dims)))]


def get_cluster_size() -> int:
    """Return the number of blocks in a cluster."""
    return launch_of("get_cluster_size").cluster_size


def get_cluster_id(dim: int = 0) -> Expr:
    """Return the number of the block's cluster along an axis of the grid.

    Raises:
        TypeMismatch: no such axis (TC202).
    """
    launch = launch_of("get_cluster_id")
    if not 0 <= dim < len(launch.block_vars):
        raise TypeMismatch(expected=f"an axis of {len(launch.block_vars)}", found=dim)
    return binary("floordiv", launch.block_vars[dim], const(get_cluster_dims()[dim]))


def get_cluster_ids() -> list[Expr]:
    """Return the number of the block's cluster along all axes of the grid."""
    axes = range(len(launch_of("get_cluster_ids").block_vars))
    return [get_cluster_id(dim) for dim in axes]


def get_cluster_extent(dim: int = 0) -> Any:
    """Return the number of clusters along an axis.

    Raises:
        TypeMismatch: no such axis (TC202).
    """
    if not 0 <= dim < AXES:
        raise TypeMismatch(expected=f"an axis of {AXES}", found=dim)
    grid = launch_of("get_cluster_extent").grid
    extent = grid[dim] if dim < len(grid) else const(1)
    blocks = int_value(extent)
    return ceildiv(extent if blocks is None else blocks, get_cluster_dims()[dim])


def get_cluster_extents() -> list[Any]:
    """Return the number of clusters along x, y and z."""
    return [get_cluster_extent(dim) for dim in range(AXES)]


def block_rank_in_cluster() -> Expr:
    """Return the number of the block within its cluster."""
    launch = launch_of("block_rank_in_cluster")
    rank: Expr = const(0)
    pairs = list(zip(launch.block_vars, launch.cluster_dims, strict=False))
    for var, size in reversed(pairs):
        rank = rank * size + (var % size if size > 1 else 0)
    return rank


def cluster_arrive() -> None:
    """Arrive at the barrier of the cluster: T.cluster_wait does the waiting."""
    if launch_of("cluster_arrive").cluster_size > 1:
        _sync("cluster_arrive")


cluster_arrive_relaxed = cluster_arrive


def cluster_wait() -> None:
    """Wait until all threads of the cluster have called T.cluster_arrive."""
    _sync("cluster_wait" if launch_of("cluster_wait").cluster_size > 1 else "block")


def cluster_sync() -> None:
    """Make all threads of a cluster wait for each other."""
    _sync("cluster" if launch_of("cluster_sync").cluster_size > 1 else "block")


def ptx_arrive_cluster_barrier(mbarrier: Any, cta_id: Any) -> None:
    """Arrive at the barrier of another block of the cluster, each thread that runs this once."""
    mbarrier_arrive(mbarrier, cta_id)


def _sync(scope: str) -> None:
    builder = current()
    builder.emit(Sync(scope, builder.span))
