"""Instructions of NVIDIA GPUs by family: each has its PTX and its meaning on a CPU side by side."""

from tilecore.lowering.cuda.instructions.async_copy import (
    bulk_commit,
    bulk_load,
    bulk_reduce,
    bulk_store,
    bulk_wait,
    cp_async,
    cp_async_arrive,
    cp_async_commit,
    cp_async_wait,
)
from tilecore.lowering.cuda.instructions.atomic import (
    atomic,
    atomic_add_vector,
    compare_and_swap,
    load_ordered,
    store_ordered,
)
from tilecore.lowering.cuda.instructions.barrier import (
    bar_arrive,
    bar_sync,
    barrier_arrive,
    barrier_arrive_remote,
    barrier_expect,
    barrier_expect_only,
    barrier_init,
    barrier_invalidate,
    barrier_test,
    barrier_wait,
    cluster_arrive,
    cluster_load,
    cluster_rank,
    cluster_store,
    cluster_wait,
    dependencies_wait,
    dependents_launch,
    fence_async,
    fence_async_global,
    fence_barrier_init,
    sync_threads,
    sync_warp,
    thread_fence,
)
from tilecore.lowering.cuda.instructions.base import Instruction
from tilecore.lowering.cuda.instructions.convert import (
    decode_int4,
    decode_int8,
    pack,
    pack_float8,
    round_tfloat32,
    unpack_float8,
)
from tilecore.lowering.cuda.instructions.math import approximate, pair_arithmetic
from tilecore.lowering.cuda.instructions.matrix import (
    MmaShape,
    ldmatrix,
    mma,
    mma_shape,
    stmatrix,
)
from tilecore.lowering.cuda.instructions.tcgen05 import (
    tensor_allocate,
    tensor_commit,
    tensor_descriptor,
    tensor_fence,
    tensor_free,
    tensor_k_extent,
    tensor_load,
    tensor_mma,
    tensor_store,
    tensor_wait_loads,
    tensor_wait_stores,
)
from tilecore.lowering.cuda.instructions.tma import (
    cache_policy,
    prefetch_map,
    tma_load,
    tma_reduce,
    tma_store,
)
from tilecore.lowering.cuda.instructions.warp import (
    active_mask,
    clock,
    elect,
    lane_index,
    match_any,
    nanosleep,
    reduce_warp,
    shuffle,
    shuffle_masked,
    vote,
    vote_masked,
    warp_index,
)
from tilecore.lowering.cuda.instructions.wgmma import (
    accumulator_registers,
    descriptor,
    k_extent,
    set_registers,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_keep,
    wgmma_wait,
)

__all__ = [
    "Instruction", "MmaShape", "accumulator_registers", "active_mask", "approximate", "atomic",
    "atomic_add_vector", "bar_arrive", "bar_sync", "barrier_arrive", "barrier_arrive_remote",
    "barrier_expect", "barrier_expect_only", "barrier_init", "barrier_invalidate", "barrier_test",
    "barrier_wait", "bulk_commit", "bulk_load", "bulk_reduce", "bulk_store", "bulk_wait",
    "cache_policy", "clock", "cluster_arrive", "cluster_load", "cluster_rank", "cluster_store",
    "cluster_wait",
    "compare_and_swap", "cp_async", "cp_async_arrive", "cp_async_commit", "cp_async_wait",
    "decode_int4", "decode_int8", "dependencies_wait", "dependents_launch", "descriptor", "elect",
    "fence_async", "fence_async_global", "fence_barrier_init", "k_extent", "lane_index",
    "ldmatrix", "load_ordered", "match_any", "mma", "mma_shape", "nanosleep", "pack",
    "pack_float8", "pair_arithmetic", "prefetch_map", "reduce_warp", "round_tfloat32",
    "set_registers", "shuffle", "shuffle_masked", "stmatrix", "store_ordered", "sync_threads",
    "sync_warp", "tensor_allocate",
    "tensor_commit", "tensor_descriptor", "tensor_fence", "tensor_free", "tensor_k_extent",
    "tensor_load", "tensor_mma", "tensor_store", "tensor_wait_loads", "tensor_wait_stores",
    "thread_fence", "tma_load", "tma_reduce", "tma_store", "unpack_float8", "vote",
    "vote_masked", "warp_index", "wgmma", "wgmma_commit", "wgmma_fence", "wgmma_keep",
    "wgmma_wait",
]  # fmt: skip
