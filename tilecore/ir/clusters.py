"""Clusters: what reaches into other blocks, and targets on which no block can."""

from __future__ import annotations

from tilecore.errors import UnknownPrimitive
from tilecore.ir import nodes
from tilecore.ir.nodes import PrimFunc, Stmt
from tilecore.ir.visitor import walk

SYNCS = {
    "cluster": "cluster_sync", "cluster_arrive": "cluster_arrive", "cluster_wait": "cluster_wait",
}  # fmt: skip


def reaches_out(stmt: Stmt) -> str:
    """Return the primitive by which a statement reaches into other blocks of a cluster, or ""."""
    match stmt:
        case nodes.Sync(scope=scope) if scope in SYNCS:
            return SYNCS[scope]
        case nodes.ChunkCopy(in_pair=True):
            return "tcgen05_cp_warpx4(use_2cta=True)"
        case nodes.Gemm(in_pair=True, in_lanes=True):
            return "tcgen05_gemm_blockscaled(use_2cta=True)"
        case nodes.Gemm(in_pair=True):
            return "tcgen05_gemm(use_2cta=True)"
        case nodes.Arrive(in_pair=True):
            return "tcgen05_mma_arrive(arrive_2cta=True)"
        case nodes.Arrive(rank=rank) if rank is not None:
            return "mbarrier_arrive(..., cta_id)"
        case nodes.ClusterCopy(block=block) if block is not None:
            return "copy_cluster(dst_block=...)"
        case nodes.ClusterCopy(barrier=barrier):
            return "copy_cluster" if barrier is None else "tma_copy(cluster_mask=...)"
        case _:
            return ""


def multiplies_in_pairs(stmt: Stmt) -> bool:
    """Return whether two blocks multiply together anywhere in ``stmt``."""
    return any(isinstance(s, nodes.Gemm) and s.in_pair for s in walk(stmt))


def uses_clusters(stmt: Stmt) -> bool:
    """Return whether anything in ``stmt`` reaches into other blocks."""
    return any(reaches_out(s) for s in walk(stmt))


def refuse_clusters(func: PrimFunc) -> None:
    """Check that blocks may run one after the other.

    Raises:
        UnknownPrimitive: one reaches into another block of its cluster (TC102).
    """
    for stmt in walk(func.body):
        name = reaches_out(stmt)
        if name:
            raise UnknownPrimitive(
                name=name,
                reason="it reaches into other blocks of a cluster; those run together on sm_90 and "
                "later GPUs, one after the other on this target",
            ).at(stmt.span)
