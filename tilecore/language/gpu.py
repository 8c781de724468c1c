"""What is asynchronous on a GPU: barriers, transfers, roles of warps, schedules."""

from __future__ import annotations

from tilecore.language.barrier import (
    alloc_barrier,
    alloc_cluster_barrier,
    barrier_arrive,
    barrier_wait,
    cp_async_barrier_noinc,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_wait_parity,
    tcgen05_mma_arrive,
)
from tilecore.language.blockscaled import (
    mma_gemm_blockscaled,
    tcgen05_cp_warpx4,
    tcgen05_gemm_blockscaled,
    tcgen05_sf_warp_transpose,
)
from tilecore.language.cluster import (
    block_rank_in_cluster,
    cluster_arrive,
    cluster_arrive_relaxed,
    cluster_sync,
    cluster_wait,
    get_cluster_dims,
    get_cluster_extent,
    get_cluster_extents,
    get_cluster_id,
    get_cluster_ids,
    get_cluster_size,
    ptx_arrive_cluster_barrier,
)
from tilecore.language.role import (
    WarpSpecialize,
    ws,
)
from tilecore.language.schedule import PersistentTileScheduler
from tilecore.language.tma import create_tma_descriptor, tma_load
from tilecore.language.transfer import (
    alloc_tmem,
    annotate_consumer_reg_alloc,
    annotate_producer_reg_dealloc,
    async_copy,
    copy_cluster,
    cp_async_commit,
    cp_async_wait,
    deallocate_tmem,
    dec_max_nreg,
    disable_warp_group_reg_alloc,
    fence_proxy_async,
    inc_max_nreg,
    no_set_max_nreg,
    pdl_sync,
    pdl_trigger,
    ptx_commit_group,
    ptx_cp_async,
    ptx_wait_group,
    set_max_nreg,
    tcgen05_after_thread_sync,
    tcgen05_before_thread_sync,
    tcgen05_gemm,
    tcgen05_mma,
    tma_copy,
    tma_store_arrive,
    tma_store_wait,
    wait_wgmma,
    warpgroup_arrive,
    warpgroup_commit_batch,
    warpgroup_fence_operand,
    warpgroup_wait,
    wgmma_gemm,
)
from tilecore.language.ws_schedule import (
    WSID,
    WSOpRef,
    WSPipeline,
    WSRole,
    WSSchedule,
    WSScope,
    WSSync,
    annotate_ws_schedule,
    ws_op,
)

__all__ = [
    "PersistentTileScheduler", "WSID", "WSOpRef", "WSPipeline", "WSRole", "WSSchedule", "WSScope",
    "WSSync", "WarpSpecialize", "alloc_barrier", "alloc_cluster_barrier", "alloc_tmem",
    "annotate_consumer_reg_alloc", "annotate_producer_reg_dealloc", "annotate_ws_schedule",
    "async_copy", "barrier_arrive", "barrier_wait", "block_rank_in_cluster", "cluster_arrive",
    "cluster_arrive_relaxed", "cluster_sync", "cluster_wait", "copy_cluster",
    "cp_async_barrier_noinc", "cp_async_commit", "cp_async_wait", "create_tma_descriptor",
    "deallocate_tmem", "dec_max_nreg",
    "disable_warp_group_reg_alloc", "fence_proxy_async", "get_cluster_dims", "get_cluster_extent",
    "get_cluster_extents", "get_cluster_id", "get_cluster_ids", "get_cluster_size", "inc_max_nreg",
    "mbarrier_arrive", "mbarrier_arrive_expect_tx", "mbarrier_expect_tx", "mbarrier_wait_parity",
    "mma_gemm_blockscaled", "no_set_max_nreg", "pdl_sync", "pdl_trigger",
    "ptx_arrive_cluster_barrier", "ptx_commit_group", "ptx_cp_async", "ptx_wait_group",
    "set_max_nreg", "tcgen05_after_thread_sync", "tcgen05_before_thread_sync", "tcgen05_cp_warpx4",
    "tcgen05_gemm", "tcgen05_gemm_blockscaled", "tcgen05_mma", "tcgen05_mma_arrive",
    "tcgen05_sf_warp_transpose", "tma_copy", "tma_load",
    "tma_store_arrive", "tma_store_wait", "wait_wgmma",
    "warpgroup_arrive", "warpgroup_commit_batch", "warpgroup_fence_operand", "warpgroup_wait",
    "wgmma_gemm", "ws", "ws_op",
]  # fmt: skip
