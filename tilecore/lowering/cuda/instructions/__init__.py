"""Instructions of NVIDIA GPUs by family: each has its PTX and its meaning on a CPU side by side."""

from tilecore.lowering.cuda.instructions.async_copy import (
    bulk_commit,
    bulk_load,
    bulk_store,
    bulk_wait,
    cp_async,
    cp_async_arrive,
    cp_async_commit,
    cp_async_wait,
)
from tilecore.lowering.cuda.instructions.atomic import (
    add_neighbours,
    atomic,
    atomic_narrow,
    load_ordered,
)
from tilecore.lowering.cuda.instructions.barrier import (
    await_launches,
    bar_arrive,
    bar_sync,
    barrier_arrive,
    barrier_arrive_remote,
    barrier_expect,
    barrier_expect_only,
    barrier_expect_remote,
    barrier_free_remote,
    barrier_init,
    barrier_invalidate,
    barrier_test,
    barrier_wait,
    cluster_address,
    cluster_arrive,
    cluster_load,
    cluster_rank,
    cluster_wait,
    converge_warp,
    fence_async,
    fence_barrier_init,
    launch_dependents,
    sync_threads,
    sync_warp,
    thread_fence,
)
from tilecore.lowering.cuda.instructions.base import Instruction
from tilecore.lowering.cuda.instructions.convert import (
    exact,
    extend_nibbles,
    narrow_pair,
    pack,
    pack_halves,
    round_tfloat32,
)
from tilecore.lowering.cuda.instructions.math import (
    approximate,
    fma_halves,
    masked_or,
    rounded,
)
from tilecore.lowering.cuda.instructions.matrix import (
    MmaShape,
    ldmatrix,
    mma,
    mma_scaled,
    mma_shape,
    stmatrix,
)
from tilecore.lowering.cuda.instructions.tcgen05 import (
    tensor_allocate,
    tensor_commit,
    tensor_descriptor,
    tensor_fence,
    tensor_free,
    tensor_keep,
    tensor_load,
    tensor_mma,
    tensor_store,
    tensor_wait_loads,
    tensor_wait_stores,
)
from tilecore.lowering.cuda.instructions.tcgen05_scaled import tensor_copy, tensor_mma_scaled
from tilecore.lowering.cuda.instructions.tma import (
    prefetch_map,
    tma_load,
    tma_load_pair,
    tma_reduce,
    tma_store,
)
from tilecore.lowering.cuda.instructions.warp import (
    assume_below,
    clock,
    elect,
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
    "Instruction", "MmaShape", "accumulator_registers", "add_neighbours", "approximate",
    "assume_below", "atomic",
    "atomic_narrow", "await_launches", "bar_arrive", "bar_sync", "barrier_arrive",
    "barrier_arrive_remote", "barrier_expect", "barrier_expect_only", "barrier_expect_remote",
    "barrier_free_remote", "barrier_init", "barrier_invalidate", "barrier_test", "barrier_wait",
    "bulk_commit", "bulk_load", "bulk_store", "bulk_wait", "clock", "cluster_address",
    "cluster_arrive", "cluster_load", "cluster_rank", "cluster_wait", "converge_warp",
    "cp_async", "cp_async_arrive", "cp_async_commit", "cp_async_wait", "descriptor", "elect",
    "exact", "extend_nibbles", "fence_async", "fence_barrier_init", "fma_halves", "k_extent",
    "launch_dependents", "ldmatrix", "load_ordered", "masked_or", "mma", "mma_scaled",
    "mma_shape", "narrow_pair", "pack", "pack_halves", "prefetch_map", "round_tfloat32", "rounded",
    "set_registers", "shuffle", "shuffle_masked", "stmatrix", "sync_threads", "sync_warp",
    "tensor_allocate", "tensor_commit", "tensor_copy", "tensor_descriptor", "tensor_fence",
    "tensor_free", "tensor_keep", "tensor_load", "tensor_mma", "tensor_mma_scaled",
    "tensor_store", "tensor_wait_loads", "tensor_wait_stores", "thread_fence", "tma_load",
    "tma_load_pair", "tma_reduce", "tma_store", "vote", "vote_masked", "warp_index", "wgmma",
    "wgmma_commit", "wgmma_fence", "wgmma_keep", "wgmma_wait",
]  # fmt: skip
