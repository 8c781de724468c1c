"""Roles of thread groups: T.ws (warp specialisation), and the block's place in a cluster."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.expr import Expr, binary, const, int_value
from tilecore.ir.nodes import If, Sync
from tilecore.language.kernel import launch_of
from tilecore.language.thread import WARPGROUP, get_warp_group_idx


@contextmanager
def ws(*warp_group_idx: int) -> Iterator[None]:
    """Let only these warpgroups (128 threads each) run the block: ``with T.ws(0): ...``.

    Raises:
        ScopeError: outside ``with T.Kernel(...)`` (TC104).
        TypeMismatch: not a list of warpgroup numbers (TC202).
    """
    groups = [int_value(g) for g in warp_group_idx]
    if not groups or any(g is None or g < 0 for g in groups):
        raise TypeMismatch(
            expected=f"numbers of warpgroups ({WARPGROUP} threads each) for T.ws",
            found=f"{warp_group_idx}",
        )
    builder = current()
    mine = get_warp_group_idx()
    cond: Expr = functools.reduce(
        lambda a, b: binary("or", a, b), [binary("eq", mine, g) for g in groups if g is not None]
    )
    span = builder.span
    with builder.open("then") as frame:
        yield
    builder.emit(If(cond, frame.body(), None, span))


WarpSpecialize = ws


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


def _sync(scope: str) -> None:
    builder = current()
    builder.emit(Sync(scope, builder.span))
