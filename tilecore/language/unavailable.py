"""Names of the TileLang language that tilecore does not have, with the reason users are told."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tilecore.errors import UnknownPrimitive

FOREIGN = (
    "C code is not compiled for this target, and no function of CUDA or of TileLang's "
    "quantize package has this name"
)
_FAMILIES: dict[str, str] = {
    "raw pointers into tiles are not implemented": "Ptr tvm_access_ptr",
    "sparse and block-scaled gemm and tile schedulers are not implemented yet": """
        gemm_sp gemm_blockscaled mma_gemm_blockscaled PersistentTileScheduler""",
    "TVM's thread statements are not implemented yet": "launch_thread sync_grid thread_return",
    "the generators of cuRAND are not implemented": "rng_init rng_rand rng_rand_float",
    "it is an instruction of a GPU, and this version generates CPU code": """
        alloc_barrier alloc_cluster_barrier alloc_tmem mbarrier_wait_parity mbarrier_arrive
        mbarrier_expect_tx barrier_wait barrier_arrive tma_copy tma_load tma_store_wait async_copy
        copy_cluster wgmma_gemm wait_wgmma tcgen05_gemm tcgen05_gemm_blockscaled ws WarpSpecialize
        set_max_nreg no_set_max_nreg disable_warp_group_reg_alloc fence_proxy_async cluster_sync
        block_rank_in_cluster ClusterKernel CUDASourceCodeKernel pdl_trigger pdl_sync ptx_cp_async
        ptx_wgmma_ss ptx_wgmma_rs ptx_mma ptx_mma_sp ptx_ldmatrix mfma tvm_mfma""",
    "this element type is not implemented yet": """
        float6_e2m3fn float6_e3m2fn""",
}
_REASONS = {name: reason for reason, names in _FAMILIES.items() for name in names.split()}


def unknown(name: str, available: Iterable[str]) -> UnknownPrimitive:
    """Return the error for ``T.name``: why it is missing, or the nearest name there is."""
    if name in _REASONS:
        return UnknownPrimitive(name=name, reason=_REASONS[name])
    near = difflib.get_close_matches(name, list(available), 1)
    hint = f"did you mean T.{near[0]}?" if near else ""
    return UnknownPrimitive(name=name, reason="tilecore has no primitive of this name", hint=hint)
