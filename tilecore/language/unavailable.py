"""Names of the TileLang language that tilecore does not have, with the reason users are told."""

from __future__ import annotations

from collections.abc import Iterable

from tilecore.errors import UnknownName, UnknownPrimitive, did_you_mean

FOREIGN = (
    "C code is not compiled for this target, and no function of CUDA or of TileLang's "
    "quantize package has this name"
)
_FAMILIES: dict[str, str] = {
    "raw pointers into tiles are not implemented": "Ptr",
    "blocks of a grid do not wait for each other on this target": "sync_global",
    "it names an instruction or descriptor of NVIDIA GPUs; this version generates CPU code": """
        ptx_wgmma_ss ptx_wgmma_rs ptx_mma_sp ptx_ldmatrix tvm_mma_sync
        initialize_wgmma_descriptor""",
    "it names an instruction or descriptor of NVIDIA GPUs whose bytes the compiler lays out; "
    "write T.tma_copy(A[...], tile, barrier=bar), T.tma_copy(tile, A[...]) or T.copy, for which it "
    "makes descriptors, boxes and swizzles": """
        alloc_descriptor increase_descriptor_offset tma_load_2sm tma_store tma_load_multicast
        tma_load_im2col tma_gather4 tma_gather4_bytes tma_scatter4""",
    "a tensor that a kernel writes shares no memory with another argument (TC402 at the call); "
    "pass tensors that lie apart, or one tensor and index into it": "annotate_restrict_buffers",
    "a kernel cannot take over clusters that have not started yet (cluster launch control); launch "
    "as many blocks as there are multiprocessors and share out tiles by "
    "T.PersistentTileScheduler": """
        clc_try_cancel clc_try_cancel_multicast clc_is_canceled clc_get_first_ctaid_x
        clc_get_first_ctaid_y clc_get_first_ctaid_z""",
    "the compiler writes tcgen05 instructions and descriptors itself; use T.gemm, or "
    "T.tcgen05_gemm and T.alloc_tmem": """
        initialize_tcgen05_descriptor alloc_tcgen05_smem_desc alloc_tcgen05_instr_desc
        alloc_tcgen05_instruction_desc ptx_tcgen05_mma_ss ptx_tcgen05_mma_ts
        ptx_tcgen05_mma_blockscaled_ss compute_umma_descriptor TCGEN05DescriptorParams
        TCGEN05TensorCoreIntrinEmitter tcgen05_mma_blockscaled""",
    "it is an instruction of an AMD GPU; this version generates CPU code": "mfma tvm_mfma",
    "this element type is not implemented yet": """
        float6_e2m3fn float6_e3m2fn""",
}
_REASONS = {name: reason for reason, names in _FAMILIES.items() for name in names.split()}


def unknown(name: str, available: Iterable[str]) -> UnknownPrimitive:
    """Return the error for ``T.name``: why it is missing, or the nearest name there is."""
    if name in _REASONS:
        return UnknownPrimitive(name=name, reason=_REASONS[name])
    hint = did_you_mean(name, available, "T.{}")
    return UnknownName(name=name, reason="tilecore has no primitive of this name", hint=hint)
